"""The keeper: what the broker does about its lake, without ever waiting for it.

    once a second: what is due? ──▶ seal    60 s after the first unsealed event, or 500,000 of them, or when somebody asks
                                ──▶ erase   payloads that were erased in the store
                                ──▶ maintain, daily
    readers ──▶ events, tables ──▶ pieces of Arrow or lines of JSON, at the reader's pace
                                        │
                        the child (child.py), started when it is first needed

Where brokers share a store, one of them at a time writes to the lake, the one whose task `Task.SEAL` is; the keepers of the others open it
to read, follow how far it has come, and pass on what they are asked.

All work on the lake's files and all Arrow is the child's. When it fails, or is killed, the broker goes on: the failure is
shown (status, metrics, health), what is not sealed stays in the store, and it is tried again after a while. A child that is asked twice
does it once: the tables themselves say how far they go.

This file imports neither pyarrow nor deltalake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ..broker import Broker
from ..commands import Erased, Seal
from ..errors import Busy, LakeUnavailable, LogTrimmed, Refused, RequestInvalid
from ..instants import instant_text
from ..store import Store, Task
from .frames import Tell
from .owner import Lake
from .process import WINDOW_PIECES, Call, ChildFailed, ChildGone, Process

log = logging.getLogger("waypost")

#: what the `lake` extra brings
NEEDED = ("adbc_driver_sqlite", "deltalake", "numpy", "pyarrow")
EXTRA = "pip install 'waypost[lake]'"
#: reads that the child has open at a time; further ones wait their turn
MOST_READS = 16
TURN_SECONDS = 20.0
#: how long somebody who asks for the log waits for a lake that is being opened
REACH_SECONDS = 5.0
#: between two looks for removed files that may go from the disk
TIDY_SECONDS = 600.0
#: a seal that another broker was asked for, and that makes no progress, is waited for so long
FORWARDED_SECONDS = 60.0
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0

Form = Literal["arrow", "json"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How soon things are done."""

    seal_seconds: float = 60.0
    seal_events: int = 500_000
    #: an erasure rewrites a file, so those that come together are done together
    erase_seconds: float = 10.0
    maintain_seconds: float = 86_400.0
    look_seconds: float = 1.0


def missing_packages() -> list[str]:
    """Of the `lake` extra; looked for, not imported."""
    return [name for name in NEEDED if find_spec(name) is None]


def is_seal_due(pace: Pace, unsealed: int, waited_seconds: float) -> bool:
    return unsealed >= pace.seal_events or (unsealed > 0 and waited_seconds >= pace.seal_seconds)


def wait_after(failures: int) -> float:
    """Once may be chance: it is tried again at once. Then ever later."""
    if failures <= 1:
        return 0.0
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 2, 10))


class Standing(NamedTuple):
    """What the store says."""

    #: the log's first and last offsets
    oldest: int
    head: int
    #: 0: nothing yet
    sealed: int
    #: sequences
    erasures: list[int]

    @classmethod
    def of(cls, store: Store) -> Standing:
        return cls(*store.bounds(), store.sealed() or 0, store.erasures())


