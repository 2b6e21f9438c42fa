"""Holdings: all that a store holds, in the words of no store alone; what `waypost copy` reads from one and writes into another.

    Source ── standing, agreed ── what is left behind ── messages, by sequence ── events, by offset ──▶ Target

Things are those of the rules (`things.py`). A page of anything is bounded, so that a store of any size can be copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..commands import Batch, Published, Upload
from ..delivery import F, K, R, State
from ..message import payload_hash
from ..objects import ObjectPolicy
from ..store import ConsumerInfo, Event, Feature
from .things import Content, Destination, Fetching, Message, OpenJob, Remembered, Scope, Slot, Thing


class Standing(NamedTuple):
    """A store's own id, and how its log stands."""

    id: str
    oldest: int
    head: int
    at: int
    sealed: int | None


class Snapshot(NamedTuple):
    """Depths at a past moment."""

    #: a destination's number; 0: all others are as they were
    place: int
    at: int
    offset: int
    states: dict[State, int]


class Agreed(NamedTuple):
    """What there is beside messages and their traces; little enough to be held at once."""

    #: every incarnation, by number
    places: list[Destination]
    objects: dict[str, ObjectPolicy]
    #: (object, producer) -> how many were unchanged
    unchanged: dict[tuple[str, str], int]
    #: by name
    consumers: list[ConsumerInfo]
    #: name -> (offset, when it was said)
    spectators: dict[str, tuple[int, int]]
    #: by number
    jobs: list[OpenJob]
    erasures: list[int]
    snapshots: list[Snapshot]


class KeyKept(NamedTuple):
    scope: Scope
    remembered: Remembered


class ContentKept(NamedTuple):
    thing: Thing
    content: Content


class LatestKept(NamedTuple):
    #: the destination's number
    place: int
    thing: Thing
    sequence: int


class BatchKept(NamedTuple):
    """By which a batch that is written again is known."""

    batch: Batch


class UploadKept(NamedTuple):
    """Of a batch whose rows are not all in; others are for nobody to have."""

    upload: Upload
    chunk: bytes


#: what messages leave behind, and what has still to become some
LeftBehind = KeyKept | ContentKept | LatestKept | BatchKept | UploadKept


class Held(NamedTuple):
    """A message with its slots and the fetches that are still known."""

    message: Message
    #: in L, for a decision
    waits: bool
    #: None: it is gone, or was not asked for
    body: bytes | None
    fetchings: list[Fetching]


class Entry(NamedTuple):
    """An event, and the number of its destination, which a name alone does not tell."""

    event: Event
    place: int | None


class Figures(NamedTuple):
    """A destination's counters."""

    states: dict[State, int]
    bytes: int
    ready: int


class Source(Protocol):
    """A store that nobody serves, to be read."""

    def standing(self) -> Standing: ...

    def agreed(self) -> Agreed: ...

    def left_behind(self) -> Iterator[LeftBehind]: ...

    def messages(self, bodies: bool = True) -> Iterator[Held]:
        """By sequence. Raises PayloadDamaged."""
        ...

    def events(self) -> Iterator[Entry]:
        """All that the log has, by offset."""
        ...

    def figures(self) -> dict[int, Figures]:
        """By the destination's number."""
        ...

    def turn(self) -> int:
        """Another one once somebody has written to it."""
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """A store that is being filled: empty before, and not served until it is accepted. In the order of the methods."""

    lacks: frozenset[Feature]

    def begin(self) -> None:
        """Mark it unfinished; what an unfinished copy left goes."""
        ...

    def take_agreed(self, standing: Standing, agreed: Agreed) -> None: ...

    def take_left_behind(self, some: Sequence[LeftBehind]) -> None: ...

    def take_messages(self, some: Sequence[Held]) -> None: ...

    def take_events(self, some: Sequence[Entry]) -> None: ...

    def finish(self) -> Source:
        """Everything is there and on stable media: as it can be read."""
        ...

    def accept(self) -> None:
        """It was checked, and may be served."""
        ...

    def close(self) -> None: ...


