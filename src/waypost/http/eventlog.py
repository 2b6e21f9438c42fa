"""The event log: every transition in order, a line of JSON each, for those who only watch.

    GET /log?from=1&n=100      GET /log?follow=1      GET /log/fruit.*?ts=20200101101010      GET /log?spectator=audit

An answer is streamed in chunks at the reader's pace. Without `n` it ends at the head as it was when asked;
with `follow` it stays open, and an empty line every 15 s says that it still is. A range that breaks
(trimmed meanwhile, a gap) ends the connection without the last chunk, so it never looks complete.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.delivery import L
from waypost.errors import LogTrimmed, NotOffered, PayloadReaped, RequestInvalid, SpectatorNotFound
from waypost.http.given import check_query, flag, pattern, whole
from waypost.http.head import Head
from waypost.http.payload import read_payload
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, FLAG, NAME, NDJSON, TEXT, TOPIC, lines
from waypost.http.starting import check_moment_kept, check_offset
from waypost.http.wire import Request
from waypost.instants import parse_instant
from waypost.names import check_name
from waypost.store import Event
from waypost.topics import topic_matches
from waypost.wire import body_json, event_json

#: a follower hears something at least so often
SIGN_OF_LIFE_SECONDS = 15.0
_FURTHEST = 10**18 - 1

_encode_lines = msgspec.json.Encoder().encode_lines


class Reading(msgspec.Struct, frozen=True):
    """What a request wants of the log."""

    start: int
    n: int | None
    follow: bool
    payload: bool
    #: one of these at most
    queue: str | None
    channel: str | None
    topic: str | None

    def wants(self, event: Event) -> bool:
        if self.queue is not None:
            return event.queue == self.queue
        if self.channel is not None:
            return event.channel == self.channel
        if self.topic is not None:
            envelope = event.envelope
            return (
                event.to_state is L
                and envelope is not None
                and any(topic_matches(self.topic, topic) for topic in envelope.topics)
            )
        return True


def reading_of(head: Head, broker: Broker) -> Reading:
    check_query(head)
    if ARROW in head.headers.get("accept", ""):
        raise NotOffered("the log as an Arrow stream", "leave Accept out and read newline JSON")
    query = head.query
    n = query.get("n")
    queue, channel = query.get("queue"), query.get("channel")
    topic = head.params.get("topic", query.get("topic"))
    if sum(chosen is not None for chosen in (queue, channel, topic)) > 1:
        raise RequestInvalid(
            "more than one of queue, channel and topic",
            "a topic gives L events, a queue or channel all but those: ask for one of them",
        )
    return Reading(
        _start(query, broker),
        None if n is None else whole(n, "n", 0, _FURTHEST),
        flag(query.get("follow"), "follow"),
        flag(query.get("payload"), "payload"),
        None if queue is None else check_name(queue),
        None if channel is None else check_name(channel, "channel"),
        None if topic is None else pattern(topic),
    )


def _start(query: dict[str, str], broker: Broker) -> int:
    store = broker.store
    given = [name for name in ("from", "ts", "spectator") if name in query]
    if len(given) > 1:
        raise RequestInvalid(
            f"both {given[0]} and {given[1]}", "start at an offset, at an instant, or where a spectator is"
        )
    if "ts" in query:
        return store.offset_at(check_moment_kept(parse_instant(query["ts"], broker.clock()), store))
    if "spectator" in query:
        spectator = store.spectator(check_name(query["spectator"], "spectator"))
        if spectator is None:
            raise SpectatorNotFound(query["spectator"])
        return check_offset(spectator.offset + 1, store)
    if "from" in query:
        return check_offset(whole(query["from"], "from", 0, _FURTHEST), store)
    return store.bounds()[0]


def rows(broker: Broker) -> list[Route]:
    async def read(request: Request) -> None:
        oldest, newest = broker.store.bounds()
        reading = reading_of(request.head, broker)
        headers = [("Waypost-Head", str(newest)), ("Waypost-Oldest", str(oldest))]
        if request.head.method == "HEAD":
            request.answer(200, b"", NDJSON, headers)
            return
        await _stream(broker, request, reading, newest, headers)

    parameters = (
        Parameter("from", "query", "the first offset, inclusive; else the oldest", COUNT),
        Parameter("ts", "query", "start at this instant instead", TEXT),
        Parameter("spectator", "query", "start after what this spectator has read", NAME),
        Parameter("n", "query", "at most so many events", COUNT),
        Parameter("follow", "query", "stay open and go on as the log grows", FLAG),
        Parameter("payload", "query", "with the bodies of L events", FLAG),
    )
    chosen = (
        Parameter("queue", "query", "only events of this queue, which are never L, U or X", NAME),
        Parameter("channel", "query", "likewise of this channel", NAME),
        Parameter("topic", "query", "only L events with this topic; `fruit.*` is a prefix", TOPIC),
    )

    def row(path: str, summary: str, *more: Parameter) -> Route:
        return Route(
            "GET",
            path,
            guarded_task(read),
            verb="read",
            name_parameter="topic" if "{topic}" in path else "",
            tag="log",
            summary=summary,
            parameters=(*more, *parameters),
            responses={
                200: Content(
                    "a line of JSON for each event",
                    {NDJSON: lines("Event")},
                    {"Waypost-Head": "the last offset", "Waypost-Oldest": "the first that is kept"},
                )
            },
            failures=(
                Failure(400, "OFFSET_BEYOND_HEAD", "and other words that name what is malformed"),
                failure(SpectatorNotFound),
                failure(LogTrimmed),
                failure(NotOffered, "Arrow"),
            ),
        )

    return [
        row("/log", "Read or follow the event log", *chosen),
        row(
            "/log/{topic}",
            "L events with this topic",
            Parameter("topic", "path", "`fruit.*` is a prefix", TOPIC),
        ),
    ]


async def _stream(
    broker: Broker, request: Request, reading: Reading, newest: int, headers: list[tuple[str, str]]
) -> None:
    loop = asyncio.get_running_loop()
    stream = request.stream(200, headers, NDJSON)
    if reading.follow:
        task = asyncio.current_task()
        assert task is not None
        request.on_gone(task.cancel)
        # The headers go out now: whoever follows wants to know that it began.
        await stream.write(b"")
    position, until, left = reading.start, newest, reading.n
    heard_at = loop.time()
    while left != 0:
        async for chunk in broker.read(position, until):
            lines = await _lines(broker, reading, chunk, left)
            if lines:
                await stream.write(_encode_lines(lines))
                heard_at = loop.time()
            if left is not None:
                left -= len(lines)
                if left == 0:
                    break
        position = max(position, until + 1)
        if not reading.follow or left == 0 or broker.stopping:
            break
        until = await broker.grown(position - 1, max(0.0, heard_at + SIGN_OF_LIFE_SECONDS - loop.time()))
        if loop.time() >= heard_at + SIGN_OF_LIFE_SECONDS:
            await stream.write(b"\n")
            heard_at = loop.time()
    await stream.end()


async def _lines(
    broker: Broker, reading: Reading, chunk: list[Event], left: int | None
) -> list[dict[str, Any]]:
    wanted = [event for event in chunk if reading.wants(event)]
    lines = [event_json(event) for event in wanted[:left]]
    if reading.payload:
        for line, event in zip(lines, wanted, strict=False):
            if event.envelope is not None:
                line |= await _body(broker, event.message_id)
    return lines


async def _body(broker: Broker, id: str) -> dict[str, str | None]:
    try:
        return {**body_json(await read_payload(broker.store, id))}
    except PayloadReaped:
        return {"body": None}
