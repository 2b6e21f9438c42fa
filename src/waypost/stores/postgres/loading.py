"""From rows to the things that the rules speak of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from ...commands import JobKind
from ...delivery import Outcome, State
from ...filters import Filter
from ...message import Envelope, make_id, parse_id
from ..things import Destination, Fetching, Message, OpenJob, Slot
from .columns import bigints
from .names import Db

STATE = {state.value: state for state in State}
#: equal ones are one, as when they came
_decode_envelope = lru_cache(1_000)(msgspec.json.Decoder(Envelope).decode)

_MESSAGE = (
    "sequence, at, salt, own_id, envelope, hash, size, priority, expires_at, due_at, force, kept, routed,"
    " undecided, same_as, ended_at"
)
_SLOT = (
    "sequence, destination, slot, state, blocked, since_at, due_at, expires_at, named, kick, attempt, tries,"
    " consumer, reason, routed, redriven, refused, fetched"
)
FETCH = '"offset", sequence, destination, slot, salt, consumer, at, outcome, became'
JOB = (
    "number, kind, filter, destination, until, newest, cursor, matched, done, started_at, ended_at, consumer,"
    " rate, next_at"
)


def send(db: Db, statement: str, values: Sequence[Any] = ()) -> Db:
    """With a cursor of its own, which is read when a pipeline's answers have come."""
    return db.connection.execute(statement, values, binary=True)


def load(
    db: Db, sequences: Iterable[int], places: Mapping[int, Destination]
) -> tuple[list[Message], set[Message]]:
    wanted = list(sequences)
    if not wanted:
        return [], set()
    with db.connection.pipeline():
        asked = ask(db, wanted)
    return loaded(asked, places)


#: messages, and one or more times slots of theirs
Asked = tuple[Db, ...]


def ask(db: Db, sequences: list[int]) -> Asked:
    """In a pipeline; what comes is `loaded` afterwards."""
    wanted = bigints(sequences)
    return (
        send(
            db,
            f"select {_MESSAGE} from messages where sequence = any(%b::bigint[]) order by sequence",
            (wanted,),
        ),
        send(db, f"select {_SLOT} from deliveries where sequence = any(%b::bigint[])", (wanted,)),
    )


def ask_locked(db: Db, sequences: list[int], places: set[int] | None) -> Asked:
    """The same, locked in order, and read as they are then: the messages, and their slots in these places or everywhere."""
    wanted = bigints(sequences)
    messages = send(
        db,
        f"select {_MESSAGE} from messages where sequence = any(%b::bigint[]) order by sequence for update",
        (wanted,),
    )
    slots = f"select {_SLOT} from deliveries where sequence = any(%b::bigint[])"
    locked = "order by sequence, destination, slot for update"
    if places is None:
        return messages, send(db, f"{slots} {locked}", (wanted,))
    there = bigints(sorted(places))
    return (
        messages,
        send(db, f"{slots} and destination = any(%b::bigint[]) {locked}", (wanted, there)),
        send(db, f"{slots} and not destination = any(%b::bigint[])", (wanted, there)),
    )


def loaded(asked: Asked, places: Mapping[int, Destination]) -> tuple[list[Message], set[Message]]:
    """Messages with their slots, and those of them that wait for a decision."""
    messages: dict[int, Message] = {}
    undecided: set[Message] = set()
    for row in asked[0].fetchall():
        sequence, at, salt, own_id, envelope, hash, size, priority, expires_at, due_at, force, *rest = row
        kept, routed, waits, same_as, ended_at = rest
        message = messages[sequence] = Message(
            own_id or make_id(sequence, salt, at),
            sequence,
            at,
            _decode_envelope(envelope),
            hash,
            size,
            priority,
            expires_at,
            kept,
            salt,
            own_id,
            due_at,
            force,
            routed,
            same_as,
            ended_at,
        )
        if waits:
            undecided.add(message)
    for row in chain.from_iterable(slots.fetchall() for slots in asked[1:]):
        sequence, place, number, state, blocked, since_at, due_at, expires_at, named, kick, *rest = row
        attempt, tries, consumer, reason, routed_for, redriven, refused, fetch = rest
        message = messages[sequence]
        slot = Slot(
            message,
            places[place],
            number,
            STATE[state],
            since_at,
            due_at,
            expires_at,
            named,
            kick,
            attempt,
            tries,
            consumer,
            reason,
            routed_for,
            redriven,
            {name for name in refused.split(",") if name} if refused else set(),
            fetch,
            blocked,
        )
        message.slots.append(slot)
    return list(messages.values()), undecided


def fetching_of(row: Any, slots: Mapping[tuple[int, int, int], Slot]) -> Fetching | None:
    offset, sequence, destination, number, salt, consumer, at, outcome, became = row
    slot = slots.get((sequence, destination, number))
    if slot is None:
        return None
    return Fetching(
        offset,
        slot,
        salt & (1 << 64) - 1,
        consumer,
        at,
        None if outcome is None else Outcome(outcome),
        None if became is None else STATE[became],
    )


def job_of(row: Any, places: Mapping[int, Destination]) -> OpenJob:
    number, kind, filter, place, until, newest, cursor, matched, done, started_at, ended_at, *rest = row
    consumer, rate, next_at = rest
    return OpenJob(
        number,
        JobKind(kind),
        msgspec.json.decode(filter, type=Filter),
        until,
        newest,
        matched,
        started_at,
        None if place is None else places[place],
        consumer,
        rate,
        next_at,
        cursor,
        done,
        ended_at,
    )


def sequences_of(db: Db, ids: Iterable[str]) -> dict[str, int]:
    """Where messages of these ids may be; whether they are is seen when they are loaded."""
    wanted = list(ids)
    if not wanted:
        return {}
    found = {id: parsed.sequence for id in wanted if (parsed := parse_id(id)) is not None}
    db.execute("select own_id, sequence from messages where own_id = any(%s)", (wanted,))
    return found | {own_id: sequence for own_id, sequence in db.fetchall()}
