"""The memory store: the executable model of what every store must do.

It keeps plain objects and looks through them, so that a rule can be read in one place; the other stores do the same with
indexes and are checked against this one step by step. It is also the store for trying things: nothing survives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..commands import (
    JOB_STATES,
    Command,
    Confirm,
    Declared,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Extended,
    Fetch,
    Fetched,
    Job,
    JobKind,
    Publish,
    Published,
    PublishMany,
    Reap,
    Release,
    Remove,
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
    WAITING,
    C,
    E,
    F,
    I,
    K,
    L,
    N,
    Outcome,
    Q,
    R,
    Reason,
    S,
    State,
    Step,
    T,
    X,
    lease_over,
    message_state,
    settle,
)
from ..errors import (
    ConsumerRequired,
    IdempotencyConflict,
    IdTaken,
    LogTrimmed,
    MessageNotFound,
    PayloadReaped,
    QueueFull,
    QueueNotFound,
    Refused,
)
from ..filters import Filter
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
from ..names import ANONYMOUS
from ..policy import DEFAULT, Policy
from ..routing import queues_of, slots_of, topics_in_queue, with_object
from ..store import Applied, DeliveryInfo, Event, MessageInfo, QueueInfo, Stats
from ..topics import topic_matches
from . import FETCH_BYTES, IDEMPOTENCY_KEPT_US, TOPIC_SCAN


@dataclass(eq=False)
class _Queue:
    name: str
    #: names this incarnation: a queue of the same name made later has a greater one
    number: int
    policy: Policy
    created_at: int
    deleted: bool = False
    slots: list[_Slot] = field(default_factory=list)


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
    #: None once reaped
    body: bytes | None
    own_id: str | None = None
    slots: list[_Slot] = field(default_factory=list)
    last_offset: int = 0


@dataclass(eq=False)
class _Slot:
    message: _Message
    queue: _Queue
    number: int
    state: State
    since_at: int
    #: waiting: when it may be fetched; fetched: when the lease ends; None: at once, or never
    due_at: int | None
    expires_at: int | None
    attempt: int = 0
    tries: int = 0
    consumer: str | None = None
    reason: str | None = None
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
    #: how the consumer settled it, and what became of the slot
    outcome: Outcome | None = None
    became: State | None = None


@dataclass(eq=False)
class _Job:
    id: str
    kind: JobKind
    filter: Filter
    #: only messages logged by then
    until: int
    #: only queues made by then, so never the successor of one that was deleted meanwhile
    newest_queue: int
    matched: int
    started_at: int
    queue: _Queue | None = None
    cursor: int = 0
    done: int = 0
    ended_at: int | None = None


class MemoryStore:
    inline_bytes = 1 << 62
    threaded = False
    sync_seconds = 0.0

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
    ) -> None:
        self.clock = clock or SteadyClock()
        self._draw = entropy or system_entropy()
        self._infer_types = infer_types
        self._log_keep_us = log_keep_us
        self._now = 0
        self._log: list[Event] = []
        self._oldest = 1
        self._queues: dict[str, _Queue] = {}
        self._queues_made = 0
        self._messages: dict[int, _Message] = {}
        self._by_id: dict[str, _Message] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._idempotency: dict[tuple[str | None, str], tuple[bytes, Published, int]] = {}
        self._jobs: dict[str, _Job] = {}
        self._touched: set[_Queue] = set()
        self._do: dict[type, Callable[[Any], Any]] = {
            Publish: self._publish,
            PublishMany: self._publish_many,
            Fetch: self._fetch,
            Confirm: self._confirm,
            Extend: self._extend,
            Release: self._release,
            Remove: self._remove,
            DeclareQueue: self._declare,
            DeleteQueue: self._delete_queue,
            StartJob: self._start_job,
            Work: self._work,
            Tick: self._tick,
            Reap: self._reap,
        }

    # ── commands ────────────────────────────────────────────────────────────────────────────

    def apply(self, commands: Sequence[Command]) -> Applied:
        self._now = max(self._now, self.clock())
        self._touched.clear()
        results: list[Any] = []
        for command in commands:
            try:
                results.append(self._do[type(command)](command))
            except Refused as refusal:
                results.append(refusal)
        ready = {queue.name: self._ready(queue) for queue in self._touched if not queue.deleted}
        return Applied(
            results,
            {name: count for name, count in ready.items() if count},
            min(self._due(), default=None),
            any(job.ended_at is None for job in self._jobs.values()),
        )

    def _publish(self, command: Publish) -> Published:
        return self._publish_many(PublishMany([command]))[0]

    def _publish_many(self, command: PublishMany) -> list[Published]:
        """First every message is checked against what is there and what came before it in the request; then all are
        logged."""
        planned: dict[str, bytes] = {}
        keys: dict[tuple[str | None, str], bytes] = {}
        load: dict[str, list[int]] = {}
        for message in command.messages:
            known = self._idempotency_hash(message, keys)
            if known is None:
                known = self._own_id_hash(message, planned)
            if known is None:
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

    def _check_room(self, command: Publish, load: dict[str, list[int]]) -> None:
        """Every queue it goes to exists or may be made, and has room for it beside what the request brings already."""
        for name in self._targets(command):
            queue = self._queues.get(name)
            if queue is None and not command.create:
                raise QueueNotFound(name)
            policy = DEFAULT if queue is None else queue.policy
            slots = len(slots_of(policy, topics_in_queue(command.envelope.topics, name)))
            held = [slot for slot in queue.slots if slot.state in OPEN] if queue else []
            more = load.setdefault(name, [0, 0])
            more[0] += slots
            more[1] += slots * command.size
            if policy.max_messages is not None and len(held) + more[0] > policy.max_messages:
                raise QueueFull(f"queue {name!r} holds {policy.max_messages} messages, its maxMessages")
            if (
                policy.max_bytes is not None
                and sum(s.message.size for s in held) + more[1] > policy.max_bytes
            ):
                raise QueueFull(f"queue {name!r} has no room for {command.size} bytes more, by its maxBytes")

    def _targets(self, command: Publish) -> tuple[str, ...]:
        return (
            (command.queue,) if command.queue is not None else queues_of(command.envelope, self._infer_types)
        )

    def _log_message(self, command: Publish) -> Published:
        scope = (command.envelope.producer, command.idempotency_key)
        if command.idempotency_key is not None and (stored := self._remembered(scope)):  # type: ignore[arg-type]
            return stored[1]
        if command.id is not None and (known := self._by_id.get(command.id)):
            return self._remember(command, Published(known.id, self._state_of(known)))
        assert isinstance(command.body, bytes)
        sequence = len(self._log) + 1
        salt = self._draw() & SALT_MASK
        expires_at = None if command.ttl_us is None else self._now + command.ttl_us
        envelope = command.envelope
        if command.queue is None:
            envelope = with_object(envelope, self._infer_types)
        message = _Message(
            command.id or make_id(sequence, salt, self._now),
            sequence,
            self._now,
            envelope,
            command.hash,
            command.size,
            command.priority,
            expires_at,
            command.body,
            command.id,
        )
        self._messages[sequence] = self._by_id[message.id] = message
        self._event(message, None, None, L, envelope=message.envelope, hash=message.hash, size=message.size)
        for name in self._targets(command):
            queue = self._queues.get(name) or self._make_queue(name, DEFAULT)
            for number in range(len(slots_of(queue.policy, topics_in_queue(envelope.topics, name)))):
                self._route(message, queue, number, command.delay_us)
        if not message.slots:
            self._event(message, None, L, X, duration_ms=0)
        return self._remember(command, Published(message.id, self._state_of(message)))

    def _remember(self, command: Publish, published: Published) -> Published:
        if command.idempotency_key is not None:
            scope = (command.envelope.producer, command.idempotency_key)
            self._idempotency[scope] = (command.hash, published, self._now)
        return published

    def _route(
        self, message: _Message, queue: _Queue, number: int, delay_us: int = 0, reason: str | None = None
    ) -> None:
        expires_at = message.expires_at
        if expires_at is None and queue.policy.ttl_us is not None:
            expires_at = self._now + queue.policy.ttl_us
        due_at = self._now + delay_us if delay_us else None
        slot = _Slot(message, queue, number, Q, self._now, due_at, expires_at, reason=reason)
        message.slots.append(slot)
        queue.slots.append(slot)
        self._event(message, slot, L, Q, reason=reason, duration_ms=0)

    def _make_queue(self, name: str, policy: Policy) -> _Queue:
        self._queues_made += 1
        queue = self._queues[name] = _Queue(name, self._queues_made, policy, self._now)
        return queue

    def _fetch(self, command: Fetch) -> list[Fetched]:
        queue = self._queues.get(command.queue)
        if queue is None:
            raise QueueNotFound(command.queue)
        if queue.policy.counts_consumers and command.consumer == ANONYMOUS:
            raise ConsumerRequired(
                f"queue {queue.name!r} counts its consumers (complete: {queue.policy.complete})"
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

    def _next(self, queue: _Queue, command: Fetch) -> _Slot | None:
        fetchable = self._fetchable(queue)
        if command.topic is not None:
            pattern = command.topic
            fetchable = [
                slot
                for slot in fetchable[:TOPIC_SCAN]
                if any(topic_matches(pattern, topic) for topic in slot.message.envelope.topics)
            ]
        return next((slot for slot in fetchable if _may_have(command.consumer, slot)), None)

    def _fetchable(self, queue: _Queue) -> list[_Slot]:
        """In the order they are handed out."""
        if queue.policy.paused or queue.deleted:
            return []
        waiting = [slot for slot in queue.slots if slot.state in WAITING and slot.due_at is None]
        if queue.policy.order == "key":
            waiting = [slot for slot in waiting if _heads_its_key(slot)]
        return sorted(waiting, key=lambda slot: slot.place)

    def _ready(self, queue: _Queue) -> int:
        return len(self._fetchable(queue))

    def _hand_out(self, slot: _Slot, command: Fetch) -> Fetched:
        policy = slot.queue.policy
        salt = self._draw()
        slot.attempt += 1
        slot.consumer = command.consumer
        until_at = self._now + (policy.lease_us if command.lease_us is None else command.lease_us)
        kicked = policy.kick
        offset = len(self._log) + 1
        slot.fetch = self._fetches[offset] = _Fetch(slot, salt)
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
            message.body or b"",
            until_at,
        )

    def _confirm(self, command: Confirm) -> list[Settled]:
        if command.queue not in self._queues:
            raise QueueNotFound(command.queue)
        return [self._settle(receipt, command) for receipt in command.receipts]

    def _settle(self, receipt: str, command: Confirm) -> Settled:
        fetch = self._valid(receipt, command.queue)
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
            in_queue=True,
            named=slot.consumer != ANONYMOUS,
            tries=slot.tries,
            policy=slot.queue.policy,
            reason=command.reason,
            delay_us=command.delay_us,
            now=self._now,
            draw=self._draw,
        )
        if step.path[0] is N:
            slot.refused.add(slot.consumer)
        fetch.outcome, fetch.became = command.outcome, step.state
        self._take(slot, step, confirmed=True)
        return Settled(receipt, slot.message.id, step.state)

    def _valid(self, receipt: str, queue: str | None) -> _Fetch | None:
        """The fetch of a receipt that is not stale, or that was settled by a confirm. A lease that is over does not
        make it stale; the next fetch does."""
        parsed = parse_receipt(receipt)
        fetch = self._fetches.get(parsed[0]) if parsed else None
        if fetch is None or parsed is None or fetch.salt != parsed[1]:
            return None
        if queue is not None and self._queues.get(queue) is not fetch.slot.queue:
            return None
        if fetch.became is None and (fetch.slot.fetch is not fetch or fetch.slot.state not in (F, R)):
            return None
        return fetch

    def _extend(self, command: Extend) -> list[Extended]:
        queue = self._queues.get(command.queue)
        if queue is None:
            raise QueueNotFound(command.queue)
        until_at = self._now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        extended = []
        for receipt in command.receipts:
            fetch = self._valid(receipt, command.queue)
            if fetch is None or fetch.became is not None or fetch.slot.state is not F:
                extended.append(Extended(receipt))
            else:
                fetch.slot.due_at = until_at
                extended.append(Extended(receipt, until_at))
        return extended

    def _release(self, command: Release) -> list[Settled]:
        released = []
        for receipt in command.receipts:
            fetch = self._valid(receipt, None)
            if fetch is None or fetch.became is not None or fetch.slot.state is not F:
                released.append(Settled(receipt))
                continue
            self._take(fetch.slot, Step((Q,), Reason.RELEASED, None, fetch.slot.tries - 1))
            fetch.slot.fetch = None
            released.append(Settled(receipt, fetch.slot.message.id, Q))
        return released

    def _remove(self, command: Remove) -> bool:
        queue, message = self._queues.get(command.queue), self._by_id.get(command.id)
        done = False
        for slot in message.slots if message and queue else ():
            if slot.queue is queue and slot.state in OPEN:
                fetched = slot.state is F
                self._take(slot, Step((S,) if fetched else (C,), Reason.REMOVED, None, slot.tries))
                done = True
        return done

    def _declare(self, command: DeclareQueue) -> Declared:
        queue = self._queues.get(command.name)
        if queue is None:
            self._make_queue(command.name, command.policy or DEFAULT)
            return Declared(True)
        if command.policy is not None:
            queue.policy = command.policy
            self._touched.add(queue)
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        queue = self._queues.pop(command.name, None)
        if queue is None:
            raise QueueNotFound(command.name)
        queue.deleted = True
        matched = sum(slot.state in OPEN for slot in queue.slots)
        return self._open_job(JobKind.DELETE, Filter(queue=command.name), matched, queue)

    def _start_job(self, command: StartJob) -> Job:
        return self._open_job(command.kind, command.filter, command.matched, None)

    def _open_job(self, kind: JobKind, filter: Filter, matched: int, queue: _Queue | None) -> Job:
        id = f"{len(self._jobs) + 1}"
        job = _Job(id, kind, filter, len(self._log), self._queues_made, matched, self._now, queue)
        self._jobs[id] = job
        return _job_info(job)

    def _work(self, command: Work) -> bool:
        job = next((job for job in self._jobs.values() if job.ended_at is None), None)
        if job is None:
            return False
        steps = 0
        for message in sorted(self._messages.values(), key=lambda m: m.sequence):
            if not job.cursor < message.sequence <= job.until:
                continue
            for slot in [slot for slot in message.slots if self._job_takes(job, slot)]:
                self._take(slot, _job_step(job.kind, slot))
                steps += 1
                job.done += 1
            job.cursor = message.sequence
            if steps >= command.limit:
                return True
        job.ended_at = self._now
        return any(job.ended_at is None for job in self._jobs.values())

    def _job_takes(self, job: _Job, slot: _Slot) -> bool:
        if job.kind is JobKind.DELETE:
            return slot.queue is job.queue and slot.state in JOB_STATES[job.kind]
        return (
            not slot.queue.deleted
            and slot.queue.number <= job.newest_queue
            and slot.state in JOB_STATES[job.kind]
            and _selects(job.filter, slot)
            # What has no body any more cannot be delivered again.
            and not (job.kind is JobKind.REDRIVE and slot.message.body is None)
        )

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

    def _reap(self, command: Reap) -> bool:
        reaped = 0
        for message in list(self._messages.values()):
            if message.body is not None and self._outlived(message):
                message.body = None
                reaped += 1
        gone = self._now - self._log_keep_us
        while self._oldest <= len(self._log) and self._log[self._oldest - 1].at < gone:
            self._oldest += 1
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
        return False

    def _outlived(self, message: _Message) -> bool:
        """Everything about it has ended, none of it as a dead letter that could be redriven, for longer than its
        queues keep."""
        if not message.slots:
            return message.created_at + DEFAULT.keep_us <= self._now
        return all(
            slot.state in ENDED
            and (slot.state not in DEAD or slot.queue.deleted)
            and slot.since_at + slot.queue.policy.keep_us <= self._now
            for slot in message.slots
        )

    def _forget(self, message: _Message) -> None:
        del self._messages[message.sequence], self._by_id[message.id]
        for slot in message.slots:
            slot.queue.slots.remove(slot)
        self._fetches = {offset: f for offset, f in self._fetches.items() if f.slot.message is not message}

    # ── what every change goes through ──────────────────────────────────────────────────────

    def _take(self, slot: _Slot, step: Step, confirmed: bool = False) -> None:
        """One step of one slot, into the log and into its fields; `confirmed`: its consumer asked for it."""
        was_completed = self._state_of(slot.message) is X
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
            slot.tries, slot.expires_at, slot.fetch = 0, None, None
            slot.refused.clear()
        if slot.state is E and slot.queue.policy.dead is not None:
            self._dead_letter(slot, slot.queue.policy.dead)
        if not was_completed and self._state_of(slot.message) is X:
            created_at = slot.message.created_at
            self._event(slot.message, None, L, X, duration_ms=(self._now - created_at) // 1_000)

    def _dead_letter(self, slot: _Slot, name: str) -> None:
        queue = self._queues.get(name) or self._make_queue(name, DEFAULT)
        if queue is slot.queue:
            return
        there = next(
            (other for other in slot.message.slots if other.queue is queue and other.number == 0), None
        )
        if there is None:
            self._route(slot.message, queue, 0, reason=Reason.DEAD_LETTER)

    def _event(
        self, message: _Message, slot: _Slot | None, from_state: State | None, to_state: State, **more: Any
    ) -> None:
        if slot is not None:
            more |= {"queue": slot.queue.name, "slot": slot.number, "attempt": slot.attempt}
            self._touched.add(slot.queue)
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

    def _state_of(self, message: _Message) -> State:
        if not message.slots:
            return X
        return message_state(slot.state for slot in message.slots)

    def _slots(self) -> Iterator[_Slot]:
        for message in self._messages.values():
            yield from message.slots

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> bytes | Staged:
        return body

    def unstage(self, body: Staged) -> bytes:
        raise PayloadReaped("the memory store stages nothing")

    def refusal(self) -> Exception | None:
        return None

    def ready(self, queue: str) -> int | None:
        known = self._queues.get(queue)
        return None if known is None else self._ready(known)

    def queue(self, name: str) -> QueueInfo | None:
        queue = self._queues.get(name)
        if queue is None:
            return None
        states: dict[State, int] = {}
        for slot in queue.slots:
            states[slot.state] = states.get(slot.state, 0) + 1
        held = sum(slot.message.size for slot in queue.slots if slot.state in OPEN)
        return QueueInfo(
            name=name,
            policy=queue.policy,
            created_at=queue.created_at,
            states=states,
            bytes=held,
            ready=self._ready(queue),
        )

    def queues(self) -> list[QueueInfo]:
        return [info for name in sorted(self._queues) if (info := self.queue(name))]

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
            state=self._state_of(message),
            same_as=None,
            deliveries=[_delivery_info(slot) for slot in message.slots],
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
            found += [_delivery_info(slot) for slot in message.slots if _selects(filter, slot)]
            after = message.sequence
        return found, None

    def job(self, id: str) -> Job | None:
        job = self._jobs.get(id)
        return None if job is None else _job_info(job)

    def stats(self) -> Stats:
        return Stats(oldest=self._oldest, head=len(self._log), disk_bytes=0)

    def close(self) -> None:
        """Nothing to close."""


def _is_due(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _may_have(consumer: str, slot: _Slot) -> bool:
    """Not what it refused, and never two slots of one message."""
    if consumer == ANONYMOUS:
        return True
    beside = [other for other in slot.message.slots if other.queue is slot.queue]
    return not any(
        consumer in other.refused
        or (other is not slot and other.consumer == consumer and other.state in (F, S, K, I, E))
        for other in beside
    )


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


def _selects(filter: Filter, slot: _Slot) -> bool:
    message = slot.message
    return (
        (filter.id is None or filter.id == message.id)
        and (filter.queue is None or filter.queue == slot.queue.name)
        and (filter.states is None or slot.state in filter.states)
        and (filter.since_at is None or message.created_at >= filter.since_at)
        and (filter.until_at is None or message.created_at < filter.until_at)
    )


def _job_step(kind: JobKind, slot: _Slot) -> Step:
    if kind is JobKind.REDRIVE:
        return Step((Q,), Reason.REDRIVEN)
    reason = {
        JobKind.CANCEL: Reason.CANCELLED,
        JobKind.PURGE: Reason.PURGED,
        JobKind.DELETE: Reason.QUEUE_DELETED,
    }[kind]
    return Step((C,), reason, None, slot.tries)


def _job_info(job: _Job) -> Job:
    return Job(
        id=job.id,
        kind=job.kind,
        matched=job.matched,
        done=job.done,
        started_at=job.started_at,
        ended_at=job.ended_at,
    )


def _delivery_info(slot: _Slot) -> DeliveryInfo:
    return DeliveryInfo(
        sequence=slot.message.sequence,
        message_id=slot.message.id,
        queue=slot.queue.name,
        slot=slot.number,
        state=slot.state,
        attempt=slot.attempt,
        consumer=slot.consumer,
        reason=slot.reason,
        created_at=slot.message.created_at,
        changed_at=slot.since_at,
        due_at=slot.due_at,
    )
