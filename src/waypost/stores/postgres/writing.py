"""Writing a group: the last lock, the numbers that come with it, and set statements that cannot violate a constraint.

    log_head ── next, at ──▶ by how much others were quicker ──▶ every number of this group moves on ──▶ rows, results

Nothing is read between the last lock and COMMIT but what the same statements return, so the lock is short.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from ...delivery import ENDED, OPEN, WAITING, Q
from ...instants import SECOND
from ...message import make_id, make_receipt
from ..things import Destination, Fetching
from . import marks
from .columns import bigints
from .connecting import begin
from .group import LATCH, Change, GroupRows, Head, is_ready, job_row, slot_row
from .names import Db
from .plain_rows import insert_plain, pack, renumber
from .rows import (
    CHANGING,
    DELIVERIES,
    EVENTS,
    MESSAGES,
    PAYLOADS,
    PLACE,
    Written,
    changing,
    code_of,
    delivery_row,
    event_row,
    message_row,
    place_of,
)
from .statements import Together, columns_of, insert, update

#: a snapshot of the depths after so many events, or so long
SNAPSHOT_EVENTS = 10_000
SNAPSHOT_EVERY_US = 3_600 * SECOND
#: the columns of `counts`, one for each state that a slot can be in
COUNTED = tuple(sorted((*OPEN, *ENDED)))
COUNT_COLUMNS = tuple(state.name.lower() for state in COUNTED)

_ENROL = (
    "insert into brokers (id, last_group) values (%s, %s)"
    " on conflict (id) do update set last_group = excluded.last_group, seen_at = now()"
)
_ENROL_LOWERING = (
    "insert into brokers (id, last_group, lowers) values (%s, %s, true)"
    " on conflict (id) do update set last_group = excluded.last_group, seen_at = now(), lowers = true"
)

_encode = msgspec.json.Encoder().encode


class Wrote(NamedTuple):
    #: places whose counts changed, and how many are ready there
    ready: Db
    #: of what was written, the first moment at which something is due
    due_at: int | None
    changes: list[Change]


class NamesChanged(Exception):
    """Somebody changed a name or policy while the group decided with the old ones."""


def lock(rows: GroupRows) -> tuple[Written, Head]:
    """The last lock, when all is decided; and the head as it will be."""
    rows.rehead_all()
    rows.take_out_few()
    pack(rows.plain, rows.encoded)
    head = _expected(rows) if rows.alone else _last_lock(rows)
    written = _renumber(rows, head)
    if written.snapshot_due or rows.forgotten:
        head = head._replace(snapshot_at=head.at, snapshot_next=head.next)
    return written, head


def write(rows: GroupRows, written: Written, broker: str, group: int) -> Wrote:
    """Everything but COMMIT, in the caller's pipeline: what is new, and with it or behind it what changes and what is counted."""
    db, new = rows.db, Together()
    if rows.alone:
        _lock_alone(db, rows)
    changes = _changes(rows)
    _remove(db, rows, changes, written)
    _names(db, rows, written)
    _jobs(db, rows, written)
    _parties(db, rows)
    insert_plain(new, rows.plain, written)
    _new_messages(new, rows, written)
    _new_slots(new, changes, written)
    _new_fetches(new, rows, written)
    _events(new, rows, written)
    rest = new
    if rows.slot_was or rows.message_was:
        # The same tables again. The server is at work on the first half while the other one is packed.
        rest = Together()
        if new:
            new.run(db)
    _changed_messages(rest, rows, written)
    _changed_slots(rest, changes, written)
    _settled_fetches(rest, rows)
    if rows.names.schema >= marks.SINCE_SCHEMA:
        _lowerings(rest, rows, changes, written)
    _left_behind(rest, rows, written)
    enrol(rest, broker, group, rows.names.schema)
    _counts(rest, rows, written, _made_ready(rows, changes))
    wrote = Wrote(rest.run(db), _first_due(rows, changes), changes)
    for place in rows.reordered:
        reorder(db, place)
    if rows.forgotten or written.snapshot_due:
        _snapshot(db, rows, written)
    return wrote


def _lock_alone(db: Db, rows: GroupRows) -> None:
    """All locks, in their order, and whether nobody was there. Others who are in the middle of something rely on them, though this group
    has decided already: whoever has one of these locks now will write, and then there is another turn."""
    begin(db.connection)
    db.execute(_HASTY, prepare=False)
    if rows.to_latch:
        db.execute(LATCH, (sorted(rows.to_latch),))
    if sequences := rows.to_lock():
        db.execute(_LOCK_MESSAGES, (bigints(sequences),))
    db.execute(_ALONE, (*_moves(rows), rows.began.turn))


