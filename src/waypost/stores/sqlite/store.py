"""The SQLite store's heart: a group of commands in one transaction with one sync.

    begin ─▶ runs of one kind: publishes │ fetches │ confirms │ … ─▶ commit (sync) ─▶ counters and names are as written

Commands come in runs of one kind. The three hot ones collect rows and write them with set statements (`Pending`); all others
go slot by slot through the ledger. Memory is decided before the commit, so a roll-back reads it anew from the file.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ...commands import (
    Command,
    Confirm,
    Declared,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Fetch,
    Job,
    JobKind,
    Publish,
    PublishMany,
    Reap,
    Release,
    Remove,
    Staged,
    StartJob,
    Tick,
    Work,
)
from ...delivery import OPEN, F, Reason, Step, T, lease_over
from ...errors import DiskLow, Failed, QueueNotFound, Refused, StoreBroken
from ...filters import Filter
from ...instants import Clock, SteadyClock
from ...message import Entropy, system_entropy
from ...policy import DEFAULT
from ...store import Applied, DeliveryInfo, Event, MessageInfo, QueueInfo, Stats
from . import files
from .bodies import Bodies
from .checkpoints import Checkpoints
from .disk import BALLAST_BYTES, MARK_BYTES, Disk
from .fetching import Fetching
from .jobs import Jobs, job_of
from .names import Names, policy_text
from .pending import Pending
from .publishing import Publishing
from .reading import Reader
from .reaping import Reaper
from .rows import STATE, Db
from .settling import Settling
from .slots import Ledger
from .young import Young

log = logging.getLogger("waypost")

#: larger bodies lie in files of their own
INLINE_BYTES = 64 << 10
#: errors after which nothing may be acknowledged: the disk or the file is not to be trusted
_FATAL = (
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.NoMemError,
)


class SqliteStore:
    inline_bytes = INLINE_BYTES
    threaded = False

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
        synchronous: str = "full",
        disk_mark_bytes: int = MARK_BYTES,
        ballast_bytes: int = BALLAST_BYTES,
        pregrown_bytes: int = files.PREGROWN_BYTES,
        migrations: files.Migrations | None = None,
    ) -> None:
        self.path = Path(path)
        self.clock = clock or SteadyClock()
        draw = entropy or system_entropy()
        self.sync_seconds = 0.0
        self._broken: Exception | None = None
        self._closed = False
        files.make_folder(self.path)
        self._lock = files.Lock(self.path)
        try:
            if shutil.disk_usage(self.path.parent).free < ballast_bytes:
                files.ballast(self.path).unlink(missing_ok=True)  # to have room for the checkpoint
            self._db: Db = files.open_file(
                self.path,
                now=self.clock(),
                synchronous=synchronous,
                pregrown_bytes=pregrown_bytes,
                migrations=migrations,
            )
            self._names = Names(self._db)
            self._bodies = Bodies(self.path.with_name(self.path.name + ".bodies"), self._is_body)
            self._read_db: Db = files.connect(self.path)
            self._read_db.execute("pragma query_only = true; pragma cache_size = -2048")
        except BaseException:
            self._lock.release()
            raise
        self._reader = Reader(self._read_db, self._names)
        own_reader = Reader(self._db, self._names)
        self._young = young = Young()
        self._ledger = Ledger(self._db, self._names, own_reader, young)
        self._reaper = Reaper(self._db, self._names, own_reader, self._ledger, log_keep_us)
        self._disk = Disk(self.path, disk_mark_bytes, ballast_bytes)
        self._checkpoints = Checkpoints(
            self.path, synchronous, on_full=self._disk.give_up, on_error=self._checkpoint_failed
        )
        self._wal_pages = 0
        self._due_at: int | None = None
        self._working = False
        self._db.set_wal_hook(self._committed)
        self._load_head()
        rows = self._rows = Pending(self._db)
        parts = (self._db, self._names, own_reader, self._ledger)
        self._publishing = Publishing(*parts, rows, young, draw, infer_types)
        self._fetching = Fetching(self._db, self._names, self._ledger, rows, young, draw)
        self._settling = Settling(*parts, rows, young, draw)
        self._jobs = Jobs(*parts)
        #: the hot ones see a run of commands at once
        self._runs: dict[type, Callable[[Sequence[Any], list[Any]], None]] = {
            Publish: self._publishing.run,
            Fetch: self._fetching.run,
            Confirm: self._settling.confirm_run,
        }
        self._do: dict[type, Callable[[Any], Any]] = {
            PublishMany: self._publishing.publish_many,
            Extend: self._settling.extend,
            Release: self._settling.release,
            Remove: self._settling.remove,
            DeclareQueue: self._declare,
            DeleteQueue: self._delete_queue,
            StartJob: self._jobs.start,
            Work: self._jobs.work,
            Tick: self._tick,
            Reap: self._reap,
        }

    def _is_body(self, name: str) -> bool:
        return self._db.execute("select 1 from bodies where name = ?", (name,)).get is not None

    def _load_head(self) -> None:
        self._ledger.head, self._ledger.now = self._db.execute('select "offset", at from head').get
        self._written_head = self._ledger.head

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_failed(self, error: Exception) -> None:
        self._broken = error

    # ── groups ──────────────────────────────────────────────────────────────────────────────

    def apply(self, commands: Sequence[Command]) -> Applied:
        if self._broken is not None:
            raise StoreBroken(f"checkpoint of {self.path} failed: {self._broken}") from self._broken
        self._disk.refusal()  # gives the ballast up in time, also where nobody publishes
        try:
            applied = self._transaction(commands)
        except (StoreBroken, *_FATAL) as error:
            raise StoreBroken(f"{self.path}: {error}") from error
        except Exception as error:
            self._roll_back()
            if len(commands) > 1:
                return self._one_by_one(commands)
            return self._applied([self._failure(error)])
        # It is committed: from here on nothing may lead to a second run.
        self._tidy()
        return applied

    def _tidy(self) -> None:
        self._young.trim()
        try:
            self._checkpoints.after_commit(self._db, self._wal_pages)
            self._bodies.remove(self._reaper.take_files())
        except (apsw.Error, OSError) as error:
            raise StoreBroken(f"{self.path}: {error}") from error

    def _one_by_one(self, commands: Sequence[Command]) -> Applied:
        """One bad command never fails its neighbours."""
        applied = [self.apply([command]) for command in commands]
        ready = {queue: count for one in applied for queue, count in one.ready.items()}
        return Applied([one.results[0] for one in applied], ready, applied[-1].due_at, applied[-1].working)

    def _failure(self, error: Exception) -> Refused:
        if isinstance(error, apsw.FullError):
            self._disk.give_up()
            return DiskLow("the disk is full")
        log.error("a command failed and was undone", exc_info=error)
        return Failed(f"{type(error).__name__}: {error}")

    def _roll_back(self) -> None:
        self._rows.clear()
        self._young.clear()
        self._publishing.forget_plans()
        self._ledger.timed = True
        self._ledger.touched.clear()
        self._ledger.roused.clear()
        if self._db.in_transaction:
            self._db.execute("rollback")
        self._names.load()
        self._load_head()

    def _transaction(self, commands: Sequence[Command]) -> Applied:
        ledger = self._ledger
        ledger.now = max(ledger.now, self.clock())
        ledger.touched.clear()
        ledger.roused.clear()
        self._db.execute("begin immediate")
        results: list[Any] = []
        start, count = 0, len(commands)
        while start < count:
            kind = type(commands[start])
            end = start + 1
            while end < count and type(commands[end]) is kind:
                end += 1
            self._run(kind, commands[start:end], results)
            start = end
        self._rows.flush()
        self._save_counts()
        self._save_head()
        applied = self._applied(results)
        began = time.perf_counter()
        try:
            self._db.execute("commit")
        except apsw.Error as error:
            raise StoreBroken(f"commit failed: {error}") from error
        self.sync_seconds = time.perf_counter() - began
        return applied

    def _run(self, kind: type, commands: Sequence[Command], results: list[Any]) -> None:
        if kind is not Publish and kind is not PublishMany:
            self._ledger.timed = True
            self._rows.flush()
        run = self._runs.get(kind)
        if run is not None:
            run(commands, results)
            return
        self._save_head()
        do = self._do[kind]
        for command in commands:
            try:
                results.append(do(command))
            except Refused as refusal:
                results.append(refusal)

    def _applied(self, results: list[Any]) -> Applied:
        ready = {queue.name: queue.handed_out for queue in self._ledger.roused if queue.handed_out}
        if self._ledger.timed:
            self._ledger.timed = False
            dues = [at for at in self._db.execute(_NEXT_DUE).get if at is not None]
            self._due_at = min(dues, default=None)
            self._working = self._db.execute(_OPEN_JOB).get is not None
        return Applied(results, ready, self._due_at, self._working)

    def _save_head(self) -> None:
        if self._ledger.head != self._written_head:
            self._written_head = self._ledger.head
            self._db.execute('update head set "offset" = ?, at = ?', (self._ledger.head, self._ledger.now))

    def _save_counts(self) -> None:
        touched = self._ledger.touched
        if touched:
            self._db.executemany(
                "insert or replace into counts values (?, ?, ?, ?)",
                [(q.number, q.ready, q.bytes, msgspec.json.encode(q.states).decode()) for q in touched],
            )

    # ── queues ──────────────────────────────────────────────────────────────────────────────

    def _declare(self, command: DeclareQueue) -> Declared:
        queue = self._names.queues.get(command.name)
        if queue is None:
            self._ledger.make_queue(command.name, command.policy or DEFAULT)
            return Declared(True)
        if command.policy is not None:
            was_keyed = queue.keyed
            queue.policy = command.policy
            queue.slotted = queue.slotted or command.policy.counts_consumers
            self._db.execute(
                "update destinations set policy = ?, slotted = ? where number = ?",
                (policy_text(command.policy), int(queue.slotted), queue.number),
            )
            self._publishing.forget_plans()
            if was_keyed != queue.keyed:
                self._ledger.reorder(queue)
            self._ledger.roused.add(queue)
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        queue = self._names.queues.pop(command.name, None)
        if queue is None:
            raise QueueNotFound(command.name)
        queue.deleted = True
        self._publishing.forget_plans()
        self._db.execute(
            "update destinations set deleted_at = ? where number = ?", (self._ledger.now, queue.number)
        )
        matched = sum(queue.states[state] for state in OPEN)
        return self._jobs.open(JobKind.DELETE, Filter(queue=command.name), matched, queue)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def _tick(self, command: Tick) -> bool:
        """The due ones in the order of their moments, leases and delays before ttls."""
        now, limit = self._ledger.now, command.limit
        due = self._db.execute(
            "select sequence, destination, slot from deliveries where due_at <= ?"
            " order by due_at, sequence, destination, slot limit ?",
            (now, limit + 1),
        ).fetchall()
        for place in due[:limit]:
            slot = self._ledger.slot(*place)
            if slot.state is F:
                self._ledger.take(slot, lease_over(tries=slot.tries, policy=slot.queue.policy))
            else:
                self._ledger.became_due(slot)
        expired = self._db.execute(
            "select sequence, destination, slot from deliveries where expires_at <= ? and expires_at is not null"
            " and state in (3, 7) order by expires_at, sequence, destination, slot limit ?",
            (now, limit + 1),
        ).fetchall()
        for place in expired[:limit]:
            slot = self._ledger.slot(*place)
            self._ledger.take(slot, Step((T,), Reason.EXPIRED, None, slot.tries))
        return len(due) > limit or len(expired) > limit

    def _reap(self, command: Reap) -> bool:
        return self._reaper.reap(command.limit)

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> bytes | Staged:
        return self._bodies.put(body)

    def unstage(self, body: Staged) -> bytes:
        return self._bodies.get(body)

    def refusal(self) -> Exception | None:
        return self._disk.refusal()

    def ready(self, queue: str) -> int | None:
        known = self._names.queues.get(queue)
        return None if known is None else known.handed_out

    def queue(self, name: str) -> QueueInfo | None:
        queue = self._names.queues.get(name)
        if queue is None:
            return None
        return QueueInfo(
            name=name,
            policy=queue.policy,
            created_at=queue.created_at,
            states={STATE[number]: count for number, count in enumerate(queue.states) if count},
            bytes=queue.bytes,
            ready=queue.handed_out,
        )

    def queues(self) -> list[QueueInfo]:
        return [info for name in sorted(self._names.queues) if (info := self.queue(name))]

    def bounds(self) -> tuple[int, int]:
        return self._reader.bounds()

    def events(self, lo: int, hi: int) -> list[Event]:
        return self._reader.events(lo, hi)

    def offset_at(self, at: int) -> int:
        return self._reader.offset_at(at)

    def message(self, id: str) -> MessageInfo | None:
        return self._reader.message(id)

    def body(self, id: str) -> bytes | Staged:
        return self._reader.body(id)

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        found, following = self._reader.search(filter, after, limit)
        return [delivery for _, delivery in found], following

    def job(self, id: str) -> Job | None:
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 18 else 0
        known = self._read_db.execute("select 1 from jobs where number = ?", (number,)).get
        return None if known is None else job_of(self._read_db, number)

    def stats(self) -> Stats:
        oldest, head = self.bounds()
        sizes = [
            path.stat().st_size for path in self.path.parent.glob(self.path.name + "*") if path.is_file()
        ]
        sizes.append(self._read_db.execute(_BODY_BYTES).get or 0)
        return Stats(oldest=oldest, head=head, disk_bytes=sum(sizes))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._checkpoints.stop()
        self._read_db.close()
        self._db.close()
        self._lock.release()


_OPEN_JOB = "select 1 from jobs where ended_at is null limit 1"
_BODY_BYTES = "select sum(size) from bodies cross join messages on messages.sequence = bodies.sequence"
_NEXT_DUE = """
    select (select due_at from deliveries where due_at is not null order by due_at limit 1),
           (select expires_at from deliveries where expires_at is not null and state in (3, 7)
            order by expires_at limit 1)"""
