"""Queues and channels under /v1: made, shown, purged and deleted alike; and as they were at a past moment.

    PUT GET DELETE /v1/queues/{name}      {"lease": 30, …}
    PUT GET DELETE /v1/channels/{name}    {"topics": ["fruit.*"], "from": "now", "lease": 30, …}

PUT replaces: what is left out takes its default. `from` is where a channel begins in the log: now, at an offset (a number),
or at an instant (text); what is there already is brought in by a job.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import (
    DeclareChannel,
    Declared,
    DeclareQueue,
    DeleteChannel,
    DeleteQueue,
    JobKind,
)
from waypost.destinations import Kind
from waypost.errors import Busy, ChannelNotFound, LogTrimmed, QueueNotFound, Refused, RequestInvalid
from waypost.filters import Filter
from waypost.http.answering import WRONG, answer_accepted, answer_json
from waypost.http.given import check_query, named
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, NAME, TEXT, ref
from waypost.http.starting import check_moment_kept, check_offset
from waypost.http.wire import Request
from waypost.instants import instant_text, parse_instant
from waypost.policy import DEFAULT, parse_policy, policy_json
from waypost.store import Feature
from waypost.topics import check_patterns
from waypost.wire import channel_json, depths_json, queue_json, read_json

_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_POLICY_HINT = '{"lease":10,"retries":3}'
_CHANNEL_HINT = '{"topics":["fruit.*"],"from":"now"}'
_CHANNEL_FIELDS = ("topics", "from", *policy_json(DEFAULT))


def queue_command(name: str, body: bytes) -> DeclareQueue:
    """What a PUT says. Nothing at all is the default policy."""
    return DeclareQueue(name, parse_policy(read_json(_anything, body, _POLICY_HINT) if body.strip() else {}))


def channel_command(name: str, body: bytes, broker: Broker) -> DeclareChannel:
    given = read_json(_anything, body or b"{}", _CHANNEL_HINT)
    if not isinstance(given, dict):
        raise _wrong("a channel is a JSON object")
    unknown = set(given) - set(_CHANNEL_FIELDS)
    if unknown:
        raise _wrong(f"unknown field {min(unknown)[:60]!r}", f"known: {', '.join(_CHANNEL_FIELDS)}")
    topics = given.pop("topics", None)
    if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
        raise _wrong("topics is a list of at least one topic")
    start = _start(given.pop("from", "now"), broker)
    return DeclareChannel(name=name, topics=check_patterns(topics), policy=parse_policy(given), **start)


def _start(given: object, broker: Broker) -> dict[str, int]:
    if given is None or given == "now":
        return {}
    if isinstance(given, str):
        return {"start_at": check_moment_kept(parse_instant(given, broker.clock()), broker.store)}
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return {"start": check_offset(given, broker.store)}
    raise _wrong("from is now, an offset or an instant", '"from": 17, or "from": "2026-01-31T10:00:00Z"')


def _wrong(detail: str, hint: str = _CHANNEL_HINT) -> RequestInvalid:
    return RequestInvalid(detail, hint, "CHANNEL_INVALID")


def rows(broker: Broker) -> list[Route]:
    return [*_rows(broker, Kind.QUEUE), *_rows(broker, Kind.CHANNEL)]


def _rows(broker: Broker, kind: Kind) -> list[Route]:
    store, word, is_queue = broker.store, kind.word, kind is Kind.QUEUE
    missing: type[QueueNotFound | ChannelNotFound] = QueueNotFound if is_queue else ChannelNotFound
    needs = None if is_queue else Feature.CHANNELS

    def form(name: str) -> dict[str, Any]:
        if is_queue:
            queue = store.queue(name)
            if queue is not None:
                return queue_json(queue)
        else:
            channel = store.channel(name)
            if channel is not None:
                return channel_json(channel)
        raise missing(name)

    def listing(request: Request) -> None:
        check_query(request.head)
        forms = map(queue_json, store.queues()) if is_queue else map(channel_json, store.channels())
        answer_json(request, 200, {f"{word}s": list(forms)})

    def show(request: Request) -> None:
        name = named(request.head, word)
        at = request.head.query.get("at")
        answer_json(request, 200, form(name) if at is None else form_at(name, at))

    def form_at(name: str, text: str) -> dict[str, Any]:
        """As it was; what lies ahead is now."""
        at = min(parse_instant(text, broker.clock()), broker.clock())
        depths = store.depths(kind, name, at)
        if depths is None:
            refused: Refused = missing(name)
            refused.detail = f"no {word} {name!r} at {instant_text(at)}"
            raise refused
        return depths_json(kind, name, depths)

    async def put(request: Request) -> None:
        name = named(request.head, word)
        declared: Declared
        if is_queue:
            declared = await broker.ask(queue_command(name, request.body))
            more = {}
        else:
            declared = await broker.ask(await broker.look(channel_command, name, request.body, broker))
            more = {"job": declared.job}
        answer_json(request, 201 if declared.created else 200, (await broker.look(form, name)) | more)

    async def delete(request: Request) -> None:
        name = named(request.head, word)
        answer_accepted(request, await broker.ask(DeleteQueue(name) if is_queue else DeleteChannel(name)))

    async def purge(request: Request) -> None:
        name = named(request.head, word)
        if request.body.strip() not in (b"", b"{}"):
            raise RequestInvalid("a purge takes no body", "POST /v1/cancel takes a filter")
        await broker.look(form, name)
        job = await broker.start_job(JobKind.PURGE, Filter(queue=name) if is_queue else Filter(channel=name))
        answer_accepted(request, job)

    schema, path = word.capitalize(), f"/v1/{word}s/{{name}}"
    one, accepted = {JSON: ref(schema)}, {JSON: ref("Accepted")}
    name_parameter = Parameter("name", "path", f"the {word}", NAME)
    at_parameter = Parameter("at", "query", "as it was at this instant: depth and states", TEXT)

    def row(method: str, pattern: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        more.setdefault("parameters", (name_parameter,))
        return Route(
            method,
            pattern,
            handler,
            verb=verb,
            name_parameter="name",
            needs=needs,
            tag=f"{word}s",
            summary=summary,
            **more,
        )

    return [
        Route(
            "GET",
            f"/v1/{word}s",
            reading(broker, listing),
            verb="inspect",
            needs=needs,
            tag=f"{word}s",
            summary=f"All {word}s with their policies and figures",
            responses={200: Content("by name", {JSON: ref(f"{schema}s")})},
        ),
        row(
            "GET",
            path,
            reading(broker, show),
            f"A {word}'s policy and figures, or its depth at a past moment",
            "inspect",
            parameters=(name_parameter, at_parameter),
            responses={200: Content("", {JSON: {"oneOf": [ref(schema), ref("Depths")]}})},
            failures=(WRONG, failure(missing), failure(LogTrimmed, "at is longer ago than what is kept")),
        ),
        row(
            "PUT",
            path,
            guarded_task(put),
            "Make a queue, or replace its policy"
            if is_queue
            else "Make a channel, or replace its topics and policy",
            "declare",
            request=Content(
                "what is left out takes its default", {JSON: ref("Policy" if is_queue else "NewChannel")}
            ),
            responses={200: Content("replaced", one), 201: Content("made", one)},
            failures=(
                WRONG,
                *(() if is_queue else (failure(LogTrimmed, "from is longer ago than what is kept"),)),
                failure(Busy),
            ),
        ),
        row(
            "DELETE",
            path,
            guarded_task(delete),
            f"Delete a {word}; what waits in it is cancelled",
            "delete",
            responses={202: Content("the name is free; a job cancels what was in it", accepted)},
            failures=(WRONG, failure(missing), failure(Busy)),
        ),
        row(
            "POST",
            f"{path}/purge",
            guarded_task(purge),
            f"Cancel everything that waits in a {word}",
            "delete",
            responses={202: Content("a job does it", accepted)},
            failures=(WRONG, failure(missing), failure(Busy)),
        ),
    ]
