"""POST /in/…: what a producer can say, and what becomes of it."""

from __future__ import annotations

import hashlib

import pytest

from tests.http.brokers import BrokerInThread, request


def test_a_topic_makes_its_queue_and_the_answer_names_id_and_state(broker: BrokerInThread) -> None:
    answer = broker.ask("POST", "/in/fruit.apple", "crunchy")
    assert answer.status == 201
    assert answer.json() == {"id": answer.headers["x-message-id"], "state": "Q"}
    assert broker.ask("GET", "/queue/fruit").body == b"crunchy"


def test_object_and_roots_each_get_a_delivery_of_one_message(broker: BrokerInThread) -> None:
    id = broker.publish("/in/customer/audit.log?topics=crm.changed,audit.other")
    assert [found["queue"] for found in broker.found(f"id={id}")] == ["customer", "audit", "crm"]
    document = broker.get(f"/v1/messages/{id}")
    assert (document["topics"], document["object"]) == (
        ["audit.log", "crm.changed", "audit.other"],
        "customer",
    )


def test_everything_said_in_headers_comes_back(broker: BrokerInThread) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    id = broker.publish(
        "/in/customer/customer.changed",
        b"\x1f\x8b raw",
        content_type="application/json; charset=utf-8",
        content_encoding="gzip",
        waypost_key="größe 50%",
        waypost_timestamp="2026-01-31T10:00:00.5+01:00",
        waypost_sent="20260131100001",
        waypost_producer="erp",
        waypost_topics="audit.log",
        waypost_priority="2",
        waypost_meta_color="grün",
        waypost_meta_shape="round",
        traceparent=trace,
    )
    fetched = broker.ask("GET", "/queue/customer")
    assert fetched.body == b"\x1f\x8b raw"
    expected = {
        "x-message-id": id,
        "waypost-attempt": "1",
        "waypost-topics": "customer.changed,audit.log",
        "waypost-object": "customer",
        "waypost-key": "gr%C3%B6%C3%9Fe%2050%25",
        "waypost-meta-color": "gr%C3%BCn",
        "waypost-meta-shape": "round",
        "content-type": "application/json; charset=utf-8",
        "content-encoding": "gzip",
        "traceparent": trace,
    }
    assert {name: fetched.headers[name] for name in expected} == expected
    document = broker.get(f"/v1/messages/{id}")
    assert document["key"] == "größe 50%"
    assert document["timestamp"] == "2026-01-31T09:00:00.500000Z"
    assert document["sent"] == "2026-01-31T10:00:01.000000Z"
    assert document["producer"] == "erp"
    assert document["priority"] == 2
    assert document["meta"] == {"color": "grün", "shape": "round"}
    assert document["hash"] == hashlib.sha256(b"\x1f\x8b raw").hexdigest()


def test_the_query_says_the_same_as_the_headers(broker: BrokerInThread) -> None:
    id = broker.publish(
        "/in/fruit.apple?key=gr%C3%B6%C3%9Fe&timestamp=2026-01-31T09:00:00Z&producer=erp&priority=2&topics=x.y,z"
    )
    document = broker.get(f"/v1/messages/{id}")
    assert document["topics"] == ["fruit.apple", "x.y", "z"]
    assert (document["key"], document["producer"], document["priority"]) == ("größe", "erp", 2)


def test_header_and_query_may_agree_but_not_differ(broker: BrokerInThread) -> None:
    assert broker.ask("POST", "/in/fruit?key=7", "x", waypost_key="7").status == 201
    answer = broker.ask("POST", "/in/fruit?key=7", "x", waypost_key="8")
    assert (answer.status, answer.code) == (400, "SAID_TWICE")


