"""The event log: every transition in order, a line of JSON each, for those who only watch.

    GET /log?from=1&n=100      GET /log?follow=1      GET /log/fruit.*?ts=20200101101010      GET /log?spectator=audit

An answer is streamed in chunks at the reader's pace. Without `n` it ends at the head as it was when asked;
with `follow` it stays open, and an empty line every 15 s says that it still is. A range that breaks
(trimmed meanwhile, a gap) ends the connection without the last chunk, so it never looks complete.

    lake: 1 … sealed │ store: oldest … head          what the store has let go is read from the lake, and the reader sees no seam

As an Arrow stream, for those who compute, it is made by the lake's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.delivery import L
from waypost.errors import (
    LakeUnavailable,
    LogTrimmed,
    NotOffered,
    PayloadReaped,
    RequestInvalid,
    SpectatorNotFound,
)
from waypost.http.arrow import columns_of, stream_arrow
from waypost.http.given import check_query, flag, pattern, whole
from waypost.http.head import Head
from waypost.http.lake import Lake, exporting
from waypost.http.payload import read_payload
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, FLAG, NAME, NDJSON, TEXT, TOPIC, lines
from waypost.http.starting import check_moment_kept, check_offset, check_until
from waypost.http.wire import Request
from waypost.instants import parse_instant
from waypost.names import check_name
from waypost.store import Event, Store
from waypost.topics import topic_matches
from waypost.wire import body_json, event_json

#: a follower hears something at least so often
SIGN_OF_LIFE_SECONDS = 15.0
_FURTHEST = 10**18 - 1

_encode_lines = msgspec.json.Encoder().encode_lines


class Reading(msgspec.Struct, frozen=True):
    """What a request wants of the log."""

    start: int
    #: the last one; None: the head
    until: int | None
    n: int | None
    follow: bool
    payload: bool
    #: one of these at most
    queue: str | None
    channel: str | None
    topic: str | None
    arrow: bool
    columns: list[str] | None

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


class Bounds(msgspec.Struct, frozen=True):
    """What can be read when a request comes."""

    oldest: int
    head: int
    #: why what is older cannot be said
    failure: LakeUnavailable | None = None


async def bounds_of(broker: Broker, lake: Lake | None) -> Bounds:
    oldest, head = await broker.look(broker.store.bounds)
    if lake is None:
        return Bounds(oldest, head)
    try:
        return Bounds(await lake.reach(), head)
    except LakeUnavailable as failure:
        return Bounds(oldest, head, failure)


async def reading_of(head: Head, broker: Broker, lake: Lake | None, bounds: Bounds) -> Reading:
    check_query(head)
    query = head.query
    arrow = ARROW in head.headers.get("accept", "")
    n, until = query.get("n"), query.get("until")
    queue, channel = query.get("queue"), query.get("channel")
    topic = head.params.get("topic", query.get("topic"))
    if sum(chosen is not None for chosen in (queue, channel, topic)) > 1:
        raise RequestInvalid(
            "more than one of queue, channel and topic",
            "a topic gives L events, a queue or channel all but those: ask for one of them",
        )
    reading = Reading(
        await _start(query, broker, lake, bounds),
        None if until is None else check_until(whole(until, "until", 0, _FURTHEST), bounds.head),
        None if n is None else whole(n, "n", 0, _FURTHEST),
        flag(query.get("follow"), "follow"),
        flag(query.get("payload"), "payload"),
        None if queue is None else check_name(queue),
        None if channel is None else check_name(channel, "channel"),
        None if topic is None else pattern(topic),
        arrow,
        columns_of(query.get("columns")),
    )
    _check_together(reading)
    return reading


def _check_together(reading: Reading) -> None:
    if reading.follow and reading.arrow:
        raise RequestInvalid("an Arrow stream that follows", "follow newline JSON: leave Accept out")
    if reading.follow and reading.until is not None:
        raise RequestInvalid("both follow and until", "follow has no end: leave one of them out")
    if reading.arrow and reading.payload:
        raise RequestInvalid("bodies in an Arrow stream of events", "payload=1 is for newline JSON")
    if reading.columns is not None and not reading.arrow:
        raise RequestInvalid("columns without Arrow", f"send Accept: {ARROW}")


async def _start(query: dict[str, str], broker: Broker, lake: Lake | None, bounds: Bounds) -> int:
    store = broker.store
    given = [name for name in ("from", "ts", "spectator") if name in query]
    if len(given) > 1:
        raise RequestInvalid(
            f"both {given[0]} and {given[1]}", "start at an offset, at an instant, or where a spectator is"
        )
    if "ts" in query:
        return await _start_at(parse_instant(query["ts"], broker.clock()), broker, lake, bounds)
    if "spectator" in query:
        name = check_name(query["spectator"], "spectator")
        spectator = await broker.look(store.spectator, name)
        if spectator is None:
            raise SpectatorNotFound(query["spectator"])
        return await broker.look(_kept, spectator.offset + 1, store, bounds)
    if "from" in query:
        return await broker.look(_kept, whole(query["from"], "from", 0, _FURTHEST), store, bounds)
    if bounds.failure is not None:
        raise bounds.failure
    return bounds.oldest


def _kept(offset: int, store: Store, bounds: Bounds) -> int:
    """The lake may have what the store has not; while it cannot be asked, nobody knows."""
    try:
        return check_offset(offset, store, bounds.oldest)
    except LogTrimmed:
        if bounds.failure is not None:
            raise bounds.failure from None
        raise


async def _start_at(at: int, broker: Broker, lake: Lake | None, bounds: Bounds) -> int:
    store, look = broker.store, broker.look
    oldest, head = await look(store.bounds)
    if oldest == 1 or (oldest <= head and (await look(store.events, oldest, oldest))[0].at < at):
        return await look(store.offset_at, at)
    if bounds.failure is not None:
        raise bounds.failure
    if lake is None or bounds.oldest == oldest:
        return await look(store.offset_at, await look(check_moment_kept, at, store))
    found = await lake.offset_at(at)
    return await look(store.offset_at, at) if found is None else found


def rows(broker: Broker, lake: Lake | None) -> list[Route]:
    async def read(request: Request) -> None:
        bounds = await bounds_of(broker, lake)
        reading = await reading_of(request.head, broker, lake, bounds)
        headers = [("Waypost-Head", str(bounds.head)), ("Waypost-Oldest", str(bounds.oldest))]
        until = bounds.head if reading.until is None else reading.until
        reader = exporting(lake) if reading.arrow else None
        if request.head.method == "HEAD":
            request.answer(200, b"", NDJSON if reader is None else ARROW, headers)
        elif reader is not None:
            await stream_arrow(request, _arrow(reader, reading, until), headers)
        else:
            await _stream(request, _texts(broker, lake, reading, until), headers, reading.follow)

    parameters = (
        Parameter("from", "query", "the first offset, inclusive; else the oldest", COUNT),
        Parameter("ts", "query", "start at this instant instead", TEXT),
        Parameter("spectator", "query", "start after what this spectator has read", NAME),
        Parameter("until", "query", "the last offset, inclusive; else the head as it is now", COUNT),
        Parameter("n", "query", "at most so many events", COUNT),
        Parameter("follow", "query", "stay open and go on as the log grows", FLAG),
        Parameter("payload", "query", "with the bodies of L events", FLAG),
        Parameter("columns", "query", "of an Arrow stream: only these, separated by commas", TEXT),
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
                    "a line of JSON for each event, or an Arrow stream where Accept asks for one",
                    {NDJSON: lines("Event"), ARROW: {}},
                    {"Waypost-Head": "the last offset", "Waypost-Oldest": "the first that is kept"},
                )
            },
            failures=(
                Failure(400, "OFFSET_BEYOND_HEAD", "and other words that name what is malformed"),
                Failure(400, "COLUMN_UNKNOWN", "the hint lists the known ones"),
                failure(SpectatorNotFound),
                failure(LogTrimmed),
                failure(NotOffered, "Arrow without the lake extra"),
                failure(LakeUnavailable),
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


def _arrow(lake: Lake, reading: Reading, until: int) -> AsyncGenerator[bytes, None]:
    return lake.events(
        reading.start,
        until,
        form="arrow",
        columns=reading.columns,
        queue=reading.queue,
        channel=reading.channel,
        topic=reading.topic,
        limit=reading.n,
    )


async def _stream(
    request: Request, texts: AsyncGenerator[bytes, None], headers: list[tuple[str, str]], follow: bool
) -> None:
    async with aclosing(texts):
        # What cannot be read at all is a problem, not a broken answer; but whoever follows wants to know that it began.
        first = b"" if follow else await anext(texts, b"")
        stream = request.stream(200, headers, NDJSON)
        if follow:
            task = asyncio.current_task()
            assert task is not None
            request.on_gone(task.cancel)
        await stream.write(first)
        async for text in texts:
            await stream.write(text)
        await stream.end()


async def _texts(
    broker: Broker, lake: Lake | None, reading: Reading, until: int
) -> AsyncGenerator[bytes, None]:
    """All that is answered: up to `until`, and with `follow` from there on."""
    loop = asyncio.get_running_loop()
    position, left = reading.start, reading.n
    heard_at = loop.time()
    while left != 0:
        async with aclosing(_range(broker, lake, reading, position, until, left)) as parts:
            async for text, count in parts:
                if text:
                    yield text
                    heard_at = loop.time()
                left = None if left is None else left - count
        position = max(position, until + 1)
        if not reading.follow or left == 0 or broker.stopping:
            return
        until = await broker.grown(position - 1, max(0.0, heard_at + SIGN_OF_LIFE_SECONDS - loop.time()))
        if loop.time() >= heard_at + SIGN_OF_LIFE_SECONDS:
            yield b"\n"
            heard_at = loop.time()


async def _range(
    broker: Broker, lake: Lake | None, reading: Reading, position: int, until: int, left: int | None
) -> AsyncGenerator[tuple[bytes, int], None]:
    """(lines, how many they are), from the lake where the store has let go, else from the store."""
    bodies = reading.payload
    while position <= until and left != 0:
        oldest = (await broker.look(broker.store.bounds))[0]
        if lake is not None and lake.folder is not None:
            # Bodies leave the store earlier than events do, so where they are wanted all that is sealed comes from the lake.
            last = min(until, max(oldest - 1, lake.sealed) if bodies else oldest - 1)
            if position <= last:
                began = False
                try:
                    async with aclosing(_from_lake(lake, reading, position, last, left)) as texts:
                        async for text in texts:
                            began = True
                            count = text.count(b"\n")
                            left = None if left is None else left - count
                            yield text, count
                    position = last + 1
                except LakeUnavailable:
                    if began or position < oldest:
                        raise
                    bodies = False  # the store shows those that it still has
                continue
        try:
            async with aclosing(broker.read(position, until)) as chunks:
                async for chunk in chunks:
                    found = await _lines(broker, reading, chunk, left)
                    left = None if left is None else left - len(found)
                    position = chunk[-1].offset + 1
                    yield _encode_lines(found) if found else b"", len(found)
                    if left == 0:
                        return
        except LogTrimmed:
            # The reader is slow, and the store has let go of what comes next: it is in the lake.
            if lake is None or lake.folder is None:
                raise


def _from_lake(
    lake: Lake, reading: Reading, lo: int, hi: int, left: int | None
) -> AsyncGenerator[bytes, None]:
    return lake.events(
        lo,
        hi,
        form="json",
        queue=reading.queue,
        channel=reading.channel,
        topic=reading.topic,
        payload=reading.payload,
        limit=left,
    )


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
        return {**body_json(await read_payload(broker, id))}
    except PayloadReaped:
        return {"body": None}
