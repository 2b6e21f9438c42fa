"""Fetching: one message as it is, or several as JSON, with the wait and with giving back.

    GET /queue/orders?wait=20  ──▶ Fetch ──▶ (parked) ──▶ committed ──▶ 200, body and headers
                                                   '── the client left ──▶ given up, or released

A fetch whose client is gone before its answer was handed to the connection gives its message back at once;
after that the lease decides. Text in answers' headers is printable ASCII: all else, and `%`, is
percent-encoded UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from waypost.broker import Broker, Waiter
from waypost.commands import Fetch, Fetched
from waypost.destinations import Kind
from waypost.errors import QueueNotFound, Refused, RequestInvalid
from waypost.http.given import named, pattern, said, whole
from waypost.http.head import Head
from waypost.http.refusals import refuse
from waypost.http.wire import Request, render
from waypost.instants import SECOND, parse_span
from waypost.names import ANONYMOUS, check_name
from waypost.policy import check_lease
from waypost.wire import fetched_json, header_text

MOST_AT_ONCE = 1_000
LONGEST_WAIT_US = 60 * SECOND

_NOTHING = render(204)
_encode = msgspec.json.Encoder().encode


class Plan(msgspec.Struct, frozen=True):
    command: Fetch
    wait_us: int = 0
    #: answered as JSON, because `n` was given
    many: bool = False
    #: an unknown queue is as good as an empty one
    lenient: bool = False


def plan(kind: Kind, head: Head) -> Plan:
    """Of GET /queue/{name} or /channel/{name}."""
    name = named(head, kind.word)
    query = head.query
    n = query.get("n")
    lease = query.get("lease")
    topic = query.get("topic")
    wait_us = parse_span(query.get("wait", 0), "wait")
    if wait_us > LONGEST_WAIT_US:
        raise RequestInvalid(
            f"wait={query['wait']} is too long", "wait at most 60 seconds, and ask again", "WAIT_INVALID"
        )
    return Plan(
        Fetch(
            queue=name,
            kind=kind,
            consumer=check_name(said(head, "waypost-consumer", "consumer") or ANONYMOUS, "consumer"),
            n=1 if n is None else whole(n, "n", 1, MOST_AT_ONCE),
            lease_us=None if lease is None else check_lease(parse_span(lease, "lease")),
            topic=None if topic is None else pattern(topic),
        ),
        wait_us,
        n is not None,
    )


def fetcher(broker: Broker, read: Callable[[Head], Plan]) -> Callable[[Request], None]:
    """A handler; `read` makes the plan of a head seen for the first time."""

    def handle(request: Request) -> None:
        head = request.head
        planned: Plan | None = head.parsed
        if planned is None:
            try:
                planned = head.parsed = read(head)
            except Refused as refused:
                refuse(request, refused)
                return
        fetching = _Fetching(broker, request, planned)
        request.on_gone(fetching.left)
        fetching.waiter = broker.fetch(planned.command, fetching.done, planned.wait_us)

    return handle


class _Fetching:
    """One fetch on its way."""

    __slots__ = ("_broker", "_fetched", "_gone", "_plan", "_request", "waiter")

    def __init__(self, broker: Broker, request: Request, plan: Plan) -> None:
        self._broker, self._request, self._plan = broker, request, plan
        self._fetched: list[Fetched] | None = None
        self._gone = False
        self.waiter: Waiter | None = None

    def left(self) -> None:
        """The client is gone, and the answer, if there is one, was not written."""
        self._gone = True
        if self.waiter is not None:
            self._broker.give_up(self.waiter)
        if self._fetched:
            self._broker.release(self._fetched)

    def done(self, result: Any) -> None:
        request = self._request
        if isinstance(result, Refused):
            if self._plan.lenient and isinstance(result, QueueNotFound):
                request.send(_NOTHING)
            else:
                refuse(request, result)
        elif not result:
            request.send(_NOTHING)
        elif self._gone:
            self._broker.release(result)
        else:
            self._fetched = result
            request.send(_many(result) if self._plan.many else one_message(result[0]))


def _many(messages: list[Fetched]) -> bytes:
    return render(
        200, _encode({"messages": [fetched_json(message) for message in messages]}), "application/json"
    )


@lru_cache(maxsize=1_024)
def _alike(mime_type: str | None, topics: tuple[str, ...], object: str | None) -> str:
    """The start of a response: what most messages of a queue have in common."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {mime_type or 'application/octet-stream'}\r\n"
    if topics:
        head += f"Waypost-Topics: {header_text(','.join(topics))}\r\n"
    if object is not None:
        head += f"Waypost-Object: {object}\r\n"
    return head


def one_message(message: Fetched) -> bytes:
    """The whole response. Types, encodings, objects and ids were checked when they came in."""
    envelope, body = message.envelope, message.body
    assert isinstance(body, bytes)
    more = "" if envelope.key is None else f"Waypost-Key: {header_text(envelope.key)}\r\n"
    if envelope.encoding is not None:
        more += f"Content-Encoding: {envelope.encoding}\r\n"
    for name, value in envelope.meta:
        more += f"Waypost-Meta-{name}: {header_text(value)}\r\n"
    if envelope.traceparent is not None:
        more += f"traceparent: {envelope.traceparent}\r\n"
    head = (
        f"{_alike(envelope.mime_type, envelope.topics, envelope.object)}X-Message-Id: {message.id}\r\n"
        f"Waypost-Receipt: {message.receipt}\r\nWaypost-Attempt: {message.attempt}\r\n{more}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
