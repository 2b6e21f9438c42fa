"""Publishing one message by its request: what the head says of it, and the answer.

    POST /in/orders.created?key=17       head, read once for all equal requests ──▶ Plan (one shared Envelope)
    Content-Type: application/json       body ──▶ Publish ──▶ committed ──▶ 201, X-Message-Id

Headers are taken as they stand, in UTF-8; in the query text is percent-encoded as everywhere. Nothing on
this way makes a task, a future, or JSON by a library. An answer is sent by the callback of the commit and
by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Publish, Published
from waypost.errors import DiskLow, IdempotencyConflict, IdTaken, QueueFull, Refused, RequestInvalid
from waypost.http.given import check_query, flag, said, whole
from waypost.http.head import Head
from waypost.http.refusals import failure, refuse
from waypost.http.routes import Parameter
from waypost.http.schemas import ID, INSTANT, KEY, PRINTABLE, PRIORITY, PRODUCER, SPAN, TOPIC
from waypost.http.wire import Request
from waypost.instants import parse_span
from waypost.message import Envelope
from waypost.names import check_name, check_own_id, root_of
from waypost.wire import (
    check_encoding,
    check_idempotency_key,
    check_key,
    check_meta,
    check_mime_type,
    check_moment,
    check_producer,
    check_topics,
    published_json,
    traceparent_of,
)

META = "waypost-meta-"

#: of every request that publishes one message
PARAMETERS = (
    Parameter("key", "query", "names one business thing, with the object; or Waypost-Key", KEY),
    Parameter("timestamp", "query", "when the data arose; or Waypost-Timestamp", INSTANT),
    Parameter("sent", "query", "when the producer began to send; or Waypost-Sent", INSTANT),
    Parameter("delay", "query", "not to be fetched before this has passed; or Waypost-Delay", SPAN),
    Parameter("ttl", "query", "not to be fetched after this has passed; or Waypost-Ttl", SPAN),
    Parameter("priority", "query", "0 first, 9 last; or Waypost-Priority", PRIORITY),
    Parameter("producer", "query", "who sends it; or Waypost-Producer", PRODUCER),
    Parameter("force", "query", "skip unchanged detection; or Waypost-Force", {"type": "boolean"}),
    Parameter(
        "idempotencyKey", "query", "or Idempotency-Key: a repeat within 24 h changes nothing", PRINTABLE
    ),
    Parameter("X-Message-Id", "header", "the producer's own id", ID),
)
TOPICS = Parameter("topics", "query", "further topics, separated by commas; or Waypost-Topics", TOPIC)

FAILURES = (
    failure(IdTaken),
    failure(IdempotencyConflict),
    failure(QueueFull),
    failure(DiskLow),
)


class Plan(msgspec.Struct, frozen=True):
    """What a head says: everything of a Publish but its body."""

    envelope: Envelope
    #: what differs from Publish's defaults
    more: dict[str, Any]


def plan(head: Head) -> Plan:
    """For a path with `topic`, `object` and `topic`, or `queue`."""
    check_query(head)
    headers, params = head.headers, head.params
    more: dict[str, Any] = {}
    topics: tuple[str, ...] = ()
    if "topic" in params:
        further = said(head, "waypost-topics", "topics")
        topics = _topics([params["topic"], *(map(str.strip, further.split(",")) if further else ())])
    else:
        more["queue"], more["create"] = params["queue"], False
    if (id := headers.get("x-message-id")) is not None:
        more["id"] = check_own_id(id)
    if (key := said(head, "idempotency-key", "idempotencyKey")) is not None:
        more["idempotency_key"] = check_idempotency_key(key)
    if (delay := said(head, "waypost-delay", "delay")) is not None:
        more["delay_us"] = parse_span(delay, "delay")
    if (ttl := said(head, "waypost-ttl", "ttl")) is not None:
        more["ttl_us"] = parse_span(ttl, "ttl")
    if (priority := said(head, "waypost-priority", "priority")) is not None:
        more["priority"] = whole(priority, "priority", 0, 9)
    if flag(said(head, "waypost-force", "force"), "force"):
        more["force"] = True
    return Plan(_envelope(head, topics), more)


def _plan(head: Head, check: Callable[[Head], None] | None) -> Plan:
    """Of a head seen for the first time; heads that differ in their key alone share the rest of it."""
    alike = head.alike
    if alike is not None:
        shared: Plan = alike.parsed or _plan(alike, check)
        alike.parsed = shared
        if "idempotency_key" not in shared.more:
            key = check_idempotency_key(head.headers["idempotency-key"])
            return Plan(shared.envelope, {**shared.more, "idempotency_key": key})
    if check is not None:
        check(head)
    return plan(head)


def _topics(given: list[str]) -> tuple[str, ...]:
    try:
        return check_topics(given)
    except RequestInvalid as refused:
        if any("/" in root_of(topic) for topic in given):
            refused.hint += "; a '/' separates object and topic, as in POST /in/{object}/{topic}"
        raise


def _envelope(head: Head, topics: tuple[str, ...]) -> Envelope:
    headers = head.headers
    object = head.params.get("object")
    key = said(head, "waypost-key", "key")
    mime_type = headers.get("content-type")
    timestamp = said(head, "waypost-timestamp", "timestamp")
    sent = said(head, "waypost-sent", "sent")
    producer = said(head, "waypost-producer", "producer")
    encoding = headers.get("content-encoding")
    return Envelope(
        topics=topics,
        object=None if object is None else check_name(object, "object"),
        key=None if key is None else check_key(key),
        mime_type=None if mime_type is None else check_mime_type(mime_type),
        timestamp=None if timestamp is None else check_moment(timestamp, "timestamp"),
        sent=None if sent is None else check_moment(sent, "sent"),
        producer=None if producer is None else check_producer(producer),
        encoding=None if encoding is None else check_encoding(encoding),
        meta=check_meta(
            (name.removeprefix(META), value) for name, value in headers.items() if name.startswith(META)
        ),
        traceparent=traceparent_of(headers.get("traceparent")),
    )


def publisher(
    broker: Broker, answer: Callable[[Request, Any], None], check: Callable[[Head], None] | None = None
) -> Callable[[Request], None]:
    """A handler; `check` looks at a head before it is planned."""
    publish = broker.publish

    def handle(request: Request) -> None:
        head = request.head
        planned: Plan | None = head.parsed
        if planned is None:
            try:
                planned = head.parsed = _plan(head, check)
            except Refused as refused:
                refuse(request, refused)
                return
        publish(
            Publish(envelope=planned.envelope, body=request.body, **planned.more)
            if planned.more
            else Publish(envelope=planned.envelope, body=request.body),
            partial(answer, request),
        )

    return handle


def answer_with_state(request: Request, result: Any) -> None:
    """201 with id and state."""
    if isinstance(result, Published):
        text = published_json(result)
        request.send(
            f"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nX-Message-Id: {result.id}\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
    else:
        refuse(request, result)


def answer_bare(request: Request, result: Any) -> None:
    """201 as MQ-Core has it: the id in the header, and nothing else."""
    if isinstance(result, Published):
        request.send(
            b"HTTP/1.1 201 Created\r\nX-Message-Id: %b\r\nContent-Length: 0\r\n\r\n" % result.id.encode()
        )
    else:
        refuse(request, result)
