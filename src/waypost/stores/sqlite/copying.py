"""A store's holdings out of its file, and into a new one.

What is written here is all "routed later" (`rows.py`): each slot has a row of `deliveries`, and each event after L a row of its own. That is
less compact than what the store itself writes of a plain message, says the same, and goes with the messages.

While it is filled the file has another program's mark: `serve` refuses it, and a copy that is begun anew removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ...commands import JobKind, Published, Upload
from ...delivery import OPEN, WAITING, F, K, N, Q, S, State, U, X
from ...errors import PayloadDamaged, StoreUnusable
from ...instants import SteadyClock
from ...message import make_id, payload_hash
from ...store import Event, Feature
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
)
from . import files
from .batches import all_batches, uploads_of
from .bodies import Bodies, folder_of
from .names import Names, policy_text
from .reading import FETCH_EVENTS, MESSAGE_EVENTS, STEP_EVENTS, Reader
from .rows import (
    ENVELOPE_COLUMNS,
    LATER,
    NO_CONFIRM,
    OUTCOMES,
    STATE,
    Db,
    LogRows,
    Row,
    envelope_of,
    filter_of,
    filter_text,
    pack_path,
    signed,
    unpack_route,
    unsigned,
)
from .slots import Ledger
from .young import Young

#: messages, or offsets, read at once
PAGE = 1_000
#: bodies above this are files
INLINE_BYTES = 64 << 10

_OUTCOME = {number: outcome for outcome, number in OUTCOMES.items()}
_DELIVERIES = """
    select sequence, destination, slot, state, attempt, tries, consumer, reason, since_at, last, due_at, expires_at,
           named, kick, routed, redriven
    from deliveries where sequence between ? and ? order by sequence, destination, slot"""
_MESSAGES = f"""
    select m.sequence, m.at, m.salt, m.own_id, m.route, m.same_as, m.hash, m.size, m.priority, m.expires_at, m.body,
           u.sequence is not null, u.due_at, u.force, u.failed, {ENVELOPE_COLUMNS}
    from messages m left join undecided u on u.sequence = m.sequence where m.sequence > ? order by m.sequence limit ?"""


class Source:
    def __init__(self, path: Path) -> None:
        """Raises StoreUnusable, also when it is served."""
        if not path.exists():
            raise StoreUnusable(f"there is no store at {path}")
        self._lock: files.Lock | None = files.Lock(path)
        try:
            self._read(files.open_file(path, now=SteadyClock()(), pregrown_bytes=0), folder_of(path))
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def of(cls, db: Db, bodies: Path) -> Source:
        """What was written just now, by whoever holds the lock."""
        source = cls.__new__(cls)
        source._lock = None
        source._read(db, bodies)
        return source

    def _read(self, db: Db, bodies: Path) -> None:
        self._db, self._bodies = db, bodies
        self._names = Names(db)
        self._rows = LogRows(self._names.places, self._names.parties)
        self._places = {
            place.number: things.Destination(
                place.kind,
                place.name,
                place.number,
                place.policy,
                place.created_at,
                place.deleted_at,
                place.topics,
                place.start,
            )
            for place in self._names.by_number.values()
        }

    def close(self) -> None:
        if self._lock is not None:
            self._db.close()
            self._lock.release()

    def turn(self) -> int:
        return 0  # it is locked

    def standing(self) -> Standing:
        return Standing(*self._db.execute('select id, oldest, "offset", at, sealed from head').get)

    def agreed(self) -> Agreed:
        db, names = self._db, self._names
        return Agreed(
            list(self._places.values()),
            dict(names.objects),
            {(object, producer): count for object, producer, count in db.execute("select * from unchanged")},
            [names.consumers[name] for name in sorted(names.consumers)],
            {name: (offset, at) for name, offset, at in db.execute("select * from spectators order by name")},
            [self._job(row) for row in db.execute("select * from jobs order by number")],
            [sequence for (sequence,) in db.execute("select sequence from erasures order by 1")],
            [
                Snapshot(place, at, offset, _states(states))
                for place, at, offset, states in db.execute("select * from snapshots order by at")
            ],
        )

    def _job(self, row: Row) -> things.OpenJob:
        number, kind, filter, place, until, newest, after, matched, done, started_at, ended_at, *rest = row
        consumer, rate, next_at = rest
        return things.OpenJob(
            number,
            JobKind(kind),
            filter_of(filter),
            until,
            newest,
            matched,
            started_at,
            None if place is None else self._places[place],
            consumer,
            rate,
            next_at,
            after,
            done,
            ended_at,
        )

    def left_behind(self) -> Iterator[LeftBehind]:
        for producer, key, hash, at, id, state, same_as in self._db.execute("select * from idempotency"):
            published = Published(id, STATE[state], same_as)
            scope = (self._names.parties[producer], key)
            yield KeyKept(scope, things.Remembered(hash, published, at))
        for object, key, hash, id, sequence, at, ended in self._db.execute("select * from contents"):
            end = None if ended is None else STATE[ended]
            yield ContentKept((object, key), things.Content(hash, id, sequence, at, end))
        for place, object, key, sequence in self._db.execute("select * from latest"):
            yield LatestKept(place, (object, key), sequence)
        for batch in all_batches(self._db):
            yield BatchKept(batch)
            for upload in uploads_of(self._db, batch.number):
                yield UploadKept(upload, self._chunk(upload))

    def _chunk(self, upload: Upload) -> bytes:
        checksum = self._db.execute("select checksum from uploads where id = ?", (upload.id,)).get
        path = self._bodies / upload.id
        chunk = path.read_bytes() if path.exists() else b""
        if payload_hash(chunk) != checksum:
            raise PayloadDamaged(f"the chunk of upload {upload.id} does not fit its checksum")
        return chunk

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def messages(self, bodies: bool = True) -> Iterator[Held]:
        after = 0
        while page := self._db.execute(_MESSAGES, (after, PAGE)).fetchall():
            between = (page[0][0], page[-1][0])
            rows = self._db.execute(_DELIVERIES, between).fetchall()
            known = {sequence: list(group) for sequence, group in groupby(rows, key=itemgetter(0))}
            refused: dict[tuple[int, ...], set[str]] = {}
            for *place, party in self._db.execute(
                "select * from refusals where sequence between ? and ?", between
            ):
                refused.setdefault(tuple(place), set()).add(self._party(party) or "")
            for row in page:
                yield self._held(row, known.get(row[0], []), refused, bodies)
            after = page[-1][0]

    def _held(self, row: Row, known: list[Row], refused: dict[Any, set[str]], bodies: bool) -> Held:
        sequence, at, salt, own_id, route, same_as, hash, size, priority, expires_at, body, *rest = row
        undecided, due_at, force, failed, *envelope = rest
        own = next((one for one in known if one[1] == 0), None)
        message = things.Message(
            own_id or make_id(sequence, salt, at),
            sequence,
            at,
            envelope_of(tuple(envelope), self._names.parties),
            hash,
            size,
            priority,
            expires_at,
            body is not None,
            salt,
            own_id,
            due_at,
            bool(force),
            route is not None or same_as is not None,
            None if same_as is None else same_as.decode(),
        )
        fetchings: list[things.Fetching] = []
        places = {
            place: (sequence, *place, int(Q), 0, 0, None, None, at, 0, *[None] * 6)
            for place in unpack_route(route)
        }
        for one in sorted((places | {one[1:3]: one for one in known if one[1]}).values()):
            slot = self._slot(message, one)
            slot.refused = refused.get(tuple(one[:3]), set())
            fetchings += self._fetchings(slot, one[9])
            message.slots.append(slot)
        if message.routed and not any(slot.queue.is_queue for slot in message.slots):
            message.ended_at = at if own is None else own[8]
        return Held(
            message, bool(undecided and not failed), self._body(message, body) if bodies else None, fetchings
        )

    def _slot(self, message: things.Message, row: Row) -> things.Slot:
        _, place, number, state, attempt, tries, consumer, reason, since_at, _, due_at, *rest = row
        expires_at, named, kick, routed, redriven = rest
        return things.Slot(
            message,
            self._places[place],
            number,
            STATE[state],
            since_at,
            due_at,
            expires_at,
            self._party(named),
            bool(kick),
            attempt,
            tries,
            self._party(consumer),
            reason,
            self._party(routed),
            redriven or 0,
        )

    def _fetchings(self, slot: things.Slot, last: int) -> Iterator[things.Fetching]:
        """Along the slot's rows, from the last to the first; the newest one's receipt may count."""
        newest = True
        while last:
            row = self._db.execute(
                'select salt, consumer, at, outcome, became, previous from fetches where "offset" = ?',
                (last,),
            ).get
            if row is None:
                last = self._db.execute('select previous from steps where "offset" = ?', (last,)).get
                continue
            salt, consumer, at, outcome, became, previous = row
            settled = _OUTCOME.get(outcome)
            if newest and outcome is None:
                slot.fetch = last
            newest = False
            kicked = settled is not None or became == K
            yield things.Fetching(
                last,
                slot,
                unsigned(salt),
                self._party(consumer) or "",
                at,
                settled,
                STATE[became] if kicked and became is not None else None,
            )
            last = previous

    def _party(self, number: int | None) -> str | None:
        return None if number is None else self._names.parties[number]

    def _body(self, message: things.Message, body: Any) -> bytes | None:
        if body is None:
            return None
        whole = (self._bodies / body).read_bytes() if isinstance(body, str) else bytes(body)
        if payload_hash(whole) != message.hash:
            raise PayloadDamaged(f"the body of {message.id!r} does not fit its checksum")
        return whole

    # ── the log, and counters ───────────────────────────────────────────────────────────────

    def events(self) -> Iterator[Entry]:
        _, oldest, head, *_ = self.standing()
        for lo in range(oldest, head + 1, PAGE):
            hi = min(head, lo + PAGE - 1)
            yield from sorted(self._entries(lo, hi), key=lambda entry: entry.event.offset)

    def _entries(self, lo: int, hi: int) -> Iterator[Entry]:
        """A row may begin before lo and still hold events from lo on, so each table is read from the row before."""
        first = self._db.execute("select max(sequence) from messages where sequence <= ?", (lo,)).get or lo
        for row in self._db.execute(MESSAGE_EVENTS, (first, hi)):
            places = iter(unpack_route(row[4]))
            for event in self._rows.of_message(row):
                place = next(places)[0] if event.to_state is Q else None
                if lo <= event.offset <= hi:
                    yield Entry(event, place)
        for row in self._db.execute(FETCH_EVENTS + ' where f."offset" between ? and ?', (lo, hi)):
            yield Entry(self._rows.of_fetch(row), row[3])
        first = self._db.execute('select max("offset") from steps where "offset" <= ?', (lo,)).get or lo
        for row in self._db.execute(STEP_EVENTS + ' where s."offset" between ? and ?', (first, hi)):
            for event in self._rows.of_step(row):
                if lo <= event.offset <= hi:
                    yield Entry(event, None if event.slot is None else row[3])

    def figures(self) -> dict[int, Figures]:
        return {
            place.number: Figures(
                {STATE[number]: count for number, count in enumerate(place.states) if count},
                place.bytes,
                place.handed_out,
            )
            for place in self._names.by_number.values()
        }


class Target:
    lacks: frozenset[Feature] = frozenset()

    def __init__(self, path: Path) -> None:
        """Raises StoreUnusable when there is something already."""
        self._path = path
        files.make_folder(path)
        self._lock = files.Lock(path)
        try:
            if path.exists() and not _can_go(path):
                raise StoreUnusable(f"{path} is not empty: name a file that does not exist yet")
        except BaseException:
            self._lock.release()
            raise
        self._db: Db = None
        #: the step that the next event may belong to
        self._step: list[Any] | None = None

    def begin(self) -> None:
        remove(self._path)
        self._db = files.open_file(self._path, now=0, pregrown_bytes=0)
        self._db.pragma("application_id", files.UNFINISHED_ID)
        self._names = Names(self._db)
        self._bodies = Bodies(folder_of(self._path), lambda name: False)
        self._ledger = Ledger(self._db, self._names, Reader(self._db, self._names), Young())

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._lock.release()

    # ── what was agreed ─────────────────────────────────────────────────────────────────────

    def take_agreed(self, standing: Standing, agreed: Agreed) -> None:
        db, self._oldest = self._db, standing.oldest
        with db:
            db.execute(
                'update head set id = ?, oldest = ?, "offset" = ?, at = ?, sealed = ?',
                standing,
            )
            for place in agreed.places:
                db.execute(
                    "insert into destinations values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        place.number,
                        place.kind,
                        place.name,
                        policy_text(place.policy),
                        place.created_at,
                        place.deleted_at,
                        int(place.policy.counts_consumers),
                        None if place.is_queue else msgspec.json.encode(place.topics).decode(),
                        None if place.is_queue else place.start,
                    ),
                )
            for name, policy in agreed.objects.items():
                db.execute("insert into objects values (?, ?)", (name, msgspec.json.encode(policy).decode()))
            db.executemany(
                "insert into unchanged values (?, ?, ?)",
                [(*of, count) for of, count in agreed.unchanged.items()],
            )
            for info in agreed.consumers:
                text = msgspec.json.encode(info.consumer).decode()
                db.execute("insert into consumers values (?, ?, ?)", (info.name, text, info.created_at))
            db.executemany(
                "insert into spectators values (?, ?, ?)",
                [(name, *said) for name, said in agreed.spectators.items()],
            )
            db.executemany(
                "insert into jobs values (?,?,?,?,?,?,?,?,?,?,?,?,?,?)", map(_job_row, agreed.jobs)
            )
            db.executemany("insert into erasures values (?)", [(sequence,) for sequence in agreed.erasures])
            db.executemany(
                "insert into snapshots values (?, ?, ?, ?)",
                [(one.place, one.at, one.offset, _states_text(one)) for one in agreed.snapshots],
            )
        self._names.load()

    def take_left_behind(self, some: Sequence[LeftBehind]) -> None:
        db = self._db
        with db:
            for left in some:
                if isinstance(left, KeyKept):
                    (producer, key), (hash, answer, at) = left
                    number = 0 if producer is None else self._names.party(producer)
                    row = (number, key, hash, at, answer.id, int(answer.state), answer.same_as)
                    db.execute("insert into idempotency values (?, ?, ?, ?, ?, ?, ?)", row)
                elif isinstance(left, ContentKept):
                    last = left.content
                    end = None if last.end is None else int(last.end)
                    values = (*left.thing, last.hash, last.id, last.sequence, last.at, end)
                    db.execute("insert into contents values (?, ?, ?, ?, ?, ?, ?)", values)
                elif isinstance(left, BatchKept):
                    one = left.batch
                    db.execute(
                        "insert into batches values (?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            one.number,
                            one.query,
                            one.batch,
                            one.rows,
                            one.hash,
                            one.accepted_at,
                            one.entered,
                            one.ended_at,
                        ),
                    )
                elif isinstance(left, UploadKept):
                    self._take_upload(left.upload, left.chunk)
                else:
                    db.execute(
                        "insert into latest values (?, ?, ?, ?)", (left.place, *left.thing, left.sequence)
                    )

    def _take_upload(self, upload: Upload, chunk: bytes) -> None:
        self._bodies.put(chunk, upload.id)
        self._db.execute(
            "insert into uploads values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                upload.id,
                upload.rows,
                upload.hash,
                upload.size,
                upload.kept_at,
                upload.batch,
                upload.position,
                payload_hash(chunk),
            ),
        )

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def take_messages(self, some: Sequence[Held]) -> None:
        with self._db:
            for held in some:
                self._take_message(held)

    def _take_message(self, held: Held) -> None:
        db, message = self._db, held.message
        sequence, envelope = message.sequence, message.envelope
        body: bytes | str | None = held.body
        if isinstance(body, bytes) and len(body) > INLINE_BYTES:
            body = self._bodies.put(body).place
            db.execute("insert into bodies values (?, ?)", (body, sequence))
        db.execute(
            "insert into messages values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                sequence,
                message.created_at,
                message.salt,
                message.own_id,
                LATER if message.routed else None,
                ",".join(envelope.topics),
                envelope.object,
                envelope.key,
                envelope.mime_type,
                envelope.timestamp,
                envelope.sent,
                self._party(envelope.producer),
                envelope.encoding,
                msgspec.json.encode(envelope.meta).decode() if envelope.meta else None,
                envelope.traceparent,
                message.priority,
                message.expires_at,
                None if message.same_as is None else message.same_as.encode(),
                message.hash,
                message.size,
                body,
            ),
        )
        if message.own_id is not None:
            db.execute("insert into own_ids values (?, ?)", (message.own_id, sequence))
        if not message.routed:
            db.execute(
                "insert into undecided values (?, ?, ?, ?, ?)",
                (sequence, envelope.object, message.due_at, int(message.force), int(not held.waits)),
            )
        elif message.ended_at is not None:
            own = U if message.same_as is not None else X
            self._save_own(sequence, own, message.ended_at, 0)
        for slot in message.slots:
            self._take_slot(slot, open_fetch(slot, held.fetchings))
        for fetching in held.fetchings:
            self._take_fetching(fetching, open_fetch(fetching.slot, held.fetchings))

    def _party(self, name: str | None) -> int | None:
        return None if name is None else self._names.party(name)

    def _save_own(self, sequence: int, state: int, at: int, last: int) -> None:
        self._db.execute(
            "insert or replace into deliveries values (?, 0, 0, ?, 0, 0, null, null, ?, ?, null, null, null, null, null, null)",
            (sequence, int(state), at, last),
        )

    def _take_slot(self, slot: things.Slot, fetch: int | None) -> None:
        db, message = self._db, slot.message
        place = self._names.by_number[slot.queue.number]
        where = (message.sequence, place.number, slot.number)
        db.execute(
            "insert into deliveries values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *where,
                int(slot.state),
                slot.attempt,
                slot.tries,
                self._party(slot.consumer),
                slot.reason,
                slot.since_at,
                # What the log still has comes with its events.
                fetch if fetch is not None and fetch < self._oldest else 0,
                slot.due_at,
                slot.expires_at,
                self._party(slot.named),
                1 if slot.kick else None,
                self._party(slot.routed),
                slot.redriven or None,
            ),
        )
        db.executemany(
            "insert into refusals values (?, ?, ?, ?)",
            [(*where, self._party(name)) for name in slot.refused],
        )
        if slot.kick or slot.beside():
            self._names.look_closely(place)
        place.states[slot.state] += 1
        place.bytes += message.size if slot.state in OPEN else 0
        key = message.envelope.key
        if slot.state in OPEN and place.tracked and key is not None:
            row = (place.number, key, message.sequence, slot.number, int(slot.state is F))
            db.execute("insert into keyed values (?, ?, ?, ?, ?)", row)
        if slot.state in WAITING and slot.due_at is None and not (place.keyed and key is not None):
            self._ledger.ready_at(place, slot.place, True, self._party(slot.named))

    def _take_fetching(self, fetching: things.Fetching, open: int | None) -> None:
        """What its event says comes with that, if the log still has it."""
        slot = fetching.slot
        counts = fetching.offset == open
        outcome = NO_CONFIRM if fetching.outcome is None else OUTCOMES[fetching.outcome]
        self._db.execute(
            "insert into fetches values (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, 0, ?, ?, ?, ?)",
            (
                fetching.offset,
                fetching.at,
                slot.message.sequence,
                slot.queue.number,
                slot.number,
                int(Q),
                slot.attempt,
                self._party(fetching.consumer),
                signed(fetching.salt),
                slot.due_at if counts and slot.state is F and slot.due_at is not None else fetching.at,
                None if counts and slot.state is F else fetching.at,
                None if counts else outcome,
                None if counts or fetching.became is None else int(fetching.became),
            ),
        )

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def take_events(self, some: Sequence[Entry]) -> None:
        with self._db:
            for entry in some:
                self._take_event(entry.event, entry.place)

    def _take_event(self, event: Event, place: int | None) -> None:
        if self._joins(event, place):
            assert self._step is not None
            self._step[5].append(event.to_state)
            return
        self._end_step()
        if event.from_state is None:
            return  # L: the message's row
        where = (event.sequence, place or 0, event.slot or 0)
        if event.to_state is F:
            chain = self._chain(where, event.at)
            self._db.execute(
                'update fetches set from_state = ?, duration_ms = ?, attempt = ?, previous = ? where "offset" = ?',
                (int(event.from_state), event.duration_ms, event.attempt, self._last(chain), event.offset),
            )
            self._set_last(chain, event.offset)
        else:
            self._step = [event.offset, event.at, *where, [event.from_state, event.to_state], event]

    def _joins(self, event: Event, place: int | None) -> bool:
        """X after the confirm that completes, and what follows N, are of one step."""
        if self._step is None or self._step[2] != event.sequence:
            return False
        offset, _, _, destination, number, path, first = self._step
        if event.offset != offset + len(path) - 1:
            return False
        if event.to_state is X:
            return path[-1] in (S, K)
        return (
            path[-1] is N
            and event.from_state is N
            and (destination, number) == (place, event.slot)
            and (event.reason, event.consumer, event.attempt) == (first.reason, first.consumer, first.attempt)
        )

    def _end_step(self) -> None:
        if self._step is None:
            return
        offset, at, sequence, destination, number, path, event = self._step
        self._step = None
        where = (sequence, destination, number)
        chain = self._chain(where, at)
        self._db.execute(
            "insert into steps values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                offset,
                at,
                *where,
                pack_path(path),
                event.duration_ms or 0,
                event.attempt or 0,
                self._party(event.consumer),
                event.reason,
                self._last(chain) or 0,
            ),
        )
        self._set_last(chain, offset)

    def _chain(self, where: tuple[int, int, int], at: int) -> tuple[int, int, int]:
        """The row of `deliveries` that says where its rows end: its own, or, of a slot that is no more, the message's."""
        own = (where[0], 0, 0)
        if self._last(where) is not None:
            return where
        if self._last(own) is None:
            self._save_own(where[0], 0, at, 0)
        return own

    def _last(self, where: tuple[int, int, int]) -> int | None:
        last: int | None = self._db.execute(
            "select last from deliveries where sequence = ? and destination = ? and slot = ?", where
        ).get
        return last

    def _set_last(self, where: tuple[int, int, int], offset: int) -> None:
        self._db.execute(
            "update deliveries set last = ? where sequence = ? and destination = ? and slot = ?",
            (offset, *where),
        )

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def finish(self) -> holdings.Source:
        db, places = self._db, self._names.by_number
        with db:
            self._end_step()
            for number, key in db.execute("select distinct destination, key from keyed").fetchall():
                if places[number].keyed:
                    self._ledger.refresh_key(places[number], key)
            db.executemany(
                "insert into counts values (?, ?, ?, ?)",
                [
                    (p.number, p.ready, p.bytes, msgspec.json.encode(p.states).decode())
                    for p in places.values()
                ],
            )
        return Source.of(self._db, folder_of(self._path))

    def accept(self) -> None:
        self._db.pragma("application_id", files.APPLICATION_ID)
        files.checkpoint(self._db, self._path)
        files.sync_path(self._path.parent)


