"""Redrive, replay and cancel of deliveries that a request names one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread
from tests.http.harness import Answer
from waypost import BlockingClient


def act(broker: BrokerInThread, verb: str, *deliveries: Any, **more: Any) -> Answer:
    named = [{"id": one} if isinstance(one, str) else one for one in deliveries]
    return broker.ask("POST", f"/v1/{verb}", json.dumps({"deliveries": named, **more}))


def dead_letters(broker: BrokerInThread, count: int) -> list[str]:
    """In the queue fruit; their ids."""
    ids = [broker.ask("POST", "/in/fruit.apple", str(n)).headers["x-message-id"] for n in range(count)]
    fetched = broker.get(f"/queue/fruit?n={count}")["messages"]
    receipts = [message["receipt"] for message in fetched]
    broker.ask("POST", "/queue/fruit/confirm", json.dumps({"receipts": receipts, "outcome": "invalid"}))
    return ids


def test_a_dry_run_counts_and_as_of_it_the_act_touches_nothing_twice(broker: BrokerInThread) -> None:
    ids = dead_letters(broker, 3)
    dry = act(broker, "redrive", *reversed(ids), {"id": "unheard-of", "queue": "fruit"}, dryRun=True)
    assert dry.status == 200
    seen = dry.json()
    assert seen | {"at": ""} == {
        "at": "",
        "matched": 3,
        "states": {"I": 3},
        "left": {},
        "changed": 0,
        "unable": 0,
        "unknown": [{"id": "unheard-of", "queue": "fruit"}],
        "sequences": seen["sequences"],
    }
    assert seen["sequences"][:3] == sorted(seen["sequences"][:3], reverse=True)
    assert seen["sequences"][3] is None
    first = act(broker, "redrive", ids[0], asOf=seen["at"]).json()
    assert (first["matched"], first["states"]) == (1, {"I": 1})
    rest = act(broker, "redrive", *ids, asOf=seen["at"]).json()
    assert (rest["matched"], rest["changed"]) == (2, 1)
    assert act(broker, "redrive", *ids, asOf=seen["at"]).json()["changed"] == 3
    again = broker.get("/queue/fruit?n=9")["messages"]
    assert [message["id"] for message in again] == ids


def test_one_of_two_queues_is_cancelled_and_a_replay_brings_it_back(broker: BrokerInThread) -> None:
    id = broker.ask("POST", "/in/fruit.apple?topics=meat.beef", "x").headers["x-message-id"]
    assert act(broker, "cancel", {"id": id, "queue": "meat"}).json()["states"] == {"Q": 1}
    assert [found["state"] for found in broker.found(f"id={id}")] == ["Q", "C"]
    replayed = act(broker, "replay", id).json()
    assert (replayed["states"], replayed["left"]) == ({"C": 1}, {"Q": 1})


def test_only_the_states_asked_for_and_only_for_the_consumer_asked_for(broker: BrokerInThread) -> None:
    (id,) = dead_letters(broker, 1)
    assert act(broker, "redrive", id, states="E").json()["left"] == {"I": 1}
    assert act(broker, "redrive", id, states="EI", consumer="ann").json()["matched"] == 1
    assert broker.ask("GET", "/queue/fruit?n=1&consumer=bob").status == 204
    assert broker.get("/queue/fruit?n=1&consumer=ann")["messages"][0]["id"] == id


def test_the_client_acts_on_what_it_names(broker: BrokerInThread) -> None:
    ids = dead_letters(broker, 2)
    with BlockingClient(f"http://127.0.0.1:{broker.port}") as client:
        seen = client.act("redrive", [{"id": id} for id in ids], dry_run=True)
        assert (seen.matched, seen.states) == (2, {"I": 2})
        done = client.act("redrive", [{"id": ids[1], "queue": "fruit"}], as_of=seen.at)
        assert (done.matched, done.unknown) == (1, [])
        assert client.act("redrive", [{"id": ids[1]}], as_of=seen.at).changed == 1


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"deliveries": []}, "REQUEST_INVALID", "no delivery"),
        ({"deliveries": [{"id": "a"}], "filter": "state=E"}, "JSON_INVALID", "filter"),
        ({"deliveries": [{"id": "a"}], "rate": 5}, "JSON_INVALID", "rate"),
        ({"deliveries": [{"id": "a"}, {"id": "A B"}]}, "ID_INVALID", "delivery 2"),
        ({"deliveries": [{"id": "a", "queue": "UPPER"}]}, "NAME_INVALID", "delivery 1"),
        ({"deliveries": [{"id": "a", "queue": "q", "channel": "c"}]}, "REQUEST_INVALID", "delivery 1"),
        ({"deliveries": [{"queue": "q"}]}, "JSON_INVALID", "id"),
        ({"deliveries": ["a"]}, "JSON_INVALID", "object"),
        ({"deliveries": [{"id": "a"}], "states": "EZ"}, "FILTER_INVALID", "state"),
        ({"deliveries": [{"id": "a"}], "asOf": "10:00"}, "INSTANT_INVALID", "asOf"),
        ({"deliveries": [{"id": "a"}], "asOf": "yesterday"}, "INSTANT_INVALID", "yesterday"),
        ({"deliveries": None}, "JSON_INVALID", "array"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    memory_broker: BrokerInThread, body: dict[str, Any], code: str, says: str
) -> None:
    answer = memory_broker.ask("POST", "/v1/redrive", json.dumps(body))
    problem = answer.json()
    assert (answer.status, problem["code"]) == (400, code)
    assert says in problem["detail"]
    assert problem["hint"]


def test_more_than_a_thousand_are_too_many(memory_broker: BrokerInThread) -> None:
    answer = act(memory_broker, "cancel", *(f"id-{n}" for n in range(1_001)))
    assert (answer.status, answer.json()["code"]) == (413, "TOO_MANY_DELIVERIES")
    assert act(memory_broker, "cancel", *(f"id-{n}" for n in range(1_000))).json()["matched"] == 0


def test_nobody_gets_what_is_cancelled(memory_broker: BrokerInThread) -> None:
    assert act(memory_broker, "cancel", "a", consumer="ann").status == 400
