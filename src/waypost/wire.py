"""JSON forms: how events, messages, deliveries, queues and jobs look on the wire, and are read from it.

    Event, MessageInfo, QueueInfo …  ──▶  what `msgspec.json.encode` takes, in camelCase
    {"topics":["fruit.apple"],"body":"…"}\\n…  ──▶  Publish commands

Instants are RFC 3339 in UTC with microseconds, spans are seconds. What a producer says is held against the
same rules whether it comes in a header, in a query or in a line of JSON: the `check_…` functions below.

This file knows no HTTP: headers and queries are read in `http`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from .commands import Extended, Fetched, Job, Publish, Published, Settled
from .consumers import consumer_json
from .delivery import DEAD, LETTERS, OPEN, STATES, E, F, I, L, N, Q, R, S, State, X
from .destinations import Kind
from .errors import RequestInvalid
from .instants import instant_text, parse_instant, parse_span
from .message import Envelope
from .names import check_name, check_own_id, check_topic
from .objects import object_json
from .policy import policy_json
from .store import (
    ChannelInfo,
    ConsumerInfo,
    DeliveryInfo,
    Depths,
    Event,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    SpectatorInfo,
)

MOST_TOPICS = 100
LONGEST_KEY_BYTES = 1_000
LONGEST_PRODUCER_BYTES = 200
LONGEST_IDEMPOTENCY_KEY = 255
LONGEST_MIME_TYPE = 255
#: names and values of all meta fields together
MOST_META_BYTES = 4_096
#: messages in one request
MOST_MESSAGES = 10_000

#: the states a delivery can rest in, in the order of its life
RESTING = ("Q", "R", "F", "S", "K", "E", "I", "O", "T", "C")
#: in a channel N is an end as well
RESTING_IN_CHANNELS = (*RESTING, "N")

_META_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_BARE_TIME = re.compile(r"\s*\d?\d:\d\d(:\d\d)?\s*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

#: the events of one group share their instant
_instant = lru_cache(maxsize=1_024)(instant_text)


def _maybe(at: int | None) -> str | None:
    return None if at is None else _instant(at)


# ── what a producer may say ─────────────────────────────────────────────────────────────────────


def check_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order given."""
    checked = tuple(dict.fromkeys(map(check_topic, topics)))
    if len(checked) > MOST_TOPICS:
        raise RequestInvalid(
            f"{len(checked)} topics", f"a message has at most {MOST_TOPICS} topics", "TOPIC_INVALID"
        )
    return checked


