"""GET /v1/queues/{name}?at=…: depth and states as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread


def at(broker: BrokerInThread, moment: str, place: str = "queues/fruit") -> dict[str, Any]:
    return dict(broker.get(f"/v1/{place}?at={moment}"))


def test_a_past_depth_is_what_it_was(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"]}')
    for number in range(3):
        broker.publish("/in/fruit.apple", str(number))
    receipt = broker.ask("GET", "/queue/fruit?consumer=c1").headers["waypost-receipt"]
    broker.confirm("fruit", receipt)
    published = [event["at"] for event in broker.events("/log/fruit.*")]
    fetched, confirmed = (
        event["at"] for event in broker.events("/log?queue=fruit") if event["toState"] in "FS"
    )

    for moment, depth, states in [
        (published[0], 1, {"Q": 1}),
        (published[2], 3, {"Q": 3}),
        (fetched, 3, {"Q": 2, "F": 1}),
        (confirmed, 2, {"Q": 2, "S": 1}),
        ("2999-01-01T00:00:00Z", 2, {"Q": 2, "S": 1}),
    ]:
        form = at(broker, moment)
        assert form["figures"]["depth"] == depth, moment
        assert {letter: count for letter, count in form["figures"]["states"].items() if count} == states
        assert form["name"] == "fruit"
    assert at(broker, fetched)["at"] == fetched
    now = broker.get("/v1/queues/fruit")["figures"]
    ahead = at(broker, "2999-01-01T00:00:00Z")
    assert ahead["at"] < "2999"
    assert ahead["figures"] == {"depth": now["depth"], "states": now["states"]}
    assert ahead["offset"] == broker.events()[-1]["offset"]
    channel = at(broker, published[1], "channels/audit")
    assert (channel["figures"]["depth"], channel["figures"]["states"]["Q"]) == (2, 2)


def test_a_queue_that_is_gone_is_seen_as_it_was(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit.apple")
    moment = broker.events()[0]["at"]
    broker.ask("DELETE", "/v1/queues/fruit")
    assert broker.ask("GET", "/v1/queues/fruit").status == 404
    assert at(broker, moment)["figures"]["depth"] == 1


def test_what_was_not_there_yet_is_404(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit.apple")
    for target, code in [
        ("/v1/queues/fruit?at=20200101101010", "QUEUE_NOT_FOUND"),
        ("/v1/queues/nobody?at=2999-01-01", "QUEUE_NOT_FOUND"),
        ("/v1/channels/fruit?at=2999-01-01", "CHANNEL_NOT_FOUND"),
    ]:
        answer = broker.ask("GET", target)
        assert (answer.status, answer.code) == (404, code)
        assert " at " in answer.json()["detail"]


@pytest.mark.parametrize("moment", ["soon", "", "%FF", "9" * 40])
def test_a_moment_that_is_none_is_refused(memory_broker: BrokerInThread, moment: str) -> None:
    memory_broker.publish("/in/fruit.apple")
    answer = memory_broker.ask("GET", f"/v1/queues/fruit?at={moment}")
    assert answer.status == 400
    assert json.loads(answer.body)["hint"]


def test_the_earliest_and_latest_moments_are_answered(memory_broker: BrokerInThread) -> None:
    memory_broker.publish("/in/fruit.apple")
    assert memory_broker.ask("GET", "/v1/queues/fruit?at=0001-01-01T00:00:00Z").status == 404
    assert memory_broker.ask("GET", "/v1/queues/fruit?at=9999-12-31T23:59:59Z").status == 200
