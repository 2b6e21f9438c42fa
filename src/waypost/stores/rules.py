"""The rules: what each command does, over any store's rows.

    command ─▶ Rules ── asks and tells ──▶ Rows          memory: dicts and lists
                 '─▶ result, or a Refused                postgres: what a group has read, and writes at its end

The order in which things are asked, changed and logged is part of the rules: stores that share them write the same log, event for
event. `delivery.py` decides single steps; here stands what surrounds them. This file knows no SQL and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from ..acts import Deliveries, Tally, Verdict, meant, verdict
from ..batches import check_same, check_uploads
from ..canonical import content_hash
from ..commands import (
    JOB_STATES,
    AcceptBatch,
    Act,
    Acted,
    Batch,
    Command,
    Confirm,
    Decide,
    Decided,
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
    EnterRows,
    Erased,
    ErasePayload,
    Extend,
    Extended,
    Fetch,
    Fetched,
    Job,
    JobKind,
    KeepUpload,
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
    StartJob,
    Tick,
    Upload,
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
    K,
    L,
    N,
    O,
    Q,
    Reason,
    S,
    State,
    Step,
    T,
    U,
    X,
    lease_over,
    settle,
)
from ..destinations import Kind
from ..errors import (
    BatchNotFound,
    ChannelNotFound,
    ConsumerRequired,
    IdempotencyConflict,
    IdTaken,
    LogTrimmed,
    MessageNotFound,
    QueueFull,
    QueueNotFound,
    Refused,
    RequestInvalid,
    StillLogged,
)
from ..filters import Filter, bounds_fetches, in_bounds, selects_message
from ..message import SALT_MASK, Entropy, Envelope, make_receipt, parse_receipt
from ..names import ANONYMOUS, DEFAULT_QUEUE
from ..objects import DEFAULT_OBJECT
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
from ..topics import any_topic_matches
from . import FETCH_BYTES, IDEMPOTENCY_KEPT_US, LONGEST_FAILURE, TOPIC_SCAN
from .pace import next_at, slice_of
from .things import (
    Content,
    Destination,
    Fetches,
    Fetching,
    Message,
    OpenJob,
    Remembered,
    Rows,
    Scope,
    Sent,
    Slot,
    Thing,
    new_event,
    new_message,
    new_slot,
)

#: commands that change neither names nor policies
_CHANGES_NO_NAME = frozenset({Publish, Fetch, Confirm, Extend, Release, Kick, Remove})


class Rules:
    """For one group, or for the whole life of rows that are always there."""

    def __init__(self, rows: Rows, draw: Entropy, infer_types: bool = True, keeps: bool = True) -> None:
        """`keeps`: bodies of what has ended stay for the policy's `keep`; else they are gone at once."""
        self._rows, self._draw, self._infer_types, self._keeps = rows, draw, infer_types, keeps
        #: the lowest sequence that this group left in L
        self.logged: int | None = None
        #: by what it says of itself: where a message goes that only has to be logged and queued
        self._plain: dict[tuple[Any, ...], list[Sent] | None] = {}

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """A result for each, a `Refused` where it was not carried out."""
        self.logged = None
        self._plain.clear()
        results: list[Any] = []
        for command in commands:
            if type(command) not in _CHANGES_NO_NAME:
                self._plain.clear()
            try:
                results.append(_DO[type(command)](self, command))
            except Refused as refusal:
                results.append(refusal)
        return results

    # ── publish ─────────────────────────────────────────────────────────────────────────────

    def _publish(self, command: Publish) -> Published:
        command = self._with_object(command)
        places = self._plain_places(command)
        if places is None:
            return self._publish_many(PublishMany([command]))[0]
        return self._rows.add_plain(command, places, self._draw) or self._log_message(command, places)

    def _plain_places(self, command: Publish) -> list[Sent] | None:
        """Where it goes, if all that would be checked of it hangs on names; looked up once for all that say the same. None: it is not so
        simple."""
        if command.idempotency_key is not None or command.id is not None or command.hold:
            return None
        envelope = command.envelope
        kind = (command.queue, envelope.topics, envelope.object, envelope.key is None)
        if kind not in self._plain:
            self._plain[kind] = self._look_up_plain(command)
        if command.queue is None and self._rows.undecided_of(envelope.object):
            return None
        return self._plain[kind]

    def _look_up_plain(self, command: Publish) -> list[Sent] | None:
        rows, topics = self._rows, command.envelope.topics
        if self._holds(command) or self._compared(command.envelope) is not None:
            return None
        found = [rows.place(Kind.QUEUE, name) for name in self._targets(command)]
        queues = [queue for queue in found if queue is not None]
        if len(queues) < len(found):
            return None
        places = [(queue, self._queue_slots(queue, topics), False) for queue in queues]
        for channel in rows.subscribed(topics):
            if channel.start > rows.head:
                return None
            places.append((channel, self._channel_slots(channel, topics), False))
        limited = any(
            place.policy.latest_only or (place.policy.max_messages, place.policy.max_bytes) != (None, None)
            for place, _, _ in places
        )
        return None if limited else places

    def _publish_many(self, command: PublishMany) -> list[Published]:
        """First every message is checked against what is there and what came before it in the request; then all are
        logged."""
        planned: dict[str, bytes] = {}
        keys: dict[Scope, bytes] = {}
        contents: dict[Thing, bytes] = {}
        load: dict[Destination | str, list[int]] = {}
        messages = [self._with_object(message) for message in command.messages]
        for message in messages:
            known = self._idempotency_hash(message, keys)
            if known is None:
                known = self._own_id_hash(message, planned)
            if known is None and not self._holds(message):
                self._check_queues(message)
                if not self._would_repeat(message, contents):
                    self._check_room(message, load)
        return [self._log_message(message) for message in messages]

    def _with_object(self, command: Publish) -> Publish:
        if command.queue is not None:
            return command
        envelope = with_object(command.envelope, self._infer_types)
        return (
            command if envelope is command.envelope else msgspec.structs.replace(command, envelope=envelope)
        )

    def _idempotency_hash(self, command: Publish, keys: dict[Scope, bytes]) -> bytes | None:
        if command.idempotency_key is None:
            return None
        scope = (command.envelope.producer, command.idempotency_key)
        stored = self._remembered(scope)
        known = keys.get(scope) if stored is None else stored.hash
        if known is not None and known != command.hash:
            raise IdempotencyConflict(
                f"Idempotency-Key {command.idempotency_key!r} came with another body before"
            )
        keys[scope] = command.hash
        return known

    def _remembered(self, scope: Scope) -> Remembered | None:
        stored = self._rows.remembered(scope)
        return None if stored is None or stored.at + IDEMPOTENCY_KEPT_US <= self._rows.now else stored

    def _own_id_hash(self, command: Publish, planned: dict[str, bytes]) -> bytes | None:
        if command.id is None:
            return None
        stored = self._rows.message(command.id)
        known = planned.get(command.id) if stored is None else stored.hash
        if known is not None and known != command.hash:
            raise IdTaken(command.id)
        planned[command.id] = command.hash
        return known

    def _holds(self, command: Publish) -> bool:
        """Whether it stops at L: somebody else decides where it goes, or others of its object still wait for that."""
        if command.queue is not None:
            return False
        object = command.envelope.object
        policy = DEFAULT_OBJECT if object is None else self._rows.objects.get(object, DEFAULT_OBJECT)
        if command.hold or policy.route == "spark":
            return True
        return bool(self._rows.undecided_of(object))

    def _check_queues(self, command: Publish) -> None:
        if not command.create:
            for name in self._targets(command):
                if self._rows.place(Kind.QUEUE, name) is None:
                    raise QueueNotFound(name)

    def _check_room(self, command: Publish, load: dict[Destination | str, list[int]]) -> None:
        """Where it goes is room for it, beside what the request brings already."""
        topics = command.envelope.topics
        for name in self._targets(command):
            queue = self._rows.place(Kind.QUEUE, name)
            policy = DEFAULT if queue is None else queue.policy
            slots = self._slots(policy, name, topics)
            self._check_load(queue or name, len(slots), command.size, load)
        for channel in self._rows.subscribed(topics):
            self._check_load(channel, len(self._channel_slots(channel, topics)), command.size, load)

    def _check_load(
        self, place: Destination | str, slots: int, size: int, load: dict[Destination | str, list[int]]
    ) -> None:
        if isinstance(place, str):
            return
        more = load.setdefault(place, [0, 0])
        more[0] += slots
        more[1] += slots * size
        most, most_bytes = place.policy.max_messages, place.policy.max_bytes
        if most is None and most_bytes is None:
            return
        held, held_bytes = self._rows.held(place)
        what = f"{place.kind.word} {place.name!r}"
        if most is not None and held + more[0] > most:
            raise QueueFull(f"{what} holds {most} messages, its maxMessages")
        if most_bytes is not None and held_bytes + more[1] > most_bytes:
            raise QueueFull(f"{what} has no room for {size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (
            (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)
        )

    def _log_message(self, command: Publish, places: list[Sent] | None = None) -> Published:
        """`places`: where it goes, if that is known already, and nothing can hold it."""
        scope = (command.envelope.producer, command.idempotency_key)
        if command.idempotency_key is not None and (stored := self._remembered(scope)):  # type: ignore[arg-type]
            return stored.published
        if command.id is not None and (known := self._rows.message(command.id)):
            return self._remember(command, Published(known.id, known.state, known.same_as))
        assert isinstance(command.body, bytes)
        held = places is None and self._holds(command)
        sequence = self._rows.head + 1
        salt = self._draw() & SALT_MASK
        message = new_message(command, sequence, salt, self._rows.now, routed=not held)
        self._rows.add(message, command.body)
        self._event(message, None, None, L, envelope=message.envelope, hash=message.hash, size=message.size)
        if held:
            self._note_logged(message)
        elif places is not None:
            self._send(message, places)
        else:
            parts = [Part(name, None) for name in self._targets(command)]
            self._settle_route(message, parts, command.content)
        return self._remember(command, Published(message.id, message.state, message.same_as))

    def _remember(self, command: Publish, published: Published) -> Published:
        if command.idempotency_key is not None:
            scope = (command.envelope.producer, command.idempotency_key)
            self._rows.remember(scope, Remembered(command.hash, published, self._rows.now))
        return published

    def _note_logged(self, message: Message) -> None:
        self._rows.set_undecided(message, True)
        self._see_logged(message.sequence)

    def _see_logged(self, sequence: int) -> None:
        self.logged = min(sequence, self.logged or sequence)

    # ── unchanged? ──────────────────────────────────────────────────────────────────────────

    def _would_repeat(self, command: Publish, contents: dict[Thing, bytes]) -> bool:
        """Whether it will be unchanged, after those that came before it in the request."""
        envelope = command.envelope
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
        ignore = self._compared(envelope)
        return None if ignore is None else given or content_hash(body, ignore)

    def _compared(self, envelope: Envelope) -> tuple[str, ...] | None:
        """The paths that its content's hash leaves out; None where nothing is compared."""
        if envelope.object is None or envelope.key is None:
            return None
        unchanged = self._rows.objects.get(envelope.object, DEFAULT_OBJECT).unchanged
        return None if unchanged is None else unchanged.ignore

    def _repeated(self, thing: Thing, hash: bytes) -> Content | None:
        """The last one of its thing, if it says the same and was not in vain."""
        last, unchanged = self._rows.content(thing), self._rows.objects[thing[0]].unchanged
        if (
            last is None
            or unchanged is None
            or last.hash != hash
            or last.at + unchanged.window_us <= self._rows.now
        ):
            return None
        message = self._rows.message_at(last.sequence)
        state = last.end if message is None else message.state
        return None if state in UNDELIVERED else last

    def _settle_route(self, message: Message, parts: list[Part], content: bytes) -> None:
        """A logged message is unchanged, or goes where the parts say."""
        message.routed = True
        hash = None
        if message.kept and self._compared(message.envelope) is not None:
            body = b"" if content else self._rows.body(message) or b""
            hash = self._content_hash(message.envelope, body, content)
        thing = message.thing
        if hash is not None and thing is not None:
            last = None if message.force else self._repeated(thing, hash)
            if last is not None:
                message.same_as, message.ended_at = last.id, self._rows.now
                producer = message.envelope.producer or ANONYMOUS
                self._rows.count_unchanged(thing[0], producer)
                self._event(message, None, L, U, same_as=last.id, duration_ms=self._age_ms(message))
                return
            self._rows.set_content(thing, Content(hash, message.id, message.sequence, self._rows.now))
        self._deliver(message, parts)

    # ── where it goes ───────────────────────────────────────────────────────────────────────

    def _deliver(self, message: Message, parts: list[Part]) -> None:
        topics = message.envelope.topics
        places: list[Sent] = []
        for part in parts:
            queue = self._rows.place(Kind.QUEUE, part.queue) or self._rows.make(
                Kind.QUEUE, part.queue, DEFAULT
            )
            slots = self._queue_slots(queue, topics) if part.slots is None else part.slots
            places.append((queue, slots, part.kick))
        for channel in self._rows.subscribed(topics):
            if channel.start <= message.sequence:
                places.append((channel, self._channel_slots(channel, topics), False))
        self._send(message, places)
        for place, slots, _ in places:
            if slots:
                self._note_latest(message, place)

    def _send(self, message: Message, places: list[Sent]) -> None:
        for place, slots, kick in places:
            for number, named in enumerate(slots):
                self._route(message, place, number, named=named, kick=kick, duration_ms=self._age_ms(message))
        if not any(slots and place.is_queue for place, slots, _ in places):
            message.ended_at = self._rows.now
            self._event(message, None, L, X, duration_ms=self._age_ms(message))

    def _age_ms(self, message: Message) -> int:
        return (self._rows.now - message.created_at) // 1_000

    def _queue_slots(self, queue: Destination, topics: tuple[str, ...]) -> Slots:
        return self._slots(queue.policy, queue.name, topics)

    def _slots(self, policy: Policy, queue: str, topics: tuple[str, ...]) -> Slots:
        return slots_of(policy, topics_in_queue(topics, queue), self._registered(Kind.QUEUE, queue, topics))

    def _channel_slots(self, channel: Destination, topics: tuple[str, ...]) -> Slots:
        registered = self._registered(Kind.CHANNEL, channel.name, topics)
        return slots_of(channel.policy, topics_in_channel(topics, channel.topics), registered)

    def _registered(self, kind: Kind, name: str, topics: tuple[str, ...]) -> list[str]:
        """Consumers of a destination that want a message of these topics."""
        if not self._rows.consumers:
            return []
        return [
            known
            for known, info in sorted(self._rows.consumers.items())
            if (info.consumer.kind, info.consumer.destination) == (kind, name) and info.consumer.wants(topics)
        ]

    def _route(
        self,
        message: Message,
        queue: Destination,
        number: int,
        *,
        named: str | None = None,
        kick: bool = False,
        reason: str | None = None,
        duration_ms: int = 0,
    ) -> None:
        slot = new_slot(message, queue, number, named, self._rows.now, kick=kick, reason=reason)
        self._rows.add_slot(slot)
        self._event(message, slot, L, Q, reason=reason, duration_ms=duration_ms)

    def _note_latest(self, message: Message, place: Destination) -> None:
        """`latestOnly`: what waits there of older messages about the same thing is obsolete, or this one is."""
        thing = message.thing
        if not place.policy.latest_only or thing is None:
            return
        rows = self._rows
        rows.set_latest(place, thing, max(message.sequence, rows.latest(place, thing)))
        waiting = rows.waiting(place, thing)
        for slot in sorted(waiting, key=lambda slot: (slot.message.sequence, slot.number)):
            self._let_obsolete(slot)

    def _let_obsolete(self, slot: Slot) -> None:
        """What would wait although a newer message of its thing came, after its last redrive if there was one."""
        place = slot.queue
        if not place.policy.latest_only or slot.state not in WAITING:
            return
        thing = slot.message.thing
        if thing is None:
            return
        if self._rows.latest(place, thing) > max(slot.message.sequence, slot.redriven):
            self._take(slot, Step((O,), Reason.OBSOLETE, None, slot.tries))

    def _known(self, kind: Kind, name: str) -> Destination:
        known = self._rows.place(kind, name)
        if known is None:
            raise QueueNotFound(name) if kind is Kind.QUEUE else ChannelNotFound(name)
        return known

    def _decide(self, command: Decide) -> Decided:
        message = self._rows.message(command.id)
        if message is None:
            raise MessageNotFound(command.id)
        if not self._rows.undecided(message):
            return Decided(message.id, message.state, message.same_as, applied=False)
        self._rows.set_undecided(message, False)
        if command.failure is not None:
            queue = self._rows.place(Kind.QUEUE, DEFAULT_QUEUE) or self._rows.make(
                Kind.QUEUE, DEFAULT_QUEUE, DEFAULT
            )
            reason = command.failure[-LONGEST_FAILURE:]
            slot = Slot(message, queue, 0, E, self._rows.now, None, None, reason=reason)
            self._rows.add_slot(slot)
            self._event(message, slot, L, E, reason=reason, duration_ms=self._age_ms(message))
        else:
            registered = {name: info.consumer for name, info in self._rows.consumers.items()}
            parts = parts_of(command.route, message.envelope, registered, self._infer_types)
            self._settle_route(message, parts, command.content)
        return Decided(message.id, message.state, message.same_as)

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
            body = self._rows.body(slot.message)
            if body is None:
                self._take(slot, Step((E,), Reason.DAMAGED, None, slot.tries))
                continue
            fetched.append(self._hand_out(slot, command, body))
        return fetched

    def _next(self, queue: Destination, command: Fetch) -> Slot | None:
        if queue.policy.paused or queue.deleted:
            return None
        pattern, consumer = command.topic, command.consumer
        fetchable = self._rows.fetchable(queue, consumer if pattern is None else None)
        if pattern is not None:
            fetchable = (
                slot
                for slot in islice(fetchable, TOPIC_SCAN)
                if any_topic_matches(pattern, slot.message.envelope.topics)
            )
        return next((slot for slot in fetchable if _may_have(consumer, slot)), None)

    def _hand_out(self, slot: Slot, command: Fetch, body: bytes) -> Fetched:
        policy = slot.queue.policy
        salt = self._draw()
        slot.attempt += 1
        slot.consumer = command.consumer
        until_at = self._rows.now + (policy.lease_us if command.lease_us is None else command.lease_us)
        kicked = policy.kick or slot.kick
        offset = self._rows.head + 1
        fetching = Fetching(
            offset, slot, salt, command.consumer, self._rows.now, became=K if kicked else None
        )
        slot.fetch = offset
        self._rows.add_fetching(fetching)
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

    def _settle(self, receipt: str, queue: Destination, command: Confirm) -> Settled:
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
            now=self._rows.now,
            draw=self._draw,
        )
        if step.path[0] is N:
            slot.refused.add(slot.consumer)
        fetch.outcome = command.outcome
        self._take(slot, step, confirmed=True)
        fetch.became = slot.state
        return Settled(receipt, slot.message.id, slot.state)

    def _valid(self, receipt: str, queue: Destination | None) -> Fetching | None:
        """The fetch of a receipt that is not stale, or that was settled by a confirm. A lease that is over does not
        make it stale; the next fetch does."""
        parsed = parse_receipt(receipt)
        fetch = self._rows.fetching(parsed[0]) if parsed else None
        if fetch is None or parsed is None or fetch.salt != parsed[1]:
            return None
        if queue is not None and queue is not fetch.slot.queue:
            return None
        if fetch.became is None and not fetch.counts:
            return None
        return fetch

    def _extend(self, command: Extend) -> list[Extended]:
        queue = self._known(command.kind, command.queue)
        until_at = self._rows.now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
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
        queue, message = self._rows.place(command.kind, command.queue), self._rows.message(command.id)
        done = False
        for slot in message.slots if message and queue else ():
            if slot.queue is queue and slot.state in OPEN:
                fetched = slot.state is F
                self._take(slot, Step((S,) if fetched else (C,), Reason.REMOVED, None, slot.tries))
                done = True
        return done

    # ── queues, channels, objects, consumers, spectators ────────────────────────────────────

    def _declare_queue(self, command: DeclareQueue) -> Declared:
        queue = self._rows.place(Kind.QUEUE, command.name)
        if queue is None:
            self._rows.make(Kind.QUEUE, command.name, command.policy or DEFAULT)
            return Declared(True)
        if command.policy is not None:
            queue.policy = command.policy
            self._rows.changed(queue)
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        return self._delete(self._known(Kind.QUEUE, command.name), Filter(queue=command.name))

    def _declare_channel(self, command: DeclareChannel) -> Declared:
        rows, head = self._rows, self._rows.head
        start = head + 1
        if command.start is not None:
            start = max(1, min(command.start, start))
            if start < rows.oldest():
                raise LogTrimmed(rows.oldest())
        elif command.start_at is not None:
            start = rows.offset_at(command.start_at)
        channel = rows.place(Kind.CHANNEL, command.name)
        created = channel is None
        if channel is None:
            channel = rows.make(Kind.CHANNEL, command.name, command.policy)
            channel.start = start
        channel.policy, channel.topics = command.policy, command.topics
        channel.start = min(channel.start, start)
        rows.changed(channel)
        if start > head:
            return Declared(created)
        job = self._open_job(JobKind.BACKFILL, Filter(channel=command.name), 0, channel)
        job.cursor = start - 1
        return Declared(created, str(job.number))

    def _delete_channel(self, command: DeleteChannel) -> Job:
        return self._delete(self._known(Kind.CHANNEL, command.name), Filter(channel=command.name))

    def _delete(self, place: Destination, filter: Filter) -> Job:
        matched, _ = self._rows.held(place)
        place.deleted_at = self._rows.now
        self._rows.delete(place)
        return self._open_job(JobKind.DELETE, filter, matched, place).info()

    def _declare_object(self, command: DeclareObject) -> Declared:
        created = command.name not in self._rows.objects
        self._rows.set_object(command.name, command.policy)
        self._object_changed(command.name)
        return Declared(created)

    def _delete_object(self, command: DeleteObject) -> bool:
        existed = command.name in self._rows.objects
        self._rows.set_object(command.name, None)
        self._object_changed(command.name)
        return existed

    def _object_changed(self, name: str) -> None:
        if self._rows.objects.get(name, DEFAULT_OBJECT).route == "inline":
            for sequence in self._rows.undecided_of(name):
                self._see_logged(sequence)

    def _declare_consumer(self, command: DeclareConsumer) -> Declared:
        self._known(command.consumer.kind, command.consumer.destination)
        known = self._rows.consumers.get(command.name)
        created_at = self._rows.now if known is None else known.created_at
        self._rows.set_consumer(command.name, command.consumer, created_at)
        return Declared(known is None)

    def _delete_consumer(self, command: DeleteConsumer) -> bool:
        existed = command.name in self._rows.consumers
        self._rows.set_consumer(command.name, None, 0)
        return existed

    def _set_spectator(self, command: SetSpectator) -> Declared:
        head = self._rows.head
        if not 0 <= command.offset <= head:
            raise RequestInvalid(
                f"no event has offset {command.offset}", f"the log ends at {head}; 0 is before its beginning"
            )
        return Declared(not self._rows.set_spectator(command.name, command.offset))

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def _start_job(self, command: StartJob) -> Job:
        job = self._open_job(command.kind, command.filter, command.matched, None)
        job.consumer, job.rate = command.consumer, command.rate
        return job.info()

    def _open_job(self, kind: JobKind, filter: Filter, matched: int, place: Destination | None) -> OpenJob:
        rows = self._rows
        return rows.open_job(
            OpenJob(0, kind, filter, rows.head, rows.newest_place(), matched, rows.now, place)
        )

    def _work(self, command: Work) -> bool:
        rows = self._rows
        job = rows.next_job()
        if job is None:
            return False
        limit = slice_of(command.limit, job.rate)
        steps = 0
        for message in rows.messages_for(job):
            steps += self._work_on(job, message)
            job.cursor = message.sequence
            if steps >= limit:
                break
        else:
            job.ended_at = rows.now
        job.done += steps
        job.next_at = next_at(rows.now, steps, job.rate)
        return rows.next_job() is not None

    def _work_on(self, job: OpenJob, message: Message) -> int:
        if job.kind is JobKind.BACKFILL:
            assert job.place is not None
            return self._backfill(message, job.place)
        chosen = [slot for slot in message.in_order() if self._job_takes(job, slot)]
        done = 0
        for slot in chosen:
            if job.kind in (JobKind.REDRIVE, JobKind.REPLAY):
                done += self._redrive(slot, job.kind, job.consumer)
            else:
                self._take(slot, Step((C,), _cancel_reason(job.kind, slot.queue.kind), None, slot.tries))
                done += 1
        return done

    def _job_takes(self, job: OpenJob, slot: Slot) -> bool:
        if job.kind is JobKind.DELETE:
            return slot.queue is job.place and slot.state in JOB_STATES[job.kind]
        again = job.kind in (JobKind.REDRIVE, JobKind.REPLAY)
        return (
            not slot.queue.deleted
            and slot.queue.number <= job.newest
            and slot.state in JOB_STATES[job.kind]
            and selects(job.filter, slot, self._rows)
            # What has no body any more cannot be delivered again.
            and not (again and not slot.message.kept)
        )

    def _could_have(self, slot: Slot, consumer: str | None) -> bool:
        """Whether the one that a redrive is for could ever fetch it."""
        named = slot.routed if consumer is None else consumer
        return (
            not slot.message.routed
            or named is None
            or not any(other.holds_off(named) or other.waits_for(named) for other in slot.beside())
        )

    def _redrive(self, slot: Slot, kind: JobKind, consumer: str | None) -> bool:
        """Back to Q; or, where the routing function had failed, back to L to be routed again. Not where the consumer that it
        is for could never have it."""
        reason = Reason.REPLAYED if kind is JobKind.REPLAY else Reason.REDRIVEN
        message = slot.message
        if not self._could_have(slot, consumer):
            return False
        if message.routed:
            slot.named = slot.routed if consumer is None else consumer
            self._take(slot, Step((Q,), reason))
            return True
        self._event(message, slot, E, L, reason=reason, duration_ms=(self._rows.now - slot.since_at) // 1_000)
        self._rows.remove_slot(slot)
        self._note_logged(message)
        return True

    def _act(self, command: Act) -> Acted:
        sequences, slots = meant(command.chosen, self._slots_of)
        tally = Tally()
        for slot in slots:
            was, able = slot.state, partial(self._able, command, slot)
            said = verdict(command, was, slot.since_at, able)
            if said is Verdict.DONE and not command.dry_run:
                if command.kind is JobKind.CANCEL:
                    self._take(slot, Step((C,), Reason.CANCELLED, None, slot.tries))
                else:
                    self._redrive(slot, command.kind, command.consumer)
            tally.count(was, said)
        return tally.acted(self._rows.now, sequences)

    def _slots_of(self, id: str) -> Deliveries[Slot] | None:
        message = self._rows.message(id)
        if message is None:
            return None
        return message.sequence, [(slot.queue.kind, slot.queue.name, slot) for slot in message.in_order()]

    def _able(self, act: Act, slot: Slot) -> bool:
        if slot.queue.deleted:
            return False
        return act.kind is JobKind.CANCEL or (slot.message.kept and self._could_have(slot, act.consumer))

    def _backfill(self, message: Message, channel: Destination) -> int:
        """What a channel that begins in the past gets of a message: nothing twice, and nothing that is still in L, since that
        comes by itself."""
        if channel.deleted or not message.kept or not message.routed or message.same_as is not None:
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

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def _keep_upload(self, command: KeepUpload) -> Upload:
        body = command.body
        upload = Upload(
            id=command.id,
            rows=command.rows,
            hash=command.hash,
            size=len(body) if isinstance(body, bytes) else body.size,
            kept_at=self._rows.now,
        )
        self._rows.add_upload(upload, body)
        return upload

    def _accept(self, command: AcceptBatch) -> Batch:
        known = self._rows.batch(command.query, command.batch)
        if known is not None:
            return check_same(command, known)
        uploads = check_uploads(command, self._rows.uploads(command.uploads))
        batch = Batch(
            query=command.query,
            batch=command.batch,
            number=self._rows.newest_batch() + 1,
            rows=command.rows,
            hash=command.hash,
            accepted_at=self._rows.now,
            ended_at=None if command.rows else self._rows.now,
        )
        self._rows.add_batch(batch, uploads)
        return batch

    def _enter(self, command: EnterRows) -> Batch:
        batch = self._rows.batch(command.query, command.batch)
        if batch is None:
            raise BatchNotFound(command.query, command.batch)
        if batch.entered != command.after or batch.ended_at is not None:
            return batch
        self._publish_many(PublishMany(command.messages))
        entered = batch.entered + len(command.messages)
        ended_at = self._rows.now if entered >= batch.rows else None
        batch = msgspec.structs.replace(batch, entered=entered, ended_at=ended_at)
        self._rows.move_batch(batch)
        return batch

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def _tick(self, command: Tick) -> bool:
        """The due ones in the order of their moments, leases and delays before ttls."""
        due = self._rows.due(command.limit + 1)
        for slot in due[: command.limit]:
            if slot.state is F:
                self._take(slot, lease_over(tries=slot.tries, policy=slot.queue.policy))
            else:
                slot.due_at = None
                self._rows.roused(slot.queue)
        expired = self._rows.expired(command.limit + 1)
        for slot in expired[: command.limit]:
            self._take(slot, Step((T,), Reason.EXPIRED, None, slot.tries))
        return len(due) > command.limit or len(expired) > command.limit

    # ── the lake ────────────────────────────────────────────────────────────────────────────

    def _seal(self, command: Seal) -> None:
        if not 0 <= command.upto <= self._rows.head:
            raise RequestInvalid(f"no event has offset {command.upto}", f"the log ends at {self._rows.head}")
        self._rows.seal(command.upto)

    def _erase(self, command: ErasePayload) -> bool:
        message = self._rows.message(command.id)
        sequence = command.sequence if message is None else message.sequence
        if sequence is None:
            raise MessageNotFound(command.id)
        if message is not None and message.state is L:
            raise StillLogged(command.id)
        self._rows.add_erasure(sequence)
        if message is None or not message.kept:
            return False
        self._rows.drop_body(message)
        for slot in message.in_order():
            if slot.state in OPEN:
                self._take(slot, Step((C,), Reason.ERASED, None, slot.tries))
        return True

    # ── what every change goes through ──────────────────────────────────────────────────────

    def _take(self, slot: Slot, step: Step, confirmed: bool = False) -> None:
        """One step of one slot, into the log and into its fields; `confirmed`: its consumer asked for it."""
        was, redriven = slot.state, slot.state in ENDED
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
                duration_ms=(self._rows.now - slot.since_at) // 1_000,
            )
            slot.state, slot.since_at = state, self._rows.now
        slot.due_at, slot.tries = step.due_at, step.tries
        if redriven:
            slot.tries, slot.expires_at, slot.fetch, slot.redriven = 0, None, None, self._rows.head
            slot.refused.clear()
        else:
            self._let_obsolete(slot)
        if not self._keeps and slot.message.kept and slot.state in ENDED - DEAD:
            self._rows.drop_body(slot.message)
        if slot.state is E and slot.queue.policy.dead is not None:
            self._dead_letter(slot, slot.queue.policy.dead)
        # Nothing else completes a message.
        settled = slot.queue.is_queue and slot.state in (S, K) and was not in (S, K)
        if settled and slot.message.state is X:
            self._event(slot.message, None, L, X, duration_ms=self._age_ms(slot.message))

    def _dead_letter(self, slot: Slot, name: str) -> None:
        queue = self._rows.place(Kind.QUEUE, name) or self._rows.make(Kind.QUEUE, name, DEFAULT)
        if queue is slot.queue:
            return
        there = next(
            (other for other in slot.message.slots if other.queue is queue and other.number == 0), None
        )
        if there is None:
            self._route(slot.message, queue, 0, reason=Reason.DEAD_LETTER)
            self._note_latest(slot.message, queue)

    def _event(
        self, message: Message, slot: Slot | None, from_state: State | None, to_state: State, **more: Any
    ) -> None:
        event = new_event(message, slot, self._rows.head + 1, self._rows.now, from_state, to_state, **more)
        self._rows.log(event, None if slot is None else slot.queue)


