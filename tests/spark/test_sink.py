"""write.format("waypost"): rows become messages, all of a batch or none, and once. Against a real broker, in a real session."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from tests.integration.commands import Broker, end, serve
from waypost import BlockingClient

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from pyspark_waypost import broker as source_broker
from pyspark_waypost import rows as sink_rows
from pyspark_waypost.broker import Broker as Address
from pyspark_waypost.errors import SourceError, Unreachable
from pyspark_waypost.options import parse
from pyspark_waypost.rows import MOST_BYTES, check_rows, chunks
from pyspark_waypost.sending import Upload, accept, upload, wait
from tests.spark.test_source import refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that only this file writes to."""
    started = serve(tmp_path_factory.mktemp("target"), "--lake", "off")
    try:
        yield started
        end(started)
    finally:
        started.process.kill()


def write(rows: DataFrame, broker: Broker, **options: Any) -> None:
    rows.write.format("waypost").option("url", broker.url).options(**options).mode("append").save()


def logged(broker: Broker, topic: str) -> list[dict[str, Any]]:
    with urlopen(f"{broker.url}/log/{topic}?payload=1") as answer:
        return [json.loads(line) for line in answer]


def bodies(broker: Broker, topic: str) -> list[str]:
    return [event["body"] for event in logged(broker, topic)]


def numbered(spark: SparkSession, count: int, topic: str, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) as value", f"'{topic}' as topics"
    )


# --- columns, chunks, what is said to the broker -------------------------------------------------------------------


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "date": DateType(),
    "array<int>": ArrayType(IntegerType()),
}


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("topics string", {}, "no column value"),
        ("value string", {}, "neither topics nor object"),
        (
            "value string, object string, colour string",
            {},
            "unknown column 'colour'; the columns are: value, topics",
        ),
        ("value int, object string", {}, "column value is int, not string or binary"),
        ("value string, topics array<int>", {}, "column topics is array<int>, not array<string>, or string"),
        ("value string, object string, priority string", {}, "column priority is string, not int"),
        ("value string, object string, timestamp date", {}, "column timestamp is date, not timestamp"),
        ("value string, object string", {"object": "a"}, "both a column and an option object"),
        ("value string, object string, value string", {}, "column value is there twice"),
    ],
)
def test_columns_that_cannot_be_messages_are_refused(
    columns: str, options: dict[str, str], text: str
) -> None:
    fields = [column.split(" ") for column in columns.split(", ")]
    schema = StructType([StructField(name, TYPES[kind]) for name, kind in fields])
    with pytest.raises(SourceError) as refused:
        check_rows(schema, parse(options))
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"query": "Nightly run"}, "option query is a name of lower-case letters"),
        ({"wait": "long"}, "option wait is a number of seconds"),
        ({"wait": "-1"}, "option wait is a number of seconds"),
        ({"table": "messages"}, "option table is for read and readStream"),
        ({"maxEventsPerTrigger": "1"}, "option maxEventsPerTrigger is for read and readStream"),
    ],
)
def test_options_that_a_write_cannot_have_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError) as refused:
        parse(options).check_write()
    assert text in str(refused.value)


def test_options_of_a_write_are_refused_for_a_read() -> None:
    for check in (parse({"topics": "a"}).check_batch, parse({"query": "q"}).check_stream):
        with pytest.raises(SourceError, match="is for write and writeStream"):
            check()


def values(stream: bytes) -> list[bytes]:
    return list(pa.ipc.open_stream(stream).read_all().column("value").to_pylist())


def test_chunks_fit_into_an_upload_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [b"%d" % number for number in range(3_000)]
    # An average that says nothing: a few are large, and all of them at the end.
    large = [b"x" * (5 << 20), b"y" * (3 << 20), b"z" * (7 << 20)]
    batches = [pa.record_batch({"value": small}), pa.record_batch({"value": [*small, *large]})]
    made = list(chunks(batches))
    assert max(len(stream) for _, stream in made) <= MOST_BYTES
    assert [rows for rows, _ in made] == [len(values(stream)) for _, stream in made]
    assert [value for _, stream in made for value in values(stream)] == [*small, *small, *large]
    monkeypatch.setattr(sink_rows, "MOST_ROWS", 1_000)
    assert [rows for rows, _ in chunks(batches[:1] * 2)] == [1_000] * 6


