"""Reads of committed state, on connections of their own."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from ...commands import Batch, Job, Upload
from ...delivery import STATES, L
from ...destinations import Kind
from ...errors import LogTrimmed, MessageNotFound, PayloadDamaged, PayloadReaped, StoreUnavailable
from ...filters import Filter
from ...message import Envelope, payload_hash
from ...store import (
    ChannelInfo,
    DeliveryInfo,
    Depths,
    Event,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    SpectatorInfo,
    Stats,
    Undecided,
)
from ..rules import selects
from ..things import Destination, Fetching, Message, Slot, delivery_info
from . import batches
from .connecting import Conn, connect, one_line
from .loading import FETCH, JOB, STATE, fetching_of, job_of, load, sequences_of
from .names import Db, Names
from .writing import COUNT_COLUMNS, COUNTED, SNAPSHOT_EVENTS

#: messages that one search loads at most, and offsets that it looks through for them
SEARCH_MESSAGES = 1_000
SEARCH_WINDOW = 50_000

_BEGIN = "begin isolation level repeatable read read only"
EVENT = (
    'e."offset", e.at, e.message_id, e.sequence, p.kind, p.name, e.slot, e.from_state, e.to_state, e.attempt,'
    " e.consumer, e.reason, e.duration_ms, e.envelope, e.hash, e.size, e.same_as"
    " from events e left join destinations p on p.number = e.destination"
)
FIGURES = (
    f"p.number, {', '.join(f'coalesce(c.{name}, 0)' for name in (*COUNT_COLUMNS, 'bytes', 'ready'))}"
    " from destinations p left join counts c on c.destination = p.number"
)


class _Search:
    """What `selects` asks of the rows."""

    def __init__(self, db: Db, slots: dict[tuple[int, int, int], Slot]) -> None:
        self._db, self._slots = db, slots

    def fetches_of(self, slot: Slot) -> list[Fetching]:
        self._db.execute(f"select {FETCH} from fetches where sequence = %s", (slot.message.sequence,))
        known = [fetching_of(row, self._slots) for row in self._db.fetchall()]
        return [fetching for fetching in known if fetching is not None and fetching.slot is slot]


class Reader:
    def __init__(self, url: str) -> None:
        self._url = url
        self._names: Names | None = None
        #: by thread: nobody waits for another one's read
        self._connections: dict[int, Conn] = {}

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    @contextmanager
    def _read(self) -> Iterator[Db]:
        """One snapshot for all of a read."""
        try:
            connection = self._begin()
            try:
                with connection.cursor() as db:
                    yield db
            finally:
                connection.execute("rollback")
        except psycopg.Error as error:
            self._drop()
            raise StoreUnavailable(one_line(error)) from error

    def _begin(self) -> Conn:
        """On this thread's connection; on a new one when that broke while it was idle."""
        thread = threading.get_ident()
        connection = self._connections.get(thread)
        if connection is not None:
            try:
                connection.execute(_BEGIN)
                return connection
            except psycopg.Error:
                self._drop()
        connection = self._connections[thread] = connect(self._url, autocommit=True, name="waypost reads")
        connection.execute(_BEGIN)
        return connection

    def _drop(self) -> None:
        connection = self._connections.pop(threading.get_ident(), None)
        if connection is not None:
            connection.close()

    def _current(self, db: Db) -> Names:
        db.execute("select version from log_head")
        row = db.fetchone()
        assert row is not None
        if self._names is None or self._names.version != row[0]:
            self._names = Names(db)
        return self._names

    # ── names and figures ───────────────────────────────────────────────────────────────────

    def ready(self, name: str, kind: Kind) -> int | None:
        with self._read() as db:
            place = self._current(db).named[kind].get(name)
            if place is None:
                return None
            db.execute("select ready from counts where destination = %s", (place.number,))
            row = db.fetchone()
            return 0 if row is None or place.policy.paused else int(row[0])

    def infos(self, kind: Kind, name: str | None = None) -> list[Any]:
        with self._read() as db:
            names = self._current(db)
            where, values = ("", ()) if name is None else (" and p.name = %s", (name,))
            db.execute(
                f"select {FIGURES} where p.kind = %s and p.deleted_at is null{where}", (int(kind), *values)
            )
            found = [_info(names.places[number], counts) for number, *counts in db.fetchall()]
            return sorted(found, key=lambda info: info.name)

    def objects(self, name: str | None = None) -> list[ObjectInfo]:
        with self._read() as db:
            policies = self._current(db).objects
            wanted = sorted(policies) if name is None else [name] if name in policies else []
            found = []
            for object in wanted:
                db.execute("select producer, count from unchanged where object = %s", (object,))
                counts = dict(db.fetchall())
                db.execute("select count(*) from messages where undecided and object = %s", (object,))
                logged = _only(db)
                found.append(
                    ObjectInfo(name=object, policy=policies[object], unchanged=counts, logged=logged)
                )
            return found

    def consumers(self) -> dict[str, Any]:
        with self._read() as db:
            return dict(self._current(db).consumers)

    def spectators(self) -> list[SpectatorInfo]:
        with self._read() as db:
            db.execute("select next - 1 from log_head")
            head = _only(db)
            db.execute('select name, "offset", at from spectators order by name')
            return [
                SpectatorInfo(name=name, offset=offset, lag=head - offset, at=at)
                for name, offset, at in db.fetchall()
            ]

    def job(self, id: str) -> Job | None:
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 18 else 0
        with self._read() as db:
            db.execute(f"select {JOB} from jobs where number = %s", (number,))
            row = db.fetchone()
            return None if row is None else job_of(row, self._current(db).places).info()

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def batch(self, query: str, batch: int) -> Batch | None:
        with self._read() as db:
            return batches.batch_named(db, query, batch)

    def open_batches(self) -> list[Batch]:
        with self._read() as db:
            return batches.batches(db, only_open=True)

    def uploads(self, batch: int | None) -> list[Upload]:
        with self._read() as db:
            return batches.uploads_of(db, batch)

    def chunk(self, id: str) -> bytes:
        with self._read() as db:
            chunk = batches.chunk_of(db, id)
        if chunk is None:
            raise PayloadReaped(f"the chunk of upload {id!r} is gone")
        return chunk

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def bounds(self) -> tuple[int, int]:
        with self._read() as db:
            return _bounds(db)

    def events(self, lo: int, hi: int) -> list[Event]:
        with self._read() as db:
            oldest, _ = _bounds(db)
            if lo < oldest:
                raise LogTrimmed(oldest)
            db.execute(f'select {EVENT} where e."offset" between %s and %s order by e."offset"', (lo, hi))
            return [event_of(row) for row in db.fetchall()]

    def offset_at(self, at: int) -> int:
        with self._read() as db:
            return _offset_at(db, at)

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        with self._read() as db:
            oldest, head = _bounds(db)
            base = _snapshot(db, "at <= %s order by at desc", at)
            first = _snapshot(db, '"offset" >= %s order by at', oldest - 1)
            from_the_start = oldest == 1 and (head if first is None else first[1]) <= 2 * SNAPSHOT_EVENTS
            if (base is None and not from_the_start) or (base is not None and base[1] < oldest - 1):
                db.execute("select at from log_head")
                raise LogTrimmed(oldest, _only(db) if first is None else first[0])
            there = [
                place
                for place in self._current(db).places.values()
                if (place.kind, place.name) == (kind, name)
                and place.created_at <= at
                and (place.deleted_at is None or at < place.deleted_at)
            ]
            if not there:
                return None
            number = max(place.number for place in there)
            counts = dict.fromkeys(COUNTED, 0)
            since_at, since = base or (0, 0)
            db.execute(
                "select states from snapshots where destination = %s and at <= %s order by at desc limit 1",
                (number, since_at),
            )
            row = db.fetchone()
            if row is not None and base is not None:
                counts |= {STATES[letter]: n for letter, n in msgspec.json.decode(row[0]).items()}
            offset = _offset_at(db, at + 1) - 1
            db.execute(
                'select from_state, to_state, count(*) from events where "offset" between %s and %s'
                " and destination = %s group by from_state, to_state",
                (since + 1, offset, number),
            )
            for before, after, n in db.fetchall():
                for state, change in ((before, -n), (after, n)):
                    if state != L:
                        counts[STATE[state]] += change
            return Depths(at=at, offset=offset, states={state: n for state, n in counts.items() if n})

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def message(self, id: str) -> MessageInfo | None:
        with self._read() as db:
            message = self._find(db, id)
            if message is None:
                return None
            oldest, _ = _bounds(db)
            db.execute(
                f'select {EVENT} where e.sequence = %s and e."offset" >= %s order by e."offset"',
                (message.sequence, oldest),
            )
            return MessageInfo(
                id=message.id,
                sequence=message.sequence,
                envelope=message.envelope,
                hash=message.hash,
                size=message.size,
                priority=message.priority,
                created_at=message.created_at,
                expires_at=message.expires_at,
                state=message.state,
                same_as=message.same_as,
                deliveries=[delivery_info(slot) for slot in message.in_order()],
                journey=[event_of(row) for row in db.fetchall()],
            )

    def body(self, id: str) -> bytes:
        with self._read() as db:
            message = self._find(db, id)
            if message is None:
                raise MessageNotFound(id)
            if not message.kept:
                raise PayloadReaped(f"the body of {id!r} is gone")
            return _body(db, message)

    def _find(self, db: Db, id: str) -> Message | None:
        sequence = sequences_of(db, [id]).get(id)
        messages, _ = load(db, [] if sequence is None else [sequence], self._current(db).places)
        return next((message for message in messages if message.id == id), None)

    def sparks(self) -> frozenset[str]:
        with self._read() as db:
            policies = self._current(db).objects
            return frozenset(name for name, policy in policies.items() if policy.route == "spark")

    def undecided(
        self, after: int, limit: int, only: Collection[str] | None, but: Collection[str]
    ) -> list[Undecided]:
        chosen, objects = "", []
        if only is not None:
            chosen += " and object = any(%s)"
            objects.append(list(only))
        if but:
            chosen += " and (object is null or object <> all(%s))"
            objects.append(list(but))
        with self._read() as db:
            db.execute(
                f"select sequence from messages where undecided and sequence > %s{chosen}"
                " order by sequence limit %s",
                (after, *objects, limit),
            )
            messages, _ = load(db, [row[0] for row in db.fetchall()], self._current(db).places)
            return [
                Undecided(
                    id=message.id,
                    sequence=message.sequence,
                    envelope=message.envelope,
                    created_at=message.created_at,
                    size=message.size,
                    body=_body(db, message),
                )
                for message in messages
            ]

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        with self._read() as db:
            where, values = _where(filter)
            most = max(1, min(limit, SEARCH_MESSAGES))
            last = after + SEARCH_WINDOW
            db.execute(
                "select m.sequence from messages m where m.sequence > %s and m.sequence <= %s"
                f"{where} order by m.sequence limit %s",
                (after, last, *values, most + 1),
            )
            sequences = [row[0] for row in db.fetchall()]
            messages, _ = load(db, sequences[:most], self._current(db).places)
            slots = {
                (slot.message.sequence, slot.queue.number, slot.number): slot
                for message in messages
                for slot in message.slots
            }
            search = _Search(db, slots)
            found: list[DeliveryInfo] = []
            for message in messages:
                if len(found) >= limit:
                    return found, after
                chosen = (slot for slot in message.in_order() if selects(filter, slot, search))
                found += map(delivery_info, chosen)
                after = message.sequence
            if len(sequences) > most:
                return found, after
            return found, last if last < _bounds(db)[1] else None

    def stats(self) -> Stats:
        with self._read() as db:
            oldest, head = _bounds(db)
            db.execute("select undecided from log_head")
            undecided = _only(db)
            db.execute(
                "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c"
                " where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace"
            )
            return Stats(oldest=oldest, head=head, disk_bytes=_only(db), undecided=undecided)

    def id(self) -> str:
        with self._read() as db:
            db.execute("select id from log_head")
            return str(_only(db))

    def sealed(self) -> int:
        with self._read() as db:
            db.execute("select coalesce(sealed, 0) from log_head")
            return int(_only(db))

    def erasures(self) -> list[int]:
        with self._read() as db:
            db.execute("select sequence from erasures order by sequence")
            return [sequence for (sequence,) in db.fetchall()]


