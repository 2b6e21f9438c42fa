"""The committer: commands wait here, and commit in groups.

    submit ──▶ waiting (bounded) ──▶ a group ──▶ store.apply: one transaction, one sync ──▶ every caller answered

A group is whatever came while the last one was committed, so the cost of a sync is shared without ever
waiting for company. It has two gears behind the one `apply`: *in the loop*, where a sync is so short that handing the group
to a thread would cost more, and *in a thread*, where it is not; the last syncs decide.

It knows no HTTP and no store; it calls back in the loop's thread, in the group's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .commands import Command, Confirm, Extend, Fetch, Kick, Publish, PublishMany, Release
from .errors import Busy, StoreBroken
from .store import Applied, Store

log = logging.getLogger("waypost")

Done = Callable[[Any], None]

#: syncs longer than this go to the thread, shorter than half of it come back
SLOW_SYNC_SECONDS = 0.002
SYNC_STEP_SECONDS = 0.000_05
#: what it may take longer for each byte that it brings, because that says nothing of the disk: a GiB takes a second
SYNC_BYTE_SECONDS = 1 / (1 << 30)
#: commands that may change places with their neighbours in a group: all are unanswered, so any order is a
#: true one, and runs of one kind are quick. What is not listed stays where it is, and nothing moves past it.
_RANK = {Confirm: 0, Extend: 0, Release: 0, Kick: 0, Publish: 1, PublishMany: 1, Fetch: 2}


class Committer:
    def __init__(
        self,
        store: Store,
        *,
        on_applied: Callable[[Applied], None],
        on_broken: Callable[[StoreBroken], None],
        max_waiting: int = 10_000,
        max_waiting_bytes: int = 64 << 20,
        group_commands: int = 1_000,
        group_bytes: int = 4 << 20,
    ) -> None:
        self._store = store
        self._on_applied, self._on_broken = on_applied, on_broken
        self._max_waiting, self._max_waiting_bytes = max_waiting, max_waiting_bytes
        self._group_commands, self._group_bytes = group_commands, group_bytes
        self._loop = asyncio.get_running_loop()
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: list[tuple[Command, Done, int]] = []
        self._waiting_bytes = 0
        #: of the group that is being committed
        self._taken_bytes = 0
        self._scheduled = False
        self._broken = False
        #: somebody waits until nothing does
        self._quiet: asyncio.Future[None] | None = None
        #: the median of the last syncs, followed in small steps: one that hangs must not change the gear
        self._sync_seconds = 0.0
        #: for /metrics
        self.groups = self.commands = self.refused = 0

    @property
    def idle(self) -> bool:
        return not self._scheduled

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def gear(self) -> str:
        """ "loop" or "thread"."""
        slow = self._sync_seconds > SLOW_SYNC_SECONDS / (2 if self._thread else 1)
        return "thread" if self._store.threaded or slow else "loop"

    def submit(self, command: Command, done: Done, size: int = 0) -> None:
        """`done` gets the result once it is on stable media, or a Busy at once. `size` is what it holds in memory."""
        if len(self._waiting) >= self._max_waiting or self._waiting_bytes + size > self._max_waiting_bytes:
            self.refused += 1
            done(Busy("the commit queue is full"))
            return
        self._waiting.append((command, done, size))
        self._waiting_bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        group = self._take_group()
        commands = [entry[0] for entry in group]
        self.groups += 1
        self.commands += len(group)
        if self.gear == "thread":
            self._thread = self._thread or ThreadPoolExecutor(1, "commit")
            future = self._loop.run_in_executor(self._thread, self._store.apply, commands)
            future.add_done_callback(lambda future: self._applied_in_thread(group, future))
            return
        try:
            applied = self._store.apply(commands)
        except Exception as error:
            self.broke(error)
            return
        self._finish(group, applied)

    def _applied_in_thread(
        self, group: list[tuple[Command, Done, int]], future: asyncio.Future[Applied]
    ) -> None:
        error = future.exception()
        if error is None:
            self._finish(group, future.result())
        else:
            self.broke(error)

    def _take_group(self) -> list[tuple[Command, Done, int]]:
        waiting = self._waiting
        if len(waiting) <= self._group_commands and self._waiting_bytes <= self._group_bytes:
            self._taken_bytes = self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0
            return arrange(waiting)
        count = held = 0
        for _, _, size in waiting[: self._group_commands]:
            held += size
            if held > self._group_bytes and count:
                held -= size
                break
            count += 1
        self._waiting = waiting[count:]
        self._waiting_bytes -= held
        self._taken_bytes = held
        return arrange(waiting[:count])

    def _finish(self, group: list[tuple[Command, Done, int]], applied: Applied) -> None:
        took = self._store.sync_seconds - self._taken_bytes * SYNC_BYTE_SECONDS
        longer = took > self._sync_seconds
        self._sync_seconds += SYNC_STEP_SECONDS if longer else -SYNC_STEP_SECONDS
        # Scheduled before the answers go out, so that what they bring joins the next group at once.
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._loop.call_soon(self._turn)
        for (_, done, _), result in zip(group, applied.results, strict=True):
            try:
                done(result)
            except Exception:
                # Committed all the same; the others of the group must hear of theirs.
                log.exception("an answer could not be given")
        self._on_applied(applied)
        if not self._scheduled:
            self._tell_quiet()

    def broke(self, error: BaseException) -> None:
        """Nothing is answered any more: what a store acknowledges after a failed commit may be lost."""
        if not self._broken:
            self._broken = True
            self._tell_quiet()
            broken = (
                error if isinstance(error, StoreBroken) else StoreBroken(f"{type(error).__name__}: {error}")
            )
            broken.__cause__ = error if broken is not error else error.__cause__
            self._on_broken(broken)

    def _tell_quiet(self) -> None:
        if self._quiet is not None:
            self._quiet.set_result(None)
            self._quiet = None

    async def flush(self) -> None:
        """Until nothing waits."""
        while self._scheduled and not self._broken:
            self._quiet = self._loop.create_future()
            await self._quiet

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def arrange(group: list[tuple[Command, Done, int]]) -> list[tuple[Command, Done, int]]:
    """Settle, then publish, then fetch, between commands that keep their place."""
    kinds = {type(entry[0]) for entry in group}
    if len(kinds) == 1:
        return group
    if all(kind in _RANK for kind in kinds):
        return sorted(group, key=_rank)
    arranged: list[tuple[Command, Done, int]] = []
    run: list[tuple[Command, Done, int]] = []
    for entry in group:
        if type(entry[0]) in _RANK:
            run.append(entry)
        else:
            arranged += sorted(run, key=_rank)
            arranged.append(entry)
            run = []
    return arranged + sorted(run, key=_rank)


def _rank(entry: tuple[Command, Done, int]) -> int:
    return _RANK[type(entry[0])]
