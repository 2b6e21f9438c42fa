"""GET /log: every event once and in order, from any place, live or not."""

from __future__ import annotations

import json

import pytest

from tests.http.brokers import BrokerInThread, request
from waypost.http import eventlog


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
    monkeypatch.setattr(memory_broker.store, "_oldest", 4)
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


def test_arrow_is_not_offered_yet(memory_broker: BrokerInThread) -> None:
    answer = memory_broker.ask("GET", "/log", accept="application/vnd.apache.arrow.stream")
    assert (answer.status, answer.code) == (501, "NOT_OFFERED")
