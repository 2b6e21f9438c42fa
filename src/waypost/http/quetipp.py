"""QueTipp's paths: messages in by topic, out of a queue or channel by fetch, confirm and extend.

POST /in/{topic}      GET /queue/{name}      POST /queue/{name}/confirm      POST /queue/{name}/extend
POST /in/{object}/{topic}   /channel/{name}       /channel/{name}/confirm         /channel/{name}/extend
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Confirm, Extend
from waypost.delivery import Outcome
from waypost.destinations import Kind
from waypost.errors import Busy, ChannelNotFound, ConsumerRequired, QueueNotFound, Refused, RequestInvalid
from waypost.http import fetching
from waypost.http.answering import WRONG
from waypost.http.given import named, said
from waypost.http.publishing import FAILURES, PARAMETERS, TOPICS, answer_with_state, publisher
from waypost.http.refusals import failure, guarded, refuse
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, LEASE, NAME, TOPIC, ref
from waypost.http.wire import Request
from waypost.instants import parse_span
from waypost.names import check_name
from waypost.policy import check_lease
from waypost.store import Feature
from waypost.wire import extended_text, read_json, settled_text

MOST_RECEIPTS = 10_000
LONGEST_REASON_BYTES = 8_192

_TOPIC = Parameter("topic", "path", "a dotted name; its root names a queue", TOPIC)
_CONSUMER = Parameter("consumer", "query", "who fetches or confirms; or Waypost-Consumer", NAME)
_ANY_BODY = Content("the message, any bytes; Content-Type is kept as its mimeType", {"*/*": {}})


class _Receipts(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    receipts: list[str] | None = None
    receipt: str | None = None

    def all(self) -> list[str]:
        if (self.receipts is None) == (self.receipt is None):
            raise RequestInvalid("receipts, or one receipt", '{"receipts":["…"]}')
        receipts = [self.receipt] if self.receipt is not None else self.receipts or []
        if not 1 <= len(receipts) <= MOST_RECEIPTS:
            raise RequestInvalid(f"{len(receipts)} receipts", f"send 1 to {MOST_RECEIPTS} of them")
        return receipts


class _Confirm(_Receipts, forbid_unknown_fields=True, gc=False, kw_only=True):
    outcome: Outcome = Outcome.SUCCESS
    reason: str | None = None
    delay: int | float | str | None = None


class _Extend(_Receipts, forbid_unknown_fields=True, gc=False, kw_only=True):
    lease: int | float | str | None = None


_confirm = msgspec.json.Decoder(_Confirm)
_extend = msgspec.json.Decoder(_Extend)
_CONFIRM_HINT = '{"receipts":["…"],"outcome":"success|invalid|not-interested|retry","reason":"…","delay":5}'
_EXTEND_HINT = '{"receipts":["…"],"lease":30}'


def confirm_command(kind: Kind, name: str, body: bytes) -> Confirm:
    given: _Confirm = read_json(_confirm, body, _CONFIRM_HINT)
    if given.reason is not None and len(given.reason.encode()) > LONGEST_REASON_BYTES:
        raise RequestInvalid("the reason is too long", f"at most {LONGEST_REASON_BYTES} bytes")
    if given.delay is not None and given.outcome is not Outcome.RETRY:
        raise RequestInvalid(f"a delay with outcome {given.outcome.value}", "only a retry can be delayed")
    return Confirm(
        queue=name,
        kind=kind,
        receipts=given.all(),
        outcome=given.outcome,
        reason=given.reason,
        delay_us=None if given.delay is None else parse_span(given.delay, "delay"),
    )


def extend_command(kind: Kind, name: str, body: bytes) -> Extend:
    given: _Extend = read_json(_extend, body, _EXTEND_HINT)
    lease_us = None if given.lease is None else check_lease(parse_span(given.lease, "lease"))
    return Extend(queue=name, kind=kind, receipts=given.all(), lease_us=lease_us)


def _name_of(kind: Kind, request: Request) -> str:
    head = request.head
    name: str | None = head.parsed
    if name is None:
        name = named(head, kind.word)
        consumer = said(head, "waypost-consumer", "consumer")
        if consumer is not None:
            # The receipt knows who fetched; a name that could not have is a mistake all the same.
            check_name(consumer, "consumer")
        head.parsed = name
    return name


def _answer_results(form: Any, request: Request, results: Any) -> None:
    if isinstance(results, Refused):
        refuse(request, results)
        return
    text = ",".join(map(form, results)).encode()
    request.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        b'{"results":[%b]}' % (len(text) + 14, text)
    )


def rows(broker: Broker) -> list[Route]:
    return [*_in_rows(broker), *_out_rows(broker, Kind.QUEUE), *_out_rows(broker, Kind.CHANNEL)]


def _in_rows(broker: Broker) -> list[Route]:
    publish = publisher(broker, answer_with_state)

    def row(pattern: str, *path: Parameter) -> Route:
        return Route(
            "POST",
            pattern,
            publish,
            verb="publish",
            name_parameter=path[0].name,
            cacheable=True,
            tag="messages",
            summary="Publish a message",
            parameters=(*path, TOPICS, *PARAMETERS),
            request=_ANY_BODY,
            responses={201: Content("stored", {JSON: ref("Published")}, {"X-Message-Id": "its id"})},
            failures=(WRONG, *FAILURES, failure(Busy)),
        )

    return [
        row("/in/{topic}", _TOPIC),
        row("/in/{object}/{topic}", Parameter("object", "path", "the business type", NAME), _TOPIC),
    ]


def _out_rows(broker: Broker, kind: Kind) -> list[Route]:
    """Of queues or of channels: one way for both."""
    word = kind.word
    needs = None if kind is Kind.QUEUE else Feature.CHANNELS
    missing = failure(QueueNotFound if kind is Kind.QUEUE else ChannelNotFound)
    name = Parameter("name", "path", f"the {word}", NAME)

    def confirm(request: Request) -> None:
        command = confirm_command(kind, _name_of(kind, request), request.body)
        broker.submit(command, partial(_answer_results, settled_text, request))

    def extend(request: Request) -> None:
        command = extend_command(kind, _name_of(kind, request), request.body)
        broker.submit(command, partial(_answer_results, extended_text, request))

    def receipts_row(verb: str, handler: Any, summary: str, takes: str, gives: str) -> Route:
        return Route(
            "POST",
            f"/{word}/{{name}}/{verb}",
            guarded(handler),
            verb="confirm",
            name_parameter="name",
            cacheable=True,
            needs=needs,
            tag="messages",
            summary=summary,
            parameters=(name, _CONSUMER),
            request=Content("", {JSON: ref(takes)}),
            responses={200: Content("one result for each receipt", {JSON: ref(gives)})},
            failures=(WRONG, missing, failure(Busy)),
        )

    return [
        Route(
            "GET",
            f"/{word}/{{name}}",
            fetching.fetcher(broker, partial(fetching.plan, kind)),
            verb="fetch",
            name_parameter="name",
            cacheable=True,
            head=False,
            needs=needs,
            tag="messages",
            summary="Fetch one message as it was sent, or with n several as JSON",
            parameters=(
                name,
                _CONSUMER,
                Parameter(
                    "n",
                    "query",
                    'how many; the answer is then {"messages":[…]}',
                    {"type": "integer", "minimum": 1, "maximum": fetching.MOST_AT_ONCE},
                ),
                Parameter(
                    "wait",
                    "query",
                    "how long to wait for a message, at most 60 s",
                    {"type": "number", "minimum": 0, "maximum": 60},
                ),
                Parameter("topic", "query", "only messages with this topic; `fruit.*` is a prefix", TOPIC),
                Parameter("lease", "query", f"how long it is kept from others; else the {word}'s", LEASE),
            ),
            responses={
                200: Content(
                    'the message with its type; with n, {"messages":[…]}',
                    {JSON: {"anyOf": [ref("FetchedMany"), {}]}, "*/*": {}},
                    {
                        "X-Message-Id": "its id",
                        "Waypost-Receipt": "confirms this fetch",
                        "Waypost-Attempt": "how many times it was fetched",
                        "Waypost-Topics": "separated by commas; percent-encoded UTF-8",
                        "Waypost-Object": "its business type",
                        "Waypost-Key": "percent-encoded UTF-8",
                    },
                ),
                204: Content("nothing came within the wait"),
            },
            failures=(WRONG, failure(ConsumerRequired), missing, failure(Busy)),
        ),
        receipts_row("confirm", confirm, "Say what became of fetched messages", "Confirm", "SettledMany"),
        receipts_row("extend", extend, "Keep fetched messages for longer", "Extend", "ExtendedMany"),
    ]