class Keeper:
    """`folder` None: no lake; the child is there for Arrow alone."""

    def __init__(
        self, broker: Broker, folder: Path | None, *, keep_us: int | None = None, pace: Pace | None = None
    ) -> None:
        source = broker.store.export_source()
        if source is None:
            raise ValueError("this store cannot be read by another process")
        self.folder = folder
        self._broker, self._source, self._keep_us, self._pace = broker, source, keep_us, pace or Pace()
        self._store: Store = broker.store
        # Until the lake was seen, nothing is forgotten: it may be an older copy.
        self._store.use_lake(folder is not None, 0)
        #: of a store that is a server's: when it was last looked at
        self._stood = Standing.of(self._store)
        #: None: no other broker can write to the lake
        self._tenure = self._store.tenure(Task.SEAL)
        self._loop = asyncio.get_running_loop()
        self._process: Process | None = None
        #: the process that has the lake open
        self._opened_by: Process | None = None
        #: and whether that was to write
        self._opened_to_write = False
        self._starting, self._opening = asyncio.Lock(), asyncio.Lock()
        self._reads = asyncio.Semaphore(MOST_READS)
        self._tending: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        #: what the lake itself says: its last event, and its first; None until it was asked
        self._lake_sealed: int | None = None
        self._lake_oldest: int | None = None
        #: by the loop's clock
        self._unsealed_since: float | None = None
        self._erasures_since: float | None = None
        self._maintain_at: float | None = None
        self._tidy_at: float | None = None
        self._not_tidied_before = 0.0
        self._hold_until = 0.0
        #: who asked for a seal, and up to where
        self._asked: list[tuple[int, asyncio.Future[int]]] = []
        self._maintenance_asked: list[asyncio.Future[dict[str, Any]]] = []
        self._failures_in_a_row = 0
        self.failure: str | None = None
        #: for /metrics
        self.failures = self.sealed_events = self.reads = 0
        self.seal_seconds = 0.0
        self.sealing = False
        self._sealed_at: int | None = None

    def start(self) -> None:
        if self.folder is not None:
            self._tending = self._loop.create_task(self._tend())

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            with suppress(asyncio.CancelledError):
                await self._tending
        self._disappoint(LakeUnavailable("the broker is stopping"))
        async with self._starting:
            process, self._process = self._process, None
        if process is not None:
            await process.stop()

    # ── what it knows ───────────────────────────────────────────────────────────────────────

    @property
    def _standing(self) -> Standing:
        return self._stood if self._store.shared else Standing.of(self._store)

    async def _look(self) -> Standing:
        """The same, as it is now."""
        self._stood = await self._broker.look(Standing.of, self._store)
        return self._stood

    @property
    def mine(self) -> bool:
        """Whether it is this broker that writes to the lake."""
        return self._store.owns(Task.SEAL)

    @property
    def sealed(self) -> int:
        """As far as both say: a lake that was put back from a copy has less than the store believes."""
        told = self._standing.sealed
        return told if self._lake_sealed is None else min(told, self._lake_sealed)

    @property
    def lag(self) -> int:
        """Events that are not in the lake yet."""
        oldest, head, *_ = self._standing
        return 0 if self.folder is None else max(0, head - max(self.sealed, oldest - 1))

    @property
    def oldest(self) -> int:
        """The first offset that can be read, as far as is known without asking the child."""
        oldest = self._standing.oldest
        return oldest if self._lake_oldest is None else min(oldest, self._lake_oldest)

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.gone else self._process.pid

    async def reach(self) -> int:
        """The first offset that can be read. Raises LakeUnavailable when only the lake could tell."""
        standing = await self._look()
        if standing.oldest > 1 and standing.sealed and self._lake_sealed is None:
            await self._with_open_lake()
        return self.oldest

    async def status(self) -> dict[str, Any]:
        oldest, head, *_ = await self._look()
        last = await self._broker.look(self._store.events, head, head) if oldest <= head else []
        return {
            "lake": None if self.folder is None else str(self.folder),
            "store": self._store.id(),
            "oldest": self.oldest,
            "sealed": None if self.folder is None else self.sealed,
            "head": head,
            "at": instant_text(last[0].at) if last else None,
            "lag": self.lag,
            "sealing": {
                "here": self.mine,
                "running": self.sealing,
                "process": self.pid,
                "events": self.sealed_events,
                "seconds": round(self.seal_seconds, 3),
                "last": None if self._sealed_at is None else instant_text(self._sealed_at),
                "failures": self.failures,
                "erasures": len(self._standing.erasures),
            },
            "failure": self.failure,
        }

    # ── what can be asked ───────────────────────────────────────────────────────────────────

    async def seal(self) -> int:
        """When all that is committed now is in the lake: how far it goes."""
        head = (await self._look()).head
        asked: asyncio.Future[int] = self._loop.create_future()
        self._asked.append((head, asked))
        self._hurry()
        if self._tenure is not None and not self.mine:
            await self._broker.look(self._tenure.ask, head)
            await self._progress(asked)
        return await asked

    async def _progress(self, asked: asyncio.Future[int]) -> None:
        """While another broker seals."""
        while not asked.done():
            before = self.sealed
            await asyncio.wait([asked], timeout=FORWARDED_SECONDS)
            if not asked.done() and self.sealed == before:
                asked.cancel()
                raise LakeUnavailable(f"another broker seals, and has come to {before} so far")

    async def maintain(self) -> dict[str, Any]:
        if not self.mine:
            raise LakeUnavailable(
                "another broker looks after the lake", "ask that one; it does so daily by itself"
            )
        asked: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._maintenance_asked.append(asked)
        self._hurry()
        return await asked

    async def offset_at(self, at: int) -> int | None:
        """The first offset in the lake whose event is not before that instant; None: none is. Raises LogTrimmed."""
        figures = await self._ask_lake("offset_at", at=at)
        found: int | None = figures["offset"]
        oldest_at = figures["oldest_at"]
        if oldest_at is not None and at < oldest_at and self.oldest > 1:
            raise LogTrimmed(self.oldest, oldest_at)
        return found

    async def find(self, id: str) -> int | None:
        """The sequence of a message that the lake has, though perhaps not the store."""
        if not self.sealed:
            return None
        async with self._reads:  # an id of the producer's own may mean a look at all of them
            sequence: int | None = (await self._ask_lake("find", message=id))["sequence"]
        return sequence

    async def events(
        self,
        lo: int,
        hi: int,
        *,
        form: Form = "arrow",
        columns: Sequence[str] | None = None,
        queue: str | None = None,
        channel: str | None = None,
        topic: str | None = None,
        payload: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The events lo … hi: an Arrow stream, or lines of JSON. One that ends is whole. Raises before its first piece what is wrong
        with the request."""
        given = {
            "lo": lo,
            "hi": hi,
            "form": form,
            "columns": columns,
            "queue": queue,
            "channel": channel,
            "topic": topic,
            "payload": payload,
            "limit": limit,
            "erased": (await self._look()).erasures if payload else [],
        }
        only_lake = form == "json"
        async with aclosing(self._read("events", lo, given, only_lake)) as pieces:
            async for piece in pieces:
                yield piece

    async def table(
        self, name: str, lo: int, hi: int, columns: Sequence[str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The store's own rows of messages whose sequence is lo … hi, as an Arrow stream."""
        given = {"table": name, "lo": lo, "hi": hi, "columns": columns}
        async with aclosing(self._read("table", None, given)) as pieces:
            async for piece in pieces:
                yield piece

    async def _read(
        self, do: str, lo: int | None, given: dict[str, Any], only_lake: bool = False
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._reads.acquire()
        except TimeoutError:
            raise Busy(f"{MOST_READS} reads are under way", "try again after Retry-After seconds") from None
        try:
            process, use_lake = await self._for_reading(lo, only_lake)
            self.reads += 1
            call = process.ask(do, use_lake=use_lake, pieces=WINDOW_PIECES, **given)
            try:
                async for _, body in self._judged(call, hold=False):
                    if body:
                        yield body
            finally:
                process.drop(call)
        finally:
            self._reads.release()

    async def _for_reading(self, lo: int | None, only_lake: bool) -> tuple[Process, bool]:
        """The child, and whether it may read in the lake: what the store still has does not need one that is in order."""
        if lo is None or self.folder is None:
            return await self._with_process(), False
        standing = await self._look()
        if lo > standing.sealed:
            return await self._with_process(), False
        try:
            return await self._with_open_lake(), True
        except LakeUnavailable:
            if only_lake or lo < standing.oldest:
                raise
            return await self._with_process(), False

    async def _judged(self, call: Call, hold: bool = True) -> AsyncIterator[tuple[Tell, bytes]]:
        """What the child tells; its failures as refusals, noted where they are the lake's. `hold`: what failed is not tried again
        at once. Reads hold nothing up: somebody who reads a damaged file again and again must not keep others from sealing."""
        try:
            async for told in call:
                yield told
        except ChildGone as gone:
            raise LakeUnavailable(str(gone)) from gone
        except ChildFailed as failed:
            if failed.code == LogTrimmed.code:
                raise LogTrimmed(self.oldest) from failed
            if failed.code:
                raise RequestInvalid(failed.detail, failed.hint, failed.code) from failed
            self._failed(failed.detail) if hold else self._note(failed.detail)
            raise LakeUnavailable(failed.detail) from failed

    async def _ask_lake(self, do: str, **given: Any) -> dict[str, Any]:
        process = await self._with_lake()
        call = process.ask(do, **given)
        try:
            async for _ in self._judged(call):
                pass
        finally:
            process.drop(call)
        assert call.result is not None
        return call.result

    # ── the child ───────────────────────────────────────────────────────────────────────────

    async def _with_process(self) -> Process:
        async with self._starting:
            if self._process is None or self._process.gone:
                self._check_hold()
                try:
                    self._process = await Process.start(self._failed)
                except OSError as error:
                    self._failed(f"the lake's process cannot be started: {error}")
                    raise LakeUnavailable(self.failure or "") from error
                self._process.ask("begin", source=self._source)
            return self._process

    async def _with_lake(self) -> Process:
        """With the lake open: its damage mended, its lock held, and known how far it goes; or to read, where another broker writes."""
        process = await self._with_process()
        async with self._opening:
            writes = self.mine
            if self._opened_by is not process or self._opened_to_write != writes:
                self._check_hold()
                call = process.ask(
                    "open",
                    lake=str(self.folder),
                    store=await self._broker.look(self._store.id),
                    keep_us=self._keep_us,
                    writes=writes,
                    broker=None if self._tenure is None else self._tenure.broker,
                )
                async for _ in self._judged(call):
                    pass
                assert call.result is not None
                for line in call.result["mended"]:
                    log.warning("lake: %s", line)
                self._learn(call.result)
                self._opened_by, self._opened_to_write = process, writes
                self._went_well()
            elif not writes and (self._lake_sealed or 0) < self._stood.sealed:
                call = process.ask("look")
                async for _ in self._judged(call):
                    pass
                assert call.result is not None
                self._learn(call.result)
            return process

    async def _with_open_lake(self) -> Process:
        """The same, without waiting for long."""
        try:
            async with asyncio.timeout(REACH_SECONDS):
                return await self._with_lake()
        except TimeoutError:
            raise LakeUnavailable("the lake is still being opened") from None

    def _learn(self, figures: dict[str, Any]) -> None:
        """What the child says of the lake."""
        self._lake_oldest, self._lake_sealed = figures["oldest"], figures["sealed"]
        self._store.use_lake(True, self._lake_sealed)
        if not self.mine:
            return
        # Its moments are those of files; here the loop's clock counts.
        ahead = self._loop.time() - time.time()
        self._maintain_at = figures["maintained_at"] + self._pace.maintain_seconds + ahead
        self._tidy_at = None if figures["tidy_at"] is None else figures["tidy_at"] + ahead

    def _check_hold(self) -> None:
        if self._loop.time() < self._hold_until:
            raise LakeUnavailable(self.failure or "the lake failed and is tried again soon")

    def _note(self, why: str) -> None:
        if why != self.failure:
            log.error("lake: %s", why)
        self.failure = why
        self.failures += 1

    def _failed(self, why: str) -> None:
        self._note(why)
        self._failures_in_a_row += 1
        self._hold_until = self._loop.time() + wait_after(self._failures_in_a_row)

    def _went_well(self) -> None:
        if self.failure is not None:
            log.info("lake: in order again")
        self.failure = None
        self._failures_in_a_row = 0

    def _hurry(self) -> None:
        """Somebody asked: no waiting because it failed before."""
        self._hold_until = 0.0
        self._woken.set()

    # ── what is done by itself ──────────────────────────────────────────────────────────────

    async def _tend(self) -> None:
        while True:
            await self._try(self._do_what_is_due())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look_seconds):
                    await self._woken.wait()
            self._woken.clear()

    async def _try(self, work: Any) -> None:
        try:
            await work
        except Refused as refused:
            if not isinstance(refused, Busy):
                self._disappoint(refused)
        except Exception as error:
            log.exception("lake")
            self._failed(f"{type(error).__name__}: {error}")
            self._disappoint(LakeUnavailable(str(error)))

    def _disappoint(self, refused: Refused) -> None:
        """Those who asked hear that it failed."""
        waiting = [future for _, future in self._asked] + list(self._maintenance_asked)
        self._asked, self._maintenance_asked = [], []
        for future in waiting:
            if not future.done():
                future.set_exception(refused)

    async def _do_what_is_due(self) -> None:
        if self._store.shared:
            await self._look()
        if self._is_time(self._hold_until) and self._is_closed_lake():
            await self._with_lake()  # so that damage is mended at once, and known
        if not self.mine:
            self._tell_who_asked()
            return
        await self._tell_store()
        if self._is_seal_due():
            await self._seal()
        if not self._is_time(self._hold_until):
            return
        if self._are_erasures_due():
            await self._erase()
        if self._maintenance_asked or self._is_time(self._maintain_at):
            await self._maintain()
        elif self._is_time(self._tidy_at) and self._is_time(self._not_tidied_before):
            self._not_tidied_before = self._loop.time() + TIDY_SECONDS
            self._learn(await self._ask_lake("tidy"))

    def _is_time(self, at: float | None) -> bool:
        return at is not None and self._loop.time() >= at

    def _is_closed_lake(self) -> bool:
        """There is one, and no process has it open, or not as it should have."""
        if self._opened_by is not None and not self._opened_by.gone:
            behind = (self._lake_sealed or 0) < self._stood.sealed
            return self._opened_to_write != self.mine or (not self.mine and behind)
        return self.folder is not None and Lake(self.folder).label.exists()

    def _is_seal_due(self) -> bool:
        now, unsealed = self._loop.time(), self.lag
        if unsealed == 0:
            self._unsealed_since = None
        elif self._unsealed_since is None:
            self._unsealed_since = now
        self._tell_who_asked()
        if self._asked:
            return True
        if self._tenure is not None and self._tenure.asked() > self.sealed and unsealed:
            return self._is_time(self._hold_until)
        waited = 0.0 if self._unsealed_since is None else now - self._unsealed_since
        return self._is_time(self._hold_until) and is_seal_due(self._pace, unsealed, waited)

    async def _seal(self) -> None:
        self.sealing = True
        try:
            process = await self._with_lake()
            call = process.ask("seal", upto=(await self._look()).head)
            began = self._loop.time()
            async for tell, _ in self._judged(call):
                await self._sealed(tell.figures)
            assert call.result is not None
            await self._sealed(call.result)
            self.seal_seconds = self._loop.time() - began
            self._sealed_at = self._broker.clock()
            self._unsealed_since = None
        finally:
            self.sealing = False

    async def _sealed(self, figures: dict[str, Any]) -> None:
        """The lake goes so far, on stable media: the store may forget it."""
        before = self.sealed
        self._learn(figures)
        await self._tell_store()
        self.sealed_events += max(0, self.sealed - before)
        self._went_well()
        self._tell_who_asked()

    async def _tell_store(self) -> None:
        """Also of what was sealed for a broker that died before it knew."""
        if (self._lake_sealed or 0) > self._standing.sealed:
            await self._broker.ask(Seal(self._lake_sealed or 0))
            await self._look()

    def _tell_who_asked(self) -> None:
        sealed = self.sealed
        for upto, future in self._asked:
            if upto <= sealed and not future.done():
                future.set_result(sealed)
        self._asked = [(upto, future) for upto, future in self._asked if not future.done()]

    def _erasures(self) -> list[int]:
        """Those that the lake has; what is not sealed yet will be without its body."""
        sealed = self.sealed
        return [sequence for sequence in self._standing.erasures if sequence <= sealed]

    def _are_erasures_due(self) -> bool:
        if not self._erasures():
            self._erasures_since = None
            return False
        now = self._loop.time()
        if self._erasures_since is None:
            self._erasures_since = now
        return now - self._erasures_since >= self._pace.erase_seconds

    async def _erase(self) -> None:
        figures = await self._ask_lake("erase", sequences=self._erasures())
        self._learn(figures)
        await self._broker.ask(Erased(figures["erased"]))
        self._erasures_since = None
        self._went_well()

    async def _maintain(self) -> None:
        figures = await self._ask_lake("maintain")
        self._learn(figures)
        asked, self._maintenance_asked = self._maintenance_asked, []
        for future in asked:
            if not future.done():
                future.set_result(figures["maintained"])
        self._went_well()
