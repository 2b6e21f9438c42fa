"""Routing by Spark over HTTP: what waits in L, the decisions that come back, and the warning when none do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.http.brokers import BrokerInThread
from tests.http.harness import wait_until
from waypost.arrow import UNDECIDED
from waypost.canonical import content_hash
from waypost.commands import Decide
from waypost.errors import Busy
from waypost.http import undecided
from waypost.http.schemas import ARROW, NDJSON
from waypost.routing import Route
from waypost.store import Store
from waypost.stores.memory import MemoryStore


@pytest.fixture
def held(open_store: Callable[[], Store]) -> Iterator[BrokerInThread]:
    """A broker that stops at L with messages of object a."""
    with BrokerInThread(open_store) as running:
        running.ask("PUT", "/v1/objects/a", '{"route":"spark","unchanged":{"ignore":["$.at"]}}')
        yield running


def listed(broker: BrokerInThread, query: str = "") -> list[dict[str, Any]]:
    answer = broker.ask("GET", f"/v1/undecided{query}")
    assert (answer.status, answer.headers["content-type"]) == (200, NDJSON)
    return [json.loads(line) for line in answer.body.splitlines()]


def decide(broker: BrokerInThread, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    answer = broker.ask("POST", "/v1/decisions", "\n".join(map(json.dumps, lines)))
    assert answer.status == 200, answer
    return list(answer.json()["results"])


def figures(broker: BrokerInThread) -> dict[str, float]:
    lines = broker.ask("GET", "/metrics").body.decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "#" not in name
    }


# ── what waits ──────────────────────────────────────────────────────────────────────────────────


def test_what_waits_for_spark_comes_with_all_that_a_decision_needs(held: BrokerInThread) -> None:
    id = held.publish(
        "/in/a.x?topics=b.y",
        '{"n":1}',
        waypost_key="k",
        content_type="application/json",
        waypost_producer="erp",
        waypost_timestamp="2026-01-31T10:00:00Z",
        waypost_meta_run="7",
    )
    held.publish("/in/b.z")
    keyless = held.publish("/in/a.x", b"\xff")
    first, second = listed(held)
    assert first == {
        "sequence": 1,
        "id": id,
        "created": first["created"],
        "topics": ["a.x", "b.y"],
        "object": "a",
        "key": "k",
        "mimeType": "application/json",
        "producer": "erp",
        "size": 7,
        "timestamp": "2026-01-31T10:00:00.000000Z",
        "sent": None,
        "encoding": None,
        "meta": {"run": "7"},
        "ignore": ["$.at"],
        "body": '{"n":1}',
    }
    assert (second["id"], second["bodyBase64"], second["ignore"]) == (keyless, "/w==", None)
    assert [one["id"] for one in listed(held, "?after=1")] == [keyless]
    assert [one["id"] for one in listed(held, "?n=1")] == [id]


def test_as_arrow_it_says_the_same(held: BrokerInThread) -> None:
    def arrow() -> pa.Table:
        answer = held.ask("GET", "/v1/undecided", accept=ARROW)
        assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
        return pa.ipc.open_stream(answer.body).read_all()

    assert arrow().num_rows == 0
    for number in range(250):
        held.publish("/in/a.x", str(number), waypost_key=str(number % 3), waypost_meta_a="b")
    table, lines = arrow(), listed(held)
    assert table.schema == UNDECIDED
    assert table["body"].to_pylist() == [one["body"].encode() for one in lines]
    assert table["message_id"].to_pylist() == [one["id"] for one in lines]
    assert table["ignore"].to_pylist() == [["$.at"]] * 250
    assert table["meta"].to_pylist() == ['{"a":"b"}'] * 250


def test_an_answer_is_bounded_and_large_bodies_are_whole(
    held: BrokerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undecided, "MOST_BYTES", 500_000)
    monkeypatch.setattr(undecided, "PAGE_BYTES", 100_000)
    bodies = [bytes([number]) * 200_000 for number in range(5)]
    for body in bodies:
        held.publish("/in/a.x", body)
    first = listed(held)
    assert [one["body"].encode() for one in first] == bodies[:3]
    rest = listed(held, f"?after={first[-1]['sequence']}")
    assert [one["body"].encode() for one in rest] == bodies[3:]


def test_a_page_has_few_bytes_or_one_message() -> None:
    class Sized:
        def __init__(self, size: int) -> None:
            self.size = size

    waiting: Any = [Sized(size) for size in (3, 4, 9, 1, 1)]
    assert [[one.size for one in part] for part in undecided.parts_of(waiting, 7)] == [[3, 4], [9], [1, 1]]


def test_a_body_that_cannot_be_read_says_why(tmp_path: Any) -> None:
    from waypost.stores.sqlite import SqliteStore

    with BrokerInThread(
        lambda: SqliteStore(tmp_path / "waypost.db", ballast_bytes=4096, pregrown_bytes=0)
    ) as broker:
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        id = broker.publish("/in/a.x", b"x" * (4 << 20))
        (file,) = (path for path in (tmp_path / "waypost.db.bodies").rglob("*") if path.is_file())
        file.write_bytes(b"y" * (4 << 20))
        (one,) = listed(broker)
        assert (one["id"], one["body"]) == (id, None)
        assert one["failure"]


def test_what_the_broker_routes_itself_is_not_listed() -> None:
    release: list[bool] = []

    def route(message: Any, consumers: Any) -> Route:
        wait_until(lambda: release, "released")
        return Route()

    with BrokerInThread(MemoryStore, route=route) as broker:
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        broker.publish("/in/b.x")
        id = broker.publish("/in/a.x")
        assert [one["id"] for one in listed(broker)] == [id]
        release.append(True)


@pytest.mark.parametrize("query", ["?n=0", "?n=10001", "?after=-1", "?after=x", "?from=1"])
def test_nonsense_is_refused(memory_broker: BrokerInThread, query: str) -> None:
    assert memory_broker.ask("GET", f"/v1/undecided{query}").status == 400


# ── decisions ───────────────────────────────────────────────────────────────────────────────────


def test_decisions_are_applied_once_and_in_order(held: BrokerInThread) -> None:
    bodies = ('{"n":1,"at":1}', '{"at":2,"n":1}', '{"n":2}')
    ids = [held.publish("/in/a.x", body, waypost_key="k") for body in bodies]
    hashes = [content_hash(body.encode(), ("$.at",)).hex() for body in bodies]
    lines = [{"id": id, "content": hash} for id, hash in zip(ids, hashes, strict=True)]
    lines[2]["route"] = {"option": "once", "queues": ["q", "r"]}  # type: ignore[assignment]
    assert decide(held, *lines) == [
        {"id": ids[0], "state": "Q", "applied": True},
        {"id": ids[1], "state": "U", "applied": True, "sameAs": ids[0]},
        {"id": ids[2], "state": "Q", "applied": True},
    ]
    assert [one["applied"] for one in decide(held, *lines)] == [False] * 3
    assert [held.journey(id) for id in ids] == ["LQ", "LU", "LQQ"]
    assert listed(held) == []
    told = figures(held)
    assert told['waypost_decisions_total{by="spark",result="applied"}'] == 3
    assert told['waypost_decisions_total{by="spark",result="late"}'] == 3
    assert told["waypost_undecided"] == 0


def test_what_is_wrong_with_one_is_its_own_affair(held: BrokerInThread) -> None:
    ids = [held.publish("/in/a.x", str(number)) for number in range(3)]
    results = decide(
        held,
        {"id": ids[0]},
        {"id": "nobody"},
        {"id": "NO ID"},
        {"id": ids[1], "route": {"queues": ["Not A Name"]}},
        {"id": ids[1], "route": {"option": "twice"}},
        {"id": ids[1], "route": {"queue": "q"}},
        {"id": ids[1], "route": {"queues": "q"}},
        {"id": ids[1], "content": "beef"},
        {"id": ids[1], "content": "xy" * 32},
        {"id": ids[2], "failure": "Traceback: it broke"},
    )
    assert [one.get("state", one.get("error", {}).get("code")) for one in results] == [
        "Q",
        "MESSAGE_NOT_FOUND",
        "ID_INVALID",
        "NAME_INVALID",
        *["ROUTE_INVALID"] * 3,
        *["REQUEST_INVALID"] * 2,
        "E",
    ]
    assert all(one["error"]["hint"] for one in results if "error" in one)
    assert [held.journey(id) for id in ids] == ["LQ", "L", "LE"]
    assert held.found("state=E")[0]["reason"] == "Traceback: it broke"
    assert figures(held)['waypost_decisions_total{by="spark",result="failed"}'] == 1


def test_what_a_redrive_brings_back_is_listed_again(held: BrokerInThread) -> None:
    id = held.publish("/in/a.x")
    decide(held, {"id": id, "failure": "it broke"})
    assert listed(held) == []
    held.ask("POST", "/v1/redrive", '{"filter":"state=E"}')
    wait_until(lambda: listed(held), "listed")
    assert decide(held, {"id": id})[0]["state"] == "Q"
    assert held.journey(id) == "LELQ"


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        ('{"id":"a"}\n{"id":', 400, "JSON_INVALID", "line 2"),
        ('{"id":"a"}\n{"id":1}', 400, "JSON_INVALID", "line 2"),
        ('{"id":"a","rout":{}}', 400, "JSON_INVALID", "line 1"),
        ("[]", 400, "JSON_INVALID", "line 1"),
        ('{"id":"a"}\n' * 10_001, 413, "TOO_MANY_MESSAGES", "10001"),
    ],
)
def test_a_request_that_is_no_decisions_is_refused_whole(
    memory_broker: BrokerInThread, body: str, status: int, code: str, said: str
) -> None:
    answer = memory_broker.ask("POST", "/v1/decisions", body)
    assert (answer.status, answer.code) == (status, code)
    assert said in answer.json()["detail"]


def test_more_than_a_group_is_decided_in_order(held: BrokerInThread) -> None:
    lines = "\n".join(json.dumps({"topics": ["a.x"], "key": "k", "body": str(n)}) for n in range(2_500))
    answer = held.ask("POST", "/v1/messages", lines)
    ids = [one["id"] for one in answer.json()["results"]]
    assert [one["state"] for one in decide(held, *({"id": id} for id in ids))] == ["Q"] * 2_500
    queued = [event["messageId"] for event in held.events("/log?queue=a")]
    assert queued == ids


def test_what_the_commit_queue_has_no_room_for_is_not_overtaken(held: BrokerInThread) -> None:
    ids = [held.publish("/in/a.x", str(number)) for number in range(10)]
    broker = held.serving.broker
    broker.committer._max_waiting = 4

    async def decide_all() -> None:
        with pytest.raises(Busy):
            await broker.decide([Decide(id=id) for id in ids])

    held.await_(decide_all())
    assert [held.journey(id) for id in ids] == ["LQ"] * 4 + ["L"] * 6
    broker.committer._max_waiting = 10_000
    decide(held, *({"id": id} for id in ids))
    assert [event["messageId"] for event in held.events("/log?queue=a")] == ids


# ── the warning ─────────────────────────────────────────────────────────────────────────────────


def test_what_waits_for_too_long_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "waypost")
    with BrokerInThread(MemoryStore, warn_seconds=0.2) as broker:
        assert broker.get("/health/ready")["routing"] == {"oldestSeconds": 0.0, "warning": None}
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        id = broker.publish("/in/a.x")
        wait_until(lambda: broker.get("/health/ready")["routing"]["warning"], "warned")
        routing = broker.get("/health/ready")["routing"]
        wait_until(lambda: broker.get("/health/ready")["routing"]["oldestSeconds"] > 0.2, "it goes on")
        assert id in routing["warning"]
        assert "waypost pipeline route" in routing["warning"]
        assert figures(broker)["waypost_undecided_age_seconds"] > 0.2
        wait_until(lambda: id in caplog.text, "logged")
        decide(broker, {"id": id})
        wait_until(lambda: broker.get("/health/ready")["routing"]["warning"] is None, "well again")
        wait_until(lambda: "any more" in caplog.text, "logged")
    assert [record.levelname for record in caplog.records if "waited" in record.message] == ["WARNING"]


def test_what_was_redriven_has_waited_since_then() -> None:
    with BrokerInThread(MemoryStore, warn_seconds=30.0) as broker:
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        decide(broker, {"id": broker.publish("/in/a.x"), "failure": "it broke"})
        waiting = broker.serving.broker.waiting
        broker.ask("POST", "/v1/redrive", '{"filter":"state=E"}')
        wait_until(lambda: listed(broker), "back in L")
        oldest = broker.call(waiting._find)
        assert oldest is not None
        assert oldest.since_at == broker.store.events(*[broker.store.bounds()[1]] * 2)[0].at