#: not in an instance: one that knows its own methods, and with them all rows of its group, would wait for the garbage collector
_DO: dict[type, Callable[[Rules, Any], Any]] = {
    Publish: Rules._publish,
    PublishMany: Rules._publish_many,
    Fetch: Rules._fetch,
    Confirm: Rules._confirm,
    Extend: Rules._extend,
    Release: Rules._let_go,
    Kick: Rules._let_go,
    Remove: Rules._remove,
    DeclareQueue: Rules._declare_queue,
    DeleteQueue: Rules._delete_queue,
    DeclareChannel: Rules._declare_channel,
    DeleteChannel: Rules._delete_channel,
    DeclareObject: Rules._declare_object,
    DeleteObject: Rules._delete_object,
    DeclareConsumer: Rules._declare_consumer,
    DeleteConsumer: Rules._delete_consumer,
    SetSpectator: Rules._set_spectator,
    DeleteSpectator: lambda rules, command: rules._rows.set_spectator(command.name, None),
    Decide: Rules._decide,
    StartJob: Rules._start_job,
    Act: Rules._act,
    Work: Rules._work,
    KeepUpload: Rules._keep_upload,
    AcceptBatch: Rules._accept,
    EnterRows: Rules._enter,
    Tick: Rules._tick,
    Reap: lambda rules, command: rules._rows.reap(command.limit),
    Seal: Rules._seal,
    ErasePayload: Rules._erase,
    Erased: lambda rules, command: rules._rows.erased(command.sequences),
}


