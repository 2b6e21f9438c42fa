"""Rows: how the tables say what happened, and the way back to events.

    messages.route   NULL     not routed: only L, or unchanged (L, U)
                     3        one slot in queue 3
                     '3:2,5:1'  two slots in 3, one in 5; also '3:1', for a message that later got slots elsewhere
                     ''       no slots at all: completed at once; so too if all of them are in channels
                     '+'      routed later: its row stands for L alone, all else is in `steps`

    steps.path       the states gone through, five bits each, the first lowest: F, S, X = 4 | 5 << 5 | 14 << 10

Pure; the same for the writer, the reader and whoever exports the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from ...delivery import F, L, Outcome, Q, State, U, X
from ...filters import Filter
from ...message import Envelope, make_id
from ...store import Event

Row = tuple[Any, ...]
#: an apsw.Connection; its stubs give every column every type, where the schema says which it has
Db = Any

#: State(number), quicker than the enum's call
STATE: tuple[State, ...] = (L, *State)
#: fetches.outcome
OUTCOMES: dict[Outcome, int] = {outcome: number for number, outcome in enumerate(Outcome, 1)}
#: it ended by something other than a confirm
NO_CONFIRM = 0

#: what `envelope_of` reads, in its order
ENVELOPE_COLUMNS = "m.topics, m.object, m.key, m.mime_type, m.timestamp, m.sent, m.producer, m.encoding, m.meta, m.traceparent"


def pack_path(states: Iterable[State]) -> int:
    packed = 0
    for shift, state in enumerate(states):
        packed |= state << (5 * shift)
    return packed


def unpack_path(packed: int) -> list[State]:
    states = []
    while packed:
        states.append(STATE[packed & 31])
        packed >>= 5
    return states


#: messages.route of one that was routed later
LATER = "+"
#: a destination's queue and channel, of which it is one
Place = tuple[str | None, str | None]


def pack_route(slots: Mapping[int, int], in_queue: bool = True) -> int | str:
    """From destination -> number of slots; `in_queue`: the first of them is a queue."""
    if len(slots) == 1 and in_queue:
        ((destination, count),) = slots.items()
        if count == 1:
            return destination
    return ",".join(f"{destination}:{count}" for destination, count in slots.items() if count)


def unpack_route(route: int | str | None) -> list[tuple[int, int]]:
    """(destination, slot) of each delivery the message began with."""
    if isinstance(route, int):
        return [(route, 0)]
    if not route or route == LATER:
        return []
    pairs = (part.split(":") for part in route.split(","))
    return [(int(destination), slot) for destination, count in pairs for slot in range(int(count))]


def open_route(route: int | str | None) -> int | str | None:
    """The same route in the form that says: look at `deliveries` too."""
    return f"{route}:1" if isinstance(route, int) else route


def envelope_of(row: Row, parties: list[str | None]) -> Envelope:
    topics, object, key, mime_type, timestamp, sent, producer, encoding, meta, traceparent = row
    return Envelope(
        topics=tuple(topics.split(",")) if topics else (),
        object=object,
        key=key,
        mime_type=mime_type,
        timestamp=timestamp,
        sent=sent,
        producer=None if producer is None else parties[producer],
        encoding=encoding,
        meta=() if meta is None else tuple((name, value) for name, value in msgspec.json.decode(meta)),
        traceparent=traceparent,
    )


def signed(salt: int) -> int:
    """64 random bits as SQLite stores them."""
    return salt - (1 << 64) if salt >> 63 else salt


def unsigned(salt: int) -> int:
    return salt & 0xFFFFFFFFFFFFFFFF


class LogRows:
    """Turns rows into events; knows the names behind the numbers."""

    def __init__(self, places: Mapping[int, Place], parties: list[str | None]) -> None:
        self._places, self._parties = places, parties

    def of_message(self, row: Row) -> Iterator[Event]:
        """(sequence, at, salt, own_id, route, same_as, hash, size, *envelope)"""
        sequence, at, salt, own_id, route, same_as, hash, size = row[:8]
        id = own_id or make_id(sequence, salt, at)
        yield Event(
            offset=sequence,
            at=at,
            message_id=id,
            sequence=sequence,
            to_state=L,
            envelope=envelope_of(row[8:], self._parties),
            hash=hash,
            size=size,
        )
        common: dict[str, Any] = {
            "at": at,
            "message_id": id,
            "sequence": sequence,
            "from_state": L,
            "duration_ms": 0,
        }
        if route is None:
            if same_as is not None:
                yield Event(offset=sequence + 1, to_state=U, same_as=same_as.decode(), **common)
            return
        offset, in_queues = sequence, False
        for destination, slot in unpack_route(route):
            offset += 1
            queue, channel = self._places[destination]
            in_queues = in_queues or queue is not None
            yield Event(
                offset=offset, to_state=Q, queue=queue, channel=channel, slot=slot, attempt=0, **common
            )
        if not in_queues and route != LATER:
            yield Event(offset=offset + 1, to_state=X, **common)

    def of_fetch(self, row: Row) -> Event:
        """(offset, at, sequence, destination, slot, from_state, duration_ms, attempt, consumer,
        m.at, m.salt, m.own_id)"""
        offset, at, sequence, destination, slot, from_state, duration_ms, attempt, consumer = row[:9]
        created_at, salt, own_id = row[9:]
        queue, channel = self._places[destination]
        return Event(
            offset=offset,
            at=at,
            message_id=own_id or make_id(sequence, salt, created_at),
            sequence=sequence,
            queue=queue,
            channel=channel,
            slot=slot,
            from_state=STATE[from_state],
            to_state=F,
            attempt=attempt,
            consumer=self._parties[consumer],
            duration_ms=duration_ms,
        )

    def of_step(self, row: Row) -> Iterator[Event]:
        """(offset, at, sequence, destination, slot, path, duration_ms, attempt, consumer, reason,
        m.at, m.salt, m.own_id, m.same_as)"""
        offset, at, sequence, destination, slot, path, duration_ms, attempt, consumer, reason = row[:10]
        created_at, salt, own_id, same_as = row[10:]
        queue, channel = self._places[destination] if destination else (None, None)
        id = own_id or make_id(sequence, salt, created_at)
        states = unpack_path(path)
        for number, (from_state, to_state) in enumerate(pairwise(states)):
            if to_state is X or to_state is U:
                yield Event(
                    offset=offset + number,
                    at=at,
                    message_id=id,
                    sequence=sequence,
                    from_state=L,
                    to_state=to_state,
                    duration_ms=(at - created_at) // 1_000,
                    same_as=same_as.decode() if to_state is U else None,
                )
            else:
                yield Event(
                    offset=offset + number,
                    at=at,
                    message_id=id,
                    sequence=sequence,
                    queue=queue,
                    channel=channel,
                    slot=slot,
                    from_state=from_state,
                    to_state=to_state,
                    attempt=attempt,
                    consumer=None if consumer is None else self._parties[consumer],
                    reason=reason,
                    duration_ms=0 if number else duration_ms,
                )


def events_after_l(route: int | str | None, unchanged: bool, in_queues: bool) -> int:
    """How many events a message's row stands for, after L."""
    if route is None:
        return int(unchanged)
    if route == LATER:
        return 0
    return len(unpack_route(route)) + (not in_queues)


def filter_text(filter: Filter) -> str:
    return msgspec.json.encode(filter).decode()


def filter_of(text: str) -> Filter:
    return msgspec.json.decode(text, type=Filter)
