"""The memory store: the executable model of what every store must do.

What commands do stands in `rules.py`; here are the rows it is done to: plain objects in dicts and lists, looked through from end
to end, so that what is asked of them can be read in one place. The other stores do the same with indexes and are checked against this
one step by step. It is also the store for trying things: nothing survives it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..commands import Batch, Command, Job, Publish, Staged, Upload
from ..consumers import Consumer
from ..delivery import OPEN, WAITING, F, L, State
from ..destinations import Kind
from ..errors import LogTrimmed, MessageNotFound, PayloadReaped
from ..filters import Filter
from ..instants import Clock, SteadyClock
from ..message import Entropy, system_entropy
from ..objects import DEFAULT_OBJECT, ObjectPolicy
from ..policy import DEFAULT, Policy
from ..store import (
    Applied,
    ChannelInfo,
    ConsumerInfo,
    DeliveryInfo,
    Depths,
    Event,
    Feature,
    Heard,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    Races,
    SpectatorInfo,
    Stats,
    Task,
    Tenure,
    Undecided,
)
from ..topics import any_topic_matches
from . import BATCH_KEPT_US, IDEMPOTENCY_KEPT_US, SPECTATORS_HOLD_US, UPLOAD_KEPT_US
from .rules import Rules, outlived, selects
from .things import (
    Content,
    Destination,
    Fetching,
    Message,
    OpenJob,
    Remembered,
    Scope,
    Sent,
    Slot,
    Thing,
    delivery_info,
    heads_its_key,
)


class MemoryRows:
    """Everything there is, in the order it came."""

    def __init__(self, log_keep_us: int, keeps: bool) -> None:
        self.now = 0
        self._log_keep_us, self._keeps = log_keep_us, keeps
        self.events: list[Event] = []
        self.first = 1
        #: those that exist, and every incarnation
        self.named: dict[Kind, dict[str, Destination]] = {Kind.QUEUE: {}, Kind.CHANNEL: {}}
        self.places: list[Destination] = []
        self.slots_at: dict[Destination, list[Slot]] = {}
        self.messages: dict[int, Message] = {}
        self.by_id: dict[str, Message] = {}
        self._bodies: dict[int, bytes] = {}
        #: those in L
        self.in_l: dict[int, Message] = {}
        self._fetchings: dict[int, Fetching] = {}
        self._remembered: dict[Scope, Remembered] = {}
        self.objects: dict[str, ObjectPolicy] = {}
        self._contents: dict[Thing, Content] = {}
        #: (object, producer) -> how many were unchanged
        self.unchanged: dict[tuple[str, str], int] = {}
        self._latest: dict[tuple[Destination, Thing], int] = {}
        self.consumers: dict[str, ConsumerInfo] = {}
        #: name -> (offset, when it was said)
        self.spectators: dict[str, tuple[int, int]] = {}
        self.jobs: list[OpenJob] = []
        self.kept: dict[str, Upload] = {}
        self.chunks: dict[str, bytes] = {}
        #: by (query, batch)
        self.batches: dict[tuple[str, int], Batch] = {}
        self._newest_batch = 0
        #: whether there is a lake, what it holds, and what it has to erase
        self.lake = False
        self.sealed: int | None = None
        self.lake_holds: int | None = None
        self.erasures: set[int] = set()
        #: (moment, deliveries in each state) after each group that changed them
        self.history: dict[Destination, list[tuple[int, dict[State, int]]]] = {}
        #: in this group: where something may have become ready, and where counts changed
        self.touched: set[Destination] = set()
        self._counted: set[Destination] = set()

    @property
    def head(self) -> int:
        return len(self.events)

    def begin(self, now: int) -> None:
        self.now = max(self.now, now)
        self.touched.clear()
        self._counted.clear()

    def end(self) -> None:
        for place in self._counted:
            self.history[place].append((self.now, self.states(place)))

    def log(self, event: Event, place: Destination | None) -> None:
        self.events.append(event)
        if place is not None:
            self.touched.add(place)
            self._counted.add(place)

    # ── names ───────────────────────────────────────────────────────────────────────────────

    def place(self, kind: Kind, name: str) -> Destination | None:
        return self.named[kind].get(name)

    def subscribed(self, topics: tuple[str, ...]) -> list[Destination]:
        channels = self.named[Kind.CHANNEL].values()
        found = [c for c in channels if any(any_topic_matches(pattern, topics) for pattern in c.topics)]
        return sorted(found, key=lambda channel: channel.number)

    def make(self, kind: Kind, name: str, policy: Policy) -> Destination:
        made = Destination(kind, name, len(self.places) + 1, policy, self.now)
        self.places.append(made)
        self.named[kind][name] = made
        self.slots_at[made] = []
        self.history[made] = []
        return made

    def changed(self, place: Destination) -> None:
        self.touched.add(place)

    def delete(self, place: Destination) -> None:
        del self.named[place.kind][place.name]

    def set_object(self, name: str, policy: ObjectPolicy | None) -> None:
        if policy is None:
            self.objects.pop(name, None)
            self.unchanged = {of: count for of, count in self.unchanged.items() if of[0] != name}
        else:
            self.objects[name] = policy
        if (policy or DEFAULT_OBJECT).unchanged is None:
            self._contents = {thing: last for thing, last in self._contents.items() if thing[0] != name}

    def set_consumer(self, name: str, consumer: Consumer | None, created_at: int) -> None:
        if consumer is None:
            self.consumers.pop(name, None)
        else:
            self.consumers[name] = ConsumerInfo(name=name, consumer=consumer, created_at=created_at)

    def set_spectator(self, name: str, offset: int | None) -> bool:
        known = self.spectators.pop(name, None) is not None
        if offset is not None:
            self.spectators[name] = (offset, self.now)
        return known

    # ── messages and their slots ────────────────────────────────────────────────────────────

    def message(self, id: str) -> Message | None:
        return self.by_id.get(id)

    def message_at(self, sequence: int) -> Message | None:
        return self.messages.get(sequence)

    def add(self, message: Message, body: bytes) -> None:
        self.messages[message.sequence] = self.by_id[message.id] = message
        self._bodies[message.sequence] = body

    def add_plain(self, command: Publish, places: Sequence[Sent], draw: Entropy) -> None:
        return None

    def body(self, message: Message) -> bytes | None:
        return self._bodies.get(message.sequence, b"")

    def drop_body(self, message: Message) -> None:
        message.kept = False
        del self._bodies[message.sequence]

    def add_slot(self, slot: Slot) -> None:
        slot.message.slots.append(slot)
        self.slots_at[slot.queue].append(slot)

    def remove_slot(self, slot: Slot) -> None:
        slot.message.slots.remove(slot)
        self.slots_at[slot.queue].remove(slot)

    def fetching(self, offset: int) -> Fetching | None:
        return self._fetchings.get(offset)

    def add_fetching(self, fetching: Fetching) -> None:
        self._fetchings[fetching.offset] = fetching

    def fetches_of(self, slot: Slot) -> Iterable[Fetching]:
        return (fetching for fetching in self._fetchings.values() if fetching.slot is slot)

    def held(self, place: Destination) -> tuple[int, int]:
        held = [slot for slot in self.slots_at[place] if slot.state in OPEN]
        return len(held), sum(slot.message.size for slot in held)

    def fetchable(self, place: Destination, consumer: str | None = None) -> Iterator[Slot]:
        there = self.slots_at[place]
        waiting = [slot for slot in there if slot.waits]
        if place.keyed:
            waiting = [slot for slot in waiting if heads_its_key(slot, there)]
        return iter(sorted(waiting, key=lambda slot: slot.place))

    def ready(self, place: Destination) -> int:
        return 0 if place.policy.paused or place.deleted else sum(1 for _ in self.fetchable(place))

    def states(self, place: Destination) -> dict[State, int]:
        states: dict[State, int] = {}
        for slot in self.slots_at[place]:
            states[slot.state] = states.get(slot.state, 0) + 1
        return states

    def waiting(self, place: Destination, thing: Thing) -> list[Slot]:
        return [
            slot for slot in self.slots_at[place] if slot.state in WAITING and slot.message.thing == thing
        ]

    def slots(self) -> Iterator[Slot]:
        for message in self.messages.values():
            yield from message.slots

    def due(self, limit: int) -> list[Slot]:
        due = [slot for slot in self.slots() if slot.open and _is_due(slot.due_at, self.now)]
        return sorted(due, key=lambda slot: (slot.due_at, *_where(slot)))[:limit]

    def expired(self, limit: int) -> list[Slot]:
        over = [s for s in self.slots() if s.state in WAITING and _is_due(s.expires_at, self.now)]
        return sorted(over, key=lambda slot: (slot.expires_at, *_where(slot)))[:limit]

    def roused(self, place: Destination) -> None:
        self.touched.add(place)

    def due_at(self) -> int | None:
        """When a Tick is needed next."""
        moments = [slot.due_at for slot in self.slots() if slot.open]
        moments += [slot.expires_at for slot in self.slots() if slot.state in WAITING]
        moments += [job.next_at for job in self.jobs if job.ended_at is None and job.next_at > self.now]
        return min((at for at in moments if at is not None), default=None)

    # ── what messages leave behind ──────────────────────────────────────────────────────────

    def undecided(self, message: Message) -> bool:
        return message.sequence in self.in_l

    def set_undecided(self, message: Message, waits: bool) -> None:
        if waits:
            self.in_l[message.sequence] = message
        else:
            del self.in_l[message.sequence]

    def undecided_of(self, object: str | None) -> list[int]:
        return [sequence for sequence, message in self.in_l.items() if message.envelope.object == object]

    def remembered(self, scope: Scope) -> Remembered | None:
        return self._remembered.get(scope)

    def remember(self, scope: Scope, remembered: Remembered) -> None:
        self._remembered[scope] = remembered

    def content(self, thing: Thing) -> Content | None:
        return self._contents.get(thing)

    def set_content(self, thing: Thing, content: Content) -> None:
        self._contents[thing] = content

    def count_unchanged(self, object: str, producer: str) -> None:
        self.unchanged[object, producer] = self.unchanged.get((object, producer), 0) + 1

    def latest(self, place: Destination, thing: Thing) -> int:
        return self._latest.get((place, thing), 0)

    def set_latest(self, place: Destination, thing: Thing, sequence: int) -> None:
        self._latest[place, thing] = sequence

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def newest_place(self) -> int:
        return len(self.places)

    def open_job(self, job: OpenJob) -> OpenJob:
        self.jobs.append(job)
        job.number = len(self.jobs)
        return job

    def next_job(self) -> OpenJob | None:
        return next((job for job in self.jobs if job.ended_at is None and job.next_at <= self.now), None)

    def messages_for(self, job: OpenJob) -> Iterator[Message]:
        messages = [m for m in self.messages.values() if job.cursor < m.sequence <= job.until]
        return iter(sorted(messages, key=lambda message: message.sequence))

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def uploads(self, ids: Sequence[str]) -> list[Upload | None]:
        return [self.kept.get(id) for id in ids]

    def add_upload(self, upload: Upload, body: bytes | Staged) -> None:
        assert isinstance(body, bytes)
        self.kept[upload.id], self.chunks[upload.id] = upload, body

    def uploads_of(self, number: int | None) -> list[Upload]:
        found = [upload for upload in self.kept.values() if upload.batch == number]
        return sorted(found, key=lambda upload: upload.position)

    def drop_upload(self, upload: Upload) -> None:
        del self.kept[upload.id], self.chunks[upload.id]

    def batch(self, query: str, batch: int) -> Batch | None:
        return self.batches.get((query, batch))

    def newest_batch(self) -> int:
        return self._newest_batch

    def add_batch(self, batch: Batch, uploads: Sequence[Upload]) -> None:
        self._newest_batch = batch.number
        self.batches[batch.query, batch.batch] = batch
        for position, upload in enumerate(uploads):
            self.kept[upload.id] = msgspec.structs.replace(upload, batch=batch.number, position=position)

    def move_batch(self, batch: Batch) -> None:
        self.batches[batch.query, batch.batch] = batch
        if batch.ended_at is not None:
            for upload in self.uploads_of(batch.number):
                self.drop_upload(upload)

    # ── the log and the lake ────────────────────────────────────────────────────────────────

    def oldest(self) -> int:
        return self.first

    def offset_at(self, at: int) -> int:
        later = (event.offset for event in self.events if event.offset >= self.first and event.at >= at)
        return next(later, self.head + 1)

    def seal(self, upto: int) -> None:
        self.sealed = max(upto, self.sealed or 0)

    def in_lake(self) -> int:
        sealed = self.sealed or 0
        return sealed if self.lake_holds is None else min(sealed, self.lake_holds)

    def add_erasure(self, sequence: int) -> None:
        if self.lake or self.sealed is not None:
            self.erasures.add(sequence)

    def erased(self, sequences: Iterable[int]) -> None:
        self.erasures.difference_update(sequences)

    def reap(self, limit: int) -> bool:
        for message in list(self.messages.values()):
            sealed = not self.lake or not self._keeps or message.sequence <= self.in_lake()
            if message.kept and sealed and outlived(message, self.now, self._keeps):
                self.drop_body(message)
        self.first = max(self.first, self._trim_to())
        self._fetchings = {
            offset: fetching
            for offset, fetching in self._fetchings.items()
            if offset >= self.first or (fetching.slot.fetch == offset and fetching.slot.state is F)
        }
        for message in [m for m in self.messages.values() if not m.kept and m.last_offset < self.first]:
            self._forget(message)
        for scope, remembered in list(self._remembered.items()):
            if remembered.at + IDEMPOTENCY_KEPT_US <= self.now:
                del self._remembered[scope]
        for upload in self.uploads_of(None):
            if upload.kept_at + UPLOAD_KEPT_US <= self.now:
                self.drop_upload(upload)
        for key, batch in list(self.batches.items()):
            if batch.ended_at is not None and batch.ended_at + BATCH_KEPT_US <= self.now:
                del self.batches[key]
        for thing, last in list(self._contents.items()):
            unchanged = self.objects[thing[0]].unchanged
            if unchanged is None or last.at + unchanged.window_us <= self.now:
                del self._contents[thing]
        return False

    def _trim_to(self) -> int:
        """Up to here the log has been kept for long enough, and the lake has it; or, without one, every spectator has read it or
        had its time."""
        target = self.offset_at(self.now - self._log_keep_us)
        if self.lake:
            return min(target, self.in_lake() + 1)
        read = min((offset for offset, _ in self.spectators.values()), default=self.head) + 1
        return min(target, max(read, self.offset_at(self.now - SPECTATORS_HOLD_US)))

    def _forget(self, message: Message) -> None:
        if message.thing in self._contents:
            last = self._contents[message.thing]
            if last.sequence == message.sequence:
                last.end = message.state
        del self.messages[message.sequence], self.by_id[message.id]
        for slot in message.slots:
            self.slots_at[slot.queue].remove(slot)
            self._counted.add(slot.queue)
        self._latest = {
            of: sequence
            for of, sequence in self._latest.items()
            if (of[1], sequence) != (message.thing, message.sequence)
        }
        self._fetchings = {
            offset: one for offset, one in self._fetchings.items() if one.slot.message is not message
        }


class MemoryStore:
    inline_bytes = 1 << 62
    threaded = shared = False
    lacks: frozenset[Feature] = frozenset()
    races: Races | None = None
    sync_seconds = 0.0

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
        self._rows = MemoryRows(log_keep_us, keeps)
        self._rules = Rules(self._rows, entropy or system_entropy(), infer_types, keeps)
        self._id = os.urandom(16).hex()

    def apply(self, commands: Sequence[Command]) -> Applied:
        rows = self._rows
        rows.begin(self.clock())
        results = self._rules.run(commands)
        rows.end()
        return Applied(
            results,
            self._became_ready(Kind.QUEUE),
            rows.due_at(),
            rows.next_job() is not None,
            self._became_ready(Kind.CHANNEL),
            self._rules.logged,
        )

    def _became_ready(self, kind: Kind) -> dict[str, int]:
        touched = [one for one in self._rows.touched if one.kind is kind and not one.deleted]
        return {one.name: count for one in touched if (count := self._rows.ready(one))}

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> bytes | Staged:
        return body

    def unstage(self, body: Staged) -> bytes:
        raise PayloadReaped("the memory store stages nothing")

    def stage_chunk(self, id: str, chunk: bytes) -> bytes | Staged:
        return chunk

    def refusal(self) -> Exception | None:
        return None

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        known = self._rows.named[kind].get(queue)
        return None if known is None else self._rows.ready(known)

    def queue(self, name: str) -> QueueInfo | None:
        queue = self._rows.named[Kind.QUEUE].get(name)
        return None if queue is None else QueueInfo(**self._figures(queue))

    def queues(self) -> list[QueueInfo]:
        return [info for name in sorted(self._rows.named[Kind.QUEUE]) if (info := self.queue(name))]

    def channel(self, name: str) -> ChannelInfo | None:
        channel = self._rows.named[Kind.CHANNEL].get(name)
        return None if channel is None else ChannelInfo(**self._figures(channel), topics=channel.topics)

    def channels(self) -> list[ChannelInfo]:
        return [info for name in sorted(self._rows.named[Kind.CHANNEL]) if (info := self.channel(name))]

    def _figures(self, place: Destination) -> dict[str, Any]:
        return {
            "name": place.name,
            "policy": place.policy,
            "created_at": place.created_at,
            "states": self._rows.states(place),
            "bytes": self._rows.held(place)[1],
            "ready": self._rows.ready(place),
        }

    def object(self, name: str) -> ObjectInfo | None:
        if name not in self._rows.objects:
            return None
        counts = {producer: n for (object, producer), n in self._rows.unchanged.items() if object == name}
        return ObjectInfo(
            name=name,
            policy=self._rows.objects[name],
            unchanged=counts,
            logged=len(self._rows.undecided_of(name)),
        )

    def objects(self) -> list[ObjectInfo]:
        return [info for name in sorted(self._rows.objects) if (info := self.object(name))]

    def consumer(self, name: str) -> ConsumerInfo | None:
        return self._rows.consumers.get(name)

    def consumers(self) -> list[ConsumerInfo]:
        return [self._rows.consumers[name] for name in sorted(self._rows.consumers)]

    def spectator(self, name: str) -> SpectatorInfo | None:
        if name not in self._rows.spectators:
            return None
        offset, at = self._rows.spectators[name]
        return SpectatorInfo(name=name, offset=offset, lag=self._rows.head - offset, at=at)

    def spectators(self) -> list[SpectatorInfo]:
        return [info for name in sorted(self._rows.spectators) if (info := self.spectator(name))]

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        if self._rows.first > 1:
            kept = self._rows.events[self._rows.first - 1 :]
            oldest_at = kept[0].at if kept else self._rows.now
            if at < oldest_at:
                raise LogTrimmed(self._rows.first, oldest_at)
        there = [
            place
            for place in self._rows.places
            if (place.kind, place.name) == (kind, name)
            and place.created_at <= at
            and (place.deleted_at is None or at < place.deleted_at)
        ]
        if not there:
            return None
        history = self._rows.history[there[-1]]
        position = bisect_right(history, at, key=lambda entry: entry[0])
        states = history[position - 1][1] if position else {}
        return Depths(at=at, offset=self.offset_at(at + 1) - 1, states=dict(states))

    def sparks(self) -> frozenset[str]:
        return frozenset(name for name, policy in self._rows.objects.items() if policy.route == "spark")

    def undecided(
        self, after: int, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Undecided]:
        waiting = [
            message
            for message in self._rows.in_l.values()
            if message.sequence > after
            and (only is None or message.envelope.object in only)
            and message.envelope.object not in but
        ]
        return [
            Undecided(
                id=message.id,
                sequence=message.sequence,
                envelope=message.envelope,
                created_at=message.created_at,
                size=message.size,
                body=self._rows.body(message) or b"",
            )
            for message in sorted(waiting, key=lambda m: m.sequence)[:limit]
        ]

    def bounds(self) -> tuple[int, int]:
        return self._rows.first, self._rows.head

    def events(self, lo: int, hi: int) -> list[Event]:
        if lo < self._rows.first:
            raise LogTrimmed(self._rows.first)
        return self._rows.events[lo - 1 : hi]

    def offset_at(self, at: int) -> int:
        return self._rows.offset_at(at)

    def message(self, id: str) -> MessageInfo | None:
        message = self._rows.by_id.get(id)
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
            journey=[
                event
                for event in self._rows.events[self._rows.first - 1 :]
                if event.sequence == message.sequence
            ],
        )

    def body(self, id: str) -> bytes | Staged:
        message = self._rows.by_id.get(id)
        if message is None:
            raise MessageNotFound(id)
        if not message.kept:
            raise PayloadReaped(f"the body of {id!r} is gone")
        return self._rows.body(message) or b""

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        found: list[DeliveryInfo] = []
        for message in sorted(self._rows.messages.values(), key=lambda m: m.sequence):
            if message.sequence <= after:
                continue
            if len(found) >= limit:
                return found, after
            found += _deliveries(message, lambda slot: selects(filter, slot, self._rows))
            after = message.sequence
        return found, None

    def job(self, id: str) -> Job | None:
        return next((job.info() for job in self._rows.jobs if str(job.number) == id), None)

    def batch(self, query: str, batch: int) -> Batch | None:
        return self._rows.batch(query, batch)

    def open_batches(self) -> list[Batch]:
        return [batch for batch in self._rows.batches.values() if batch.ended_at is None]

    def uploads(self, batch: int | None) -> list[Upload]:
        return self._rows.uploads_of(batch)

    def chunk(self, id: str) -> bytes | Staged:
        if id not in self._rows.chunks:
            raise PayloadReaped(f"the chunk of upload {id!r} is gone")
        return self._rows.chunks[id]

    def stats(self) -> Stats:
        undecided = sum(message.state is L for message in self._rows.messages.values())
        return Stats(oldest=self._rows.first, head=self._rows.head, disk_bytes=0, undecided=undecided)

    def id(self) -> str:
        return self._id

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        self._rows.lake, self._rows.lake_holds = on, holds

    def sealed(self) -> int | None:
        return (self._rows.sealed or 0) if self._rows.lake else None

    def erasures(self) -> list[int]:
        return sorted(self._rows.erasures)

    def export_source(self) -> str | None:
        return None

    def listen(self, heard: Callable[[Heard], None]) -> None:
        """Nobody else is here."""

    def awaited(self, on: bool) -> None:
        """Nobody else is here."""

    def owns(self, task: Task) -> bool:
        return True

    def tenure(self, task: Task) -> Tenure | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


def _is_due(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _where(slot: Slot) -> tuple[int, int, int]:
    return slot.message.sequence, slot.queue.number, slot.number


def _deliveries(message: Message, chosen: Callable[[Slot], bool] = lambda slot: True) -> list[DeliveryInfo]:
    return [delivery_info(slot) for slot in message.in_order() if chosen(slot)]