def _text_check(what: str, most_bytes: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not text or len(text.encode()) > most_bytes or _CONTROL.search(text):
            raise RequestInvalid(
                f"not a {what}: {text[:80]!r}",
                f"a {what} is 1 to {most_bytes} bytes of text without control characters",
                f"{what.upper().replace(' ', '_')}_INVALID",
            )
        return text

    return check


check_key = _text_check("key", LONGEST_KEY_BYTES)
check_producer = _text_check("producer", LONGEST_PRODUCER_BYTES)


def _ascii_check(what: str, longest: int, example: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not 0 < len(text) <= longest or not text.isascii() or not text.isprintable():
            raise RequestInvalid(
                f"not a {what}: {text[:80]!r}",
                f"a {what} is 1 to {longest} printable ASCII characters, such as {example}",
                f"{what.upper().replace(' ', '_')}_INVALID",
            )
        return text

    return check


check_mime_type = _ascii_check("mime type", LONGEST_MIME_TYPE, "application/json")
check_encoding = _ascii_check("content encoding", LONGEST_MIME_TYPE, "gzip")
check_idempotency_key = _ascii_check("idempotency key", LONGEST_IDEMPOTENCY_KEY, "a UUID")


def check_priority(priority: int) -> int:
    if not 0 <= priority <= 9:
        raise RequestInvalid(
            f"priority {priority}"[:80], "a priority is 0 (first) to 9 (last)", "PRIORITY_INVALID"
        )
    return priority


def check_moment(text: str, what: str) -> int:
    """When something happened at the producer: an instant with its day, because what is said of a message is
    read once and kept for every equal request."""
    if _BARE_TIME.fullmatch(text):
        raise RequestInvalid(
            f"{what} has no day: {text!r}", f"{what}=2026-01-31T10:00:00Z", "INSTANT_INVALID"
        )
    return parse_instant(text)


def check_meta(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    meta: dict[str, str] = {}
    size = 0
    for given, value in pairs:
        name = given.lower()
        if not _META_NAME.fullmatch(name) or name in meta:
            raise RequestInvalid(
                f"not the name of a meta field, or there twice: {given[:80]!r}",
                "letters, digits, '_', '.', '-', at most 100; upper and lower case are one",
                "META_INVALID",
            )
        size += len(name) + len(value.encode())
        meta[name] = value
    if size > MOST_META_BYTES:
        raise RequestInvalid(
            f"{size} bytes of meta",
            f"names and values together have at most {MOST_META_BYTES} bytes",
            "META_INVALID",
        )
    return tuple(meta.items())


def traceparent_of(text: str | None) -> str | None:
    """One that is malformed is as good as none (W3C Trace Context)."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


# ── many messages, a line each ──────────────────────────────────────────────────────────────────


class _Line(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False, kw_only=True):
    topics: tuple[str, ...] = ()
    object: str | None = None
    queue: str | None = None
    key: str | None = None
    mime_type: str | None = None
    timestamp: str | None = None
    sent: str | None = None
    delay: int | float | str | None = None
    ttl: int | float | str | None = None
    priority: int | None = None
    body: str | None = None
    body_base64: str | None = None
    id: str | None = None
    producer: str | None = None
    force: bool = False
    idempotency_key: str | None = None
    meta: dict[str, str] | None = None
    encoding: str | None = None
    traceparent: str | None = None


_lines = msgspec.json.Decoder(_Line)


def read_messages(body: bytes) -> list[Publish]:
    """Newline JSON into commands. Raises RequestInvalid that names the line."""
    try:
        lines = _lines.decode_lines(body)
    except (ValueError, RecursionError):
        raise _first_wrong_line(body) from None
    if not lines:
        raise RequestInvalid(
            "no message", 'send a line of JSON for each: {"topics":["fruit.apple"],"body":""}'
        )
    if len(lines) > MOST_MESSAGES:
        raise TooManyMessages(
            f"{len(lines)} messages in one request", f"send at most {MOST_MESSAGES} at once"
        )
    commands: list[Publish] = []
    try:
        for line in lines:
            commands.append(_command(line))
    except RequestInvalid as wrong:
        raise RequestInvalid(f"message {len(commands) + 1}: {wrong.detail}", wrong.hint, wrong.code) from None
    return commands


class TooManyMessages(RequestInvalid):
    status, code, title = 413, "TOO_MANY_MESSAGES", "Too many messages"


@lru_cache(1_024)
def alike(
    topics: tuple[str, ...], object: str | None, mime_type: str | None, producer: str | None
) -> Envelope:
    """What many messages say alike is checked once and shared."""
    return Envelope(
        topics=check_topics(topics),
        object=None if object is None else check_name(object, "object"),
        mime_type=None if mime_type is None else check_mime_type(mime_type),
        producer=None if producer is None else check_producer(producer),
    )


def _command(line: _Line) -> Publish:
    envelope = alike(line.topics, line.object, line.mime_type, line.producer)
    if (
        line.key is not None
        or line.timestamp is not None
        or line.sent is not None
        or line.meta is not None
        or line.encoding is not None
        or line.traceparent is not None
    ):
        envelope = _of_its_own(line, envelope)
    body = line.body
    command = Publish(
        envelope=envelope,
        body=body.encode() if body is not None and line.body_base64 is None else _payload(line),
    )
    if line.queue is not None:
        command.queue = check_name(line.queue)
    if line.delay is not None:
        command.delay_us = parse_span(line.delay, "delay")
    if line.ttl is not None:
        command.ttl_us = parse_span(line.ttl, "ttl")
    if line.priority is not None:
        command.priority = check_priority(line.priority)
    if line.id is not None:
        command.id = check_own_id(line.id)
    if line.force:
        command.force = True
    if line.idempotency_key is not None:
        command.idempotency_key = check_idempotency_key(line.idempotency_key)
    return command


def _of_its_own(line: _Line, alike: Envelope) -> Envelope:
    return Envelope(
        topics=alike.topics,
        object=alike.object,
        key=None if line.key is None else check_key(line.key),
        mime_type=alike.mime_type,
        timestamp=None if line.timestamp is None else check_moment(line.timestamp, "timestamp"),
        sent=None if line.sent is None else check_moment(line.sent, "sent"),
        producer=alike.producer,
        encoding=None if line.encoding is None else check_encoding(line.encoding),
        meta=() if line.meta is None else check_meta(line.meta.items()),
        traceparent=traceparent_of(line.traceparent),
    )


def _payload(line: _Line) -> bytes:
    if line.body_base64 is None:
        raise RequestInvalid("no body", 'a message has "body" (text) or "bodyBase64"; an empty one is ""')
    if line.body is not None:
        raise RequestInvalid("both body and bodyBase64", "send one of them")
    try:
        return base64.b64decode(line.body_base64, validate=True)
    except (binascii.Error, ValueError):
        raise RequestInvalid("bodyBase64 is not base64", "use the standard alphabet, with padding") from None


def _first_wrong_line(body: bytes) -> RequestInvalid:
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            wrong = json_wrong(_lines.decode, line)
            if wrong is not None:
                return RequestInvalid(f"line {number}: {wrong}", _LINE_HINT, "JSON_INVALID")
    return RequestInvalid("a message goes over several lines", _LINE_HINT, "JSON_INVALID")


_LINE_HINT = "one JSON object a line; its fields: " + ", ".join(_Line.__struct_encode_fields__)


def json_wrong(decode: Callable[[bytes], object], text: bytes) -> str | None:
    """What is wrong with a piece of JSON, in words; None if nothing is."""
    try:
        decode(text)
    except UnicodeDecodeError:
        return "a text is not UTF-8"
    except RecursionError:
        return "nested too deep"
    except ValueError as error:
        return str(error).replace("`$`", "the top").replace("`$.", "`")
    return None


def read_json(decoder: msgspec.json.Decoder[Any], text: bytes, hint: str) -> Any:
    """Decoded, or RequestInvalid with what is wrong."""
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        raise RequestInvalid(f"{json_wrong(decoder.decode, text)}"[:300], hint, "JSON_INVALID") from None


# ── answers ─────────────────────────────────────────────────────────────────────────────────────


def published_json(published: Published) -> str:
    """Ids need no escaping: they are made here, or were checked."""
    if published.same_as is None:
        return f'{{"id":"{published.id}","state":"{LETTERS[published.state]}"}}'
    return f'{{"id":"{published.id}","state":"{LETTERS[published.state]}","sameAs":"{published.same_as}"}}'


def body_json(body: bytes) -> dict[str, str]:
    """As text if it is UTF-8, else in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}


def fetched_json(message: Fetched) -> dict[str, Any]:
    envelope = message.envelope
    assert isinstance(message.body, bytes)
    form: dict[str, Any] = {
        "id": message.id,
        "receipt": message.receipt,
        "attempt": message.attempt,
        "topics": envelope.topics,
        "object": envelope.object,
        "key": envelope.key,
        "mimeType": envelope.mime_type,
        "created": _instant(message.created_at),
        **body_json(message.body),
    }
    if envelope.encoding is not None:
        form["encoding"] = envelope.encoding
    if envelope.meta:
        form["meta"] = dict(envelope.meta)
    if envelope.traceparent is not None:
        form["traceparent"] = envelope.traceparent
    return form


def settled_text(settled: Settled) -> str:
    """A receipt that was found needs no escaping; one that is stale may be any text."""
    if settled.state is None:
        return f'{{"receipt":{_quoted(settled.receipt)},"stale":true}}'
    return f'{{"receipt":"{settled.receipt}","id":"{settled.id}","state":"{LETTERS[settled.state]}"}}'


def extended_text(extended: Extended) -> str:
    if extended.until_at is None:
        return f'{{"receipt":{_quoted(extended.receipt)},"stale":true}}'
    return f'{{"receipt":"{extended.receipt}","until":"{_instant(extended.until_at)}"}}'


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def event_json(event: Event) -> dict[str, Any]:
    form: dict[str, Any] = {
        "offset": event.offset,
        "at": _instant(event.at),
        "messageId": event.message_id,
        "sequence": event.sequence,
        "queue": event.queue,
        "channel": event.channel,
        "slot": event.slot,
        "fromState": None if event.from_state is None else LETTERS[event.from_state],
        "toState": LETTERS[event.to_state],
        "attempt": event.attempt,
        "consumer": event.consumer,
        "reason": event.reason,
        "durationMs": event.duration_ms,
    }
    envelope = event.envelope
    if envelope is not None:
        form["topics"] = envelope.topics
        form["object"] = envelope.object
        form["key"] = envelope.key
        form["mimeType"] = envelope.mime_type
        form["producer"] = envelope.producer
        form["hash"] = None if event.hash is None else event.hash.hex()
        form["size"] = event.size
        form["timestamp"] = _maybe(envelope.timestamp)
        form["sent"] = _maybe(envelope.sent)
    if event.same_as is not None:
        form["sameAs"] = event.same_as
    return form


def delivery_json(delivery: DeliveryInfo) -> dict[str, Any]:
    return {
        "messageId": delivery.message_id,
        "sequence": delivery.sequence,
        "queue": delivery.queue,
        "channel": delivery.channel,
        "slot": delivery.slot,
        "state": LETTERS[delivery.state],
        "attempt": delivery.attempt,
        "consumer": delivery.consumer,
        "named": delivery.named,
        "reason": delivery.reason,
        "created": _instant(delivery.created_at),
        "changed": _instant(delivery.changed_at),
        "due": _maybe(delivery.due_at),
    }


def queue_json(queue: QueueInfo) -> dict[str, Any]:
    """The policy as PUT takes it, with the name and the figures."""
    return {
        "name": queue.name,
        **policy_json(queue.policy),
        "created": _instant(queue.created_at),
        "figures": {
            "depth": depth_of(queue.states),
            "states": _by_letter(queue.states, RESTING),
            "ready": queue.ready,
            "bytes": queue.bytes,
        },
    }


def channel_json(channel: ChannelInfo) -> dict[str, Any]:
    form = queue_json(channel)
    form["figures"]["states"] = _by_letter(channel.states, RESTING_IN_CHANNELS)
    return {"name": channel.name, "topics": channel.topics, **form}


def depths_json(kind: Kind, name: str, depths: Depths) -> dict[str, Any]:
    """Of a queue or channel, as it was."""
    letters = RESTING if kind is Kind.QUEUE else RESTING_IN_CHANNELS
    return {
        "name": name,
        "at": _instant(depths.at),
        "offset": depths.offset,
        "figures": {"depth": depth_of(depths.states), "states": _by_letter(depths.states, letters)},
    }


def depth_of(states: Mapping[State, int]) -> int:
    """How many deliveries have not ended."""
    return sum(states.get(state, 0) for state in OPEN)


def _by_letter(states: Mapping[State, int], letters: Iterable[str]) -> dict[str, int]:
    return {letter: states.get(STATES[letter], 0) for letter in letters}


def object_info_json(info: ObjectInfo) -> dict[str, Any]:
    """As PUT takes it, with the name and the figures."""
    return {
        "name": info.name,
        **object_json(info.policy),
        "figures": {"unchanged": info.unchanged, "waiting": info.logged},
    }


def consumer_info_json(info: ConsumerInfo) -> dict[str, Any]:
    """As PUT takes it, but the secrets, of which only the number is told."""
    return {"name": info.name, **consumer_json(info.consumer), "created": _instant(info.created_at)}


def spectator_json(info: SpectatorInfo) -> dict[str, Any]:
    return {"name": info.name, "offset": info.offset, "lag": info.lag, "at": _instant(info.at)}


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind.value,
        "matched": job.matched,
        "done": job.done,
        "consumer": job.consumer,
        "rate": job.rate,
        "started": _instant(job.started_at),
        "ended": _maybe(job.ended_at),
    }


#: how a consumer's answer shows in the log; a retry is none: the message is as unprocessed as before
_CONFIRMS = frozenset({S, I, N})


def message_document(info: MessageInfo) -> dict[str, Any]:
    """The seed's whole document of a message, and its journey. (Seed 001, *Index Mapping*; RULINGS 2.)"""
    envelope, journey = info.envelope, info.journey
    state = info.state
    in_queues = [delivery for delivery in info.deliveries if delivery.queue is not None]
    open_anywhere = any(delivery.state in OPEN for delivery in info.deliveries)
    handlings = _handlings(journey)
    confirmed = [handling for handling in handlings if handling.confirmed_at is not None]
    return {
        "id": info.id,
        "sequence": info.sequence,
        "topics": envelope.topics,
        "object": envelope.object,
        "key": envelope.key,
        "mimeType": envelope.mime_type,
        "encoding": envelope.encoding,
        "meta": dict(envelope.meta),
        "producer": envelope.producer,
        "traceparent": envelope.traceparent,
        "priority": info.priority,
        "hash": info.hash.hex(),
        "size": info.size,
        "state": LETTERS[state],
        "sameAs": info.same_as,
        "queued": any(delivery.state in OPEN for delivery in in_queues),
        "archived": not open_anywhere and state is not L,
        "delivered": bool(confirmed),
        "confirmed": bool(confirmed),
        "success": state is X,
        "timestamp": _maybe(envelope.timestamp),
        "sent": _maybe(envelope.sent),
        "created": _instant(info.created_at),
        "modified": _instant(journey[-1].at if journey else _last_change(info)),
        "firstFetched": _maybe(handlings[0].fetched_at if handlings else None),
        "processed": _maybe(min((one.confirmed_at for one in confirmed if one.confirmed_at), default=None)),
        "completed": _maybe(_last(journey, frozenset({X}))) if state is X else None,
        "failed": _maybe(_last(journey, DEAD)) if state is E else None,
        "expires": _maybe(info.expires_at),
        "wait": _seconds([event.duration_ms or 0 for event in journey if event.from_state is Q]),
        "processing": _seconds([one.json()["durationMS"] for one in confirmed]),
        "topicCount": len(envelope.topics),
        "confirmedCount": sum(delivery.state is S for delivery in in_queues),
        "consumed": [handling.json() for handling in handlings],
        "missing": [
            {"queue": delivery.queue, "slot": delivery.slot, "consumer": delivery.named}
            for delivery in in_queues
            if delivery.state in OPEN
        ],
        "deliveries": [delivery_json(delivery) for delivery in info.deliveries],
        "journey": [event_json(event) for event in journey],
    }


def _last_change(info: MessageInfo) -> int:
    return max((delivery.changed_at for delivery in info.deliveries), default=info.created_at)


def _last(journey: list[Event], states: frozenset[State]) -> int | None:
    return next((event.at for event in reversed(journey) if event.to_state in states), None)


def _seconds(spans_ms: list[int]) -> float | None:
    """All of them together; None if there are none."""
    return sum(spans_ms) / 1_000 if spans_ms else None


class _Handling(msgspec.Struct):
    """One fetch and its confirm, which counts after the lease too, until the next fetch."""

    consumer: str | None
    fetched_at: int
    confirmed_at: int | None = None

    def json(self) -> dict[str, Any]:
        """With the seed's names."""
        confirmed_at = self.confirmed_at
        return {
            "consumerId": self.consumer,
            "fetchedTS": _instant(self.fetched_at),
            "confirmedTS": _maybe(confirmed_at),
            "durationMS": None if confirmed_at is None else (confirmed_at - self.fetched_at) // 1_000,
        }


def _handlings(journey: list[Event]) -> list[_Handling]:
    handlings: list[_Handling] = []
    last: dict[tuple[str | None, str | None, int | None], _Handling] = {}
    for event in journey:
        place = (event.queue, event.channel, event.slot)
        if event.to_state is F:
            last[place] = _Handling(event.consumer, event.at)
            handlings.append(last[place])
        elif event.from_state in (F, R) and event.to_state in _CONFIRMS and place in last:
            last[place].confirmed_at = event.at
    return handlings


def header_text(text: str) -> str:
    """Text that may stand in a header: all but printable ASCII, and '%', as percent-encoded UTF-8."""
    if text.isascii() and text.isprintable() and "%" not in text and text == text.strip():
        return text
    return "".join(
        sign if " " < sign < "\x7f" and sign != "%" else "".join(f"%{byte:02X}" for byte in sign.encode())
        for sign in text
    )
