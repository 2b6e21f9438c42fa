"""Uploads and batches: rows of many requests that enter together and once; and rows in one request."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.http.brokers import BrokerInThread, request
from tests.http.harness import Answer, wait_until
from tests.integration.commands import Broker, end, serve
from waypost.errors import DiskLow
from waypost.http.schemas import ARROW
from waypost.store import Store
from waypost.stores.folder import FolderStore
from waypost.stores.memory import MemoryStore

MODULUS = 1 << 128


def stream(*tables: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(sink.getvalue())


def rows(count: int, first: int = 0, topic: str = "fruit.apple") -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"value": [f"{number}" for number in numbers], "topics": [[topic]] * count})


def post(broker: BrokerInThread, path: str, body: bytes | pa.Table, kind: str = ARROW) -> Answer:
    sent = body if isinstance(body, bytes) else stream(body)
    return broker.ask("POST", path, sent, content_type=kind)


def upload(broker: BrokerInThread, table: pa.Table) -> dict[str, Any]:
    answer = post(broker, "/v1/uploads", table)
    assert answer.status == 201, answer
    form: dict[str, Any] = answer.json()
    return form


def batch_of(*uploads: dict[str, Any]) -> dict[str, Any]:
    total = sum(int(one["hash"], 16) for one in uploads) % MODULUS
    return {
        "uploads": [one["upload"] for one in uploads],
        "rows": sum(one["rows"] for one in uploads),
        "hash": f"{total:032x}",
    }


def problem(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["code"]


def put(broker: BrokerInThread, where: str, form: dict[str, Any]) -> Answer:
    return broker.ask("PUT", f"/v1/batches/{where}", json.dumps(form))


def entered(broker: BrokerInThread, where: str) -> dict[str, Any]:
    """The batch, once all of its rows are in."""
    while (form := broker.get(f"/v1/batches/{where}"))["ended"] is None:
        time.sleep(0.01)
    return dict(form)


def bodies(broker: BrokerInThread, queue: str) -> list[str]:
    found: list[str] = []
    while (answer := broker.ask("GET", f"/queue/{queue}?n=1000")).status == 200:
        messages = answer.json()["messages"]
        found += [message["body"] for message in messages]
    return found


# ── batches ─────────────────────────────────────────────────────────────────────────────────────


def test_uploads_become_messages_when_their_batch_is_accepted(broker: BrokerInThread) -> None:
    uploads = [upload(broker, rows(1_200)), upload(broker, rows(3, 1_200))]
    assert broker.events() == []
    answer = put(broker, "query-1/0", batch_of(*uploads))
    assert answer.status == 202, answer
    accepted = answer.json()
    assert (accepted["query"], accepted["batch"], accepted["rows"]) == ("query-1", 0, 1_203)
    done = entered(broker, "query-1/0")
    assert done["entered"] == 1_203
    assert bodies(broker, "fruit") == [str(number) for number in range(1_203)]


def test_the_same_batch_again_is_answered_alike_and_changes_nothing(broker: BrokerInThread) -> None:
    uploads = [upload(broker, rows(2)), upload(broker, rows(2, 2))]
    put(broker, "q/7", batch_of(*uploads))
    done = entered(broker, "q/7")
    head = broker.events()[-1]["offset"]
    again = put(broker, "q/7", batch_of(*uploads))
    assert (again.status, again.json()) == (200, done)
    # From other tasks, in another order: as Spark may write it again.
    divided = [upload(broker, rows(3, 1)), upload(broker, rows(1))]
    again = put(broker, "q/7", batch_of(*divided))
    assert (again.status, again.json()) == (200, done)
    assert broker.events()[-1]["offset"] == head


def test_other_content_under_a_known_name_is_a_conflict(broker: BrokerInThread) -> None:
    put(broker, "q/0", batch_of(upload(broker, rows(2))))
    answer = put(broker, "q/0", batch_of(upload(broker, rows(2, 5))))
    assert problem(answer) == (409, "BATCH_CONFLICT")
    assert "same rows" in answer.json()["hint"]
    entered(broker, "q/0")
    assert bodies(broker, "fruit") == ["0", "1"]


def test_a_batch_that_cannot_be_is_refused_with_a_reason(broker: BrokerInThread) -> None:
    one = upload(broker, rows(2))
    right = batch_of(one)
    for wrong, status, code in (
        ({"uploads": ["0" * 32]}, 404, "UPLOAD_NOT_FOUND"),
        ({"uploads": ["\0"]}, 404, "UPLOAD_NOT_FOUND"),
        ({"uploads": right["uploads"] * 2}, 400, "UPLOAD_TWICE"),
        ({"uploads": ["x"] * 10_001}, 400, "UPLOADS_TOO_MANY"),
        ({"rows": 3}, 400, "BATCH_SUM_WRONG"),
        ({"rows": -1}, 400, "REQUEST_INVALID"),
        ({"rows": 10**30}, 400, "REQUEST_INVALID"),
        ({"hash": "0" * 32}, 400, "BATCH_SUM_WRONG"),
        ({"hash": "no hash"}, 400, "REQUEST_INVALID"),
        ({"extra": 1}, 400, "JSON_INVALID"),
    ):
        assert problem(put(broker, "q/0", right | wrong)) == (status, code)
    assert problem(broker.ask("PUT", "/v1/batches/q/0", "")) == (400, "JSON_INVALID")
    assert problem(put(broker, "Query/0", right)) == (400, "NAME_INVALID")
    for number in ("-1", "1.5", "x", "1" * 19):
        assert problem(put(broker, f"q/{number}", right)) == (400, "NUMBER_INVALID")
    assert problem(broker.ask("GET", "/v1/batches/q/0")) == (404, "BATCH_NOT_FOUND")
    assert put(broker, "q/0", right).status == 202


def test_a_batch_of_no_rows_is_known_at_once(broker: BrokerInThread) -> None:
    answer = put(broker, "q/0", batch_of())
    assert (answer.status, answer.json()["entered"]) == (200, 0)


def test_batches_of_one_query_enter_in_order_and_a_full_queue_holds_up_no_other(
    broker: BrokerInThread,
) -> None:
    broker.ask("PUT", "/v1/queues/fruit", json.dumps({"maxMessages": 3}))
    put(broker, "stuck/0", batch_of(upload(broker, rows(5))))
    put(broker, "stuck/1", batch_of(upload(broker, rows(2, topic="later.x"))))
    put(broker, "free/0", batch_of(upload(broker, rows(4, topic="other.x"))))
    entered(broker, "free/0")
    wait_until(lambda: broker.get("/v1/batches/stuck/0")["entered"] == 3, "what there is room for")
    assert broker.get("/v1/batches/stuck/1")["entered"] == 0
    for _ in range(3):
        (message,) = broker.get("/queue/fruit?n=1")["messages"]
        broker.confirm("fruit", message["receipt"])
    entered(broker, "stuck/0")
    entered(broker, "stuck/1")
    assert bodies(broker, "fruit") == ["3", "4"]
    assert bodies(broker, "later") == ["0", "1"]


def test_large_values_enter_as_large_messages_do(broker: BrokerInThread) -> None:
    values = [b"small", os.urandom(100_000), b"", os.urandom(200_000)]
    table = pa.table({"value": values, "object": ["blob"] * 4})
    put(broker, "q/0", batch_of(upload(broker, table)))
    entered(broker, "q/0")
    for value in values:
        assert broker.ask("GET", "/queue/blob").body == value


def test_batches_that_were_not_all_in_go_on_after_a_restart(open_store: Callable[[], Store]) -> None:
    with BrokerInThread(open_store) as broker:
        if isinstance(broker.store, MemoryStore):
            pytest.skip("this store keeps nothing")
        broker.ask("PUT", "/v1/queues/fruit", json.dumps({"maxMessages": 3}))
        waiting = upload(broker, rows(1, 5))
        put(broker, "q/0", batch_of(upload(broker, rows(5))))
        wait_until(lambda: broker.get("/v1/batches/q/0")["entered"] == 3, "what there is room for")
    with BrokerInThread(open_store) as broker:
        assert broker.ask("PUT", "/v1/queues/fruit", "{}").status == 200
        entered(broker, "q/0")
        put(broker, "q/1", batch_of(waiting))
        entered(broker, "q/1")
        assert bodies(broker, "fruit") == [str(number) for number in range(6)]


def test_the_figures_tell_what_waits(broker: BrokerInThread) -> None:
    def figure(name: str) -> float:
        text = broker.ask("GET", "/metrics").body.decode()
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])

    broker.ask("PUT", "/v1/queues/fruit", json.dumps({"maxMessages": 3}))
    first = upload(broker, rows(5))
    assert (figure("waypost_uploads"), figure("waypost_batches_open")) == (1, 0)
    assert figure("waypost_upload_bytes") > 100
    put(broker, "q/0", batch_of(first))
    wait_until(lambda: figure("waypost_batch_rows_waiting") == 2, "what there is room for")
    assert (figure("waypost_uploads"), figure("waypost_batches_open")) == (0, 1)
    assert figure("waypost_batch_rows_total") == 3


# ── rows ────────────────────────────────────────────────────────────────────────────────────────

MOMENT = datetime(2026, 1, 31, 10, tzinfo=UTC)
FULL = {
    "value": pa.array([b"\xff\x00", b""], pa.binary()),
    "topics": pa.array([["fruit.apple", "meat.beef"], None]),
    "object": ["food", "food"],
    "key": ["k-1", None],
    "mime_type": ["text/plain", None],
    "timestamp": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    "delay": [0, None],
    "ttl": [3_600.5, None],
    "priority": [0, None],
}


def every_way(broker: BrokerInThread, table: pa.Table) -> None:
    """In one request, and through a batch."""
    assert post(broker, "/v1/messages", table).status == 201
    number = broker.events()[-1]["offset"]
    assert put(broker, f"ways/{number}", batch_of(upload(broker, table))).status == 202
    entered(broker, f"ways/{number}")


def test_everything_that_a_row_says_is_kept(broker: BrokerInThread) -> None:
    every_way(broker, pa.table(FULL))
    messages = broker.get("/queue/food?n=10")["messages"]
    assert [message.get("bodyBase64", message.get("body")) for message in messages] == [
        "/wA=",
        "/wA=",
        "",
        "",
    ]
    for message in messages[:2]:
        document = broker.get(f"/v1/messages/{message['id']}")
        assert (document["topics"], document["object"]) == (["fruit.apple", "meat.beef"], "food")
        assert (document["key"], document["mimeType"], document["priority"]) == ("k-1", "text/plain", 0)
        assert document["timestamp"] == "2026-01-31T10:00:00.000000Z"


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.array(["1"], pa.large_string()), "topics": ["fruit.apple, meat.beef"]},
        {
            "value": pa.array([b"1"], pa.large_binary()),
            "topics": pa.array([["fruit.x"]], pa.large_list(pa.string())),
        },
        {"timestamp": ["2026-01-31T10:00:00Z"]},
        {"timestamp": pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("ns"))},
        {"timestamp": pa.array([1], pa.timestamp("s"))},
        {"delay": ["10ms"], "ttl": pa.array([timedelta(seconds=60)], pa.duration("us"))},
        {"priority": pa.array([9], pa.int8()), "key": pa.nulls(1), "ttl": pa.nulls(1)},
    ],
)
def test_columns_may_have_these_types(memory_broker: BrokerInThread, columns: dict[str, Any]) -> None:
    every_way(memory_broker, pa.table({"value": ["1"], "object": ["fruit"]} | columns))
    wait_until(lambda: memory_broker.call(memory_broker.store.ready, "fruit") == 2, "both")


@pytest.mark.parametrize(
    ("column", "bad", "code"),
    [
        ("value", None, "VALUE_NULL"),
        ("topics", ["Wrong!"], "TOPIC_INVALID"),
        ("topics", [None], "TOPIC_INVALID"),
        ("object", "Wrong", "NAME_INVALID"),
        ("key", "a\x00b", "KEY_INVALID"),
        ("key", "", "KEY_INVALID"),
        ("mime_type", "ü", "MIME_TYPE_INVALID"),
        ("timestamp", "10:00", "INSTANT_INVALID"),
        ("delay", -1.0, "SPAN_INVALID"),
        ("ttl", float("nan"), "SPAN_INVALID"),
        ("priority", 10, "PRIORITY_INVALID"),
    ],
)
def test_a_wrong_row_is_named_by_its_number_and_nothing_enters(
    broker: BrokerInThread, column: str, bad: Any, code: str
) -> None:
    good: dict[str, Any] = {
        "value": "v",
        "topics": ["a.x"],
        "object": "a",
        "key": "k",
        "mime_type": "text/plain",
        "timestamp": "2026-01-31T10:00:00Z",
        "delay": 0.0,
        "ttl": 1.0,
        "priority": 5,
    }
    table = pa.Table.from_pylist([good] * 2_499 + [good | {column: bad}] + [good])
    for path, number in (("/v1/messages", 2_500), ("/v1/uploads", 2_500), ("/v1/uploads?first=501", 3_000)):
        answer = post(broker, path, table)
        assert problem(answer) == (422, code), answer
        assert answer.json()["detail"].startswith(f"row {number}: "), answer
    assert broker.events() == []
    assert broker.call(broker.store.uploads, None) == []


def test_a_row_needs_topics_or_an_object(memory_broker: BrokerInThread) -> None:
    table = pa.table(
        {"value": ["1", "2"], "object": ["a", None], "topics": pa.array([None, []], pa.list_(pa.string()))}
    )
    answer = post(memory_broker, "/v1/uploads", table)
    assert (problem(answer), answer.json()["detail"]) == (
        (422, "TOPIC_INVALID"),
        "row 2: neither topics nor object",
    )


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": ["1"]}, "neither topics nor object"),
        ({"topics": [["a"]]}, "no value"),
        ({"value": ["1"], "object": ["a"], "colour": ["red"]}, "unknown column 'colour'"),
        ({"value": [1], "object": ["a"]}, "column value is int64, not a string or binary"),
        ({"value": ["1"], "topics": [[1]]}, "column topics is list<"),
        ({"value": ["1"], "object": ["a"], "priority": ["1"]}, "column priority is string"),
        ({"value": ["1"], "object": pa.array(["a"]).dictionary_encode()}, "column object is dictionary<"),
        (
            {"value": ["1"], "object": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))},
            "column timestamp",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    memory_broker: BrokerInThread, columns: dict[str, Any], said: str
) -> None:
    for path in ("/v1/uploads", "/v1/messages"):
        answer = post(memory_broker, path, pa.table(columns))
        assert problem(answer) == (400, "COLUMN_INVALID"), answer
        assert said in answer.json()["detail"]


def test_instants_that_cannot_be_written_down_are_refused(memory_broker: BrokerInThread) -> None:
    table = pa.table({"value": ["1"], "object": ["a"], "timestamp": pa.array([2**62], pa.timestamp("us"))})
    assert problem(post(memory_broker, "/v1/uploads", table)) == (422, "INSTANT_INVALID")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no arrow",
        b"\xff" * 1_000,
        stream(rows(3))[:-40],
        stream(rows(3))[:20],
        b"\xff\xff\xff\xff" + struct.pack("<I", 0x7FFFFFFF),
        stream(rows(3)).replace(b"\x03\x00\x00\x00\x00\x00\x00\x00", b"\x03\x00\x00\x00\x00\x00\x00\x7f"),
    ],
)
def test_what_is_no_arrow_stream_is_refused(memory_broker: BrokerInThread, body: bytes) -> None:
    for path in ("/v1/uploads", "/v1/messages"):
        answer = post(memory_broker, path, body)
        assert answer.status == 400, answer
    assert memory_broker.events() == []


def test_a_stream_without_bounds_is_refused(memory_broker: BrokerInThread) -> None:
    zeros = pa.table({"value": [b"\0" * 1_000_000] * 3, "object": ["a"] * 3})
    packed = stream(zeros, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    assert len(packed) < 10_000
    assert problem(post(memory_broker, "/v1/uploads", packed)) == (400, "ENCODING_NOT_TAKEN")
    assert problem(post(memory_broker, "/v1/uploads", rows(0))) == (400, "REQUEST_INVALID")
    assert problem(post(memory_broker, "/v1/uploads", rows(100_001))) == (413, "TOO_MANY_MESSAGES")
    assert problem(post(memory_broker, "/v1/messages", rows(10_001))) == (413, "TOO_MANY_MESSAGES")
    assert problem(post(memory_broker, "/v1/uploads", b"x" * ((8 << 20) + 1))) == (413, "BODY_TOO_LARGE")
    assert problem(post(memory_broker, "/v1/uploads", rows(1), "application/json")) == (400, "TYPE_NOT_TAKEN")
    with memory_broker.wire() as wire:
        zipped = request("POST", "/v1/uploads", stream(rows(1)), content_type=ARROW, content_encoding="gzip")
        assert problem(wire.ask(zipped)) == (400, "ENCODING_NOT_TAKEN")


def test_a_stream_of_several_batches_is_one_upload(memory_broker: BrokerInThread) -> None:
    answer = post(memory_broker, "/v1/uploads", stream(rows(2), rows(0), rows(1, 2)))
    assert answer.json()["rows"] == 3


def test_a_disk_almost_full_takes_no_uploads(broker: BrokerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.store, "refusal", lambda: DiskLow("the disk is full"))
    for path in ("/v1/uploads", "/v1/messages"):
        assert problem(post(broker, path, rows(1))) == (507, "DISK_LOW")


def test_a_folder_offers_no_uploads(tmp_path: Path) -> None:
    with BrokerInThread(lambda: FolderStore(tmp_path / "mq", ballast_bytes=4096)) as broker:
        assert problem(post(broker, "/v1/uploads", rows(1))) == (501, "NOT_OFFERED")
        assert problem(put(broker, "q/0", batch_of())) == (501, "NOT_OFFERED")
        assert problem(broker.ask("GET", "/v1/batches/q/0")) == (501, "NOT_OFFERED")


# ── kills ───────────────────────────────────────────────────────────────────────────────────────


class Killed:
    """A broker that is a process, with as much of BrokerInThread as is asked here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.broker: Broker = serve(folder, "--lake", "off")

    ask = BrokerInThread.ask
    get = BrokerInThread.get
    wire = BrokerInThread.wire

    @property
    def port(self) -> int:
        return self.broker.port

    def kill(self) -> None:
        self.broker.process.send_signal(signal.SIGKILL)
        self.broker.process.communicate(timeout=20)
        self.broker = serve(self._folder, "--lake", "off")


def test_a_broker_killed_between_two_slices_loses_and_doubles_no_row(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    broker: Any = killed
    count = 90_000
    uploads = [upload(broker, rows(count // 2)), upload(broker, rows(count // 2, count // 2))]
    killed.kill()
    assert put(broker, "q/0", batch_of(*uploads)).status == 202
    kills = 0
    while kills < 3 and broker.get("/v1/batches/q/0")["ended"] is None:
        came = broker.get("/v1/batches/q/0")["entered"]
        wait_until(lambda came=came: broker.get("/v1/batches/q/0")["entered"] > came, "a slice")  # type: ignore[misc]
        killed.kill()
        kills += 1
        assert broker.get("/v1/batches/q/0")["entered"] > came
    assert kills == 3
    entered(broker, "q/0")
    assert put(broker, "q/0", batch_of(*uploads)).status == 200
    lines = [json.loads(line) for line in broker.ask("GET", "/log?payload=1").body.splitlines()]
    assert [line["body"] for line in lines if line["toState"] == "L"] == [str(n) for n in range(count)]
    end(killed.broker)
