"""Entering: the rows of accepted batches become messages, a slice at a time.

    open batches ─▶ of each query the oldest ─▶ thread: unpack a slice, put large bodies away ─▶ EnterRows ─▶ … until all are in
                                                   │             '── the next slice meanwhile
                                                   '── no room in a queue: fewer rows at once, then a pause; never given up

How far a batch has come stands in the store, and a slice enters only where it fits: so a kill between two slices, or another broker at
the same batch, neither loses nor doubles a row. Batches of one query enter in the order in which they were accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .batches import SLICE_ROWS, Chunk
from .commands import Batch, EnterRows, Publish, Staged, Upload
from .errors import Busy, DiskLow, QueueFull, Refused, WaypostError
from .store import Store, Task

log = logging.getLogger("waypost")

#: in a home that several brokers share: how often the others' batches are looked at, and how long one must have stood still
LOOK_SECONDS = 5.0
#: slices of one batch before others are looked at
RUN = 8
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
#: after what should not happen
FAILED_PAUSE_SECONDS = 30.0


@dataclass(eq=False)
class _Going:
    """What is remembered of an open batch."""

    uploads: list[Upload] | None = None
    #: of the upload at hand, and the row of the batch that it begins with
    chunk: Chunk | None = None
    begins: int = 0
    #: unpacked already, from this row on
    messages: list[Publish] = field(default_factory=list)
    first: int = 0
    #: those after them, on their way
    ahead: asyncio.Task[list[Publish]] | None = None
    #: how many may enter at once
    limit: int = SLICE_ROWS
    pause: float = _FIRST_PAUSE_SECONDS
    #: by the loop's clock
    not_before: float = 0.0
    #: how far it had come when it was looked at, and since when
    seen: tuple[int, float] = (-1, 0.0)
    #: accepted by this broker
    ours: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def forget_ahead(self) -> None:
        if self.ahead is not None:
            self.ahead.cancel()
            self.ahead = None


class Entering:
    def __init__(
        self,
        store: Store,
        *,
        look: Callable[..., Awaitable[Any]],
        work: Callable[..., Awaitable[Any]],
        prepare: Callable[[list[Publish]], Awaitable[None]],
        enter: Callable[[EnterRows], Awaitable[Batch]],
    ) -> None:
        """`look` reads of the store, `work` runs something in a thread, `prepare` makes messages ready for `enter`."""
        self._store, self._look, self._work, self._prepare, self._enter = store, look, work, prepare, enter
        self._loop = asyncio.get_running_loop()
        self._going: dict[int, _Going] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        #: for /metrics: rows that entered here
        self.rows = 0

    def wake(self, batch: Batch | None = None) -> None:
        """A batch was accepted, or some may be open from before."""
        if self._stopped:
            return
        if batch is not None:
            self._going.setdefault(batch.number, _Going()).ours = True
        self._woken.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        for going in self._going.values():
            going.forget_ahead()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                batches = await self._look(self._store.open_batches)
            except Refused:
                await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
                continue
            self._going = {one.number: self._going.get(one.number, _Going()) for one in batches}
            moved = False
            for batch in self._chosen(batches):
                moved = await self._enter_some(batch) or moved
            if moved:
                continue
            if not batches and not self._store.shared and not self._woken.is_set():
                self._task = None
                return
            await self._rest()

    def _chosen(self, batches: list[Batch]) -> list[Batch]:
        """Of each query the oldest, if it is ours to enter now."""
        firsts: dict[str, Batch] = {}
        for batch in batches:
            firsts.setdefault(batch.query, batch)
        return [batch for batch in firsts.values() if self._may_go_on(batch)]

    def _may_go_on(self, batch: Batch) -> bool:
        going, now = self._going[batch.number], self._loop.time()
        if now < going.not_before:
            return False
        if going.ours or not self._store.shared:
            return True
        # Another broker's: taken over by whoever does the jobs, when it does not move any more.
        if going.seen[0] != batch.entered:
            going.seen = (batch.entered, now)
        return now - going.seen[1] >= LOOK_SECONDS and self._store.owns(Task.JOBS)

    async def _rest(self) -> None:
        """Until something was accepted, or may be tried again."""
        now = self._loop.time()
        pauses = [going.not_before - now for going in self._going.values() if going.not_before > now]
        if self._store.shared or not pauses:
            pauses.append(LOOK_SECONDS)
        try:
            async with asyncio.timeout(min(pauses)):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _enter_some(self, batch: Batch) -> bool:
        """Whether it came forward."""
        going = self._going[batch.number]
        began = batch.entered
        for _ in range(RUN):
            try:
                await self._unpack(going, batch)
                slice = EnterRows(
                    query=batch.query,
                    batch=batch.batch,
                    after=batch.entered,
                    messages=going.messages[: going.limit],
                )
                self._look_ahead(going, batch)
                moved = await self._enter(slice)
            except QueueFull:
                if going.limit > 1:
                    going.limit = max(1, min(going.limit, len(going.messages)) // 2)
                    continue
                self._pause(going)
                break
            except (Busy, DiskLow):
                self._pause(going)
                break
            except (WaypostError, ValueError) as error:
                log.error("batch %d of %s does not go on: %s", batch.batch, batch.query, error)
                going.not_before = self._loop.time() + FAILED_PAUSE_SECONDS
                break
            self.rows += max(0, moved.entered - batch.entered)
            going.pause, going.limit = _FIRST_PAUSE_SECONDS, min(SLICE_ROWS, 2 * going.limit)
            batch = moved
            if batch.ended_at is not None:
                return True
        return batch.entered > began

    def _pause(self, going: _Going) -> None:
        going.not_before = self._loop.time() + going.pause
        going.pause = min(2 * going.pause, _LONGEST_PAUSE_SECONDS)

    async def _unpack(self, going: _Going, batch: Batch) -> None:
        """The messages from where it has come to; once, though they may not find room: what was put away for them stays."""
        done = batch.entered - going.first
        if 0 <= done < len(going.messages):
            going.messages, going.first = going.messages[done:], batch.entered
            return
        if batch.entered != going.end:  # another broker was here
            going.forget_ahead()
        ahead, going.ahead = going.ahead, None
        going.messages = await (ahead or self._messages(going, batch, batch.entered))
        going.first = batch.entered

    def _look_ahead(self, going: _Going, batch: Batch) -> None:
        """The next messages are unpacked while these enter."""
        if going.ahead is None and going.end < batch.rows:
            going.ahead = self._loop.create_task(self._messages(going, batch, going.end))

    async def _messages(self, going: _Going, batch: Batch, start: int) -> list[Publish]:
        """From that row of the batch on, to the end of what was packed together."""
        if going.uploads is None:
            going.uploads = await self._look(self._store.uploads, batch.number)
        begins = 0
        for upload in going.uploads:
            if start < begins + upload.rows:
                break
            begins += upload.rows
        else:
            raise ValueError(f"its uploads have {begins} rows, and {start} are in")
        if going.chunk is None or going.begins != begins:
            packed = await self._look(self._store.chunk, upload.id)
            going.chunk, going.begins = await self._work(self._open, packed), begins
        messages: list[Publish] = await self._work(going.chunk.messages, start - begins)
        await self._prepare(messages)
        return messages

    def _open(self, packed: bytes | Staged) -> Chunk:
        return Chunk(self._store.unstage(packed) if isinstance(packed, Staged) else packed)
