"""A slot in the writer's hands: one delivery, as its rows say, and the way any change of it is written.

The hot paths (publish, first fetch, success) write many rows at once elsewhere; everything else comes here, one
slot at a time, and keeps every table in step: the step itself, the delivery, what is ready, the keys, the counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...delivery import ENDED, OPEN, WAITING, F, K, L, O, Q, R, Reason, S, State, Step, X
from ...destinations import Kind
from ...policy import DEFAULT, Policy
from .files import overwriting
from .names import Destination, Names
from .reading import Reader
from .rows import NO_CONFIRM, STATE, Db, open_route, pack_path
from .young import Young


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """A delivery with what is needed of its message."""

    sequence: int
    queue: Destination
    number: int
    state: State = Q
    attempt: int = 0
    tries: int = 0
    consumer: int | None = None
    reason: str | None = None
    since_at: int
    #: the offset of its last row, 0: none yet
    last: int = 0
    due_at: int | None = None
    expires_at: int | None = None
    #: the only one who may fetch it
    named: int | None = None
    #: handed out and not waited for, whatever the policy says
    kick: bool = False
    #: whom routing named it for; a redrive may name another
    routed: int | None = None
    #: the offset of its last redrive
    redriven: int | None = None
    #: it has a row of its own
    known: bool
    created_at: int
    key: str | None
    priority: int
    size: int
    route: int | str | None

    @property
    def place(self) -> tuple[int, int, int]:
        """Its turn in the queue."""
        return (0 if self.queue.keyed else self.priority, self.sequence, self.number)


class Ledger:
    """Where steps are written; one group at a time, inside its transaction."""

    def __init__(self, db: Db, names: Names, reader: Reader, young: Young) -> None:
        self._db, self._names, self._reader, self._young = db, names, reader, young
        #: last offset given, and this group's instant
        self.head = self.now = 0
        #: queues whose counters changed, and those where something became ready
        self.touched: set[Destination] = set()
        self.roused: set[Destination] = set()
        #: the lowest sequence that this group left in L
        self.logged: int | None = None
        #: what is due next may have changed: plain publishes leave it alone, and need not ask
        self.timed = True

    # ── slots ───────────────────────────────────────────────────────────────────────────────

    def slot(self, sequence: int, destination: int, number: int) -> Slot:
        at, key, priority, size, route = self._db.execute(
            "select at, key, priority, size, route from messages where sequence = ?", (sequence,)
        ).get
        row = self._db.execute(
            "select state, attempt, tries, consumer, reason, since_at, last, due_at, expires_at, named, kick, routed, redriven"
            " from deliveries where sequence = ? and destination = ? and slot = ?",
            (sequence, destination, number),
        ).get
        known = row is not None
        # fmt: off
        (state, attempt, tries, consumer, reason, since_at, last, due_at, expires_at, named, kick, routed,
         redriven) = (
            row or (Q, 0, 0, None, None, at, 0, None, None, None, None, None, None)
        )
        # fmt: on
        return Slot(
            sequence=sequence,
            queue=self._names.by_number[destination],
            number=number,
            state=STATE[state],
            attempt=attempt,
            tries=tries,
            consumer=consumer,
            reason=reason,
            since_at=since_at,
            last=last,
            due_at=due_at,
            expires_at=expires_at,
            named=named,
            kick=bool(kick),
            routed=routed,
            redriven=redriven,
            known=known,
            created_at=at,
            key=key,
            priority=priority,
            size=size,
            route=route,
        )

    def add(self, slot: Slot) -> None:
        """A slot that begins: written only if it is more than its message's route says."""
        queue = slot.queue
        self.timed = True
        self.touched.add(queue)
        queue.states[Q] += 1
        queue.bytes += slot.size
        if slot.known:
            self._save(slot)
        if queue.tracked and slot.key is not None:
            self._db.execute(
                "insert into keyed values (?, ?, ?, ?, 0)",
                (queue.number, slot.key, slot.sequence, slot.number),
            )
        if queue.keyed and slot.key is not None:
            self.refresh_key(queue, slot.key)
        elif slot.due_at is None:
            self._make_ready(slot)

    def add_ended(self, slot: Slot) -> None:
        """One that begins and ends at once, with its step written."""
        self.touched.add(slot.queue)
        slot.queue.states[slot.state] += 1
        self._save(slot)

    def begin(self, slot: Slot, duration_ms: int = 0) -> None:
        """A slot that begins after its message's L, by a step of its own."""
        slot.last = self.step(slot.sequence, slot.queue.number, slot.number, (L, Q), duration_ms, slot.reason)
        self.add(slot)

    def step(
        self,
        sequence: int,
        destination: int,
        number: int,
        path: tuple[State, ...],
        duration_ms: int,
        reason: str | None = None,
        previous: int = 0,
    ) -> int:
        """A step that no consumer took part in. Its offset."""
        offset = self.head + 1
        self.head += len(path) - 1
        self._db.execute(
            "insert into steps values (?, ?, ?, ?, ?, ?, ?, 0, null, ?, ?)",
            (offset, self.now, sequence, destination, number, pack_path(path), duration_ms, reason, previous),
        )
        return offset

    def take(self, slot: Slot, step: Step, *, outcome: int = NO_CONFIRM, fetch: int | None = None) -> None:
        """One step of one slot; `fetch` and `outcome` where a consumer asked for it."""
        was, queue = slot.state, slot.queue
        path = [was, *step.path]
        now = self.now
        self._young.end_lease(slot.last)
        slot.state, slot.reason = step.state, step.reason
        if slot.state in (S, K) and self._completes(slot):
            path.append(X)
        offset = self.head + 1
        self.head += len(path) - 1
        self._db.execute(
            "insert into steps values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                offset,
                now,
                slot.sequence,
                queue.number,
                slot.number,
                pack_path(path),
                (now - slot.since_at) // 1_000,
                slot.attempt,
                slot.consumer if was is F or fetch else None,
                step.reason,
                slot.last,
            ),
        )
        if was is F or fetch:
            # After a lease that is over a confirm may still come, until the next fetch.
            late = fetch is None and slot.state is R
            self._db.execute(
                'update fetches set settled_at = ?, outcome = ?, became = ? where "offset" = ?',
                (now, None if late else outcome, None if late else slot.state, fetch or slot.last),
            )
        waited = was in WAITING and slot.due_at is None
        slot.last, slot.since_at, slot.due_at, slot.tries = offset, now, step.due_at, step.tries
        if was in ENDED:
            slot.tries, slot.expires_at, slot.redriven = 0, None, offset
            self._db.execute(
                "delete from refusals where sequence = ? and destination = ? and slot = ?",
                (slot.sequence, queue.number, slot.number),
            )
        slot.known = True
        self._save(slot)
        self._count(slot, was)
        self._place(slot, was, waited)
        if slot.state is State.E and queue.policy.dead is not None:
            self._dead_letter(slot, queue.policy.dead)
        if slot.state in WAITING and was not in ENDED and queue.policy.latest_only and slot.key is not None:
            self._let_obsolete(slot)

    def fetched(self, slot: Slot, was: State) -> None:
        """A fetch, whose row is written already."""
        slot.state, slot.known = F, True
        self._save(slot)
        self._count(slot, was)
        if slot.queue.tracked and slot.key is not None:
            self._track(slot, slot.key)
        if slot.queue.keyed and slot.key is not None:
            self.refresh_key(slot.queue, slot.key)
        else:
            self.unready(slot)

    def _completes(self, slot: Slot) -> bool:
        """Whether every other queue slot of the message is confirmed too."""
        if not slot.queue.is_queue:
            return False
        own = (slot.queue.number, slot.number)
        states = self._reader.queue_states(slot.sequence, slot.route)
        return all(state in (S, K) for place, state in states if place != own)

    def _save(self, slot: Slot) -> None:
        self._db.execute(
            "insert or replace into deliveries values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                slot.sequence,
                slot.queue.number,
                slot.number,
                slot.state,
                slot.attempt,
                slot.tries,
                slot.consumer,
                slot.reason,
                slot.since_at,
                slot.last,
                slot.due_at,
                slot.expires_at,
                slot.named,
                slot.kick or None,
                slot.routed,
                slot.redriven,
            ),
        )

    def _count(self, slot: Slot, was: State) -> None:
        queue = slot.queue
        self.touched.add(queue)
        queue.states[was] -= 1
        queue.states[slot.state] += 1
        queue.bytes += slot.size * ((slot.state in OPEN) - (was in OPEN))

    # ── what is ready ───────────────────────────────────────────────────────────────────────

    def _place(self, slot: Slot, was: State, waited: bool) -> None:
        queue = slot.queue
        if queue.marks or (queue.slotted and slot.state in ENDED and was in WAITING):
            self.free_siblings(slot)
        if queue.tracked and slot.key is not None:
            self._track(slot, slot.key)
        if queue.keyed and slot.key is not None:
            if slot.state in ENDED:
                self.unready(slot)
            self.refresh_key(slot.queue, slot.key)
            return
        if waited:
            self.unready(slot)
        if slot.state in WAITING and slot.due_at is None:
            self._make_ready(slot)

    def _track(self, slot: Slot, key: str) -> None:
        place = (slot.queue.number, key, slot.sequence, slot.number)
        if slot.state in ENDED:
            self._db.execute(
                "delete from keyed where destination = ? and key = ? and sequence = ? and slot = ?", place
            )
        else:
            self._db.execute(
                "insert or replace into keyed values (?, ?, ?, ?, ?)", (*place, int(slot.state is F))
            )

    def became_due(self, slot: Slot) -> None:
        """Its delay is over; no step, only its turn."""
        slot.due_at = None
        self._db.execute(
            "update deliveries set due_at = null where sequence = ? and destination = ? and slot = ?",
            (slot.sequence, slot.queue.number, slot.number),
        )
        if slot.queue.keyed and slot.key is not None:
            self.refresh_key(slot.queue, slot.key)
        else:
            self._make_ready(slot)

    def unready(self, slot: Slot) -> None:
        self._unready(slot.queue, slot.place, slot.named)

    def _unready(self, queue: Destination, place: tuple[int, int, int], named: int | None) -> None:
        if named is None:
            self._db.execute(
                "delete from ready where destination = ? and priority = ? and sequence = ? and slot = ?",
                (queue.number, *place),
            )
        else:
            self._db.execute(
                "delete from named where destination = ? and consumer = ? and priority = ? and sequence = ? and slot = ?",
                (queue.number, named, *place),
            )
            queue.named -= self._db.changes()
        queue.ready -= self._db.changes()
        self.touched.add(queue)

    def _make_ready(self, slot: Slot) -> None:
        self.ready_at(slot.queue, slot.place, slot.known, slot.named)

    def ready_at(
        self, queue: Destination, place: tuple[int, int, int], known: bool, named: int | None = None
    ) -> None:
        if named is None:
            self._db.execute(
                "insert or ignore into ready values (?, ?, ?, ?, ?)", (queue.number, *place, int(known))
            )
        else:
            self._db.execute(
                "insert or ignore into named values (?, ?, ?, ?, ?)", (queue.number, named, *place)
            )
            queue.named += self._db.changes()
        queue.ready += self._db.changes()
        self.touched.add(queue)
        self.roused.add(queue)
        if queue.marks:
            self.lower_marks(queue, place)

    def free_siblings(self, slot: Slot) -> None:
        """Other slots of its message may have become free for somebody who had to pass them."""
        queue = slot.queue
        if queue.marks:
            self.lower_marks(queue, (slot.place[0], slot.sequence, 0))
        self.roused.add(queue)

    def has_another(
        self, sequence: int, destination: int, number: int, consumer: int, *, awaited: bool
    ) -> bool:
        """Whether a consumer has or had another slot of the message there; `awaited`: or one is named for it. What waits for a
        retry is still its slot: until somebody else fetches it, a late confirm counts."""
        found = self._db.execute(
            "select 1 from deliveries where sequence = ?1 and destination = ?2 and slot <> ?3 and"
            " ((consumer = ?4 and state in (4, 5, 6, 7, 8, 9)) or (?5 and named = ?4 and state in (3, 4, 7))) limit 1",
            (sequence, destination, number, consumer, awaited),
        ).get
        return found is not None

    def lower_marks(self, queue: Destination, place: tuple[int, int, int]) -> None:
        for consumer, mark in queue.marks.items():
            if place < mark:
                queue.marks[consumer] = place

    def refresh_key(self, queue: Destination, key: str) -> None:
        """Of one key, only the slots of its oldest open message may be ready, and none while another is out."""
        rows = self._db.execute(
            "select k.sequence, k.slot, d.state, d.due_at, d.sequence is not null, d.named from keyed k"
            " left join deliveries d on d.sequence = k.sequence and d.destination = k.destination and d.slot = k.slot"
            " where k.destination = ?1 and k.key = ?2 and k.sequence in"
            " (select distinct sequence from keyed where destination = ?1 and key = ?2 order by sequence limit 2)",
            (queue.number, key),
        ).fetchall()
        if not rows:
            return
        oldest = rows[0][0]
        other_out = self._db.execute(
            "select 1 from keyed where destination = ? and key = ? and fetched and sequence <> ? limit 1",
            (queue.number, key, oldest),
        ).get
        for sequence, number, state, due_at, known, named in rows:
            place = (0, sequence, number)
            waiting = state is None or STATE[state] in WAITING
            if sequence == oldest and other_out is None and waiting and due_at is None:
                self.ready_at(queue, place, bool(known), named)
            else:
                self._unready(queue, place, named)

    def reorder(self, queue: Destination) -> None:
        """After a change of `order` or `latestOnly`: its open deliveries are laid out anew, in one go."""
        number = queue.number
        rows = self._db.execute(
            "select sequence, slot, 3, null, 0, null from ready where destination = ?1 and not known"
            " union select sequence, slot, 3, null, 0, null from keyed k where destination = ?1 and not exists"
            " (select 1 from deliveries d where (d.sequence, d.destination, d.slot) = (k.sequence, ?1, k.slot))"
            " union select sequence, slot, state, due_at, 1, named from deliveries"
            " where destination = ?1 and state in (3, 4, 7)",
            (number,),
        ).fetchall()
        for table in ("keyed", "ready", "named"):
            self._db.execute(f"delete from {table} where destination = ?", (number,))
        queue.ready = queue.named = 0
        queue.marks.clear()
        keys = set()
        for sequence, slot_number, state, due_at, known, named in rows:
            key, priority = self._db.execute(
                "select key, priority from messages where sequence = ?", (sequence,)
            ).get
            if queue.tracked and key is not None:
                self._db.execute(
                    "insert into keyed values (?, ?, ?, ?, ?)",
                    (number, key, sequence, slot_number, int(STATE[state] is F)),
                )
            if queue.keyed and key is not None:
                keys.add(key)
            elif STATE[state] is not F and due_at is None:
                place = (0 if queue.keyed else priority, sequence, slot_number)
                self.ready_at(queue, place, bool(known), named)
        for key in keys:
            self.refresh_key(queue, key)

    # ── routes, obsolete, unrouted ──────────────────────────────────────────────────────────────────

    def set_route(self, sequence: int, route: int | str | None, same_as: str | None = None) -> None:
        """For a message that is written already."""
        with overwriting(self._db):
            self._db.execute(
                "update messages set route = ?, same_as = ifnull(?, same_as) where sequence = ?",
                (route, None if same_as is None else same_as.encode(), sequence),
            )

    def note_latest(self, queue: Destination, sequence: int, object: str | None, key: str | None) -> None:
        """`latestOnly`: what waits there of older messages about the same thing is obsolete, or this one is. Nothing may
        be pending."""
        if not queue.policy.latest_only or object is None or key is None:
            return
        newest = self._db.execute(
            "insert into latest values (?, ?, ?, ?)"
            " on conflict do update set sequence = max(sequence, excluded.sequence) returning sequence",
            (queue.number, object, key, sequence),
        ).get
        older = self._db.execute(
            "select k.sequence, k.slot from keyed k cross join messages m on m.sequence = k.sequence"
            " where k.destination = ? and k.key = ? and k.sequence < ? and m.object = ? and not k.fetched"
            " order by k.sequence, k.slot",
            (queue.number, key, newest, object),
        ).fetchall()
        for place in older:
            self._let_obsolete(self.slot(place[0], queue.number, place[1]))

    def _let_obsolete(self, slot: Slot) -> None:
        """What would wait although a newer message of its thing came, after its last redrive if there was one."""
        newest = self._db.execute(
            "select l.sequence from messages m cross join latest l on (l.object, l.key) = (m.object, m.key)"
            " where m.sequence = ? and l.destination = ?",
            (slot.sequence, slot.queue.number),
        ).get
        if newest is not None and newest > max(slot.sequence, slot.redriven or 0):
            self.take(slot, Step((O,), Reason.OBSOLETE, None, slot.tries))

    def unroute(self, slot: Slot, reason: str) -> None:
        """A dead letter of a routing that failed goes back to L, and is no delivery any more."""
        duration_ms = (self.now - slot.since_at) // 1_000
        place = (slot.sequence, slot.queue.number, slot.number)
        offset = self.step(*place, (slot.state, L), duration_ms, reason, slot.last)
        self._db.execute("delete from deliveries where sequence = ? and destination = ? and slot = ?", place)
        self.save_own(slot.sequence, 0, offset)
        self._db.execute("update undecided set failed = 0 where sequence = ?", (slot.sequence,))
        slot.queue.states[slot.state] -= 1
        self.touched.add(slot.queue)
        object = self._db.execute("select object from undecided where sequence = ?", (slot.sequence,)).get
        self._names.count_logged(object, 1)
        self.note_logged(slot.sequence)

    def note_logged(self, sequence: int) -> None:
        self.logged = sequence if self.logged is None else min(self.logged, sequence)

    def save_own(self, sequence: int, state: State | int, last: int) -> None:
        """The message's own row: how it ended without a queue slot, and where its own steps end."""
        self._db.execute(
            "insert or replace into deliveries values (?, 0, 0, ?, 0, 0, null, null, ?, ?, null, null, null, null, null, null)",
            (sequence, state, self.now, last),
        )

    def own_last(self, sequence: int) -> int:
        """Where its own steps end so far, 0: nowhere."""
        return (
            self._db.execute(
                "select last from deliveries where sequence = ? and destination = 0", (sequence,)
            ).get
            or 0
        )

    # ── dead letters ────────────────────────────────────────────────────────────────────────

    def _dead_letter(self, slot: Slot, name: str) -> None:
        queue = self._names.queues.get(name) or self.make_queue(name)
        if queue is slot.queue:
            return
        self.set_route(slot.sequence, open_route(slot.route))
        # It is not alone in its queue any more.
        self._young.messages.pop(slot.sequence, None)
        for (last,) in self._db.execute(
            "select last from deliveries where sequence = ?", (slot.sequence,)
        ).fetchall():
            self._young.end_lease(last)
        states = dict(self._reader.states(slot.sequence, slot.route))
        if (queue.number, 0) not in states:
            self.begin(self.later_slot(slot.sequence, queue, 0, reason=Reason.DEAD_LETTER))
            thing = self._db.execute(
                "select object, key from messages where sequence = ?", (slot.sequence,)
            ).get
            self.note_latest(queue, slot.sequence, *thing)

    def later_slot(
        self,
        sequence: int,
        queue: Destination,
        number: int,
        *,
        named: int | None = None,
        kick: bool = False,
        reason: str | None = None,
        due_at: int | None = None,
    ) -> Slot:
        """A slot that a message gets after its L."""
        at, key, priority, size, route, expires_at = self._db.execute(
            "select at, key, priority, size, route, expires_at from messages where sequence = ?", (sequence,)
        ).get
        if expires_at is None and queue.policy.ttl_us is not None:
            expires_at = self.now + queue.policy.ttl_us
        if kick:
            self._names.look_closely(queue)
        return Slot(
            sequence=sequence,
            queue=queue,
            number=number,
            reason=reason,
            since_at=self.now,
            due_at=due_at,
            expires_at=expires_at,
            named=named,
            routed=named,
            kick=kick,
            known=True,
            created_at=at,
            key=key,
            priority=priority,
            size=size,
            route=route,
        )

    def make_queue(self, name: str, policy: Policy = DEFAULT) -> Destination:
        return self._names.add(Kind.QUEUE, name, policy, self.now)
