"""`Client`: the broker's verbs, awaited.

    async with Client("http://127.0.0.1:8080") as client:
        published = await client.publish("orders.created", {"number": 17}, key="17")
        for message in await client.fetch("orders", 10, wait=5):
            await client.confirm("orders", [message.receipt])

Where a queue is named, `channel="crm"` names a channel instead. Every publish carries an Idempotency-Key, made here unless one is given, so that a publish whose answer was
lost is repeated and still is one message. What the broker refuses is raised as the error of `waypost.errors`
that it stands for; a broker that cannot be reached, after `patience` seconds, as `Unreachable`.

Messages and what is done to them have types; documents that people read (a message's journey, a queue's
figures, events) are dicts, exactly as the broker gives them, and policies are dicts as it takes them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from ..errors import JobNotFound, SpectatorNotFound
from .forms import (
    Accepted,
    Acted,
    Body,
    Extended,
    ExtendedMany,
    FetchedMany,
    Job,
    Message,
    NewMessage,
    Published,
    PublishedMany,
    Settled,
    SettledMany,
    Span,
    decode,
    destination,
    document,
    documents,
    encode_body,
    instant,
    json_body,
    line_of,
    message_of,
    new_key,
    number,
    span,
)
from .transport import BACK_OFF_BASE_SECONDS, Answer, Query, Transport, Unreachable, path, wait_before_repeat
from .worker import Handler, Worker

H = TypeVar("H", bound=Handler)

#: of a batch that `publish_stream` sends; the broker takes up to 10,000 messages and 16 MiB
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 << 20
#: how often a spectator's position is stored while it reads
POSITION_SECONDS = 1.0
#: how long the broker may take for a seal or a maintenance
LAKE_SECONDS = 3_600.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Client:
    """`timeout` bounds one request, `patience` a request with its repeats, both in seconds."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        producer: str | None = None,
        consumer: str | None = None,
        timeout: float = 15.0,
        patience: float = 30.0,
        connections: int = 100,
    ) -> None:
        self._transport = Transport(url, timeout=timeout, patience=patience, connections=connections)
        self._producer, self._consumer = producer, consumer
        self._workers: list[Worker] = []

    @property
    def url(self) -> str:
        return self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    # ── publish ─────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        topic: str,
        body: Body,
        *,
        object: str | None = None,
        topics: Sequence[str] = (),
        key: str | None = None,
        mime_type: str | None = None,
        timestamp: datetime | str | None = None,
        sent: datetime | str | None = None,
        delay: Span | None = None,
        ttl: Span | None = None,
        priority: int | None = None,
        id: str | None = None,
        idempotency_key: str | None = None,
        force: bool = False,
        meta: Mapping[str, str] | None = None,
    ) -> Published:
        """One message; `topics` are further ones."""
        payload, guessed = encode_body(body)
        headers = {
            "Idempotency-Key": idempotency_key or new_key(),
            "Content-Type": mime_type or guessed,
            **{f"Waypost-Meta-{name}": value for name, value in (meta or {}).items()},
        }
        if id is not None:
            headers["X-Message-Id"] = id
        query: Query = {
            "topics": ",".join(topics) or None,
            "key": key,
            "timestamp": instant(timestamp),
            "sent": instant(sent),
            "delay": span(delay),
            "ttl": span(ttl),
            "priority": priority,
            "force": 1 if force else None,
            "producer": self._producer,
        }
        at = path("in", topic) if object is None else path("in", object, topic)
        answer = await self._transport.ask("POST", at, query, headers=headers, body=payload, repeatable=True)
        return decode(answer, Published)

    async def publish_many(self, messages: Iterable[NewMessage | Mapping[str, Any]]) -> list[Published]:
        """All or none, in one request: up to 10,000 messages, 16 MiB. A mapping is a line of newline JSON."""
        return await self._publish_lines([self._line(message) for message in messages])

    async def publish_stream(
        self,
        messages: Iterable[NewMessage | Mapping[str, Any]] | AsyncIterable[NewMessage | Mapping[str, Any]],
        batch: int = BATCH_MESSAGES,
    ) -> AsyncGenerator[list[Published], None]:
        """Any number of messages, in batches that are each all or none; gives each batch's results."""
        lines: list[bytes] = []
        size = 0
        async for message in _each(messages):
            line = self._line(message)
            if lines and (len(lines) >= batch or size + len(line) > BATCH_BYTES):
                yield await self._publish_lines(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            yield await self._publish_lines(lines)

    async def _publish_lines(self, lines: list[bytes]) -> list[Published]:
        if not lines:
            return []
        answer = await self._transport.ask(
            "POST",
            "/v1/messages",
            headers={"Content-Type": "application/x-ndjson"},
            body=b"\n".join(lines),
            repeatable=True,
        )
        return decode(answer, PublishedMany).results

    def _line(self, message: NewMessage | Mapping[str, Any]) -> bytes:
        line = dict(message) if isinstance(message, Mapping) else line_of(message)
        line.setdefault("idempotencyKey", new_key())
        if self._producer is not None:
            line.setdefault("producer", self._producer)
        return msgspec.json.encode(line)

    # ── fetch and confirm ───────────────────────────────────────────────────────────────────

    async def fetch(
        self,
        queue: str | None = None,
        n: int = 1,
        *,
        channel: str | None = None,
        wait: float = 0.0,
        lease: float | None = None,
        topic: str | None = None,
        consumer: str | None = None,
    ) -> list[Message]:
        """Up to `n` messages; none when nothing came within `wait` seconds."""
        source = destination(queue, channel)
        query: Query = {
            "n": n,
            "wait": number(wait) if wait else None,
            "lease": number(lease),
            "topic": topic,
            "consumer": consumer or self._consumer,
        }
        answer = await self._transport.ask("GET", path(*source), query, repeatable=True, wait=wait)
        if answer.status == 204:
            return []
        return [message_of(source, fetched) for fetched in decode(answer, FetchedMany).messages]

    async def confirm(
        self,
        queue: str | None = None,
        receipts: Sequence[str] = (),
        outcome: str = "success",
        *,
        channel: str | None = None,
        reason: str | None = None,
        delay: Span | None = None,
        consumer: str | None = None,
    ) -> list[Settled]:
        """`outcome`: success, invalid, not-interested, retry. A stale receipt is reported, never applied."""
        asked = {"receipts": list(receipts), "outcome": outcome, "reason": reason, "delay": span(delay)}
        answer = await self._transport.ask(
            "POST",
            path(*destination(queue, channel), "confirm"),
            {"consumer": consumer or self._consumer},
            **json_body(asked),
            repeatable=True,
        )
        return decode(answer, SettledMany).results

    async def extend(
        self,
        queue: str | None = None,
        receipts: Sequence[str] = (),
        *,
        channel: str | None = None,
        lease: float | None = None,
    ) -> list[Extended]:
        """A new lease from now on; None: as long as the queue's."""
        asked = {"receipts": list(receipts), "lease": lease}
        at = path(*destination(queue, channel), "extend")
        answer = await self._transport.ask("POST", at, **json_body(asked), repeatable=True)
        return decode(answer, ExtendedMany).results

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    def worker(
        self,
        queue: str | None = None,
        *,
        channel: str | None = None,
        concurrency: int = 1,
        ahead: int | None = None,
        lease: float = 30.0,
        topic: str | None = None,
        consumer: str | None = None,
        grace: float = 10.0,
    ) -> Callable[[H], H]:
        """Register a handler, async or plain, for `work` to run. `waypost.client.worker` has the rules."""
        source = destination(queue, channel)

        def register(handler: H) -> H:
            self._workers.append(
                Worker(
                    self,
                    source,
                    handler,
                    concurrency=concurrency,
                    ahead=ahead,
                    lease=lease,
                    topic=topic,
                    consumer=consumer or self._consumer,
                    grace=grace,
                )
            )
            return handler

        return register

    async def work(self) -> None:
        """Run every registered worker until SIGTERM, SIGINT or `stop`; a second signal ends at once. A worker
        that cannot go on stops the others, and its error is raised."""
        loop = asyncio.get_running_loop()
        running = asyncio.gather(*map(self._run, self._workers), return_exceptions=True)
        hurried = False

        def hurry() -> None:
            nonlocal hurried
            hurried = True
            running.cancel()

        def signalled() -> None:
            for sign in _STOP_SIGNALS:
                loop.add_signal_handler(sign, hurry)
            self.stop()

        # Only the main thread can listen to signals; in another, `stop` is the way.
        with suppress(ValueError, RuntimeError):
            for sign in _STOP_SIGNALS:
                loop.add_signal_handler(sign, signalled)
        try:
            errors = [result for result in await running if isinstance(result, BaseException)]
        except asyncio.CancelledError:
            if not hurried:
                raise
            errors = []
        finally:
            with suppress(ValueError, RuntimeError):
                for sign in _STOP_SIGNALS:
                    loop.remove_signal_handler(sign)
        if errors:
            raise errors[0]

    async def _run(self, worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            self.stop()

    def run(self) -> None:
        """`work`, for a program that does nothing else."""

        async def work() -> None:
            async with self:
                await self.work()

        asyncio.run(work())

    def stop(self) -> None:
        """Every worker finishes what it holds, and `work` returns. From the loop's thread."""
        for worker in self._workers:
            worker.stop()

    # ── queues, channels, objects, consumers, spectators ─────────────────────────────────────

    async def queues(self) -> list[dict[str, Any]]:
        return documents(await self._get("/v1/queues"), "queues")

    async def queue(self, name: str, *, at: datetime | str | None = None) -> dict[str, Any]:
        """Its policy and figures; `at`: how many deliveries were in which state at that moment."""
        return document(await self._get(path("v1", "queues", name), {"at": instant(at)}))

    async def declare(self, name: str, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a queue, or give it this policy: what is left out takes its default."""
        return await self._put(path("v1", "queues", name), policy or {})

    async def delete_queue(self, name: str) -> None:
        """What waits in it is cancelled."""
        await self._delete(path("v1", "queues", name))

    async def channels(self) -> list[dict[str, Any]]:
        return documents(await self._get("/v1/channels"), "channels")

    async def channel(self, name: str, *, at: datetime | str | None = None) -> dict[str, Any]:
        """As `queue`, with its topics."""
        return document(await self._get(path("v1", "channels", name), {"at": instant(at)}))

    async def declare_channel(
        self,
        name: str,
        topics: Sequence[str],
        policy: Mapping[str, Any] | None = None,
        *,
        start: int | datetime | str | None = None,
    ) -> dict[str, Any]:
        """Make a channel for what is logged from now on, or from `start` on: an offset or a moment; or give it these
        topics and this policy."""
        since = instant(start) if isinstance(start, datetime) else start
        asked = {"topics": list(topics), **(policy or {})}
        return await self._put(
            path("v1", "channels", name), asked if since is None else {**asked, "from": since}
        )

    async def delete_channel(self, name: str) -> None:
        """What waits in it is cancelled."""
        await self._delete(path("v1", "channels", name))

    async def objects(self) -> list[dict[str, Any]]:
        return documents(await self._get("/v1/objects"), "objects")

    async def object(self, name: str) -> dict[str, Any]:
        return document(await self._get(path("v1", "objects", name)))

    async def declare_object(self, name: str, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What is agreed of an object: `{"unchanged": {"ignore": ["$.exportedAt"], "window": "30d"}}`."""
        return await self._put(path("v1", "objects", name), policy or {})

    async def delete_object(self, name: str) -> None:
        """Nothing is agreed of it any more."""
        await self._delete(path("v1", "objects", name))

    async def consumers(self) -> list[dict[str, Any]]:
        return documents(await self._get("/v1/consumers"), "consumers")

    async def consumer(self, name: str) -> dict[str, Any]:
        return document(await self._get(path("v1", "consumers", name)))

    async def declare_consumer(self, name: str, consumer: Mapping[str, Any]) -> dict[str, Any]:
        """Register one: `{"queue": "orders", "url": "https://…"}` is pushed to, without a url it pulls."""
        return await self._put(path("v1", "consumers", name), consumer)

    async def delete_consumer(self, name: str) -> None:
        await self._delete(path("v1", "consumers", name))

    async def spectators(self) -> list[dict[str, Any]]:
        return documents(await self._get("/v1/spectators"), "spectators")

    async def spectator(self, name: str) -> dict[str, Any]:
        """How far it has read, and how much it has not."""
        return document(await self._get(path("v1", "spectators", name)))

    async def set_spectator(self, name: str, offset: int) -> dict[str, Any]:
        """It has read up to this offset, inclusive."""
        return await self._put(path("v1", "spectators", name), {"offset": offset})

    async def delete_spectator(self, name: str) -> None:
        await self._delete(path("v1", "spectators", name))

    # ── messages and the log ────────────────────────────────────────────────────────────────

    async def message(self, id: str) -> dict[str, Any]:
        """The whole document, with its journey."""
        return document(await self._get(path("v1", "messages", id)))

    async def search(self, filter: str) -> AsyncGenerator[dict[str, Any], None]:
        """The deliveries that a filter selects, in log order: `queue=orders state=E since=10:00`."""
        after: int | None = None
        while True:
            page = document(await self._get("/v1/messages", {"filter": filter, "after": after}))
            for delivery in page.get("deliveries", []):
                yield delivery
            after = page.get("next")
            if after is None:
                return

    async def log(
        self,
        start: int | datetime | str = 1,
        n: int | None = None,
        *,
        follow: bool = False,
        topic: str | None = None,
        queue: str | None = None,
        channel: str | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Events from an offset or a moment on. `follow` goes on for ever, also over a broker's restarts: none
        is skipped, none comes twice."""
        at = "/log" if topic is None else path("log", topic)
        query: Query = {"follow": 1 if follow else None, "queue": queue, "channel": channel}
        tries = 0
        while True:
            first: Query = {"from": start} if isinstance(start, int) else {"ts": instant(start)}
            try:
                async with self._transport.stream(at, {**query, **first, "n": n}) as lines:
                    async for line in lines:
                        if line:
                            event = msgspec.json.decode(line)
                            yield event
                            start, tries = event["offset"] + 1, 0
                            n = None if n is None else n - 1
                if not follow or n == 0:
                    return
                await asyncio.sleep(BACK_OFF_BASE_SECONDS)  # the broker is stopping
            except Unreachable as failure:
                tries += 1
                pause = wait_before_repeat(failure, repeatable=True, tries=tries)
                if pause is None or (not follow and tries > 5):
                    raise
                await asyncio.sleep(pause)

    async def spectate(self, name: str, *, follow: bool = True) -> AsyncGenerator[dict[str, Any], None]:
        """The events that the named spectator has not read, from the oldest kept if it is new. Its position is
        stored as you go on to the next event, at most once a second, and at the end: what you had in hand when
        this process died comes again."""
        try:
            seen = stored = (await self.spectator(name))["offset"]
        except SpectatorNotFound:
            seen = (await self.bounds())[0] - 1
            stored = -1
        stored_at = asyncio.get_running_loop().time()
        try:
            async with aclosing(self.log(seen + 1, follow=follow)) as events:
                async for event in events:
                    yield event
                    seen = event["offset"]
                    now = asyncio.get_running_loop().time()
                    if now >= stored_at + POSITION_SECONDS:
                        await self.set_spectator(name, seen)
                        stored, stored_at = seen, now
        finally:
            if seen != stored:
                await self.set_spectator(name, seen)

    async def bounds(self) -> tuple[int, int]:
        """(oldest, head) of the log."""
        answer = await self._get("/log", {"n": 0})
        return int(answer.headers["Waypost-Oldest"]), int(answer.headers["Waypost-Head"])

    async def stats(self) -> dict[str, Any]:
        return document(await self._get("/v1/stats"))

    # ── the lake ────────────────────────────────────────────────────────────────────────────

    async def lake(self) -> dict[str, Any]:
        """Where it is, how far it goes, and what is wrong with it."""
        return document(await self._get("/v1/lake"))

    async def seal_lake(self) -> int:
        """All that is committed now into the lake; the last offset that is in it then."""
        return int(await self._of_the_lake("seal", "sealed"))

    async def maintain_lake(self) -> dict[str, Any]:
        """Its tables compacted, their logs cleaned, what is not needed removed."""
        figures: dict[str, Any] = await self._of_the_lake("maintain")
        return figures

    async def _of_the_lake(self, what: str, field: str | None = None) -> Any:
        answer = await self._transport.ask(
            "POST", path("v1", "lake", what), repeatable=True, wait=LAKE_SECONDS
        )
        return document(answer) if field is None else document(answer).get(field)

    # ── work on many ────────────────────────────────────────────────────────────────────────

    async def redrive(
        self, filter: str, *, dry_run: bool = False, rate: float | None = None, consumer: str | None = None
    ) -> Job:
        """Ended deliveries back to where they were; dead letters, unless the filter names states. `rate`: so many
        a second; `consumer`: only this one may have them then."""
        return await self._on_many("redrive", filter, dry_run, rate, consumer)

    async def replay(
        self, filter: str, *, dry_run: bool = False, rate: float | None = None, consumer: str | None = None
    ) -> Job:
        """As `redrive`, of everything that has ended: also what was confirmed."""
        return await self._on_many("replay", filter, dry_run, rate, consumer)

    async def cancel(self, filter: str, *, dry_run: bool = False, rate: float | None = None) -> Job:
        """Waiting deliveries out of their queues and channels."""
        return await self._on_many("cancel", filter, dry_run, rate, None)

    async def act(
        self,
        verb: Literal["redrive", "replay", "cancel"],
        deliveries: Sequence[Mapping[str, Any]],
        *,
        dry_run: bool = False,
        states: str | None = None,
        as_of: datetime | str | None = None,
        consumer: str | None = None,
    ) -> Acted:
        """Up to 1,000 deliveries that you name, `{"id": …, "queue": …}` or `channel`, at once and in the order of the log; without
        either, all of a message. Only those in `states`, and none that has changed since `as_of`: with the `at` of a dry run,
        a repeat touches nothing twice."""
        asked = {
            "deliveries": [dict(delivery) for delivery in deliveries],
            "dryRun": dry_run,
            "states": states,
            "asOf": instant(as_of),
            "consumer": consumer,
        }
        repeatable = dry_run or as_of is not None or verb == "cancel"
        return decode(
            await self._transport.ask("POST", path("v1", verb), **json_body(asked), repeatable=repeatable),
            Acted,
        )

    async def _on_many(
        self, what: str, filter: str, dry_run: bool, rate: float | None, consumer: str | None
    ) -> Job:
        asked = {"filter": filter, "dryRun": dry_run, "rate": number(rate), "consumer": consumer}
        return await self._start_job(path("v1", what), asked)

    async def purge(self, queue: str | None = None, *, channel: str | None = None) -> Job:
        """Everything that waits in a queue or channel out of it."""
        kind, name = destination(queue, channel)
        return await self._start_job(path("v1", f"{kind}s", name, "purge"), {})

    async def payload(self, id: str) -> bytes:
        """A message's body as it was sent."""
        return (await self._get(path("v1", "messages", id, "payload"))).body

    async def job(self, id: str) -> dict[str, Any]:
        return document(await self._get(path("v1", "jobs", id)))

    async def job_done(self, job: Job, every: float = 0.1) -> dict[str, Any]:
        """The job's document once it has ended."""
        if job.id is None:
            raise JobNotFound("of a dry run")
        return [document async for document in self.job_steps(job.id, every)][-1]

    async def job_steps(self, id: str, every: float = 0.1) -> AsyncGenerator[dict[str, Any], None]:
        """The job's document again and again, the last time when it has ended."""
        while True:
            document = await self.job(id)
            yield document
            if document.get("ended") is not None:
                return
            await asyncio.sleep(every)

    async def _start_job(self, at: str, asked: Mapping[str, Any]) -> Job:
        answer = await self._transport.ask("POST", at, **json_body(asked), repeatable=False)
        accepted = decode(answer, Accepted)
        return Job(accepted.job, accepted.matched, accepted.states)

    async def _put(self, at: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        return document(await self._transport.ask("PUT", at, **json_body(asked), repeatable=True))

    async def _delete(self, at: str) -> None:
        await self._transport.ask("DELETE", at, repeatable=True)

    async def _get(self, at: str, query: Query | None = None) -> Answer:
        return await self._transport.ask("GET", at, query, repeatable=True)


async def _each(
    messages: Iterable[NewMessage | Mapping[str, Any]] | AsyncIterable[NewMessage | Mapping[str, Any]],
) -> AsyncIterator[NewMessage | Mapping[str, Any]]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
