"""The broker: the use cases, as the edges call them.

    publish ─┐                    ┌─ parked fetches (long poll), woken as deliveries become ready
    fetch   ─┼─▶ committer ─▶ store ─ due ─▶ timer ─▶ Tick      jobs ─▶ Work, slice by slice      by the minute ─▶ Reap
    confirm ─┘                    ├─ messages in L ─▶ router ─▶ Decide
                                  └─ followers of the log

Callbacks, not tasks, on the way of a message: `done(result)` is called exactly once, in the loop's thread, with the command's
result or a `Refused`. `ask` is the same for code that would rather await.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from .acts import states_for
from .batches import Packing
from .canonical import content_hash
from .commands import (
    AcceptBatch,
    Batch,
    Command,
    Confirm,
    Decide,
    Decided,
    EnterRows,
    Fetch,
    Fetched,
    Job,
    JobKind,
    KeepUpload,
    Publish,
    PublishMany,
    Reap,
    Release,
    Staged,
    StartJob,
    Tick,
    Upload,
    Work,
)
from .committer import Committer, Done
from .delivery import Outcome, Reason, State
from .destinations import Kind
from .entering import Entering
from .errors import (
    Busy,
    ChannelNotFound,
    ConsumerRequired,
    Failed,
    PayloadDamaged,
    PayloadReaped,
    QueueNotFound,
    Refused,
    StoreBroken,
)
from .filters import Filter
from .instants import SECOND
from .message import payload_hash
from .names import ANONYMOUS
from .router import RouteFunction, Router
from .routing import with_object
from .store import Applied, Event, Heard, Store, Task
from .waiting import WARN_SECONDS, Waiting

log = logging.getLogger("waypost")

#: bodies up to this are hashed in the loop; larger ones in a thread, which hashlib lets run beside it
HASH_IN_LOOP_BYTES = 64 << 10
#: large bodies on their way through the threads
MAX_STAGING_BYTES = 256 << 20
#: how many events one read of the log brings
LOG_CHUNK = 500
#: deliveries that one look of a count brings
COUNTED_AT_ONCE = 1_000
#: decisions that one group takes
DECIDED_AT_ONCE = 1_000


T = TypeVar("T")

#: a queue or channel
_Place = tuple[Kind, str]


class Waiter:
    """A fetch that waits for something to fetch."""

    __slots__ = ("command", "deadline", "done", "place", "ticket", "timer")

    def __init__(self, command: Fetch, done: Done, ticket: int, deadline: float) -> None:
        self.command, self.done, self.ticket = command, done, ticket
        self.place: _Place = (command.kind, command.queue)
        #: by the loop's clock; 0 once it was given up
        self.deadline = deadline
        #: while it is parked
        self.timer: asyncio.TimerHandle | None = None


class Broker:
    def __init__(
        self,
        store: Store,
        *,
        on_broken: Callable[[StoreBroken], None],
        reap_every_seconds: float = 60.0,
        route: RouteFunction | None = None,
        route_seconds: float = 5.0,
        warn_seconds: float = WARN_SECONDS,
        **limits: int,
    ) -> None:
        self.store = store
        self.clock = store.clock
        self._loop = asyncio.get_running_loop()
        self.committer = Committer(store, on_applied=self._applied, on_broken=on_broken, **limits)
        self._threads = ThreadPoolExecutor(2, "payload")
        self._readers = ThreadPoolExecutor(1, "read")
        self._packers = ThreadPoolExecutor(2, "upload")
        self._staging: set[asyncio.Future[None]] = set()
        self._staging_bytes = 0
        self._parked: dict[_Place, dict[int, Waiter]] = {}
        self._tickets = 0
        self._followers: set[asyncio.Event] = set()
        self._awaited = False
        #: called when names changed elsewhere, or when this broker's tasks did
        self.on_renamed: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._ticking = self._working = False
        self._reap_every_seconds = reap_every_seconds
        self._stopping = False
        self._commit = self.committer.submit
        #: publishes are refused, or were when it was last looked at
        self._refusing = True
        self._reaper = self._loop.call_later(min(1.0, reap_every_seconds), self._reap)
        self._router = Router(store, self._decide_inline, route, deadline_seconds=route_seconds)
        self.waiting = Waiting(store, self.look, warn_seconds)
        self._watching = self._loop.create_task(self.waiting.watch())
        #: publishes stop at L, for the router
        self._holding = self._router.routes
        self.entering = Entering(
            store, look=self.look, work=self._pack, prepare=self._prepare, enter=self._enter
        )
        store.listen(self._heard_in_thread)
        # Leases, jobs and messages in L that an earlier process left behind.
        self._tick()
        self._work()
        self._router.wake(1)
        self.entering.wake()

    # ── commands ────────────────────────────────────────────────────────────────────────────

    def submit(self, command: Command, done: Done, size: int = 0) -> None:
        self.committer.submit(command, done, size)

    async def ask(self, command: Command, size: int = 0) -> Any:
        """The result; a Refused is raised. `size`: what it holds in memory, where that is not a publish's."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        if isinstance(command, Publish):
            self.publish(command, done)
        elif isinstance(command, PublishMany):
            self.publish_many(command, done)
        else:
            self.submit(command, done, size)
        result = await answer
        if isinstance(result, Refused):
            raise result
        return result

    def publish(self, command: Publish, done: Done) -> None:
        if (self._refusing or self.committer.idle) and (refusal := self._publish_refusal()) is not None:
            done(refusal)
            return
        body = command.body
        assert isinstance(body, bytes)
        size = len(body)
        if self._holding:
            command.hold = True
        if size <= HASH_IN_LOOP_BYTES:
            command.hash = payload_hash(body)
            self._commit(command, done, size)
        else:
            self._stage([command], size, done, lambda: self.committer.submit(command, done, _held(command)))

    def publish_many(self, command: PublishMany, done: Done) -> None:
        if (self._refusing or self.committer.idle) and (refusal := self._publish_refusal()) is not None:
            done(refusal)
            return
        size = 0
        for message in command.messages:
            size += len(message.body)  # type: ignore[arg-type]
            if self._holding:
                message.hold = True
        if size <= 4 * HASH_IN_LOOP_BYTES:
            for message in command.messages:
                message.hash = message.hash or payload_hash(message.body)  # type: ignore[arg-type]
            self.committer.submit(command, done, size)
        else:
            messages = command.messages
            self._stage(
                messages, size, done, lambda: self.committer.submit(command, done, sum(map(_held, messages)))
            )

    def _publish_refusal(self) -> Exception | None:
        """Asked before the first publish of a group and after every group; while there is one, by each."""
        refusal = Busy("the broker is stopping") if self._stopping else self.store.refusal()
        self._refusing = refusal is not None
        return refusal

    def _stage(self, messages: list[Publish], size: int, done: Done, then: Callable[[], None]) -> None:
        """Hash, and put large bodies away, in a thread; then go on in the loop."""
        if self._staging_bytes + size > MAX_STAGING_BYTES:
            done(Busy("too many large bodies at once"))
            return

        ignored = None if self.store.shared else self._ignored(messages)

        def put_away() -> None:
            self._put_away(messages, self._ignored(messages) if ignored is None else ignored)

        def staged(future: asyncio.Future[None]) -> None:
            self._staging.discard(future)
            self._staging_bytes -= size
            error = future.exception()
            if error is None:
                then()
            elif isinstance(error, Refused):
                done(error)
            else:
                self.committer.broke(error)

        self._staging_bytes += size
        future = self._loop.run_in_executor(self._threads, put_away)
        self._staging.add(future)
        future.add_done_callback(staged)

    def _put_away(self, messages: list[Publish], ignored: list[tuple[str, ...] | None]) -> None:
        """In a thread."""
        for message, ignore in zip(messages, ignored, strict=True):
            body = message.body
            assert isinstance(body, bytes)
            message.hash = message.hash or payload_hash(body)
            if ignore is not None:
                message.content = content_hash(body, ignore)
            if len(body) > self.store.inline_bytes:
                message.body = self.store.stage(body)

    def _ignored(self, messages: list[Publish]) -> list[tuple[str, ...] | None]:
        """For each, the paths that its content's hash leaves out; None where nothing is compared."""
        by_object: dict[str, tuple[str, ...] | None] = {}
        ignored: list[tuple[str, ...] | None] = []
        for message in messages:
            object = with_object(message.envelope).object
            if message.hold or message.envelope.key is None or object is None:
                ignored.append(None)
                continue
            if object not in by_object:
                info = self.store.object(object)
                unchanged = None if info is None else info.policy.unchanged
                by_object[object] = None if unchanged is None else unchanged.ignore
            ignored.append(by_object[object])
        return ignored

    # ── uploads and batches ─────────────────────────────────────────────────────────────────

    async def keep_upload(self, size: int, pack: Callable[[], Packing]) -> Upload:
        """Rows that wait for a batch, and that nobody sees. `pack` reads and checks them, in a thread; `size` is what it works on."""
        packing = await self.read_rows(size, pack)
        id = os.urandom(16).hex()
        body = await self._put_chunk(id, packing)
        upload: Upload = await self.ask(KeepUpload(id=id, body=body, rows=packing.rows, hash=packing.hash))
        return upload

    async def read_rows(self, size: int, read: Callable[[], T]) -> T:
        """Messages that are read and checked in a thread; `size` is what that works on."""
        if (refusal := self._publish_refusal()) is not None:
            raise refusal
        if self._staging_bytes + size > MAX_STAGING_BYTES:
            raise Busy("too many requests of Arrow at once")
        self._staging_bytes += size
        try:
            return await self._pack(read)
        finally:
            self._staging_bytes -= size

    async def _put_chunk(self, id: str, packing: Packing) -> bytes | Staged:
        try:
            return await self._loop.run_in_executor(
                self._packers, lambda: self.store.stage_chunk(id, packing.chunk())
            )
        except Refused:
            raise
        except Exception as error:
            self.committer.broke(error)
            raise

    async def _pack(self, work: Callable[..., T], *given: Any) -> T:
        """In a thread; a fault in it is one request's alone."""
        try:
            return await self._loop.run_in_executor(self._packers, work, *given)
        except (Refused, StoreBroken, ValueError):
            raise
        except Exception as error:
            log.exception("rows could not be read")
            raise Failed(f"{type(error).__name__}: {error}") from error

    async def accept_batch(self, command: AcceptBatch) -> Batch:
        batch: Batch = await self.ask(command)
        if batch.ended_at is None:
            self.entering.wake(batch)
        return batch

    async def _prepare(self, messages: list[Publish]) -> None:
        """As a publish of its own would be: large bodies are hashed and put away in a thread."""
        large = [message for message in messages if len(message.body) > HASH_IN_LOOP_BYTES]  # type: ignore[arg-type]
        if large:
            ignored = await self.look(self._ignored, large)
            await self._pack(self._put_away, large, ignored)

    async def _enter(self, command: EnterRows) -> Batch:
        if (refusal := self._publish_refusal()) is not None:
            raise refusal
        messages = command.messages
        for message in messages:
            message.hold = self._holding
        batch: Batch = await self.ask(command, sum(map(_held, messages)))
        return batch

    # ── decisions ───────────────────────────────────────────────────────────────────────────

    async def decide(self, decisions: list[Decide]) -> list[Decided | Refused]:
        """Of Spark, in the order given. Raises Busy: then those at the beginning may be decided, and none is after one that is
        not; a repeat does no harm."""
        results: list[Decided | Refused] = []
        for start in range(0, len(decisions), DECIDED_AT_ONCE):
            decided = await self._decide_group(decisions[start : start + DECIDED_AT_ONCE])
            busy = next((result for result in decided if isinstance(result, Busy)), None)
            if busy is not None:
                raise busy
            results += decided
        return results

    async def _decide_group(self, group: list[Decide]) -> list[Decided | Refused]:
        """Submitted in one go: where the commit queue has no room for one, it has none for those after it."""
        results: dict[int, Decided | Refused] = {}
        answered: asyncio.Future[None] = self._loop.create_future()

        def done(place: int, result: Decided | Refused) -> None:
            results[place] = result
            self.waiting.count("spark", group[place], result)
            if len(results) == len(group):
                answered.set_result(None)

        for place, decision in enumerate(group):
            self.submit(decision, partial(done, place))
        await answered
        return [results[place] for place in range(len(group))]

    def _decide_inline(self, decision: Decide, done: Done) -> None:
        def counted(result: Any) -> None:
            self.waiting.count("inline", decision, result)
            done(result)

        self.submit(decision, counted)

    # ── fetch, with its wait ────────────────────────────────────────────────────────────────

    def fetch(self, command: Fetch, done: Done, wait_us: int = 0) -> Waiter | None:
        """`done` gets list[Fetched], empty when nothing came within the wait. The returned waiter can be given up."""
        # In a shared home only a transaction knows.
        ready = 1 if self.store.shared else self.store.ready(command.queue, command.kind)
        if ready is None and self.committer.idle:
            missing = QueueNotFound if command.kind is Kind.QUEUE else ChannelNotFound
            done(missing(command.queue))
            return None
        if ready == 0 and command.consumer == ANONYMOUS and self._counts_consumers(command):
            done(ConsumerRequired(f"{command.kind.word} {command.queue!r} counts its consumers"))
            return None
        waiter = None
        if wait_us and not self._stopping:
            self._tickets += 1
            waiter = Waiter(command, done, self._tickets, self._loop.time() + wait_us / SECOND)
        if ready == 0 and self.committer.idle:
            # An empty queue costs no transaction.
            if waiter is None:
                done([])
            else:
                self._park(waiter)
        elif waiter is None:
            self.committer.submit(command, lambda result: self._hand_over(result, command, done))
        else:
            self._try(waiter)
        return waiter

    def _counts_consumers(self, command: Fetch) -> bool:
        find = self.store.queue if command.kind is Kind.QUEUE else self.store.channel
        info = find(command.queue)
        return info is not None and info.policy.counts_consumers

    def give_up(self, waiter: Waiter) -> None:
        """Its connection is gone: forget the fetch. What is being fetched for it already comes to `done` all the same."""
        waiter.deadline = 0.0
        self._unpark(waiter)

    def release(self, fetched: list[Fetched]) -> None:
        """What was fetched for somebody who is gone goes back at once."""
        self.submit(Release([message.receipt for message in fetched]), _ignore)

    def _park(self, waiter: Waiter) -> None:
        waiter.timer = self._loop.call_at(waiter.deadline, self._waited, waiter)
        self._parked.setdefault(waiter.place, {})[waiter.ticket] = waiter
        self._say_awaited()

    def _unpark(self, waiter: Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None
        parked = self._parked.get(waiter.place, {})
        parked.pop(waiter.ticket, None)
        if not parked:
            self._parked.pop(waiter.place, None)
            self._say_awaited()

    def _try(self, waiter: Waiter) -> None:
        def tried(result: Any) -> None:
            if result == [] and self._loop.time() < waiter.deadline and not self._stopping:
                self._park(waiter)
                # Ready, but not for this one: the next in line may have it.
                self._wake(waiter.place, 1, waiter.ticket)
            else:
                self._hand_over(result, waiter.command, waiter.done)

        self.committer.submit(waiter.command, tried)

    def _waited(self, waiter: Waiter) -> None:
        self._unpark(waiter)
        waiter.done([])

    def _wake(self, place: _Place, ready: int, after: int = 0) -> None:
        """First come, first served, and no more than there is something for."""
        parked = self._parked.get(place)
        if not parked:
            return
        for ticket in sorted(ticket for ticket in parked if ticket > after):
            if ready <= 0:
                return
            waiter = parked[ticket]
            self._unpark(waiter)
            ready -= waiter.command.n
            self._try(waiter)

    def _hand_over(self, result: Any, command: Fetch, done: Done) -> None:
        """Large bodies are read in a thread first; one that is damaged goes to the dead letters instead."""
        if isinstance(result, Refused) or not _large(result):
            done(result)
            return

        def read() -> tuple[list[Fetched], list[str]]:
            whole, damaged = [], []
            for message in result:
                try:
                    whole.append(_with_body(message, self.store))
                except (PayloadDamaged, PayloadReaped) as error:
                    log.error("message %s: %s", message.id, error)
                    damaged.append(message.receipt)
            return whole, damaged

        def finished(future: asyncio.Future[tuple[list[Fetched], list[str]]]) -> None:
            error = future.exception()
            if error is None:
                whole, damaged = future.result()
                if damaged:
                    invalid = Confirm(
                        queue=command.queue,
                        kind=command.kind,
                        receipts=damaged,
                        outcome=Outcome.INVALID,
                        reason=Reason.DAMAGED,
                    )
                    self.submit(invalid, _ignore)
                done(whole)
            elif isinstance(error, Refused):
                done(error)
            else:
                self.committer.broke(error)

        self._loop.run_in_executor(self._threads, read).add_done_callback(finished)

    # ── work on many, and the log ───────────────────────────────────────────────────────────

    async def count(self, kind: JobKind, filter: Filter) -> dict[State, int]:
        """How many deliveries a job would take now, by state."""
        chosen = _chosen(kind, filter)
        states: dict[State, int] = {}
        after: int | None = 0
        while after is not None:
            found, after = await self.look(self.store.find, chosen, after, COUNTED_AT_ONCE)
            for delivery in found:
                states[delivery.state] = states.get(delivery.state, 0) + 1
            await asyncio.sleep(0)
        return states

    async def start_job(
        self, kind: JobKind, filter: Filter, *, consumer: str | None = None, rate: float | None = None
    ) -> Job:
        """`consumer`: the only one to have them again."""
        matched = sum((await self.count(kind, filter)).values())
        job: Job = await self.ask(
            StartJob(kind=kind, filter=_chosen(kind, filter), matched=matched, consumer=consumer, rate=rate)
        )
        return job

    async def read(self, lo: int, hi: int) -> AsyncGenerator[list[Event], None]:
        """The events lo … hi, in chunks, letting others run in between."""
        while lo <= hi:
            chunk = await self.look(self.store.events, lo, min(hi, lo + LOG_CHUNK - 1))
            if len(chunk) != min(hi, lo + LOG_CHUNK - 1) - lo + 1:
                raise StoreBroken(f"the log has a gap after offset {lo}")
            yield chunk
            lo += len(chunk)
            await asyncio.sleep(0)

    async def grown(self, head: int, seconds: float) -> int:
        """The log's head as soon as it is beyond `head`, or after the timeout."""
        changed = asyncio.Event()
        self._followers.add(changed)
        self._say_awaited()
        try:
            async with asyncio.timeout(seconds):
                while (await self.look(self.store.bounds))[1] <= head and not self._stopping:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            pass
        finally:
            self._followers.discard(changed)
            self._say_awaited()
        return (await self.look(self.store.bounds))[1]

    async def look(self, read: Callable[..., T], *given: Any) -> T:
        """A read of the store: where it may take its time, in a thread."""
        if not self.store.shared:
            return read(*given)
        return await self._loop.run_in_executor(self._readers, read, *given)

    # ── what runs by itself ─────────────────────────────────────────────────────────────────

    def _say_awaited(self) -> None:
        awaited = bool(self._parked or self._followers)
        if awaited != self._awaited:
            self._awaited = awaited
            self.store.awaited(awaited)

    def _heard_in_thread(self, heard: Heard) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            self._loop.call_soon_threadsafe(self._heard, heard)

    def _heard(self, heard: Heard) -> None:
        """Others in the same home did something."""
        if self._stopping:
            return
        self._rouse(heard.applied)
        if heard.timed:
            self._set_tasks(heard.applied)
        if heard.renamed:
            for renamed in self.on_renamed:
                renamed()

    def _applied(self, applied: Applied) -> None:
        self._publish_refusal()
        self._rouse(applied)
        self._set_tasks(applied)

    def _rouse(self, applied: Applied) -> None:
        """Those who wait for what became ready."""
        if self._parked:
            for queue, ready in applied.ready.items():
                self._wake((Kind.QUEUE, queue), ready)
            for channel, ready in applied.ready_channels.items():
                self._wake((Kind.CHANNEL, channel), ready)
        if applied.logged is not None:
            self._router.wake(applied.logged)
        for changed in self._followers:
            changed.set()

    def _set_tasks(self, applied: Applied) -> None:
        if applied.due_at != self._timer_at:
            self._set_timer(applied.due_at)
        if applied.working and not self._working:
            self._work()

    def _set_timer(self, due_at: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due_at
        if due_at is not None and not self._stopping:
            self._timer = self._loop.call_later(max(0, due_at - self.clock()) / SECOND, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        if not self._ticking and self.store.owns(Task.EXPIRY):
            self._ticking = True
            self.submit(Tick(), self._ticked)

    def _ticked(self, more: Any) -> None:
        self._ticking = False
        if more is True:
            self._tick()
        elif isinstance(more, Refused):
            self._loop.call_later(0.1, self._tick)

    def _work(self) -> None:
        if not self.store.owns(Task.JOBS):
            return
        self._working = True
        self.submit(Work(), self._worked)

    def _worked(self, more: Any) -> None:
        self._working = False
        if more is True:
            self._work()
        elif isinstance(more, Refused):
            self._loop.call_later(0.1, self._work)

    def _reap(self) -> None:
        def reaped(more: Any) -> None:
            seconds = 0.05 if more is True else self._reap_every_seconds
            if not self._stopping:
                self._reaper = self._loop.call_later(seconds, self._reap)

        if self.store.owns(Task.REAPING):
            self.submit(Reap(), reaped)
        else:
            reaped(False)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    @property
    def stopping(self) -> bool:
        return self._stopping

    def drain(self) -> None:
        """No new publishes, no waiting: long polls answer now, followers end."""
        self._stopping = self._refusing = True
        self._reaper.cancel()
        self._set_timer(None)
        self._router.stop()
        self.entering.stop()
        self._watching.cancel()
        for parked in list(self._parked.values()):
            for waiter in list(parked.values()):
                self.give_up(waiter)
                waiter.done([])
        for changed in self._followers:
            changed.set()

    async def close(self) -> None:
        self.drain()
        while self._staging:
            await asyncio.wait(self._staging)
        await self.committer.flush()
        self.committer.close()
        self._threads.shutdown()
        self._readers.shutdown()
        self._packers.shutdown()
        self.store.close()


def _ignore(result: Any) -> None:
    pass


def _chosen(kind: JobKind, filter: Filter) -> Filter:
    """What of a filter's a job of this kind may touch."""
    return msgspec.structs.replace(filter, states=states_for(kind, filter.states), existing=True)


def _large(fetched: list[Fetched]) -> bool:
    return len(fetched) != 0 and Staged in {type(message.body) for message in fetched}


def _held(message: Publish) -> int:
    """What it brings into a group: a staged body lies in its file already."""
    body = message.body
    return 0 if isinstance(body, Staged) else len(body)


def _with_body(message: Fetched, store: Store) -> Fetched:
    if not isinstance(message.body, Staged):
        return message
    return msgspec.structs.replace(message, body=store.unstage(message.body))