def enrol(db: Db | Together, broker: str, group: int, schema: int) -> None:
    """Its last group; and, where there is a column for it, that it writes lowerings."""
    statement = _ENROL_LOWERING if schema >= marks.SINCE_SCHEMA else _ENROL
    db.execute(statement, (broker, group))


def is_dirty(rows: GroupRows) -> bool:
    """Whether there is anything to write."""
    return bool(
        rows.head > rows.base
        or rows.renamed
        or rows.reaped
        or rows.spectators
        or rows.jobs
        or rows.batched
        or rows.new_remembered
        or rows.new_erasures
        or rows.done_erasures
        or rows.dropped_bodies
        or rows.new_sealed is not None
        or any(slot_row(slot) != was for slot, was in rows.slot_was.items())
    )


#: `log_head` after a group
_MOVES = (
    "next = next + %s, at = greatest(at, %s), turn = turn + 1, version = version + %s,"
    " undecided = undecided + %s, oldest = greatest(oldest, %s), sealed = greatest(sealed, %s)"
)
_LAST_LOCK = (
    f"update log_head set {_MOVES} where version = %s"
    " returning next, at, turn, snapshot_at, snapshot_next, undecided"
)
#: Where the turn is another one, this violates a constraint, and nothing is done of what was sent behind it.
_ALONE = f"update log_head set {_MOVES}, one = case when version = %s and turn = %s then one end"
#: One that has sent everything already must not wait for others' rows: they wait for the head, and that would be a circle.
_HASTY = "set local lock_timeout = '20ms'"
_LOCK_MESSAGES = "select 1 from messages where sequence = any(%b::bigint[]) order by sequence for update"


def _moves(rows: GroupRows) -> tuple[Any, ...]:
    undecided = sum(m.sequence in rows.waits for m in rows.new_messages)
    undecided += sum(rows.message_row(m)[2] - was[2] for m, was in rows.message_was.items())
    new = (rows.head - rows.base, rows.now, int(rows.renamed), undecided)
    return *new, rows.new_oldest or 1, rows.new_sealed, rows.names.version


def _last_lock(rows: GroupRows) -> Head:
    """The head as this group leaves it."""
    with rows.db.connection.pipeline():
        begin(rows.db.connection)  # a group that has read nothing begins here
        rows.db.execute(_LAST_LOCK, _moves(rows))
    row = rows.db.fetchone()
    if row is None:
        raise NamesChanged
    following, at, turn, snapshot_at, snapshot_next, waiting = row
    if turn > rows.began.turn + 1 and waiting > 0:
        rows.check_inline()
    return rows.began._replace(
        next=following,
        at=at,
        version=rows.names.version + rows.renamed,
        undecided=waiting,
        turn=turn,
        snapshot_at=snapshot_at,
        snapshot_next=snapshot_next,
    )


def _expected(rows: GroupRows) -> Head:
    """The same if nobody came in between; whether that is so is asked with all that is written."""
    began = rows.began
    return began._replace(
        next=rows.head + 1,
        at=rows.now,
        version=rows.names.version + rows.renamed,
        undecided=began.undecided + _moves(rows)[3],
        turn=began.turn + 1,
    )


def _renumber(rows: GroupRows, head: Head) -> Written:
    """Numbers, ids and receipts as they are by the head that this group leaves."""
    delta = head.next - 1 - rows.head
    due = head.next - head.snapshot_next >= SNAPSHOT_EVENTS or head.at - head.snapshot_at >= SNAPSHOT_EVERY_US
    written = Written(rows.base, delta, head.at, head.turn, due and head.next != head.snapshot_next)
    if not delta and head.at == rows.now:
        return written
    renumber(rows.plain, written)
    for message in rows.new_messages:
        if message.own_id is None:
            written.rename(message.id, make_id(message.sequence + delta, message.salt, head.at))
    for offset, fetching in rows.fetchings.items():
        if offset > rows.base and fetching is not None:
            receipt = make_receipt(offset, fetching.salt)
            written.rename(receipt, make_receipt(offset + delta, fetching.salt))
    return written


# ── messages, slots, fetches, events ────────────────────────────────────────────────────────────