def test_a_row_that_no_upload_can_carry_is_named_by_its_number() -> None:
    batches = [
        pa.record_batch({"value": [b"1", b"2"]}),
        pa.record_batch({"value": [b"3", b"x" * MOST_BYTES]}),
    ]
    with pytest.raises(SourceError, match=r"row 4: it has 83[0-9]+ bytes; a row of a sink has at most 8 MiB"):
        list(chunks(batches))


def test_a_broker_that_is_gone_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_waypost.sending.PATIENCE_SECONDS", 0.2)
    assert source_broker.PATIENCE_SECONDS == 30.0
    nobody = Address("http://127.0.0.1:9")
    for act in (lambda: upload(nobody, b"", 1), lambda: accept(nobody, "q", 0, [])):
        with pytest.raises(Unreachable, match=r"no broker answers at http://127\.0\.0\.1:9"):
            act()


def test_rows_that_do_not_move_on_are_not_waited_for_for_ever(target: Broker) -> None:
    address = Address(target.url)
    limit = Request(f"{target.url}/v1/queues/narrow", b'{"maxMessages": 1}', method="PUT")
    with urlopen(limit) as answer:
        assert answer.status == 201
    stream = next(chunks([pa.record_batch({"value": ["1", "2"], "object": ["narrow"] * 2})]))[1]
    kept: Upload = upload(address, stream, 1)
    accepted = accept(address, "stuck", 0, [kept])
    with pytest.raises(SourceError, match=r"1 of 2 rows are in, and for 0\.3 s no other") as refused:
        wait(address, accepted, 0.3)
    assert "GET /v1/batches/stuck/0" in str(refused.value)


# --- batches -----------------------------------------------------------------------------------------------------


def test_rows_become_messages_with_all_that_they_say(spark: SparkSession, target: Broker) -> None:
    rows = spark.sql(
        "select unhex('FF00') as value, array('full.made', 'also.here') as topics, 'thing' as object, 'k-1' as key,"
        " 'image/png' as mime_type, timestamp '2026-01-31 10:00:00Z' as timestamp, 0 as delay,"
        " interval 1 hour as ttl, 2 as priority"
    )
    write(rows, target)
    write(
        spark.sql("select '' as value, 1.5 as ttl, cast(null as string) as key"),
        target,
        topics="full.made, b",
        object="thing",
    )
    first, second = logged(target, "full.made")
    assert first["bodyBase64"] == "/wA="
    said = [first[name] for name in ("topics", "object", "key", "mimeType", "timestamp")]
    assert said == [["full.made", "also.here"], "thing", "k-1", "image/png", "2026-01-31T10:00:00.000000Z"]
    assert (second["topics"], second["object"], second["body"]) == (["full.made", "b"], "thing", "")
    with BlockingClient(target.url) as client:
        assert client.message(first["messageId"])["priority"] == 2


def test_rows_enter_in_the_order_of_partitions_and_of_rows(spark: SparkSession, target: Broker) -> None:
    write(numbered(spark, 5_000, "order.made", partitions=3), target)
    assert bodies(target, "order.made") == [str(number) for number in range(5_000)]


def test_a_write_with_a_name_that_is_done_again_changes_nothing(spark: SparkSession, target: Broker) -> None:
    write(numbered(spark, 100, "named.made"), target, query="nightly-1")
    # Divided otherwise, as a rerun may be.
    write(numbered(spark, 100, "named.made", partitions=1), target, query="nightly-1")
    write(numbered(spark, 0, "named.made"), target, query="nightly-1")
    assert len(bodies(target, "named.made")) == 100
    said = refusal(lambda: write(numbered(spark, 99, "named.made"), target, query="nightly-1"))
    assert "batch 0 of 'nightly-1' was accepted with other content: 100 rows then, 99 now" in said
    assert len(bodies(target, "named.made")) == 100