def _only(db: Db) -> Any:
    row = db.fetchone()
    assert row is not None
    return row[0]


def _bounds(db: Db) -> tuple[int, int]:
    db.execute("select oldest, next - 1 from log_head")
    row = db.fetchone()
    assert row is not None
    return row[0], row[1]


def _offset_at(db: Db, at: int) -> int:
    oldest, head = _bounds(db)
    db.execute(
        'select "offset" from events where at >= %s and "offset" >= %s order by at, "offset" limit 1',
        (at, oldest),
    )
    row = db.fetchone()
    return head + 1 if row is None else int(row[0])


def _snapshot(db: Db, where: str, value: int) -> tuple[int, int] | None:
    db.execute(f'select at, "offset" from snapshots where destination = 0 and {where} limit 1', (value,))
    row = db.fetchone()
    return None if row is None else (row[0], row[1])


def _body(db: Db, message: Message) -> bytes:
    db.execute("select body from payloads where sequence = %s", (message.sequence,))
    row = db.fetchone()
    if row is None or payload_hash(row[0]) != message.hash:
        raise PayloadDamaged(f"the body of {message.id!r} does not fit its checksum")
    return bytes(row[0])


def _info(place: Destination, counts: list[int]) -> QueueInfo | ChannelInfo:
    *states, size, ready = counts
    figures: dict[str, Any] = {
        "name": place.name,
        "policy": place.policy,
        "created_at": place.created_at,
        "states": {state: n for state, n in zip(COUNTED, states, strict=True) if n},
        "bytes": size,
        "ready": 0 if place.policy.paused else ready,
    }
    return QueueInfo(**figures) if place.is_queue else ChannelInfo(**figures, topics=place.topics)


