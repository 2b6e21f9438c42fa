"""The tables' rows are what the store says, and what a replay of the log in plain Python says, column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.spark import replay
from tests.spark.walks import Traffic, walked
from waypost.arrow import DELIVERIES, MESSAGES
from waypost.delivery import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def traffic() -> Traffic:
    return walked(walks=15, steps=50)


@pytest.fixture(scope="session")
def events(spark: SparkSession, traffic: Traffic, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    file = tmp_path_factory.mktemp("events") / "all.parquet"
    pq.write_table(traffic.events, file)
    return spark.read.parquet(str(file))


@pytest.fixture(scope="session")
def happened(traffic: Traffic) -> list[replay.Row]:
    return replay.rows(traffic.events)


def of(name: str, events: DataFrame, **more: Any) -> list[replay.Row]:
    from waypost.spark.tables import of_events

    return replay.rows(of_events(name, events, **more).toArrow())


def same(found: list[replay.Row], expected: list[replay.Row], *key: str) -> None:
    """On the columns that are expected; the first row that differs is shown."""
    names = list(expected[0])

    def place(row: replay.Row) -> tuple[str, ...]:
        return tuple(f"{row[name]!r:>30}" for name in key)

    ours = {place(row): {name: row[name] for name in names} for row in found}
    theirs = {place(row): row for row in expected}
    assert len(ours) == len(found), "a key is there twice"
    for where in sorted(theirs):
        assert ours.get(where) == theirs[where]
    assert len(ours) == len(theirs)


def test_the_walks_have_seen_everything(traffic: Traffic) -> None:
    """What follows is worth as much as what happened."""
    steps = {
        (event["from_state"], event["to_state"], event["channel"] is not None)
        for event in traffic.events.select(["from_state", "to_state", "channel"]).to_pylist()
    }
    assert set(traffic.messages["state"].to_pylist()) == set("LUQFREOTCX")
    assert set(traffic.deliveries["state"].to_pylist()) == {s.name for s in State} - {"L", "U", "X"}
    assert {"EL", "RS", "RR", "FQ", "NQ", "NE", "SQ", "CQ", "LE", "FK", "QO", "QT", "LX"} <= {
        f"{before}{after}" for before, after, in_channel in steps if not in_channel
    }
    assert ("F", "N", True) in steps
    assert max(traffic.deliveries["slot"].to_pylist()) > 1
    reasons = set(traffic.events["reason"].to_pylist())
    assert reasons >= {"backfill", "dead-letter", "redriven", "replayed", "released", "lease-over", "removed"}


def test_messages_are_what_the_store_says(events: DataFrame, traffic: Traffic) -> None:
    columns = [name for name in MESSAGES.names if name not in ("priority", "expires_at")]
    same(of("messages", events), replay.rows(traffic.messages.select(columns)), "sequence")


def test_deliveries_are_what_the_store_says(events: DataFrame, traffic: Traffic) -> None:
    columns = [name for name in DELIVERIES.names if name not in ("due_at", "named")]
    same(
        of("deliveries", events),
        replay.rows(traffic.deliveries.select(columns)),
        *("sequence", "destination_code", "slot"),
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("messages", ("sequence",)),
        ("deliveries", ("sequence", "destination_code", "slot")),
        ("receipts", ("sequence", "destination_code", "slot", "attempt")),
        ("queue_minutes", ("minute", "destination_code")),
        ("consumer_minutes", ("minute", "consumer", "queue", "channel")),
    ],
)
def test_a_table_is_what_a_replay_of_the_log_says(
    name: str, key: tuple[str, ...], events: DataFrame, happened: list[replay.Row]
) -> None:
    told: Callable[[list[replay.Row]], list[replay.Row]] = getattr(replay, name)
    same(of(name, events), told(happened), *key)