def test_a_wrong_row_fails_the_write_by_its_number_and_nothing_enters(
    spark: SparkSession, target: Broker
) -> None:
    rows = spark.range(0, 4_000, 1, 2).selectExpr(
        "cast(id as string) as value", "'wrong.made' as topics", "if(id = 3999, 10, 5) as priority"
    )
    said = refusal(lambda: write(rows, target))
    assert said == "partition 1: row 2000: priority 10; a priority is 0 (first) to 9 (last)"
    assert bodies(target, "wrong.made") == []


def test_what_cannot_be_written_is_said_before_any_row_is_read(spark: SparkSession, target: Broker) -> None:
    def saved(mode: str, *path: str) -> Callable[[], None]:
        rows = numbered(spark, 1, "never.made").write.format("waypost").option("url", target.url)
        return lambda: rows.mode(mode).save(*path)

    assert "what is published stays published" in refusal(saved("overwrite"))
    assert "take no path" in refusal(saved("append", "/somewhere"))
    boom = spark.sql("select assert_true(false, 'read') as value, 'a' as object")
    assert "column value is void" not in refusal(
        lambda: write(boom.selectExpr("value as colour", "object"), target)
    )
    assert bodies(target, "never.made") == []


# --- streams -----------------------------------------------------------------------------------------------------


def copy(spark: SparkSession, source: Broker, target: Broker, checkpoint: Path, topic: str) -> str:
    """Every L of the source as a message of the target's, as far as there are any; the query's id."""
    rows = (
        spark.readStream.format("waypost")
        .options(url=source.url, topic="late.made", maxEventsPerTrigger=400)
        .load()
        .selectExpr("key as value", f"'{topic}' as topics", "key")
    )
    query = (
        rows.writeStream.format("waypost")
        .options(url=target.url, checkpointLocation=str(checkpoint))
        .queryName("copying")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


def test_a_batch_of_a_stream_that_is_written_again_changes_nothing(
    spark: SparkSession, broker: Broker, target: Broker, tmp_path: Path
) -> None:
    id = copy(spark, broker, target, tmp_path, "copied.once")
    expected = [str(key) for key in range(500)]
    assert bodies(target, "copied.once") == expected
    commits = sorted(
        (path for path in (tmp_path / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    assert len(commits) > 2
    # As if it had died after the broker's commit and before Spark's own note of it.
    last = int(commits[-1].name)
    for path in (tmp_path / "commits").glob(f"*{last}*"):
        path.unlink()
    assert copy(spark, broker, target, tmp_path, "copied.once") == id
    assert (tmp_path / "commits" / str(last)).exists()
    assert bodies(target, "copied.once") == expected


def test_a_broker_that_restarts_in_the_middle_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    lives = [serve(tmp_path, "--lake", "off")]

    def strike() -> None:
        for _ in range(2):
            before = uploads(lives[-1])
            while uploads(lives[-1]) == before:
                time.sleep(0.01)
            lives[-1].process.send_signal(signal.SIGKILL)
            lives[-1].process.communicate(timeout=20)
            lives.append(serve(tmp_path, "--lake", "off", "--port", str(lives[-1].port)))

    striking = threading.Thread(target=strike)
    striking.start()
    try:
        rows = numbered(spark, 60_000, "restart.made", partitions=6)
        write(rows.selectExpr("value", "topics", "repeat('x', 200) as key"), lives[0])
        striking.join(60)
        assert len(lives) == 3
        assert bodies(lives[-1], "restart.made") == [str(number) for number in range(60_000)]
        end(lives[-1])
    finally:
        lives[-1].process.kill()


def uploads(broker: Broker) -> float:
    """What was uploaded and waits, and what came in."""
    with urlopen(f"{broker.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    names = ("waypost_uploads ", "waypost_batch_rows_total ")
    return sum(float(line.split()[1]) for line in lines if line.startswith(names))
