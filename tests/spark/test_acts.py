"""redrive, replay and cancel of what a DataFrame names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.commands import Broker, end, serve
from waypost import BlockingClient
from waypost.spark import ActImpossible, acts, cancel, redrive, replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(120)


def dead_letters(client: BlockingClient, queue: str, count: int) -> list[str]:
    """Their ids, in the order of the log."""
    lines = [{"topics": [f"{queue}.made"], "body": str(number)} for number in range(count)]
    ids = [published.id for published in client.publish_many(lines)]
    while got := client.fetch(queue, 1_000):
        client.confirm(queue, [message.receipt for message in got], "invalid")
    return ids


def rows(spark: SparkSession, ids: list[str], queue: str | None = None) -> DataFrame:
    return spark.createDataFrame([(id, queue) for id in ids], "message_id string, queue string")


def fetched(client: BlockingClient, queue: str) -> list[str]:
    got = client.fetch(queue, 1_000)
    client.confirm(queue, [message.receipt for message in got], "invalid")
    return [message.id for message in got]


def test_dead_letters_of_a_dataframe_go_back_once_and_in_their_order(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    ids = dead_letters(client, "acts-dead", 1_200)
    alive = client.publish("acts-dead.made", "x").id
    named = rows(
        spark, [*ids[::-1], alive, ids[0], "01a1e29a-45e7-7000-8000-000006ddf11b", "Not An Id"], "acts-dead"
    )
    seen = redrive(named, broker.url)
    assert (seen.matched, seen.states, seen.left, seen.rows) == (1_200, {"I": 1_200}, {"Q": 1}, 1_203)
    assert (seen.unknown, sorted(seen.unknown_ids)) == (
        2,
        ["01a1e29a-45e7-7000-8000-000006ddf11b", "Not An Id"],
    )
    assert str(seen).startswith(
        f"1,200 would be redriven (1,200 in I) as of {seen.as_of}\n  left alone: 1 (1 in Q)"
    )
    heard: list[tuple[int, int]] = []
    done = redrive(named, broker.url, dry_run=False, progress=lambda *of: heard.append(of))
    assert (done.matched, done.left, done.unknown) == (1_200, {"Q": 1}, 2)
    assert heard == [(1_000, 1_201), (1_201, 1_201)]
    assert fetched(client, "acts-dead") + fetched(client, "acts-dead") == [*ids, alive]
    again = redrive(named, broker.url, dry_run=False, as_of=seen.as_of)
    assert (again.matched, again.changed) == (0, 1_201), "they have died again meanwhile"


def test_a_rate_is_kept_in_small_slices_and_a_consumer_gets_what_is_for_it(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    ids = dead_letters(client, "acts-slow", 12)
    heard: list[int] = []
    named = spark.createDataFrame([(id,) for id in ids], "message_id string")
    done = redrive(
        named, broker.url, dry_run=False, rate=50, consumer="ann", progress=lambda rows, _: heard.append(rows)
    )
    assert (done.matched, heard) == (12, [5, 10, 12])
    assert client.fetch("acts-slow", 20, consumer="bob") == []
    assert [message.id for message in client.fetch("acts-slow", 20, consumer="ann")] == ids


def test_a_channel_is_cancelled_and_everything_replayed(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    client.declare_channel("acts-crm", ["acts-all.*"])
    id = client.publish("acts-all.made", "x").id
    crm = spark.createDataFrame([(id, None, "acts-crm")], "message_id string, queue string, channel string")
    assert cancel(crm, broker.url, dry_run=False).states == {"Q": 1}
    assert [found["queue"] for found in client.search(f"id={id} state=Q")] == ["acts-all"]
    replayed = replay(rows(spark, [id]), broker.url, dry_run=False)
    assert (replayed.states, replayed.left) == ({"C": 1}, {"Q": 1})


def test_a_broker_that_goes_away_is_told_and_the_same_call_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(acts, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(acts, "SLICE", 10)
    store = ("--store", f"sqlite:///{tmp_path / 'waypost.db'}", "--lake", "off")
    first = serve(tmp_path, *store)
    with BlockingClient(first.url) as client:
        ids = dead_letters(client, "orders", 35)

    def kill(done: int, of: int) -> None:
        if done == 20:
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.communicate()

    with pytest.raises(ActImpossible, match="20 are redriven") as broken:
        redrive(rows(spark, ids), first.url, dry_run=False, progress=kill)
    line = str(broken.value)
    assert line.startswith(f"no broker answers at {first.url}")
    as_of = line.partition("as_of='")[2].partition("'")[0]
    with pytest.raises(ActImpossible, match="nothing was touched"):
        redrive(rows(spark, ids), first.url)
    second = serve(tmp_path, *store)
    try:
        done = redrive(rows(spark, ids), second.url, dry_run=False, as_of=as_of)
        assert (done.matched, done.changed) == (15, 20)
        with BlockingClient(second.url) as client:
            assert [message.id for message in client.fetch("orders", 100)] == ids
            events = [event for event in client.log() if event["reason"] == "redriven"]
            assert [event["messageId"] for event in events] == ids
        end(second)
    finally:
        second.process.kill()


@pytest.mark.parametrize(
    ("columns", "row", "says"),
    [
        ("id string", ("a",), "column message_id (string) is needed; this one has id"),
        ("message_id int", (1,), "message_id (string) is needed; this one is no string"),
        ("message_id string, queue int", ("a", 1), "column queue is int"),
        ("message_id string", (None,), "1 rows have no message_id"),
        ("message_id string, queue string, channel string", ("a", "q", "c"), "a queue and a channel"),
    ],
)
def test_a_dataframe_that_will_not_do_is_told(
    spark: SparkSession, columns: str, row: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(ActImpossible) as told:
        redrive(spark.createDataFrame([row], columns), "http://127.0.0.1:9")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_wrong_words_are_told_before_anything_is_touched(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    (id,) = dead_letters(client, "acts-words", 1)
    named = rows(spark, [id])
    for wrong, says in [
        ({"rate": 0}, "rate is a number"),
        ({"states": "EZ"}, "unknown state"),
        ({"as_of": "yesterday"}, "yesterday"),
        ({"consumer": "UPPER"}, "UPPER"),
    ]:
        with pytest.raises(ActImpossible, match=says):
            redrive(named, broker.url, dry_run=False, **wrong)  # type: ignore[arg-type]
    assert client.message(id)["state"] == "E"
