"""A worker: the loop around a handler.

    fetch ahead ──▶ buffered ──▶ running (at most `concurrency`) ──▶ ended ──▶ confirm, many in one request
                    '────── held: extended every third of the lease (the heartbeat) ──────'

    returns              success
    raises Retry         retry, after its delay or the queue's back-off
    raises Invalid       invalid: a dead letter at once
    raises NotInterested not interested: for other workers, never again for this one
    raises anything else retry, with the exception as reason

Rules
* What is held stays leased, however long a handler takes, until it is confirmed. If the broker calls a
  receipt stale all the same (this process stood still, say), what is still buffered is dropped.
* `stop` fetches no more, lets everything held come to its end, and confirms it. After `grace` seconds what
  runs is cancelled, and what has not ended is handed back with outcome retry. A plain function runs in a
  thread and cannot be cancelled: then its lease decides.
* A broker that is away is waited for; a queue or channel that does not exist yet, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..delivery import Outcome
from ..errors import ChannelNotFound, QueueNotFound, Refused, WaypostError
from .transport import Unreachable

if TYPE_CHECKING:
    from .forms import Destination, Extended, Message, Settled

log = logging.getLogger("waypost.worker")

#: how long an ended message waits for others to be confirmed with
LINGER_SECONDS = 0.005
#: how long one fetch waits at the broker
WAIT_SECONDS = 20.0
#: pause after a fetch that failed for longer than the client's patience, or found no queue
PAUSE_SECONDS = 1.0
#: how long a stop waits for a fetch under way; one that still waits for messages then has none coming
LAST_FETCH_SECONDS = 0.5
LONGEST_REASON = 300
#: the most one fetch may ask for
MOST_AT_ONCE = 1_000

Handler = Callable[[Any], Awaitable[object] | object]


class Retry(Exception):
    """Raised by a handler: try this message again, after `delay` or the queue's back-off."""

    def __init__(self, reason: str | None = None, *, delay: float | str | None = None) -> None:
        super().__init__(reason or "")
        self.reason, self.delay = reason, delay


class Invalid(Exception):
    """Raised by a handler: this message can never be processed."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "")
        self.reason = reason


class NotInterested(Exception):
    """Raised by a handler: this message is for others."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "")
        self.reason = reason


class Verdict(msgspec.Struct, frozen=True):
    """What is confirmed of a message. Equal ones travel in one request."""

    outcome: Outcome = Outcome.SUCCESS
    reason: str | None = None
    delay: float | str | None = None


SUCCESS = Verdict()
HANDED_BACK = Verdict(Outcome.RETRY, "worker stopped", 0.0)


def verdict_on(error: Exception) -> Verdict:
    """What a handler's exception says of its message."""
    if isinstance(error, Retry):
        return Verdict(Outcome.RETRY, _short(error.reason), error.delay)
    if isinstance(error, Invalid):
        return Verdict(Outcome.INVALID, _short(error.reason))
    if isinstance(error, NotInterested):
        return Verdict(Outcome.NOT_INTERESTED, _short(error.reason))
    text = str(error)
    return Verdict(Outcome.RETRY, _short(f"{type(error).__name__}: {text}" if text else type(error).__name__))


def _short(reason: str | None) -> str | None:
    if reason is None or len(reason) <= LONGEST_REASON:
        return reason
    return reason[: LONGEST_REASON - 1] + "…"


class Pulls(Protocol):
    """What a worker needs of a client."""

    async def fetch(
        self,
        queue: str | None = ...,
        n: int = ...,
        *,
        channel: str | None = ...,
        wait: float = ...,
        lease: float | None = ...,
        topic: str | None = ...,
        consumer: str | None = ...,
    ) -> list[Message]: ...

    async def confirm(
        self,
        queue: str | None = ...,
        receipts: Sequence[str] = ...,
        outcome: str = ...,
        *,
        channel: str | None = ...,
        reason: str | None = ...,
        delay: float | str | None = ...,
        consumer: str | None = ...,
    ) -> list[Settled]: ...

    async def extend(
        self,
        queue: str | None = ...,
        receipts: Sequence[str] = ...,
        *,
        channel: str | None = ...,
        lease: float | None = ...,
    ) -> list[Extended]: ...


