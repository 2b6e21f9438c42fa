"""What the rules speak of, and what they ask of a store's rows.

    Destination ─┬─ Slot ── Message        a delivery is a message's slot in a destination
                 │    '──── Fetch          the one that counts; older ones are stale
    Content, Job │
                 Rows                      finds them, and takes in what is new

The rules (`rules.py`) change the fields of these objects. A store that keeps them elsewhere compares them with what it had read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..commands import Batch, Job, JobKind, Publish, Published, Staged, Upload
from ..consumers import Consumer
from ..delivery import OPEN, WAITING, F, L, Outcome, State, U, X, message_state
from ..destinations import Kind
from ..filters import Filter
from ..message import Entropy, Envelope, make_id
from ..objects import ObjectPolicy
from ..policy import Policy
from ..routing import Slots
from ..store import ConsumerInfo, DeliveryInfo, Event

#: (object, key): the business thing that a message is about
Thing = tuple[str, str]
#: (producer, idempotency key)
Scope = tuple[str | None, str]


@dataclass(eq=False)
class Destination:
    """A queue or a channel."""

    kind: Kind
    name: str
    #: names this incarnation: one of the same name made later has a greater one
    number: int
    policy: Policy
    created_at: int
    deleted_at: int | None = None
    #: of a channel: its patterns, and the first sequence it gets
    topics: tuple[str, ...] = ()
    start: int = 0

    @property
    def deleted(self) -> bool:
        return self.deleted_at is not None

    @property
    def is_queue(self) -> bool:
        return self.kind is Kind.QUEUE

    @property
    def keyed(self) -> bool:
        return self.policy.order == "key"


#: where a message goes: which slots it gets there, and whether they are handed out and not waited for
Sent = tuple[Destination, Slots, bool]


@dataclass(eq=False)
class Message:
    id: str
    sequence: int
    created_at: int
    envelope: Envelope
    hash: bytes
    size: int
    priority: int
    expires_at: int | None
    #: whether its body is there: not once it is reaped or erased
    kept: bool = True
    salt: int = 0
    own_id: str | None = None
    #: when it may be fetched first; None: at once
    due_at: int | None = None
    force: bool = False
    #: whether it was decided where it goes
    routed: bool = True
    #: the message it repeats: then it goes nowhere
    same_as: str | None = None
    #: when it ended without a queue slot
    ended_at: int | None = None
    slots: list[Slot] = field(default_factory=list)
    last_offset: int = 0

    @property
    def state(self) -> State:
        in_queues = [slot.state for slot in self.slots if slot.queue.is_queue]
        if in_queues:
            return message_state(in_queues)
        if not self.routed:
            return L
        return X if self.same_as is None else U

    @property
    def thing(self) -> Thing | None:
        envelope = self.envelope
        return None if envelope.object is None or envelope.key is None else (envelope.object, envelope.key)

    def in_order(self) -> list[Slot]:
        return sorted(self.slots, key=lambda slot: (slot.queue.number, slot.number))

    def let_go(self) -> None:
        """Nobody needs it any more. It and its slots name each other: without this they would wait for the garbage collector."""
        self.slots = []


@dataclass(eq=False)
class Slot:
    message: Message
    queue: Destination
    number: int
    state: State
    since_at: int
    #: waiting: when it may be fetched; fetched: when the lease ends; None: at once, or never
    due_at: int | None
    expires_at: int | None
    #: the only one who may fetch it
    named: str | None = None
    #: handed out and not waited for, whatever the policy says
    kick: bool = False
    attempt: int = 0
    tries: int = 0
    consumer: str | None = None
    reason: str | None = None
    #: whom routing named it for; a redrive may name another
    routed: str | None = None
    #: the offset of its last redrive
    redriven: int = 0
    #: consumers that said not-interested
    refused: set[str] = field(default_factory=set)
    #: the offset of the fetch whose receipt counts; None: none does
    fetch: int | None = None
    #: in a queue ordered by key: another message of its key comes first. Kept by stores that do not look through everything.
    blocked: bool = False

    @property
    def place(self) -> tuple[int, int, int]:
        """Its turn in the queue."""
        return (0 if self.queue.keyed else self.message.priority, self.message.sequence, self.number)

    @property
    def waits(self) -> bool:
        """Can be fetched, as far as it alone says."""
        return self.state in WAITING and self.due_at is None

    @property
    def open(self) -> bool:
        return self.state in OPEN

    def beside(self) -> list[Slot]:
        """The other slots of its message there."""
        return [other for other in self.message.slots if other.queue is self.queue and other is not self]

    def holds_off(self, consumer: str) -> bool:
        """Whether by this slot its consumer may have no other one of the message there. What waits for a retry is still its
        slot: until somebody else fetches it, a late confirm counts."""
        return consumer in self.refused or (self.consumer == consumer and self.state in HAD)

    def waits_for(self, consumer: str) -> bool:
        return self.named == consumer and self.open


#: the states in which a slot is, or was, the one that its consumer got of a message
HAD = frozenset({F, State.R, State.S, State.K, State.I, State.E})


@dataclass(eq=False)
class Fetching:
    """One fetch: what its receipt stands for."""

    #: of its F
    offset: int
    slot: Slot
    salt: int
    consumer: str
    at: int
    #: how the consumer settled it, and what became of the slot
    outcome: Outcome | None = None
    became: State | None = None

    @property
    def counts(self) -> bool:
        """Its receipt can still settle the slot."""
        return self.became is None and self.slot.fetch == self.offset and self.slot.state in (F, State.R)


@dataclass(eq=False)
class Content:
    """The last message of a thing that was not unchanged."""

    hash: bytes
    id: str
    sequence: int
    at: int
    #: its state when it was forgotten
    end: State | None = None


@dataclass(eq=False)
class OpenJob:
    number: int
    kind: JobKind
    filter: Filter
    #: only messages logged by then
    until: int
    #: only queues and channels made by then, so never the successor of one that was deleted meanwhile
    newest: int
    matched: int
    started_at: int
    place: Destination | None = None
    consumer: str | None = None
    rate: float | None = None
    #: when it may go on
    next_at: int = 0
    cursor: int = 0
    done: int = 0
    ended_at: int | None = None

    def info(self) -> Job:
        return Job(
            id=str(self.number),
            kind=self.kind,
            matched=self.matched,
            done=self.done,
            started_at=self.started_at,
            ended_at=self.ended_at,
            consumer=self.consumer,
            rate=self.rate,
        )


class Remembered(NamedTuple):
    """What a publish with an idempotency key was answered."""

    hash: bytes
    published: Published
    at: int


class Fetches(Protocol):
    """What a filter asks beside the slot itself."""

    def fetches_of(self, slot: Slot) -> Iterable[Fetching]:
        """All that are still known."""
        ...


class Rows(Fetches, Protocol):
    """A store's rows during one group: what was there before, and what the group has done so far."""

    #: the group's moment
    now: int

    @property
    def head(self) -> int:
        """The last offset of the log."""
        ...

    @property
    def consumers(self) -> Mapping[str, ConsumerInfo]: ...

    @property
    def objects(self) -> Mapping[str, ObjectPolicy]: ...

    def log(self, event: Event, place: Destination | None) -> None:
        """The next event; its offset is head + 1."""
        ...

    # names

    def place(self, kind: Kind, name: str) -> Destination | None: ...

    def subscribed(self, topics: tuple[str, ...]) -> list[Destination]:
        """Channels that get a message of these topics, by number."""
        ...

    def make(self, kind: Kind, name: str, policy: Policy) -> Destination: ...

    def changed(self, place: Destination) -> None:
        """Its policy or topics; something may be ready now."""
        ...

    def delete(self, place: Destination) -> None:
        """Its name is free."""
        ...

    def set_object(self, name: str, policy: ObjectPolicy | None) -> None:
        """None: back to the default. Where nothing is compared any more, what was compared with is forgotten."""
        ...

    def set_consumer(self, name: str, consumer: Consumer | None, created_at: int) -> None: ...

    def set_spectator(self, name: str, offset: int | None) -> bool:
        """None: it is gone. Whether there was one."""
        ...

    # messages and their slots

    def message(self, id: str) -> Message | None: ...

    def message_at(self, sequence: int) -> Message | None: ...

    def add(self, message: Message, body: bytes) -> None: ...

    def add_plain(self, command: Publish, places: Sequence[Sent], draw: Entropy) -> Published | None:
        """One that nothing is asked of but to be logged and queued there; None: this store, or this one, wants it step by step."""
        ...

    def body(self, message: Message) -> bytes | None:
        """None: what is there does not fit its checksum."""
        ...

    def drop_body(self, message: Message) -> None: ...

    def add_slot(self, slot: Slot) -> None: ...

    def remove_slot(self, slot: Slot) -> None: ...

    def fetching(self, offset: int) -> Fetching | None: ...

    def add_fetching(self, fetching: Fetching) -> None: ...

    def held(self, place: Destination) -> tuple[int, int]:
        """(slots that have not ended, their bytes)"""
        ...

    def fetchable(self, place: Destination, consumer: str | None) -> Iterator[Slot]:
        """In the order they are handed out; with a consumer, those it may not have may be left out."""
        ...

    def waiting(self, place: Destination, thing: Thing) -> list[Slot]: ...

    def due(self, limit: int) -> list[Slot]:
        """Leases and delays that are over, in the order of their moments; at most so many."""
        ...

    def expired(self, limit: int) -> list[Slot]:
        """The same of ttls of what waits."""
        ...

    def roused(self, place: Destination) -> None:
        """Something there became ready by time alone."""
        ...

    # what messages leave behind

    def undecided(self, message: Message) -> bool:
        """Whether it waits in L for a decision."""
        ...

    def set_undecided(self, message: Message, waits: bool) -> None: ...

    def undecided_of(self, object: str | None) -> Sequence[int]:
        """Sequences of those of an object that wait in L."""
        ...

    def remembered(self, scope: Scope) -> Remembered | None: ...

    def remember(self, scope: Scope, remembered: Remembered) -> None: ...

    def content(self, thing: Thing) -> Content | None: ...

    def set_content(self, thing: Thing, content: Content) -> None: ...

    def count_unchanged(self, object: str, producer: str) -> None: ...

    def latest(self, place: Destination, thing: Thing) -> int:
        """The newest message of a thing that came there while its policy had `latestOnly`, 0: none."""
        ...

    def set_latest(self, place: Destination, thing: Thing, sequence: int) -> None: ...

    # jobs

    def newest_place(self) -> int: ...

    def open_job(self, job: OpenJob) -> OpenJob:
        """Gives it its number."""
        ...

    def next_job(self) -> OpenJob | None:
        """The oldest that may go on now."""
        ...

    def messages_for(self, job: OpenJob) -> Iterator[Message]:
        """From beyond its cursor on, in log order; those that it cannot touch may be left out."""
        ...

    # batches

    def uploads(self, ids: Sequence[str]) -> list[Upload | None]:
        """One for each."""
        ...

    def add_upload(self, upload: Upload, body: bytes | Staged) -> None: ...

    def batch(self, query: str, batch: int) -> Batch | None: ...

    def newest_batch(self) -> int:
        """Its number; 0: there was none yet."""
        ...

    def add_batch(self, batch: Batch, uploads: Sequence[Upload]) -> None:
        """The uploads are the batch's from now on, in this order."""
        ...

    def move_batch(self, batch: Batch) -> None:
        """More of it is in; with the last row its uploads go."""
        ...

    # the log and the lake

    def oldest(self) -> int: ...

    def offset_at(self, at: int) -> int: ...

    def seal(self, upto: int) -> None: ...

    def add_erasure(self, sequence: int) -> None:
        """Where there is a lake, or was one."""
        ...

    def erased(self, sequences: Iterable[int]) -> None: ...

    def reap(self, limit: int) -> bool: ...


