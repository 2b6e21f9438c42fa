"""The memory store: the executable model of what every store must do.

It keeps plain objects and looks through them, so that a rule can be read in one place; the other stores do the same with
indexes and are checked against this one step by step. It is also the store for trying things: nothing survives it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..canonical import content_hash
from ..commands import (
    JOB_STATES,
    Command,
    Confirm,
    Decide,
    DeclareChannel,
    DeclareConsumer,
    Declared,
    DeclareObject,
    DeclareQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteObject,
    DeleteQueue,
    DeleteSpectator,
    Erased,
    ErasePayload,
    Extend,
    Extended,
    Fetch,
    Fetched,
    Job,
    JobKind,
    Kick,
    Publish,
    Published,
    PublishMany,
    Reap,
    Release,
    Remove,
    Seal,
    SetSpectator,
    Settled,
    Staged,
    StartJob,
    Tick,
    Work,
)
from ..delivery import (
    DEAD,
    ENDED,
    OPEN,
    UNDELIVERED,
    WAITING,
    C,
    E,
    F,
    I,
    K,
    L,
    N,
    O,
    Outcome,
    Q,
    R,
    Reason,
    S,
    State,
    Step,
    T,
    U,
    X,
    lease_over,
    message_state,
    settle,
)
from ..destinations import Kind
from ..errors import (
    ChannelNotFound,
    ConsumerRequired,
    IdempotencyConflict,
    IdTaken,
    LogTrimmed,
    MessageNotFound,
    PayloadReaped,
    QueueFull,
    QueueNotFound,
    Refused,
    RequestInvalid,
    StillLogged,
)
from ..filters import Filter, bounds_fetches, in_bounds, selects_message
from ..instants import Clock, SteadyClock
from ..message import (
    SALT_MASK,
    Entropy,
    Envelope,
    make_id,
    make_receipt,
    parse_receipt,
    system_entropy,
)
from ..names import ANONYMOUS, DEFAULT_QUEUE
from ..objects import DEFAULT_OBJECT, ObjectPolicy
from ..policy import DEFAULT, Policy
from ..routing import (
    Part,
    Slots,
    parts_of,
    queues_of,
    slots_of,
    topics_in_channel,
    topics_in_queue,
    with_object,
)
from ..store import (
    Applied,
    ChannelInfo,
    ConsumerInfo,
    DeliveryInfo,
    Depths,
    Event,
    Feature,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    Races,
    SpectatorInfo,
    Stats,
    Undecided,
)
from ..topics import any_topic_matches
from . import FETCH_BYTES, IDEMPOTENCY_KEPT_US, LONGEST_FAILURE, SPECTATORS_HOLD_US, TOPIC_SCAN
from .pace import next_at, slice_of


@dataclass(eq=False)
class _Destination:
    """A queue or a channel."""

    kind: Kind
    name: str
    #: names this incarnation: one of the same name made later has a greater one
    number: int
    policy: Policy
    created_at: int
    deleted_at: int | None = None
    slots: list[_Slot] = field(default_factory=list)
    #: of a channel: its patterns, and the first sequence it gets
    topics: tuple[str, ...] = ()
    start: int = 0
    #: with `latestOnly`: the newest message of each thing that came here
    latest: dict[tuple[str, str], int] = field(default_factory=dict)
    #: (moment, deliveries in each state) after each group that changed them
    history: list[tuple[int, dict[State, int]]] = field(default_factory=list)

    @property
    def deleted(self) -> bool:
        return self.deleted_at is not None

    @property
    def is_queue(self) -> bool:
        return self.kind is Kind.QUEUE

    def states(self) -> dict[State, int]:
        states: dict[State, int] = {}
        for slot in self.slots:
            states[slot.state] = states.get(slot.state, 0) + 1
        return states


@dataclass(eq=False)
class _Message:
    id: str
    sequence: int
    created_at: int
    envelope: Envelope
    hash: bytes
    size: int
    priority: int
    expires_at: int | None
    #: None once reaped or erased
    body: bytes | None
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
    slots: list[_Slot] = field(default_factory=list)
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
    def thing(self) -> tuple[str, str] | None:
        """The business thing it is about."""
        envelope = self.envelope
        return None if envelope.object is None or envelope.key is None else (envelope.object, envelope.key)


@dataclass(eq=False)
class _Slot:
    message: _Message
    queue: _Destination
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
    fetch: _Fetch | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """Its turn in the queue."""
        priority = 0 if self.queue.policy.order == "key" else self.message.priority
        return (priority, self.message.sequence, self.number)


@dataclass(eq=False)
class _Fetch:
    slot: _Slot
    salt: int
    consumer: str
    at: int
    #: how the consumer settled it, and what became of the slot
    outcome: Outcome | None = None
    became: State | None = None


@dataclass(eq=False)
class _Content:
    """The last message of a thing that was not unchanged."""

    hash: bytes
    id: str
    sequence: int
    at: int
    #: its state when it was forgotten
    end: State | None = None


@dataclass(eq=False)
class _Job:
    id: str
    kind: JobKind
    filter: Filter
    #: only messages logged by then
    until: int
    #: only queues and channels made by then, so never the successor of one that was deleted meanwhile
    newest: int
    matched: int
    started_at: int
    queue: _Destination | None = None
    consumer: str | None = None
    rate: float | None = None
    #: when it may go on
    next_at: int = 0
    cursor: int = 0
    done: int = 0
    ended_at: int | None = None


class MemoryStore:
    inline_bytes = 1 << 62
    threaded = False
    shared = False
    races: Races | None = None
    sync_seconds = 0.0
    lacks: frozenset[Feature] = frozenset()

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
        keeps: bool = True,
    ) -> None:
        """`keeps`: whether bodies of what has ended stay for the policy's `keep`; the model of stores that do not."""
        self.clock = clock or SteadyClock()
        self._keeps = keeps
        self._draw = entropy or system_entropy()
        self._infer_types = infer_types
        self._log_keep_us = log_keep_us
        self._now = 0
        self._log: list[Event] = []
        self._oldest = 1
        #: those that exist, and every incarnation
        self._named: dict[Kind, dict[str, _Destination]] = {Kind.QUEUE: {}, Kind.CHANNEL: {}}
        self._destinations: list[_Destination] = []
        self._messages: dict[int, _Message] = {}
        self._by_id: dict[str, _Message] = {}
        #: those in L
        self._undecided: dict[int, _Message] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._idempotency: dict[tuple[str | None, str], tuple[bytes, Published, int]] = {}
        self._objects: dict[str, ObjectPolicy] = {}
        self._contents: dict[tuple[str, str], _Content] = {}
        #: (object, producer) -> how many were unchanged
        self._unchanged: dict[tuple[str, str], int] = {}
        self._consumers: dict[str, ConsumerInfo] = {}
        #: name -> (offset, when it was said)
        self._spectators: dict[str, tuple[int, int]] = {}
        self._jobs: dict[str, _Job] = {}
        self._id = os.urandom(16).hex()
        #: whether there is a lake, what it holds, and what it has to erase
        self._lake = False
        self._sealed: int | None = None
        self._lake_holds: int | None = None
        self._erasures: set[int] = set()
        #: destinations where something may have become ready, and those whose counts changed
        self._touched: set[_Destination] = set()
        self._counted: set[_Destination] = set()
        #: the lowest sequence that this group left in L
        self._logged: int | None = None
        self._do: dict[type, Callable[[Any], Any]] = {
            Publish: self._publish,
            PublishMany: self._publish_many,
            Fetch: self._fetch,
            Confirm: self._confirm,
            Extend: self._extend,
            Release: self._let_go,
            Kick: self._let_go,
            Remove: self._remove,
            DeclareQueue: self._declare_queue,
            DeleteQueue: self._delete_queue,
            DeclareChannel: self._declare_channel,
            DeleteChannel: self._delete_channel,
            DeclareObject: self._declare_object,
            DeleteObject: self._delete_object,
            DeclareConsumer: self._declare_consumer,
            DeleteConsumer: lambda command: self._consumers.pop(command.name, None) is not None,
            SetSpectator: self._set_spectator,
            DeleteSpectator: lambda command: self._spectators.pop(command.name, None) is not None,
            Decide: self._decide,
            StartJob: self._start_job,
            Work: self._work,
            Tick: self._tick,
            Reap: self._reap,
            Seal: self._seal,
            ErasePayload: self._erase,
            Erased: lambda command: self._erasures.difference_update(command.sequences),
        }

    # ── commands ────────────────────────────────────────────────────────────────────────────

    def apply(self, commands: Sequence[Command]) -> Applied:
        self._now = max(self._now, self.clock())
        self._touched.clear()
        self._counted.clear()
        self._logged = None
        results: list[Any] = []
        for command in commands:
            try:
                results.append(self._do[type(command)](command))
            except Refused as refusal:
                results.append(refusal)
        for destination in self._counted:
            destination.history.append((self._now, destination.states()))
        return Applied(
            results,
            self._became_ready(Kind.QUEUE),
            min(self._due(), default=None),
            self._next_job() is not None,
            self._became_ready(Kind.CHANNEL),
            self._logged,
        )

    def _became_ready(self, kind: Kind) -> dict[str, int]:
        ready = {one.name: self._ready(one) for one in self._touched if one.kind is kind and not one.deleted}
        return {name: count for name, count in ready.items() if count}

    # ── publish ─────────────────────────────────────────────────────────────────────────────

    def _publish(self, command: Publish) -> Published:
        return self._publish_many(PublishMany([command]))[0]

    def _publish_many(self, command: PublishMany) -> list[Published]:
        """First every message is checked against what is there and what came before it in the request; then all are
        logged."""
        planned: dict[str, bytes] = {}
        keys: dict[tuple[str | None, str], bytes] = {}
        contents: dict[tuple[str, str], bytes] = {}
        load: dict[_Destination | str, list[int]] = {}
        for message in command.messages:
            known = self._idempotency_hash(message, keys)
            if known is None:
                known = self._own_id_hash(message, planned)
            if known is None and not self._holds(message):
                self._check_queues(message)
                if not self._would_repeat(message, contents):
                    self._check_room(message, load)
        return [self._log_message(message) for message in command.messages]

    def _idempotency_hash(self, command: Publish, keys: dict[tuple[str | None, str], bytes]) -> bytes | None:
        if command.idempotency_key is None:
            return None
        scope = (command.envelope.producer, command.idempotency_key)
        stored = self._remembered(scope)
        known = keys.get(scope) if stored is None else stored[0]
        if known is not None and known != command.hash:
            raise IdempotencyConflict(
                f"Idempotency-Key {command.idempotency_key!r} came with another body before"
            )
        keys[scope] = command.hash
        return known

    def _remembered(self, scope: tuple[str | None, str]) -> tuple[bytes, Published, int] | None:
        stored = self._idempotency.get(scope)
        return None if stored is None or stored[2] + IDEMPOTENCY_KEPT_US <= self._now else stored

    def _own_id_hash(self, command: Publish, planned: dict[str, bytes]) -> bytes | None:
        if command.id is None:
            return None
        stored = self._by_id.get(command.id)
        known = planned.get(command.id) if stored is None else stored.hash
        if known is not None and known != command.hash:
            raise IdTaken(command.id)
        planned[command.id] = command.hash
        return known

    def _holds(self, command: Publish) -> bool:
        """Whether it stops at L: somebody else decides where it goes, or others of its object still wait for that."""
        if command.queue is not None:
            return False
        object = self._envelope(command).object
        policy = DEFAULT_OBJECT if object is None else self._objects.get(object, DEFAULT_OBJECT)
        return command.hold or policy.route == "spark" or self._count_logged(object) > 0

    def _count_logged(self, object: str | None) -> int:
        return sum(message.envelope.object == object for message in self._undecided.values())

    def _check_queues(self, command: Publish) -> None:
        if not command.create:
            for name in self._targets(command):
                if name not in self._named[Kind.QUEUE]:
                    raise QueueNotFound(name)

    def _check_room(self, command: Publish, load: dict[_Destination | str, list[int]]) -> None:
        """Where it goes is room for it, beside what the request brings already."""
        topics = command.envelope.topics
        for name in self._targets(command):
            queue = self._named[Kind.QUEUE].get(name)
            policy = DEFAULT if queue is None else queue.policy
            slots = slots_of(
                policy, topics_in_queue(topics, name), self._registered(Kind.QUEUE, name, topics)
            )
            self._check_load(queue or name, len(slots), command.size, load)
        for channel in self._subscribed(topics):
            self._check_load(channel, len(self._channel_slots(channel, topics)), command.size, load)

    def _check_load(
        self, place: _Destination | str, slots: int, size: int, load: dict[_Destination | str, list[int]]
    ) -> None:
        if isinstance(place, str):
            return
        held = [slot for slot in place.slots if slot.state in OPEN]
        more = load.setdefault(place, [0, 0])
        more[0] += slots
        more[1] += slots * size
        most, most_bytes = place.policy.max_messages, place.policy.max_bytes
        what = f"{place.kind.word} {place.name!r}"
        if most is not None and len(held) + more[0] > most:
            raise QueueFull(f"{what} holds {most} messages, its maxMessages")
        if most_bytes is not None and sum(s.message.size for s in held) + more[1] > most_bytes:
            raise QueueFull(f"{what} has no room for {size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (
            (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)
        )

    def _envelope(self, command: Publish) -> Envelope:
        if command.queue is not None:
            return command.envelope
        return with_object(command.envelope, self._infer_types)

    def _log_message(self, command: Publish) -> Published:
        scope = (command.envelope.producer, command.idempotency_key)
        if command.idempotency_key is not None and (stored := self._remembered(scope)):  # type: ignore[arg-type]
            return stored[1]
        if command.id is not None and (known := self._by_id.get(command.id)):
            return self._remember(command, Published(known.id, known.state, known.same_as))
        assert isinstance(command.body, bytes)
        held = self._holds(command)
        sequence = len(self._log) + 1
        salt = self._draw() & SALT_MASK
        message = _Message(
            command.id or make_id(sequence, salt, self._now),
            sequence,
            self._now,
            self._envelope(command),
            command.hash,
            command.size,
            command.priority,
            None if command.ttl_us is None else self._now + command.ttl_us,
            command.body,
            command.id,
            due_at=self._now + command.delay_us if command.delay_us else None,
            force=command.force,
            routed=not held,
        )
        self._messages[sequence] = self._by_id[message.id] = message
        self._event(message, None, None, L, envelope=message.envelope, hash=message.hash, size=message.size)
        if held:
            self._note_logged(message)
        else:
            self._settle_route(
                message, [Part(name, None) for name in self._targets(command)], command.content
            )
        return self._remember(command, Published(message.id, message.state, message.same_as))

    def _remember(self, command: Publish, published: Published) -> Published:
        if command.idempotency_key is not None:
            scope = (command.envelope.producer, command.idempotency_key)
            self._idempotency[scope] = (command.hash, published, self._now)
        return published

    def _note_logged(self, message: _Message) -> None:
        self._undecided[message.sequence] = message
        self._logged = min(message.sequence, self._logged or message.sequence)

    # ── unchanged? ──────────────────────────────────────────────────────────────────────────

    def _would_repeat(self, command: Publish, contents: dict[tuple[str, str], bytes]) -> bool:
        """Whether it will be unchanged, after those that came before it in the request."""
        envelope = self._envelope(command)
        assert isinstance(command.body, bytes)
        hash = self._content_hash(envelope, command.body, command.content)
        if hash is None:
            return False
        thing = (str(envelope.object), str(envelope.key))
        same = contents[thing] == hash if thing in contents else self._repeated(thing, hash) is not None
        if same and not command.force:
            return True
        contents[thing] = hash
        return False

    def _content_hash(self, envelope: Envelope, body: bytes, given: bytes) -> bytes | None:
        """None where nothing is compared."""
        if envelope.object is None or envelope.key is None:
            return None
        unchanged = self._objects.get(envelope.object, DEFAULT_OBJECT).unchanged
        return None if unchanged is None else given or content_hash(body, unchanged.ignore)

    def _repeated(self, thing: tuple[str, str], hash: bytes) -> _Content | None:
        """The last one of its thing, if it says the same and was not in vain."""
        last, unchanged = self._contents.get(thing), self._objects[thing[0]].unchanged
        if (
            last is None
            or unchanged is None
            or last.hash != hash
            or last.at + unchanged.window_us <= self._now
        ):
            return None
        message = self._messages.get(last.sequence)
        state = last.end if message is None else message.state
        return None if state in UNDELIVERED else last

    def _settle_route(self, message: _Message, parts: list[Part], content: bytes) -> None:
        """A logged message is unchanged, or goes where the parts say."""
        message.routed = True
        hash = None if message.body is None else self._content_hash(message.envelope, message.body, content)
        thing = message.thing
        if hash is not None and thing is not None:
            last = None if message.force else self._repeated(thing, hash)
            if last is not None:
                message.same_as, message.ended_at = last.id, self._now
                producer = message.envelope.producer or ANONYMOUS
                self._unchanged[thing[0], producer] = self._unchanged.get((thing[0], producer), 0) + 1
                self._event(message, None, L, U, same_as=last.id, duration_ms=self._age_ms(message))
                return
            self._contents[thing] = _Content(hash, message.id, message.sequence, self._now)
        self._deliver(message, parts)

    # ── where it goes ───────────────────────────────────────────────────────────────────────

    def _deliver(self, message: _Message, parts: list[Part]) -> None:
        topics = message.envelope.topics
        places: list[tuple[_Destination, Slots, bool]] = []
        for part in parts:
            queue = self._named[Kind.QUEUE].get(part.queue) or self._make(Kind.QUEUE, part.queue, DEFAULT)
            slots = part.slots
            if slots is None:
                registered = self._registered(Kind.QUEUE, queue.name, topics)
                slots = slots_of(queue.policy, topics_in_queue(topics, queue.name), registered)
            places.append((queue, slots, part.kick))
        in_queues = any(slots for _, slots, _ in places)
        for channel in self._subscribed(topics):
            if channel.start <= message.sequence:
                places.append((channel, self._channel_slots(channel, topics), False))
        for place, slots, kick in places:
            for number, named in enumerate(slots):
                self._route(message, place, number, named=named, kick=kick, duration_ms=self._age_ms(message))
        if not in_queues:
            message.ended_at = self._now
            self._event(message, None, L, X, duration_ms=self._age_ms(message))
        for place, slots, _ in places:
            if slots:
                self._note_latest(message, place)

    def _age_ms(self, message: _Message) -> int:
        return (self._now - message.created_at) // 1_000

    def _subscribed(self, topics: tuple[str, ...]) -> list[_Destination]:
        channels = self._named[Kind.CHANNEL].values()
        found = [c for c in channels if any(any_topic_matches(pattern, topics) for pattern in c.topics)]
        return sorted(found, key=lambda channel: channel.number)

    def _channel_slots(self, channel: _Destination, topics: tuple[str, ...]) -> Slots:
        registered = self._registered(Kind.CHANNEL, channel.name, topics)
        return slots_of(channel.policy, topics_in_channel(topics, channel.topics), registered)

    def _registered(self, kind: Kind, name: str, topics: tuple[str, ...]) -> list[str]:
        """Consumers of a destination that want a message of these topics."""
        return [
            known
            for known, info in sorted(self._consumers.items())
            if (info.consumer.kind, info.consumer.destination) == (kind, name) and info.consumer.wants(topics)
        ]

    def _route(
        self,
        message: _Message,
        queue: _Destination,
        number: int,
        *,
        named: str | None = None,
        kick: bool = False,
        reason: str | None = None,
        duration_ms: int = 0,
    ) -> None:
        expires_at = message.expires_at
        if expires_at is None and queue.policy.ttl_us is not None:
            expires_at = self._now + queue.policy.ttl_us
        delayed = reason is None and message.due_at is not None and message.due_at > self._now
        due_at = message.due_at if delayed else None
        slot = _Slot(message, queue, number, Q, self._now, due_at, expires_at, named, kick, reason=reason)
        slot.routed = named
        message.slots.append(slot)
        queue.slots.append(slot)
        self._event(message, slot, L, Q, reason=reason, duration_ms=duration_ms)

    def _note_latest(self, message: _Message, place: _Destination) -> None:
        """`latestOnly`: what waits there of older messages about the same thing is obsolete, or this one is."""
        thing = message.thing
        if not place.policy.latest_only or thing is None:
            return
        place.latest[thing] = max(message.sequence, place.latest.get(thing, 0))
        waiting = [slot for slot in place.slots if slot.state in WAITING and slot.message.thing == thing]
        for slot in sorted(waiting, key=lambda slot: (slot.message.sequence, slot.number)):
            self._let_obsolete(slot)

    def _let_obsolete(self, slot: _Slot) -> None:
        """What would wait although a newer message of its thing came, after its last redrive if there was one."""
        place, thing = slot.queue, slot.message.thing
        if not place.policy.latest_only or thing is None or slot.state not in WAITING:
            return
        if place.latest.get(thing, 0) > max(slot.message.sequence, slot.redriven):
            self._take(slot, Step((O,), Reason.OBSOLETE, None, slot.tries))

    def _make(self, kind: Kind, name: str, policy: Policy) -> _Destination:
        made = _Destination(kind, name, len(self._destinations) + 1, policy, self._now)
        self._destinations.append(made)
        self._named[kind][name] = made
        return made

    def _known(self, kind: Kind, name: str) -> _Destination:
        known = self._named[kind].get(name)
        if known is None:
            raise QueueNotFound(name) if kind is Kind.QUEUE else ChannelNotFound(name)
        return known

    def _decide(self, command: Decide) -> Published:
        message = self._by_id.get(command.id)
        if message is None:
            raise MessageNotFound(command.id)
        if self._undecided.pop(message.sequence, None) is None:
            return Published(message.id, message.state, message.same_as)
        if command.failure is not None:
            queue = self._named[Kind.QUEUE].get(DEFAULT_QUEUE) or self._make(
                Kind.QUEUE, DEFAULT_QUEUE, DEFAULT
            )
            reason = command.failure[-LONGEST_FAILURE:]
            slot = _Slot(message, queue, 0, E, self._now, None, None, reason=reason)
            message.slots.append(slot)
            queue.slots.append(slot)
            self._event(message, slot, L, E, reason=reason, duration_ms=self._age_ms(message))
        else:
            registered = {name: info.consumer for name, info in self._consumers.items()}
            parts = parts_of(command.route, message.envelope, registered, self._infer_types)
            self._settle_route(message, parts, command.content)
        return Published(message.id, message.state, message.same_as)

    # ── fetch, confirm ──────────────────────────────────────────────────────────────────────

    def _fetch(self, command: Fetch) -> list[Fetched]:
        queue = self._known(command.kind, command.queue)
        if queue.policy.counts_consumers and command.consumer == ANONYMOUS:
            raise ConsumerRequired(
                f"{queue.kind.word} {queue.name!r} counts its consumers (complete: {queue.policy.complete})"
            )
        fetched: list[Fetched] = []
        size = 0
        while len(fetched) < command.n:
            slot = self._next(queue, command)
            if slot is None:
                break
            size += slot.message.size
            if fetched and size > FETCH_BYTES:
                break
            fetched.append(self._hand_out(slot, command))
        return fetched

    def _next(self, queue: _Destination, command: Fetch) -> _Slot | None:
        fetchable = self._fetchable(queue)
        if command.topic is not None:
            pattern = command.topic
            fetchable = [
                slot
                for slot in fetchable[:TOPIC_SCAN]
                if any_topic_matches(pattern, slot.message.envelope.topics)
            ]
        return next((slot for slot in fetchable if _may_have(command.consumer, slot)), None)

    def _fetchable(self, queue: _Destination) -> list[_Slot]:
        """In the order they are handed out."""
        if queue.policy.paused or queue.deleted:
            return []
        waiting = [slot for slot in queue.slots if slot.state in WAITING and slot.due_at is None]
        if queue.policy.order == "key":
            waiting = [slot for slot in waiting if _heads_its_key(slot)]
        return sorted(waiting, key=lambda slot: slot.place)

    def _ready(self, queue: _Destination) -> int:
        return len(self._fetchable(queue))

    def _hand_out(self, slot: _Slot, command: Fetch) -> Fetched:
        policy, body = slot.queue.policy, slot.message.body or b""
        salt = self._draw()
        slot.attempt += 1
        slot.consumer = command.consumer
        until_at = self._now + (policy.lease_us if command.lease_us is None else command.lease_us)
        kicked = policy.kick or slot.kick
        offset = len(self._log) + 1
        slot.fetch = self._fetches[offset] = _Fetch(slot, salt, command.consumer, self._now)
        if kicked:
            slot.fetch.became = K
        self._take(slot, Step((F, K) if kicked else (F,), None, None if kicked else until_at, slot.tries + 1))
        message = slot.message
        return Fetched(
            message.id,
            make_receipt(offset, salt),
            slot.attempt,
            message.envelope,
            message.created_at,
            body,
            until_at,
        )

    def _confirm(self, command: Confirm) -> list[Settled]:
        queue = self._known(command.kind, command.queue)
        return [self._settle(receipt, queue, command) for receipt in command.receipts]

    def _settle(self, receipt: str, queue: _Destination, command: Confirm) -> Settled:
        fetch = self._valid(receipt, queue)
        if fetch is None:
            return Settled(receipt)
        slot = fetch.slot
        if fetch.became is not None:
            if fetch.outcome is command.outcome:
                return Settled(receipt, slot.message.id, fetch.became)
            return Settled(receipt)
        assert slot.consumer is not None
        step = settle(
            command.outcome,
            in_queue=queue.is_queue,
            named=slot.consumer != ANONYMOUS,
            tries=slot.tries,
            policy=queue.policy,
            reason=command.reason,
            delay_us=command.delay_us,
            now=self._now,
            draw=self._draw,
        )
        if step.path[0] is N:
            slot.refused.add(slot.consumer)
        fetch.outcome = command.outcome
        self._take(slot, step, confirmed=True)
        fetch.became = slot.state
        return Settled(receipt, slot.message.id, slot.state)

    def _valid(self, receipt: str, queue: _Destination | None) -> _Fetch | None:
        """The fetch of a receipt that is not stale, or that was settled by a confirm. A lease that is over does not
        make it stale; the next fetch does."""
        parsed = parse_receipt(receipt)
        fetch = self._fetches.get(parsed[0]) if parsed else None
        if fetch is None or parsed is None or fetch.salt != parsed[1]:
            return None
        if queue is not None and queue is not fetch.slot.queue:
            return None
        if fetch.became is None and (fetch.slot.fetch is not fetch or fetch.slot.state not in (F, R)):
            return None
        return fetch

    def _extend(self, command: Extend) -> list[Extended]:
        queue = self._known(command.kind, command.queue)
        until_at = self._now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        extended = []
        for receipt in command.receipts:
            fetch = self._valid(receipt, queue)
            if fetch is None or fetch.became is not None or fetch.slot.state is not F:
                extended.append(Extended(receipt))
            else:
                fetch.slot.due_at = until_at
                extended.append(Extended(receipt, until_at))
        return extended

    def _let_go(self, command: Release | Kick) -> list[Settled]:
        """What was fetched goes back, or is done without a confirm."""
        let_go = []
        for receipt in command.receipts:
            fetch = self._valid(receipt, None)
            if fetch is None or fetch.became is not None or fetch.slot.state is not F:
                let_go.append(Settled(receipt))
                continue
            slot = fetch.slot
            if isinstance(command, Kick):
                self._take(slot, Step((K,), None, None, slot.tries))
            else:
                self._take(slot, Step((Q,), Reason.RELEASED, None, slot.tries - 1))
            slot.fetch = None
            let_go.append(Settled(receipt, slot.message.id, slot.state))
        return let_go

    def _remove(self, command: Remove) -> bool:
        queue, message = self._named[command.kind].get(command.queue), self._by_id.get(command.id)
        done = False
        for slot in message.slots if message and queue else ():
            if slot.queue is queue and slot.state in OPEN:
                fetched = slot.state is F
                self._take(slot, Step((S,) if fetched else (C,), Reason.REMOVED, None, slot.tries))
                done = True
        return done

    # ── queues, channels, objects, consumers, spectators ────────────────────────────────────

    def _declare_queue(self, command: DeclareQueue) -> Declared:
        queue = self._named[Kind.QUEUE].get(command.name)
        if queue is None:
            self._make(Kind.QUEUE, command.name, command.policy or DEFAULT)
            return Declared(True)
        if command.policy is not None:
            queue.policy = command.policy
            self._touched.add(queue)
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        return self._delete(self._known(Kind.QUEUE, command.name), Filter(queue=command.name))

    def _declare_channel(self, command: DeclareChannel) -> Declared:
        head = len(self._log)
        start = head + 1
        if command.start is not None:
            start = max(1, min(command.start, start))
            if start < self._oldest:
                raise LogTrimmed(self._oldest)
        elif command.start_at is not None:
            start = self.offset_at(command.start_at)
        channel = self._named[Kind.CHANNEL].get(command.name)
        created = channel is None
        if channel is None:
            channel = self._make(Kind.CHANNEL, command.name, command.policy)
            channel.start = start
        channel.policy, channel.topics = command.policy, command.topics
        channel.start = min(channel.start, start)
        self._touched.add(channel)
        if start > head:
            return Declared(created)
        job = self._open_job(JobKind.BACKFILL, Filter(channel=command.name), 0, channel)
        job.cursor = start - 1
        return Declared(created, job.id)

    def _delete_channel(self, command: DeleteChannel) -> Job:
        return self._delete(self._known(Kind.CHANNEL, command.name), Filter(channel=command.name))

    def _delete(self, place: _Destination, filter: Filter) -> Job:
        del self._named[place.kind][place.name]
        place.deleted_at = self._now
        matched = sum(slot.state in OPEN for slot in place.slots)
        return _job_info(self._open_job(JobKind.DELETE, filter, matched, place))

    def _declare_object(self, command: DeclareObject) -> Declared:
        created = command.name not in self._objects
        self._objects[command.name] = command.policy
        self._object_changed(command.name)
        return Declared(created)

    def _delete_object(self, command: DeleteObject) -> bool:
        existed = self._objects.pop(command.name, None) is not None
        self._object_changed(command.name)
        for counted in [counted for counted in self._unchanged if counted[0] == command.name]:
            del self._unchanged[counted]
        return existed

    def _object_changed(self, name: str) -> None:
        policy = self._objects.get(name, DEFAULT_OBJECT)
        if policy.unchanged is None:
            self._contents = {thing: last for thing, last in self._contents.items() if thing[0] != name}
        if policy.route == "inline":
            for message in self._undecided.values():
                if message.envelope.object == name:
                    self._note_logged(message)

    def _declare_consumer(self, command: DeclareConsumer) -> Declared:
        self._known(command.consumer.kind, command.consumer.destination)
        known = self._consumers.get(command.name)
        created_at = self._now if known is None else known.created_at
        self._consumers[command.name] = ConsumerInfo(
            name=command.name, consumer=command.consumer, created_at=created_at
        )
        return Declared(known is None)

    def _set_spectator(self, command: SetSpectator) -> Declared:
        if not 0 <= command.offset <= len(self._log):
            raise RequestInvalid(
                f"no event has offset {command.offset}",
                f"the log ends at {len(self._log)}; 0 is before its beginning",
            )
        created = command.name not in self._spectators
        self._spectators[command.name] = (command.offset, self._now)
        return Declared(created)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def _start_job(self, command: StartJob) -> Job:
        job = self._open_job(command.kind, command.filter, command.matched, None)
        job.consumer, job.rate = command.consumer, command.rate
        return _job_info(job)

    def _open_job(self, kind: JobKind, filter: Filter, matched: int, queue: _Destination | None) -> _Job:
        id = f"{len(self._jobs) + 1}"
        newest = len(self._destinations)
        job = self._jobs[id] = _Job(id, kind, filter, len(self._log), newest, matched, self._now, queue)
        return job

    def _next_job(self) -> _Job | None:
        """The oldest that may go on now."""
        return next((j for j in self._jobs.values() if j.ended_at is None and j.next_at <= self._now), None)

    def _work(self, command: Work) -> bool:
        job = self._next_job()
        if job is None:
            return False
        limit = slice_of(command.limit, job.rate)
        steps = 0
        for message in sorted(self._messages.values(), key=lambda m: m.sequence):
            if not job.cursor < message.sequence <= job.until:
                continue
            steps += self._work_on(job, message)
            job.cursor = message.sequence
            if steps >= limit:
                break
        else:
            job.ended_at = self._now
        job.done += steps
        job.next_at = next_at(self._now, steps, job.rate)
        return self._next_job() is not None

    def _work_on(self, job: _Job, message: _Message) -> int:
        if job.kind is JobKind.BACKFILL:
            assert job.queue is not None
            return self._backfill(message, job.queue)
        chosen = [slot for slot in message.slots if self._job_takes(job, slot)]
        done = 0
        for slot in sorted(chosen, key=lambda slot: (slot.queue.number, slot.number)):
            if job.kind in (JobKind.REDRIVE, JobKind.REPLAY):
                done += self._redrive(slot, job)
            else:
                self._take(slot, Step((C,), _cancel_reason(job.kind, slot.queue.kind), None, slot.tries))
                done += 1
        return done

    def _job_takes(self, job: _Job, slot: _Slot) -> bool:
        if job.kind is JobKind.DELETE:
            return slot.queue is job.queue and slot.state in JOB_STATES[job.kind]
        again = job.kind in (JobKind.REDRIVE, JobKind.REPLAY)
        return (
            not slot.queue.deleted
            and slot.queue.number <= job.newest
            and slot.state in JOB_STATES[job.kind]
            and self._selects(job.filter, slot)
            # What has no body any more cannot be delivered again.
            and not (again and slot.message.body is None)
        )

    def _redrive(self, slot: _Slot, job: _Job) -> bool:
        """Back to Q; or, where the routing function had failed, back to L to be routed again. Not where the consumer that it
        is for could never have it."""
        reason = Reason.REPLAYED if job.kind is JobKind.REPLAY else Reason.REDRIVEN
        message = slot.message
        if message.routed:
            named = slot.routed if job.consumer is None else job.consumer
            if named is not None and any(
                _holds_it_off(other, named) or _waits_for(other, named) for other in _beside(slot)
            ):
                return False
            slot.named = named
            self._take(slot, Step((Q,), reason))
            return True
        self._event(message, slot, E, L, reason=reason, duration_ms=(self._now - slot.since_at) // 1_000)
        message.slots.remove(slot)
        slot.queue.slots.remove(slot)
        self._note_logged(message)
        return True

    def _backfill(self, message: _Message, channel: _Destination) -> int:
        """What a channel that begins in the past gets of a message: nothing twice, and nothing that is still in L, since that
        comes by itself."""
        if channel.deleted or message.body is None or not message.routed or message.same_as is not None:
            return 0
        topics = message.envelope.topics
        wanted = any(any_topic_matches(pattern, topics) for pattern in channel.topics)
        if not wanted or any(slot.queue is channel for slot in message.slots):
            return 0
        slots = self._channel_slots(channel, topics)
        for number, named in enumerate(slots):
            self._route(message, channel, number, named=named, reason=Reason.BACKFILLED)
        if slots:
            self._note_latest(message, channel)
        return len(slots)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def _tick(self, command: Tick) -> bool:
        """The due ones in the order of their moments, leases and delays before ttls."""
        due = sorted(
            (slot for slot in self._slots() if slot.state in OPEN and _is_due(slot.due_at, self._now)),
            key=lambda slot: (slot.due_at, slot.message.sequence, slot.queue.number, slot.number),
        )
        for slot in due[: command.limit]:
            if slot.state is F:
                self._take(slot, lease_over(tries=slot.tries, policy=slot.queue.policy))
            else:
                slot.due_at = None
                self._touched.add(slot.queue)
        expired = sorted(
            (slot for slot in self._slots() if slot.state in WAITING and _is_due(slot.expires_at, self._now)),
            key=lambda slot: (slot.expires_at, slot.message.sequence, slot.queue.number, slot.number),
        )
        for slot in expired[: command.limit]:
            self._take(slot, Step((T,), Reason.EXPIRED, None, slot.tries))
        return len(due) > command.limit or len(expired) > command.limit

    def _due(self) -> Iterator[int]:
        for slot in self._slots():
            if slot.state in OPEN and slot.due_at is not None:
                yield slot.due_at
            if slot.state in WAITING and slot.expires_at is not None:
                yield slot.expires_at
        yield from (
            job.next_at for job in self._jobs.values() if job.ended_at is None and job.next_at > self._now
        )

    def _reap(self, command: Reap) -> bool:
        for message in list(self._messages.values()):
            sealed = not self._lake or not self._keeps or message.sequence <= self._in_lake()
            if message.body is not None and sealed and self._outlived(message):
                message.body = None
        self._oldest = max(self._oldest, self._trim_to())
        self._fetches = {
            offset: fetch
            for offset, fetch in self._fetches.items()
            if offset >= self._oldest or (fetch.slot.fetch is fetch and fetch.slot.state is F)
        }
        for message in [
            m for m in self._messages.values() if m.body is None and m.last_offset < self._oldest
        ]:
            self._forget(message)
        old = [key for key, kept in self._idempotency.items() if kept[2] + IDEMPOTENCY_KEPT_US <= self._now]
        for key in old:
            del self._idempotency[key]
        for thing, last in list(self._contents.items()):
            unchanged = self._objects[thing[0]].unchanged
            if unchanged is None or last.at + unchanged.window_us <= self._now:
                del self._contents[thing]
        return False

    def _trim_to(self) -> int:
        """Up to here the log has been kept for long enough, and the lake has it; or, without one, every spectator has read it or
        had its time."""
        target = self.offset_at(self._now - self._log_keep_us)
        if self._lake:
            return min(target, self._in_lake() + 1)
        read = min((offset for offset, _ in self._spectators.values()), default=len(self._log)) + 1
        return min(target, max(read, self.offset_at(self._now - SPECTATORS_HOLD_US)))

    def _outlived(self, message: _Message) -> bool:
        """Everything about it has ended, none of it as a dead letter that could be redriven, for longer than its
        queues and channels keep."""
        if message.state is L:
            return False
        if not any(slot.queue.is_queue for slot in message.slots):
            assert message.ended_at is not None
            if message.ended_at + DEFAULT.keep_us > self._now:
                return False
        return all(
            slot.state in ENDED
            and (slot.state not in DEAD or slot.queue.deleted)
            and (not self._keeps or slot.since_at + slot.queue.policy.keep_us <= self._now)
            for slot in message.slots
        )

    def _forget(self, message: _Message) -> None:
        if message.thing in self._contents:
            last = self._contents[message.thing]
            if last.sequence == message.sequence:
                last.end = message.state
        del self._messages[message.sequence], self._by_id[message.id]
        for slot in message.slots:
            slot.queue.slots.remove(slot)
            self._counted.add(slot.queue)
        for place in self._destinations:
            if message.thing is not None and place.latest.get(message.thing) == message.sequence:
                del place.latest[message.thing]
        self._fetches = {offset: f for offset, f in self._fetches.items() if f.slot.message is not message}

    # ── the lake ────────────────────────────────────────────────────────────────────────────

    def _seal(self, command: Seal) -> None:
        if not 0 <= command.upto <= len(self._log):
            raise RequestInvalid(f"no event has offset {command.upto}", f"the log ends at {len(self._log)}")
        self._sealed = max(command.upto, self._sealed or 0)

    def _erase(self, command: ErasePayload) -> bool:
        message = self._by_id.get(command.id)
        sequence = command.sequence if message is None else message.sequence
        if sequence is None:
            raise MessageNotFound(command.id)
        if message is not None and message.state is L:
            raise StillLogged(command.id)
        if self._lake or self._sealed is not None:
            self._erasures.add(sequence)
        if message is None or message.body is None:
            return False
        message.body = None
        for slot in sorted(message.slots, key=lambda slot: (slot.queue.number, slot.number)):
            if slot.state in OPEN:
                self._take(slot, Step((C,), Reason.ERASED, None, slot.tries))
        return True

    # ── what every change goes through ──────────────────────────────────────────────────────

    def _take(self, slot: _Slot, step: Step, confirmed: bool = False) -> None:
        """One step of one slot, into the log and into its fields; `confirmed`: its consumer asked for it."""
        was_completed = slot.message.state is X
        redriven = slot.state in ENDED
        consumer = slot.consumer if confirmed or slot.state is F or F in step.path else None
        for state in step.path:
            slot.reason = step.reason
            self._event(
                slot.message,
                slot,
                slot.state,
                state,
                consumer=consumer,
                reason=step.reason,
                duration_ms=(self._now - slot.since_at) // 1_000,
            )
            slot.state, slot.since_at = state, self._now
        slot.due_at, slot.tries = step.due_at, step.tries
        if redriven:
            slot.tries, slot.expires_at, slot.fetch, slot.redriven = 0, None, None, len(self._log)
            slot.refused.clear()
        else:
            self._let_obsolete(slot)
        if not self._keeps and slot.state in ENDED - DEAD:
            slot.message.body = None
        if slot.state is E and slot.queue.policy.dead is not None:
            self._dead_letter(slot, slot.queue.policy.dead)
        if not was_completed and slot.message.state is X:
            self._event(slot.message, None, L, X, duration_ms=self._age_ms(slot.message))

    def _dead_letter(self, slot: _Slot, name: str) -> None:
        queue = self._named[Kind.QUEUE].get(name) or self._make(Kind.QUEUE, name, DEFAULT)
        if queue is slot.queue:
            return
        there = next(
            (other for other in slot.message.slots if other.queue is queue and other.number == 0), None
        )
        if there is None:
            self._route(slot.message, queue, 0, reason=Reason.DEAD_LETTER)
            self._note_latest(slot.message, queue)

    def _event(
        self, message: _Message, slot: _Slot | None, from_state: State | None, to_state: State, **more: Any
    ) -> None:
        if slot is not None:
            more |= {slot.queue.kind.word: slot.queue.name, "slot": slot.number, "attempt": slot.attempt}
            self._touched.add(slot.queue)
            self._counted.add(slot.queue)
        message.last_offset = len(self._log) + 1
        self._log.append(
            Event(
                offset=message.last_offset,
                at=self._now,
                message_id=message.id,
                sequence=message.sequence,
                from_state=from_state,
                to_state=to_state,
                **more,
            )
        )

    def _slots(self) -> Iterator[_Slot]:
        for message in self._messages.values():
            yield from message.slots

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def look(self) -> Applied | None:
        return None

    def stage(self, body: bytes) -> bytes | Staged:
        return body

    def unstage(self, body: Staged) -> bytes:
        raise PayloadReaped("the memory store stages nothing")

    def refusal(self) -> Exception | None:
        return None

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        known = self._named[kind].get(queue)
        return None if known is None else self._ready(known)

    def queue(self, name: str) -> QueueInfo | None:
        queue = self._named[Kind.QUEUE].get(name)
        return None if queue is None else QueueInfo(**self._figures(queue))

    def queues(self) -> list[QueueInfo]:
        return [info for name in sorted(self._named[Kind.QUEUE]) if (info := self.queue(name))]

    def channel(self, name: str) -> ChannelInfo | None:
        channel = self._named[Kind.CHANNEL].get(name)
        return None if channel is None else ChannelInfo(**self._figures(channel), topics=channel.topics)

    def channels(self) -> list[ChannelInfo]:
        return [info for name in sorted(self._named[Kind.CHANNEL]) if (info := self.channel(name))]

    def _figures(self, place: _Destination) -> dict[str, Any]:
        return {
            "name": place.name,
            "policy": place.policy,
            "created_at": place.created_at,
            "states": place.states(),
            "bytes": sum(slot.message.size for slot in place.slots if slot.state in OPEN),
            "ready": self._ready(place),
        }

    def object(self, name: str) -> ObjectInfo | None:
        if name not in self._objects:
            return None
        counts = {producer: n for (object, producer), n in self._unchanged.items() if object == name}
        return ObjectInfo(
            name=name, policy=self._objects[name], unchanged=counts, logged=self._count_logged(name)
        )

    def objects(self) -> list[ObjectInfo]:
        return [info for name in sorted(self._objects) if (info := self.object(name))]

    def consumer(self, name: str) -> ConsumerInfo | None:
        return self._consumers.get(name)

    def consumers(self) -> list[ConsumerInfo]:
        return [self._consumers[name] for name in sorted(self._consumers)]

    def spectator(self, name: str) -> SpectatorInfo | None:
        if name not in self._spectators:
            return None
        offset, at = self._spectators[name]
        return SpectatorInfo(name=name, offset=offset, lag=len(self._log) - offset, at=at)

    def spectators(self) -> list[SpectatorInfo]:
        return [info for name in sorted(self._spectators) if (info := self.spectator(name))]

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        if self._oldest > 1:
            kept = self._log[self._oldest - 1 :]
            oldest_at = kept[0].at if kept else self._now
            if at < oldest_at:
                raise LogTrimmed(self._oldest, oldest_at)
        there = [
            place
            for place in self._destinations
            if (place.kind, place.name) == (kind, name)
            and place.created_at <= at
            and (place.deleted_at is None or at < place.deleted_at)
        ]
        if not there:
            return None
        history = there[-1].history
        position = bisect_right(history, at, key=lambda entry: entry[0])
        states = history[position - 1][1] if position else {}
        return Depths(at=at, offset=self.offset_at(at + 1) - 1, states=dict(states))

    def undecided(self, after: int, limit: int) -> list[Undecided]:
        waiting = [message for message in self._undecided.values() if message.sequence > after]
        return [
            Undecided(
                id=message.id,
                sequence=message.sequence,
                envelope=message.envelope,
                created_at=message.created_at,
                size=message.size,
                body=message.body or b"",
            )
            for message in sorted(waiting, key=lambda m: m.sequence)[:limit]
        ]

    def bounds(self) -> tuple[int, int]:
        return self._oldest, len(self._log)

    def events(self, lo: int, hi: int) -> list[Event]:
        if lo < self._oldest:
            raise LogTrimmed(self._oldest)
        return self._log[lo - 1 : hi]

    def offset_at(self, at: int) -> int:
        later = (event.offset for event in self._log if event.offset >= self._oldest and event.at >= at)
        return next(later, len(self._log) + 1)

    def message(self, id: str) -> MessageInfo | None:
        message = self._by_id.get(id)
        if message is None:
            return None
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
            deliveries=_deliveries(message),
            journey=[event for event in self._log[self._oldest - 1 :] if event.sequence == message.sequence],
        )

    def body(self, id: str) -> bytes | Staged:
        message = self._by_id.get(id)
        if message is None:
            raise MessageNotFound(id)
        if message.body is None:
            raise PayloadReaped(f"the body of {id!r} is gone")
        return message.body

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        found: list[DeliveryInfo] = []
        for message in sorted(self._messages.values(), key=lambda m: m.sequence):
            if message.sequence <= after:
                continue
            if len(found) >= limit:
                return found, after
            found += _deliveries(message, lambda slot: self._selects(filter, slot))
            after = message.sequence
        return found, None

    def _selects(self, filter: Filter, slot: _Slot) -> bool:
        message, queue = slot.message, slot.queue
        if not selects_message(filter, message.envelope):
            return False
        if filter.consumer is not None and filter.consumer != (slot.consumer or slot.named):
            return False
        if bounds_fetches(filter):
            inside = any(
                fetch.slot is slot and fetch.consumer == filter.consumer and in_bounds(filter, fetch.at)
                for fetch in self._fetches.values()
            )
        else:
            inside = in_bounds(filter, message.created_at)
        return (
            inside
            and not (filter.existing and queue.deleted)
            and (filter.id is None or filter.id == message.id)
            and (filter.queue is None or (queue.is_queue and filter.queue == queue.name))
            and (filter.channel is None or (not queue.is_queue and filter.channel == queue.name))
            and (filter.states is None or slot.state in filter.states)
        )

    def job(self, id: str) -> Job | None:
        job = self._jobs.get(id)
        return None if job is None else _job_info(job)

    def stats(self) -> Stats:
        undecided = sum(message.state is L for message in self._messages.values())
        return Stats(oldest=self._oldest, head=len(self._log), disk_bytes=0, undecided=undecided)

    def id(self) -> str:
        return self._id

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        self._lake, self._lake_holds = on, holds

    def sealed(self) -> int | None:
        return (self._sealed or 0) if self._lake else None

    def _in_lake(self) -> int:
        sealed = self._sealed or 0
        return sealed if self._lake_holds is None else min(sealed, self._lake_holds)

    def erasures(self) -> list[int]:
        return sorted(self._erasures)

    def export_source(self) -> str | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


