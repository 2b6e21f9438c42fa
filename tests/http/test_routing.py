"""A routing function behind HTTP: a publish answers L at once, and where the message goes shows soon after."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread, parked, request
from tests.http.harness import wait_until
from waypost.routing import Interested, Option, Routable, Route
from waypost.store import Store
from waypost.stores.memory import MemoryStore


def settled(broker: BrokerInThread, id: str) -> dict[str, Any]:
    """Its document, once it was decided where it goes."""
    wait_until(lambda: broker.get(f"/v1/messages/{id}")["state"] != "L", "decided")
    return dict(broker.get(f"/v1/messages/{id}"))


def published(broker: BrokerInThread, target: str, body: str = "x") -> str:
    answer = broker.ask("POST", target, body)
    assert (answer.status, answer.json()["state"]) == (201, "L")
    return str(answer.json()["id"])


def test_a_route_names_queues_and_consumers(open_store: Callable[[], Store]) -> None:
    seen: list[tuple[str, ...]] = []

    def route(message: Routable, consumers: Sequence[Interested]) -> Route:
        seen.append(tuple(consumer.name for consumer in consumers))
        if message.body == b"large":
            return Route(queues=("approvals",))
        if message.body == b"mine":
            return Route(consumers=("billing",))
        return Route(option=Option.ONCE_PER_TOPIC)

    with BrokerInThread(open_store, route=route) as broker:
        broker.ask("PUT", "/orders")
        broker.ask("PUT", "/v1/consumers/billing", '{"queue":"orders"}')
        large = settled(broker, published(broker, "/in/orders.created", "large"))
        assert [one["queue"] for one in large["deliveries"]] == ["approvals"]
        mine = settled(broker, published(broker, "/in/orders.created", "mine"))
        assert mine["missing"] == [{"queue": "orders", "slot": 0, "consumer": "billing"}]
        both = settled(broker, published(broker, "/in/orders.created?topics=orders.paid"))
        assert [one["slot"] for one in both["missing"]] == [0, 1]
        assert [event["toState"] for event in both["journey"]] == ["L", "Q", "Q"]
        assert seen == [("billing",)] * 3


def test_what_a_routing_function_fails_on_is_a_dead_letter_and_a_redrive_routes_it_again(
    open_store: Callable[[], Store],
) -> None:
    broken = True

    def route(message: Routable, consumers: Sequence[Interested]) -> Any:
        if broken:
            raise KeyError("no such customer")
        return Route()

    with BrokerInThread(open_store, route=route) as broker:
        id = published(broker, "/in/orders.created")
        document = settled(broker, id)
        assert document["state"] == "E"
        (dead,) = document["deliveries"]
        assert (dead["queue"], dead["state"]) == ("default", "E")
        assert "KeyError: 'no such customer'" in dead["reason"]
        broken = False
        broker.ask("POST", "/v1/redrive", json.dumps({"filter": f"id={id}"}))
        wait_until(lambda: broker.get(f"/v1/messages/{id}")["state"] == "Q", "routed again")
        assert [one["queue"] for one in broker.get(f"/v1/messages/{id}")["deliveries"]] == ["orders"]
        assert broker.journey(id) == "LELQ"


def test_a_routing_function_that_hangs_stalls_nobody(open_store: Callable[[], Store]) -> None:
    go_on = threading.Event()

    def route(message: Routable, consumers: Sequence[Interested]) -> Route:
        if message.body == b"slow":
            go_on.wait(30)
        return Route()

    with BrokerInThread(open_store, route=route, route_seconds=0.2) as broker:
        try:
            slow = published(broker, "/in/orders.created", "slow")
            quick = published(broker, "/in/orders.created", "quick")
            assert broker.get("/health/ready")["status"] == "ready"
            document = settled(broker, slow)
            assert document["state"] == "E"
            assert "no answer within 0.2 s" in document["deliveries"][0]["reason"]
            assert settled(broker, quick)["state"] == "Q"
        finally:
            go_on.set()


@pytest.mark.parametrize("nonsense", [None, "orders", Route(queues=("UPPER",)), Route(option="twice")])  # type: ignore[arg-type]
def test_nonsense_is_a_dead_letter(nonsense: Any) -> None:
    with BrokerInThread(MemoryStore, route=lambda message, consumers: nonsense) as broker:
        document = settled(broker, published(broker, "/in/orders.created"))
        assert document["state"] == "E"
        assert "RequestInvalid" in document["deliveries"][0]["reason"]


def test_what_waits_for_a_decision_is_followed_to_its_queue(open_store: Callable[[], Store]) -> None:
    with BrokerInThread(open_store, route=lambda message, consumers: Route()) as broker:
        broker.ask("PUT", "/orders")
        with broker.wire() as wire:
            wire.send(request("GET", "/queue/orders?wait=30"))
            parked(broker, "orders", 1)
            id = published(broker, "/in/orders.created")
            assert wire.answer().headers["x-message-id"] == id
