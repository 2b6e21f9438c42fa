"""A slot in the writer's hands: one delivery, as its rows say, and the way any change of it is written.

The hot paths (publish, first fetch, success) write many rows at once elsewhere; everything else comes here, one
slot at a time, and keeps every table in step: the step itself, the delivery, what is ready, the keys, the counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...delivery import ENDED, OPEN, WAITING, F, K, L, Q, R, Reason, S, State, Step, X
from ...policy import DEFAULT, Policy
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
        #: what is due next may have changed: plain publishes leave it alone, and need not ask
        self.timed = True

    # ── slots ───────────────────────────────────────────────────────────────────────────────

    def slot(self, sequence: int, destination: int, number: int) -> Slot:
        at, key, priority, size, route = self._db.execute(
            "select at, key, priority, size, route from messages where sequence = ?", (sequence,)
        ).get
        row = self._db.execute(
            "select state, attempt, tries, consumer, reason, since_at, last, due_at, expires_at"
            " from deliveries where sequence = ? and destination = ? and slot = ?",
            (sequence, destination, number),
        ).get
        known = row is not None
        state, attempt, tries, consumer, reason, since_at, last, due_at, expires_at = row or (
            (Q, 0, 0, None, None, at, 0, None, None)
        )
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
        if queue.keyed and slot.key is not None:
            self._db.execute(
                "insert into keyed values (?, ?, ?, ?, 0)",
                (queue.number, slot.key, slot.sequence, slot.number),
            )
            self._refresh_key(queue, slot.key)
        elif slot.due_at is None:
            self._make_ready(slot)

    def take(self, slot: Slot, step: Step, *, outcome: int = NO_CONFIRM, fetch: int | None = None) -> None:
        """One step of one slot; `fetch` and `outcome` where a consumer asked for it."""
        was, queue = slot.state, slot.queue
        path = [was, *step.path]
        now = self.now
        self._young.leases.pop(slot.last, None)
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
            slot.tries, slot.expires_at = 0, None
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

    def fetched(self, slot: Slot, was: State) -> None:
        """A fetch, whose row is written already."""
        slot.state, slot.known = F, True
        self._save(slot)
        self._count(slot, was)
        if slot.queue.keyed and slot.key is not None:
            self._place_keyed(slot, slot.key)
        else:
            self.unready(slot)

    def _completes(self, slot: Slot) -> bool:
        """Whether every other queue slot of the message is confirmed too."""
        own = (slot.queue.number, slot.number)
        return all(
            state in (S, K) for place, state in self._reader.states(slot.sequence, slot.route) if place != own
        )

    def _save(self, slot: Slot) -> None:
        self._db.execute(
            "insert or replace into deliveries values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
        if queue.marks:
            # A sibling slot may have become free for somebody who had to pass it.
            self.lower_marks(queue, (slot.place[0], slot.sequence, 0))
        if queue.keyed and slot.key is not None:
            self._place_keyed(slot, slot.key)
            return
        if waited:
            self.unready(slot)
        if slot.state in WAITING and slot.due_at is None:
            self._make_ready(slot)

    def _place_keyed(self, slot: Slot, key: str) -> None:
        place = (slot.queue.number, key, slot.sequence, slot.number)
        if slot.state in ENDED:
            self._db.execute(
                "delete from keyed where destination = ? and key = ? and sequence = ? and slot = ?", place
            )
            self.unready(slot)
        else:
            self._db.execute(
                "insert or replace into keyed values (?, ?, ?, ?, ?)", (*place, int(slot.state is F))
            )
        self._refresh_key(slot.queue, key)

    def became_due(self, slot: Slot) -> None:
        """Its delay is over; no step, only its turn."""
        slot.due_at = None
        self._db.execute(
            "update deliveries set due_at = null where sequence = ? and destination = ? and slot = ?",
            (slot.sequence, slot.queue.number, slot.number),
        )
        if slot.queue.keyed and slot.key is not None:
            self._refresh_key(slot.queue, slot.key)
        else:
            self._make_ready(slot)

    def unready(self, slot: Slot) -> None:
        self._unready(slot.queue, slot.place)

    def _unready(self, queue: Destination, place: tuple[int, int, int]) -> None:
        self._db.execute(
            "delete from ready where destination = ? and priority = ? and sequence = ? and slot = ?",
            (queue.number, *place),
        )
        queue.ready -= self._db.changes()
        self.touched.add(queue)

    def _make_ready(self, slot: Slot) -> None:
        self.ready_at(slot.queue, slot.place, slot.known)

    def ready_at(self, queue: Destination, place: tuple[int, int, int], known: bool) -> None:
        self._db.execute(
            "insert or ignore into ready values (?, ?, ?, ?, ?)", (queue.number, *place, int(known))
        )
        queue.ready += self._db.changes()
        self.touched.add(queue)
        self.roused.add(queue)
        if queue.marks:
            self.lower_marks(queue, place)

    def lower_marks(self, queue: Destination, place: tuple[int, int, int]) -> None:
        for consumer, mark in queue.marks.items():
            if place < mark:
                queue.marks[consumer] = place

    def _refresh_key(self, queue: Destination, key: str) -> None:
        """Of one key, only the slots of its oldest open message may be ready, and none while another is out."""
        rows = self._db.execute(
            "select k.sequence, k.slot, d.state, d.due_at, d.sequence is not null from keyed k"
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
        for sequence, number, state, due_at, known in rows:
            place = (0, sequence, number)
            waiting = state is None or STATE[state] in WAITING
            if sequence == oldest and other_out is None and waiting and due_at is None:
                self.ready_at(queue, place, bool(known))
            else:
                self._unready(queue, place)

    def reorder(self, queue: Destination) -> None:
        """After a change of `order`: its open deliveries are laid out anew, in one go."""
        number = queue.number
        rows = self._db.execute(
            "select sequence, slot, 3, null, 0 from ready where destination = ?1 and not known"
            " union select sequence, slot, 3, null, 0 from keyed k where destination = ?1 and not exists"
            " (select 1 from deliveries d where (d.sequence, d.destination, d.slot) = (k.sequence, ?1, k.slot))"
            " union select sequence, slot, state, due_at, 1 from deliveries"
            " where destination = ?1 and state in (3, 4, 7)",
            (number,),
        ).fetchall()
        self._db.execute("delete from keyed where destination = ?", (number,))
        self._db.execute("delete from ready where destination = ?", (number,))
        queue.ready = 0
        queue.marks.clear()
        keys = set()
        for sequence, slot_number, state, due_at, known in rows:
            key, priority = self._db.execute(
                "select key, priority from messages where sequence = ?", (sequence,)
            ).get
            if queue.keyed and key is not None:
                self._db.execute(
                    "insert into keyed values (?, ?, ?, ?, ?)",
                    (number, key, sequence, slot_number, int(STATE[state] is F)),
                )
                keys.add(key)
            elif STATE[state] is not F and due_at is None:
                self.ready_at(queue, (0 if queue.keyed else priority, sequence, slot_number), bool(known))
        for key in keys:
            self._refresh_key(queue, key)

    # ── dead letters ────────────────────────────────────────────────────────────────────────

    def _dead_letter(self, slot: Slot, name: str) -> None:
        queue = self._names.queues.get(name) or self.make_queue(name)
        if queue is slot.queue:
            return
        self._db.execute(
            "update messages set route = ? where sequence = ?", (open_route(slot.route), slot.sequence)
        )
        states = dict(self._reader.states(slot.sequence, slot.route))
        if (queue.number, 0) not in states:
            self._add_dead_letter(slot, queue)

    def _add_dead_letter(self, slot: Slot, queue: Destination) -> None:
        self.head += 1
        ttl_us = queue.policy.ttl_us
        expires_at = self._db.execute(
            "select expires_at from messages where sequence = ?", (slot.sequence,)
        ).get
        if expires_at is None and ttl_us is not None:
            expires_at = self.now + ttl_us
        self._db.execute(
            "insert into steps values (?, ?, ?, ?, 0, ?, 0, 0, null, ?, 0)",
            (self.head, self.now, slot.sequence, queue.number, pack_path((L, Q)), Reason.DEAD_LETTER),
        )
        self.add(
            Slot(
                sequence=slot.sequence,
                queue=queue,
                number=0,
                reason=Reason.DEAD_LETTER,
                since_at=self.now,
                last=self.head,
                expires_at=expires_at,
                known=True,
                created_at=slot.created_at,
                key=slot.key,
                priority=slot.priority,
                size=slot.size,
                route=slot.route,
            )
        )

    def make_queue(self, name: str, policy: Policy = DEFAULT) -> Destination:
        return self._names.add_queue(name, policy, self.now)