def _may_have(consumer: str, slot: Slot) -> bool:
    """Not what is named for another, not what it refused, and never two slots of one message: where one is named for it,
    that one."""
    if slot.named is not None and slot.named != consumer:
        return False
    if consumer == ANONYMOUS:
        return True
    return consumer not in slot.refused and not any(
        other.holds_off(consumer) or (slot.named is None and other.waits_for(consumer))
        for other in slot.beside()
    )


def selects(filter: Filter, slot: Slot, rows: Fetches) -> bool:
    message, queue = slot.message, slot.queue
    if not selects_message(filter, message.envelope):
        return False
    if filter.consumer is not None and filter.consumer != (slot.consumer or slot.named):
        return False
    if bounds_fetches(filter):
        inside = any(
            fetch.consumer == filter.consumer and in_bounds(filter, fetch.at)
            for fetch in rows.fetches_of(slot)
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


def outlived(message: Message, now: int, keeps: bool = True) -> bool:
    """Everything about it has ended, none of it as a dead letter that could be redriven, for longer than its
    queues and channels keep, if they keep anything."""
    if message.state is L:
        return False
    if not any(slot.queue.is_queue for slot in message.slots):
        assert message.ended_at is not None
        if message.ended_at + DEFAULT.keep_us > now:
            return False
    return all(
        slot.state in ENDED
        and (slot.state not in DEAD or slot.queue.deleted)
        and (not keeps or slot.since_at + slot.queue.policy.keep_us <= now)
        for slot in message.slots
    )


def _cancel_reason(kind: JobKind, place: Kind) -> Reason:
    if kind is JobKind.DELETE:
        return Reason.QUEUE_DELETED if place is Kind.QUEUE else Reason.CHANNEL_DELETED
    return Reason.PURGED if kind is JobKind.PURGE else Reason.CANCELLED