def _remove(db: Db, rows: GroupRows, changes: list[Change], written: Written) -> None:
    """What goes, before anything comes."""
    removed = [place_of(slot, written) for slot, _, row in changes if row is None]
    if removed:
        db.execute(
            "delete from deliveries d using unnest(%b::bigint[], %b::bigint[], %b::smallint[])"
            " as u (sequence, destination, slot)"
            " where d.sequence = u.sequence and d.destination = u.destination and d.slot = u.slot",
            columns_of(("bigint", "bigint", "smallint"), removed),
        )
    dropped = [written.number(sequence) for sequence in rows.dropped_bodies]
    if dropped:
        db.execute("delete from payloads where sequence = any(%s)", (dropped,))
    for name, policy in rows.saved_objects.items():
        if policy is None or policy.unchanged is None:
            db.execute("delete from contents where object = %s", (name,))
        if policy is None:
            db.execute("delete from unchanged where object = %s", (name,))
    if rows.done_erasures:
        db.execute("delete from erasures where sequence = any(%s)", (list(rows.done_erasures),))
    if rows.new_oldest is not None:
        _trim_snapshots(db, rows.new_oldest)


def _new_messages(db: Together, rows: GroupRows, written: Written) -> None:
    new = rows.new_messages
    insert(
        db,
        MESSAGES,
        [
            message_row(message, rows.encoded(message.envelope), message.sequence in rows.waits, written)
            for message in new
        ],
    )
    insert(db, PAYLOADS, [(written.number(m.sequence), rows.bodies[m.sequence]) for m in new if m.kept])


def _changed_messages(db: Together, rows: GroupRows, written: Written) -> None:
    changed = [
        (message.sequence, *row)
        for message, was in rows.message_was.items()
        if rows.messages.get(message.sequence) is message and (row := rows.message_row(message)) != was
    ]
    update(
        db,
        "messages",
        "sequence bigint",
        "kept boolean, routed boolean, undecided boolean, same_as text, ended_at bigint",
        [(*row[:4], written.text(row[4]), row[5]) for row in changed],
    )


def _changes(rows: GroupRows) -> list[Change]:
    removed: list[Change] = [(slot, rows.slot_was[slot], None) for slot in rows.removed_slots]
    there = ((slot, rows.slot_was.get(slot), slot_row(slot)) for slot in rows.slots.values())
    return removed + [change for change in there if change[1] != change[2]]


def _new_slots(db: Together, changes: list[Change], written: Written) -> None:
    new = [delivery_row(slot, row, written) for slot, was, row in changes if was is None and row is not None]
    insert(db, DELIVERIES, new)


def _changed_slots(db: Together, changes: list[Change], written: Written) -> None:
    changed = [
        (*place_of(slot, written), *changing(row, was, written))
        for slot, was, row in changes
        if was is not None and row is not None
    ]
    update(db, "deliveries", PLACE, CHANGING, changed)


def _made_ready(rows: GroupRows, changes: list[Change]) -> dict[Destination, int]:
    """By how much the number of those that are ready changed, in each place."""
    ready: dict[Destination, int] = defaultdict(int)
    for kind in rows.plain:
        for slot in kind.model.slots:
            ready[slot.queue] += len(kind.sequences) * is_ready(slot_row(slot))
    for slot, was, row in changes:
        ready[slot.queue] += is_ready(row) - is_ready(was)
    return ready


def _first_due(rows: GroupRows, changes: list[Change]) -> int | None:
    is_now = [row for _, _, row in changes if row is not None]
    is_now += [slot_row(slot) for kind in rows.plain for slot in kind.model.slots]
    due = [row[3] for row in is_now if row[3] is not None]
    due += [row[4] for row in is_now if row[4] is not None and row[0] in WAITING]
    return min(due, default=None)


def _lowerings(db: Together, rows: GroupRows, changes: list[Change], written: Written) -> None:
    """In each place, from where on somebody may have more, of what was there before, than he could."""
    # Whatever a declaration changed: its order may be another.
    lowest = dict.fromkeys(rows.reordered, 1)
    for slot, was, row in changes:
        sequence = slot.message.sequence
        if sequence <= rows.base and (is_ready(row) or (slot.beside() and marks.frees(was, row))):
            lowest[slot.queue] = min(sequence, lowest.get(slot.queue, sequence))
    insert(
        db,
        "lowerings (destination bigint, turn bigint, sequence bigint)",
        [(place.number, written.turn, sequence) for place, sequence in lowest.items()],
    )


def _new_fetches(db: Together, rows: GroupRows, written: Written) -> None:
    insert(
        db,
        'fetches ("offset" bigint, sequence bigint, destination bigint, slot smallint, salt bigint, consumer text,'
        " at bigint, outcome text, became smallint)",
        [
            (
                written.number(offset),
                *place_of(fetching.slot, written),
                fetching.salt - (1 << 64) if fetching.salt >> 63 else fetching.salt,
                fetching.consumer,
                fetching.at,
                *_settled(fetching),
            )
            for offset, fetching in rows.fetchings.items()
            if fetching is not None and fetching not in rows.fetching_was
        ],
    )


