"""The committer: commands wait here, and commit in groups.

    submit ──▶ waiting (bounded) ──▶ a group ──▶ store.apply: one transaction, one sync ──▶ every caller answered

A group is whatever came while the last one was committed, so the cost of a sync is shared without ever
waiting for company. It has two gears behind the one `apply`: *in the loop*, where a sync is so short that handing the group
to a thread would cost more, and *in a thread*, where it is not; the last syncs decide. Where a store allows it, the next group
begins while the last one is still being written, if enough has come for it.

It knows no HTTP and no store; it calls back in the loop's thread, in the group's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

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


#: A group begins beside another one when it is at least this part of it: small ones share the cost of a sync with few.
EARLY_SHARE = 0.25

Entry = tuple[Command, Done, int]


class _Group:
    """Commands that are being committed."""

    def __init__(self, entries: list[Entry], bytes: int, beside: bool) -> None:
        self.entries, self.bytes = entries, bytes
        #: whether another one was under way when it began
        self.beside = beside
        #: whether the next one may begin
        self.placed = False
        self.applied: Applied | None = None


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
        self._most_groups = store.overlap(self._placed_in_thread)
        self._waiting: list[Entry] = []
        self._waiting_bytes = 0
        #: groups that are being committed, the oldest first
        self._under_way: deque[_Group] = deque()
        #: what the last one said that was applied
        self._last: Applied | None = None
        #: a turn comes
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
        return not (self._scheduled or self._under_way)

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
        self._schedule()

    def _schedule(self) -> None:
        """A turn, if something waits and may begin."""
        if self._waiting and not self._scheduled and self._may_begin():
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _may_begin(self) -> bool:
        if not self._under_way:
            return True
        last = self._under_way[-1]
        enough = len(self._waiting) >= EARLY_SHARE * len(last.entries)
        return last.placed and enough and len(self._under_way) < self._most_groups

    def _turn(self) -> None:
        self._scheduled = False
        group = self._take_group()
        commands = [entry[0] for entry in group.entries]
        self.groups += 1
        self.commands += len(commands)
        self._under_way.append(group)
        if self.gear == "thread":
            self._thread = self._thread or ThreadPoolExecutor(self._most_groups, "commit")
            future = self._loop.run_in_executor(self._thread, self._store.apply, commands)
            future.add_done_callback(lambda future: self._applied_in_thread(group, future))
            return
        try:
            group.applied = self._store.apply(commands)
        except Exception as error:
            self.broke(error)
            return
        self._finish()

    def _placed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._placed)

    def _placed(self) -> None:
        """By the newest group: the others were before it began."""
        if self._under_way:
            self._under_way[-1].placed = True
            self._schedule()

    def _applied_in_thread(self, group: _Group, future: asyncio.Future[Applied]) -> None:
        error = future.exception()
        if error is None:
            group.applied = future.result()
            self._finish()
        else:
            self.broke(error)

    def _take_group(self) -> _Group:
        waiting, beside = self._waiting, bool(self._under_way)
        if len(waiting) <= self._group_commands and self._waiting_bytes <= self._group_bytes:
            held = self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0
            return _Group(arrange(waiting), held, beside)
        count = held = 0
        for _, _, size in waiting[: self._group_commands]:
            held += size
            if held > self._group_bytes and count:
                held -= size
                break
            count += 1
        self._waiting = waiting[count:]
        self._waiting_bytes -= held
        return _Group(arrange(waiting[:count]), held, beside)

    def _finish(self) -> None:
        """Those that are applied, the oldest first."""
        while self._under_way and (applied := self._under_way[0].applied) is not None:
            group = self._under_way.popleft()
            took = self._store.sync_seconds - group.bytes * SYNC_BYTE_SECONDS
            longer = took > self._sync_seconds
            self._sync_seconds += SYNC_STEP_SECONDS if longer else -SYNC_STEP_SECONDS
            # Scheduled before the answers go out, so that what they bring joins the next group at once.
            self._schedule()
            for (_, done, _), result in zip(group.entries, applied.results, strict=True):
                try:
                    done(result)
                except Exception:
                    # Committed all the same; the others of the group must hear of theirs.
                    log.exception("an answer could not be given")
            earlier = self._last if group.beside else None
            self._on_applied(applied if earlier is None else _with_earlier(applied, earlier))
            self._last = applied
        if self.idle:
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
        while not self.idle and not self._broken:
            self._quiet = self._loop.create_future()
            await self._quiet

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _with_earlier(applied: Applied, earlier: Applied) -> Applied:
    """What a group made ready that was still being written when this one looked, this one may not have seen: who found nothing hears of
    it again."""
    moments = [at for at in (applied.due_at, earlier.due_at) if at is not None]
    return msgspec.structs.replace(
        applied,
        ready={**earlier.ready, **applied.ready},
        ready_channels={**earlier.ready_channels, **applied.ready_channels},
        due_at=min(moments, default=None),
        working=applied.working or earlier.working,
    )


def arrange(group: list[Entry]) -> list[Entry]:
    """Settle, then publish, then fetch, between commands that keep their place."""
    kinds = {type(entry[0]) for entry in group}
    if len(kinds) == 1:
        return group
    if all(kind in _RANK for kind in kinds):
        return sorted(group, key=_rank)
    arranged: list[Entry] = []
    run: list[Entry] = []
    for entry in group:
        if type(entry[0]) in _RANK:
            run.append(entry)
        else:
            arranged += sorted(run, key=_rank)
            arranged.append(entry)
            run = []
    return arranged + sorted(run, key=_rank)


def _rank(entry: Entry) -> int:
    return _RANK[type(entry[0])]
