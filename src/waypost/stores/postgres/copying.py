"""A store's holdings out of a database, and into an empty one.

The tables are the things that the rules speak of, so rows go in as they are; counters and what keys hold up are computed at the end.
While it is filled, the database has a table `copying`: `serve` refuses it, and a copy that is begun anew empties it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg

from ...commands import Batch, Published, Upload
from ...delivery import State
from ...errors import PayloadDamaged, StoreUnusable
from ...message import payload_hash
from ...store import Feature
from .. import holdings, things
from ..holdings import (
    Agreed,
    BatchKept,
    ContentKept,
    Entry,
    Figures,
    Held,
    KeyKept,
    LatestKept,
    LeftBehind,
    Snapshot,
    Standing,
    UploadKept,
    open_fetch,
    text,
)
from ..urls import masked
from . import batches
from .connecting import (
    Conn,
    check_durable,
    check_schema,
    connect,
    is_unfinished,
    migrate_connection,
    one_line,
    schema_version,
)
from .group import slot_row
from .loading import FETCH, JOB, STATE, fetching_of, job_of, load
from .names import Db, Names
from .reading import EVENT, FIGURES, event_of
from .statements import insert
from .writing import COUNT_COLUMNS, COUNTED, reorder

#: messages, or offsets, read at once
PAGE = 1_000

_encode = msgspec.json.Encoder().encode


def _open(url: str) -> Conn:
    try:
        connection = connect(url, name="waypost copy")
        connection.execute("set statement_timeout = 0")
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.commit()
        return connection
    except (psycopg.Error, ValueError) as error:
        raise StoreUnusable(f"cannot connect to {masked(url)}: {one_line(error)}") from error


def _check_not_served(db: Db, url: str) -> None:
    """Whoever serves keeps its claim on a task for some seconds."""
    db.execute("select count(*) from owned where until > now()")
    if _only(db):
        raise StoreUnusable(
            f"{masked(url)} is served by a broker: stop it first; after a kill its leases end within 5 s"
        )


class Source:
    def __init__(self, url: str) -> None:
        """Raises StoreUnusable, also when it is served."""
        self._url = url
        self._connection = _open(url)
        try:
            db = self._connection.cursor()
            if schema_version(db) == 0:
                raise StoreUnusable(f"there is no store at {masked(url)}")
            check_schema(db, url)
            _check_not_served(db, url)
            self._names = Names(db)
            self._connection.commit()
        except psycopg.Error as error:
            self._connection.close()
            raise StoreUnusable(f"{masked(url)} cannot be read: {one_line(error)}") from error
        except StoreUnusable:
            self._connection.close()
            raise

    @classmethod
    def of(cls, connection: Conn) -> Source:
        """What was written just now."""
        source = cls.__new__(cls)
        source._connection = connection
        source._names = Names(connection.cursor())
        connection.commit()
        return source

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, given: Sequence[Any] = ()) -> list[Any]:
        with self._connection.cursor() as db:
            db.execute(query.encode(), given)
            rows = db.fetchall()
        self._connection.commit()
        return rows

    def _pages(self, query: str, of: str) -> Iterator[list[Any]]:
        """By a number, which stands first in each row."""
        after = 0
        while page := self._rows(f"{query} where {of} > %s order by {of} limit {PAGE}", (after,)):
            yield page
            after = page[-1][0]

    def turn(self) -> int:
        return int(self._rows("select turn from log_head")[0][0])

    def standing(self) -> Standing:
        return Standing(*self._rows("select id, oldest, next - 1, at, sealed from log_head")[0])

    def agreed(self) -> Agreed:
        names = self._names
        return Agreed(
            list(names.places.values()),
            dict(names.objects),
            {(object, producer): n for object, producer, n in self._rows("select * from unchanged")},
            sorted(names.consumers.values(), key=lambda info: info.name),
            {name: (offset, at) for name, offset, at in sorted(self._rows("select * from spectators"))},
            [job_of(row, names.places) for row in self._rows(f"select {JOB} from jobs order by number")],
            [sequence for (sequence,) in self._rows("select sequence from erasures order by 1")],
            [
                Snapshot(place, at, offset, _states(states))
                for place, at, offset, states in self._rows("select * from snapshots order by at")
            ],
        )

    def left_behind(self) -> Iterator[LeftBehind]:
        with self._connection.cursor("left", withhold=True) as db:
            db.execute("select producer, key, hash, id, state, same_as, at from idempotency")
            for producer, key, hash, id, state, same_as, at in db:
                published = Published(id, STATE[state], same_as)
                yield KeyKept((producer or None, key), things.Remembered(hash, published, at))
        with self._connection.cursor("left", withhold=True) as db:
            db.execute("select object, key, hash, id, sequence, at, ended from contents")
            for object, key, hash, id, sequence, at, ended in db:
                end = None if ended is None else STATE[ended]
                yield ContentKept((object, key), things.Content(hash, id, sequence, at, end))
        with self._connection.cursor("left", withhold=True) as db:
            db.execute("select destination, object, key, sequence from latest")
            for place, object, key, sequence in db:
                yield LatestKept(place, (object, key), sequence)
        self._connection.commit()
        with self._connection.cursor() as db:
            known = batches.batches(db, only_open=False)
        self._connection.commit()
        for batch in known:
            yield BatchKept(batch)
            yield from self._uploads(batch)

    def _uploads(self, batch: Batch) -> Iterator[UploadKept]:
        with self._connection.cursor() as db:
            uploads = batches.uploads_of(db, batch.number) if batch.ended_at is None else []
            for upload in uploads:
                yield UploadKept(upload, batches.chunk_of(db, upload.id) or b"")
        self._connection.commit()

    def messages(self, bodies: bool = True) -> Iterator[Held]:
        for page in self._pages("select sequence from messages", "sequence"):
            wanted = [sequence for (sequence,) in page]
            messages, waiting = load(self._connection.cursor(), wanted, self._names.places)
            slots = {
                (message.sequence, slot.queue.number, slot.number): slot
                for message in messages
                for slot in message.slots
            }
            fetchings: dict[int, list[things.Fetching]] = {}
            for row in self._rows(f"select {FETCH} from fetches where sequence = any(%s)", (wanted,)):
                fetching = fetching_of(row, slots)
                if fetching is not None:
                    fetchings.setdefault(row[1], []).append(fetching)
            for message in messages:
                body = self._body(message) if bodies and message.kept else None
                yield Held(message, message in waiting, body, fetchings.get(message.sequence, []))

    def _body(self, message: things.Message) -> bytes:
        found = self._rows("select body from payloads where sequence = %s", (message.sequence,))
        if not found or payload_hash(found[0][0]) != message.hash:
            raise PayloadDamaged(f"the body of {message.id!r} does not fit its checksum")
        return bytes(found[0][0])

    def events(self) -> Iterator[Entry]:
        _, oldest, head, *_ = self.standing()
        for lo in range(oldest, head + 1, PAGE):
            hi = min(head, lo + PAGE - 1)
            places = dict(
                self._rows(
                    'select "offset", destination from events where "offset" between %s and %s', (lo, hi)
                )
            )
            for row in self._rows(
                f'select {EVENT} where e."offset" between %s and %s order by e."offset"', (lo, hi)
            ):
                yield Entry(event_of(row), places[row[0]])

    def figures(self) -> dict[int, Figures]:
        found = {}
        for number, *counts, size, ready in self._rows(f"select {FIGURES}"):
            place = self._names.places[number]
            states = {state: count for state, count in zip(COUNTED, counts, strict=True) if count}
            found[number] = Figures(states, size, 0 if place.policy.paused or place.deleted else ready)
        return found


class Target:
    lacks: frozenset[Feature] = frozenset()

    def __init__(self, url: str) -> None:
        """Raises StoreUnusable when there is something already."""
        self._url = url
        self._connection = _open(url)
        try:
            db = self._connection.cursor()
            check_durable(db, url)
            if schema_version(db) and not is_unfinished(db):
                check_schema(db, url)
                _check_not_served(db, url)
                checks = " or ".join(f"exists (select 1 from {table})" for table in _PUT_THERE)
                db.execute(f"select {checks}".encode())
                if _only(db):
                    raise StoreUnusable(
                        f"{masked(url)} is not empty: name a database without Waypost's tables"
                    )
            self._connection.commit()
            migrate_connection(self._connection)
        except psycopg.Error as error:
            self._connection.close()
            raise StoreUnusable(f"{masked(url)} cannot be written: {one_line(error)}") from error
        except StoreUnusable:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def begin(self) -> None:
        with self._connection.cursor() as db:
            db.execute("create table if not exists copying (since timestamptz not null default now())")
            self._connection.commit()
            for table in (*_PUT_THERE, *_OTHERS):
                db.execute(f"delete from {table}".encode())
        self._connection.commit()

    def take_agreed(self, standing: Standing, agreed: Agreed) -> None:
        self._places = agreed.places
        last = max((one for one in agreed.snapshots if not one.place), key=lambda one: one.at, default=None)
        with self._connection.cursor() as db:
            db.execute(
                "update log_head set id = %s, oldest = %s, next = %s, at = %s, sealed = %s, turn = turn + 1,"
                " version = version + 1, undecided = 0, snapshot_at = %s, snapshot_next = %s",
                (
                    standing.id,
                    standing.oldest,
                    standing.head + 1,
                    standing.at,
                    standing.sealed,
                    0 if last is None else last.at,
                    1 if last is None else last.offset + 1,
                ),
            )
            insert(
                db,
                "destinations (number bigint, kind smallint, name text, policy text, created_at bigint,"
                " deleted_at bigint, topics text, start bigint)",
                [
                    (
                        place.number,
                        int(place.kind),
                        place.name,
                        _encode(place.policy).decode(),
                        place.created_at,
                        place.deleted_at,
                        ",".join(place.topics),
                        place.start,
                    )
                    for place in agreed.places
                ],
            )
            insert(
                db,
                "objects (name text, policy text)",
                [(name, _encode(policy).decode()) for name, policy in agreed.objects.items()],
            )
            insert(
                db,
                "unchanged (object text, producer text, count bigint)",
                [(*of, count) for of, count in agreed.unchanged.items()],
            )
            insert(
                db,
                "consumers (name text, consumer text, created_at bigint)",
                [(one.name, _encode(one.consumer).decode(), one.created_at) for one in agreed.consumers],
            )
            insert(
                db,
                'spectators (name text, "offset" bigint, at bigint)',
                [(name, *said) for name, said in agreed.spectators.items()],
            )
            insert(
                db,
                "jobs (number bigint, kind text, filter text, destination bigint, until bigint, newest bigint,"
                " cursor bigint, matched bigint, done bigint, started_at bigint, ended_at bigint, consumer text,"
                " rate float8, next_at bigint)",
                [_job(job) for job in agreed.jobs],
            )
            insert(db, "erasures (sequence bigint)", [(sequence,) for sequence in agreed.erasures])
            insert(
                db,
                'snapshots (destination bigint, at bigint, "offset" bigint, states text)',
                [(one.place, one.at, one.offset, _states_text(one)) for one in agreed.snapshots],
            )
        self._connection.commit()

    def take_left_behind(self, some: Sequence[LeftBehind]) -> None:
        with self._connection.cursor() as db:
            insert(
                db,
                "idempotency (producer text, key text, hash bytea, id text, state smallint, same_as text, at bigint)",
                [_key(*one) for one in some if isinstance(one, KeyKept)],
            )
            insert(
                db,
                "contents (object text, key text, hash bytea, id text, sequence bigint, at bigint, ended smallint)",
                [_content(*one) for one in some if isinstance(one, ContentKept)],
            )
            insert(
                db,
                "latest (destination bigint, object text, key text, sequence bigint)",
                [(one.place, *one.thing, one.sequence) for one in some if isinstance(one, LatestKept)],
            )
            insert(
                db,
                "batches (number bigint, query text, batch bigint, rows bigint, hash bytea, accepted_at bigint,"
                " entered bigint, ended_at bigint)",
                [_batch(one.batch) for one in some if isinstance(one, BatchKept)],
            )
            insert(
                db,
                "uploads (id text, kept_at bigint, rows bigint, hash bytea, size bigint, batch bigint,"
                " position integer, chunk bytea)",
                [_upload(*one) for one in some if isinstance(one, UploadKept)],
            )
        self._connection.commit()

    def take_messages(self, some: Sequence[Held]) -> None:
        with self._connection.cursor() as db:
            insert(
                db,
                "messages (sequence bigint, at bigint, salt integer, own_id text, envelope text, object text, key text,"
                " hash bytea, size bigint, priority smallint, expires_at bigint, due_at bigint, force boolean,"
                " kept boolean, routed boolean, undecided boolean, same_as text, ended_at bigint)",
                [_message(held) for held in some],
            )
            insert(
                db,
                "payloads (sequence bigint, body bytea)",
                [(held.message.sequence, held.body) for held in some if held.body is not None],
            )
            insert(
                db,
                "deliveries (sequence bigint, destination bigint, slot smallint, priority smallint, key text,"
                " kick boolean, routed text, state smallint, blocked boolean, since_at bigint, due_at bigint,"
                " expires_at bigint, named text, attempt integer, tries integer, consumer text, reason text,"
                " redriven bigint, refused text, fetched bigint)",
                [_slot(slot, held) for held in some for slot in held.message.slots],
            )
            insert(
                db,
                'fetches ("offset" bigint, sequence bigint, destination bigint, slot smallint, salt bigint, consumer text,'
                " at bigint, outcome text, became smallint)",
                [_fetching(fetching) for held in some for fetching in held.fetchings],
            )
        self._connection.commit()

    def take_events(self, some: Sequence[Entry]) -> None:
        with self._connection.cursor() as db:
            insert(
                db,
                'events ("offset" bigint, at bigint, message_id text, sequence bigint, destination bigint, slot smallint,'
                " from_state smallint, to_state smallint, attempt integer, consumer text, reason text, duration_ms bigint,"
                " envelope text, hash bytea, size bigint, same_as text)",
                [_event(entry) for entry in some],
            )
        self._connection.commit()

    def finish(self) -> holdings.Source:
        states = ", ".join(f"count(*) filter (where d.state = {int(state)})" for state in COUNTED)
        with self._connection.cursor() as db:
            db.execute(
                f"insert into counts (destination, {', '.join(COUNT_COLUMNS)}, bytes, ready, changed)"
                f" select p.number, {states}, coalesce(sum(m.size) filter (where d.state in (3, 4, 7)), 0),"
                " count(*) filter (where d.state in (3, 7) and d.due_at is null), 1 from destinations p"
                " left join deliveries d on d.destination = p.number"
                " left join messages m on m.sequence = d.sequence group by p.number".encode()
            )
            for place in self._places:
                if place.keyed:
                    reorder(db, place)
            db.execute("update log_head set undecided = (select count(*) from messages where undecided)")
        self._connection.commit()
        return Source.of(self._connection)

    def accept(self) -> None:
        self._connection.execute("drop table copying")
        self._connection.commit()


#: what makes a database one that is used; and what else is written
_PUT_THERE = ("messages", "destinations", "events", "objects", "consumers", "spectators", "jobs")
_OTHERS = (
    "counts",
    "unchanged",
    "payloads",
    "deliveries",
    "fetches",
    "idempotency",
    "contents",
    "latest",
    "erasures",
    "snapshots",
    "uploads",
    "batches",
)


def _only(db: Db) -> Any:
    row = db.fetchone()
    assert row is not None
    return row[0]


def _states(said: str) -> dict[State, int]:
    counts = msgspec.json.decode(said, type=dict[str, int]) if said else {}
    return {State[letter]: count for letter, count in counts.items() if count}


def _states_text(one: Snapshot) -> str:
    return _encode({state.name: one.states.get(state, 0) for state in COUNTED}).decode() if one.place else ""


def _code(state: State | None) -> int | None:
    return None if state is None else int(state)


def _key(scope: things.Scope, kept: things.Remembered) -> tuple[Any, ...]:
    answer = kept.published
    return scope[0] or "", scope[1], kept.hash, answer.id, int(answer.state), answer.same_as, kept.at


def _content(thing: things.Thing, last: things.Content) -> tuple[Any, ...]:
    return *thing, last.hash, last.id, last.sequence, last.at, _code(last.end)


def _batch(one: Batch) -> tuple[Any, ...]:
    return (
        one.number,
        one.query,
        one.batch,
        one.rows,
        one.hash,
        one.accepted_at,
        one.entered,
        one.ended_at,
    )


def _upload(one: Upload, chunk: bytes) -> tuple[Any, ...]:
    return one.id, one.kept_at, one.rows, one.hash, one.size, one.batch, one.position, chunk


def _message(held: Held) -> tuple[Any, ...]:
    message = held.message
    return (
        message.sequence,
        message.created_at,
        message.salt,
        message.own_id,
        _encode(message.envelope).decode(),
        message.envelope.object,
        message.envelope.key,
        message.hash,
        message.size,
        message.priority,
        message.expires_at,
        message.due_at,
        message.force,
        held.body is not None,
        message.routed,
        held.waits,
        message.same_as,
        message.ended_at,
    )


def _slot(slot: things.Slot, held: Held) -> tuple[Any, ...]:
    *fields, reason, redriven, refused, _ = slot_row(slot)
    return (
        slot.message.sequence,
        slot.queue.number,
        slot.number,
        slot.place[0],
        slot.message.envelope.key,
        slot.kick,
        slot.routed,
        *fields,
        text(reason),
        redriven,
        refused,
        open_fetch(slot, held.fetchings),
    )


def _fetching(fetching: things.Fetching) -> tuple[Any, ...]:
    slot = fetching.slot
    return (
        fetching.offset,
        slot.message.sequence,
        slot.queue.number,
        slot.number,
        fetching.salt - (1 << 64) if fetching.salt >> 63 else fetching.salt,
        fetching.consumer,
        fetching.at,
        None if fetching.outcome is None else str(fetching.outcome),
        _code(fetching.became),
    )


def _event(entry: Entry) -> tuple[Any, ...]:
    event = entry.event
    return (
        event.offset,
        event.at,
        event.message_id,
        event.sequence,
        entry.place,
        event.slot,
        _code(event.from_state),
        int(event.to_state),
        event.attempt,
        event.consumer,
        text(event.reason),
        event.duration_ms,
        None if event.envelope is None else _encode(event.envelope).decode(),
        event.hash,
        event.size,
        event.same_as,
    )


def _job(job: things.OpenJob) -> tuple[Any, ...]:
    return (
        job.number,
        str(job.kind),
        _encode(job.filter).decode(),
        None if job.place is None else job.place.number,
        job.until,
        job.newest,
        job.cursor,
        job.matched,
        job.done,
        job.started_at,
        job.ended_at,
        job.consumer,
        job.rate,
        job.next_at,
    )
