"""format("waypost"): what it reads, what it refuses, how a stream goes on. Against a real broker, in a real session."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.commands import Broker, end, serve
from tests.lake.brokers import LakeBroker
from tests.lake.traffic import many, opened
from waypost import BlockingClient
from waypost.arrow import DELIVERIES, EVENTS, MESSAGES
from waypost.commands import Reap
from waypost.instants import SECOND
from waypost.testing.clock import MovableClock

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_waypost import broker as source_broker
from pyspark_waypost.errors import SourceError, Unreachable
from pyspark_waypost.options import DEFAULT_URL, NAMES, parse
from pyspark_waypost.schemas import SCHEMAS
from pyspark_waypost.spans import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def loaded(spark: SparkSession, broker: Broker, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("waypost").option("url", broker.url).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def refusal(act: Callable[[], Any]) -> str:
    """What the source says; Spark puts a traceback around it."""
    with pytest.raises(PySparkException) as caught:
        act()
    said = re.findall(r"^pyspark_waypost\.errors\.\w+: (.+)$", str(caught.value), re.MULTILINE)
    assert said, caught.value
    return str(said[-1])


def log_of(broker: Broker, **chosen: str) -> list[dict[str, Any]]:
    """The log as the broker tells it to people."""
    with urlopen(f"{broker.url}/log?{urlencode(chosen)}") as answer:
        return [json.loads(line) for line in answer]


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in rows.select("offset").collect())


# --- what can be said --------------------------------------------------------------------------------------------


def test_options_are_read_in_any_case_and_have_defaults() -> None:
    assert parse({}).url == DEFAULT_URL
    assert parse({}).table == "message_events"
    said = parse({"MAXEVENTSPERTRIGGER": "5", "From": "7", "until": "2026-01-31T10:00:00+01:00"})
    assert (said.max_events, said.start) == (5, 7)
    assert said.until == datetime.fromisoformat("2026-01-31T09:00:00Z")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tabel": "x"}, "unknown option 'tabel'; the options are: url, token, table, from, until"),
        ({"path": "/x"}, "take no path"),
        ({"table": "payloads"}, "no table 'payloads'; there are: message_events, messages, deliveries"),
        ({"url": "127.0.0.1:8080"}, "not the address of a broker"),
        ({"url": "http://127.0.0.1:99999"}, "not the address of a broker"),
        ({"from": "yesterday"}, "an offset or an instant such as"),
        ({"from": "2026-01-31T10:00:00"}, "an offset or an instant such as"),
        ({"from": "-1"}, "an offset or an instant such as"),
        ({"from": "9", "until": "8"}, "from 9 is after until 8"),
        ({"from": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "is after until"),
        ({"queue": "a", "topic": "b"}, "one of queue, channel, topic at most"),
        ({"queue": "a", "table": "messages"}, "option queue is for message_events"),
        ({"partitions": "0"}, "partitions is a number above 0"),
        ({"maxEventsPerTrigger": "many"}, "maxEventsPerTrigger is a number above 0"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_in_one_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError, match=re.escape(text)) as refused:
        parse(options)
    assert "\n" not in str(refused.value)


def test_every_option_has_its_row_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    ("table", "schema"), [("message_events", EVENTS), ("messages", MESSAGES), ("deliveries", DELIVERIES)]
)
def test_the_columns_are_those_that_the_broker_sends(table: str, schema: pa.Schema) -> None:
    assert to_arrow_schema(SCHEMAS[table], timezone="UTC") == schema


@given(st.integers(1, 10**12), st.integers(0, 10**7), st.none() | st.integers(1, 200), st.integers(1, 64))
def test_ranges_are_disjoint_and_cover_all(lo: int, size: int, wanted: int | None, cores: int) -> None:
    spans = split(lo, lo + size - 1, wanted, cores)
    assert [span.lo for span in spans] == [lo, *(span.hi + 1 for span in spans[:-1])]
    assert spans[-1].hi == lo + size - 1
    assert size == 0 or all(span.size > 0 for span in spans)
    assert (
        len(spans) == max(1, min(wanted, size)) if wanted else len(spans) <= max(cores, size // 500_000 + 1)
    )


# --- reading -----------------------------------------------------------------------------------------------------


def test_each_event_of_the_log_is_read_once_as_the_broker_tells_it(
    spark: SparkSession, broker: Broker
) -> None:
    told = log_of(broker)
    rows = loaded(spark, broker, partitions=3).orderBy("offset").toArrow().to_pylist()
    assert len(rows) == len(told)
    for row, event in zip(rows, told, strict=True):
        assert {name: _json(value) for name, value in row.items() if not name.endswith("_code")} == {
            name: event.get(_camel(name)) for name in EVENTS.names if not name.endswith("_code")
        }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def test_partitions_are_as_many_as_asked_for(spark: SparkSession, broker: Broker) -> None:
    rows = loaded(spark, broker, partitions=7, schema="offset bigint")
    assert rows.rdd.getNumPartitions() == 7
    found = offsets(rows)
    assert found == list(range(1, len(found) + 1))


def test_a_range_has_exactly_its_offsets(spark: SparkSession, broker: Broker) -> None:
    assert offsets(loaded(spark, broker, **{"from": "17", "until": "5100"})) == list(range(17, 5_101))


def test_instants_bound_a_read_like_offsets(spark: SparkSession, broker: Broker) -> None:
    told = log_of(broker)
    begin, finish = told[40]["at"], told[-50]["at"]
    expected = [event["offset"] for event in told if begin <= event["at"] <= finish]
    assert offsets(loaded(spark, broker, **{"from": begin, "until": finish})) == expected


def test_nothing_yet_is_an_empty_read(spark: SparkSession, broker: Broker, client: BlockingClient) -> None:
    head = client.bounds()[1]
    assert loaded(spark, broker, **{"from": str(head + 1)}).count() == 0


@pytest.mark.parametrize("chosen", [{"queue": "late"}, {"channel": "crm"}, {"topic": "customer.*"}])
def test_a_filter_gives_what_the_log_gives_for_it(
    spark: SparkSession, broker: Broker, chosen: dict[str, str]
) -> None:
    expected = [event["offset"] for event in log_of(broker, **chosen)]
    assert expected
    assert offsets(loaded(spark, broker, **chosen)) == expected


def test_a_schema_narrows_the_read_and_may_order_it_otherwise(spark: SparkSession, broker: Broker) -> None:
    rows = loaded(spark, broker, "to_state string, topics array<string>, offset bigint", until="2")
    assert rows.columns == ["to_state", "topics", "offset"]
    assert [tuple(row) for row in rows.orderBy("offset").collect()] == [
        ("L", ["customer.changed"], 1),
        ("Q", None, 2),
    ]


def test_a_dataframe_that_is_used_again_stays_right(spark: SparkSession, broker: Broker) -> None:
    told = log_of(broker)
    of_late = sum(event["queue"] == "late" for event in told)
    rows = loaded(spark, broker)
    rows.where("queue = 'late' and offset > 10").explain()
    assert rows.count() == len(told)
    assert rows.where("queue = 'late'").count() == of_late
    assert rows.count() == len(told)
    assert rows.where("queue = 'late' or queue = 'orders'").count() == sum(
        event["queue"] in ("late", "orders") for event in told
    )
    assert rows.where("queue = 'late'").join(rows.select("offset"), "offset").count() == of_late


def test_a_load_is_a_snapshot_and_the_next_one_sees_what_came(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    before = loaded(spark, broker)
    head = client.bounds()[1]
    client.publish("growing.more", "x")
    assert before.count() == head
    assert loaded(spark, broker).count() == head + 2


def test_messages_are_the_store_s_own_rows(
    spark: SparkSession, broker: Broker, client: BlockingClient
) -> None:
    rows = loaded(spark, broker, table="messages", partitions=4).orderBy("sequence").toArrow().to_pylist()
    assert [row["sequence"] for row in rows] == [
        event["offset"] for event in log_of(broker) if event["toState"] == "L"
    ]
    assert {row["state"] for row in rows} >= {"X", "Q", "U", "E"}
    for row in rows[:12]:
        document = client.message(row["message_id"])
        for name in ("state", "topics", "object", "key"):
            assert row[name] == document[name]


def test_deliveries_are_the_store_s_own_rows(spark: SparkSession, broker: Broker) -> None:
    last = {}
    for event in log_of(broker):
        if event["queue"] or event["channel"]:
            place = (event["queue"], event["channel"], event["slot"])
            last[event["sequence"], place] = event["toState"]
    rows = loaded(spark, broker, table="deliveries", partitions=4).collect()
    assert {(row.sequence, (row.queue, row.channel, row.slot)): row.state for row in rows} == last
    assert len(rows) == len(last)


# --- what it refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"from": "1000000"}, None, "from 1000000 is beyond the head"),
        ({"until": "1000000"}, None, "until 1000000 is beyond the head"),
        ({"spectator": "me"}, None, "option spectator is for readStream"),
        ({"queue": "No Such!"}, None, "No Such!"),
        ({}, "ofset bigint", "message_events has no column 'ofset'; it has: offset, at, message_id"),
        ({}, "offset string", "column offset of message_events is bigint, not string"),
        ({}, "offset bigint not null", "leave NOT NULL out"),
        ({"nonsense": "1"}, None, "unknown option 'nonsense'"),
    ],
)
def test_a_read_that_cannot_be_done_says_why(
    spark: SparkSession, broker: Broker, options: dict[str, str], schema: str | None, text: str
) -> None:
    assert text in refusal(lambda: loaded(spark, broker, schema, **options).count())


def test_no_broker_is_said_when_loading(spark: SparkSession) -> None:
    reader = spark.read.format("waypost").option("url", "http://127.0.0.1:9")
    assert "no broker answers at http://127.0.0.1:9" in refusal(reader.load)


def test_something_that_is_no_broker_is_said(spark: SparkSession, broker: Broker) -> None:
    reader = spark.read.format("waypost").option("url", broker.url + "/v1")
    assert "404" in refusal(reader.load) or "not a Waypost broker" in refusal(reader.load)


# --- streams -----------------------------------------------------------------------------------------------------


class Batches:
    """What a stream with this checkpoint gives when it runs to the end of what there is."""

    def __init__(self, spark: SparkSession, checkpoint: Path, broker: Any, **options: Any) -> None:
        self.spark, self.checkpoint = spark, checkpoint
        self.options = {"url": broker.url, **options}

    def run(self) -> list[list[Any]]:
        seen: list[list[Any]] = []
        stream = self.spark.readStream.format("waypost").options(**self.options).load()
        query = (
            stream.writeStream.option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(lambda rows, _: seen.append(rows.collect()))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return seen


def test_a_stream_gives_each_event_once_across_restarts_in_bounded_batches(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    stream = Batches(spark, tmp_path / "checkpoint", broker, maxEventsPerTrigger="2000", spectator="job")
    head = client.bounds()[1]
    first = stream.run()
    assert [len(batch) for batch in first] == [2_000] * (head // 2_000) + [head % 2_000]
    assert client.spectator("job")["offset"] == head
    assert stream.run() == []
    client.publish_many([{"topics": ["stream.more"], "body": "x"}] * 50)
    second = stream.run()
    assert sorted(row.offset for batch in (*first, *second) for row in batch) == list(range(1, head + 101))
    assert client.spectator("job") | {"at": None} == {
        "name": "job",
        "offset": head + 100,
        "lag": 0,
        "at": None,
    }


def test_a_stream_of_ranges_has_a_row_for_each_batch(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    head = client.bounds()[1]
    stream = Batches(spark, tmp_path, broker, table="ranges", maxEventsPerTrigger="3000", **{"from": "501"})
    assert [tuple(row) for batch in stream.run() for row in batch] == [
        (lo, min(lo + 2_999, head)) for lo in range(501, head + 1, 3_000)
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "messages"}, "messages are the store's rows as they are now, no stream"),
        ({"until": "7"}, "option until is for read"),
        ({"from": "1000000"}, "from 1000000 is beyond the head"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: dict[str, str], text: str
) -> None:
    assert text in refusal(Batches(spark, tmp_path, broker, **options).run)


async def forget_all(broker: Any) -> None:
    while await broker.ask(Reap()):
        pass


def test_a_stream_that_is_older_than_the_log_says_so(spark: SparkSession, tmp_path: Path) -> None:
    # The store's clock stands in the past, and the lake keeps an hour.
    clock = MovableClock(1_700_000_000 * SECOND)
    with LakeBroker(tmp_path, keep_us=3_600 * SECOND, store={"clock": clock}) as broker:
        broker.url = f"http://127.0.0.1:{broker.port}"  # type: ignore[attr-defined]
        broker.publish("/in/fruit.apple")
        stream = Batches(spark, tmp_path / "checkpoint", broker)
        assert len(stream.run()[0]) == 2
        for _ in range(3):
            broker.publish("/in/fruit.apple")
        broker.seal()
        clock.move(30 * 86_400)
        broker.await_(forget_all(broker.serving.broker))
        broker.patient("POST", "/v1/lake/maintain")
        assert broker.get("/v1/lake")["oldest"] == 9
        said = refusal(stream.run)
        assert "offset 3 is not kept any more, the log begins at 9" in said


# --- a broker that goes away -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The store of a broker with more events than fit into the buffers between it and a reader."""
    file = tmp_path_factory.mktemp("large") / "waypost.db"
    with closing(opened(file)) as store:
        many(store, 40_000, key_bytes=500)
    return ("--store", f"sqlite:///{file}")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little fits into the buffers of a connection, so that a reader is never far ahead of what it reads."""
    connect = http.client.HTTPConnection.connect

    def narrowly(connection: http.client.HTTPConnection) -> None:
        connect(connection)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", narrowly)


def kill(broker: Broker) -> None:
    broker.process.kill()
    broker.process.communicate()


@pytest.mark.usefixtures("narrow")
def test_a_read_goes_on_where_it_was_when_the_broker_comes_back(
    large: tuple[str, str], tmp_path: Path
) -> None:
    first = serve(tmp_path, *large)
    read = source_broker.Broker(first.url).events(1, 200_000, EVENTS.names, {})
    found = next(read)["offset"].to_pylist()
    kill(first)
    second = serve(tmp_path, *large, "--port", str(first.port))
    try:
        for batch in read:
            found += batch["offset"].to_pylist()
        assert found == list(range(1, 200_001))
        end(second)
    finally:
        second.process.kill()


def wire(port: int, most: int) -> str:
    """The address of a broker that is gone for good after so many bytes of its first answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry() -> None:
        client, _ = listener.accept()
        listener.close()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            server.sendall(client.recv(65_536))
            left = most
            while left and (data := server.recv(min(65_536, left))):
                client.sendall(data)
                left -= len(data)

    threading.Thread(target=carry, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(("filter", "most"), [({"queue": "orders"}, 1 << 20), ({}, 6 << 20)])
def test_a_read_whose_broker_stays_away_fails(
    large: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filter: dict[str, str], most: int
) -> None:
    monkeypatch.setattr(source_broker, "PATIENCE_SECONDS", 1.0)
    started = serve(tmp_path, *large)
    rows: list[int] = []
    try:
        asked = source_broker.Broker(wire(started.port, most))
        with pytest.raises(Unreachable):
            rows.extend(batch.num_rows for batch in asked.events(1, 200_000, EVENTS.names, filter))
    finally:
        kill(started)
    assert 0 < sum(rows) < 160_000
