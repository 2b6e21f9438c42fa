"""MQ-Core's six endpoints, as an unmodified client of the original uses them."""

from __future__ import annotations

import pytest

from tests.http.brokers import BrokerInThread, request
from waypost.errors import Busy, DiskLow, Refused
from waypost.names import RESERVED


def test_a_queue_is_made_found_and_deleted(broker: BrokerInThread) -> None:
    assert broker.ask("GET", "/bills").status == 404
    assert broker.ask("PUT", "/bills", "this body is ignored").status == 201
    assert broker.ask("PUT", "/bills").status == 201
    assert broker.ask("GET", "/bills").status == 200
    assert broker.ask("DELETE", "/bills").status == 200
    assert broker.ask("GET", "/bills").status == 404
    assert broker.ask("DELETE", "/bills").status == 200


def test_a_message_goes_in_and_comes_out_byte_for_byte(broker: BrokerInThread) -> None:
    body = bytes(range(256)) * 3
    broker.ask("PUT", "/bills")
    posted = broker.ask("POST", "/bills/messages", body)
    assert (posted.status, posted.body) == (201, b"")
    fetched = broker.ask("GET", "/bills/messages")
    assert (fetched.status, fetched.body) == (200, body)
    assert fetched.headers["x-message-id"] == posted.headers["x-message-id"]
    assert broker.ask("GET", "/bills/messages").status == 204


def test_messages_come_in_the_order_they_were_sent(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/bills")
    for number in range(5):
        broker.publish("/bills/messages", b"%d" % number)
    assert [broker.ask("GET", "/bills/messages").body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_publish_to_a_queue_that_does_not_exist_is_refused_and_makes_none(broker: BrokerInThread) -> None:
    answer = broker.ask("POST", "/bills/messages", "x")
    assert (answer.status, answer.body) == (404, b"")
    assert broker.ask("GET", "/bills").status == 404


def test_a_fetch_from_a_queue_that_does_not_exist_finds_nothing(broker: BrokerInThread) -> None:
    assert broker.ask("GET", "/bills/messages").status == 204


def test_a_fetched_message_that_is_deleted_is_done_and_a_waiting_one_is_cancelled(
    broker: BrokerInThread,
) -> None:
    broker.ask("PUT", "/bills")
    fetched, waiting = broker.publish("/bills/messages"), broker.publish("/bills/messages")
    broker.ask("GET", "/bills/messages")
    for id in (fetched, waiting, fetched, "never-seen", "NOT AN ID".replace(" ", "%20")):
        answer = broker.ask("DELETE", f"/bills/messages/{id}")
        assert (answer.status, answer.body) == (202, b"")
    assert broker.ask("DELETE", f"/unknown/messages/{fetched}").status == 202
    assert broker.journey(fetched) == "LQFSX"
    assert broker.journey(waiting) == "LQC"


def test_an_unconfirmed_message_is_delivered_again(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/bills", '{"lease": "50ms"}')
    id = broker.publish("/bills/messages")
    assert broker.ask("GET", "/bills/messages").headers["x-message-id"] == id
    again = broker.ask("GET", "/queue/bills?wait=5")
    assert (again.headers["x-message-id"], again.headers["waypost-attempt"]) == (id, "2")


def test_deleting_a_queue_cancels_what_waited_in_it(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/bills")
    id = broker.publish("/bills/messages")
    broker.ask("DELETE", "/bills")
    events = broker.events("/log?follow=1&n=3")
    assert [event["toState"] for event in events] == ["L", "Q", "C"]
    assert broker.get(f"/v1/messages/{id}")["state"] == "C"
    broker.ask("PUT", "/bills")
    assert broker.ask("GET", "/bills/messages").status == 204


@pytest.mark.parametrize("method", ["HEAD", "PATCH", "PUT"])
def test_a_verb_that_would_lease_by_accident_is_not_served(broker: BrokerInThread, method: str) -> None:
    broker.ask("PUT", "/bills")
    id = broker.publish("/bills/messages")
    answer = broker.ask(method, "/bills/messages")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, OPTIONS, POST"
    assert broker.journey(id) == "LQ"


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_a_reserved_word_is_no_queue_of_a_short_path(memory_broker: BrokerInThread, word: str) -> None:
    assert memory_broker.ask("PUT", f"/{word}").status in (400, 404, 405)
    assert all(queue["name"] != word for queue in memory_broker.get("/v1/queues")["queues"])


@pytest.mark.parametrize("name", ["Bills", "-bills", "b%20c", "b%2Fc", "%C3%A4", "a" * 201])
def test_a_bad_name_is_refused_with_a_bare_400(memory_broker: BrokerInThread, name: str) -> None:
    for method, target in [("PUT", f"/{name}"), ("POST", f"/{name}/messages"), ("GET", f"/{name}/messages")]:
        answer = memory_broker.ask(method, target)
        assert (answer.status, answer.body) == (400, b"")


def test_a_full_queue_answers_503_with_retry_after(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/bills", '{"maxMessages": 1}')
    broker.publish("/bills/messages")
    answer = broker.ask("POST", "/bills/messages", "one too many")
    assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "10", b"")


@pytest.mark.parametrize("refusal", [DiskLow("almost full"), Busy("too much at once")])
def test_what_cannot_be_stored_is_503_with_retry_after(
    broker: BrokerInThread, refusal: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.ask("PUT", "/bills")
    waiting = broker.publish("/bills/messages")
    monkeypatch.setattr(broker.store, "refusal", lambda: refusal)
    answer = broker.ask("POST", "/bills/messages", "x")
    assert (answer.status, answer.headers["retry-after"], answer.body) == (503, "10", b"")
    assert broker.ask("POST", "/in/bills", "x").status == refusal.status
    assert broker.ask("GET", "/bills/messages").headers["x-message-id"] == waiting


def test_requests_sent_at_once_are_answered_in_order(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        wire.send(
            request("PUT", "/bills")
            + request("POST", "/bills/messages", "one")
            + request("GET", "/bills/messages")
            + request("GET", "/nobody")
            + request("DELETE", "/bills")
        )
        assert [wire.answer().status for _ in range(5)] == [201, 201, 200, 404, 200]