def test_a_message_without_type_is_fetched_as_bytes(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit")
    assert broker.ask("GET", "/queue/fruit").headers["content-type"] == "application/octet-stream"


def test_a_higher_priority_goes_first(broker: BrokerInThread) -> None:
    for priority in ("9", "5", "0"):
        broker.publish(f"/in/fruit?priority={priority}", priority)
    assert [broker.ask("GET", "/queue/fruit").body for _ in range(3)] == [b"0", b"5", b"9"]


def test_a_delayed_message_comes_when_its_delay_is_over(broker: BrokerInThread) -> None:
    broker.publish("/in/fruit?delay=100ms", "later")
    assert broker.ask("GET", "/queue/fruit").status == 204
    assert broker.ask("GET", "/queue/fruit?wait=5").body == b"later"


def test_a_message_that_nobody_fetched_in_time_is_timed_out(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit?ttl=50ms")
    assert [event["toState"] for event in broker.events("/log?follow=1&n=3")] == ["L", "Q", "T"]
    assert broker.ask("GET", "/queue/fruit").status == 204
    assert broker.get(f"/v1/messages/{id}")["state"] == "T"


def test_an_own_id_is_kept_and_taken_once(broker: BrokerInThread) -> None:
    assert broker.publish("/in/fruit", "x", x_message_id="order-17") == "order-17"
    assert broker.publish("/in/fruit", "x", x_message_id="order-17") == "order-17"
    answer = broker.ask("POST", "/in/fruit", "another", x_message_id="order-17")
    assert (answer.status, answer.code) == (409, "ID_TAKEN")
    assert broker.journey("order-17") == "LQ"


def test_a_repeat_with_the_same_idempotency_key_changes_nothing(broker: BrokerInThread) -> None:
    first = broker.ask("POST", "/in/fruit", "x", idempotency_key="k1")
    again = broker.ask("POST", "/in/fruit", "x", idempotency_key="k1")
    assert first.body == again.body
    assert len(broker.events()) == 2
    other = broker.ask("POST", "/in/fruit", "y", idempotency_key="k1")
    assert (other.status, other.code) == (422, "IDEMPOTENCY_CONFLICT")
    assert broker.publish("/in/fruit?producer=p2", "y", idempotency_key="k1") != first.json()["id"]


def test_requests_that_differ_in_their_idempotency_key_alone_are_messages_alike(
    broker: BrokerInThread,
) -> None:
    sent = [
        broker.publish("/in/fruit?ttl=60", "x", idempotency_key=f"k{number % 3}", waypost_meta_a="b")
        for number in range(6)
    ]
    assert sent[:3] == sent[3:]
    assert len(set(sent)) == 3
    for id in sent[:3]:
        message = broker.ask("GET", f"/v1/messages/{id}").json()
        assert (message["meta"], message["topics"], message["state"]) == ({"a": "b"}, ["fruit"], "Q")
    for _ in range(3):
        twice = broker.ask("POST", "/in/fruit?idempotencyKey=q1", "x", idempotency_key="k9")
        assert (twice.status, twice.code) == (400, "SAID_TWICE")
        agreed = broker.ask("POST", "/in/fruit?idempotencyKey=q1", "x", idempotency_key="q1")
        assert agreed.status == 201
        refused = broker.ask("POST", "/in/fruit?dealy=1", "x", idempotency_key="k10")
        assert (refused.status, refused.code) == (400, "UNKNOWN_PARAMETER")
    assert len(broker.events()) == 8


def test_a_full_queue_is_429_and_a_message_of_two_queues_enters_neither(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/small", '{"maxMessages": 1}')
    broker.publish("/in/small")
    answer = broker.ask("POST", "/in/large/small.x", "x")
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "QUEUE_FULL", "10")
    assert broker.ask("GET", "/v1/queues/large").status == 404


def test_a_large_body_comes_back_as_it_was_sent(broker: BrokerInThread) -> None:
    body = bytes(range(256)) * (3 << 12)
    id = broker.publish("/in/fruit", body)
    fetched = broker.ask("GET", "/queue/fruit")
    assert (fetched.headers["x-message-id"], fetched.body == body) == (id, True)
    assert broker.ask("GET", f"/v1/messages/{id}/payload").body == body


def test_a_body_over_the_limit_is_refused_before_it_is_read(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        wire.send(b"POST /in/fruit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777217\r\n\r\n")
        answer = wire.answer()
    assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")


def test_a_body_in_chunks_is_one_message(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        wire.send(b"POST /in/fruit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.send(b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
        assert wire.answer().status == 201
    assert broker.ask("GET", "/queue/fruit").body == b"abcdef"


def test_an_equal_head_sent_again_makes_another_message(broker: BrokerInThread) -> None:
    with broker.wire() as wire:
        ids = [wire.ask(request("POST", "/in/fruit?key=k", "x")).json()["id"] for _ in range(5)]
    assert len(set(ids)) == 5
    assert [event["key"] for event in broker.events() if event["toState"] == "L"] == ["k"] * 5


def test_a_path_may_name_an_object_that_is_a_reserved_word(broker: BrokerInThread) -> None:
    broker.publish("/in/log/in.x", "x")
    assert broker.ask("GET", "/queue/log").body == b"x"


@pytest.mark.parametrize(
    ("target", "headers", "code"),
    [
        ("/in/Fruit", {}, "TOPIC_INVALID"),
        ("/in/fruit.*", {}, "TOPIC_INVALID"),
        ("/in/fruit.%0A", {}, "TOPIC_INVALID"),
        (f"/in/fruit.{'x' * 250}", {}, "TOPIC_INVALID"),
        ("/in/Fruit/apple", {}, "NAME_INVALID"),
        ("/in/fruit?topics=a,,b", {}, "TOPIC_INVALID"),
        ("/in/fruit?topics=" + ",".join(f"t{n}" for n in range(101)), {}, "TOPIC_INVALID"),
        ("/in/fruit?key=", {}, "KEY_INVALID"),
        ("/in/fruit?key=%00", {}, "KEY_INVALID"),
        (f"/in/fruit?key={'x' * 1001}", {}, "KEY_INVALID"),
        ("/in/fruit?priority=10", {}, "NUMBER_INVALID"),
        ("/in/fruit?priority=-1", {}, "NUMBER_INVALID"),
        ("/in/fruit?priority=", {}, "NUMBER_INVALID"),
        ("/in/fruit?delay=soon", {}, "SPAN_INVALID"),
        ("/in/fruit?delay=-1", {}, "SPAN_INVALID"),
        ("/in/fruit?delay=nan", {}, "SPAN_INVALID"),
        (f"/in/fruit?delay={'9' * 400}", {}, "SPAN_INVALID"),
        ("/in/fruit?ttl=1y", {}, "SPAN_INVALID"),
        ("/in/fruit?timestamp=yesterday", {}, "INSTANT_INVALID"),
        ("/in/fruit?timestamp=10:00", {}, "INSTANT_INVALID"),
        ("/in/fruit?sent=0001-01-01T00:00:00%2B14:00", {}, "INSTANT_INVALID"),
        ("/in/fruit?force=perhaps", {}, "FLAG_INVALID"),
        ("/in/fruit?producer=", {}, "PRODUCER_INVALID"),
        ("/in/fruit?dealy=5m", {}, "UNKNOWN_PARAMETER"),
        ("/in/fruit?consumer=c1", {}, "UNKNOWN_PARAMETER"),
        ("/in/fruit", {"x_message_id": "UPPER"}, "ID_INVALID"),
        ("/in/fruit", {"x_message_id": "x" * 51}, "ID_INVALID"),
        ("/in/fruit", {"idempotency_key": "x" * 256}, "IDEMPOTENCY_KEY_INVALID"),
        ("/in/fruit", {"content_type": "téxt"}, "MIME_TYPE_INVALID"),
        ("/in/fruit", {"content_encoding": "x" * 256}, "CONTENT_ENCODING_INVALID"),
        ("/in/fruit", {"waypost_meta_big": "x" * 4100}, "META_INVALID"),
        ("/in/fruit", {"waypost_meta_": "x"}, "META_INVALID"),
    ],
)
def test_bad_words_are_refused_with_their_code_and_nothing_is_stored(
    memory_broker: BrokerInThread, target: str, headers: dict[str, str], code: str
) -> None:
    answer = memory_broker.ask("POST", target, "x", **headers)
    assert (answer.status, answer.code) == (400, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["hint"]
    assert memory_broker.events() == []


@pytest.mark.parametrize("target", ["/in/fruit%2Fapple", "/in/fruit?topics=fruit/apple"])
def test_a_slash_in_a_topic_is_explained(memory_broker: BrokerInThread, target: str) -> None:
    problem = memory_broker.ask("POST", target, "x").json()
    assert (problem["code"], problem["detail"]) == ("TOPIC_INVALID", "not a topic: 'fruit/apple'")
    assert "a '/' separates object and topic, as in POST /in/{object}/{topic}" in problem["hint"]


def test_an_answer_is_sent_only_after_the_store_has_applied(broker: BrokerInThread) -> None:
    """The store stands still in the middle of a group; no answer leaves until it goes on."""
    import threading

    entered, go_on = threading.Event(), threading.Event()
    apply = broker.store.apply

    def slow(commands: object) -> object:
        entered.set()
        assert go_on.wait(10)
        return apply(commands)  # type: ignore[arg-type]

    with broker.wire() as wire:
        broker.store.apply = slow  # type: ignore[method-assign, assignment]
        wire.send(request("POST", "/in/fruit", "x"))
        assert entered.wait(10)
        wire.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            wire.socket.recv(1)
        wire.socket.settimeout(10)
        go_on.set()
        assert wire.answer().status == 201
