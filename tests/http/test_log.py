"""GET /log: every event once and in order, from any place, live or not."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread, request
from waypost.commands import Reap
from waypost.http import eventlog
from waypost.instants import SECOND
from waypost.stores.memory import MemoryStore
from waypost.testing import MovableClock


def filled(broker: BrokerInThread) -> str:
    """Five events: one message that was confirmed. Returns its id."""
    id = broker.publish("/in/customer/customer.changed?key=k1", "{}", content_type="application/json")
    receipt = broker.ask("GET", "/queue/customer?consumer=c1").headers["waypost-receipt"]
    broker.confirm("customer", receipt)
    return id


def test_every_transition_is_a_line_in_order(broker: BrokerInThread) -> None:
    id = filled(broker)
    answer = broker.ask("GET", "/log")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (answer.headers["waypost-head"], answer.headers["waypost-oldest"]) == ("5", "1")
    events = [json.loads(line) for line in answer.body.splitlines()]
    assert [event["offset"] for event in events] == [1, 2, 3, 4, 5]
    assert [event["toState"] for event in events] == ["L", "Q", "F", "S", "X"]
    assert [event["fromState"] for event in events] == [None, "L", "Q", "F", "L"]
    assert [event["queue"] for event in events] == [None, "customer", "customer", "customer", None]
    assert {event["messageId"] for event in events} == {id}
    assert {event["sequence"] for event in events} == {1}
    assert [event["consumer"] for event in events] == [None, None, "c1", "c1", None]
    assert all(event["at"].endswith("Z") and len(event["at"]) == 27 for event in events)
    logged = events[0]
    assert (logged["topics"], logged["object"], logged["key"]) == (["customer.changed"], "customer", "k1")
    assert (logged["mimeType"], logged["size"], len(logged["hash"])) == ("application/json", 2, 64)
    assert "topics" not in events[1]
    assert events[3]["durationMs"] >= 0


def test_a_range_starts_at_its_offset_and_ends_after_n(broker: BrokerInThread) -> None:
    filled(broker)
    for target, offsets in [
        ("/log?from=0", [1, 2, 3, 4, 5]),
        ("/log?from=3", [3, 4, 5]),
        ("/log?from=2&n=2", [2, 3]),
        ("/log?n=0", []),
        ("/log?from=6", []),
        ("/log?n=999999999999", [1, 2, 3, 4, 5]),
    ]:
        assert [event["offset"] for event in broker.events(target)] == offsets


def test_a_queues_events_and_a_topics_events_are_theirs_alone(broker: BrokerInThread) -> None:
    filled(broker)
    broker.publish("/in/fruit.sweet.apple")
    assert [event["offset"] for event in broker.events("/log?queue=customer")] == [2, 3, 4]
    assert [event["offset"] for event in broker.events("/log?queue=customer&n=1&from=3")] == [3]
    assert [event["offset"] for event in broker.events("/log/fruit.sweet.*")] == [6]
    assert [event["offset"] for event in broker.events("/log/customer.changed")] == [1]
    assert [event["offset"] for event in broker.events("/log/*")] == [1, 6]
    assert broker.events("/log/fruit.sour") == []


def test_a_channels_events_are_its_alone(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/channels/fruit", '{"topics":["fruit.*"]}')
    broker.publish("/in/fruit.apple")
    receipt = broker.ask("GET", "/channel/fruit").headers["waypost-receipt"]
    broker.ask("POST", "/channel/fruit/confirm", json.dumps({"receipt": receipt}))
    events = broker.events("/log?channel=fruit")
    assert [(event["channel"], event["queue"], event["toState"]) for event in events] == [
        ("fruit", None, "Q"),
        ("fruit", None, "F"),
        ("fruit", None, "S"),
    ]
    assert [event["toState"] for event in broker.events("/log?queue=fruit")] == ["Q"]
    assert broker.events("/log?topic=fruit.*") == broker.events("/log/fruit.*")
    assert [event["toState"] for event in broker.events("/log?topic=fruit.apple")] == ["L"]


def test_a_spectator_goes_on_where_it_was_and_its_lag_is_seen(broker: BrokerInThread) -> None:
    filled(broker)
    made = broker.ask("PUT", "/v1/spectators/auditor", '{"offset":2}')
    assert (made.status, made.json()["offset"], made.json()["lag"]) == (201, 2, 3)
    assert [event["offset"] for event in broker.events("/log?spectator=auditor")] == [3, 4, 5]
    assert broker.get("/v1/spectators/auditor")["offset"] == 2, "reading changes nothing"
    moved = broker.ask("PUT", "/v1/spectators/auditor", '{"offset":5}')
    assert (moved.status, moved.json()["lag"]) == (200, 0)
    assert broker.events("/log?spectator=auditor") == []
    broker.publish("/in/fruit")
    assert broker.get("/v1/spectators/auditor")["lag"] == 2
    assert broker.get("/v1/spectators") == {"spectators": [broker.get("/v1/spectators/auditor")]}
    assert [event["offset"] for event in broker.events("/log?spectator=auditor&n=1")] == [6]


def test_a_deleted_spectator_is_gone(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/spectators/auditor", '{"offset":0}')
    assert broker.ask("DELETE", "/v1/spectators/auditor").status == 204
    for answer in (
        broker.ask("DELETE", "/v1/spectators/auditor"),
        broker.ask("GET", "/v1/spectators/auditor"),
        broker.ask("GET", "/log?spectator=auditor"),
    ):
        assert (answer.status, answer.code) == (404, "SPECTATOR_NOT_FOUND")
    assert broker.get("/v1/spectators") == {"spectators": []}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "JSON_INVALID"),
        ("{}", "JSON_INVALID"),
        ("[]", "JSON_INVALID"),
        ('{"offset":-1}', "JSON_INVALID"),
        ('{"offset":1.5}', "JSON_INVALID"),
        ('{"offset":"1"}', "JSON_INVALID"),
        ('{"offset":true}', "JSON_INVALID"),
        ('{"offset":' + "9" * 300 + "}", "JSON_INVALID"),
        ('{"offset":1,"lag":0}', "JSON_INVALID"),
        ('{"offset":6}', "REQUEST_INVALID"),
    ],
)
def test_a_position_that_is_none_is_refused(memory_broker: BrokerInThread, body: str, code: str) -> None:
    filled(memory_broker)
    answer = memory_broker.ask("PUT", "/v1/spectators/auditor", body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]


def test_followers_see_everything_once_and_in_order_while_many_publish(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"]}')

    def publish(producer: int) -> None:
        with broker.wire() as wire:
            for number in range(25):
                assert wire.ask(request("POST", "/in/fruit.apple", f"{producer}-{number}")).status == 201

    def follow(target: str, count: int) -> list[dict[str, Any]]:
        with broker.wire() as wire:
            answer = wire.ask(request("GET", f"{target}{'&' if '?' in target else '?'}follow=1&n={count}"))
            return [json.loads(line) for line in answer.body.splitlines() if line]

    with ThreadPoolExecutor(6) as pool:
        whole = pool.submit(follow, "/log", 300)
        topic = pool.submit(follow, "/log/fruit.*?payload=1", 100)
        channel = pool.submit(follow, "/log?channel=audit", 100)
        list(pool.map(publish, range(4)))
    assert [event["offset"] for event in whole.result()] == list(range(1, 301))
    sent = sorted(f"{producer}-{number}" for producer in range(4) for number in range(25))
    assert sorted(event["body"] for event in topic.result()) == sent
    assert [event["toState"] for event in channel.result()] == ["Q"] * 100


def test_a_moment_longer_ago_than_the_log_is_410_with_the_oldest_moment() -> None:
    clock = MovableClock()
    with BrokerInThread(lambda: MemoryStore(clock=clock, log_keep_us=60 * SECOND)) as broker:
        filled(broker)
        began = broker.events()[0]["at"]
        clock.move(100)
        broker.publish("/in/fruit")
        broker.await_(broker.serving.broker.ask(Reap()))
        for method, target, body in [
            ("GET", f"/log?ts={began}", ""),
            ("GET", "/log/fruit?ts=20200101101010", ""),
            ("PUT", "/v1/channels/audit", json.dumps({"topics": ["*"], "from": began})),
            ("GET", f"/v1/queues/fruit?at={began}", ""),
        ]:
            answer = broker.ask(method, target, body)
            assert (answer.status, answer.code, answer.headers["waypost-oldest"]) == (410, "LOG_TRIMMED", "6")
            oldest = broker.events()[0]["at"]
            assert oldest in answer.json()["hint"]
        assert [event["offset"] for event in broker.events(f"/log?ts={oldest}")] == [6, 7]
        early = broker.ask("PUT", "/v1/channels/audit", '{"topics":["*"],"from":1}')
        assert (early.status, early.code) == (410, "LOG_TRIMMED")


def test_an_instant_is_a_place_to_start(broker: BrokerInThread) -> None:
    filled(broker)
    third = broker.events()[2]["at"]
    assert broker.events(f"/log?ts={third}")[0]["offset"] <= 3
    assert broker.events(f"/log?ts={third}")[-1]["offset"] == 5
    assert len(broker.events("/log?ts=20200101000000")) == 5
    assert broker.events("/log?ts=2999-01-01T00:00:00Z") == []


def test_bodies_come_only_when_asked_for(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit", "grün")
    broker.publish("/in/fruit", b"\xff")
    assert all("body" not in event for event in broker.events())
    first, queued, second, _ = broker.events("/log?payload=1")
    assert (first["body"], second["bodyBase64"]) == ("grün", "/w==")
    assert "body" not in queued


def test_thousands_of_events_come_without_a_gap(broker: BrokerInThread) -> None:
    broker.ask("POST", "/v1/messages", '{"queue":"q","body":""}\n' * 2_000)
    assert [event["offset"] for event in broker.events()] == list(range(1, 4_001))


def test_a_follower_gets_what_comes_after_it_asked(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    with broker.wire() as wire:
        wire.send(request("GET", "/log?from=2&follow=1"))
        assert b"Waypost-Head: 2" in wire.head()
        assert [json.loads(line)["offset"] for line in wire.chunk().splitlines()] == [2]
        for head in (3, 5):
            broker.publish("/in/fruit")
            assert [json.loads(line)["offset"] for line in wire.chunk().splitlines()] == [head, head + 1]


def test_a_follower_may_begin_before_anything_has_happened(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        wire.send(request("GET", "/log?from=1&follow=1&n=1"))
        assert b"Waypost-Head: 0" in wire.head()
        broker.publish("/in/fruit")
        assert json.loads(wire.chunk())["offset"] == 1
        assert wire.chunk() == b""


def test_a_silent_log_shows_that_it_is_alive(
    memory_broker: BrokerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "SIGN_OF_LIFE_SECONDS", 0.05)
    with memory_broker.wire() as wire:
        wire.send(request("GET", "/log?follow=1"))
        wire.head()
        assert [wire.chunk(), wire.chunk()] == [b"\n", b"\n"]
        memory_broker.publish("/in/fruit")
        while (line := wire.chunk()) == b"\n":
            pass
        assert json.loads(line.splitlines()[0])["offset"] == 1


def test_a_follower_of_a_stopping_broker_gets_a_whole_answer(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        wire.send(request("GET", "/log?follow=1"))
        wire.head()
        broker.call(lambda: broker.loop.create_task(broker.server.drain(5)))
        assert wire.chunk() == b""


def test_followers_that_left_leave_nothing_behind(broker: BrokerInThread) -> None:
    from tests.http.harness import wait_until

    followers = broker.serving.broker._followers
    with broker.wire() as wire:
        wire.send(request("GET", "/log?follow=1"))
        wire.head()
        wait_until(lambda: len(followers) == 1, "following")
    wait_until(lambda: not followers and broker.server.stats.open == 0, "left")


def test_head_asks_for_the_bounds_alone(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    answer = broker.ask("HEAD", "/log?follow=1")
    assert (answer.status, answer.headers["waypost-head"], answer.headers["waypost-oldest"]) == (
        200,
        "2",
        "1",
    )


def test_what_is_trimmed_is_410_and_names_the_oldest(
    memory_broker: BrokerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(memory_broker)
    store = memory_broker.store
    assert isinstance(store, MemoryStore)
    monkeypatch.setattr(store._rows, "first", 4)
    answer = memory_broker.ask("GET", "/log?from=2")
    assert (answer.status, answer.code) == (410, "LOG_TRIMMED")
    assert "from=4" in answer.json()["hint"]
    assert [event["offset"] for event in memory_broker.events("/log")] == [4, 5]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/log?from=7", "OFFSET_BEYOND_HEAD"),
        ("/log?from=-1", "NUMBER_INVALID"),
        ("/log?from=x", "NUMBER_INVALID"),
        (f"/log?from={'9' * 30}", "NUMBER_INVALID"),
        ("/log?n=-1", "NUMBER_INVALID"),
        ("/log?follow=maybe", "FLAG_INVALID"),
        ("/log?ts=soon", "INSTANT_INVALID"),
        ("/log?from=1&ts=10:00", "REQUEST_INVALID"),
        ("/log?queue=UPPER", "NAME_INVALID"),
        ("/log?channel=UPPER", "NAME_INVALID"),
        ("/log?spectator=UPPER", "NAME_INVALID"),
        ("/log?topic=UPPER", "TOPIC_INVALID"),
        ("/log?queue=a&channel=b", "REQUEST_INVALID"),
        ("/log?queue=a&topic=b", "REQUEST_INVALID"),
        ("/log?from=1&spectator=a", "REQUEST_INVALID"),
        ("/log?ts=10:00&spectator=a", "REQUEST_INVALID"),
        ("/log?offset=1", "UNKNOWN_PARAMETER"),
        ("/log/UPPER", "TOPIC_INVALID"),
        ("/log/fruit?queue=fruit", "UNKNOWN_PARAMETER"),
    ],
)
def test_a_place_that_is_none_is_refused(memory_broker: BrokerInThread, target: str, code: str) -> None:
    filled(memory_broker)
    answer = memory_broker.ask("GET", target)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]
