"""Channels over HTTP: one for each subscriber, fetched and confirmed as queues are, from now on or from a past moment."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread, parked, request
from tests.http.harness import Answer, wait_until
from waypost.destinations import Kind
from waypost.policy import DEFAULT, policy_json


def subscribe(broker: BrokerInThread, name: str, *topics: str, **more: Any) -> dict[str, Any]:
    answer = broker.ask("PUT", f"/v1/channels/{name}", json.dumps({"topics": list(topics), **more}))
    assert answer.status in (200, 201), answer
    return dict(answer.json())


def settle(broker: BrokerInThread, channel: str, receipt: str, **more: Any) -> dict[str, Any]:
    answer = broker.ask("POST", f"/channel/{channel}/confirm", json.dumps({"receipts": [receipt], **more}))
    assert answer.status == 200, answer
    (result,) = answer.json()["results"]
    return dict(result)


def bodies(broker: BrokerInThread, channel: str) -> list[str]:
    """What waits in a channel, fetched and confirmed."""
    found: list[str] = []
    while (answer := broker.ask("GET", f"/channel/{channel}?n=100")).status == 200:
        for message in answer.json()["messages"]:
            found.append(message["body"])
            assert settle(broker, channel, message["receipt"])["state"] == "S"
    return found


def finished(broker: BrokerInThread, job: str) -> dict[str, Any]:
    while True:
        form: dict[str, Any] = broker.get(f"/v1/jobs/{job}")
        if form["ended"] is not None:
            return form


def test_every_subscriber_gets_what_it_subscribed_to(broker: BrokerInThread) -> None:
    subscribe(broker, "sweet", "fruit.sweet.*")
    subscribe(broker, "apples", "fruit.sweet.apple", "fruit.sour.apple")
    subscribe(broker, "all", "*")
    for topic in ("fruit.sweet.apple", "fruit.sweet.pear", "fruit.sour.lemon", "meat.beef"):
        broker.publish(f"/in/{topic}", topic)
    assert bodies(broker, "sweet") == ["fruit.sweet.apple", "fruit.sweet.pear"]
    assert bodies(broker, "apples") == ["fruit.sweet.apple"]
    assert len(bodies(broker, "all")) == 4


def test_a_channel_is_given_back_with_its_topics_policy_and_figures(broker: BrokerInThread) -> None:
    made = broker.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"],"lease":30,"keep":"14d"}')
    assert (made.status, made.json()["job"]) == (201, None)
    broker.publish("/in/fruit.apple", "12345")
    form = broker.get("/v1/channels/audit")
    assert (form["name"], form["topics"]) == ("audit", ["fruit.*"])
    assert {name: form[name] for name in policy_json(DEFAULT)} == policy_json(DEFAULT) | {
        "lease": 30,
        "keep": "14d",
    }
    figures = form["figures"]
    assert (figures["depth"], figures["ready"], figures["bytes"], figures["states"]["Q"]) == (1, 1, 5, 1)
    assert broker.get("/v1/channels") == {"channels": [form]}
    replaced = broker.ask("PUT", "/v1/channels/audit", '{"topics":["meat.beef"]}')
    assert (replaced.status, replaced.json()["topics"], replaced.json()["lease"]) == (200, ["meat.beef"], 10)


def test_a_channel_and_a_queue_of_one_name_do_not_meet(broker: BrokerInThread) -> None:
    subscribe(broker, "fruit", "fruit.*")
    id = broker.publish("/in/fruit.apple")
    queued = broker.ask("GET", "/queue/fruit").headers["waypost-receipt"]
    subscribed = broker.ask("GET", "/channel/fruit").headers["waypost-receipt"]
    assert broker.confirm("fruit", subscribed).json()["results"] == [{"receipt": subscribed, "stale": True}]
    assert settle(broker, "fruit", queued) == {"receipt": queued, "stale": True}
    assert settle(broker, "fruit", subscribed) == {"receipt": subscribed, "id": id, "state": "S"}
    assert broker.get(f"/v1/messages/{id}")["state"] == "F"
    broker.confirm("fruit", queued)
    assert broker.get(f"/v1/messages/{id}")["state"] == "X"
    assert [one["channel"] for one in broker.found("channel=fruit")] == ["fruit"]
    assert [one["queue"] for one in broker.found("queue=fruit")] == ["fruit"]


def test_one_message_of_a_channel_comes_raw_with_its_headers(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    id = broker.publish("/in/fruit.apple?key=k1", "{}", content_type="application/json")
    answer = broker.ask("GET", "/channel/audit?consumer=c1")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"{}", "application/json")
    assert (answer.headers["x-message-id"], answer.headers["waypost-attempt"]) == (id, "1")
    assert (answer.headers["waypost-topics"], answer.headers["waypost-key"]) == ("fruit.apple", "k1")
    assert broker.ask("GET", "/channel/audit").status == 204


def test_a_subscriber_that_waits_is_answered_as_soon_as_something_comes(broker: BrokerInThread) -> None:
    subscribe(broker, "fruit", "fruit.*")
    broker.ask("PUT", "/fruit")
    with broker.wire() as subscriber, broker.wire() as worker:
        subscriber.send(request("GET", "/channel/fruit?wait=30"))
        worker.send(request("GET", "/queue/fruit?wait=30"))
        parked(broker, "fruit", 1, Kind.CHANNEL)
        parked(broker, "fruit", 1, Kind.QUEUE)
        broker.publish("/in/fruit.apple", "at last")
        assert subscriber.answer().body == b"at last"
        assert worker.answer().body == b"at last"


def test_a_channels_lease_is_extended_and_ends(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*", lease="50ms")
    broker.publish("/in/fruit.apple")
    first = broker.ask("GET", "/channel/audit?lease=10").headers["waypost-receipt"]
    extended = broker.ask("POST", "/channel/audit/extend", json.dumps({"receipts": [first], "lease": 0.05}))
    assert extended.json()["results"][0]["until"].endswith("Z")
    second = broker.ask("GET", "/channel/audit?wait=5&lease=10")
    assert second.headers["waypost-attempt"] == "2"
    assert settle(broker, "audit", first) == {"receipt": first, "stale": True}
    assert settle(broker, "audit", second.headers["waypost-receipt"])["state"] == "S"


def test_not_interested_ends_a_delivery_in_a_channel(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    broker.publish("/in/fruit.apple")
    receipt = broker.ask("GET", "/channel/audit?consumer=c1").headers["waypost-receipt"]
    assert settle(broker, "audit", receipt, outcome="not-interested")["state"] == "N"
    assert broker.get("/v1/channels/audit")["figures"]["states"]["N"] == 1
    assert broker.ask("GET", "/channel/audit?consumer=c2").status == 204


def test_a_new_channel_gets_what_comes_from_now_on(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit.apple", "before")
    subscribe(broker, "audit", "fruit.*")
    broker.publish("/in/fruit.apple", "after")
    assert bodies(broker, "audit") == ["after"]


def test_a_channel_may_begin_at_an_offset_or_an_instant_of_the_log(broker: BrokerInThread) -> None:
    for number in range(4):
        broker.publish("/in/fruit.apple", str(number))
    broker.publish("/in/meat.beef", "meat")
    third = broker.events("/log/fruit.*")[2]
    for name, start, expected in [
        ("from-offset", third["offset"], ["2", "3"]),
        ("from-instant", third["at"], ["2", "3"]),
        ("from-zero", 0, ["0", "1", "2", "3"]),
        ("from-long-ago", "20200101101010", ["0", "1", "2", "3"]),
        ("from-next", broker.events()[-1]["offset"] + 1, []),
    ]:
        job = subscribe(broker, name, "fruit.*", **{"from": start})["job"]
        if job is not None:
            assert finished(broker, job)["kind"] == "backfill"
        assert bodies(broker, name) == expected, name
    assert subscribe(broker, "from-zero", "fruit.*")["job"] is None


def test_a_backfill_and_what_comes_meanwhile_bring_each_message_once(broker: BrokerInThread) -> None:
    """Producers go on while the channel is made; nothing is missed between the two, and nothing comes twice."""
    broker.ask("POST", "/v1/messages", '{"topics":["fruit.apple"],"body":"old"}\n' * 600)

    def produce(producer: int) -> None:
        with broker.wire() as wire:
            for number in range(50):
                assert wire.ask(request("POST", "/in/fruit.apple", f"{producer}-{number}")).status == 201

    with ThreadPoolExecutor(3) as pool:
        produced = [pool.submit(produce, producer) for producer in range(3)]
        job = subscribe(broker, "late", "fruit.*", **{"from": 0})["job"]
        for one in produced:
            one.result()
    finished(broker, job)
    found = bodies(broker, "late")
    assert found.count("old") == 600
    assert sorted(body for body in found if body != "old") == sorted(
        f"{producer}-{number}" for producer in range(3) for number in range(50)
    )


def test_a_paused_channel_hands_out_nothing_until_it_goes_on(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*", paused=True)
    broker.publish("/in/fruit.apple", "x")
    assert broker.ask("GET", "/channel/audit").status == 204
    with broker.wire() as wire:
        wire.send(request("GET", "/channel/audit?wait=30"))
        parked(broker, "audit", 1, Kind.CHANNEL)
        subscribe(broker, "audit", "fruit.*")
        assert wire.answer().body == b"x"


def test_a_deleted_channel_is_gone_and_its_successor_is_empty(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    id = broker.publish("/in/fruit.apple")
    answer = broker.ask("DELETE", "/v1/channels/audit")
    assert (answer.status, answer.json()["matched"]) == (202, 1)
    assert broker.ask("GET", "/channel/audit").code == "CHANNEL_NOT_FOUND"
    assert broker.ask("DELETE", "/v1/channels/audit").code == "CHANNEL_NOT_FOUND"
    finished(broker, answer.json()["job"])
    (delivery,) = [one for one in broker.get(f"/v1/messages/{id}")["deliveries"] if one["channel"]]
    assert (delivery["state"], delivery["reason"]) == ("C", "channel-deleted")
    subscribe(broker, "audit", "fruit.*")
    assert broker.ask("GET", "/channel/audit").status == 204


def test_a_purged_channel_is_empty_and_the_queues_are_not(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    broker.publish("/in/fruit.apple")
    answer = broker.ask("POST", "/v1/channels/audit/purge")
    assert (answer.status, answer.json()["matched"]) == (202, 1)
    assert finished(broker, answer.json()["job"])["done"] == 1
    assert broker.ask("GET", "/channel/audit").status == 204
    assert broker.ask("GET", "/queue/fruit").status == 200


def test_many_workers_of_one_channel_get_each_message_once(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    ids = {broker.publish("/in/fruit.apple", str(number)) for number in range(60)}

    def work(worker: int) -> list[str]:
        done: list[str] = []
        with broker.wire() as wire:
            while True:
                answer = wire.ask(request("GET", f"/channel/audit?consumer=w{worker}"))
                if answer.status == 204:
                    return done
                receipt = json.dumps({"receipt": answer.headers["waypost-receipt"]})
                confirmed = wire.ask(request("POST", "/channel/audit/confirm", receipt)).json()
                assert confirmed["results"][0]["state"] == "S"
                done.append(answer.headers["x-message-id"])

    with ThreadPoolExecutor(4) as pool:
        done = [id for part in pool.map(work, range(4)) for id in part]
    assert sorted(done) == sorted(ids)


def test_what_is_fetched_for_a_subscriber_that_left_goes_back(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*")
    broker.ask("PUT", "/slow")
    broker.publish("/in/fruit.apple")
    with broker.wire() as wire:
        wire.send(request("GET", "/queue/slow?wait=30") + request("GET", "/channel/audit"))
        wait_until(lambda: broker.get("/v1/channels/audit")["figures"]["states"]["F"] == 1, "fetched")
    wait_until(lambda: broker.get("/v1/channels/audit")["figures"]["states"]["Q"] == 1, "released")


def test_a_channel_that_is_not_there_is_404_with_a_hint(broker: BrokerInThread) -> None:
    broker.publish("/in/nobody")
    answers: list[Answer] = [
        broker.ask("GET", "/channel/nobody"),
        broker.ask("GET", "/channel/nobody?wait=5&n=3"),
        broker.ask("POST", "/channel/nobody/confirm", '{"receipt":"1-0000000000000000"}'),
        broker.ask("POST", "/channel/nobody/extend", '{"receipt":"1-0000000000000000"}'),
        broker.ask("GET", "/v1/channels/nobody"),
        broker.ask("POST", "/v1/channels/nobody/purge"),
        broker.ask("POST", "/v1/redrive", '{"filter":"channel=nobody"}'),
    ]
    for answer in answers:
        assert (answer.status, answer.code) == (404, "CHANNEL_NOT_FOUND")
        assert "nobody" in answer.json()["hint"]
    assert broker.ask("HEAD", "/channel/nobody").status == 405


def test_a_channel_that_counts_consumers_wants_a_name(broker: BrokerInThread) -> None:
    subscribe(broker, "audit", "fruit.*", complete=2)
    assert broker.ask("GET", "/channel/audit").code == "CONSUMER_REQUIRED"
    broker.publish("/in/fruit.apple")
    assert broker.ask("GET", "/channel/audit").code == "CONSUMER_REQUIRED"
    assert broker.ask("GET", "/channel/audit?consumer=c1").status == 200
    assert broker.ask("GET", "/channel/audit?consumer=c1").status == 204
    assert broker.ask("GET", "/channel/audit?consumer=c2").status == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "CHANNEL_INVALID"),
        ("[]", "CHANNEL_INVALID"),
        ("{}", "CHANNEL_INVALID"),
        ("{", "JSON_INVALID"),
        ('{"topics":[]}', "CHANNEL_INVALID"),
        ('{"topics":"fruit.*"}', "CHANNEL_INVALID"),
        ('{"topics":[1]}', "CHANNEL_INVALID"),
        ('{"topics":["fruit*"]}', "TOPIC_INVALID"),
        ('{"topics":["#"]}', "TOPIC_INVALID"),
        ('{"topics":["fruit.*.x"]}', "TOPIC_INVALID"),
        ('{"topics":["\\ud800"]}', "JSON_INVALID"),
        (json.dumps({"topics": [f"t{number}" for number in range(101)]}), "TOPIC_INVALID"),
        ('{"topics":["fruit"],"form":"now"}', "CHANNEL_INVALID"),
        ('{"topics":["fruit"],"from":"later"}', "INSTANT_INVALID"),
        ('{"topics":["fruit"],"from":-1}', "CHANNEL_INVALID"),
        ('{"topics":["fruit"],"from":1.5}', "CHANNEL_INVALID"),
        ('{"topics":["fruit"],"from":true}', "CHANNEL_INVALID"),
        ('{"topics":["fruit"],"from":[]}', "CHANNEL_INVALID"),
        ('{"topics":["fruit"],"from":2}', "OFFSET_BEYOND_HEAD"),
        ('{"topics":["fruit"],"from":' + "9" * 300 + "}", "OFFSET_BEYOND_HEAD"),
        ('{"topics":["fruit"],"lease":0}', "LEASE_INVALID"),
        ('{"topics":["fruit"],"retries":"x"}', "POLICY_INVALID"),
    ],
)
def test_a_malformed_channel_is_refused_and_not_made(
    memory_broker: BrokerInThread, body: str, code: str
) -> None:
    answer = memory_broker.ask("PUT", "/v1/channels/audit", body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]
    assert memory_broker.get("/v1/channels") == {"channels": []}


def test_a_channels_name_may_be_percent_encoded(broker: BrokerInThread) -> None:
    subscribe(broker, "%61udit", "fruit.*")
    broker.publish("/in/fruit.apple", "x")
    assert broker.ask("GET", "/channel/a%75dit").body == b"x"
    assert broker.ask("GET", "/channel/%41udit").code == "NAME_INVALID"