def _is_due(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _may_have(consumer: str, slot: _Slot) -> bool:
    """Not what is named for another, not what it refused, and never two slots of one message: where one is named for it,
    that one."""
    if slot.named is not None and slot.named != consumer:
        return False
    if consumer == ANONYMOUS:
        return True
    return consumer not in slot.refused and not any(
        _holds_it_off(other, consumer) or (slot.named is None and _waits_for(other, consumer))
        for other in _beside(slot)
    )


def _beside(slot: _Slot) -> list[_Slot]:
    return [other for other in slot.message.slots if other.queue is slot.queue and other is not slot]


def _holds_it_off(other: _Slot, consumer: str) -> bool:
    """Whether by this slot its consumer may have no other one of the message there. What waits for a retry is still its
    slot: until somebody else fetches it, a late confirm counts."""
    return consumer in other.refused or (other.consumer == consumer and other.state in (F, R, S, K, I, E))


def _waits_for(other: _Slot, consumer: str) -> bool:
    return other.named == consumer and other.state in OPEN


def _heads_its_key(slot: _Slot) -> bool:
    """In a queue ordered by key: nothing older of its key is open, and nothing of its key is out."""
    key = slot.message.envelope.key
    if key is None:
        return True
    return not any(
        other.message is not slot.message
        and other.message.envelope.key == key
        and (other.state is F or (other.state in OPEN and other.message.sequence < slot.message.sequence))
        for other in slot.queue.slots
    )


def _cancel_reason(kind: JobKind, place: Kind) -> Reason:
    if kind is JobKind.DELETE:
        return Reason.QUEUE_DELETED if place is Kind.QUEUE else Reason.CHANNEL_DELETED
    return Reason.PURGED if kind is JobKind.PURGE else Reason.CANCELLED


def _job_info(job: _Job) -> Job:
    return Job(
        id=job.id,
        kind=job.kind,
        matched=job.matched,
        done=job.done,
        started_at=job.started_at,
        ended_at=job.ended_at,
        consumer=job.consumer,
        rate=job.rate,
    )


def _deliveries(message: _Message, chosen: Callable[[_Slot], bool] = lambda slot: True) -> list[DeliveryInfo]:
    slots = sorted(message.slots, key=lambda slot: (slot.queue.number, slot.number))
    return [_delivery_info(slot) for slot in slots if chosen(slot)]


def _delivery_info(slot: _Slot) -> DeliveryInfo:
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
