"""Publishing: from a command to a message's row and its place in every queue and channel it goes to.

known already? ─▶ decided elsewhere? only L ─▶ unchanged? L and U ─▶ room? ─▶ plan: where messages like it go ─▶ L and its Qs
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...commands import Publish, Published, PublishMany
from ...delivery import OPEN, L, Q, U, X
from ...errors import IdempotencyConflict, IdTaken, QueueFull, QueueNotFound, Refused
from ...message import SALT_MASK, Entropy, Envelope, id_maker, make_id
from ...routing import (
    Part,
    Slots,
    queues_of,
    slots_of,
    topics_in_channel,
    topics_in_queue,
    with_object,
)
from .. import IDEMPOTENCY_KEPT_US
from .contents import Contents, Thing
from .names import Destination, Names
from .pending import Pending
from .reading import Reader
from .rows import STATE, Db, Row, pack_route
from .slots import Ledger, Slot
from .young import LARGEST, MOST_MESSAGES, Message, Young


class _Plan(msgspec.Struct):
    """Where messages that say the same of themselves go."""

    #: (queue or channel, slots) with at least one slot; queues first
    parts: list[tuple[Destination, Slots]]
    route: int | str
    #: one of them is a queue; if none is, the message is completed at once
    in_queues: bool
    #: offsets after L
    offsets: int
    #: the one queue, when nothing about it needs a second look
    plain: Destination | None
    topics: str
    object: str | None

    def stored(self, envelope: Envelope) -> Envelope:
        """As it is read back."""
        return envelope if self.object is None or self.object == envelope.object else envelope.of(self.object)


class _Kind(msgspec.Struct):
    """Messages that share an envelope, or all of it but key and timestamp: their plan, and the columns they have in common."""

    envelope: Envelope
    queue: str | None
    plan: _Plan
    #: as it is read back
    stored: Envelope
    #: messages.route … messages.traceparent, without key and timestamp
    columns: Row

    def fits(self, command: Publish) -> bool:
        """One whose envelope says the same, but for key and timestamp."""
        mine, its = self.envelope, command.envelope
        return (
            its.topics is mine.topics
            and its.object == mine.object
            and its.mime_type == mine.mime_type
            and its.producer == mine.producer
            and its.sent == mine.sent
            and its.encoding == mine.encoding
            and its.meta == mine.meta
            and its.traceparent == mine.traceparent
            and command.queue == self.queue
        )


class Publishing:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        rows: Pending,
        young: Young,
        contents: Contents,
        draw: Entropy,
        infer_types: bool,
    ) -> None:
        self._db, self._names, self._reader, self._ledger, self._rows = db, names, reader, ledger, rows
        self._contents = contents
        self._young, self._draw, self._infer_types = young, draw, infer_types
        #: by what a message says of itself
        self._plans: dict[tuple[tuple[str, ...], str | None, str | None], _Plan] = {}
        #: by the envelope's own address, which it keeps while it is held here
        self._kinds: dict[int, _Kind] = {}

    def forget_plans(self) -> None:
        """A policy changed, or what they stand on was undone."""
        self._plans.clear()
        self._kinds.clear()

    def run(self, commands: Sequence[Publish], results: list[Any]) -> None:
        """Messages that came one by one: one that is refused leaves the others alone."""
        self._log(commands, results)

    def publish_many(self, command: PublishMany) -> list[Published]:
        """All or none."""
        self._check(command.messages)
        published: list[Published] = []
        self._log(command.messages, published)
        return published

    def _check(self, messages: Iterable[Publish]) -> None:
        """Every message against what is there and what came before it in the request; raises for the first that
        cannot be."""
        ids: dict[str, bytes] = {}
        keys: dict[tuple[str | None, str], bytes] = {}
        contents: dict[Thing, bytes] = {}
        load: dict[Destination, list[int]] = {}
        for message in messages:
            kind = self._kinds.get(id(message.envelope))
            if (
                kind is not None
                and kind.envelope is message.envelope
                and kind.queue == message.queue
                and message.id is None
                and message.idempotency_key is None
            ):
                continue  # its queues exist and have no limits, and it has no key
            if message.id is None and message.idempotency_key is None and self._known_plan(message):
                continue
            known = self._idempotency_hash(message, keys) if message.idempotency_key is not None else None
            if known is None and message.id is not None:
                known = self._own_id_hash(message, ids)
            if known is None and not self._holds(message):
                self._check_queues(message)
                if not self._would_repeat(message, contents):
                    self._check_room(message, load)

    def _would_repeat(self, command: Publish, contents: dict[Thing, bytes]) -> bool:
        """Whether it will be unchanged, after those that came before it in the request."""
        compared = self._compared(command)
        if compared is None:
            return False
        thing, hash = compared
        same = (
            contents[thing] == hash if thing in contents else self._contents.repeated(*compared) is not None
        )
        if same and not command.force:
            return True
        contents[thing] = hash
        return False

    def _compared(self, command: Publish) -> tuple[Thing, bytes] | None:
        if not self._names.compared or command.envelope.key is None:
            return None
        body = command.body
        if not isinstance(body, bytes):
            body = msgspec.structs.replace(body, hash=command.hash)
        compared = self._contents.hash(self._object(command), command.envelope.key, body, command.content)
        if compared is not None:
            command.content = compared[1]  # not a second time
        return compared

    def _object(self, command: Publish) -> str | None:
        if command.queue is not None:
            return command.envelope.object
        return with_object(command.envelope, self._infer_types).object

    def _holds(self, command: Publish) -> bool:
        """Whether it stops at L: somebody else decides where it goes, or others of its object still wait for that."""
        if command.queue is not None:
            return False
        if command.hold:
            return True
        names = self._names
        if not names.sparks and not names.logged:
            return False
        object = self._object(command)
        return object in names.sparks or object in names.logged

    def _idempotency_hash(self, command: Publish, keys: dict[tuple[str | None, str], bytes]) -> bytes | None:
        scope = (command.envelope.producer, str(command.idempotency_key))
        stored = self._remembered(*scope)
        known = keys.get(scope) if stored is None else stored[0]
        if known is not None and known != command.hash:
            raise _conflict(scope[1])
        keys[scope] = command.hash
        return known

    def _remembered(self, producer: str | None, key: str) -> Row | None:
        """(hash, id, state, same_as) of the first answer, while it is kept."""
        scope = (0 if producer is None else self._names.party(producer), key)
        row: Row | None = self._rows.keys.get(scope)
        if row is None:
            row = self._db.execute(
                "select hash, id, state, same_as from idempotency where producer = ? and key = ? and at > ?",
                (*scope, self._ledger.now - IDEMPOTENCY_KEPT_US),
            ).get
        return row

    def _own_id_hash(self, command: Publish, ids: dict[str, bytes]) -> bytes | None:
        assert command.id is not None
        self._rows.flush()
        sequence = self._reader.sequence_of(command.id)
        if sequence is None:
            known = ids.get(command.id)
        else:
            known = self._db.execute("select hash from messages where sequence = ?", (sequence,)).get
        if known is not None and known != command.hash:
            raise IdTaken(command.id)
        ids[command.id] = command.hash
        return known

    def _check_queues(self, command: Publish) -> None:
        if not command.create:
            for name in self._targets(command):
                if name not in self._names.queues:
                    raise QueueNotFound(name)

    def _check_room(self, command: Publish, load: dict[Destination, list[int]]) -> None:
        topics = command.envelope.topics
        for name in self._targets(command):
            queue = self._names.queues.get(name)
            if queue is not None and queue.limited:
                self._check_load(queue, len(self.slots_in(queue, topics)), command.size, load)
        for channel in self._names.subscribers.find(topics):
            if channel.limited:
                self._check_load(channel, len(self.slots_in(channel, topics)), command.size, load)

    def _check_load(
        self, place: Destination, slots: int, size: int, load: dict[Destination, list[int]]
    ) -> None:
        more = load.setdefault(place, [0, 0])
        more[0] += slots
        more[1] += slots * size
        most, most_bytes = place.policy.max_messages, place.policy.max_bytes
        what = f"{place.kind.word} {place.name!r}"
        if most is not None and sum(place.states[state] for state in OPEN) + more[0] > most:
            raise QueueFull(f"{what} holds {most} messages, its maxMessages")
        if most_bytes is not None and place.bytes + more[1] > most_bytes:
            raise QueueFull(f"{what} has no room for {size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (
            (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)
        )

    def _plan_key(self, command: Publish) -> tuple[tuple[str, ...], str | None, str | None]:
        return command.envelope.topics, command.envelope.object, command.queue

    def slots_in(self, place: Destination, topics: tuple[str, ...]) -> Slots:
        """As the policy of the queue or channel says."""
        names, complete = self._names, place.policy.complete
        registered = names.registered(place.kind, place.name, topics) if complete == "all" else ()
        if place.is_queue:
            return slots_of(place.policy, topics_in_queue(topics, place.name), registered)
        return slots_of(place.policy, topics_in_channel(topics, place.topics), registered)

    def places(
        self, parts: Sequence[Part], topics: tuple[str, ...], sequence: int
    ) -> list[tuple[Destination, Slots, bool]]:
        """(queue or channel, slots, kick) for a message of that sequence, queues first; makes the queues that are missing."""
        places: list[tuple[Destination, Slots, bool]] = []
        for name, slots, kick in parts:
            queue = self._names.queues.get(name) or self._ledger.make_queue(name)
            places.append((queue, self.slots_in(queue, topics) if slots is None else slots, kick))
        channels = self._names.subscribers.find(topics)
        for channel in sorted(channels, key=lambda channel: channel.number):
            if channel.start <= sequence:
                places.append((channel, self.slots_in(channel, topics), False))
        return [place for place in places if place[1]]

    def _make_plan(self, command: Publish) -> _Plan:
        """Makes the queues that are missing. Plans of queues with limits are made each time, after a look at them."""
        self._check_queues(command)
        self._check_room(command, {})
        topics, targets = command.envelope.topics, self._targets(command)
        object = self._object(command)
        wanted = [Part(name, None) for name in targets]
        parts = [(place, slots) for place, slots, _ in self.places(wanted, topics, self._ledger.head + 1)]
        in_queues = bool(parts) and parts[0][0].is_queue
        plain = None
        if len(parts) == 1 and in_queues and parts[0][1] == (None,):
            queue = parts[0][0]
            plain = None if queue.tracked or queue.policy.ttl_us is not None else queue
        plan = _Plan(
            parts,
            pack_route({place.number: len(slots) for place, slots in parts}, in_queues),
            in_queues,
            sum(len(slots) for _, slots in parts) + (not in_queues),
            plain,
            ",".join(topics),
            object,
        )
        limited = any(self._names.queues[name].limited for name in targets)
        if not limited and not any(place.limited for place, _ in parts):
            if len(self._plans) > 10_000:
                self._plans.clear()
            self._plans[self._plan_key(command)] = plan
        return plan

    def _known_plan(self, command: Publish) -> _Plan | None:
        """Of one that meets neither a limit nor a comparison, and that nobody else decides."""
        names = self._names
        if command.hold or names.sparks or names.logged or names.compared:
            return None
        return self._plans.get(self._plan_key(command))

    def _kind(self, command: Publish) -> _Kind:
        return self._kind_by(self._plans.get(self._plan_key(command)) or self._make_plan(command), command)

    def _kind_by(self, plan: _Plan, command: Publish) -> _Kind:
        envelope = command.envelope
        columns = self._columns(envelope, plan.route, plan.topics, plan.object)
        kind = _Kind(envelope, command.queue, plan, plan.stored(envelope), columns)
        # One with a key is seldom seen twice; one whose plan is made each time must not be kept.
        if envelope.key is None and self._plan_key(command) in self._plans:
            if len(self._kinds) > 1_000:
                self._kinds.clear()
            self._kinds[id(envelope)] = kind
        return kind

    def _columns(self, envelope: Envelope, route: int | str | None, topics: str, object: str | None) -> Row:
        """messages.route … messages.traceparent, without key and timestamp: those are seldom alike"""
        return (
            route,
            topics,
            object,
            envelope.mime_type,
            envelope.sent,
            None if envelope.producer is None else self._names.party(envelope.producer),
            envelope.encoding,
            msgspec.json.encode(envelope.meta).decode() if envelope.meta else None,
            envelope.traceparent,
        )

    def _log(self, commands: Sequence[Publish], results: list[Any]) -> None:
        """The hot loop: a row of `messages` each, and a place in `ready`; what is not plain is done by the way."""
        ledger, draw, kinds, young = self._ledger, self._draw, self._kinds, self._young.messages
        #: what is in L by object; and what is compared of the message at hand
        logged = self._names.logged
        compared: tuple[Thing, bytes] | None = None
        add_row, add_result, now = self._rows.messages.add, results.append, ledger.now
        make_own_id = id_maker(now)
        #: what neighbours of a kind share
        last_kind: _Kind | None = None
        shared: Row = ()
        #: of the last that had an envelope of its own, and nothing that must be looked at twice
        own: _Kind | None = None
        #: those of plain messages, by where they go
        ready: dict[tuple[Destination, int], array[int]] = {}
        for command in commands:
            envelope, body = command.envelope, command.body
            kind = kinds.get(id(envelope))
            named = command.id is not None or command.idempotency_key is not None
            if named:
                try:
                    known = self._first_answer(command)
                except Refused as refusal:
                    add_result(refusal)
                    continue
                if known is not None:
                    add_result(known)
                    continue
            if (
                kind is None
                or kind.envelope is not envelope
                or kind.queue != command.queue
                or command.hold
                or logged
            ):
                if own is None or command.hold or not own.fits(command):
                    known_plan = self._known_plan(command)
                    own = None if known_plan is None else self._kind_by(known_plan, command)
                kind = own
                if kind is None:
                    self._make_ready(ready)
                    try:
                        settled = self._settled(command)
                    except Refused as refusal:
                        add_result(refusal)
                        continue
                    if isinstance(settled, Published):
                        add_result(settled)
                        continue
                    kind, compared = settled
            plan, priority, ttl_us = kind.plan, command.priority, command.ttl_us
            sequence = ledger.head + 1
            ledger.head = sequence + plan.offsets
            salt = draw() & SALT_MASK
            message_id = command.id or make_own_id(sequence, salt)
            stored: bytes | str
            if isinstance(body, bytes):
                size, stored = len(body), body
            else:
                size, stored = body.size, body.place
                self._db.execute("insert into bodies values (?, ?)", (stored, sequence))
            if kind is not last_kind:
                last_kind, shared = kind, (now, *kind.columns)
            expires_at = None if ttl_us is None else now + ttl_us
            add_row(
                shared,
                (
                    sequence,
                    salt,
                    command.id,
                    envelope.key,
                    envelope.timestamp,
                    priority,
                    expires_at,
                    None,
                    command.hash,
                    size,
                    stored,
                ),
            )
            queue = plan.plain
            if queue is None or command.delay_us or ttl_us is not None:
                self._make_ready(ready)
                self._route(command, plan, sequence, size)
            else:
                sequences = ready.get((queue, priority))
                if sequences is None:
                    sequences = ready[queue, priority] = array("q")
                sequences.append(sequence)
                queue.bytes += size
                # Behind a long backlog it would be old when its turn comes.
                if queue.ready < MOST_MESSAGES and size <= LARGEST and stored is body:
                    read_back = kind.stored if kind.envelope is envelope else plan.stored(envelope)
                    young[sequence] = Message(message_id, read_back, now, body, size, True)
            if compared is not None:
                self._contents.note(*compared, message_id, sequence)
                compared = None
            published = Published(message_id, Q if plan.in_queues else X)
            if named:
                self._remember(command, sequence, published)
            add_result(published)
        self._make_ready(ready)

    def _settled(self, command: Publish) -> Published | tuple[_Kind, tuple[Thing, bytes] | None]:
        """One that stops at L or is unchanged: its answer. Else its kind, and what will be compared with the next of its key."""
        if self._holds(command):
            return self._log_held(command)
        compared = self._compared(command)
        if compared is not None and not command.force:
            self._check_queues(command)
            same_as = self._contents.repeated(*compared)
            if same_as is not None:
                return self._log_unchanged(command, same_as)
        return self._kind(command), compared

    def _log_held(self, command: Publish) -> Published:
        """L alone: a Decide says later where it goes."""
        sequence, id = self._log_row(command, None)
        due_at = self._ledger.now + command.delay_us if command.delay_us else None
        object = self._object(command)
        self._db.execute(
            "insert into undecided values (?, ?, ?, ?, 0)", (sequence, object, due_at, int(command.force))
        )
        self._names.count_logged(object, 1)
        self._ledger.note_logged(sequence)
        published = Published(id, L)
        self._remember(command, sequence, published)
        return published

    def _log_unchanged(self, command: Publish, same_as: str) -> Published:
        sequence, id = self._log_row(command, same_as)
        self._ledger.head += 1
        self._ledger.save_own(sequence, U, 0)
        self._contents.count(command.envelope, str(self._object(command)))
        published = Published(id, U, same_as)
        self._remember(command, sequence, published)
        return published

    def _log_row(self, command: Publish, same_as: str | None) -> tuple[int, str]:
        """The row of a message without a route: (sequence, id)."""
        ledger, body, ttl_us = self._ledger, command.body, command.ttl_us
        sequence = ledger.head = ledger.head + 1
        salt = self._draw() & SALT_MASK
        stored = body if isinstance(body, bytes) else body.place
        if isinstance(stored, str):
            self._db.execute("insert into bodies values (?, ?)", (stored, sequence))
        envelope = command.envelope
        columns = self._columns(envelope, None, ",".join(envelope.topics), self._object(command))
        expires_at = None if ttl_us is None else ledger.now + ttl_us
        repeated = None if same_as is None else same_as.encode()
        self._rows.messages.add(
            (ledger.now, *columns),
            (
                sequence,
                salt,
                command.id,
                envelope.key,
                envelope.timestamp,
                command.priority,
                expires_at,
                repeated,
                command.hash,
                command.size,
                stored,
            ),
        )
        return sequence, command.id or make_id(sequence, salt, ledger.now)

    def _make_ready(self, ready: dict[tuple[Destination, int], array[int]]) -> None:
        """What was collected so far: before anything looks at the counters, and at the end."""
        for (queue, priority), sequences in ready.items():
            self._rows.add_ready(queue.number, priority, sequences)
            queue.states[Q] += len(sequences)
            queue.ready += len(sequences)
            self._ledger.touched.add(queue)
            self._ledger.roused.add(queue)
            if queue.marks:
                self._ledger.lower_marks(queue, (priority, sequences[0], 0))
        ready.clear()

    def _route(self, command: Publish, plan: _Plan, sequence: int, size: int) -> None:
        """The slots one by one, where one of them has a delay, a ttl, a name, keys that count, or siblings."""
        now, key = self._ledger.now, command.envelope.key
        for queue, slots in plan.parts:
            ttl_us = queue.policy.ttl_us if command.ttl_us is None else command.ttl_us
            for number, named in enumerate(slots):
                self._ledger.add(
                    Slot(
                        sequence=sequence,
                        queue=queue,
                        number=number,
                        since_at=now,
                        due_at=now + command.delay_us if command.delay_us else None,
                        expires_at=None if ttl_us is None else now + ttl_us,
                        named=None if named is None else self._names.party(named),
                        routed=None if named is None else self._names.party(named),
                        known=bool(command.delay_us) or ttl_us is not None or named is not None,
                        created_at=now,
                        key=key,
                        priority=command.priority,
                        size=size,
                        route=plan.route,
                    )
                )
        if not plan.in_queues:
            # Completed at once; a row of its own, so that the reaper finds the message.
            self._ledger.save_own(sequence, X, 0)
        if key is not None:
            for queue, _ in plan.parts:
                if queue.policy.latest_only:
                    self._rows.flush()
                    self._ledger.note_latest(queue, sequence, plan.object, key)

    def _first_answer(self, command: Publish) -> Published | None:
        """Of a message that is here already. Raises for another one under its key or id."""
        if command.idempotency_key is not None:
            row = self._remembered(command.envelope.producer, command.idempotency_key)
            if row is not None:
                if row[0] != command.hash:
                    raise _conflict(command.idempotency_key)
                return Published(row[1], STATE[row[2]], row[3])
        if command.id is None or self._own_id_hash(command, {}) is None:
            return None
        sequence = self._reader.sequence_of(command.id)
        assert sequence is not None
        known = self._reader.published(sequence, command.id)
        self._remember_key(command, known)
        return known

    def _remember(self, command: Publish, sequence: int, published: Published) -> None:
        if command.id is not None:
            self._db.execute("insert into own_ids values (?, ?)", (command.id, sequence))
        self._remember_key(command, published)

    def _remember_key(self, command: Publish, published: Published) -> None:
        if command.idempotency_key is not None:
            producer = command.envelope.producer
            scope = (0 if producer is None else self._names.party(producer), command.idempotency_key)
            self._rows.keys[scope] = (command.hash, published.id, published.state, published.same_as)
            self._rows.keys_at = self._ledger.now


def _conflict(key: str) -> IdempotencyConflict:
    return IdempotencyConflict(f"Idempotency-Key {key!r} came with another body before")
