"""A group's rows: read and locked beforehand, decided on in memory, written at the end.

    prepare(commands)   latches (keys) ─▶ messages ─▶ their slots, each in order     what the commands name
    the rules           ask and tell; what they need besides is read one by one       fetches: skip what others hold
    write               log_head: the last lock, and with it the numbers ─▶ set statements ─▶ COMMIT, at once

Offsets are known only with the last lock, so that they are dense and in the order of the commits. Until then a group counts on from
the head as it was when it began; `writing.py` moves its numbers on by as much as others were quicker. Those numbers may be others' by
then: a group that reads one runs again, and a fetch leaves messages alone that are younger than its group.

What must not happen twice at a time hangs on a key: an idempotency key, an own id, a thing that is compared, an order by key, a
limit. A key is locked by the row of `latches` that its hash names, whether rows of its own exist or not. Whoever changes a
slot holds its message's row and the slot's; a fetch of a plain slot holds the slot's alone, and takes what it gets at once.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...commands import (
    JOB_STATES,
    Act,
    Batch,
    Command,
    Confirm,
    Decide,
    EnterRows,
    ErasePayload,
    Extend,
    Fetch,
    JobKind,
    Kick,
    Publish,
    Published,
    PublishMany,
    Release,
    Remove,
    Staged,
    Upload,
)
from ...consumers import Consumer
from ...delivery import OPEN, WAITING, L, State
from ...destinations import Kind
from ...message import SALT_MASK, Entropy, Envelope, parse_receipt, payload_hash
from ...names import ANONYMOUS
from ...objects import DEFAULT_OBJECT, ObjectPolicy
from ...policy import Policy
from ...routing import with_object
from ...store import ConsumerInfo, Event
from .. import FETCH_BYTES
from ..things import (
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
    heads_its_key,
)
from . import batches
from .columns import bigints
from .connecting import begin
from .loading import (
    FETCH,
    JOB,
    STATE,
    Asked,
    ask,
    ask_locked,
    fetching_of,
    job_of,
    loaded,
    send,
    sequences_of,
)
from .marks import PRIORITIES, READY, SINCE_SCHEMA, Marks
from .names import Db, Names
from .plain import Kind as PlainKind
from .plain import Plain, Turn
from .recent import Recent

#: rows of `latches`
LATCHES = 256
#: kinds of plain messages that are written as columns
MOST_KINDS = 8
#: offsets that one statement looks through for a job's messages
WINDOW = 50_000
#: what a fetch looks at when the first rows were not for it; messages of a job that are looked at together
PAGE = 100

#: commands that name what they are about by receipts, and by nothing else
_NAME_RECEIPTS = frozenset({Confirm, Extend, Release, Kick})

LATCH = "select 1 from latches where number = any(%s) order by number for update"

_encode = msgspec.json.Encoder().encode
_FETCHES = f'select {FETCH} from fetches where "offset" = any(%b::bigint[])'
_BODIES = "select sequence, body from payloads where sequence = any(%b::bigint[])"


class Overtaken(Exception):
    """Others committed while this group was at work, and it needs what they did: it runs again, from the head as it is then."""


class Head(NamedTuple):
    """`log_head`, as it was when the group began."""

    next: int
    at: int
    version: int
    oldest: int
    sealed: int | None
    undecided: int
    turn: int
    #: of the last depths that were kept
    snapshot_at: int
    snapshot_next: int

    @classmethod
    def ask(cls, db: Db) -> Db:
        return send(db, f"select {', '.join(cls._fields)} from log_head")

    @classmethod
    def read(cls, asked: Db) -> Head:
        row = asked.fetchone()
        assert row is not None
        return cls(*row)


class Keeping(NamedTuple):
    """What reaping goes by."""

    log_keep_us: int
    lake: bool
    lake_holds: int | None


#: a slot, what it was, None: it is new; what it is, None: it is gone
Change = tuple[Slot, tuple[Any, ...] | None, tuple[Any, ...] | None]


class _Front:
    """How far a place was looked through for fetchable slots."""

    def __init__(self, bound: tuple[int, int, int] = (-1, 0, 0), exhausted: bool = False) -> None:
        self.bound, self.exhausted = bound, exhausted
        #: for one consumer: of each priority that has something for it, where that begins
        self.begins: list[tuple[int, int]] | None = None

    @property
    def begun(self) -> bool:
        return self.exhausted or self.bound[0] >= 0


class GroupRows:
    def __init__(
        self,
        db: Db,
        names: Names,
        head: Head,
        now: int,
        keeping: Keeping,
        reap: Callable[[GroupRows, int], bool],
        marks: Marks,
        recent: Recent | None = None,
    ) -> None:
        """`recent`: it relies on nobody else being there, and locks what it must together with the last lock."""
        self._reap, self._marks, self._recent = reap, marks, recent
        self.db, self.names, self.began, self.now, self.keeping = db, names, head, now, keeping
        #: the last offset before this group, as far as it knows
        self.base = head.next - 1
        #: events so far; those of plain messages are not in the list
        self._logged = 0
        self.events: list[tuple[Event, Destination | None]] = []
        self.plain = Plain(now)
        self.messages: dict[int, Message] = {}
        #: nobody else changes them until this group has ended; one that is alone locks them, and `to_latch`, with the last lock
        self._locked: set[int] = set()
        self.to_latch: set[int] = set()
        self._ids: dict[str, int | None] = {}
        self.slots: dict[tuple[int, int, int], Slot] = {}
        self._at: defaultdict[Destination, list[tuple[tuple[int, int, int], int, Slot]]] = defaultdict(list)
        #: slots that nobody else can change until this group has ended
        self._mine: set[Slot] = set()
        #: in each place, those before this one cannot be fetched
        self._from: dict[Destination, int] = {}
        self._fronts: dict[tuple[Destination, str | None], _Front] = {}
        self._wanted: dict[tuple[Kind, str], int] = {}
        self._rekeyed: defaultdict[Destination, set[str]] = defaultdict(set)
        #: what rows were, to be compared with what they are in the end
        self.slot_was: dict[Slot, tuple[Any, ...]] = {}
        self.message_was: dict[Message, tuple[Any, ...]] = {}
        self.fetching_was: dict[Fetching, tuple[Any, ...]] = {}
        self.new_messages: list[Message] = []
        self.removed_slots: list[Slot] = []
        self.bodies: dict[int, bytes | None] = {}
        #: by the object's identity: a message and its L say the same
        self._encoded: dict[int, str] = {}
        self.dropped_bodies: list[int] = []
        self.fetchings: dict[int, Fetching | None] = {}
        #: sequences of those that wait for a decision, of what was loaded
        self.waits: set[int] = set()
        self._undecided_of: dict[str | None, list[int]] = {}
        self._remembered: dict[Scope, Remembered | None] = {}
        self.new_remembered: dict[Scope, Remembered] = {}
        self._contents: dict[Thing, Content | None] = {}
        self.new_contents: dict[Thing, Content] = {}
        self._latest: dict[tuple[Destination, Thing], int] = {}
        self.new_latest: dict[tuple[Destination, Thing], int] = {}
        self.unchanged: dict[tuple[str, str], int] = {}
        self.jobs: dict[int, OpenJob] = {}
        self.job_was: dict[int, tuple[Any, ...]] = {}
        #: uploads or batches were written
        self.batched = False
        #: (destination, state) -> by how much its count changed; bytes beside
        self.counted: defaultdict[tuple[Destination, State], int] = defaultdict(int)
        self.bytes: defaultdict[Destination, int] = defaultdict(int)
        self.touched: set[Destination] = set()
        #: names
        self.renamed = False
        self.saved_places: set[Destination] = set()
        self.reordered: set[Destination] = set()
        self.saved_objects: dict[str, ObjectPolicy | None] = {}
        self.saved_consumers: dict[str, ConsumerInfo | None] = {}
        self.spectators: dict[str, int | None] = {}
        #: the log and the lake
        self.new_oldest: int | None = None
        self.forgotten = self.reaped = False
        self.new_sealed: int | None = None
        self.new_erasures: set[int] = set()
        self.done_erasures: set[int] = set()

    @property
    def alone(self) -> bool:
        return self._recent is not None

    def to_lock(self) -> list[int]:
        """Messages, by one that is alone."""
        return sorted(sequence for sequence in self._locked if sequence <= self.base)

    # ── read beforehand ─────────────────────────────────────────────────────────────────────

    def prepare(
        self, commands: Sequence[Command], receipts: set[int], held: Iterable[tuple[int, int]]
    ) -> None:
        """Everything that the commands name, in a few statements, locked in order. `held`: sequence and destination of the receipts."""
        ids: set[str] = set()
        own_ids: set[str] = set()
        #: of which some may well not exist: then nothing is asked for them again
        many: set[str] = set()
        publishes: list[Publish] = []
        for command in commands:
            if type(command) in _NAME_RECEIPTS:
                continue
            if isinstance(command, Publish):
                publishes.append(command)
            elif isinstance(command, Fetch):
                wanted = (command.kind, command.queue)
                self._wanted[wanted] = self._wanted.get(wanted, 0) + command.n
            elif isinstance(command, PublishMany | EnterRows):
                publishes += command.messages
            elif isinstance(command, Remove | Decide | ErasePayload):
                ids.add(command.id)
            elif isinstance(command, Act):
                many |= {chosen.id for chosen in command.chosen}
        keys: set[str] = set()
        scopes: set[Scope] = set()
        things: set[Thing] = set()
        for publish in publishes:
            if publish.idempotency_key is not None:
                scopes.add((publish.envelope.producer, publish.idempotency_key))
                keys.add(f"i {publish.envelope.producer} {publish.idempotency_key}")
            if publish.id is not None:
                own_ids.add(publish.id)
                keys.add(f"o {publish.id}")
            if publish.envelope.key is not None:
                thing = self._thing_of(publish)
                if thing is not None:
                    things.add(thing)
        keyed = self.names.keyed
        for thing in things:
            if keyed or self._compares(thing):
                keys.add(f"k {thing[1]}")
        if keyed:
            keys |= {f"k {p.envelope.key}" for p in publishes if p.envelope.key is not None}
        if publishes:
            keys |= {f"p {place.number}" for place in self.names.limited}
        places: set[int] = set()
        sequences: set[int] = set()
        for sequence, place in held:
            sequences.add(sequence)
            places.add(place)
        named = sequences_of(self.db, ids | many)
        self._obtain(sequences | set(named.values()), keys, places | self._all_places(named), receipts)
        self._ids |= dict.fromkeys(many - own_ids) | named
        if own_ids:
            self._find_ids(own_ids)
        self._load_remembered(scopes)
        self._load_contents({thing for thing in things if self._compares(thing)})

    def _all_places(self, named: dict[str, int]) -> set[int]:
        return set(self.names.places) if named else set()

    def _thing_of(self, publish: Publish) -> Thing | None:
        envelope = publish.envelope if publish.queue is not None else with_object(publish.envelope)
        return None if envelope.object is None or envelope.key is None else (envelope.object, envelope.key)

    def _compares(self, thing: Thing) -> bool:
        return self.objects.get(thing[0], DEFAULT_OBJECT).unchanged is not None

    def _obtain(
        self,
        sequences: Iterable[int],
        keys: Iterable[str] = (),
        places: set[int] | None = None,
        receipts: Iterable[int] = (),
    ) -> None:
        """Lock messages, and their slots in these places or everywhere; then read them as they are, and these fetches of them."""
        wanted = sorted(set(sequences) - self._locked)
        latches = set(keys)
        if self._recent is not None:
            self.to_latch |= set(map(_latch_of, latches))
            self._locked |= set(wanted)
            self._load(wanted)
            self._load_fetchings(receipts)
            return
        if wanted and self.names.keyed:
            self.db.execute(
                "select distinct key from messages where sequence = any(%s) and key is not null", (wanted,)
            )
            latches |= {f"k {key}" for (key,) in self.db.fetchall()}
        offsets = [offset for offset in receipts if offset not in self.fetchings]
        if not (latches or wanted or offsets):
            return
        with self.db.connection.pipeline():
            begin(self.db.connection)
            if latches:
                numbers = sorted({_latch_of(key) for key in latches})
                send(self.db, LATCH, (numbers,))
            asked = ask_locked(self.db, wanted, places) if wanted else None
            fetches = send(self.db, _FETCHES, (bigints(offsets),)) if offsets else None
        if asked is not None:
            self._locked |= set(wanted)
            kept = {_key(slot): slot for sequence in wanted for slot in self._unload(sequence)}
            self._take_in(asked, kept)
            for sequence in wanted:
                message = self.messages.get(sequence)
                for slot in message.slots if message is not None else ():
                    if places is None or slot.queue.number in places:
                        self._mine.add(slot)
        if fetches is not None:
            self._take_fetchings(offsets, fetches)

    def _unload(self, sequence: int) -> list[Slot]:
        """What was read without a lock may be outdated; not so its slots that a fetch has locked, and perhaps changed: those."""
        message = self.messages.pop(sequence, None)
        if message is None:
            return []
        mine = [slot for slot in message.slots if slot in self._mine]
        for slot in message.slots:
            if slot in self._mine:
                continue
            del self.slots[_key(slot)], self.slot_was[slot]
            line = self._at[slot.queue]
            line[:] = [entry for entry in line if entry[2] is not slot]
        self.waits.discard(sequence)
        return mine

    def _load(self, sequences: Iterable[int], kept: Mapping[tuple[int, int, int], Slot] = {}) -> None:
        wanted = self._recall(sequence for sequence in sequences if sequence not in self.messages)
        if wanted:
            with self.db.connection.pipeline():
                asked = ask(self.db, wanted)
            self._take_in(asked, kept)

    def _recall(self, sequences: Iterable[int]) -> list[int]:
        """What recent groups left of these; the others must be read."""
        left = []
        for sequence in sequences:
            kept = None if self._recent is None else self._recent.take(sequence)
            if kept is None:
                left.append(sequence)
                continue
            message, body = kept
            if body is not None:
                self.bodies[sequence] = body
            self._take_message(message)
        return left

    def _known(self, numbers: Iterable[int | None]) -> None:
        """What was read is older than the head that this group began with. Newer numbers cannot be told from its own, which are not
        final yet."""
        for number in numbers:
            if number is not None and number > self.base:
                raise Overtaken("others committed meanwhile")

    def _found(self) -> list[int]:
        """The sequences that a query found."""
        found = [sequence for (sequence,) in self.db.fetchall()]
        self._known(found)
        return found

    def _take_in(self, asked: Asked, kept: Mapping[tuple[int, int, int], Slot] = {}) -> None:
        """`kept`: slots that are here already, and stay as they are."""
        messages, undecided = loaded(asked, self.names.places)
        for message in messages:
            self._known([message.sequence])
            for slot in message.slots:
                self._known((slot.fetch, slot.redriven))
            if message in undecided:
                self.waits.add(message.sequence)
            self._take_message(message, kept)

    def _take_message(self, message: Message, kept: Mapping[tuple[int, int, int], Slot] = {}) -> None:
        self.messages[message.sequence] = message
        self._ids[message.id] = message.sequence
        self.message_was[message] = self.message_row(message)
        for slot in message.slots:
            if _key(slot) not in kept:
                self._know(slot)
                self.slot_was[slot] = slot_row(slot)
        if kept:
            message.slots = [kept.get(_key(slot), slot) for slot in message.slots]
            for slot in message.slots:
                slot.message = message
        if self._recent is not None:
            self._mine.update(message.slots)

    def _know(self, slot: Slot) -> None:
        self.slots[_key(slot)] = slot
        insort(self._at[slot.queue], (slot.place, id(slot), slot))
        self._from[slot.queue] = 0

    def message_row(self, message: Message) -> tuple[Any, ...]:
        """What can change of a message."""
        undecided = message.sequence in self.waits
        return message.kept, message.routed, undecided, message.same_as, message.ended_at

    # ── numbers and names ───────────────────────────────────────────────────────────────────

    @property
    def head(self) -> int:
        return self.base + self._logged

    @property
    def consumers(self) -> dict[str, ConsumerInfo]:
        return self.names.consumers

    @property
    def objects(self) -> dict[str, ObjectPolicy]:
        return self.names.objects

    def log(self, event: Event, place: Destination | None) -> None:
        self._logged += 1
        self._take_event(event, place)

    def _take_event(self, event: Event, place: Destination | None) -> None:
        self.events.append((event, place))
        if place is None:
            return
        message = self.messages[event.sequence]
        before, after = event.from_state, event.to_state
        if before is not L and before is not None:
            self.counted[place, before] -= 1
        if after is not L:
            self.counted[place, after] += 1
        self.bytes[place] += message.size * ((after in OPEN) - (before in OPEN))
        self.touched.add(place)
        if after in WAITING:
            self._from[place] = 0
        if place.keyed and message.envelope.key is not None:
            self._rekeyed[place].add(message.envelope.key)

    def place(self, kind: Kind, name: str) -> Destination | None:
        return self.names.named[kind].get(name)

    def subscribed(self, topics: tuple[str, ...]) -> list[Destination]:
        return self.names.subscribed(topics)

    def make(self, kind: Kind, name: str, policy: Policy) -> Destination:
        made = Destination(kind, name, self.newest_place() + 1, policy, self.now)
        self.names.add(made)
        self.renamed = True
        self.saved_places.add(made)
        return made

    def changed(self, place: Destination) -> None:
        self.names.forget()
        self.renamed = True
        self.saved_places.add(place)
        self.reordered.add(place)
        self.touched.add(place)

    def delete(self, place: Destination) -> None:
        del self.names.named[place.kind][place.name]
        self.names.forget()
        self.renamed = True
        self.saved_places.add(place)

    def set_object(self, name: str, policy: ObjectPolicy | None) -> None:
        if policy is None:
            self.names.objects.pop(name, None)
        else:
            self.names.objects[name] = policy
        self.saved_objects[name] = policy
        self.renamed = True

    def set_consumer(self, name: str, consumer: Consumer | None, created_at: int) -> None:
        if consumer is None:
            self.names.consumers.pop(name, None)
        else:
            info = ConsumerInfo(name=name, consumer=consumer, created_at=created_at)
            self.names.consumers[name] = info
        self.saved_consumers[name] = self.names.consumers.get(name)
        self.renamed = True

    def set_spectator(self, name: str, offset: int | None) -> bool:
        self.db.execute("select 1 from spectators where name = %s", (name,))
        known = self.db.fetchone() is not None
        if name in self.spectators:
            known = self.spectators[name] is not None
        self.spectators[name] = offset
        return known

    # ── messages and their slots ────────────────────────────────────────────────────────────

    def message(self, id: str) -> Message | None:
        if id not in self._ids:
            self._find_ids([id])
        sequence = self._ids[id]
        message = None if sequence is None else self.message_at(sequence)
        return message if message is not None and message.id == id else None

    def _find_ids(self, ids: Iterable[str]) -> None:
        wanted = [id for id in ids if id not in self._ids]
        found = sequences_of(self.db, wanted)
        for id in wanted:
            self._ids[id] = found.get(id)
        self._load(found.values())

    def message_at(self, sequence: int) -> Message | None:
        if sequence not in self.messages and sequence <= self.base and sequence not in self._locked:
            self._load([sequence])
        return self.messages.get(sequence)

    def add(self, message: Message, body: bytes) -> None:
        self.messages[message.sequence] = message
        self._ids[message.id] = message.sequence
        self._locked.add(message.sequence)
        self.new_messages.append(message)
        self.bodies[message.sequence] = body

    def add_plain(self, command: Publish, places: Sequence[Sent], draw: Entropy) -> Published | None:
        kind = self.plain.kind_of(command, places)
        if kind is None:
            return None
        published = kind.add(command, self.head + 1, draw() & SALT_MASK)
        self._logged += kind.step
        return published

    def _take_out(self, place: Destination, front: _Front) -> None:
        """Plain messages of this group that a fetch has come to are like all others from now on."""
        for kind in self.plain.at(place):
            if front.exhausted or kind.turn(place) < front.bound[0]:
                self._take_whole_out(kind)

    def take_out_few(self) -> None:
        """Each kind takes statements of its own: where there are many, the small ones are like all others."""
        for kind in self.plain.beyond(MOST_KINDS):
            self._take_whole_out(kind)

    def _take_whole_out(self, kind: PlainKind) -> None:
        for message, body, slots, events in kind.take_out():
            self.add(message, body)
            for slot in slots:
                self.add_slot(slot)
            for event, place in events:
                self._take_event(event, place)

    def encoded(self, envelope: Envelope) -> str:
        """Of a message that this group has added."""
        text = self._encoded.get(id(envelope))
        if text is None:
            text = self._encoded[id(envelope)] = _encode(envelope).decode()
        return text

    def body(self, message: Message) -> bytes | None:
        if message.sequence not in self.bodies:
            self._load_bodies([message])
        body = self.bodies.get(message.sequence)
        return body

    def _load_bodies(self, messages: Iterable[Message]) -> None:
        sequences = [message.sequence for message in messages]
        self._take_bodies(sequences, send(self.db, _BODIES, (bigints(sequences),)))

    def _take_bodies(self, sequences: Iterable[int], asked: Db) -> None:
        self.bodies |= dict.fromkeys(sequences)
        for sequence, body in asked.fetchall():
            intact = payload_hash(body) == self.messages[sequence].hash
            self.bodies[sequence] = body if intact else None

    def drop_body(self, message: Message) -> None:
        message.kept = False
        self.bodies.pop(message.sequence, None)
        self.dropped_bodies.append(message.sequence)

    def add_slot(self, slot: Slot) -> None:
        slot.message.slots.append(slot)
        self._know(slot)
        self._mine.add(slot)

    def remove_slot(self, slot: Slot) -> None:
        slot.message.slots.remove(slot)
        del self.slots[_key(slot)]
        line = self._at[slot.queue]
        line[:] = [entry for entry in line if entry[2] is not slot]
        if slot in self.slot_was:
            self.removed_slots.append(slot)

    def fetching(self, offset: int) -> Fetching | None:
        if offset not in self.fetchings:
            self._load_fetchings([offset])
        return self.fetchings[offset]

    def _load_fetchings(self, offsets: Iterable[int]) -> None:
        wanted = []
        for offset in offsets:
            recent = None if self._recent is None else self._recent.fetching(offset)
            if recent is not None:
                self.fetchings[offset] = recent
                self.fetching_was[recent] = None, None
            elif offset not in self.fetchings:
                wanted.append(offset)
        if wanted:
            self._take_fetchings(wanted, send(self.db, _FETCHES, (bigints(wanted),)))

    def _take_fetchings(self, offsets: Iterable[int], asked: Db) -> None:
        self.fetchings |= dict.fromkeys(offsets)
        for row in asked.fetchall():
            self._known([row[0]])
            fetching = fetching_of(row, self.slots)
            if fetching is not None:
                self.fetchings[fetching.offset] = fetching
                self.fetching_was[fetching] = row[-2:]

    def add_fetching(self, fetching: Fetching) -> None:
        self.fetchings[fetching.offset] = fetching

    def fetches_of(self, slot: Slot) -> list[Fetching]:
        self.db.execute(f"select {FETCH} from fetches where sequence = %s", (slot.message.sequence,))
        known = [fetching_of(row, self.slots) for row in self.db.fetchall()]
        return [fetching for fetching in known if fetching is not None and fetching.slot is slot]

    def held(self, place: Destination) -> tuple[int, int]:
        self.db.execute("select q + r + f, bytes from counts where destination = %s", (place.number,))
        count, size = self.db.fetchone() or (0, 0)
        return count + sum(self.counted[place, state] for state in OPEN), size + self.bytes[place]

    # ── what a fetch may take ───────────────────────────────────────────────────────────────

    def fetchable(self, place: Destination, consumer: str | None) -> Iterator[Slot]:
        if place.keyed:
            self._rehead(place)
        if consumer == ANONYMOUS:
            consumer = ""
        front = self._front(place, consumer)
        line = self._at[place]
        self._take_out(place, front)
        position = self._from.get(place, 0)
        while position < len(line) and not self._can_go(line[position][2]):
            position += 1
        self._from[place] = position
        while True:
            while position < len(line) and (front.exhausted or line[position][0] <= front.bound):
                slot = line[position][2]
                position += 1
                if self._can_go(slot):
                    yield slot
            if front.exhausted:
                return
            passed = front.bound
            self._look_further(place, consumer, front)
            self._take_out(place, front)
            position = bisect_right(line, passed, key=lambda entry: entry[0])

    def _front(self, place: Destination, consumer: str | None) -> _Front:
        """The first page is everybody's, so that a group of many consumers asks once; whoever may have nothing of it looks on alone.
        Where slots belong to consumers, they are looked for by consumer at once: others' are not to be held."""
        if (place, consumer) not in self._fronts:
            shared = _Front()
            if consumer is not None and not place.policy.counts_consumers:
                shared = self._front(place, None)
                if not shared.begun:
                    self._look_further(place, None, shared)
            self._fronts[place, consumer] = _Front(shared.bound, shared.exhausted)
        return self._fronts[place, consumer]

    def _look_further(self, place: Destination, consumer: str | None, front: _Front) -> None:
        """The next rows that nobody else holds."""
        limit = max(PAGE, self._wanted.get((place.kind, place.name), 0)) if front.begun else 0
        limit = limit or max(1, min(1_000, self._wanted.get((place.kind, place.name), PAGE)))
        sizes: dict[int, int] = {}
        found = self._recall_ready(place, front, limit, sizes) if consumer is None else None
        if found is None:
            found = []
            for after, last in self._stretches(place, consumer, front):
                found += self._take_ready(place, consumer, after, last, limit - len(found), sizes)
                if len(found) == limit:
                    break
        front.exhausted = len(found) < limit
        if not found:
            return
        front.bound = found[-1]
        self._from[place] = 0
        known = {sequence for _, sequence, _ in found if sequence in self.messages}
        self._load_with_bodies([sequence for _, sequence, _ in found], sizes)
        mine = [self.slots[sequence, place.number, number] for _, sequence, number in found]
        for slot in mine:
            if slot.message.sequence in known and slot not in self._mine:
                self._read_again(slot)
        self._mine |= set(mine)
        self._take_whole([slot for slot in mine if slot.message.sequence not in self._locked], place)

    def _recall_ready(
        self, place: Destination, front: _Front, limit: int, sizes: dict[int, int]
    ) -> list[Turn] | None:
        """The next rows, by what recent groups left, and behind that by the table."""
        if self._recent is None:
            return None
        known = self._recent.front(place)
        found = known.after(front.bound, limit)
        if len(found) < limit and known.bound is not None:
            wanted = known.look_ahead(limit - len(found))
            more = self._take_ready(place, None, known.bound, PRIORITIES - 1, wanted, known.sizes)
            known.go_on(more, wanted)
            found += more[: limit - len(found)]
        for _, sequence, _ in found:
            if sequence in known.sizes:
                sizes[sequence] = known.sizes.pop(sequence)
        return found

    def _stretches(
        self, place: Destination, consumer: str | None, front: _Front
    ) -> Iterator[tuple[tuple[int, int, int], int]]:
        """Where it is worth looking: behind this row, up to this priority."""
        if consumer is None or self.names.schema < SINCE_SCHEMA:
            yield front.bound, PRIORITIES - 1
            return
        if front.begins is None:
            front.begins = self._marks.first(
                self.db, place, consumer, _for(consumer), self.began.turn, self.base
            )
        for priority, sequence in front.begins:
            if priority >= front.bound[0]:
                yield max(front.bound, (priority, sequence, -1)), priority

    def _take_ready(
        self,
        place: Destination,
        consumer: str | None,
        after: Turn,
        last: int,
        limit: int,
        sizes: dict[int, int],
    ) -> list[Turn]:
        """Into `sizes`: of their messages."""
        others, values = _for(consumer)
        self.db.execute(
            "select priority, sequence, slot, (select size from messages m where m.sequence = d.sequence)"
            f" from deliveries d where destination = %s and {READY}"
            " and (priority, sequence, slot) > (%s, %s, %s) and priority <= %s and sequence <= %s"
            f"{others} order by priority, sequence, slot limit %s{'' if self.alone else ' for update skip locked'}",
            (place.number, *after, last, self.base, *values, limit),
        )
        found: list[Turn] = []
        for priority, sequence, slot, size in self.db.fetchall():
            found.append((priority, sequence, slot))
            sizes[sequence] = size
        return found

    def _load_with_bodies(self, sequences: Iterable[int], sizes: Mapping[int, int]) -> None:
        """Messages, and the bodies of the first of them; `sizes` of those that may not be here."""
        wanted = self._recall(sequence for sequence in sequences if sequence not in self.messages)
        total = 0
        near: list[int] = []
        for sequence in dict.fromkeys(sequences):
            total += sizes[sequence] if sequence in sizes else self.messages[sequence].size
            if sequence not in self.bodies and (not near or total <= FETCH_BYTES):
                near.append(sequence)
        if not (wanted or near):
            return
        with self.db.connection.pipeline():
            asked = ask(self.db, wanted) if wanted else None
            bodies = send(self.db, _BODIES, (bigints(near),)) if near else None
        if asked is not None:
            self._take_in(asked)
        if bodies is not None:
            self._take_bodies(near, bodies)

    def _read_again(self, slot: Slot) -> None:
        """It was read before it was locked."""
        with self.db.connection.pipeline():
            asked = ask(self.db, [slot.message.sequence])
        (message,), _ = loaded(asked, self.names.places)
        for fresh in message.slots:
            if _key(fresh) == _key(slot):
                self._known((fresh.fetch, fresh.redriven))
                slot.__dict__ |= {**vars(fresh), "message": slot.message}
                self.slot_was[slot] = slot_row(slot)

    def _can_go(self, slot: Slot) -> bool:
        return slot.waits and not slot.blocked and slot in self._mine

    def _take_whole(self, slots: list[Slot], place: Destination) -> None:
        """Where a slot alone does not decide, its message or its key is needed too; what others hold is left to them."""
        policy = place.policy
        odd = [s for s in slots if policy.kick or policy.counts_consumers or s.kick or s.beside()]
        left: list[Slot] = []
        if self.alone:
            self._locked |= {slot.message.sequence for slot in odd}
            return
        if odd:
            sequences = sorted({slot.message.sequence for slot in odd})
            self.db.execute(
                "select sequence from messages where sequence = any(%s) order by sequence"
                " for update skip locked",
                (sequences,),
            )
            got = {sequence for (sequence,) in self.db.fetchall()}
            left = [slot for slot in odd if slot.message.sequence not in got]
            self._locked |= got
            kept = {_key(slot): slot for sequence in got for slot in self._unload(sequence)}
            self._load(got, kept)
            self._mine |= {self.slots[_key(slot)] for slot in odd if slot.message.sequence in got}
        if place.keyed:
            got = self._latch_free({_latch_of(f"k {slot.message.envelope.key}") for slot in slots})
            left += [s for s in slots if _latch_of(f"k {s.message.envelope.key}") not in got]
        self._mine -= set(left)
        for message in {slot.message for slot in left}:
            if self.messages.get(message.sequence) is message and not self._mine & set(message.slots):
                self._unload(message.sequence)

    def _latch_free(self, numbers: set[int]) -> set[int]:
        """Those that nobody holds."""
        self.db.execute(
            "select number from latches where number = any(%s) order by number for update skip locked",
            (sorted(numbers),),
        )
        return {number for (number,) in self.db.fetchall()}

    def _rehead(self, place: Destination) -> None:
        """Of each key that something happened to: which message is its first one now."""
        for key in sorted(self._rekeyed.pop(place, ())):
            touched = {entry[2].message.sequence for entry in self._at[place] if _has(entry[2], key)}
            self.db.execute(
                "select sequence from deliveries where destination = %s and key = %s and state in (3, 4, 7)"
                " and (state = 4 or not blocked or sequence in (select sequence from deliveries"
                " where destination = %s and key = %s and state in (3, 4, 7) order by sequence limit %s))",
                (place.number, key, place.number, key, 100 * (len(touched) + 1)),
            )
            self._obtain(set(self._found()) - set(self.messages), (), {place.number})
            there = [entry[2] for entry in self._at[place] if _has(entry[2], key)]
            for slot in there:
                slot.blocked = slot.state in WAITING and not heads_its_key(slot, there)
            self._from[place] = 0

    def rehead_all(self) -> None:
        for place in list(self._rekeyed):
            self._rehead(place)

    # ── what waits, what is due ─────────────────────────────────────────────────────────────

    def waiting(self, place: Destination, thing: Thing) -> list[Slot]:
        self.db.execute(
            "select d.sequence from deliveries d join messages m on m.sequence = d.sequence"
            " where d.destination = %s and d.key = %s and d.state in (3, 7) and m.object = %s",
            (place.number, thing[1], thing[0]),
        )
        self._obtain(self._found(), (), {place.number})
        there = [entry[2] for entry in self._at[place]]
        return [slot for slot in there if slot.state in WAITING and slot.message.thing == thing]

    def due(self, limit: int) -> list[Slot]:
        self.db.execute(
            "select sequence from deliveries where due_at <= %s and due_at is not null"
            " order by due_at, sequence, destination, slot limit %s",
            (self.now, limit),
        )
        self._obtain(self._found())
        due = [slot for slot in self.slots.values() if slot.open and _is_over(slot.due_at, self.now)]
        return sorted(due, key=lambda slot: (slot.due_at, *_key(slot)))[:limit]

    def expired(self, limit: int) -> list[Slot]:
        self.db.execute(
            "select sequence from deliveries where expires_at <= %s and expires_at is not null"
            " and state in (3, 7) order by expires_at, sequence, destination, slot limit %s",
            (self.now, limit),
        )
        self._obtain(self._found())
        slots = self.slots.values()
        over = [s for s in slots if s.state in WAITING and _is_over(s.expires_at, self.now)]
        return sorted(over, key=lambda slot: (slot.expires_at, *_key(slot)))[:limit]

    def roused(self, place: Destination) -> None:
        self.touched.add(place)
        self._from[place] = 0

    # ── what messages leave behind ──────────────────────────────────────────────────────────

    def undecided(self, message: Message) -> bool:
        return message.sequence in self.waits

    def set_undecided(self, message: Message, waits: bool) -> None:
        if waits:
            self.waits.add(message.sequence)
        else:
            self.waits.discard(message.sequence)

    def undecided_of(self, object: str | None) -> list[int]:
        if object not in self._undecided_of:
            found: list[int] = []
            if self.began.undecided:
                self.db.execute(
                    "select sequence from messages where undecided and object is not distinct from %s"
                    " order by sequence",
                    (object,),
                )
                found = self._found()
            self._undecided_of[object] = found
        if not (self._undecided_of[object] or self.waits):
            return []
        there = [s for s in self._undecided_of[object] if s not in self.messages]
        here = [s for s in self.waits if self.messages[s].envelope.object == object]
        return sorted(there + here)

    def check_inline(self) -> None:
        """Under the last lock, when others came in between and something waits for a decision: nothing that they put in L is overtaken
        by what was routed here."""
        inline = [object for object, waiting in self._undecided_of.items() if not waiting]
        if not inline:
            return
        self.db.execute(
            "select 1 from messages where undecided and (object = any(%s) or (object is null and %s)) limit 1",
            ([object for object in inline if object is not None], None in inline),
        )
        if self.db.fetchone() is not None:
            raise Overtaken("others put a message of the same object in L")

    def remembered(self, scope: Scope) -> Remembered | None:
        if scope not in self._remembered:
            self._load_remembered({scope})
        return self._remembered[scope]

    def _load_remembered(self, scopes: set[Scope]) -> None:
        if not scopes:
            return
        self._remembered |= dict.fromkeys(scopes)
        producers, keys = zip(*((producer or "", key) for producer, key in scopes), strict=True)
        self.db.execute(
            "select i.producer, i.key, i.hash, i.id, i.state, i.same_as, i.at from idempotency i"
            " join unnest(%s::text[], %s::text[]) as u (producer, key)"
            " on u.producer = i.producer and u.key = i.key",
            (list(producers), list(keys)),
        )
        for producer, key, hash, id, state, same_as, at in self.db.fetchall():
            published = Published(id, STATE[state], same_as)
            self._remembered[producer or None, key] = Remembered(hash, published, at)

    def remember(self, scope: Scope, remembered: Remembered) -> None:
        self._remembered[scope] = self.new_remembered[scope] = remembered

    def content(self, thing: Thing) -> Content | None:
        if thing not in self._contents:
            self._load_contents({thing})
        return self._contents[thing]

    def _load_contents(self, things: set[Thing]) -> None:
        if not things:
            return
        self._contents |= dict.fromkeys(things)
        objects, keys = zip(*things, strict=True)
        self.db.execute(
            "select c.object, c.key, c.hash, c.id, c.sequence, c.at, c.ended from contents c"
            " join unnest(%s::text[], %s::text[]) as u (object, key) on u.object = c.object and u.key = c.key",
            (list(objects), list(keys)),
        )
        for object, key, hash, id, sequence, at, ended in self.db.fetchall():
            self._known([sequence])
            end = None if ended is None else STATE[ended]
            self._contents[object, key] = Content(hash, id, sequence, at, end)

    def set_content(self, thing: Thing, content: Content) -> None:
        self._contents[thing] = self.new_contents[thing] = content

    def count_unchanged(self, object: str, producer: str) -> None:
        self.unchanged[object, producer] = self.unchanged.get((object, producer), 0) + 1

    def latest(self, place: Destination, thing: Thing) -> int:
        if (place, thing) not in self._latest:
            self.db.execute(
                "select sequence from latest where destination = %s and object = %s and key = %s",
                (place.number, *thing),
            )
            row = self.db.fetchone()
            self._latest[place, thing] = 0 if row is None else row[0]
            self._known([self._latest[place, thing]])
        return self._latest[place, thing]

    def set_latest(self, place: Destination, thing: Thing, sequence: int) -> None:
        self._latest[place, thing] = self.new_latest[place, thing] = sequence

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def newest_place(self) -> int:
        return max(self.names.places, default=0)

    def open_job(self, job: OpenJob) -> OpenJob:
        self.db.execute("select coalesce(max(number), 0) from jobs")
        row = self.db.fetchone()
        assert row is not None
        job.number = max(row[0], *self.jobs, 0) + 1
        self.jobs[job.number] = job
        return job

    def next_job(self) -> OpenJob | None:
        self.db.execute(
            f"select {JOB} from jobs where ended_at is null and next_at <= %s order by number", (self.now,)
        )
        for row in self.db.fetchall():
            if row[0] not in self.jobs:
                job = self.jobs[row[0]] = job_of(row, self.names.places)
                self.job_was[job.number] = job_row(job)
        open = [job for job in self.jobs.values() if job.ended_at is None and job.next_at <= self.now]
        return min(open, key=lambda job: job.number, default=None)

    def messages_for(self, job: OpenJob) -> Iterator[Message]:
        cursor = job.cursor
        while True:
            last = min(job.until, cursor + WINDOW)
            sequences = self._page_for(job, cursor, last)
            if not sequences:
                if last >= job.until:
                    return
                cursor = last
                continue
            self._obtain(sequences)
            for sequence in sequences:
                message = self.messages.get(sequence)
                if message is not None:
                    yield message
            cursor = sequences[-1]

    def _page_for(self, job: OpenJob, cursor: int, last: int) -> list[int]:
        if job.kind is JobKind.BACKFILL:
            self.db.execute(
                "select sequence from messages where sequence > %s and sequence <= %s and routed and kept"
                " and same_as is null order by sequence limit %s",
                (cursor, last, PAGE),
            )
        else:
            where, values = self._where(job)
            self.db.execute(
                "select distinct sequence from deliveries where sequence > %s and sequence <= %s"
                f" and state = any(%s){where} order by sequence limit %s",
                (cursor, last, [int(state) for state in JOB_STATES[job.kind]], *values, PAGE),
            )
        return [sequence for (sequence,) in self.db.fetchall()]

    def _where(self, job: OpenJob) -> tuple[str, tuple[Any, ...]]:
        """Its one destination, if it has one."""
        filter = job.filter
        place = job.place
        if place is None and filter.queue is not None:
            place = self.place(Kind.QUEUE, filter.queue)
        elif place is None and filter.channel is not None:
            place = self.place(Kind.CHANNEL, filter.channel)
        elif place is None:
            return "", ()
        return " and destination = %s", (0 if place is None else place.number,)

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def uploads(self, ids: Sequence[str]) -> list[Upload | None]:
        return batches.uploads_named(self.db, ids)

    def add_upload(self, upload: Upload, body: bytes | Staged) -> None:
        self.batched = True
        batches.keep_upload(self.db, upload)

    def batch(self, query: str, batch: int) -> Batch | None:
        return batches.batch_named(self.db, query, batch, lock=True)

    def newest_batch(self) -> int:
        return batches.newest_batch(self.db)

    def add_batch(self, batch: Batch, uploads: Sequence[Upload]) -> None:
        self.batched = True
        batches.add_batch(self.db, batch, uploads)

    def move_batch(self, batch: Batch) -> None:
        self.batched = True
        batches.move_batch(self.db, batch)

    # ── the log and the lake ────────────────────────────────────────────────────────────────

    def oldest(self) -> int:
        return self.began.oldest

    def offset_at(self, at: int) -> int:
        self.db.execute(
            'select "offset" from events where at >= %s and "offset" >= %s order by at, "offset" limit 1',
            (at, self.began.oldest),
        )
        row = self.db.fetchone()
        if row is not None:
            return int(row[0])
        return self.base + 1 if self.now >= at else self.head + 1

    @property
    def sealed(self) -> int | None:
        return self.began.sealed if self.new_sealed is None else self.new_sealed

    def seal(self, upto: int) -> None:
        self.new_sealed = max(upto, self.sealed or 0)

    def add_erasure(self, sequence: int) -> None:
        if self.keeping.lake or self.sealed is not None:
            self.new_erasures.add(sequence)
            self.done_erasures.discard(sequence)

    def erased(self, sequences: Iterable[int]) -> None:
        self.done_erasures |= set(sequences)
        self.new_erasures -= self.done_erasures

    def reap(self, limit: int) -> bool:
        return self._reap(self, limit)

    def let_go(self) -> None:
        """The group is over."""
        for message in self.messages.values():
            message.let_go()

    def leave(self, turn: int, changes: Iterable[Change]) -> None:
        """The group is over, and nobody was there: what those that follow need is left to them."""
        recent = self._recent
        assert recent is not None
        come: defaultdict[Destination, list[Turn]] = defaultdict(list)
        gone: defaultdict[Destination, set[Turn]] = defaultdict(set)
        for slot, was, row in changes:
            before, after = is_ready(was), is_ready(row)
            if before and not after:
                gone[slot.queue].add(slot.place)
            elif after and not before:
                come[slot.queue].append(slot.place)
        recent.learn(turn, come, gone, self.plain)
        for sequence, message in self.messages.items():
            states = [slot.state for slot in message.slots]
            if OPEN.isdisjoint(states) or sequence in self.waits:
                message.let_go()
            else:
                waits = not WAITING.isdisjoint(states)
                recent.keep(message, self.bodies.get(sequence) if waits else None)
        for offset, fetching in self.fetchings.items():
            if fetching is not None and fetching.counts:
                recent.keep_fetching(fetching)
            else:
                recent.forget_fetching(offset)
        if recent.is_too_much():
            recent.clear(turn)

    def obtain(self, sequences: Iterable[int]) -> list[Message]:
        """For the reaper."""
        wanted = list(sequences)
        self._obtain(wanted)
        return [self.messages[sequence] for sequence in wanted if sequence in self.messages]


