"""The picture: what the log amounts to, in memory; made from its records and from nothing else.

Every broker on a tree has its own, reads what the others appended, and so comes to the same one. `absorb` is the only way that it
changes, for what this broker decided and for what it reads: so what is there after a restart is what was there before.

    waiting  a heap a queue, of what can be fetched now      due, expiring  heaps of moments
    keys     what is open of a key, in a queue               order          sequences, ascending

It is pure: it knows no file and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

import msgspec

from ...commands import Published
from ...delivery import DEAD, ENDED, OPEN, WAITING, F, K, N, O, Outcome, Q, State
from ...message import Envelope
from ...policy import Policy
from .log import Standing
from .records import (
    BodyGone,
    ConsumerNumbered,
    DelayOver,
    JobNoted,
    KeyRemembered,
    LeaseExtended,
    Logged,
    PolicyChanged,
    QueueDeleted,
    QueueMade,
    Record,
    SealedUpTo,
    SpectatorSet,
    Stepped,
    Trimmed,
    count_of,
)

#: (object, key)
Thing = tuple[str, str]


class Place(IntEnum):
    """Where a message's file lies."""

    QUEUE = 1
    DELAY = 2
    DEAD = 3
    REMOVE = 4
    NEW = 5


class Fetch(msgspec.Struct, gc=False):
    #: of its F
    offset: int
    salt: int
    consumer: str
    at: int
    #: how the consumer settled it, and what became of the message
    outcome: Outcome | None = None
    became: State | None = None


class Message(msgspec.Struct, kw_only=True):
    """A message and its one delivery."""

    id: str
    sequence: int
    #: of its queue
    number: int
    created_at: int
    envelope: Envelope
    hash: bytes
    size: int
    priority: int
    #: as it was published, and as it counts: a redrive takes it away
    first_expires_at: int | None
    expires_at: int | None
    own_id: bool
    #: its name in new/, where a power cut may bring it back
    staged: str | None
    state: State = Q
    since_at: int
    #: waiting: when it may be fetched; fetched: when the lease ends; None: at once, or never
    due_at: int | None
    attempt: int = 0
    tries: int = 0
    consumer: str | None = None
    reason: str | None = None
    #: the only one who may fetch it
    named: str | None = None
    #: the offset of its last redrive
    redriven: int = 0
    #: consumers that said not-interested
    refused: tuple[str, ...] = ()
    fetches: list[Fetch] = []
    #: whether the last fetch's receipt still counts
    held: bool = False
    #: of its events
    offsets: list[int] = []
    has_body: bool = True
    #: whether a fetch would find it
    ready: bool = False
    #: where its file is, which is where it belongs but for the time of a group
    place: Place = Place.QUEUE
    #: somebody took its file without a word
    lost: bool = False

    @property
    def thing(self) -> Thing | None:
        envelope = self.envelope
        return None if envelope.object is None or envelope.key is None else (envelope.object, envelope.key)

    @property
    def belongs(self) -> Place:
        if self.state in DEAD:
            return Place.DEAD if self.has_body else Place.REMOVE
        if self.state in ENDED:
            return Place.REMOVE
        return Place.QUEUE if self.state in WAITING and self.due_at is None else Place.DELAY


@dataclass(eq=False)
class Mates:
    """What is open of one key in a queue."""

    open: dict[int, Message] = field(default_factory=dict)
    #: those that somebody holds
    out: set[int] = field(default_factory=set)
    #: where the order is by key: the one that can be fetched
    head: Message | None = None


@dataclass(eq=False)
class Queue:
    name: str
    #: names this incarnation
    number: int
    policy: Policy
    created_at: int
    deleted_at: int | None = None
    #: with `latestOnly`: the newest message of each thing that came here
    latest: dict[Thing, int] = field(default_factory=dict)
    states: dict[State, int] = field(default_factory=dict)
    bytes: int = 0
    #: how many can be fetched, and (rank, sequence) of them, among others that no longer can
    ready: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    #: key -> what is open of it
    keys: dict[str, Mates] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return sum(self.states.get(state, 0) for state in OPEN)

    def rank(self, message: Message) -> int:
        return 0 if self.policy.order == "key" else message.priority


