"""Watching: what other brokers on the same database did, and which of the common tasks are this one's.

    somebody waits here    every 50 ms one row is read; when its `turn` has risen, what became ready is told
    nobody does            nothing is read
    every second           the tasks that one broker does for all: kept, or taken over when their owner is gone

A thread with a connection of its own; a server that does not answer is asked again, and what was missed is told then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

from ...destinations import Kind
from ...errors import StoreUnavailable
from ...store import Applied, Heard, Task
from .connecting import Conn, connect, one_line
from .names import Db

log = logging.getLogger("waypost")

LOOK_SECONDS = 0.05
#: how often the tasks are claimed, and how long a claim lasts
CLAIM_SECONDS = 1.0
LEASE_SECONDS = 5.0
#: an owner stops this long before its lease ends, so that two never work at a time
MARGIN_SECONDS = 1.0

_CLAIM = (
    "insert into owned (task, broker, until)"
    " select task, %s, now() + %s * interval '1 second' from unnest(%s::text[]) as u (task)"
    " on conflict (task) do update set broker = excluded.broker, until = excluded.until"
    " where owned.broker = excluded.broker or owned.until < now() returning task, asked"
)
_OTHERS_LAKE = (
    "select 1 from owned where task = 'seal' and broker <> %s and until > now() - interval '1 hour'"
)
NEXT_DUE = (
    "select (select due_at from deliveries where due_at is not null order by due_at limit 1),"
    " (select expires_at from deliveries where expires_at is not null and state in (3, 7)"
    " order by expires_at limit 1),"
    " (select min(next_at) from jobs where ended_at is null and next_at > %s),"
    " exists (select 1 from jobs where ended_at is null and next_at <= %s)"
)


class Due(NamedTuple):
    """When a Tick is needed next, None: not as things are; and whether a job waits."""

    at: int | None
    working: bool

    @classmethod
    def of(cls, row: Sequence[Any]) -> Due:
        """What NEXT_DUE found."""
        *moments, working = row
        return cls(min((at for at in moments if at is not None), default=None), working)

    def or_at(self, at: int | None) -> Due:
        """Or earlier, by what was written since."""
        return Due(min((one for one in (self.at, at) if one is not None), default=None), self.working)


class Watch:
    def __init__(self, url: str, broker: str, clock: Callable[[], int]) -> None:
        self._url, self.broker, self._clock = url, broker, clock
        self._changed = threading.Condition()
        self._awaited = self._stopped = False
        #: the last turn and version that were told, or were this broker's own
        self._turn = self._version = 0
        #: by time.monotonic()
        self._owned_until: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        #: whether this broker was told where the lake is
        self.keeps_lake = False
        #: as it was last read, or earlier: groups that it is enough for do not read it again. Another broker's is read with the next
        #: claim, as when this one has nothing to do
        self._due: Due | None = None
        self._due_lock = threading.Lock()
        self._heard: Callable[[Heard], None] | None = None
        self._thread: threading.Thread | None = None
        self._connection: Conn | None = None

    @property
    def knows_due(self) -> bool:
        return self._due is not None

    def due_by(self, at: int | None) -> Due:
        """As it was known, or earlier, by what a group has written."""
        with self._due_lock:
            assert self._due is not None
            self._due = self._due.or_at(at)
            return self._due

    def read_due(self, due: Due) -> Due:
        """As a group has read it; it is known from now on, if it is read anew from time to time."""
        with self._due_lock:
            self._due = due if self._thread is not None else None
        return due

    def forget_due(self) -> None:
        with self._due_lock:
            self._due = None

    def listen(self, heard: Callable[[Heard], None]) -> None:
        self._heard = heard
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def awaited(self, on: bool) -> None:
        with self._changed:
            self._awaited = on
            self._changed.notify()

    def owns(self, task: Task) -> bool:
        return self._thread is None or time.monotonic() < self._owned_until.get(task, 0.0)

    def asked(self, task: Task) -> int:
        return self._asked.get(task, 0)

    def ask(self, task: Task, upto: int) -> None:
        """Raises psycopg.Error."""
        with connect(self._url, autocommit=True, name="waypost watch") as connection:
            connection.execute("update owned set asked = greatest(asked, %s) where task = %s", (upto, task))

    def own(self, turn: int, version: int) -> None:
        """A group of this broker; when others came in between, the next look tells of it with theirs."""
        if turn == self._turn + 1:
            self._turn, self._version = turn, version

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        claim_at = 0.0
        while not self._stopped:
            try:
                if self._connection is None:
                    self._connection = connect(self._url, autocommit=True, name="waypost watch")
                with self._connection.cursor() as db:
                    if time.monotonic() >= claim_at:
                        claim_at = time.monotonic() + CLAIM_SECONDS
                        self._claim(db)
                    if self._awaited:
                        self._look(db)
            except psycopg.Error as error:
                log.debug("store: watching: %s", one_line(error))
                self._disconnect()
                claim_at = 0.0
                self._pause(0.2)
                continue
            wait = claim_at - time.monotonic()
            self._pause(min(LOOK_SECONDS, wait) if self._awaited else wait)
        self._give_up()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            before = self._awaited
            if not self._stopped and seconds > 0:
                self._changed.wait_for(
                    lambda: self._stopped or (self._awaited and not before), timeout=seconds
                )

    def _claim(self, db: Db) -> None:
        began = time.monotonic()
        before = bool(self._owned_until)
        db.execute(_CLAIM, (self.broker, LEASE_SECONDS, self._tasks(db)))
        until = began + LEASE_SECONDS - MARGIN_SECONDS
        claimed = db.fetchall()
        self._owned_until = {task: until for task, _ in claimed}
        self._asked = dict(claimed)
        if not self._owned_until and not before:
            return
        now, known = self._clock(), self._due
        db.execute(NEXT_DUE, (now, now))
        row = db.fetchone()
        assert row is not None
        with self._due_lock:
            due = Due.of(row)
            if self._due is not None and self._due is not known:
                due = due.or_at(self._due.at)  # a group was quicker
            self._due = due
        db.execute("select version from log_head")
        row = db.fetchone()
        assert row is not None
        changed, self._version = row[0] > self._version, max(row[0], self._version)
        # What a broker that is gone left in L is decided by the one that follows.
        logged = 1 if not before else None
        renamed = changed or bool(self._owned_until) != before
        self._tell(Heard(Applied([], {}, due.at, due.working, {}, logged), True, renamed))

    def _tasks(self, db: Db) -> list[str]:
        """Those that this broker may do. What belongs into a lake is not reaped by one that does not know where it is."""
        tasks = [str(task) for task in Task]
        if not self.keeps_lake:
            tasks.remove(Task.SEAL)
            db.execute(_OTHERS_LAKE, (self.broker,))
            if db.fetchone() is not None:
                tasks.remove(Task.REAPING)
        return tasks

    def _look(self, db: Db) -> None:
        db.execute("select turn, version from log_head")
        row = db.fetchone()
        assert row is not None
        turn, version = row
        if turn == self._turn:
            return
        db.execute(
            "select p.kind, p.name, c.ready from counts c join destinations p on p.number = c.destination"
            " where c.changed > %s and c.ready > 0 and p.deleted_at is null",
            (self._turn,),
        )
        ready: dict[Kind, dict[str, int]] = {Kind.QUEUE: {}, Kind.CHANNEL: {}}
        for kind, name, count in db.fetchall():
            ready[Kind(kind)][name] = count
        renamed = version != self._version
        self._turn, self._version = turn, version
        self._tell(Heard(Applied([], ready[Kind.QUEUE], None, False, ready[Kind.CHANNEL]), renamed=renamed))

    def _tell(self, heard: Heard) -> None:
        if self._heard is not None and not self._stopped:
            self._heard(heard)

    def _give_up(self) -> None:
        """Another broker need not wait for the leases to end."""
        try:
            if self._connection is not None:
                self._connection.execute("update owned set until = now() where broker = %s", (self.broker,))
        except psycopg.Error:
            log.debug("store: the leases end by themselves")
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SharedTask:
    """A task that any of the brokers may do."""

    def __init__(self, watch: Watch, task: Task) -> None:
        self._watch, self._task = watch, task
        self.broker = watch.broker

    def asked(self) -> int:
        return self._watch.asked(self._task)

    def ask(self, upto: int) -> None:
        try:
            self._watch.ask(self._task, upto)
        except psycopg.Error as error:
            raise StoreUnavailable(one_line(error)) from error