# ── the same in every store ─────────────────────────────────────────────────────────────────────


def plain_agreed(agreed: Agreed) -> dict[str, Any]:
    """What stores must agree about, in comparable form; snapshots are theirs alone."""
    return {
        "destinations": [
            (
                place.number,
                place.kind,
                place.name,
                place.policy,
                place.created_at,
                place.deleted_at,
                place.topics,
                place.start,
            )
            for place in agreed.places
        ],
        "objects": agreed.objects,
        "counts of what was unchanged": agreed.unchanged,
        "consumers": agreed.consumers,
        "spectators": agreed.spectators,
        "jobs": [
            (job.info(), job.filter, job.until, job.newest, job.next_at, job.cursor, _number(job.place))
            for job in agreed.jobs
        ],
        "erasures": agreed.erasures,
    }


def plain_message(held: Held) -> tuple[Any, ...]:
    """A message in comparable form: what counts of it, not what a store happens to remember beside."""
    message = held.message
    in_queues = any(slot.queue.is_queue for slot in message.slots)
    return (
        message.id,
        message.sequence,
        message.state,
        message.hash,
        message.size,
        message.created_at,
        message.envelope,
        message.priority,
        message.expires_at,
        message.own_id,
        message.same_as,
        message.routed,
        None if message.routed else (message.due_at, message.force),
        None if in_queues else message.ended_at,
        held.waits,
        held.body is not None,
        [plain_slot(slot, held.fetchings) for slot in message.in_order()],
        sorted(plain_fetching(fetching) for fetching in held.fetchings),
    )


def plain_slot(slot: Slot, fetchings: Sequence[Fetching]) -> tuple[Any, ...]:
    return (
        slot.queue.number,
        slot.number,
        slot.state,
        slot.since_at,
        slot.due_at,
        slot.expires_at,
        slot.named,
        slot.kick,
        slot.attempt,
        slot.tries,
        slot.consumer,
        text(slot.reason),
        slot.routed,
        slot.redriven,
        sorted(slot.refused),
        open_fetch(slot, fetchings),
    )


def plain_fetching(fetching: Fetching) -> tuple[Any, ...]:
    slot = fetching.slot
    settled = fetching.outcome is not None or fetching.became is K
    return (
        fetching.offset,
        (slot.queue.number, slot.number),
        fetching.salt,
        fetching.consumer,
        fetching.at,
        (str(fetching.outcome), fetching.became) if settled else None,
    )


def plain_event(entry: Entry) -> tuple[Any, ...]:
    event = entry.event
    return entry.place, text(event.reason), *(getattr(event, name) for name in _EVENT_FIELDS)


_EVENT_FIELDS = tuple(name for name in Event.__struct_fields__ if name != "reason")


def plain_left(left: LeftBehind) -> tuple[Any, ...]:
    if isinstance(left, KeyKept):
        published: Published = left.remembered.published
        answer = (published.id, int(published.state), published.same_as)
        return "key", left.scope, left.remembered.hash, answer, left.remembered.at
    if isinstance(left, ContentKept):
        last = left.content
        end = None if last.end is None else int(last.end)
        return "content", left.thing, last.hash, last.id, last.sequence, last.at, end
    if isinstance(left, BatchKept):
        return "batch", left.batch
    if isinstance(left, UploadKept):
        return "upload", left.upload, payload_hash(left.chunk)
    return "latest", left.place, left.thing, left.sequence


def open_fetch(slot: Slot, fetchings: Sequence[Fetching]) -> int | None:
    """The offset of the fetch that can still be confirmed."""
    if slot.fetch is None or slot.state not in (F, R):
        return None
    unsettled = (one for one in fetchings if one.slot is slot and one.outcome is None and one.became is None)
    return next((one.offset for one in unsettled if one.offset == slot.fetch), None)


def text(said: str | None) -> str | None:
    """PostgreSQL's text holds no NUL."""
    return said if said is None or "\0" not in said else said.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _number(place: Destination | None) -> int | None:
    return None if place is None else place.number