def remove(path: Path) -> None:
    """What an unfinished copy left, or a store in which nothing is."""
    for name in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))):
        name.unlink(missing_ok=True)
    bodies = folder_of(path)
    for body in bodies.iterdir() if bodies.exists() else ():
        body.unlink()


def _can_go(path: Path) -> bool:
    """Whether there is nothing in it that anybody put there."""
    try:
        db: Db = files.connect(path)
        try:
            mark, tables = db.pragma("application_id"), db.execute("select count(*) from sqlite_schema").get
            if mark == files.UNFINISHED_ID or (mark == 0 and tables == 0):
                return True
            return mark == files.APPLICATION_ID and not any(
                db.execute(f"select exists (select 1 from {table})").get for table in _PUT_THERE
            )
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreUnusable(f"{path} cannot be written: {error}") from error


_PUT_THERE = (
    "messages",
    "destinations",
    "objects",
    "consumers",
    "spectators",
    "jobs",
    "batches",
    "steps",
    "fetches",
)


def _states(text: str) -> dict[State, int]:
    counts = msgspec.json.decode(text, type=list[int]) if text else []
    return {STATE[number]: count for number, count in enumerate(counts) if count}


def _states_text(snapshot: Snapshot) -> str:
    if not snapshot.place:
        return ""
    counts = [0, *(snapshot.states.get(state, 0) for state in State)]
    return msgspec.json.encode(counts).decode()


def _job_row(job: things.OpenJob) -> Row:
    return (
        job.number,
        job.kind,
        filter_text(job.filter),
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
