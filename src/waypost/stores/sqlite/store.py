"""The SQLite store's heart: a group of commands in one transaction with one sync.

    begin ─▶ runs of one kind: publishes │ fetches │ confirms │ … ─▶ commit (sync) ─▶ counters and names are as written

Commands come in runs of one kind. The three hot ones collect rows and write them with set statements (`Pending`); all others
go slot by slot through the ledger. Memory is decided before the commit, so a roll-back reads it anew from the file.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ...commands import (
    AcceptBatch,
    Act,
    Batch,
    Command,
    Confirm,
    Decide,
    DeclareChannel,
    DeclareConsumer,
    Declared,
    DeclareObject,
    DeclareQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteObject,
    DeleteQueue,
    DeleteSpectator,
    EnterRows,
    Erased,
    ErasePayload,
    Extend,
    Fetch,
    Job,
    JobKind,
    KeepUpload,
    Kick,
    Publish,
    PublishMany,
    Reap,
    Release,
    Remove,
    Seal,
    SetSpectator,
    Staged,
    StartJob,
    Tick,
    Upload,
    Work,
)
from ...delivery import OPEN, F, Reason, Step, T, lease_over
from ...destinations import Kind
from ...errors import DiskLow, Failed, LogTrimmed, PayloadReaped, Refused, RequestInvalid, StoreBroken
from ...filters import Filter
from ...instants import Clock, SteadyClock
from ...message import Entropy, payload_hash, system_entropy
from ...objects import DEFAULT_OBJECT, ObjectPolicy
from ...policy import DEFAULT, Policy
from ...store import (
    Applied,
    ChannelInfo,
    ConsumerInfo,
    DeliveryInfo,
    Depths,
    Event,
    Feature,
    Heard,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    Races,
    SpectatorInfo,
    Stats,
    Task,
    Tenure,
    Undecided,
)
from ..disk import BALLAST_BYTES, MARK_BYTES, Disk, ballast
from . import files
from .batches import Batches, batch_of, open_batches, uploads_of
from .bodies import Bodies, folder_of
from .checkpoints import Checkpoints
from .contents import Contents
from .deciding import Deciding
from .fetching import Fetching
from .jobs import Jobs, job_of
from .names import Destination, Names
from .pending import Pending
from .publishing import Publishing
from .reading import Reader
from .reaping import Reaper
from .rows import STATE, Db
from .sealing import Sealing
from .settling import Settling
from .slots import Ledger
from .snapshots import Snapshots, depths_at
from .young import Young

log = logging.getLogger("waypost")

#: larger bodies lie in files of their own
INLINE_BYTES = 64 << 10
#: a file larger than this does not wait for its spectators
HELD_BYTES = 16 << 30
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
    threaded = shared = False
    races: Races | None = None
    lacks: frozenset[Feature] = frozenset()

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
        held_bytes: int = HELD_BYTES,
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
                ballast(self.path).unlink(missing_ok=True)  # to have room for the checkpoint
            self._db: Db = files.open_file(
                self.path,
                now=self.clock(),
                synchronous=synchronous,
                pregrown_bytes=pregrown_bytes,
                migrations=migrations,
            )
            self._names = Names(self._db)
            self._bodies = Bodies(folder_of(self.path), self._is_body)
            self._read_db: Db = files.connect(self.path)
            self._read_db.execute("pragma query_only = true; pragma cache_size = -2048")
        except BaseException:
            self._lock.release()
            raise
        self._reader = Reader(self._read_db, self._names)
        own_reader = self._own_reader = Reader(self._db, self._names)
        self._young = young = Young()
        self._ledger = Ledger(self._db, self._names, own_reader, young)
        self._snapshots = Snapshots(self._db, self._names)
        self._reaper = Reaper(
            self._db, self._names, own_reader, self._ledger, self._snapshots, log_keep_us, held_bytes
        )
        self._disk = Disk(self.path, disk_mark_bytes, ballast_bytes)
        self._checkpoints = Checkpoints(
            self.path, synchronous, on_full=self._disk.give_up, on_error=self._checkpoint_failed
        )
        self._wal_pages = 0
        self._due_at: int | None = None
        self._working = False
        #: when a job that keeps to a rate may go on
        self._job_at: int | None = None
        self._db.set_wal_hook(self._committed)
        self._load_head()
        rows = self._rows = Pending(self._db)
        parts = (self._db, self._names, own_reader, self._ledger)
        contents = self._contents = Contents(*parts, rows, self._bodies.get)
        self._publishing = Publishing(*parts, rows, young, contents, draw, infer_types)
        self._fetching = Fetching(self._db, self._names, self._ledger, rows, young, draw)
        self._settling = Settling(*parts, rows, young, draw)
        self._deciding = Deciding(*parts, self._publishing, contents, infer_types)
        self._jobs = Jobs(*parts, self._publishing.slots_in)
        self._batches = Batches(
            self._db, self._ledger, self._publishing.publish_many, self._reaper.drop_files
        )
        self._sealing = Sealing(self._db, own_reader, self._ledger, self._reaper, young)
        #: the hot ones see a run of commands at once
        self._runs: dict[type, Callable[[Sequence[Any], list[Any]], None]] = {
            Publish: self._publishing.run,
            Fetch: self._fetching.run,
            Confirm: self._settling.confirm_run,
        }
        self._do: dict[type, Callable[[Any], Any]] = {
            PublishMany: self._publishing.publish_many,
            Extend: self._settling.extend,
            Release: self._settling.let_go,
            Kick: self._settling.let_go,
            Remove: self._settling.remove,
            DeclareQueue: self._declare_queue,
            DeleteQueue: self._delete_queue,
            DeclareChannel: self._declare_channel,
            DeleteChannel: self._delete_channel,
            DeclareObject: self._declare_object,
            DeleteObject: self._delete_object,
            DeclareConsumer: self._declare_consumer,
            DeleteConsumer: self._delete_consumer,
            SetSpectator: self._set_spectator,
            DeleteSpectator: self._delete_spectator,
            Decide: self._deciding.decide,
            StartJob: self._jobs.start,
            Act: self._jobs.act,
            Work: self._jobs.work,
            KeepUpload: self._batches.keep,
            AcceptBatch: self._batches.accept,
            EnterRows: self._batches.enter,
            Tick: self._tick,
            Reap: self._reap,
            Seal: self._sealing.seal,
            ErasePayload: self._sealing.erase,
            Erased: self._sealing.erased,
        }

    def _is_body(self, name: str) -> bool:
        named = "select 1 from bodies where name = ?1 union all select 1 from uploads where id = ?1"
        return self._db.execute(named, (name,)).get is not None

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
        channels = {channel: count for one in applied for channel, count in one.ready_channels.items()}
        logged = min((one.logged for one in applied if one.logged is not None), default=None)
        results, last = [one.results[0] for one in applied], applied[-1]
        return Applied(results, ready, last.due_at, last.working, channels, logged)

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
        self._reaper.undo()
        self._names.load()
        self._snapshots.load()
        self._load_head()

    def _transaction(self, commands: Sequence[Command]) -> Applied:
        ledger = self._ledger
        ledger.now = max(ledger.now, self.clock())
        ledger.touched.clear()
        ledger.roused.clear()
        ledger.logged = None
        self._reaper.forgotten = False
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
        self._snapshots.after(ledger.touched, ledger.head, ledger.now, self._reaper.forgotten)
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
        ledger = self._ledger
        ready: dict[str, int] = {}
        ready_channels: dict[str, int] = {}
        for place in ledger.roused:
            if place.handed_out:
                (ready if place.is_queue else ready_channels)[place.name] = place.handed_out
        if ledger.timed or (self._job_at is not None and self._job_at <= ledger.now):
            ledger.timed = False
            due_at, expires_at, working, self._job_at = self._db.execute(_DUE, (ledger.now,)).get
            dues = [at for at in (due_at, expires_at, self._job_at) if at is not None]
            self._due_at, self._working = min(dues, default=None), working is not None
        return Applied(results, ready, self._due_at, self._working, ready_channels, ledger.logged)

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

    # ── queues, channels, objects, consumers, spectators ────────────────────────────────────

    def _declare_queue(self, command: DeclareQueue) -> Declared:
        queue = self._names.queues.get(command.name)
        if queue is None:
            self._ledger.make_queue(command.name, command.policy or DEFAULT)
            return Declared(True)
        if command.policy is not None:
            self._change(queue, command.policy)
        return Declared(False)

    def _change(
        self, place: Destination, policy: Policy, topics: tuple[str, ...] = (), start: int = 0
    ) -> None:
        before = place.keyed, place.tracked
        self._names.change(place, policy, topics, start)
        self._publishing.forget_plans()
        if before != (place.keyed, place.tracked):
            self._ledger.reorder(place)
        self._ledger.roused.add(place)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        queue = self._names.find(Kind.QUEUE, command.name)
        return self._delete(queue, Filter(queue=command.name))

    def _declare_channel(self, command: DeclareChannel) -> Declared:
        head, oldest = self._ledger.head, self._own_reader.bounds()[0]
        start = head + 1
        if command.start is not None:
            start = max(1, min(command.start, start))
            if start < oldest:
                raise LogTrimmed(oldest)
        elif command.start_at is not None:
            start = self._own_reader.offset_at(command.start_at)
        channel = self._names.channels.get(command.name)
        created = channel is None
        if channel is None:
            channel = self._names.add(
                Kind.CHANNEL, command.name, command.policy, self._ledger.now, command.topics, start
            )
            self._publishing.forget_plans()
        else:
            self._change(channel, command.policy, command.topics, min(channel.start, start))
        if start > head:
            return Declared(created)
        filter = Filter(channel=command.name)
        return Declared(created, self._jobs.open(JobKind.BACKFILL, filter, 0, channel, after=start - 1).id)

    def _delete_channel(self, command: DeleteChannel) -> Job:
        channel = self._names.find(Kind.CHANNEL, command.name)
        return self._delete(channel, Filter(channel=command.name))

    def _delete(self, place: Destination, filter: Filter) -> Job:
        self._names.delete(place, self._ledger.now)
        self._publishing.forget_plans()
        matched = sum(place.states[state] for state in OPEN)
        return self._jobs.open(JobKind.DELETE, filter, matched, place)

    def _declare_object(self, command: DeclareObject) -> Declared:
        created = command.name not in self._names.objects
        self._db.execute(
            "insert or replace into objects values (?, ?)",
            (command.name, msgspec.json.encode(command.policy).decode()),
        )
        self._object_changed(command.name, command.policy)
        return Declared(created)

    def _delete_object(self, command: DeleteObject) -> bool:
        existed = command.name in self._names.objects
        self._db.execute("delete from objects where name = ?", (command.name,))
        self._db.execute("delete from unchanged where object = ?", (command.name,))
        self._object_changed(command.name, None)
        return existed

    def _object_changed(self, name: str, policy: ObjectPolicy | None) -> None:
        self._names.note_object(name, policy)
        self._publishing.forget_plans()
        now = policy or DEFAULT_OBJECT
        if now.unchanged is None:
            self._contents.forget(name)
        if now.route == "inline" and name in self._names.logged:
            first = self._db.execute(
                "select min(sequence) from undecided where object = ? and not failed", (name,)
            ).get
            self._ledger.note_logged(first)

    def _declare_consumer(self, command: DeclareConsumer) -> Declared:
        consumer, names = command.consumer, self._names
        names.find(consumer.kind, consumer.destination)
        known = names.consumers.get(command.name)
        created_at = self._ledger.now if known is None else known.created_at
        self._db.execute(
            "insert or replace into consumers values (?, ?, ?)",
            (command.name, msgspec.json.encode(consumer).decode(), created_at),
        )
        names.consumers[command.name] = ConsumerInfo(
            name=command.name, consumer=consumer, created_at=created_at
        )
        self._publishing.forget_plans()
        return Declared(known is None)

    def _delete_consumer(self, command: DeleteConsumer) -> bool:
        self._db.execute("delete from consumers where name = ?", (command.name,))
        self._publishing.forget_plans()
        return self._names.consumers.pop(command.name, None) is not None

    def _set_spectator(self, command: SetSpectator) -> Declared:
        head = self._ledger.head
        if not 0 <= command.offset <= head:
            raise RequestInvalid(
                f"no event has offset {command.offset}", f"the log ends at {head}; 0 is before its beginning"
            )
        known = self._db.execute("select 1 from spectators where name = ?", (command.name,)).get
        self._db.execute(
            "insert or replace into spectators values (?, ?, ?)",
            (command.name, command.offset, self._ledger.now),
        )
        return Declared(known is None)

    def _delete_spectator(self, command: DeleteSpectator) -> bool:
        self._db.execute("delete from spectators where name = ?", (command.name,))
        return bool(self._db.changes())

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
        left = self._batches.forget()
        return self._reaper.reap(command.limit) or left

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> bytes | Staged:
        return self._bodies.put(body)

    def unstage(self, body: Staged) -> bytes:
        return self._bodies.get(body)

    def stage_chunk(self, id: str, chunk: bytes) -> bytes | Staged:
        return msgspec.structs.replace(self._bodies.put(chunk, id), hash=payload_hash(chunk))

    def refusal(self) -> Exception | None:
        return self._disk.refusal()

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        known = self._names.existing[kind].get(queue)
        return None if known is None else known.handed_out

    def queue(self, name: str) -> QueueInfo | None:
        queue = self._names.queues.get(name)
        return None if queue is None else QueueInfo(**_figures(queue))

    def queues(self) -> list[QueueInfo]:
        return [info for name in sorted(self._names.queues) if (info := self.queue(name))]

    def channel(self, name: str) -> ChannelInfo | None:
        channel = self._names.channels.get(name)
        return None if channel is None else ChannelInfo(**_figures(channel), topics=channel.topics)

    def channels(self) -> list[ChannelInfo]:
        return [info for name in sorted(self._names.channels) if (info := self.channel(name))]

    def object(self, name: str) -> ObjectInfo | None:
        policy = self._names.objects.get(name)
        if policy is None:
            return None
        counts = self._read_db.execute("select producer, count from unchanged where object = ?", (name,))
        return ObjectInfo(
            name=name, policy=policy, unchanged=dict(counts), logged=self._names.logged.get(name, 0)
        )

    def objects(self) -> list[ObjectInfo]:
        return [info for name in sorted(self._names.objects) if (info := self.object(name))]

    def consumer(self, name: str) -> ConsumerInfo | None:
        return self._names.consumers.get(name)

    def consumers(self) -> list[ConsumerInfo]:
        return [info for _, info in sorted(self._names.consumers.items())]

    def spectator(self, name: str) -> SpectatorInfo | None:
        return next((info for info in self.spectators() if info.name == name), None)

    def spectators(self) -> list[SpectatorInfo]:
        head = self.bounds()[1]
        rows = self._read_db.execute('select name, "offset", at from spectators order by name')
        return [
            SpectatorInfo(name=name, offset=offset, lag=head - offset, at=at) for name, offset, at in rows
        ]

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        return depths_at(self._read_db, self._names, self._reader, kind, name, at)

    def sparks(self) -> frozenset[str]:
        return frozenset(self._names.sparks)

    def undecided(
        self, after: int, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Undecided]:
        return self._reader.undecided(after, limit, only, but)

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

    def batch(self, query: str, batch: int) -> Batch | None:
        return batch_of(self._read_db, query, batch)

    def open_batches(self) -> list[Batch]:
        return open_batches(self._read_db)

    def uploads(self, batch: int | None) -> list[Upload]:
        return uploads_of(self._read_db, batch)

    def chunk(self, id: str) -> bytes | Staged:
        kept = self._read_db.execute("select size, checksum from uploads where id = ?", (id,)).get
        if kept is None:
            raise PayloadReaped(f"the chunk of upload {id!r} is gone")
        return Staged(kept[0], id, kept[1])

    def stats(self) -> Stats:
        oldest, head = self.bounds()
        sizes = [
            path.stat().st_size for path in self.path.parent.glob(self.path.name + "*") if path.is_file()
        ]
        sizes += self._read_db.execute(_BODY_BYTES).get
        undecided = sum(self._names.logged.values())
        return Stats(oldest=oldest, head=head, disk_bytes=sum(sizes), undecided=undecided)

    def id(self) -> str:
        return str(self._read_db.execute("select id from head").get)

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        self._reaper.lake, self._reaper.lake_holds = on, holds

    def sealed(self) -> int | None:
        return (self._reaper.sealed or 0) if self._reaper.lake else None

    def erasures(self) -> list[int]:
        return [sequence for (sequence,) in self._read_db.execute("select sequence from erasures order by 1")]

    def export_source(self) -> str | None:
        return str(self.path.absolute())

    def listen(self, heard: Callable[[Heard], None]) -> None:
        """Nobody else is here."""

    def awaited(self, on: bool) -> None:
        """Nobody else is here."""

    def owns(self, task: Task) -> bool:
        return True

    def tenure(self, task: Task) -> Tenure | None:
        return None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._checkpoints.stop()
        self._read_db.close()
        self._db.close()
        self._lock.release()


def _figures(place: Destination) -> dict[str, Any]:
    return {
        "name": place.name,
        "policy": place.policy,
        "created_at": place.created_at,
        "states": {STATE[number]: count for number, count in enumerate(place.states) if count},
        "bytes": place.bytes,
        "ready": place.handed_out,
    }


_BODY_BYTES = """
    select coalesce((select sum(size) from bodies cross join messages on messages.sequence = bodies.sequence), 0),
           coalesce((select sum(size) from uploads), 0)"""
#: the next lease or delay, the next ttl; whether a job may go on now, and when the next may
_DUE = """
    select (select due_at from deliveries where due_at is not null order by due_at limit 1),
           (select expires_at from deliveries where expires_at is not null and state in (3, 7)
            order by expires_at limit 1),
           (select 1 from jobs where ended_at is null and next_at <= ?1 limit 1),
           (select min(next_at) from jobs where ended_at is null and next_at > ?1)"""
