"""Arrow over HTTP: the same events as in JSON, whole or visibly broken."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.http.brokers import BrokerInThread, request
from tests.lake.brokers import PATIENCE, LakeBroker
from tests.lake.traffic import many, of_every_kind, opened
from waypost.arrow import EVENTS, LIVE
from waypost.http.schemas import ARROW
from waypost.lake.keeper import Keeper
from waypost.stores.memory import MemoryStore

#: camelCase to snake_case
NAMES = {
    "messageId": "message_id",
    "fromState": "from_state",
    "toState": "to_state",
    "durationMs": "duration_ms",
    "mimeType": "mime_type",
    "sameAs": "same_as",
}
CODES = ("from_code", "to_code", "destination_code", "consumer_code")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeBroker]:
    """Every kind of event, one half of them in the lake."""
    folder = tmp_path_factory.mktemp("filled")
    store = opened(folder / "waypost.db")
    of_every_kind(store)
    store.close()
    with LakeBroker(folder) as broker:
        broker.seal()
        for number in range(10):
            broker.publish("/in/fruit.apple", str(number))
        yield broker


def as_arrow(line: dict[str, Any]) -> dict[str, Any]:
    """A line of JSON as a row has it."""
    row = {NAMES.get(name, name): value for name, value in line.items()}
    for name in ("at", "timestamp", "sent"):
        if row.get(name) is not None:
            row[name] = datetime.fromisoformat(row[name])
    return {name: row.get(name) for name in EVENTS.names if name not in CODES}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CODES} for row in table.to_pylist()]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "from=5",
        "from=5&until=40",
        "n=7",
        "from=30&n=40",
        "queue=fruit",
        "channel=crm",
        "topic=fruit.*",
        "topic=*&n=3",
    ],
)
def test_the_log_is_the_same_in_arrow_and_in_json(filled: LakeBroker, query: str) -> None:
    status = filled.get("/v1/lake")
    assert 0 < status["sealed"] < status["head"]
    table = filled.arrow(f"/log?{query}")
    assert table.schema == EVENTS
    lines = filled.events(f"/log?{query}")
    assert lines
    assert rows_of(table) == [as_arrow(line) for line in lines]


def test_columns_are_those_named_in_their_order(filled: LakeBroker) -> None:
    table = filled.arrow("/log?columns=to_state,offset&topic=fruit.*")
    assert table.schema.names == ["to_state", "offset"]
    assert set(table["to_state"].to_pylist()) == {"L"}


def test_a_range_that_ends_before_it_begins_is_empty(filled: LakeBroker) -> None:
    for query in ("from=10&until=9", "from=10&until=0", f"from={filled.get('/v1/lake')['head'] + 1}"):
        assert filled.arrow(f"/log?{query}").num_rows == 0
        assert filled.events(f"/log?{query}") == []


def test_head_tells_the_bounds_without_a_body(filled: LakeBroker) -> None:
    status = filled.get("/v1/lake")
    answer = filled.ask("HEAD", "/log", accept=ARROW)
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    assert answer.headers["waypost-head"] == str(status["head"])
    assert answer.headers["waypost-oldest"] == "1"
    answer = filled.ask("HEAD", "/v1/tables/messages")
    assert (answer.headers["content-type"], answer.headers["waypost-head"]) == (ARROW, str(status["head"]))


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/log?columns=nope", "COLUMN_UNKNOWN"),
        ("/log?columns=offset,,at", "COLUMN_UNKNOWN"),
        ("/log?until=1000000", "OFFSET_BEYOND_HEAD"),
        ("/log?from=1000000", "OFFSET_BEYOND_HEAD"),
        ("/log?follow=1", "REQUEST_INVALID"),
        ("/log?payload=1", "REQUEST_INVALID"),
        ("/log?until=x", "NUMBER_INVALID"),
        ("/v1/tables/messages?columns=nope", "COLUMN_UNKNOWN"),
        ("/v1/tables/messages?until=1000000", "OFFSET_BEYOND_HEAD"),
        ("/v1/tables/messages?from=1000000", "OFFSET_BEYOND_HEAD"),
        ("/v1/tables/messages?n=1", "UNKNOWN_PARAMETER"),
    ],
)
def test_what_cannot_be_meant_is_a_problem(filled: LakeBroker, target: str, code: str) -> None:
    answer = filled.patient("GET", target, accept=ARROW)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]


def test_a_table_that_is_none_is_not_found(filled: LakeBroker) -> None:
    answer = filled.ask("GET", "/v1/tables/queues")
    assert (answer.status, answer.code) == (404, "TABLE_NOT_FOUND")


def test_columns_and_an_end_without_arrow_are_told_apart(filled: LakeBroker) -> None:
    assert filled.ask("GET", "/log?columns=offset").code == "REQUEST_INVALID"
    assert filled.ask("GET", "/log?follow=1&until=3").code == "REQUEST_INVALID"
    assert [line["offset"] for line in filled.events("/log?from=2&until=4")] == [2, 3, 4]


def test_the_stores_rows_are_those_it_shows_elsewhere(filled: LakeBroker) -> None:
    messages = filled.arrow("/v1/tables/messages")
    assert messages.schema == LIVE["messages"]
    logged = [line["messageId"] for line in filled.events("/log?topic=*")]
    assert messages["message_id"].to_pylist() == logged
    for row in messages.select(["message_id", "state", "hash"]).to_pylist():
        document = filled.get(f"/v1/messages/{row['message_id']}")
        assert (row["state"], row["hash"]) == (document["state"], document["hash"])
    deliveries = filled.arrow("/v1/tables/deliveries?columns=message_id,state")
    assert sorted(map(tuple, (row.values() for row in deliveries.to_pylist()))) == sorted(
        (found["messageId"], found["state"]) for found in filled.get("/v1/messages?limit=1000")["deliveries"]
    )


def test_a_range_of_rows_is_one_of_sequences(filled: LakeBroker) -> None:
    sequences = filled.arrow("/v1/tables/messages?columns=sequence")["sequence"].to_pylist()
    lo, hi = sequences[2], sequences[5]
    some = filled.arrow(f"/v1/tables/messages?from={lo}&until={hi}&columns=sequence")
    assert some["sequence"].to_pylist() == sequences[2:6]


def test_a_stream_whose_maker_dies_never_looks_whole(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    many(store, 30_000, key_bytes=900)
    store.close()
    with LakeBroker(tmp_path) as broker, broker.wire() as wire:
        wire.socket.settimeout(PATIENCE)
        wire.send(request("GET", "/log", accept=ARROW))
        assert b"200 OK" in wire.head()
        first = wire.chunk()
        pid = broker.keeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        try:
            rest = wire.rest()
        except ConnectionResetError:
            rest = b""
        assert not rest.endswith(b"0\r\n\r\n")
        assert b"\xff\xff\xff\xff\x00\x00\x00\x00" not in (first + rest)[-64:]
    # And the next one is served by another.
    with LakeBroker(tmp_path) as broker:
        assert broker.arrow("/log?columns=offset").num_rows == 150_000


def test_a_reader_that_leaves_ends_its_read(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    many(store, 30_000, key_bytes=900)
    store.close()
    with LakeBroker(tmp_path) as broker:
        for _ in range(20):  # more than are served at a time
            with broker.wire() as wire:
                wire.socket.settimeout(PATIENCE)
                wire.send(request("GET", "/log", accept=ARROW))
                wire.head()
        assert broker.arrow("/log?columns=offset&until=1000").num_rows == 1_000
        from tests.http.harness import wait_until

        wait_until(lambda: broker.keeper._reads._value == 16, "all given back")


@pytest.mark.parametrize("target", ["/log", "/v1/tables/messages"])
def test_without_a_file_arrow_is_not_offered(target: str) -> None:
    with BrokerInThread(MemoryStore) as broker:
        answer = broker.ask("GET", target, accept=ARROW)
        assert (answer.status, answer.code) == (501, "NOT_OFFERED")
        assert "pip install 'waypost[lake]'" in answer.json()["hint"]


def test_without_a_lake_arrow_comes_from_the_store(tmp_path: Path) -> None:
    with BrokerInThread(
        lambda: opened(tmp_path / "waypost.db"), lake=lambda broker: Keeper(broker, None)
    ) as broker:
        broker.publish("/in/fruit.apple")
        with broker.wire() as wire:
            wire.socket.settimeout(PATIENCE)
            answer = wire.ask(request("GET", "/log", accept=ARROW))
        assert pa.ipc.open_stream(answer.body).read_all()["to_state"].to_pylist() == ["L", "Q"]
        assert not (tmp_path / "lake").exists()
