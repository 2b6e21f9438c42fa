"""The tables' rows are what the store says, and what a replay of the log in plain Python says, column by column."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.spark import replay
from tests.spark.logs import FileLog, Tables, in_memory, same
from tests.spark.walks import Traffic, walked
from waypost.arrow import DELIVERIES, MESSAGES
from waypost.delivery import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

KEYS = {
    "messages": ("sequence",),
    "deliveries": ("sequence", "destination_code", "slot"),
    "receipts": ("sequence", "destination_code", "slot", "attempt"),
    "queue_minutes": ("minute", "destination_code"),
    "consumer_minutes": ("minute", "consumer", "queue", "channel"),
}


@pytest.fixture(scope="session")
def traffic() -> Traffic:
    return walked()


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
    same(of("messages", events), replay.rows(traffic.messages.select(columns)), KEYS["messages"])


def test_deliveries_are_what_the_store_says(events: DataFrame, traffic: Traffic) -> None:
    columns = [name for name in DELIVERIES.names if name not in ("due_at", "named")]
    same(of("deliveries", events), replay.rows(traffic.deliveries.select(columns)), KEYS["deliveries"])


@pytest.mark.parametrize("name", list(KEYS))
def test_a_table_is_what_a_replay_of_the_log_says(
    name: str, events: DataFrame, happened: list[replay.Row]
) -> None:
    told: Callable[[list[replay.Row]], list[replay.Row]] = getattr(replay, name)
    same(of(name, events), told(happened), KEYS[name])


def test_minutes_that_had_not_ended_are_left_out(events: DataFrame, happened: list[replay.Row]) -> None:
    last = happened[-1]["at"]
    until = datetime.fromtimestamp(last / 1_000_000, UTC)
    closed = [event for event in happened if event["at"] < last // replay.MINUTE * replay.MINUTE]
    found = of("queue_minutes", events, until=until)
    same(found, replay.queue_minutes(closed), KEYS["queue_minutes"])
    assert len(found) < len(of("queue_minutes", events))


# --- computed when read ------------------------------------------------------------------------------------------


def test_the_history_of_a_thing_has_no_gaps(events: DataFrame, traffic: Traffic) -> None:
    history = of("object_history", events)
    said = [
        row
        for row in replay.rows(traffic.messages)
        if None not in (row["object"], row["key"]) and row["state"] != "U"
    ]
    assert {row["sequence"] for row in history} == {row["sequence"] for row in said}
    by_thing: dict[tuple[str, str], list[replay.Row]] = {}
    for row in sorted(history, key=lambda row: row["sequence"]):
        by_thing.setdefault((row["object"], row["key"]), []).append(row)
    assert any(len(rows) > 2 for rows in by_thing.values())
    for rows in by_thing.values():
        assert [row["valid_to"] for row in rows] == [*(row["valid_from"] for row in rows[1:]), None]


def test_dead_letters_say_what_they_were_about(events: DataFrame, traffic: Traffic) -> None:
    dead = [row for row in replay.rows(traffic.deliveries) if row["state"] in "EI"]
    about = {row["sequence"]: row for row in replay.rows(traffic.messages)}
    expected = [
        {
            **{name: row[name] for name in ("sequence", "destination_code", "slot", "reason", "consumer")},
            "since": row["changed_at"],
            **{name: about[row["sequence"]][name] for name in ("topics", "object", "key")},
        }
        for row in dead
    ]
    same(of("dead_letters", events), expected, KEYS["deliveries"])


def test_unchanged_counts_what_was_saved(events: DataFrame, traffic: Traffic) -> None:
    repeated = [row for row in traffic.messages.to_pylist() if row["state"] == "U"]
    saved = of("unchanged", events)
    assert sum(row["messages"] for row in saved) == len(repeated) > 0
    assert sum(row["bytes"] for row in saved) == sum(row["size"] for row in repeated)
    assert {row["day"] for row in saved} == {row["at"].date() for row in repeated}


# --- how Spark does it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["messages", "deliveries", "receipts"])
def test_a_fold_keeps_its_hash_tables(name: str, events: DataFrame) -> None:
    """Text in an aggregate's buffer would make Spark sort, twice."""
    from waypost.spark.tables import of_events

    plan = of_events(name, events)._jdf.queryExecution().executedPlan().toString()
    assert "HashAggregate" in plan
    assert "SortAggregate" not in plan
    assert "ObjectHashAggregate" not in plan
    assert "Python" not in plan


def test_a_slice_needs_no_shuffle(events: DataFrame) -> None:
    from waypost.spark.tables import FOLDED

    for table in FOLDED:
        plan = table.numbers(events.coalesce(1))._jdf.queryExecution().executedPlan().toString()
        assert "Exchange" not in plan, table.name


# --- merging -----------------------------------------------------------------------------------------------------


@given(cuts=st.lists(st.integers(1, 100), min_size=1, max_size=2), slice=st.sampled_from([300, 1_000_000]))
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_folds_of_pieces_merge_to_the_fold_of_everything(
    spark: SparkSession,
    traffic: Traffic,
    happened: list[replay.Row],
    cuts: list[int],
    slice: int,
) -> None:
    """Wherever the log is cut; pipelines that start and end at the cuts, with small and large slices."""
    with in_memory() as folder:
        log = FileLog(spark, traffic.events.slice(0, 800), folder)
        tables = Tables(spark, log, folder / "lake")
        for cut in [*sorted(cuts), 100]:
            tables.keep(log.head * cut // 100, slice=slice)
        for name, told in replay.kept(happened[: log.head]).items():
            same(tables.rows(name), told, KEYS[name])


# --- their page --------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")
CHAPTERS = {name: chapter for name, _, chapter in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}


def test_the_page_has_every_table_with_its_columns_and_types() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from waypost.spark.tables import TABLES

    for name, table in TABLES.items():
        said = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", CHAPTERS[name], re.MULTILINE)
        fields = from_arrow_schema(table.schema).fields
        kept = [(field.name, field.dataType.simpleString()) for field in fields]
        shown = [one for one in kept if one[0] != "bucket" and not one[0].startswith("_")]
        assert [(column, html.unescape(kind)) for column, kind in said] == shown, name


def test_the_questions_of_the_page_are_answered(spark: SparkSession, events: DataFrame) -> None:
    from waypost.spark.tables import TABLES, of_events

    for name in TABLES:
        of_events(name, events).createOrReplaceTempView(name)
    for name, chapter in CHAPTERS.items():
        (question,) = re.findall(r"```sql\n(.*?)```", chapter, re.DOTALL)
        assert name in question
        spark.sql(question).toArrow()