def new_message(command: Publish, sequence: int, salt: int, now: int, *, routed: bool) -> Message:
    return Message(
        command.id or make_id(sequence, salt, now),
        sequence,
        now,
        command.envelope,
        command.hash,
        command.size,
        command.priority,
        None if command.ttl_us is None else now + command.ttl_us,
        salt=salt,
        own_id=command.id,
        due_at=now + command.delay_us if command.delay_us else None,
        force=command.force,
        routed=routed,
    )


def new_slot(
    message: Message,
    place: Destination,
    number: int,
    named: str | None,
    now: int,
    *,
    kick: bool = False,
    reason: str | None = None,
) -> Slot:
    """In Q; a delay holds for where it is sent, not for what comes of that."""
    expires_at = message.expires_at
    if expires_at is None and place.policy.ttl_us is not None:
        expires_at = now + place.policy.ttl_us
    delayed = reason is None and message.due_at is not None and message.due_at > now
    due_at = message.due_at if delayed else None
    return Slot(
        message, place, number, State.Q, now, due_at, expires_at, named, kick, reason=reason, routed=named
    )


def new_event(
    message: Message,
    slot: Slot | None,
    offset: int,
    now: int,
    from_state: State | None,
    to_state: State,
    **more: Any,
) -> Event:
    """The last one of its message, for now."""
    message.last_offset = offset
    if slot is not None:
        place = slot.queue
        more["queue" if place.is_queue else "channel"] = place.name
        more["slot"], more["attempt"] = slot.number, slot.attempt
    return Event(
        offset=offset,
        at=now,
        message_id=message.id,
        sequence=message.sequence,
        from_state=from_state,
        to_state=to_state,
        **more,
    )


def heads_its_key(slot: Slot, others: Iterable[Slot]) -> bool:
    """In a queue ordered by key: nothing older of its key is open, and nothing of its key is out."""
    key = slot.message.envelope.key
    if key is None:
        return True
    return not any(
        other.message is not slot.message
        and other.message.envelope.key == key
        and (other.state is F or (other.open and other.message.sequence < slot.message.sequence))
        for other in others
    )


def delivery_info(slot: Slot) -> DeliveryInfo:
    return DeliveryInfo(
        sequence=slot.message.sequence,
        message_id=slot.message.id,
        queue=slot.queue.name if slot.queue.is_queue else None,
        channel=None if slot.queue.is_queue else slot.queue.name,
        slot=slot.number,
        state=slot.state,
        attempt=slot.attempt,
        consumer=slot.consumer,
        reason=slot.reason,
        created_at=slot.message.created_at,
        changed_at=slot.since_at,
        due_at=slot.due_at,
        named=slot.named,
    )