@dataclass(eq=False)
class Remembered:
    """An idempotency key's answer."""

    hash: bytes
    published: Published
    at: int


class Snapshot(msgspec.Struct, kw_only=True):
    """A picture as it is kept in a file."""

    store: str
    #: in the log: the picture is made of the frames before
    position: int
    head: int
    oldest: int
    at: int
    sealed: int | None
    #: name, number, policy, created_at, deleted_at, (object, key, sequence) of the latest
    queues: list[tuple[str, int, Policy, int, int | None, list[tuple[str, str, int]]]]
    messages: list[Message]
    #: producer, key, hash, answer, moment
    keys: list[tuple[str | None, str, bytes, Published, int]]
    jobs: list[JobNoted]
    spectators: dict[str, tuple[int, int]]
    consumers: dict[str, int]
    #: positions, first offsets and moments of the log's places
    places: tuple[list[int], list[int], list[int]]


class Picture:
    def __init__(self) -> None:
        self.head = 0
        self.oldest = 1
        #: of the last frame
        self.at = 0
        self.sealed: int | None = None
        #: those that exist by name, and every incarnation by number
        self.queues: dict[str, Queue] = {}
        self.numbered: dict[int, Queue] = {}
        self.messages: dict[int, Message] = {}
        self.by_id: dict[str, Message] = {}
        #: offset of an F -> whose it is
        self.fetched: dict[int, Message] = {}
        self.keys: dict[tuple[str | None, str], Remembered] = {}
        self.jobs: dict[str, JobNoted] = {}
        self.spectators: dict[str, tuple[int, int]] = {}
        #: everyone who ever fetched, numbered from 1 on
        self.consumers: dict[str, int] = {}
        self._order: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._expiring: list[tuple[int, int]] = []
        #: queues where something may have become ready, since somebody asked
        self.touched: set[Queue] = set()
        #: messages whose file may have to move
        self.moved: dict[int, Message] = {}
        self._absorbing: dict[type, Any] = {
            Logged: self._logged,
            Stepped: self._stepped,
            QueueMade: self._queue_made,
            PolicyChanged: self._policy_changed,
            QueueDeleted: self._queue_deleted,
            ConsumerNumbered: self._consumer_numbered,
            LeaseExtended: self._lease_extended,
            DelayOver: self._delay_over,
            BodyGone: self._body_gone,
            KeyRemembered: self._key_remembered,
            JobNoted: self._job_noted,
            SpectatorSet: self._spectator_set,
            SealedUpTo: self._sealed_up_to,
            Trimmed: self._trimmed,
        }

    @property
    def standing(self) -> Standing:
        return Standing(self.oldest, self.head, self.at, self.sealed)

    # ── records ─────────────────────────────────────────────────────────────────────────────

    def absorb(self, record: Record, at: int) -> None:
        self.at = at
        self._absorbing[type(record)](record)
        self.head += count_of(record)

    def _logged(self, record: Logged) -> None:
        sequence = self.head + 1
        message = Message(
            id=record.id,
            sequence=sequence,
            number=record.number,
            created_at=self.at,
            envelope=record.envelope,
            hash=record.hash,
            size=record.size,
            priority=record.priority,
            first_expires_at=record.ttl_at,
            expires_at=record.expires_at,
            own_id=record.own_id,
            staged=record.staged,
            since_at=self.at,
            due_at=record.due_at,
            reason=record.reason,
            offsets=[sequence, sequence + 1],
        )
        self.messages[sequence] = self.by_id[record.id] = message
        self._order.append(sequence)
        queue = self.numbered[record.number]
        queue.states[Q] = queue.states.get(Q, 0) + 1
        queue.bytes += record.size
        if queue.policy.latest_only and (thing := message.thing) is not None:
            queue.latest[thing] = max(sequence, queue.latest.get(thing, 0))
        if record.idempotency_key is not None:
            scope = (record.envelope.producer, record.idempotency_key)
            self.keys[scope] = Remembered(record.hash, Published(record.id, Q), self.at)
        message.place = message.belongs
        self._file(message, queue)

    def _stepped(self, record: Stepped) -> None:
        message = self.messages[record.sequence]
        queue = self.numbered[message.number]
        first, before = self.head + 1, message.offsets[-1]
        message.offsets.extend(range(first, first + count_of(record)))
        state = record.path[-1]
        if record.from_state in ENDED:
            message.expires_at, message.refused, message.held = None, (), False
            message.named, message.redriven = record.named, first
        if record.path[0] is F:
            message.attempt, message.consumer, message.held = record.attempt, record.consumer, True
            fetch = Fetch(first, record.salt or 0, record.consumer or "", self.at)
            message.fetches.append(fetch)
            self.fetched[first] = message
            if state is K:
                fetch.became = K
        elif record.outcome is not None:
            message.fetches[-1].outcome, message.fetches[-1].became = record.outcome, state
            if record.path[0] is N and record.consumer is not None:
                message.refused = (*message.refused, record.consumer)
        elif state is K or (record.from_state is F and state is Q):
            message.held = False  # given back, or handed over for good
        elif state is O and first == before + 1 and message.fetches:
            # What its consumer settled is obsolete at once: that is what became of it.
            fetch = message.fetches[-1]
            fetch.became = (
                O if fetch.outcome is not None and fetch.became is record.from_state else fetch.became
            )
        self._count(queue, message, state)
        message.state, message.since_at, message.reason = state, self.at, record.reason
        message.due_at, message.tries = record.due_at, record.tries
        if state in ENDED and state not in DEAD:
            message.has_body = False
            message.staged = message.staged if message.place is Place.NEW else None
        self._file(message, queue)

    def _count(self, queue: Queue, message: Message, state: State) -> None:
        queue.states[message.state] -= 1
        if not queue.states[message.state]:
            del queue.states[message.state]
        queue.states[state] = queue.states.get(state, 0) + 1
        queue.bytes += message.size * ((state in OPEN) - (message.state in OPEN))

    def _queue_made(self, record: QueueMade) -> None:
        queue = Queue(record.name, record.number, record.policy, self.at)
        self.queues[record.name] = self.numbered[record.number] = queue

    def _policy_changed(self, record: PolicyChanged) -> None:
        queue = self.queues[record.name]
        before, queue.policy = queue.policy, record.policy
        self.touched.add(queue)
        if before.order != record.policy.order:
            queue.ready, queue.waiting, queue.keys = 0, [], {}
            for message in self.messages.values():
                if message.number == queue.number and message.state in OPEN:
                    message.ready = False
                    self._file(message, queue)

    def _queue_deleted(self, record: QueueDeleted) -> None:
        self.queues.pop(record.name).deleted_at = self.at

    def _consumer_numbered(self, record: ConsumerNumbered) -> None:
        self.consumers[record.name] = record.number

    def _lease_extended(self, record: LeaseExtended) -> None:
        message = self.messages[record.sequence]
        message.due_at = record.due_at
        self._file(message, self.numbered[message.number])

    def _delay_over(self, record: DelayOver) -> None:
        message = self.messages[record.sequence]
        message.due_at = None
        self._file(message, self.numbered[message.number])

    def _body_gone(self, record: BodyGone) -> None:
        message = self.messages[record.sequence]
        message.has_body = False
        self.moved[message.sequence] = message
        if message.offsets[-1] < self.oldest:
            self._forget(message)

    def _key_remembered(self, record: KeyRemembered) -> None:
        answer = Published(record.id, record.state)
        self.keys[record.producer, record.key] = Remembered(record.hash, answer, self.at)

    def _job_noted(self, record: JobNoted) -> None:
        self.jobs[record.job.id] = record

    def _spectator_set(self, record: SpectatorSet) -> None:
        if record.offset is None:
            del self.spectators[record.name]
        else:
            self.spectators[record.name] = (record.offset, self.at)

    def _sealed_up_to(self, record: SealedUpTo) -> None:
        self.sealed = record.upto

    def _trimmed(self, record: Trimmed) -> None:
        self.oldest = record.oldest
        for message in [m for m in self.messages.values() if not m.has_body and m.offsets[-1] < self.oldest]:
            self._forget(message)
        for offset, message in [entry for entry in self.fetched.items() if entry[0] < self.oldest]:
            if not (message.held and message.state is F and message.fetches[-1].offset == offset):
                del self.fetched[offset]
                message.fetches = [fetch for fetch in message.fetches if fetch.offset != offset]
                message.held = message.held and bool(message.fetches)
        self._order = [sequence for sequence in self._order if sequence in self.messages]

    def _forget(self, message: Message) -> None:
        del self.messages[message.sequence], self.by_id[message.id]
        queue = self.numbered[message.number]
        queue.states[message.state] -= 1
        if not queue.states[message.state]:
            del queue.states[message.state]
        if (thing := message.thing) is not None and queue.latest.get(thing) == message.sequence:
            del queue.latest[thing]
        for fetch in message.fetches:
            self.fetched.pop(fetch.offset, None)

    # ── what can be fetched, and when ───────────────────────────────────────────────────────

    def _file(self, message: Message, queue: Queue) -> None:
        """Into the indexes, as it is now."""
        self.moved[message.sequence] = message
        self.touched.add(queue)
        if message.state in OPEN and message.due_at is not None:
            heappush(self._due, (message.due_at, message.sequence))
        if message.state in WAITING and message.expires_at is not None:
            heappush(self._expiring, (message.expires_at, message.sequence))
        key = message.envelope.key
        if key is not None:
            self._file_by_key(message, queue, key)
        if key is None or queue.policy.order != "key":
            self._set_ready(queue, message, _can_be_fetched(message))

    def _file_by_key(self, message: Message, queue: Queue, key: str) -> None:
        mates = queue.keys.setdefault(key, Mates())
        if message.state in OPEN:
            mates.open[message.sequence] = message
        else:
            mates.open.pop(message.sequence, None)
        (mates.out.add if message.state is F else mates.out.discard)(message.sequence)
        if queue.policy.order == "key":
            self._choose_head(queue, mates)
        if not mates.open:
            del queue.keys[key]

    def _choose_head(self, queue: Queue, mates: Mates) -> None:
        """Only the oldest, and only while none is out."""
        if mates.head is not None:
            self._set_ready(queue, mates.head, False)
            mates.head = None
        if mates.open and not mates.out:
            oldest = mates.open[min(mates.open)]
            if _can_be_fetched(oldest):
                mates.head = oldest
                self._set_ready(queue, oldest, True)

    def _set_ready(self, queue: Queue, message: Message, ready: bool) -> None:
        if ready is not message.ready:
            message.ready = ready
            queue.ready += 1 if ready else -1
            if ready:
                heappush(queue.waiting, (queue.rank(message), message.sequence))

    def lose(self, message: Message) -> None:
        """Its file is not where it belongs; it is looked for later."""
        message.lost = True
        self._file(message, self.numbered[message.number])

    def find_again(self, message: Message) -> None:
        message.lost = False
        self._file(message, self.numbered[message.number])

    def next_waiting(self, queue: Queue) -> Message | None:
        """The next one in line, taken out of it: what is not fetched must be put back."""
        while queue.waiting:
            entry = heappop(queue.waiting)
            while queue.waiting and queue.waiting[0] == entry:  # it was ready before, too
                heappop(queue.waiting)
            message = self.messages.get(entry[1])
            if message is not None and message.ready and message.number == queue.number:
                return message
        return None

    def put_back(self, queue: Queue, passed: list[Message]) -> None:
        for message in passed:
            if message.ready:
                heappush(queue.waiting, (queue.rank(message), message.sequence))

    def due(self, now: int) -> Message | None:
        """What is due by its lease or delay, the first of them."""
        top = self._top(self._due, lambda m, at: m.state in OPEN and m.due_at == at)
        return top if top is not None and top.due_at is not None and top.due_at <= now else None

    def expired(self, now: int) -> Message | None:
        """What its ttl has ended for."""
        top = self._top(self._expiring, lambda m, at: m.state in WAITING and m.expires_at == at)
        return top if top is not None and top.expires_at is not None and top.expires_at <= now else None

    def _top(self, heap: list[tuple[int, int]], holds: Any) -> Message | None:
        while heap:
            at, sequence = heap[0]
            message = self.messages.get(sequence)
            if message is not None and holds(message, at):
                return message
            heappop(heap)
        return None

    def due_at(self, now: int, moves: bool) -> int | None:
        """When something is due next; only of jobs, if somebody else `moves`."""
        moments = [
            noted.next_at
            for noted in self.jobs.values()
            if noted.job.ended_at is None and noted.next_at > now
        ]
        if not moves:
            return min(moments, default=None)
        if (message := self._top(self._due, lambda m, at: m.state in OPEN and m.due_at == at)) is not None:
            moments.append(message.due_at or 0)
        expiring = self._top(self._expiring, lambda m, at: m.state in WAITING and m.expires_at == at)
        if expiring is not None:
            moments.append(expiring.expires_at or 0)
        return min(moments, default=None)

    def next_job(self, now: int) -> JobNoted | None:
        """The oldest that may go on now."""
        open_ones = (noted for noted in self.jobs.values() if noted.job.ended_at is None)
        return next((noted for noted in open_ones if noted.next_at <= now), None)

    def after(self, sequence: int) -> Iterator[Message]:
        """Messages in log order, from beyond there on."""
        order = self._order
        for position in range(bisect_right(order, sequence), len(order)):
            message = self.messages.get(order[position])
            if message is not None:
                yield message

    def fetch_of(self, offset: int) -> tuple[Message, Fetch] | None:
        message = self.fetched.get(offset)
        if message is None:
            return None
        return message, next(fetch for fetch in message.fetches if fetch.offset == offset)

    # ── kept in a file ──────────────────────────────────────────────────────────────────────

    def snapshot(self, store: str, position: int, places: tuple[list[int], list[int], list[int]]) -> Snapshot:
        return Snapshot(
            store=store,
            position=position,
            head=self.head,
            oldest=self.oldest,
            at=self.at,
            sealed=self.sealed,
            queues=[
                (
                    queue.name,
                    queue.number,
                    queue.policy,
                    queue.created_at,
                    queue.deleted_at,
                    [(*thing, sequence) for thing, sequence in queue.latest.items()],
                )
                for queue in self.numbered.values()
            ],
            messages=list(self.messages.values()),
            keys=[(*scope, kept.hash, kept.published, kept.at) for scope, kept in self.keys.items()],
            jobs=list(self.jobs.values()),
            spectators=self.spectators,
            consumers=self.consumers,
            places=places,
        )

    @classmethod
    def of(cls, snapshot: Snapshot) -> Picture:
        picture = cls()
        picture.head, picture.oldest, picture.at = snapshot.head, snapshot.oldest, snapshot.at
        picture.sealed = snapshot.sealed
        for name, number, policy, created_at, deleted_at, latest in snapshot.queues:
            queue = Queue(name, number, policy, created_at, deleted_at)
            queue.latest = {(object, key): sequence for object, key, sequence in latest}
            picture.numbered[number] = queue
            if deleted_at is None:
                picture.queues[name] = queue
        for message in snapshot.messages:
            message.ready = message.lost = False
            picture.messages[message.sequence] = picture.by_id[message.id] = message
            picture.fetched.update((fetch.offset, message) for fetch in message.fetches)
            queue = picture.numbered[message.number]
            queue.states[message.state] = queue.states.get(message.state, 0) + 1
            if message.state in OPEN:
                queue.bytes += message.size
                picture._file(message, queue)
        picture._order = sorted(picture.messages)
        picture.keys = {
            (producer, key): Remembered(hash, published, at)
            for producer, key, hash, published, at in snapshot.keys
        }
        picture.jobs = {noted.job.id: noted for noted in snapshot.jobs}
        picture.spectators, picture.consumers = snapshot.spectators, snapshot.consumers
        picture.moved.clear()
        return picture


def _can_be_fetched(message: Message) -> bool:
    return message.state in WAITING and message.due_at is None and not message.lost
