"""Jobs: work on many deliveries, accepted in one small row and done in slices that others' commands run between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...acts import AGAIN, Deliveries, Tally, Verdict, meant, verdict
from ...commands import JOB_STATES, Act, Acted, Job, JobKind, StartJob, Work
from ...delivery import C, Q, Reason, Step
from ...destinations import Kind
from ...filters import Filter
from ...routing import Slots
from ..pace import next_at, slice_of
from .names import Destination, Names
from .reading import SEARCH_WINDOW, Reader
from .rows import Db, filter_of, filter_text
from .slots import Ledger, Slot

#: how many slots a message of these topics gets there
SlotsIn = Callable[[Destination, tuple[str, ...]], Slots]


class Jobs:
    def __init__(self, db: Db, names: Names, reader: Reader, ledger: Ledger, slots_in: SlotsIn) -> None:
        self._db, self._names, self._reader, self._ledger = db, names, reader, ledger
        self._slots_in = slots_in

    def start(self, command: StartJob) -> Job:
        return self.open(
            command.kind, command.filter, command.matched, consumer=command.consumer, rate=command.rate
        )

    def open(
        self,
        kind: JobKind,
        filter: Filter,
        matched: int,
        place: Destination | None = None,
        *,
        after: int = 0,
        consumer: str | None = None,
        rate: float | None = None,
    ) -> Job:
        number = (self._db.execute("select max(number) from jobs").get or 0) + 1
        self._db.execute(
            "insert into jobs values (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, null, ?, ?, 0)",
            (
                number,
                kind,
                filter_text(filter),
                place.number if place else None,
                self._ledger.head,
                max(self._names.by_number, default=0),
                after,
                matched,
                self._ledger.now,
                consumer,
                rate,
            ),
        )
        return job_of(self._db, number)

    def work(self, command: Work) -> bool:
        row = self._db.execute(
            "select number, kind, filter, destination, until, newest, after, consumer, rate from jobs"
            " where ended_at is null and next_at <= ? order by number limit 1",
            (self._ledger.now,),
        ).get
        if row is None:
            return False
        number, kind, filter, destination, until, newest, after, consumer, rate = row
        limit = slice_of(command.limit, rate)
        if kind == JobKind.BACKFILL:
            done, after = self._fill(self._names.by_number[destination], after, until, limit)
        else:
            chosen = filter_of(filter)
            began, done = after, 0
            while done < limit and after < until and after < began + SEARCH_WINDOW:
                found, following = self._reader.search(chosen, after, limit - done)
                for place, info in found:
                    if info.sequence <= until and place <= newest and destination in (None, place):
                        slot = self._ledger.slot(info.sequence, place, info.slot)
                        done += self._work_on(JobKind(kind), slot, consumer)
                after = until if following is None else following
        ended_at = self._ledger.now if done < limit and after >= until else None
        self._db.execute(
            "update jobs set after = ?, done = done + ?, ended_at = ?, next_at = ? where number = ?",
            (after, done, ended_at, next_at(self._ledger.now, done, rate), number),
        )
        return self.working()

    def working(self) -> bool:
        """Whether one may go on now."""
        found = self._db.execute(
            "select 1 from jobs where ended_at is null and next_at <= ? limit 1", (self._ledger.now,)
        ).get
        return found is not None

    def _work_on(self, kind: JobKind, slot: Slot, consumer: str | None) -> bool:
        """Whether it was one that the job may touch."""
        if slot.state not in JOB_STATES[kind] or slot.queue.deleted != (kind is JobKind.DELETE):
            return False
        if kind in AGAIN and not self._may_return(slot, consumer):
            return False
        self._carry_out(kind, slot, consumer)
        return True

    def _may_return(self, slot: Slot, consumer: str | None) -> bool:
        """Whether it can be delivered again, and to this consumer."""
        if self._db.execute("select body is null from messages where sequence = ?", (slot.sequence,)).get:
            return False
        named = slot.routed if consumer is None else self._names.party(consumer)
        return slot.route is None or named is None or self._could_have(slot, named)

    def _carry_out(self, kind: JobKind, slot: Slot, consumer: str | None) -> None:
        if kind not in AGAIN:
            self._ledger.take(slot, Step((C,), _cancel_reason(kind, slot.queue.kind), None, slot.tries))
            return
        reason = Reason.REPLAYED if kind is JobKind.REPLAY else Reason.REDRIVEN
        if slot.route is None:
            self._ledger.unroute(slot, reason)
            return
        slot.named = slot.routed if consumer is None else self._names.party(consumer)
        self._ledger.take(slot, Step((Q,), reason))

    # ── on what was chosen ──────────────────────────────────────────────────────────────────

    def act(self, command: Act) -> Acted:
        sequences, places = meant(command.chosen, self._places_of)
        tally = Tally()
        for place in places:
            slot = self._ledger.slot(*place)
            was, able = slot.state, partial(self._able, command, slot)
            said = verdict(command, was, slot.since_at, able)
            if said is Verdict.DONE and not command.dry_run:
                self._carry_out(command.kind, slot, command.consumer)
            tally.count(was, said)
        return tally.acted(self._ledger.now, sequences)

    def _places_of(self, id: str) -> Deliveries[tuple[int, int, int]] | None:
        sequence = self._reader.sequence_of(id)
        if sequence is None:
            return None
        route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
        there = sorted(place for place, _ in self._reader.states(sequence, route))
        named = [(self._names.by_number[number], number, slot) for number, slot in there]
        return sequence, [(place.kind, place.name, (sequence, number, slot)) for place, number, slot in named]

    def _able(self, act: Act, slot: Slot) -> bool:
        if slot.queue.deleted:
            return False
        return act.kind not in AGAIN or self._may_return(slot, act.consumer)

    def _could_have(self, slot: Slot, consumer: int) -> bool:
        """Nobody gets two slots of a message, nor one of what it refused."""
        place = (slot.sequence, slot.queue.number, slot.number)
        refused = self._db.execute(
            "select 1 from refusals where sequence = ? and destination = ? and slot <> ? and consumer = ?",
            (*place, consumer),
        ).get
        return refused is None and not self._ledger.has_another(*place, consumer, awaited=True)

    def _fill(self, channel: Destination, after: int, until: int, limit: int) -> tuple[int, int]:
        """What a channel that begins in the past gets of older messages: nothing twice, and nothing that is still in L, since
        that comes by itself. (how many slots, how far it came)"""
        if channel.deleted:
            return 0, until
        done, last = 0, min(until, after + SEARCH_WINDOW)
        rows = self._db.execute(
            "select m.sequence, m.topics, m.object, m.key from messages m where m.sequence > ? and m.sequence <= ?"
            " and m.route is not null and m.same_as is null and m.body is not null and m.topics <> ''"
            " order by m.sequence",
            (after, last),
        ).fetchall()
        for sequence, topics, object, key in rows:
            if done >= limit:
                return done, sequence - 1
            done += self._bring(channel, sequence, tuple(topics.split(",")), object, key)
        return done, last

    def _bring(
        self,
        channel: Destination,
        sequence: int,
        topics: tuple[str, ...],
        object: str | None,
        key: str | None,
    ) -> int:
        if channel not in self._names.subscribers.find(topics):
            return 0
        route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
        if any(place[0] == channel.number for place, _ in self._reader.states(sequence, route)):
            return 0
        slots = self._slots_in(channel, topics)
        for number, named in enumerate(slots):
            party = None if named is None else self._names.party(named)
            slot = self._ledger.later_slot(sequence, channel, number, named=party, reason=Reason.BACKFILLED)
            self._ledger.begin(slot)
        if slots:
            self._ledger.note_latest(channel, sequence, object, key)
        return len(slots)


def _cancel_reason(kind: JobKind, place: Kind) -> Reason:
    if kind is JobKind.DELETE:
        return Reason.QUEUE_DELETED if place is Kind.QUEUE else Reason.CHANNEL_DELETED
    return Reason.PURGED if kind is JobKind.PURGE else Reason.CANCELLED


def job_of(db: Db, number: int) -> Job:
    kind, matched, done, started_at, ended_at, consumer, rate = db.execute(
        "select kind, matched, done, started_at, ended_at, consumer, rate from jobs where number = ?",
        (number,),
    ).get
    return Job(
        id=str(number),
        kind=JobKind(kind),
        matched=matched,
        done=done,
        started_at=started_at,
        ended_at=ended_at,
        consumer=consumer,
        rate=rate,
    )
