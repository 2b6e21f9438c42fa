"""Records: what the log says, and the events that each of them stands for.

    Logged   L, Q            a message, with all that was said of it
    Stepped  F    S X    N Q  R …    a step of its delivery, with what is needed to go on from there
    the rest                 notes: no event; queues, jobs, leases made longer, what was sealed or trimmed

A record is complete in itself: whoever reads a range needs nothing from before it. This file is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from ...commands import Job
from ...delivery import K, L, Outcome, Q, S, State, X
from ...filters import Filter
from ...message import Envelope
from ...policy import Policy
from ...store import Event


class Logged(msgspec.Struct, frozen=True, array_like=True, tag="L", gc=False):
    id: str
    #: its queue's name, and the number that names this incarnation of it
    queue: str
    number: int
    envelope: Envelope
    hash: bytes
    size: int
    priority: int
    #: when it may be fetched first; None: at once
    due_at: int | None
    #: when its own ttl ends, and when it ends in its queue, whose policy may have one
    ttl_at: int | None
    expires_at: int | None
    #: whether its producer gave it the id
    own_id: bool
    #: the name under which its body lies in new/ when this is logged
    staged: str | None
    idempotency_key: str | None = None
    #: why it is logged, where nobody published it
    reason: str | None = None


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag="S", gc=False):
    sequence: int
    id: str
    queue: str
    number: int
    from_state: State
    #: the states entered, in order
    path: tuple[State, ...]
    attempt: int
    consumer: str | None
    #: its number, for those who compute
    consumer_number: int | None
    reason: str | None
    #: time spent in from_state, and, where the message completes, since it was logged
    duration_ms: int
    age_ms: int
    #: when it may be fetched again, or its lease ends
    due_at: int | None
    tries: int
    #: of a fetch: its receipt's secret
    salt: int | None = None
    #: of a confirm
    outcome: Outcome | None = None
    #: of a redrive: the only one to have it again
    named: str | None = None


class QueueMade(msgspec.Struct, frozen=True, array_like=True, tag="q", gc=False):
    name: str
    number: int
    policy: Policy


class PolicyChanged(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    name: str
    policy: Policy


class QueueDeleted(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    name: str


class ConsumerNumbered(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """Somebody who fetches for the first time."""

    name: str
    number: int


class LeaseExtended(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    sequence: int
    due_at: int


class DelayOver(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    sequence: int


class BodyGone(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """A dead letter of a queue that is deleted."""

    sequence: int


class KeyRemembered(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    """An idempotency key that came with the id of a message that was there already."""

    producer: str | None
    key: str
    hash: bytes
    id: str
    state: State


class JobNoted(msgspec.Struct, frozen=True, array_like=True, tag="j", gc=False):
    """A job as it stands now."""

    job: Job
    filter: Filter
    #: only messages logged by then, and queues made by then
    until: int
    newest: int
    #: messages up to here are done
    cursor: int
    next_at: int
    #: the number of the queue that it empties
    number: int | None = None


class SpectatorSet(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    name: str
    #: None: it is gone
    offset: int | None


class SealedUpTo(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    upto: int


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """The log begins here now."""

    oldest: int


Note = (
    QueueMade
    | PolicyChanged
    | QueueDeleted
    | ConsumerNumbered
    | LeaseExtended
    | DelayOver
    | BodyGone
    | KeyRemembered
    | JobNoted
    | SpectatorSet
    | SealedUpTo
    | Trimmed
)
Record = Logged | Stepped | Note

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Record]).decode


def completes(state: State) -> bool:
    """Whether its message is done: there is one delivery of it, and no other."""
    return state in (S, K)


def count_of(record: Record) -> int:
    """How many events it stands for."""
    if isinstance(record, Stepped):
        return len(record.path) + completes(record.path[-1])
    return 2 if isinstance(record, Logged) else 0


def events_of(records: Iterable[Record], first: int, at: int) -> Iterator[Event]:
    """The events of a group that begins with offset `first`."""
    return chain.from_iterable(events for _, events in by_record(records, first, at))


def by_record(
    records: Iterable[Record], first: int, at: int
) -> Iterator[tuple[Logged | Stepped, list[Event]]]:
    offset = first
    for record in records:
        if isinstance(record, Logged):
            yield record, _logged(record, offset, at)
        elif isinstance(record, Stepped):
            yield record, _stepped(record, offset, at)
        offset += count_of(record)


def _logged(record: Logged, offset: int, at: int) -> list[Event]:
    return [
        Event(
            offset=offset,
            at=at,
            message_id=record.id,
            sequence=offset,
            to_state=L,
            reason=record.reason,
            envelope=record.envelope,
            hash=record.hash,
            size=record.size,
        ),
        Event(
            offset=offset + 1,
            at=at,
            message_id=record.id,
            sequence=offset,
            queue=record.queue,
            slot=0,
            from_state=L,
            to_state=Q,
            attempt=0,
            reason=record.reason,
            duration_ms=0,
        ),
    ]


def _stepped(record: Stepped, offset: int, at: int) -> list[Event]:
    events: list[Event] = []
    from_state, duration_ms = record.from_state, record.duration_ms
    for to_state in record.path:
        events.append(
            Event(
                offset=offset + len(events),
                at=at,
                message_id=record.id,
                sequence=record.sequence,
                queue=record.queue,
                slot=0,
                from_state=from_state,
                to_state=to_state,
                attempt=record.attempt,
                consumer=record.consumer,
                reason=record.reason,
                duration_ms=duration_ms,
            )
        )
        from_state, duration_ms = to_state, 0
    if completes(from_state):
        events.append(
            Event(
                offset=offset + len(events),
                at=at,
                message_id=record.id,
                sequence=record.sequence,
                from_state=L,
                to_state=X,
                duration_ms=record.age_ms,
            )
        )
    return events
