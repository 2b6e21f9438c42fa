"""Forms: messages and answers as the client's callers see them, and as they travel.

This file knows no network.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from ..errors import RequestInvalid
from .transport import Answer, not_ours

#: seconds, text such as "5m", or a timedelta
Span = float | str | timedelta
#: ("queue", its name) or ("channel", its name): how its path begins
Destination = tuple[str, str]
#: bytes as they are; text as UTF-8; anything else as JSON
Body = Any


class Published(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    #: the message's state, one letter: Q, or U when it was unchanged, or L when a router decides later
    state: str
    same_as: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was fetched."""

    id: str
    #: needed to confirm or extend it
    receipt: str
    #: where it was fetched: one of the two
    queue: str | None
    channel: str | None
    attempt: int
    topics: tuple[str, ...]
    object: str | None
    key: str | None
    mime_type: str | None
    #: when the broker took it, RFC 3339
    created: str
    meta: dict[str, str]
    body: bytes

    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class NewMessage(msgspec.Struct, kw_only=True):
    """A message for `publish_many`: what `publish` takes as arguments."""

    body: Body
    topics: Sequence[str] = ()
    object: str | None = None
    #: names the one queue it goes to, whatever its topics
    queue: str | None = None
    key: str | None = None
    mime_type: str | None = None
    timestamp: datetime | str | None = None
    sent: datetime | str | None = None
    delay: Span | None = None
    ttl: Span | None = None
    priority: int | None = None
    id: str | None = None
    idempotency_key: str | None = None
    producer: str | None = None
    force: bool = False
    meta: Mapping[str, str] | None = None


class Settled(msgspec.Struct, frozen=True):
    receipt: str
    id: str | None = None
    #: the delivery's, one letter
    state: str | None = None
    #: the receipt was not the newest any more: nothing was done
    stale: bool = False


class Extended(msgspec.Struct, frozen=True):
    receipt: str
    #: when the lease ends now, RFC 3339
    until: str | None = None
    stale: bool = False


class Acted(msgspec.Struct, frozen=True):
    """What became of deliveries that were named one by one or, after a dry run, would become of them."""

    #: the broker's moment, RFC 3339: whoever saw this saw the deliveries as they were then
    at: str
    #: how many were touched, and in which state they were
    matched: int
    states: dict[str, int]
    #: left alone: by their state; changed since `as_of`; without a body, or such that the consumer could never fetch them
    left: dict[str, int]
    changed: int
    unable: int
    #: there is no such delivery
    unknown: list[dict[str, str]]
    #: for each one named, the offset of its message's L; None: unknown
    sequences: list[int | None]


class Job(msgspec.Struct, frozen=True):
    """Work on many deliveries that the broker accepted; `id` is None after a dry run."""

    id: str | None
    matched: int
    #: after a dry run: how many of them are in which state
    states: dict[str, int] = {}


# ── on the wire ─────────────────────────────────────────────────────────────────────────────────


class PublishedMany(msgspec.Struct):
    results: list[Published]


class SettledMany(msgspec.Struct):
    results: list[Settled]


class ExtendedMany(msgspec.Struct):
    results: list[Extended]


class Accepted(msgspec.Struct):
    matched: int
    job: str | None = None
    states: dict[str, int] = {}


class FetchedOne(msgspec.Struct, rename="camel"):
    id: str
    receipt: str
    attempt: int
    created: str
    topics: tuple[str, ...] = ()
    object: str | None = None
    key: str | None = None
    mime_type: str | None = None
    meta: dict[str, str] = {}
    body: str | None = None
    body_base64: str | None = None


class FetchedMany(msgspec.Struct):
    messages: list[FetchedOne]


T = TypeVar("T")


def decode(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError:
        raise not_ours(answer.status) from None


def document(answer: Answer) -> dict[str, Any]:
    return decode(answer, dict[str, Any])


def documents(answer: Answer, name: str) -> list[dict[str, Any]]:
    found = document(answer).get(name)
    if not isinstance(found, list):
        raise not_ours(answer.status)
    return found


def json_body(asked: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in asked.items() if value is not None}
    return {"headers": {"Content-Type": "application/json"}, "body": msgspec.json.encode(given)}


def destination(queue: str | None, channel: str | None) -> Destination:
    if queue is not None and channel is None:
        return "queue", queue
    if channel is not None and queue is None:
        return "channel", channel
    raise RequestInvalid("a queue or a channel, one of them", 'fetch("orders"), fetch(channel="crm")')


def message_of(source: Destination, fetched: FetchedOne) -> Message:
    kind, name = source
    if fetched.body_base64 is not None:
        body = base64.b64decode(fetched.body_base64)
    else:
        body = (fetched.body or "").encode()
    return Message(
        id=fetched.id,
        receipt=fetched.receipt,
        queue=name if kind == "queue" else None,
        channel=name if kind == "channel" else None,
        attempt=fetched.attempt,
        topics=fetched.topics,
        object=fetched.object,
        key=fetched.key,
        mime_type=fetched.mime_type,
        created=fetched.created,
        meta=fetched.meta,
        body=body,
    )


def encode_body(body: Body) -> tuple[bytes, str]:
    """The bytes that are sent, and what type they have unless the producer says otherwise."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    try:
        return msgspec.json.encode(body), "application/json"
    except TypeError as error:
        raise RequestInvalid(
            f"a body is bytes, text, or what JSON can say: {error}", code="BODY_INVALID"
        ) from None


def line_of(message: NewMessage) -> dict[str, Any]:
    """A message as a line of newline JSON."""
    payload, guessed = encode_body(message.body)
    line: dict[str, Any] = {
        "topics": list(message.topics) or None,
        "object": message.object,
        "queue": message.queue,
        "key": message.key,
        "mimeType": message.mime_type or guessed,
        "timestamp": instant(message.timestamp),
        "sent": instant(message.sent),
        "delay": span(message.delay),
        "ttl": span(message.ttl),
        "priority": message.priority,
        "id": message.id,
        "idempotencyKey": message.idempotency_key,
        "producer": message.producer,
        "force": message.force or None,
        "meta": None if message.meta is None else dict(message.meta),
    }
    try:
        line["body"] = payload.decode()
    except UnicodeDecodeError:
        line["bodyBase64"] = base64.b64encode(payload).decode()
    return {name: value for name, value in line.items() if value is not None}


def new_key() -> str:
    return uuid.uuid4().hex


def number(seconds: float | None) -> int | float | None:
    """Whole seconds without a point."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds


def span(span: Span | None) -> int | float | str | None:
    if isinstance(span, timedelta):
        return number(span.total_seconds())
    return span if isinstance(span, str) else number(span)


def instant(moment: datetime | str | None) -> str | None:
    """A datetime without a zone is in this machine's."""
    if isinstance(moment, datetime):
        return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return moment