def receipts_of(commands: Iterable[Command]) -> set[int]:
    """The offsets of the fetches that the commands name."""
    return {
        parsed[0]
        for command in commands
        if type(command) in _NAME_RECEIPTS
        for one in command.receipts  # type: ignore[union-attr]
        if (parsed := parse_receipt(one))
    }


def slot_row(slot: Slot) -> tuple[Any, ...]:
    """What can change of a slot."""
    refused = "".join(f",{name}" for name in sorted(slot.refused)) + "," if slot.refused else ""
    return (
        int(slot.state),
        slot.blocked,
        slot.since_at,
        slot.due_at,
        slot.expires_at,
        slot.named,
        slot.attempt,
        slot.tries,
        slot.consumer,
        slot.reason,
        slot.redriven,
        refused,
        slot.fetch,
    )


def is_ready(row: tuple[Any, ...] | None) -> bool:
    """Of a `slot_row`: whether a fetch would find it."""
    return row is not None and row[0] in WAITING and not row[1] and row[3] is None


def job_row(job: OpenJob) -> tuple[Any, ...]:
    return job.cursor, job.done, job.ended_at, job.next_at


def _for(consumer: str | None) -> tuple[str, tuple[Any, ...]]:
    """What a consumer may not have is passed over by the query: named for another, refused, or the second slot of a message.
    None: whatever there is; '': nobody with a name."""
    if consumer is None:
        return "", ()
    if not consumer:
        return " and (named is null or named = %s)", (ANONYMOUS,)
    return (
        " and (named is null or named = %s) and position(%s in refused) = 0 and not exists (select 1 from deliveries o"
        " where o.sequence = d.sequence and o.destination = d.destination and o.slot <> d.slot"
        " and (position(%s in o.refused) > 0 or (o.consumer = %s and o.state in (4, 5, 6, 7, 8, 9))"
        " or (d.named is null and o.named = %s and o.state in (3, 4, 7))))",
        (consumer, f",{consumer},", f",{consumer},", consumer, consumer),
    )


def _has(slot: Slot, key: str) -> bool:
    return slot.message.envelope.key == key


def _key(slot: Slot) -> tuple[int, int, int]:
    return slot.message.sequence, slot.queue.number, slot.number


def _is_over(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _latch_of(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % LATCHES