class Worker:
    def __init__(
        self,
        client: Pulls,
        source: Destination,
        handler: Handler,
        *,
        concurrency: int = 1,
        ahead: int | None = None,
        lease: float = 30.0,
        topic: str | None = None,
        consumer: str | None = None,
        grace: float = 10.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        kind, self.name = source
        self.queue = self.name if kind == "queue" else None
        self.channel = self.name if kind == "channel" else None
        self.handler, self._client = handler, client
        self._concurrency = concurrency
        self._capacity = concurrency + (concurrency if ahead is None else ahead)
        self._lease, self._topic, self._consumer, self._grace = lease, topic, consumer, grace
        self._threads = (
            None if inspect.iscoroutinefunction(handler) else ThreadPoolExecutor(concurrency, self.name)
        )
        #: by receipt: buffered, running, or ended and not confirmed yet
        self._held: dict[str, Message] = {}
        self._buffer: deque[Message] = deque()
        self._running: dict[asyncio.Task[None], Message] = {}
        self._ended: list[tuple[Message, Verdict]] = []
        self._stopping, self._changed, self._some_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Fetch no more, finish what is held. From the loop's thread."""
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Until `stop`; raises what makes going on senseless (a request that the broker calls invalid)."""
        fetching = asyncio.create_task(self._fetch_on())
        helpers = [asyncio.create_task(self._beat()), asyncio.create_task(self._confirm_on())]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([fetching, stopped, *helpers], return_when=asyncio.FIRST_COMPLETED)
            # The answer to the last fetch may be on its way, and what it brings is leased to us.
            await asyncio.wait([fetching], timeout=LAST_FETCH_SECONDS)
            await _cancel(fetching, stopped)
            await self._finish()
        finally:
            self._buffer.clear()
            await _cancel(fetching, stopped, *helpers, *self._running)
            if self._threads is not None:
                self._threads.shutdown(wait=False)
        for task in (fetching, *helpers):
            if not task.cancelled() and (error := task.exception()):
                raise error

    # ── fetch ───────────────────────────────────────────────────────────────────────────────

    async def _fetch_on(self) -> None:
        told = False
        while True:
            await self._until(lambda: self._stopping.is_set() or self._room() > 0)
            if self._stopping.is_set():
                return
            try:
                messages = await self._client.fetch(
                    self.queue,
                    min(self._room(), MOST_AT_ONCE),
                    channel=self.channel,
                    wait=WAIT_SECONDS,
                    lease=self._lease,
                    topic=self._topic,
                    consumer=self._consumer,
                )
            except WaypostError as error:
                if not isinstance(error, Unreachable | QueueNotFound | ChannelNotFound) and not _passes(
                    error
                ):
                    raise
                log.log(logging.DEBUG if told else logging.WARNING, "%s: %s; trying on", self.name, error)
                told = True
                await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))
                continue
            told = False
            for message in messages:
                self._held[message.receipt] = message
                self._buffer.append(message)
            self._start()

    def _room(self) -> int:
        """How many to fetch: none before half of the place ahead is free, so that fetches bring several."""
        free = self._capacity - len(self._held)
        ahead = self._capacity - self._concurrency
        return free if free > ahead // 2 or not self._buffer else 0

    # ── run ─────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        while self._buffer and len(self._running) < self._concurrency:
            message = self._buffer.popleft()
            task = asyncio.create_task(self._handle(message))
            self._running[task] = message
            task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start()
        self._changed.set()

    async def _handle(self, message: Message) -> None:
        try:
            if self._threads is None:
                result = self.handler(message)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, self.handler, message)
            if inspect.isawaitable(result):
                await result
            verdict = SUCCESS
        except asyncio.CancelledError:
            if self._threads is not None:
                log.warning("%s: %s still runs; its lease decides", self.name, message.id)
                self._held.pop(message.receipt, None)
                return
            verdict = HANDED_BACK
        except Exception as error:
            verdict = verdict_on(error)
            if not isinstance(error, Retry | Invalid | NotInterested):
                log.warning("%s: %s failed: %s", self.name, message.id, verdict.reason, exc_info=error)
        self._settle(message, verdict)

    # ── confirm ─────────────────────────────────────────────────────────────────────────────

    def _settle(self, message: Message, verdict: Verdict) -> None:
        self._ended.append((message, verdict))
        self._some_ended.set()

    async def _confirm_on(self) -> None:
        while True:
            await self._some_ended.wait()
            if self._buffer or len(self._running) > 1:
                await asyncio.sleep(LINGER_SECONDS)
            await self._confirm_ended()

    async def _confirm_ended(self) -> None:
        self._some_ended.clear()
        groups: dict[Verdict, list[Message]] = {}
        for message, verdict in self._ended:
            groups.setdefault(verdict, []).append(message)
        self._ended = []
        await asyncio.gather(*(self._confirm(verdict, group) for verdict, group in groups.items()))
        self._changed.set()

    async def _confirm(self, verdict: Verdict, messages: list[Message]) -> None:
        receipts = [message.receipt for message in messages]
        try:
            results = await self._client.confirm(
                self.queue,
                receipts,
                verdict.outcome.value,
                channel=self.channel,
                reason=verdict.reason,
                delay=verdict.delay,
                consumer=self._consumer,
            )
            for result in results:
                if result.stale:
                    log.warning(
                        "%s: receipt %s was stale; its message comes again", self.name, result.receipt
                    )
        except WaypostError as error:
            log.error("%s: %d messages not confirmed, they come again: %s", self.name, len(receipts), error)
        finally:
            for receipt in receipts:
                self._held.pop(receipt, None)

    # ── keep, and stop ──────────────────────────────────────────────────────────────────────

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            if not self._held:
                continue
            try:
                async with asyncio.timeout(self._lease / 3):
                    results = await self._client.extend(
                        self.queue, list(self._held), channel=self.channel, lease=self._lease
                    )
            except (TimeoutError, WaypostError) as error:
                log.warning("%s: lease not extended: %s", self.name, error or "it took too long")
                continue
            stale = {result.receipt for result in results if result.stale}
            for message in [message for message in self._buffer if message.receipt in stale]:
                self._buffer.remove(message)
                del self._held[message.receipt]
            self._changed.set()

    async def _finish(self) -> None:
        """What is held comes to its end, or is handed back."""
        try:
            async with asyncio.timeout(self._grace):
                await self._until(lambda: not self._running and not self._buffer)
        except TimeoutError:
            handed_back, self._buffer = list(self._buffer), deque()
            for message in handed_back:
                self._settle(message, HANDED_BACK)
            await _cancel(*self._running)
        await self._confirm_ended()
        await self._until(lambda: not self._held)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _passes(error: WaypostError) -> bool:
    """A refusal that ends by itself (busy, stopping)."""
    return isinstance(error, Refused) and error.retry_after is not None


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
