"""Objects over HTTP: what is agreed of a business type, unchanged messages, and only the latest one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.brokers import BrokerInThread, request
from waypost.objects import DEFAULT_OBJECT, object_json

UNCHANGED = '{"unchanged":{"ignore":["$.exportedAt"],"window":"30d"}}'


def publish(
    broker: BrokerInThread, body: object, target: str = "/in/customer/customer.changed?key=k1"
) -> Any:
    """The whole answer."""
    answer = broker.ask("POST", target, json.dumps(body))
    assert answer.status == 201, answer
    return answer.json()


def test_what_is_agreed_is_given_back_with_figures(broker: BrokerInThread) -> None:
    made = broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    assert made.status == 201
    form = broker.get("/v1/objects/customer")
    assert form == made.json()
    assert form == {
        "name": "customer",
        "unchanged": {"ignore": ["$.exportedAt"], "window": "30d"},
        "route": "inline",
        "figures": {"unchanged": {}, "waiting": 0},
    }
    assert broker.get("/v1/objects") == {"objects": [form]}
    replaced = broker.ask("PUT", "/v1/objects/customer", '{"unchanged":null}')
    assert (replaced.status, replaced.json()["unchanged"]) == (200, None)


def test_a_repetition_is_unchanged_and_names_what_it_repeats(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    first = publish(broker, {"name": "Ann", "exportedAt": 1})
    assert first["state"] == "Q"
    assert "sameAs" not in first
    again = publish(broker, {"exportedAt": 2, "name": "Ann"})
    assert (again["state"], again["sameAs"]) == ("U", first["id"])
    changed = publish(broker, {"name": "Bob", "exportedAt": 2})
    assert changed["state"] == "Q"
    other = publish(broker, {"name": "Ann"}, "/in/customer/customer.changed?key=k2")
    assert other["state"] == "Q"
    document = broker.get(f"/v1/messages/{again['id']}")
    assert (document["state"], document["sameAs"]) == ("U", first["id"])
    assert [document[flag] for flag in ("queued", "archived", "delivered", "success")] == [
        False,
        True,
        False,
        False,
    ]
    assert [(event["toState"], event.get("sameAs")) for event in document["journey"]] == [
        ("L", None),
        ("U", first["id"]),
    ]
    assert broker.get("/v1/queues/customer")["figures"]["depth"] == 3


def test_many_at_once_are_compared_with_those_before_them_in_the_request(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    lines = [
        {"object": "customer", "key": "k1", "body": body} for body in ('{"a":1}', '{"a": 1.0}', '{"a":2}')
    ]
    answer = broker.ask("POST", "/v1/messages", "\n".join(map(json.dumps, lines)))
    first, second, third = answer.json()["results"]
    assert [first["state"], second["state"], third["state"]] == ["Q", "U", "Q"]
    assert second["sameAs"] == first["id"]


@pytest.mark.parametrize("way", ["header", "query", "line"])
def test_force_delivers_a_repetition(broker: BrokerInThread, way: str) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    target = "/in/customer/customer.changed?key=k1"
    publish(broker, {"a": 1}, target)
    if way == "line":
        line = {"object": "customer", "key": "k1", "body": '{"a":1}', "force": True}
        (forced,) = broker.ask("POST", "/v1/messages", json.dumps(line)).json()["results"]
    elif way == "header":
        forced = broker.ask("POST", target, '{"a":1}', waypost_force="true").json()
    else:
        forced = broker.ask("POST", f"{target}&force=1", '{"a":1}').json()
    assert forced["state"] == "Q"
    assert broker.ask("POST", f"{target}&force=0", '{"a":1}').json()["sameAs"] == forced["id"]


def test_the_unchanged_are_counted_by_producer(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    for producer in ("erp", "erp", "crm", "erp"):
        publish(broker, {"a": 1}, f"/in/customer/customer.changed?key=k1&producer={producer}")
    publish(broker, {"a": 1})
    counts = {"erp": 2, "crm": 1, "anonymous": 1}
    assert broker.get("/v1/objects/customer")["figures"]["unchanged"] == counts
    assert broker.get("/v1/stats")["unchanged"] == {"customer": counts}
    metrics = broker.ask("GET", "/metrics").body.decode()
    shown = {
        sample.labels["producer"]: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "waypost_unchanged_total" and sample.labels["object"] == "customer"
    }
    assert shown == counts


def test_of_equal_messages_sent_at_the_same_time_one_is_delivered(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)

    def produce(producer: int) -> list[str]:
        with broker.wire() as wire:
            asked = [request("POST", f"/in/customer/c.d?key=k{number}", '{"a":1}') for number in range(20)]
            return [wire.ask(one).json()["state"] for one in asked]

    with ThreadPoolExecutor(4) as pool:
        states = [state for part in pool.map(produce, range(4)) for state in part]
    assert (states.count("Q"), states.count("U")) == (20, 60)


def test_a_deleted_agreement_is_gone_and_nothing_is_compared(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", UNCHANGED)
    publish(broker, {"a": 1})
    assert broker.ask("DELETE", "/v1/objects/customer").status == 204
    for answer in (broker.ask("DELETE", "/v1/objects/customer"), broker.ask("GET", "/v1/objects/customer")):
        assert (answer.status, answer.code) == (404, "OBJECT_NOT_FOUND")
    assert publish(broker, {"a": 1})["state"] == "Q"
    assert broker.get("/v1/objects") == {"objects": []}


def test_an_empty_body_agrees_on_the_defaults(broker: BrokerInThread) -> None:
    made = broker.ask("PUT", "/v1/objects/customer")
    assert made.status == 201
    assert {name: made.json()[name] for name in ("unchanged", "route")} == object_json(DEFAULT_OBJECT)


def test_what_spark_routes_waits_in_l_until_the_broker_may(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/objects/customer", '{"route":"spark"}')
    logged = publish(broker, {"a": 1})
    assert logged["state"] == "L"
    assert broker.get("/v1/objects/customer")["figures"]["waiting"] == 1
    document = broker.get(f"/v1/messages/{logged['id']}")
    assert (document["state"], document["archived"], document["missing"]) == ("L", False, [])


def test_only_the_latest_of_a_thing_waits(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/customer", '{"latestOnly":true}')
    assert broker.get("/v1/queues/customer")["latestOnly"] is True
    old, new = publish(broker, {"a": 1})["id"], publish(broker, {"a": 2})["id"]
    other = publish(broker, {"a": 1}, "/in/customer/customer.changed?key=k2")["id"]
    assert broker.get(f"/v1/messages/{old}")["state"] == "O"
    (obsolete,) = broker.found("state=O")
    assert (obsolete["messageId"], obsolete["reason"]) == (old, "newer-message")
    assert [m["id"] for m in broker.get("/queue/customer?n=9")["messages"] if m["object"]] == [new, other]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", "JSON_INVALID"),
        ("[]", "OBJECT_INVALID"),
        ("null", "OBJECT_INVALID"),
        ('{"unchanged":true}', "OBJECT_INVALID"),
        ('{"unchanged":{"ignored":[]}}', "OBJECT_INVALID"),
        ('{"unchanged":{"ignore":"$.a"}}', "OBJECT_INVALID"),
        ('{"unchanged":{"ignore":["a"]}}', "OBJECT_INVALID"),
        ('{"unchanged":{"ignore":["$"]}}', "OBJECT_INVALID"),
        ('{"unchanged":{"ignore":[1]}}', "OBJECT_INVALID"),
        ('{"unchanged":{"window":"long"}}', "SPAN_INVALID"),
        ('{"route":"flink"}', "OBJECT_INVALID"),
        ('{"route":[]}', "OBJECT_INVALID"),
        ('{"rout":"inline"}', "OBJECT_INVALID"),
        ('{"unchanged":' + "[" * 100_000, "JSON_INVALID"),
    ],
)
def test_a_malformed_agreement_is_refused(memory_broker: BrokerInThread, body: str, code: str) -> None:
    answer = memory_broker.ask("PUT", "/v1/objects/customer", body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]
    assert memory_broker.ask("GET", "/v1/objects/customer").status == 404