def _settled_fetches(db: Together, rows: GroupRows) -> None:
    changed = [
        (fetching.offset, *_settled(fetching))
        for fetching, was in rows.fetching_was.items()
        if _settled(fetching) != was
    ]
    update(db, "fetches", '"offset" bigint', "outcome text, became smallint", changed)


def _settled(fetching: Fetching) -> tuple[str | None, int | None]:
    return fetching.outcome and fetching.outcome.value, code_of(fetching.became)


def _events(db: Together, rows: GroupRows, written: Written) -> None:
    insert(
        db,
        EVENTS,
        [
            event_row(event, place, rows.encoded(event.envelope) if event.envelope else None, written)
            for event, place in rows.events
        ],
    )


def _parties(db: Db, rows: GroupRows) -> None:
    """A number for everybody who is in an event for the first time; behind the last lock, so each number is given once."""
    named = {event.consumer for event, _ in rows.events if event.consumer is not None}
    if new := sorted(named - rows.names.parties):
        db.execute(
            "insert into parties (number, name)"
            " select (select coalesce(max(number), 0) from parties) + row_number() over (), name"
            " from unnest(%s::text[]) as u (name) where not exists (select 1 from parties p where p.name = u.name)",
            (new,),
        )
        rows.names.parties.update(new)


def _left_behind(db: Together, rows: GroupRows, written: Written) -> None:
    insert(
        db,
        "idempotency (producer text, key text, hash bytea, id text, state smallint, same_as text, at bigint)",
        [
            (
                producer or "",
                key,
                kept.hash,
                written.text(kept.published.id),
                int(kept.published.state),
                written.text(kept.published.same_as),
                kept.at,
            )
            for (producer, key), kept in rows.new_remembered.items()
        ],
        "(producer, key) do update set hash = excluded.hash, id = excluded.id, state = excluded.state,"
        " same_as = excluded.same_as, at = excluded.at",
    )
    insert(
        db,
        "contents (object text, key text, hash bytea, id text, sequence bigint, at bigint)",
        [
            (*thing, last.hash, written.text(last.id), written.number(last.sequence), last.at)
            for thing, last in rows.new_contents.items()
        ],
        "(object, key) do update set hash = excluded.hash, id = excluded.id, sequence = excluded.sequence,"
        " at = excluded.at, ended = null",
    )
    insert(
        db,
        "latest (destination bigint, object text, key text, sequence bigint)",
        [
            (place.number, *thing, written.number(sequence))
            for (place, thing), sequence in rows.new_latest.items()
        ],
        "(destination, object, key) do update set sequence = excluded.sequence",
    )
    insert(
        db,
        "unchanged (object text, producer text, count bigint)",
        [(*of, count) for of, count in rows.unchanged.items()],
        "(object, producer) do update set count = unchanged.count + excluded.count",
    )
    insert(
        db,
        "erasures (sequence bigint)",
        [(written.number(sequence),) for sequence in rows.new_erasures],
        "(sequence) do nothing",
    )


# ── names, jobs, counters ───────────────────────────────────────────────────────────────────────


def _names(db: Db, rows: GroupRows, written: Written) -> None:
    for place in sorted(rows.saved_places, key=lambda place: place.number):
        place.start = written.number(place.start) or 0
        db.execute(
            "insert into destinations (number, kind, name, policy, created_at, deleted_at, topics, start)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict (number) do update set policy = excluded.policy,"
            " deleted_at = excluded.deleted_at, topics = excluded.topics, start = excluded.start",
            (
                place.number,
                int(place.kind),
                place.name,
                _encode(place.policy).decode(),
                place.created_at,
                place.deleted_at,
                ",".join(place.topics),
                place.start,
            ),
        )
    for name, policy in rows.saved_objects.items():
        _save(db, "objects", "policy", name, None if policy is None else (_encode(policy).decode(),))
    for name, info in rows.saved_consumers.items():
        row = None if info is None else (_encode(info.consumer).decode(), info.created_at)
        _save(db, "consumers", "consumer, created_at", name, row)
    for name, offset in rows.spectators.items():
        _save(db, "spectators", '"offset", at', name, None if offset is None else (offset, rows.now))


