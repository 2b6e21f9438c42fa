"""The SQLite store's heart: a group of commands in one transaction with one sync.

    begin ─▶ runs of one kind: publishes │ fetches │ confirms │ … ─▶ commit (sync) ─▶ counters and names are as written

Commands come in runs of one kind. The three hot ones collect rows and write them with set statements (`_flush`); all others
go slot by slot through the ledger. Memory is decided before the commit, so a roll-back reads it anew from the file.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ...commands import (
    JOB_STATES,
    Command,
    Confirm,
    Declared,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Extended,
    Fetch,
    Fetched,
    Job,
    JobKind,
    Publish,
    Published,
    PublishMany,
    Reap,
    Release,
    Remove,
    Settled,
    Staged,
    StartJob,
    Tick,
    Work,
)
from ...delivery import (
    OPEN,
    C,
    E,
    F,
    K,
    N,
    Outcome,
    Q,
    R,
    Reason,
    S,
    State,
    Step,
    T,
    X,
    lease_over,
    message_state,
    settle,
)
from ...errors import (
    ConsumerRequired,
    DiskLow,
    Failed,
    IdempotencyConflict,
    IdTaken,
    QueueFull,
    QueueNotFound,
    Refused,
    StoreBroken,
)
from ...filters import Filter
from ...instants import Clock, SteadyClock
from ...message import (
    Entropy,
    id_salt,
    make_id,
    make_receipt,
    parse_receipt,
    payload_hash,
    system_entropy,
)
from ...names import ANONYMOUS
from ...policy import DEFAULT
from ...routing import queues_of, slots_of, topic_matches, with_object
from ...store import Applied, DeliveryInfo, Event, MessageInfo, QueueInfo, Stats
from .. import IDEMPOTENCY_KEPT_US, TOPIC_SCAN
from . import files
from .bodies import Bodies
from .checkpoints import Checkpoints
from .disk import BALLAST_BYTES, MARK_BYTES, Disk
from .names import Destination, Names, policy_text
from .reading import SEARCH_WINDOW, Reader
from .reaping import Reaper
from .rows import (
    ENVELOPE_COLUMNS,
    OUTCOMES,
    STATE,
    Db,
    Row,
    envelope_of,
    filter_of,
    filter_text,
    pack_path,
    pack_route,
    signed,
    unsigned,
)
from .slots import Ledger, Slot

log = logging.getLogger("waypost")

#: larger bodies lie in files of their own
INLINE_BYTES = 64 << 10
#: errors after which nothing may be acknowledged: the disk or the file is not to be trusted
_FATAL = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)
_SUCCESS_ALONE = pack_path((F, S, X))
_SUCCESS = OUTCOMES[Outcome.SUCCESS]
_REASONS = {
    JobKind.CANCEL: Reason.CANCELLED,
    JobKind.PURGE: Reason.PURGED,
    JobKind.DELETE: Reason.QUEUE_DELETED,
}

_READY = f"""
    select r.priority, r.sequence, r.slot, r.known, m.at, m.salt, m.own_id, m.hash, m.size, m.body, {ENVELOPE_COLUMNS}
    from ready r cross join messages m on m.sequence = r.sequence
    where r.destination = ?"""
_RECEIPTS = """
    select f."offset", f.salt, f.sequence, f.destination, f.slot, f.attempt, f.consumer, f.outcome, f.became, f.at,
           d.state, d.last, m.at, m.salt, m.own_id, m.route, m.size
    from carray(?) c cross join fetches f on f."offset" = c.value cross join messages m on m.sequence = f.sequence
    cross join deliveries d on d.sequence = f.sequence and d.destination = f.destination and d.slot = f.slot"""
_INSERT_MESSAGE = "insert into messages values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
_INSERT_FETCH = "insert into fetches values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


class _Plan(msgspec.Struct):
    """Where messages that say the same of themselves go."""

    #: (queue, slots) with at least one slot
    parts: list[tuple[Destination, int]]
    route: int | str
    #: offsets after L
    offsets: int
    #: the one queue, when nothing about it needs a second look
    plain: Destination | None
    topics: str
    object: str | None


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
        self._draw = entropy or system_entropy()
        self._infer_types = infer_types
        self.sync_seconds = 0.0
        self._broken: Exception | None = None
        files.make_folder(self.path)
        self._lock = files.Lock(self.path)
        try:
            self._db: Db = files.open_file(
                self.path, now=self.clock(), synchronous=synchronous, pregrown_bytes=pregrown_bytes, migrations=migrations
            )
            self._names = Names(self._db)
            self._bodies = Bodies(self.path.parent / "bodies", self._is_body)
            self._read_db: Db = files.connect(self.path)
            self._read_db.execute("pragma query_only = true; pragma cache_size = -2048")
        except BaseException:
            self._lock.release()
            raise
        self._reader = Reader(self._read_db, self._names)
        own_reader = Reader(self._db, self._names)
        self._own_reader = own_reader
        self._ledger = Ledger(self._db, self._names, own_reader)
        self._reaper = Reaper(self._db, self._names, own_reader, self._ledger, log_keep_us)
        self._checkpoints = Checkpoints(self.path, synchronous, self._checkpoint_failed)
        self._disk = Disk(self.path, disk_mark_bytes, ballast_bytes)
        self._wal_pages = 0
        self._db.set_wal_hook(self._committed)
        self._plans: dict[tuple[tuple[str, ...], str | None, str | None], _Plan] = {}
        self._load_head()
        self._do: dict[type, Callable[[Any], Any]] = {
            Publish: self._publish,
            PublishMany: self._publish_many,
            Extend: self._extend,
            Release: self._release,
            Remove: self._remove,
            DeclareQueue: self._declare,
            DeleteQueue: self._delete_queue,
            StartJob: self._start_job,
            Work: self._work,
            Tick: self._tick,
            Reap: self._reap,
        }
        self._new_messages: list[Row] = []
        self._new_ready: dict[tuple[int, int], array[int]] = {}
        self._new_fetches: list[Row] = []
        self._new_deliveries: list[Row] = []
        self._refetched: list[Row] = []
        self._taken: dict[tuple[int, int], tuple[int, int]] = {}
        self._new_steps: list[Row] = []
        self._confirmed: list[Row] = []
        self._settled: list[Row] = []

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
        for rows in (
            self._new_messages,
            self._new_ready,
            self._new_fetches,
            self._new_deliveries,
            self._refetched,
            self._taken,
            self._new_steps,
            self._confirmed,
            self._settled,
            self._plans,
            self._ledger.touched,
            self._ledger.roused,
        ):
            rows.clear()
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
        self._flush()
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
        if kind is Fetch:
            self._flush()
            self._fetch_run(commands, results)
            return
        if kind is Confirm:
            self._flush()
            self._confirm_run(commands, results)
            return
        if kind is not Publish and kind is not PublishMany:
            self._flush()
            self._save_head()
        do = self._do[kind]
        for command in commands:
            try:
                results.append(do(command))
            except Refused as refusal:
                results.append(refusal)

    def _applied(self, results: list[Any]) -> Applied:
        ready = {queue.name: queue.handed_out for queue in self._ledger.roused if queue.handed_out}
        dues = [at for at in self._db.execute(_NEXT_DUE).get if at is not None]
        working = self._db.execute("select 1 from jobs where ended_at is null limit 1").get is not None
        return Applied(results, ready, min(dues, default=None), working)

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

    def _flush(self) -> None:
        """What the hot paths collected, written by set statements that cannot violate a constraint."""
        db = self._db
        if self._new_messages:
            db.executemany(_INSERT_MESSAGE, self._new_messages)
            self._new_messages.clear()
            for (destination, priority), sequences in self._new_ready.items():
                db.execute(
                    "insert into ready select ?2, ?3, value, 0, 0 from carray(?1)",
                    (apsw.carray(sequences), destination, priority),
                )
            self._new_ready.clear()
        if self._new_fetches:
            db.executemany(_INSERT_FETCH, self._new_fetches)
            db.executemany("insert into deliveries values (?,?,?,4,1,1,?,null,?,?,?,null)", self._new_deliveries)
            db.executemany(
                "update deliveries set state = 4, attempt = ?, tries = ?, consumer = ?, reason = null, since_at = ?,"
                " last = ?, due_at = ? where sequence = ? and destination = ? and slot = ?",
                self._refetched,
            )
            for (destination, priority), last in self._taken.items():
                db.execute(
                    "delete from ready where destination = ? and priority = ? and (sequence, slot) <= (?, ?)",
                    (destination, priority, *last),
                )
            for taken in (self._new_fetches, self._new_deliveries, self._refetched, self._taken):
                taken.clear()
        if self._new_steps:
            db.executemany("insert into steps values (?,?,?,?,?,?,?,?,?,?,?)", self._new_steps)
            db.executemany(
                "update deliveries set state = 5, since_at = ?, last = ?, due_at = null, reason = ?"
                " where sequence = ? and destination = ? and slot = ?",
                self._confirmed,
            )
            db.executemany(
                f'update fetches set settled_at = ?, outcome = {_SUCCESS}, became = 5 where "offset" = ?',
                self._settled,
            )
            for settled in (self._new_steps, self._confirmed, self._settled):
                settled.clear()

    # ── publish ─────────────────────────────────────────────────────────────────────────────

    def _publish(self, command: Publish) -> Published:
        if command.id is not None or command.idempotency_key is not None:
            self._check((command,))
        return self._log_message(command)

    def _publish_many(self, command: PublishMany) -> list[Published]:
        self._check(command.messages)
        return [self._log_message(message) for message in command.messages]

    def _check(self, messages: Iterable[Publish]) -> None:
        """Every message against what is there and what came before it in the request; raises for the first that
        cannot be."""
        ids: dict[str, bytes] = {}
        keys: dict[tuple[str | None, str], bytes] = {}
        load: dict[str, list[int]] = {}
        for message in messages:
            known = self._idempotency_hash(message, keys) if message.idempotency_key is not None else None
            if known is None and message.id is not None:
                known = self._own_id_hash(message, ids)
            if known is None:
                self._check_room(message, load)

    def _idempotency_hash(self, command: Publish, keys: dict[tuple[str | None, str], bytes]) -> bytes | None:
        scope = (command.envelope.producer, str(command.idempotency_key))
        stored = self._remembered(*scope)
        known = keys.get(scope) if stored is None else stored[0]
        if known is not None and known != command.hash:
            raise IdempotencyConflict(f"Idempotency-Key {scope[1]!r} came with another body before")
        keys[scope] = command.hash
        return known

    def _remembered(self, producer: str | None, key: str) -> Row | None:
        """(hash, id, state) of the first answer, while it is kept."""
        number = 0 if producer is None else self._names.party(producer)
        row: Row | None = self._db.execute(
            "select hash, id, state from idempotency where producer = ? and key = ? and at > ?",
            (number, key, self._ledger.now - IDEMPOTENCY_KEPT_US),
        ).get
        return row

    def _own_id_hash(self, command: Publish, ids: dict[str, bytes]) -> bytes | None:
        assert command.id is not None
        self._flush()
        sequence = self._own_reader.sequence_of(command.id)
        if sequence is None:
            known = ids.get(command.id)
        else:
            known = self._db.execute("select hash from messages where sequence = ?", (sequence,)).get
        if known is not None and known != command.hash:
            raise IdTaken(command.id)
        ids[command.id] = command.hash
        return known

    def _check_room(self, command: Publish, load: dict[str, list[int]]) -> None:
        for name in self._targets(command):
            queue = self._names.queues.get(name)
            if queue is None:
                if not command.create:
                    raise QueueNotFound(name)
                continue
            policy = queue.policy
            if policy.max_messages is None and policy.max_bytes is None:
                continue
            slots = slots_of(policy, command.envelope.topics, name)
            more = load.setdefault(name, [0, 0])
            more[0] += slots
            more[1] += slots * command.size
            held = sum(queue.states[state] for state in OPEN)
            if policy.max_messages is not None and held + more[0] > policy.max_messages:
                raise QueueFull(f"queue {name!r} holds {policy.max_messages} messages, its maxMessages")
            if policy.max_bytes is not None and queue.bytes + more[1] > policy.max_bytes:
                raise QueueFull(f"queue {name!r} has no room for {command.size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)

    def _make_plan(self, command: Publish) -> _Plan:
        """Makes the queues that are missing. Plans of queues with limits are made each time, after a look at them."""
        self._check_room(command, {})
        envelope = command.envelope if command.queue is not None else with_object(command.envelope, self._infer_types)
        queues = [self._names.queues.get(name) or self._ledger.make_queue(name) for name in self._targets(command)]
        parts = [
            (queue, slots) for queue in queues if (slots := slots_of(queue.policy, envelope.topics, queue.name))
        ]
        plain = None
        if len(parts) == 1 and parts[0][1] == 1 and not parts[0][0].keyed and parts[0][0].policy.ttl_us is None:
            plain = parts[0][0]
        plan = _Plan(
            parts,
            pack_route({queue.number: slots for queue, slots in parts}),
            sum(slots for _, slots in parts) or 1,
            plain,
            ",".join(envelope.topics),
            envelope.object,
        )
        if not any(q.policy.max_messages or q.policy.max_bytes for q in queues):
            if len(self._plans) > 10_000:
                self._plans.clear()
            self._plans[command.envelope.topics, command.envelope.object, command.queue] = plan
        return plan

    def _log_message(self, command: Publish) -> Published:
        if command.idempotency_key is not None or command.id is not None:
            known = self._first_answer(command)
            if known is not None:
                return known
        envelope = command.envelope
        plan = self._plans.get((envelope.topics, envelope.object, command.queue)) or self._make_plan(command)
        ledger = self._ledger
        now = ledger.now
        sequence = ledger.head + 1
        ledger.head = sequence + plan.offsets
        salt = id_salt(self._draw())
        body: bytes | str
        if isinstance(command.body, Staged):
            size, body = command.body.size, command.body.place
            self._db.execute("insert into bodies values (?, ?)", (body, sequence))
        else:
            body = command.body
            size = len(body)
        self._new_messages.append(
            (
                sequence,
                now,
                salt,
                command.id,
                plan.route,
                plan.topics,
                plan.object,
                envelope.key,
                envelope.mime_type,
                envelope.timestamp,
                envelope.sent,
                None if envelope.producer is None else self._names.party(envelope.producer),
                envelope.encoding,
                msgspec.json.encode(envelope.meta).decode() if envelope.meta else None,
                envelope.traceparent,
                command.priority,
                None if command.ttl_us is None else now + command.ttl_us,
                None,
                command.hash,
                size,
                body,
            )
        )
        queue = plan.plain
        if queue is None or command.delay_us or command.ttl_us is not None:
            self._route(command, plan, sequence, size)
        else:
            place = (queue.number, command.priority)
            sequences = self._new_ready.get(place)
            if sequences is None:
                sequences = self._new_ready[place] = array("q")
            sequences.append(sequence)
            queue.states[Q] += 1
            queue.ready += 1
            queue.bytes += size
            ledger.touched.add(queue)
            ledger.roused.add(queue)
            if queue.marks:
                ledger.lower_marks(queue, (command.priority, sequence, 0))
        published = Published(command.id or make_id(sequence, salt, now), Q if plan.parts else X)
        if command.id is not None:
            self._db.execute("insert into own_ids values (?, ?)", (command.id, sequence))
        if command.idempotency_key is not None:
            self._remember_key(command, published)
        return published

    def _route(self, command: Publish, plan: _Plan, sequence: int, size: int) -> None:
        """The slots one by one, where one of them has a delay, a ttl, an order by key, or siblings."""
        now = self._ledger.now
        for queue, slots in plan.parts:
            ttl_us = queue.policy.ttl_us if command.ttl_us is None else command.ttl_us
            for number in range(slots):
                self._ledger.add(
                    Slot(
                        sequence=sequence,
                        queue=queue,
                        number=number,
                        since_at=now,
                        due_at=now + command.delay_us if command.delay_us else None,
                        expires_at=None if ttl_us is None else now + ttl_us,
                        known=bool(command.delay_us) or ttl_us is not None,
                        created_at=now,
                        key=command.envelope.key,
                        priority=command.priority,
                        size=size,
                        route=plan.route,
                    )
                )
        if not plan.parts:
            # Nothing to deliver; a row without a destination, so that the reaper finds the message.
            self._db.execute(
                "insert into deliveries values (?, 0, 0, ?, 0, 0, null, null, ?, 0, null, null)", (sequence, X, now)
            )

    def _first_answer(self, command: Publish) -> Published | None:
        if command.idempotency_key is not None:
            row = self._remembered(command.envelope.producer, command.idempotency_key)
            if row is not None:
                return Published(row[1], STATE[row[2]])
        if command.id is None:
            return None
        self._flush()
        sequence = self._own_reader.sequence_of(command.id)
        if sequence is None:
            return None
        known = Published(command.id, self._state_of(sequence))
        self._remember_key(command, known)
        return known

    def _state_of(self, sequence: int) -> State:
        route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
        states = [state for _, state in self._own_reader.states(sequence, route)]
        return message_state(states) if states else X

    def _remember_key(self, command: Publish, published: Published) -> None:
        if command.idempotency_key is not None:
            producer = command.envelope.producer
            self._db.execute(
                "insert or replace into idempotency values (?, ?, ?, ?, ?, ?)",
                (
                    0 if producer is None else self._names.party(producer),
                    command.idempotency_key,
                    command.hash,
                    self._ledger.now,
                    published.id,
                    published.state,
                ),
            )

    # ── fetch ───────────────────────────────────────────────────────────────────────────────

    def _fetch_run(self, commands: Sequence[Any], results: list[Any]) -> None:
        """The plain fetches of one queue share one look at it."""
        looked: dict[Destination, list[Row]] = {}
        for index, command in enumerate(commands):
            queue = self._names.queues.get(command.queue)
            if queue is None:
                results.append(QueueNotFound(command.queue))
            elif queue.policy.counts_consumers and command.consumer == ANONYMOUS:
                results.append(
                    ConsumerRequired(f"queue {queue.name!r} counts its consumers (complete: {queue.policy.complete})")
                )
            elif not queue.handed_out:
                results.append([])
            elif queue.picky(command):
                self._flush()
                looked.clear()
                results.append(self._fetch_picky(queue, command))
            else:
                rows = looked.get(queue)
                if rows is None:
                    self._flush()
                    wanted = sum(c.n for c in commands[index:] if c.queue == command.queue)
                    rows = looked[queue] = self._look(queue, min(wanted, queue.ready))
                results.append(self._fetch_plain(queue, command, rows))

    def _look(self, queue: Destination, limit: int) -> list[Row]:
        """The first rows, last one first, so that they are popped in order."""
        order = " order by r.priority, r.sequence, r.slot limit ?"
        rows: list[Row] = self._db.execute(_READY + order, (queue.number, limit)).fetchall()
        rows.reverse()
        return rows

    def _fetch_plain(self, queue: Destination, command: Fetch, rows: list[Row]) -> list[Fetched]:
        ledger = self._ledger
        now = ledger.now
        consumer = self._names.party(command.consumer)
        until_at = now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        fetched: list[Fetched] = []
        for _ in range(min(command.n, len(rows))):
            row = rows.pop()
            priority, sequence, slot, known, created_at, _, _, hash, _, body = row[:10]
            if not isinstance(body, str) and payload_hash(body) != hash:
                self._damaged(queue, sequence, slot)
                continue
            ledger.head = offset = ledger.head + 1
            salt = self._draw()
            if known:
                was, attempt, tries, since_at, last = self._db.execute(
                    "select state, attempt, tries, since_at, last from deliveries"
                    " where sequence = ? and destination = ? and slot = ?",
                    (sequence, queue.number, slot),
                ).get
                attempt += 1
                self._refetched.append(
                    (attempt, tries + 1, consumer, now, offset, until_at, sequence, queue.number, slot)
                )
            else:
                was, attempt, since_at, last = 3, 1, created_at, 0
                self._new_deliveries.append((sequence, queue.number, slot, consumer, now, offset, until_at))
            self._new_fetches.append(
                (
                    offset,
                    now,
                    sequence,
                    queue.number,
                    slot,
                    was,
                    (now - since_at) // 1_000,
                    attempt,
                    consumer,
                    signed(salt),
                    last,
                    until_at,
                    None,
                    None,
                    None,
                )
            )
            self._taken[queue.number, priority] = (sequence, slot)
            queue.states[was] -= 1
            fetched.append(self._fetched(row, make_receipt(offset, salt), attempt, until_at))
        if fetched:
            queue.states[F] += len(fetched)
            queue.ready -= len(fetched)
            ledger.touched.add(queue)
        return fetched

    def _fetched(self, row: Row, receipt: str, attempt: int, until_at: int) -> Fetched:
        _, sequence, _, _, created_at, salt, own_id, _, size, body = row[:10]
        return Fetched(
            own_id or make_id(sequence, salt, created_at),
            receipt,
            attempt,
            envelope_of(row[10:], self._names.parties),
            created_at,
            Staged(size, body) if isinstance(body, str) else body,
            until_at,
        )

    def _damaged(self, queue: Destination, sequence: int, number: int) -> None:
        """Not handed out: a payload that is not what was published. It stands with the dead letters."""
        self._flush()
        slot = self._ledger.slot(sequence, queue.number, number)
        log.error("payload of message %d in queue %s does not fit its checksum", sequence, queue.name)
        self._ledger.take(slot, Step((E,), Reason.DAMAGED, None, slot.tries))

    def _fetch_picky(self, queue: Destination, command: Fetch) -> list[Fetched]:
        """Row by row, passing those that are not for this consumer."""
        consumer = self._names.party(command.consumer)
        fetched: list[Fetched] = []
        passed = 0
        place = queue.marks.get(consumer, (0, 0, 0)) if command.topic is None else (0, 0, 0)
        while len(fetched) < command.n and passed < TOPIC_SCAN:
            row = self._db.execute(
                _READY + " and (r.priority, r.sequence, r.slot) >= (?, ?, ?) order by 1, 2, 3 limit 1",
                (queue.number, *place),
            ).get
            if row is None:
                break
            place = row[:3]
            if self._suits(row, queue, command, consumer):
                slot = self._ledger.slot(row[1], queue.number, row[2])
                if not isinstance(row[9], str) and payload_hash(row[9]) != row[7]:
                    self._damaged(queue, row[1], row[2])
                else:
                    fetched.append(self._hand_out(slot, row, command, consumer))
            elif command.topic is not None:
                passed += 1
            place = (place[0], place[1], place[2] + 1)
        if command.topic is None and command.consumer != ANONYMOUS:
            # What was passed is not for this consumer, what was taken is gone: next time start here.
            queue.marks[consumer] = place
        return fetched

    def _suits(self, row: Row, queue: Destination, command: Fetch, consumer: int) -> bool:
        if command.topic is not None and not any(
            topic_matches(command.topic, topic) for topic in row[10].split(",") if topic
        ):
            return False
        sequence, number = row[1], row[2]
        if command.consumer == ANONYMOUS:
            return True
        if queue.refusals and self._db.execute(
            "select 1 from refusals where sequence = ? and destination = ? and consumer = ? limit 1",
            (sequence, queue.number, consumer),
        ).get:
            return False
        if not queue.slotted:
            return True
        has_another = self._db.execute(
            "select 1 from deliveries where sequence = ? and destination = ? and slot <> ? and consumer = ?"
            " and state in (4, 5, 6, 8, 9) limit 1",
            (sequence, queue.number, number, consumer),
        ).get
        return has_another is None

    def _hand_out(self, slot: Slot, row: Row, command: Fetch, consumer: int) -> Fetched:
        queue, ledger = slot.queue, self._ledger
        policy = queue.policy
        now = ledger.now
        until_at = now + (policy.lease_us if command.lease_us is None else command.lease_us)
        was = slot.state
        salt = self._draw()
        ledger.head = offset = ledger.head + 1
        self._db.execute(
            _INSERT_FETCH,
            (
                offset,
                now,
                slot.sequence,
                queue.number,
                slot.number,
                was,
                (now - slot.since_at) // 1_000,
                slot.attempt + 1,
                consumer,
                signed(salt),
                slot.last,
                until_at,
                None,
                None,
                None,
            ),
        )
        slot.attempt += 1
        slot.tries += 1
        slot.consumer, slot.reason = consumer, None
        slot.last, slot.since_at, slot.due_at = offset, now, until_at
        ledger.fetched(slot, was)
        if policy.kick:
            ledger.take(slot, Step((K,), None, None, slot.tries))
        return self._fetched(row, make_receipt(offset, salt), slot.attempt, until_at)

    # ── confirm, extend, release ────────────────────────────────────────────────────────────

    def _confirm_run(self, commands: Sequence[Any], results: list[Any]) -> None:
        parsed = {text: parse_receipt(text) for command in commands for text in command.receipts}
        fetches = self._fetches(receipt[0] for receipt in parsed.values() if receipt is not None)
        for command in commands:
            queue = self._names.queues.get(command.queue)
            if queue is None:
                results.append(QueueNotFound(command.queue))
                continue
            results.append([self._settle(text, parsed[text], queue, command, fetches) for text in command.receipts])

    def _fetches(self, offsets: Iterable[int]) -> dict[int, list[Any]]:
        wanted = array("q", offsets)
        if not wanted:
            return {}
        return {row[0]: list(row) for row in self._db.execute(_RECEIPTS, (apsw.carray(wanted),))}

    def _settle(
        self,
        text: str,
        receipt: tuple[int, int] | None,
        queue: Destination,
        command: Confirm,
        fetches: dict[int, list[Any]],
    ) -> Settled:
        row = fetches.get(receipt[0]) if receipt is not None else None
        if row is None or receipt is None or unsigned(row[1]) != receipt[1] or row[3] != queue.number:
            return Settled(text)
        (offset, _, sequence, destination, number, attempt, consumer, outcome, became, fetched_at) = row[:10]
        state, last, created_at, salt, own_id, route, size = row[10:]
        id = own_id or make_id(sequence, salt, created_at)
        if became is not None:
            repeated = outcome == OUTCOMES[command.outcome]
            return Settled(text, id, STATE[became]) if repeated else Settled(text)
        if (state != F or last != offset) and not (state == R and self._lease_was_over(offset, last)):
            return Settled(text)
        if state != F or command.outcome is not Outcome.SUCCESS or not isinstance(route, int) or queue.keyed:
            step = self._settle_slot(sequence, destination, number, command, offset)
            row[7:9] = OUTCOMES[command.outcome], step.state
            return Settled(text, id, step.state)
        ledger = self._ledger
        now = ledger.now
        step_offset = ledger.head + 1
        ledger.head += 2
        self._new_steps.append(
            (
                step_offset,
                now,
                sequence,
                destination,
                number,
                _SUCCESS_ALONE,
                (now - fetched_at) // 1_000,
                attempt,
                consumer,
                command.reason,
                offset,
            )
        )
        self._confirmed.append((now, step_offset, command.reason, sequence, destination, number))
        self._settled.append((now, offset))
        queue.states[F] -= 1
        queue.states[S] += 1
        queue.bytes -= size
        ledger.touched.add(queue)
        row[7:9] = _SUCCESS, int(S)
        return Settled(text, id, S)

    def _lease_was_over(self, fetch: int, last: int) -> bool:
        """Whether nothing but the end of the lease came after this fetch."""
        return bool(self._db.execute('select previous from steps where "offset" = ?', (last,)).get == fetch)

    def _settle_slot(self, sequence: int, destination: int, number: int, command: Confirm, fetch: int) -> Step:
        self._flush()
        slot = self._ledger.slot(sequence, destination, number)
        step = settle(
            command.outcome,
            in_queue=True,
            named=slot.consumer is not None and self._names.parties[slot.consumer] != ANONYMOUS,
            tries=slot.tries,
            policy=slot.queue.policy,
            reason=command.reason,
            delay_us=command.delay_us,
            now=self._ledger.now,
            draw=self._draw,
        )
        if step.path[0] is N:
            slot.queue.refusals = True
            self._db.execute(
                "insert or ignore into refusals values (?, ?, ?, ?)", (sequence, destination, number, slot.consumer)
            )
        self._ledger.take(slot, step, outcome=OUTCOMES[command.outcome], fetch=fetch)
        return step

    def _valid(self, text: str, queue: Destination | None) -> list[Any] | None:
        """The fetch behind a receipt that is neither stale nor settled."""
        receipt = parse_receipt(text)
        row = self._fetches((receipt[0],)).get(receipt[0]) if receipt is not None else None
        if row is None or receipt is None or unsigned(row[1]) != receipt[1]:
            return None
        if queue is not None and row[3] != queue.number:
            return None
        return row if row[8] is None and row[10] == F and row[11] == row[0] else None

    def _extend(self, command: Extend) -> list[Extended]:
        queue = self._names.queues.get(command.queue)
        if queue is None:
            raise QueueNotFound(command.queue)
        until_at = self._ledger.now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        extended = []
        for text in command.receipts:
            row = self._valid(text, queue)
            if row is not None:
                self._db.execute(
                    "update deliveries set due_at = ? where sequence = ? and destination = ? and slot = ?",
                    (until_at, *row[2:5]),
                )
            extended.append(Extended(text, None if row is None else until_at))
        return extended

    def _release(self, command: Release) -> list[Settled]:
        released = []
        for text in command.receipts:
            row = self._valid(text, None)
            if row is None:
                released.append(Settled(text))
                continue
            slot = self._ledger.slot(*row[2:5])
            self._ledger.take(slot, Step((Q,), Reason.RELEASED, None, slot.tries - 1))
            released.append(Settled(text, row[14] or make_id(row[2], row[13], row[12]), Q))
        return released

    def _remove(self, command: Remove) -> bool:
        queue = self._names.queues.get(command.queue)
        sequence = self._own_reader.sequence_of(command.id) if queue else None
        done = False
        if queue is not None and sequence is not None:
            route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
            for (destination, number), state in self._own_reader.states(sequence, route):
                if destination == queue.number and state in OPEN:
                    slot = self._ledger.slot(sequence, destination, number)
                    self._ledger.take(slot, Step((S if state is F else C,), Reason.REMOVED, None, slot.tries))
                    done = True
        return done

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
            self._plans.clear()
            if was_keyed != queue.keyed:
                self._ledger.reorder(queue)
            self._ledger.roused.add(queue)
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        queue = self._names.queues.pop(command.name, None)
        if queue is None:
            raise QueueNotFound(command.name)
        queue.deleted = True
        self._plans.clear()
        self._db.execute(
            "update destinations set deleted_at = ? where number = ?", (self._ledger.now, queue.number)
        )
        matched = sum(queue.states[state] for state in OPEN)
        return self._open_job(JobKind.DELETE, Filter(queue=command.name), matched, queue)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def _start_job(self, command: StartJob) -> Job:
        return self._open_job(command.kind, command.filter, command.matched, None)

    def _open_job(self, kind: JobKind, filter: Filter, matched: int, queue: Destination | None) -> Job:
        number = (self._db.execute("select max(number) from jobs").get or 0) + 1
        self._db.execute(
            "insert into jobs values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, null)",
            (
                number,
                kind,
                filter_text(filter),
                queue.number if queue else None,
                self._ledger.head,
                max(self._names.by_number, default=0),
                matched,
                self._ledger.now,
            ),
        )
        return _job_of(self._db, number)

    def _work(self, command: Work) -> bool:
        row = self._db.execute(
            "select number, kind, filter, destination, until, newest, after from jobs where ended_at is null"
            " order by number limit 1"
        ).get
        if row is None:
            return False
        number, kind, filter, destination, until, newest, after = row
        chosen = filter_of(filter)
        began, done = after, 0
        while done < command.limit and after < until and after < began + SEARCH_WINDOW:
            found, following = self._own_reader.search(chosen, after, command.limit - done)
            for queue_number, info in found:
                if info.sequence <= until and queue_number <= newest and destination in (None, queue_number):
                    slot = self._ledger.slot(info.sequence, queue_number, info.slot)
                    done += self._work_on(JobKind(kind), slot)
            after = until if following is None else following
        ended_at = self._ledger.now if done < command.limit and after >= until else None
        self._db.execute(
            "update jobs set after = ?, done = done + ?, ended_at = ? where number = ?",
            (after, done, ended_at, number),
        )
        return self._db.execute("select 1 from jobs where ended_at is null limit 1").get is not None

    def _work_on(self, kind: JobKind, slot: Slot) -> bool:
        """Whether it was one that the job may touch."""
        if slot.state not in JOB_STATES[kind] or slot.queue.deleted != (kind is JobKind.DELETE):
            return False
        if kind is JobKind.REDRIVE:
            if self._db.execute("select body is null from messages where sequence = ?", (slot.sequence,)).get:
                return False  # what has no body any more cannot be delivered again
            self._ledger.take(slot, Step((Q,), Reason.REDRIVEN))
        else:
            self._ledger.take(slot, Step((C,), _REASONS[kind], None, slot.tries))
        return True

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
        return None if known is None else _job_of(self._read_db, number)

    def stats(self) -> Stats:
        oldest, head = self.bounds()
        sizes = [path.stat().st_size for path in self.path.parent.glob(self.path.name + "*") if path.is_file()]
        return Stats(oldest=oldest, head=head, disk_bytes=sum(sizes))

    def close(self) -> None:
        self._checkpoints.stop()
        self._read_db.close()
        self._db.close()
        self._lock.release()


_NEXT_DUE = """
    select (select due_at from deliveries where due_at is not null order by due_at limit 1),
           (select expires_at from deliveries where expires_at is not null and state in (3, 7)
            order by expires_at limit 1)"""


def _job_of(db: Db, number: int) -> Job:
    kind, matched, done, started_at, ended_at = db.execute(
        "select kind, matched, done, started_at, ended_at from jobs where number = ?", (number,)
    ).get
    return Job(
        id=str(number),
        kind=JobKind(kind),
        matched=matched,
        done=done,
        started_at=started_at,
        ended_at=ended_at,
    )