def event_of(row: tuple[Any, ...]) -> Event:
    offset, at, message_id, sequence, kind, name, slot, before, after, attempt, consumer, reason, *rest = row
    duration_ms, envelope, hash, size, same_as = rest
    return Event(
        offset=offset,
        at=at,
        message_id=message_id,
        sequence=sequence,
        queue=name if kind == Kind.QUEUE else None,
        channel=name if kind == Kind.CHANNEL else None,
        slot=slot,
        from_state=None if before is None else STATE[before],
        to_state=STATE[after],
        attempt=attempt,
        consumer=consumer,
        reason=reason,
        duration_ms=duration_ms,
        envelope=None if envelope is None else msgspec.json.decode(envelope, type=Envelope),
        hash=hash,
        size=size,
        same_as=same_as,
    )


def _where(filter: Filter) -> tuple[str, list[Any]]:
    """What of a filter the database can decide; the rest is looked at row by row."""
    where = ""
    values: list[Any] = []
    if filter.object is not None:
        where, values = where + " and m.object = %s", [*values, filter.object]
    if filter.key is not None:
        where, values = where + " and m.key = %s", [*values, filter.key]
    if filter.states is not None:
        where += (
            " and exists (select 1 from deliveries d where d.sequence = m.sequence and d.state = any(%s))"
        )
        values.append([int(state) for state in filter.states])
    return where, values