def _save(db: Db, table: str, columns: str, name: str, row: tuple[Any, ...] | None) -> None:
    """A row by its name; None: it is gone."""
    if row is None:
        db.execute(f"delete from {table} where name = %s", (name,))
        return
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns.split(", "))
    db.execute(
        f"insert into {table} (name, {columns}) values ({', '.join(['%s'] * (len(row) + 1))})"
        f" on conflict (name) do update set {sets}",
        (name, *row),
    )


def _jobs(db: Db, rows: GroupRows, written: Written) -> None:
    for job in rows.jobs.values():
        was = rows.job_was.get(job.number)
        if was is None:
            # What others logged while this was decided came before it.
            db.execute(
                "insert into jobs (number, kind, filter, destination, until, newest, cursor, matched, done, started_at,"
                " ended_at, consumer, rate, next_at) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    job.number,
                    str(job.kind),
                    _encode(job.filter).decode(),
                    None if job.place is None else job.place.number,
                    job.until + written.delta,
                    job.newest,
                    job.cursor,
                    job.matched,
                    job.done,
                    job.started_at,
                    job.ended_at,
                    job.consumer,
                    job.rate,
                    job.next_at,
                ),
            )
        elif job_row(job) != was:
            db.execute(
                "update jobs set cursor = %s, done = %s, ended_at = %s, next_at = %s where number = %s",
                (*job_row(job), job.number),
            )


def _counts(db: Together, rows: GroupRows, written: Written, ready: dict[Destination, int]) -> None:
    """After the last lock, so that two groups never wait for each other here."""
    for kind in rows.plain:
        size = sum([command.size for command in kind.commands])
        for slot in kind.model.slots:
            rows.counted[slot.queue, Q] += len(kind.commands)
            rows.bytes[slot.queue] += size
            rows.touched.add(slot.queue)
    places = {place for place, _ in rows.counted} | set(rows.bytes) | set(ready) | rows.saved_places
    insert(
        db,
        f"counts (destination bigint, {' bigint, '.join(COUNT_COLUMNS)} bigint, bytes bigint, ready bigint, changed bigint)",
        [
            (
                place.number,
                *(rows.counted[place, state] for state in COUNTED),
                rows.bytes[place],
                ready.get(place, 0),
                written.turn,
            )
            for place in sorted(places, key=lambda place: place.number)
        ],
        "(destination) do update set "
        + ", ".join(
            f"{name} = counts.{name} + excluded.{name}" for name in (*COUNT_COLUMNS, "bytes", "ready")
        )
        + ", changed = excluded.changed returning destination, ready",
    )


def reorder(db: Db, place: Destination) -> None:
    """Its policy changed: the turn of what is open, and what is held up by its key."""
    held_up = (
        "d.key is not null and exists (select 1 from deliveries o where o.destination = d.destination and o.key = d.key"
        " and o.sequence <> d.sequence and (o.state = 4 or (o.state in (3, 7) and o.sequence < d.sequence)))"
        if place.keyed
        else "false"
    )
    db.execute(
        f"update deliveries d set priority = {'0' if place.keyed else 'm.priority'},"
        f" blocked = d.state in (3, 7) and {held_up}"
        " from messages m where m.sequence = d.sequence and d.destination = %s",
        (place.number,),
    )
    db.execute(
        "update counts set ready = (select count(*) from deliveries where destination = %s and state in (3, 7)"
        " and due_at is null and not blocked) where destination = %s",
        (place.number, place.number),
    )


def _snapshot(db: Db, rows: GroupRows, written: Written) -> None:
    """Every depth as it is now, for those who ask about the past."""
    states = ", ".join(
        f"'{state.name}', {column}" for state, column in zip(COUNTED, COUNT_COLUMNS, strict=True)
    )
    db.execute(
        'insert into snapshots (destination, at, "offset", states)'
        f" select destination, %s, (select next - 1 from log_head), json_build_object({states})::text from counts"
        " union all select 0, %s, (select next - 1 from log_head), ''"
        ' on conflict (destination, at) do update set "offset" = excluded."offset", states = excluded.states',
        (written.at, written.at),
    )
    db.execute("update log_head set snapshot_at = %s, snapshot_next = next", (written.at,))


def _trim_snapshots(db: Db, oldest: int) -> None:
    """The log begins later now: what lies before the first moment that can still be asked for goes."""
    db.execute(
        "delete from snapshots s using (select min(at) as at from snapshots where destination = 0"
        ' and "offset" >= %s) first where s.at < first.at and exists (select 1 from snapshots later'
        " where later.destination = s.destination and later.at > s.at and later.at <= first.at)",
        (oldest - 1,),
    )
