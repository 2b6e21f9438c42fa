"""GET /queue/{name}, confirm and extend: leases, receipts, long polls, and clients that leave."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.brokers import BrokerInThread, parked, request
from tests.http.harness import wait_until


def fetch(broker: BrokerInThread, target: str = "/queue/fruit") -> str:
    """The receipt of a fetch."""
    answer = broker.ask("GET", target)
    assert answer.status == 200, answer
    return answer.headers["waypost-receipt"]


def state(broker: BrokerInThread, receipt: str, **more: object) -> str:
    answer = broker.confirm("fruit", receipt, **more)
    assert answer.status == 200, answer
    (result,) = answer.json()["results"]
    return "stale" if result.get("stale") else str(result["state"])


def test_a_confirmed_message_is_completed(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    receipt = fetch(broker)
    answer = broker.confirm("fruit", receipt)
    assert answer.json() == {"results": [{"receipt": receipt, "id": id, "state": "S"}]}
    assert broker.journey(id) == "LQFSX"


@pytest.mark.parametrize(
    ("outcome", "consumer", "letter", "journey"),
    [
        ("success", "anonymous", "S", "LQFSX"),
        ("invalid", "anonymous", "I", "LQFI"),
        ("retry", "anonymous", "R", "LQFR"),
        ("not-interested", "anonymous", "R", "LQFR"),
        ("not-interested", "c1", "Q", "LQFNQ"),
    ],
)
def test_each_outcome_has_its_state(
    broker: BrokerInThread, outcome: str, consumer: str, letter: str, journey: str
) -> None:
    id = broker.publish("/in/fruit")
    receipt = fetch(broker, f"/queue/fruit?consumer={consumer}")
    assert state(broker, receipt, outcome=outcome, reason="because") == letter
    assert broker.journey(id) == journey


def test_a_reason_stands_in_the_journey(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    state(broker, fetch(broker), outcome="invalid", reason="no such fruit 🍎")
    assert broker.get(f"/v1/messages/{id}")["journey"][-1]["reason"] == "no such fruit 🍎"
    assert broker.found("state=I")[0]["reason"] == "no such fruit 🍎"


def test_a_retry_with_a_delay_comes_back_after_it(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    assert state(broker, fetch(broker), outcome="retry", delay="50ms") == "R"
    assert broker.ask("GET", "/queue/fruit?wait=5").headers["waypost-attempt"] == "2"


def test_a_message_is_given_up_after_its_retries(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"retries": 1}')
    id = broker.publish("/in/fruit")
    assert state(broker, fetch(broker), outcome="retry", delay=0) == "R"
    assert state(broker, fetch(broker), outcome="retry", delay=0, reason="broken") == "E"
    assert broker.journey(id) == "LQFRFE"
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["failed"] is not None, document["archived"]) == ("E", True, True)


def test_a_receipt_is_stale_after_a_later_fetch_and_never_applied(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"lease": "50ms"}')
    id = broker.publish("/in/fruit")
    first = fetch(broker)
    second = fetch(broker, "/queue/fruit?wait=5&lease=10")
    assert state(broker, first) == "stale"
    assert state(broker, second) == "S"
    assert broker.journey(id) == "LQFRFSX"


def test_repeating_the_confirm_that_settled_it_gives_the_same_result(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    receipt = fetch(broker)
    assert [state(broker, receipt), state(broker, receipt)] == ["S", "S"]
    assert state(broker, receipt, outcome="invalid") == "stale"


def test_many_receipts_each_have_their_result_in_order(broker: BrokerInThread) -> None:
    for number in range(3):
        broker.publish("/in/fruit", str(number))
    receipts = [m["receipt"] for m in broker.get("/queue/fruit?n=10")["messages"]]
    strange = 'no "receipt"\n'
    asked = json.dumps({"receipts": [receipts[0], strange, *receipts[1:]]})
    results = broker.ask("POST", "/queue/fruit/confirm", asked).json()["results"]
    assert [result.get("state", "stale") for result in results] == ["S", "stale", "S", "S"]
    assert results[1] == {"receipt": strange, "stale": True}


def test_one_receipt_may_stand_by_itself(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    answer = broker.ask("POST", "/queue/fruit/confirm", json.dumps({"receipt": fetch(broker)}))
    assert answer.json()["results"][0]["state"] == "S"


def test_a_receipt_of_one_queue_confirms_nothing_in_another(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    broker.publish("/in/meat")
    answer = broker.confirm("meat", fetch(broker))
    assert answer.json()["results"][0]["stale"] is True


def test_an_extended_lease_keeps_the_message(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    receipt = fetch(broker, "/queue/fruit?lease=300ms")
    extended = broker.ask("POST", "/queue/fruit/extend", json.dumps({"receipts": [receipt], "lease": 30}))
    (result,) = extended.json()["results"]
    assert (result["receipt"], result["until"][-1]) == (receipt, "Z")
    assert broker.ask("GET", "/queue/fruit?wait=0.5").status == 204
    assert state(broker, receipt) == "S"


def test_an_unknown_receipt_is_not_extended(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    answer = broker.ask("POST", "/queue/fruit/extend", '{"receipts":["1-0000000000000000"]}')
    assert answer.json()["results"] == [{"receipt": "1-0000000000000000", "stale": True}]


def test_several_messages_come_as_json(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit.apple?key=k1", "grün", content_type="text/plain", waypost_meta_a="1")
    broker.publish("/in/fruit", b"\xff\x00")
    first, second = broker.get("/queue/fruit?n=10")["messages"]
    assert first["body"] == "grün"
    assert (first["topics"], first["object"], first["key"]) == (["fruit.apple"], "fruit", "k1")
    assert (first["mimeType"], first["meta"], first["attempt"]) == ("text/plain", {"a": "1"}, 1)
    assert second["bodyBase64"] == "/wA="
    assert "body" not in second
    assert broker.ask("GET", "/queue/fruit?n=10").status == 204


def test_a_fetch_may_ask_for_some_topics_only(broker: BrokerInThread) -> None:
    for topic in ("fruit.sweet.apple", "fruit.sour.lemon", "fruit.sweet.pear"):
        broker.publish(f"/in/{topic}", topic)
    assert broker.ask("GET", "/queue/fruit?topic=fruit.sour.*").body == b"fruit.sour.lemon"
    messages = broker.get("/queue/fruit?topic=fruit.sweet.*&n=9")["messages"]
    assert [message["body"] for message in messages] == ["fruit.sweet.apple", "fruit.sweet.pear"]


def test_a_queue_that_counts_consumers_wants_a_name(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"complete": 2}')
    id = broker.publish("/in/fruit")
    answer = broker.ask("GET", "/queue/fruit")
    assert (answer.status, answer.code) == (400, "CONSUMER_REQUIRED")
    one = broker.ask("GET", "/queue/fruit", waypost_consumer="c1").headers["waypost-receipt"]
    assert broker.ask("GET", "/queue/fruit", waypost_consumer="c1").status == 204
    two = fetch(broker, "/queue/fruit?consumer=c2")
    assert state(broker, one) == "S"
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["confirmedCount"], len(document["missing"])) == ("F", 1, 1)
    assert state(broker, two) == "S"
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["missing"]) == ("X", [])
    assert [entry["consumerId"] for entry in document["consumed"]] == ["c1", "c2"]


def test_an_unknown_queue_is_404_with_a_hint(broker: BrokerInThread) -> None:
    for answer in (
        broker.ask("GET", "/queue/nobody"),
        broker.ask("GET", "/queue/nobody?wait=5&n=3"),
        broker.confirm("nobody", "1-0000000000000000"),
        broker.ask("POST", "/queue/nobody/extend", '{"receipt":"1-0000000000000000"}'),
    ):
        assert (answer.status, answer.code) == (404, "QUEUE_NOT_FOUND")
        assert "nobody" in answer.json()["hint"]


def test_a_waiting_fetch_is_answered_as_soon_as_a_message_comes(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/fruit")
    with broker.wire() as wire:
        wire.send(request("GET", "/queue/fruit?wait=30"))
        parked(broker, "fruit", 1)
        id = broker.publish("/in/fruit", "at last")
        answer = wire.answer()
    assert (answer.body, answer.headers["x-message-id"]) == (b"at last", id)


def test_waiting_fetches_are_served_in_the_order_they_came(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/fruit")
    with broker.wire() as first, broker.wire() as second:
        first.send(request("GET", "/queue/fruit?wait=30"))
        parked(broker, "fruit", 1)
        second.send(request("GET", "/queue/fruit?wait=30"))
        parked(broker, "fruit", 2)
        broker.publish("/in/fruit", "1")
        assert first.answer().body == b"1"
        broker.publish("/in/fruit", "2")
        assert second.answer().body == b"2"


def test_a_wait_that_nothing_ends_is_204(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/fruit")
    assert broker.ask("GET", "/queue/fruit?wait=0.05").status == 204
    parked(broker, "fruit", 0)


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
def test_a_waiting_client_that_leaves_is_forgotten(broker: BrokerInThread, way: str) -> None:
    broker.ask("PUT", "/fruit")
    with broker.wire() as wire:
        wire.send(request("GET", "/queue/fruit?wait=30"))
        parked(broker, "fruit", 1)
        getattr(wire, way)()
        parked(broker, "fruit", 0)
    id = broker.publish("/in/fruit")
    assert broker.journey(id) == "LQ"


def test_what_was_fetched_for_a_client_that_left_goes_back_at_once(broker: BrokerInThread) -> None:
    """Its answer waits behind that of an earlier request on the same connection when the client goes."""
    broker.ask("PUT", "/slow")
    id = broker.publish("/in/fruit")
    with broker.wire() as wire:
        wire.send(request("GET", "/queue/slow?wait=30") + request("GET", "/queue/fruit"))
        wait_until(lambda: broker.journey(id) == "LQF", "fetched")
    wait_until(lambda: broker.journey(id) == "LQFQ", "released")
    again = broker.ask("GET", "/queue/fruit")
    assert (again.headers["x-message-id"], again.headers["waypost-attempt"]) == (id, "2")
    events = broker.get(f"/v1/messages/{id}")["journey"]
    assert events[3]["reason"] == "released"


def test_a_connection_that_closes_after_its_answer_changes_nothing(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit")
    receipt = fetch(broker)
    assert broker.journey(id) == "LQF"
    assert state(broker, receipt) == "S"


def test_kicked_messages_are_handed_out_once(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"kick": true}')
    id = broker.publish("/in/fruit")
    receipt = fetch(broker)
    assert broker.journey(id) == "LQFKX"
    assert state(broker, receipt) == "stale"


def test_two_hundred_messages_reach_eight_workers_once_each(broker: BrokerInThread) -> None:
    ids = {broker.publish("/in/fruit", str(number)) for number in range(200)}

    def work(worker: int) -> list[str]:
        done: list[str] = []
        with broker.wire() as wire:
            while True:
                answer = wire.ask(request("GET", f"/queue/fruit?consumer=w{worker}"))
                if answer.status == 204:
                    return done
                receipt = json.dumps({"receipt": answer.headers["waypost-receipt"]})
                confirmed = wire.ask(request("POST", "/queue/fruit/confirm", receipt)).json()
                assert confirmed["results"][0]["state"] == "S"
                done.append(answer.headers["x-message-id"])

    with ThreadPoolExecutor(8) as pool:
        done = [id for part in pool.map(work, range(8)) for id in part]
    assert sorted(done) == sorted(ids)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/queue/fruit?n=0", "NUMBER_INVALID"),
        ("/queue/fruit?n=1001", "NUMBER_INVALID"),
        ("/queue/fruit?n=ten", "NUMBER_INVALID"),
        ("/queue/fruit?n=%D9%A3", "NUMBER_INVALID"),
        ("/queue/fruit?wait=61", "WAIT_INVALID"),
        ("/queue/fruit?wait=-1", "SPAN_INVALID"),
        ("/queue/fruit?wait=for%20me", "SPAN_INVALID"),
        ("/queue/fruit?lease=0", "LEASE_INVALID"),
        ("/queue/fruit?lease=13h", "LEASE_INVALID"),
        ("/queue/fruit?topic=", "TOPIC_INVALID"),
        ("/queue/fruit?topic=a*b*", "TOPIC_INVALID"),
        ("/queue/fruit?consumer=C1", "NAME_INVALID"),
        ("/queue/fruit?number=3", "UNKNOWN_PARAMETER"),
        ("/queue/Fruit", "NAME_INVALID"),
    ],
)
def test_a_malformed_fetch_is_refused_and_leases_nothing(
    memory_broker: BrokerInThread, target: str, code: str
) -> None:
    id = memory_broker.publish("/in/fruit")
    answer = memory_broker.ask("GET", target)
    assert (answer.status, answer.code) == (400, code)
    assert memory_broker.journey(id) == "LQ"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "JSON_INVALID"),
        ("receipts=1", "JSON_INVALID"),
        ("[]", "JSON_INVALID"),
        (b'{"receipt":"\xff"}', "JSON_INVALID"),
        ('{"receipt":1}', "JSON_INVALID"),
        ('{"receipts":"1"}', "JSON_INVALID"),
        ('{"receipts":["1"],"outcome":"done"}', "JSON_INVALID"),
        ('{"receipts":["1"],"outcom":"retry"}', "JSON_INVALID"),
        ('{"receipts":' + "[" * 100_000, "JSON_INVALID"),
        ('{"receipts":["1"],"delay":1e999}', "JSON_INVALID"),
        ("{}", "REQUEST_INVALID"),
        ('{"receipts":[]}', "REQUEST_INVALID"),
        ('{"receipts":["1"],"receipt":"1"}', "REQUEST_INVALID"),
        ('{"receipts":["1"],"outcome":"success","delay":1}', "REQUEST_INVALID"),
        ('{"receipts":["1"],"outcome":"retry","delay":-1}', "SPAN_INVALID"),
        ('{"receipts":["1"],"outcome":"retry","delay":' + "9" * 400 + "}", "SPAN_INVALID"),
        ('{"receipts":["1"],"reason":"' + "x" * 9_000 + '"}', "REQUEST_INVALID"),
    ],
)
def test_a_malformed_confirm_is_refused(memory_broker: BrokerInThread, body: bytes | str, code: str) -> None:
    memory_broker.publish("/in/fruit")
    answer = memory_broker.ask("POST", "/queue/fruit/confirm", body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]


def test_a_stopping_broker_answers_those_who_wait(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/fruit")
    with broker.wire() as wire:
        wire.send(request("GET", "/queue/fruit?wait=60"))
        parked(broker, "fruit", 1)
        broker.call(lambda: broker.loop.create_task(broker.server.drain(5)))
        assert wire.answer().status == 204
