"""Publishing: from a command to a message's row and its place in every queue it goes to.

known already? ─▶ room in every queue? ─▶ plan: where messages like this one go ─▶ L, and its Qs
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...commands import Publish, Published, PublishMany
from ...delivery import OPEN, Q, State, X, message_state
from ...errors import IdempotencyConflict, IdTaken, QueueFull, QueueNotFound, Refused
from ...message import SALT_MASK, Entropy, Envelope, id_maker
from ...routing import queues_of, slots_of, topics_in_queue, with_object
from .. import IDEMPOTENCY_KEPT_US
from .names import Destination, Names
from .pending import Pending
from .reading import Reader
from .rows import STATE, Db, Row, pack_route
from .slots import Ledger, Slot
from .young import LARGEST, MOST_MESSAGES, Message, Young


class _Plan(msgspec.Struct):
    """Where messages that say the same of themselves go."""

    #: (queue, slots) with at least one slot
    parts: list[tuple[Destination, int]]
    route: int | str
    #: offsets after L
    offsets: int
    #: the one queue, when nothing about it needs a second look
    plain: Destination | None
    topics: str
    object: str | None


class _Kind(msgspec.Struct):
    """Messages that share an envelope: their plan, and the columns they have in common."""

    envelope: Envelope
    queue: str | None
    plan: _Plan
    #: as it is read back
    stored: Envelope
    #: messages.route … messages.traceparent
    columns: Row


class Publishing:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        rows: Pending,
        young: Young,
        draw: Entropy,
        infer_types: bool,
    ) -> None:
        self._db, self._names, self._reader, self._ledger, self._rows = db, names, reader, ledger, rows
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
        load: dict[str, list[int]] = {}
        for message in messages:
            kind = self._kinds.get(id(message.envelope))
            if (
                kind is not None
                and kind.envelope is message.envelope
                and kind.queue == message.queue
                and message.id is None
                and message.idempotency_key is None
            ):
                continue  # its queues exist and have no limits
            known = self._idempotency_hash(message, keys) if message.idempotency_key is not None else None
            if known is None and message.id is not None:
                known = self._own_id_hash(message, ids)
            if known is None:
                self._check_room(message, load)

    def _idempotency_hash(self, command: Publish, keys: dict[tuple[str | None, str], bytes]) -> bytes | None:
        scope = (command.envelope.producer, str(command.idempotency_key))
        stored = self._remembered(*scope)
        known = keys.get(scope) if stored is None else stored[0]
        if known is not None and known != command.hash:
            raise IdempotencyConflict(f"Idempotency-Key {scope[1]!r} came with another body before")
        keys[scope] = command.hash
        return known

    def _remembered(self, producer: str | None, key: str) -> Row | None:
        """(hash, id, state) of the first answer, while it is kept."""
        number = 0 if producer is None else self._names.party(producer)
        row: Row | None = self._db.execute(
            "select hash, id, state from idempotency where producer = ? and key = ? and at > ?",
            (number, key, self._ledger.now - IDEMPOTENCY_KEPT_US),
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

    def _check_room(self, command: Publish, load: dict[str, list[int]]) -> None:
        for name in self._targets(command):
            queue = self._names.queues.get(name)
            if queue is None:
                if not command.create:
                    raise QueueNotFound(name)
                continue
            policy = queue.policy
            if policy.max_messages is None and policy.max_bytes is None:
                continue
            slots = len(slots_of(policy, topics_in_queue(command.envelope.topics, name)))
            more = load.setdefault(name, [0, 0])
            more[0] += slots
            more[1] += slots * command.size
            held = sum(queue.states[state] for state in OPEN)
            if policy.max_messages is not None and held + more[0] > policy.max_messages:
                raise QueueFull(f"queue {name!r} holds {policy.max_messages} messages, its maxMessages")
            if policy.max_bytes is not None and queue.bytes + more[1] > policy.max_bytes:
                raise QueueFull(f"queue {name!r} has no room for {command.size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (
            (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)
        )

    def _plan_key(self, command: Publish) -> tuple[tuple[str, ...], str | None, str | None]:
        return command.envelope.topics, command.envelope.object, command.queue

    def _make_plan(self, command: Publish) -> _Plan:
        """Makes the queues that are missing. Plans of queues with limits are made each time, after a look at them."""
        self._check_room(command, {})
        envelope = (
            command.envelope
            if command.queue is not None
            else with_object(command.envelope, self._infer_types)
        )
        queues = [
            self._names.queues.get(name) or self._ledger.make_queue(name) for name in self._targets(command)
        ]
        parts = [
            (queue, slots)
            for queue in queues
            if (slots := len(slots_of(queue.policy, topics_in_queue(envelope.topics, queue.name))))
        ]
        plain = None
        if (
            len(parts) == 1
            and parts[0][1] == 1
            and not parts[0][0].keyed
            and parts[0][0].policy.ttl_us is None
        ):
            plain = parts[0][0]
        plan = _Plan(
            parts,
            pack_route({queue.number: slots for queue, slots in parts}),
            sum(slots for _, slots in parts) or 1,
            plain,
            ",".join(envelope.topics),
            envelope.object,
        )
        if not any(q.policy.max_messages or q.policy.max_bytes for q in queues):
            if len(self._plans) > 10_000:
                self._plans.clear()
            self._plans[self._plan_key(command)] = plan
        return plan

    def _kind(self, command: Publish) -> _Kind:
        envelope = command.envelope
        plan = self._plans.get(self._plan_key(command)) or self._make_plan(command)
        stored = envelope
        if plan.object != envelope.object:
            stored = msgspec.structs.replace(envelope, object=plan.object)
        columns = (
            plan.route,
            plan.topics,
            plan.object,
            envelope.key,
            envelope.mime_type,
            envelope.timestamp,
            envelope.sent,
            None if envelope.producer is None else self._names.party(envelope.producer),
            envelope.encoding,
            msgspec.json.encode(envelope.meta).decode() if envelope.meta else None,
            envelope.traceparent,
        )
        kind = _Kind(envelope, command.queue, plan, stored, columns)
        # One with a key is seldom seen twice; one whose plan is made each time must not be kept.
        if envelope.key is None and self._plan_key(command) in self._plans:
            if len(self._kinds) > 1_000:
                self._kinds.clear()
            self._kinds[id(envelope)] = kind
        return kind

    def _log(self, commands: Sequence[Publish], results: list[Any]) -> None:
        """The hot loop: a row of `messages` each, and a place in `ready`; what is not plain is done by the way."""
        ledger, draw, kinds, young = self._ledger, self._draw, self._kinds, self._young.messages
        add_row, add_result, now = self._rows.messages.append, results.append, ledger.now
        make_id = id_maker(now)
        #: those of plain messages, by where they go
        ready: dict[tuple[Destination, int], array[int]] = {}
        for command in commands:
            envelope, body = command.envelope, command.body
            kind = kinds.get(id(envelope))
            named = command.id is not None or command.idempotency_key is not None
            if named or kind is None or kind.envelope is not envelope or kind.queue != command.queue:
                self._make_ready(ready)
                try:
                    if named:
                        self._check((command,))
                        known = self._first_answer(command)
                        if known is not None:
                            add_result(known)
                            continue
                    kind = self._kind(command)
                except Refused as refusal:
                    add_result(refusal)
                    continue
            plan, priority, ttl_us = kind.plan, command.priority, command.ttl_us
            sequence = ledger.head + 1
            ledger.head = sequence + plan.offsets
            salt = draw() & SALT_MASK
            message_id = command.id or make_id(sequence, salt)
            stored: bytes | str
            if isinstance(body, bytes):
                size, stored = len(body), body
            else:
                size, stored = body.size, body.place
                self._db.execute("insert into bodies values (?, ?)", (stored, sequence))
            add_row(
                (
                    sequence,
                    now,
                    salt,
                    command.id,
                    *kind.columns,
                    priority,
                    None if ttl_us is None else now + ttl_us,
                    None,
                    command.hash,
                    size,
                    stored,
                )
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
                    young[sequence] = Message(message_id, kind.stored, now, body, size, True)
            published = Published(message_id, Q if plan.parts else X)
            if named:
                self._remember(command, sequence, published)
            add_result(published)
        self._make_ready(ready)

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
        """The slots one by one, where one of them has a delay, a ttl, an order by key, or siblings."""
        now = self._ledger.now
        for queue, slots in plan.parts:
            ttl_us = queue.policy.ttl_us if command.ttl_us is None else command.ttl_us
            for number in range(slots):
                self._ledger.add(
                    Slot(
                        sequence=sequence,
                        queue=queue,
                        number=number,
                        since_at=now,
                        due_at=now + command.delay_us if command.delay_us else None,
                        expires_at=None if ttl_us is None else now + ttl_us,
                        known=bool(command.delay_us) or ttl_us is not None,
                        created_at=now,
                        key=command.envelope.key,
                        priority=command.priority,
                        size=size,
                        route=plan.route,
                    )
                )
        if not plan.parts:
            # Nothing to deliver; a row without a destination, so that the reaper finds the message.
            self._db.execute(
                "insert into deliveries values (?, 0, 0, ?, 0, 0, null, null, ?, 0, null, null)",
                (sequence, X, now),
            )

    def _first_answer(self, command: Publish) -> Published | None:
        if command.idempotency_key is not None:
            row = self._remembered(command.envelope.producer, command.idempotency_key)
            if row is not None:
                return Published(row[1], STATE[row[2]])
        if command.id is None:
            return None
        self._rows.flush()
        sequence = self._reader.sequence_of(command.id)
        if sequence is None:
            return None
        known = Published(command.id, self._state_of(sequence))
        self._remember_key(command, known)
        return known

    def _state_of(self, sequence: int) -> State:
        route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
        states = [state for _, state in self._reader.states(sequence, route)]
        return message_state(states) if states else X

    def _remember(self, command: Publish, sequence: int, published: Published) -> None:
        if command.id is not None:
            self._db.execute("insert into own_ids values (?, ?)", (command.id, sequence))
        self._remember_key(command, published)

    def _remember_key(self, command: Publish, published: Published) -> None:
        if command.idempotency_key is not None:
            producer = command.envelope.producer
            self._db.execute(
                "insert or replace into idempotency values (?, ?, ?, ?, ?, ?)",
                (
                    0 if producer is None else self._names.party(producer),
                    command.idempotency_key,
                    command.hash,
                    self._ledger.now,
                    published.id,
                    published.state,
                ),
            )
