"""Deciding: what each command of a group does, as records.

Commands are decided in order against the picture, each record is absorbed at once, so earlier commands are visible to later
ones. What `delivery.py` decides is decided there. Of files only what is claimed moves here; all others follow when the group is
on stable media, to where the picture says they belong.

Who calls holds the log's lock and has read what others appended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ...acts import AGAIN, Deliveries, Tally, Verdict, meant, verdict
from ...commands import (
    JOB_STATES,
    Act,
    Acted,
    Command,
    Confirm,
    Declared,
    DeclareQueue,
    DeleteQueue,
    DeleteSpectator,
    Extend,
    Extended,
    Fetch,
    Fetched,
    Job,
    JobKind,
    Kick,
    Publish,
    Published,
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
from ...delivery import (
    DEAD,
    ENDED,
    OPEN,
    WAITING,
    C,
    E,
    F,
    K,
    O,
    Q,
    R,
    Reason,
    S,
    Step,
    T,
    lease_over,
    message_state,
    settle,
)
from ...destinations import Kind
from ...errors import (
    ChannelNotFound,
    DiskLow,
    IdempotencyConflict,
    IdTaken,
    NotOffered,
    QueueFull,
    QueueNotFound,
    Refused,
    RequestInvalid,
)
from ...filters import Filter, bounds_fetches, in_bounds, selects_message
from ...message import SALT_MASK, Entropy, Envelope, make_id, make_receipt, parse_receipt
from ...names import ANONYMOUS
from ...policy import DEFAULT, Policy
from ...routing import queues_of, with_object
from ...topics import any_topic_matches
from .. import FETCH_BYTES, IDEMPOTENCY_KEPT_US, SPECTATORS_HOLD_US, TOPIC_SCAN
from ..pace import next_at, slice_of
from .claiming import Claims, is_whole
from .picture import Message, Picture, Place, Queue, Remembered
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
)
from .tree import Spot, Tree

_ELSEWHERE = "the sqlite store does: --store sqlite:////var/lib/waypost/waypost.db"

#: what is known of a file that somebody dropped
_UNSAID = Envelope()
_CANCELLED_BY = {
    JobKind.DELETE: Reason.QUEUE_DELETED,
    JobKind.PURGE: Reason.PURGED,
    JobKind.CANCEL: Reason.CANCELLED,
}

#: the identity of a command; inside a group, `id` is a message's
id_of = id


class Found(NamedTuple):
    """A file that is no message yet."""

    queue: str
    id: str
    place: Place
    size: int
    hash: bytes

    @property
    def name(self) -> str:
        """In new/."""
        return f"{self.queue}:{self.id}"


class Group:
    """A group on its way: its moment, the bodies that were put away for it, and what it has come to."""

    def __init__(self, now: int, staged: Mapping[int, Spot | DiskLow]) -> None:
        self.now = now
        #: by the identity of their command
        self.staged = dict(staged)
        self.records: list[Record] = []
        #: queues whose folder may go
        self.emptied: list[str] = []


class Decider:
    def __init__(
        self,
        picture: Picture,
        tree: Tree,
        claims: Claims,
        *,
        draw: Entropy,
        infer_types: bool,
        log_keep_us: int,
        moves: bool,
        offset_at: Callable[[int], int],
    ) -> None:
        """`moves`: whether what is due is done here; `offset_at`: of a moment, in the log."""
        self._picture, self._tree, self._claims = picture, tree, claims
        self._draw, self._infer_types, self._log_keep_us = draw, infer_types, log_keep_us
        self._moves, self._offset_at = moves, offset_at
        #: whether there is a lake, and up to where it was seen to go
        self.lake = False
        self.lake_holds: int | None = None
        self._group = Group(0, {})
        self._do: dict[type, Callable[[Any], Any]] = {
            Publish: self._publish,
            Fetch: self._fetch,
            Confirm: self._confirm,
            Extend: self._extend,
            Release: self._let_go,
            Kick: self._let_go,
            Remove: self._remove,
            DeclareQueue: self._declare_queue,
            DeleteQueue: self._delete_queue,
            SetSpectator: self._set_spectator,
            DeleteSpectator: self._delete_spectator,
            StartJob: self._start_job,
            Act: self._act,
            Work: self._work,
            Tick: self._tick,
            Reap: self._reap,
            Seal: self._seal,
        }

    def turn_to(self, picture: Picture) -> None:
        """Away from one in which too much was decided."""
        self._picture = picture
        self._claims.turn_to(picture)

    def decide(self, group: Group, command: Command) -> Any:
        """Its result, or a Refused."""
        self._group = group
        do = self._do.get(type(command))
        try:
            if do is None:
                raise NotOffered(f"the folder store does not know {type(command).__name__}", _ELSEWHERE)
            return do(command)
        except Refused as refusal:
            return refusal

    def nap(self, command: Fetch) -> None:
        """Before the lock, where there are peers."""
        self._claims.nap(self._picture.queues.get(command.queue))

    @property
    def _now(self) -> int:
        return self._group.now

    def _record(self, record: Record) -> None:
        self._group.records.append(record)
        self._picture.absorb(record, self._now)

    # ── publish ─────────────────────────────────────────────────────────────────────────────

    def _publish(self, command: Publish) -> Published:
        name = self._target(command)
        known = self._remembered(command)
        if known is not None:
            return known.published
        if command.id is not None and (there := self._picture.by_id.get(command.id)) is not None:
            if there.hash != command.hash:
                raise IdTaken(command.id)
            return self._remember(command, there)
        queue = self._picture.queues.get(name)
        if queue is None and not command.create:
            raise QueueNotFound(name)
        if queue is not None:
            _check_room(queue, command.size)
        spot = self._group.staged.get(id_of(command))
        if isinstance(spot, DiskLow):
            raise spot
        return self._log_message(command, queue or self._make(name, DEFAULT), spot)

    def _target(self, command: Publish) -> str:
        if command.hold:
            raise NotOffered("the folder store has no routing function", _ELSEWHERE)
        if command.queue is not None:
            return command.queue
        queues = queues_of(command.envelope, self._infer_types)
        if len(queues) > 1:
            raise NotOffered(
                f"a message in the folder store has one queue, and this one names {', '.join(queues)[:200]}",
                "send it to each of them, or serve a store that has several, such as sqlite",
            )
        return queues[0]

    def _remembered(self, command: Publish) -> Remembered | None:
        if command.idempotency_key is None:
            return None
        kept = self._picture.keys.get((command.envelope.producer, command.idempotency_key))
        if kept is None or kept.at + IDEMPOTENCY_KEPT_US <= self._now:
            return None
        if kept.hash != command.hash:
            raise IdempotencyConflict(
                f"Idempotency-Key {command.idempotency_key!r} came with another body before"
            )
        return kept

    def _remember(self, command: Publish, there: Message) -> Published:
        published = Published(there.id, message_state([there.state]))
        if command.idempotency_key is not None:
            producer, key = command.envelope.producer, command.idempotency_key
            self._record(KeyRemembered(producer, key, command.hash, published.id, published.state))
        return published

    def _log_message(self, command: Publish, queue: Queue, spot: Spot | None) -> Published:
        salt = self._draw() & SALT_MASK
        id = command.id or make_id(self._picture.head + 1, salt, self._now)
        due_at = self._now + command.delay_us if command.delay_us else None
        to = self._tree.spot(Place.QUEUE if due_at is None else Place.DELAY, queue.name, id)
        if command.id is not None and self._tree.exists(to):
            raise IdTaken(command.id)  # a file that somebody put there, and that the log does not know
        assert spot is not None, "its body was not put away"
        ttl_at = None if command.ttl_us is None else self._now + command.ttl_us
        queue_ttl_us = queue.policy.ttl_us if command.ttl_us is None else None
        named = command.queue is not None
        del self._group.staged[id_of(command)]
        self._record(
            Logged(
                id,
                queue.name,
                queue.number,
                command.envelope if named else with_object(command.envelope, self._infer_types),
                command.hash,
                command.size,
                command.priority,
                due_at,
                ttl_at,
                ttl_at if queue_ttl_us is None else self._now + queue_ttl_us,
                command.id is not None,
                spot.name,
                command.idempotency_key,
            )
        )
        message = self._picture.by_id[id]
        message.place = Place.NEW
        self._outdate(message, queue)
        return Published(id, message_state([message.state]))

    def _outdate(self, message: Message, queue: Queue) -> None:
        """`latestOnly`: what waits of older messages about the same thing is obsolete, or this one is."""
        if queue.policy.latest_only and (thing := message.thing) is not None:
            mates = queue.keys[thing[1]].open
            for sequence in sorted(mates):
                if mates[sequence].thing == thing:
                    self._let_obsolete(mates[sequence])

    def _let_obsolete(self, message: Message) -> None:
        queue, thing = self._picture.numbered[message.number], message.thing
        if not queue.policy.latest_only or thing is None or message.state not in WAITING:
            return
        if queue.latest.get(thing, 0) > max(message.sequence, message.redriven):
            self._take(message, Step((O,), Reason.OBSOLETE, None, message.tries))

    def _make(self, name: str, policy: Policy) -> Queue:
        self._tree.queue(name)
        self._record(QueueMade(name, len(self._picture.numbered) + 1, policy))
        return self._picture.queues[name]

    def adopt(self, group: Group, found: Found, reason: str | None = None) -> None:
        """A file that the log does not know becomes a message."""
        self._group = group
        queue = self._picture.queues.get(found.queue) or self._make(found.queue, DEFAULT)
        staged = found.name if found.place is Place.NEW else None
        logged = Logged(
            found.id,
            queue.name,
            queue.number,
            _UNSAID,
            found.hash,
            found.size,
            5,
            None,
            None,
            None,
            True,
            None,
        )
        self._record(msgspec.structs.replace(logged, staged=staged, reason=reason))
        self._picture.by_id[found.id].place = found.place

    def make_queue(self, group: Group, name: str) -> None:
        """Somebody made its folder."""
        self._group = group
        self._make(name, DEFAULT)

    # ── what every change goes through ──────────────────────────────────────────────────────

    def _take(
        self,
        message: Message,
        step: Step,
        *,
        confirmed: Confirm | None = None,
        fetched: tuple[str, int] | None = None,
        named: str | None = None,
    ) -> None:
        """One step of a message; `fetched`: by whom, with the receipt's secret."""
        redriven = message.state in ENDED
        consumer = message.consumer if confirmed is not None or message.state is F else None
        consumer = consumer if fetched is None else fetched[0]
        self._record(
            Stepped(
                message.sequence,
                message.id,
                self._picture.numbered[message.number].name,
                message.number,
                message.state,
                step.path,
                message.attempt + (fetched is not None),
                consumer,
                None if consumer is None else self._number_of(consumer),
                step.reason,
                (self._now - message.since_at) // 1_000,
                (self._now - message.created_at) // 1_000,
                step.due_at,
                0 if redriven else step.tries,
                None if fetched is None else fetched[1],
                None if confirmed is None else confirmed.outcome,
                named,
            )
        )
        if not redriven:
            self._let_obsolete(message)

    def _number_of(self, consumer: str) -> int:
        known = self._picture.consumers
        if consumer not in known:
            self._record(ConsumerNumbered(consumer, len(known) + 1))
        return known[consumer]

    def gone(self, group: Group, message: Message) -> None:
        """Its file is nowhere, and nobody said why."""
        self._group = group
        if message.state in DEAD:
            self._record(BodyGone(message.sequence))
        else:
            self._take(message, Step((C,), Reason.RECOVERED, None, message.tries))

    # ── fetch, confirm ──────────────────────────────────────────────────────────────────────

    def _known(self, name: str, kind: Kind = Kind.QUEUE) -> Queue:
        queue = self._picture.queues.get(name) if kind is Kind.QUEUE else None
        if queue is None:
            raise QueueNotFound(name) if kind is Kind.QUEUE else ChannelNotFound(name)
        return queue

    def _fetch(self, command: Fetch) -> list[Fetched]:
        queue = self._known(command.queue, command.kind)
        fetched: list[Fetched] = []
        if queue.policy.paused:
            return fetched
        pattern, consumer = command.topic, command.consumer
        scan = None if pattern is None else TOPIC_SCAN

        def fits(message: Message) -> bool:
            return (
                message.named in (None, consumer)
                and (consumer == ANONYMOUS or consumer not in message.refused)
                and (pattern is None or any_topic_matches(pattern, message.envelope.topics))
            )

        passed: list[Message] = []
        size = 0
        while len(fetched) < command.n:
            message = self._claims.choose(queue, fits, passed, scan)
            if message is None:
                break
            size += message.size
            if fetched and size > FETCH_BYTES:
                passed.append(message)
                break
            body = self._claims.claim(message, whole=queue.policy.kick)
            if body is None:
                self._picture.lose(message)
            elif not is_whole(message, body):
                self._take(message, Step((E,), Reason.DAMAGED, None, message.tries))
            else:
                fetched.append(self._hand_out(message, queue, command, body))
        self._picture.put_back(queue, passed)
        return fetched

    def _hand_out(self, message: Message, queue: Queue, command: Fetch, body: bytes | Staged) -> Fetched:
        policy = queue.policy
        salt = self._draw()
        until_at = self._now + (policy.lease_us if command.lease_us is None else command.lease_us)
        offset = self._picture.head + 1
        path, due_at = ((F, K), None) if policy.kick else ((F,), until_at)
        self._take(message, Step(path, None, due_at, message.tries + 1), fetched=(command.consumer, salt))
        return Fetched(
            message.id,
            make_receipt(offset, salt),
            message.attempt,
            message.envelope,
            message.created_at,
            body,
            until_at,
        )

    def _confirm(self, command: Confirm) -> list[Settled]:
        queue = self._known(command.queue, command.kind)
        return [self._settle(receipt, queue, command) for receipt in command.receipts]

    def _settle(self, receipt: str, queue: Queue, command: Confirm) -> Settled:
        found = self._valid(receipt, queue)
        if found is None:
            return Settled(receipt)
        message, fetch = found
        if fetch.became is not None:
            same = fetch.outcome is command.outcome
            return Settled(receipt, message.id, fetch.became) if same else Settled(receipt)
        step = settle(
            command.outcome,
            in_queue=True,
            named=message.consumer != ANONYMOUS,
            tries=message.tries,
            policy=queue.policy,
            reason=command.reason,
            delay_us=command.delay_us,
            now=self._now,
            draw=self._draw,
        )
        self._take(message, step, confirmed=command)
        return Settled(receipt, message.id, message.state)

    def _valid(self, receipt: str, queue: Queue | None) -> tuple[Message, Any] | None:
        """The fetch of a receipt that is not stale, or that was settled by a confirm."""
        parsed = parse_receipt(receipt)
        found = None if parsed is None else self._picture.fetch_of(parsed[0])
        if found is None or parsed is None:
            return None
        message, fetch = found
        if fetch.salt != parsed[1] or (queue is not None and message.number != queue.number):
            return None
        if fetch.became is None:
            current = message.held and message.fetches[-1] is fetch
            if not current or message.state not in (F, R):
                return None
        return message, fetch

    def _held(self, receipt: str, queue: Queue | None) -> Message | None:
        """The message that a receipt's consumer holds at this moment."""
        found = self._valid(receipt, queue)
        if found is None or found[1].became is not None or found[0].state is not F:
            return None
        return found[0]

    def _extend(self, command: Extend) -> list[Extended]:
        queue = self._known(command.queue, command.kind)
        until_at = self._now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        extended = []
        for receipt in command.receipts:
            message = self._held(receipt, queue)
            if message is None:
                extended.append(Extended(receipt))
            else:
                self._record(LeaseExtended(message.sequence, until_at))
                extended.append(Extended(receipt, until_at))
        return extended

    def _let_go(self, command: Release | Kick) -> list[Settled]:
        """What was fetched goes back, or is done without a confirm."""
        let_go = []
        for receipt in command.receipts:
            message = self._held(receipt, None)
            if message is None:
                let_go.append(Settled(receipt))
                continue
            if isinstance(command, Kick):
                self._take(message, Step((K,), None, None, message.tries))
            else:
                self._take(message, Step((Q,), Reason.RELEASED, None, message.tries - 1))
            let_go.append(Settled(receipt, message.id, message.state))
        return let_go

    def _remove(self, command: Remove) -> bool:
        queue, message = self._picture.queues.get(command.queue), self._picture.by_id.get(command.id)
        if command.kind is not Kind.QUEUE or queue is None or message is None:
            return False
        if message.number != queue.number or message.state not in OPEN:
            return False
        path = (S,) if message.state is F else (C,)
        self._take(message, Step(path, Reason.REMOVED, None, message.tries))
        return True

    # ── queues and spectators ───────────────────────────────────────────────────────────────

    def _declare_queue(self, command: DeclareQueue) -> Declared:
        policy = command.policy
        if policy is not None and (policy.complete not in ("any", 1) or policy.dead is not None):
            wanted = "complete" if policy.dead is None else "dead"
            raise NotOffered(
                f"a message in the folder store has one delivery, so there is no policy {wanted!r}",
                _ELSEWHERE,
            )
        queue = self._picture.queues.get(command.name)
        if queue is None:
            self._make(command.name, policy or DEFAULT)
            return Declared(True)
        if policy is not None and policy != queue.policy:
            self._record(PolicyChanged(command.name, policy))
        return Declared(False)

    def _delete_queue(self, command: DeleteQueue) -> Job:
        queue = self._known(command.name)
        self._record(QueueDeleted(command.name))
        return self._open_job(JobKind.DELETE, Filter(queue=command.name), queue.open, queue)

    def _set_spectator(self, command: SetSpectator) -> Declared:
        head = self._picture.head
        if not 0 <= command.offset <= head:
            raise RequestInvalid(
                f"no event has offset {command.offset}", f"the log ends at {head}; 0 is before its beginning"
            )
        created = command.name not in self._picture.spectators
        self._record(SpectatorSet(command.name, command.offset))
        return Declared(created)

    def _delete_spectator(self, command: DeleteSpectator) -> bool:
        there = command.name in self._picture.spectators
        if there:
            self._record(SpectatorSet(command.name, None))
        return there

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def _start_job(self, command: StartJob) -> Job:
        return self._open_job(
            command.kind, command.filter, command.matched, None, command.consumer, command.rate
        )

    def _open_job(
        self,
        kind: JobKind,
        filter: Filter,
        matched: int,
        queue: Queue | None,
        consumer: str | None = None,
        rate: float | None = None,
    ) -> Job:
        picture = self._picture
        job = Job(
            id=f"{len(picture.jobs) + 1}",
            kind=kind,
            matched=matched,
            done=0,
            started_at=self._now,
            consumer=consumer,
            rate=rate,
        )
        number = None if queue is None else queue.number
        self._record(JobNoted(job, filter, picture.head, len(picture.numbered), 0, 0, number))
        return job

    def _work(self, command: Work) -> bool:
        noted = self._picture.next_job(self._now)
        if noted is None:
            return False
        limit = slice_of(command.limit, noted.job.rate)
        steps, cursor, ended_at = 0, noted.cursor, None
        for message in self._picture.after(cursor):
            if message.sequence > noted.until:
                ended_at = self._now
                break
            steps += self._work_on(noted, message)
            cursor = message.sequence
            if steps >= limit:
                break
        else:
            ended_at = self._now
        job = msgspec.structs.replace(noted.job, done=noted.job.done + steps, ended_at=ended_at)
        then = next_at(self._now, steps, job.rate)
        self._record(msgspec.structs.replace(noted, job=job, cursor=cursor, next_at=then))
        if ended_at is not None and noted.number is not None:
            self._group.emptied.append(self._picture.numbered[noted.number].name)
        return self._picture.next_job(self._now) is not None

    def _work_on(self, noted: JobNoted, message: Message) -> int:
        kind = noted.job.kind
        if not self._job_takes(noted, message):
            return 0
        self._carry_out(kind, message, noted.job.consumer)
        return 1

    def _carry_out(self, kind: JobKind, message: Message, consumer: str | None) -> None:
        if kind in AGAIN:
            reason = Reason.REPLAYED if kind is JobKind.REPLAY else Reason.REDRIVEN
            self._take(message, Step((Q,), reason), named=consumer)
        else:
            self._take(message, Step((C,), _CANCELLED_BY[kind], None, message.tries))

    def _job_takes(self, noted: JobNoted, message: Message) -> bool:
        kind, queue = noted.job.kind, self._picture.numbered[message.number]
        if message.state not in JOB_STATES[kind]:
            return False
        if kind is JobKind.DELETE:
            return queue.number == noted.number
        return (
            queue.deleted_at is None
            and queue.number <= noted.newest
            and selects(noted.filter, message, queue)
            and (message.has_body or kind not in AGAIN)
        )

    def _act(self, command: Act) -> Acted:
        sequences, messages = meant(command.chosen, self._one_of)
        tally = Tally()
        for message in messages:
            was, able = message.state, partial(self._able, command, message)
            said = verdict(command, was, message.since_at, able)
            if said is Verdict.DONE and not command.dry_run:
                self._carry_out(command.kind, message, command.consumer)
            tally.count(was, said)
        return tally.acted(self._now, sequences)

    def _one_of(self, id: str) -> Deliveries[Message] | None:
        message = self._picture.by_id.get(id)
        if message is None:
            return None
        return message.sequence, [(Kind.QUEUE, self._picture.numbered[message.number].name, message)]

    def _able(self, act: Act, message: Message) -> bool:
        gone = self._picture.numbered[message.number].deleted_at is not None
        return not gone and (message.has_body or act.kind not in AGAIN)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def _tick(self, command: Tick) -> bool:
        """The due ones in the order of their moments, leases and delays before ttls."""
        if not self._moves:
            return False
        picture = self._picture
        for _ in range(command.limit):
            message = picture.due(self._now)
            if message is None:
                break
            if message.state is F:
                policy = picture.numbered[message.number].policy
                self._take(message, lease_over(tries=message.tries, policy=policy))
            else:
                self._record(DelayOver(message.sequence))
        more = picture.due(self._now) is not None
        for _ in range(command.limit):
            message = picture.expired(self._now)
            if message is None:
                break
            self._take(message, Step((T,), Reason.EXPIRED, None, message.tries))
        return more or picture.expired(self._now) is not None

    def _reap(self, command: Reap) -> bool:
        picture = self._picture
        gone = [queue for queue in picture.numbered.values() if queue.deleted_at is not None]
        if any(queue.states.keys() & DEAD for queue in gone):
            deleted = {queue.number for queue in gone}
            for message in [m for m in picture.messages.values() if m.number in deleted]:
                if message.state in DEAD and message.has_body:
                    self._record(BodyGone(message.sequence))
        oldest = self._trim_to()
        if oldest > picture.oldest:
            self._record(Trimmed(oldest))
        for scope in [s for s, kept in picture.keys.items() if kept.at + IDEMPOTENCY_KEPT_US <= self._now]:
            del picture.keys[scope]
        return False

    def _trim_to(self) -> int:
        """Up to here the log has been kept for long enough, and the lake has it; or, without one, every spectator has read it or
        had its time."""
        picture = self._picture
        target = self._offset_at(self._now - self._log_keep_us)
        if self.lake:
            return min(target, self._in_lake() + 1)
        read = min((offset for offset, _ in picture.spectators.values()), default=picture.head) + 1
        return min(target, max(read, self._offset_at(self._now - SPECTATORS_HOLD_US)))

    def _in_lake(self) -> int:
        sealed = self._picture.sealed or 0
        return sealed if self.lake_holds is None else min(sealed, self.lake_holds)

    def _seal(self, command: Seal) -> None:
        head, sealed = self._picture.head, self._picture.sealed
        if not 0 <= command.upto <= head:
            raise RequestInvalid(f"no event has offset {command.upto}", f"the log ends at {head}")
        if sealed is None or command.upto > sealed:
            self._record(SealedUpTo(command.upto))


def _check_room(queue: Queue, size: int) -> None:
    most, most_bytes = queue.policy.max_messages, queue.policy.max_bytes
    if most is not None and queue.open + 1 > most:
        raise QueueFull(f"queue {queue.name!r} holds {most} messages, its maxMessages")
    if most_bytes is not None and queue.bytes + size > most_bytes:
        raise QueueFull(f"queue {queue.name!r} has no room for {size} bytes more, by its maxBytes")


def selects(filter: Filter, message: Message, queue: Queue) -> bool:
    if not selects_message(filter, message.envelope) or filter.channel is not None:
        return False
    if filter.consumer is not None and filter.consumer != (message.consumer or message.named):
        return False
    if bounds_fetches(filter):
        inside = any(
            fetch.consumer == filter.consumer and in_bounds(filter, fetch.at) for fetch in message.fetches
        )
    else:
        inside = in_bounds(filter, message.created_at)
    return (
        inside
        and not (filter.existing and queue.deleted_at is not None)
        and filter.id in (None, message.id)
        and filter.queue in (None, queue.name)
        and (filter.states is None or message.state in filter.states)
    )
