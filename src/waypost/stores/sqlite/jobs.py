"""Jobs: work on many deliveries, accepted in one small row and done in slices that others' commands run between."""

from __future__ import annotations

from ...commands import JOB_STATES, Job, JobKind, StartJob, Work
from ...delivery import C, Q, Reason, Step
from ...filters import Filter
from .names import Destination, Names
from .reading import SEARCH_WINDOW, Reader
from .rows import Db, filter_of, filter_text
from .slots import Ledger, Slot

_REASONS = {
    JobKind.CANCEL: Reason.CANCELLED,
    JobKind.PURGE: Reason.PURGED,
    JobKind.DELETE: Reason.QUEUE_DELETED,
}


class Jobs:
    def __init__(self, db: Db, names: Names, reader: Reader, ledger: Ledger) -> None:
        self._db, self._names, self._reader, self._ledger = db, names, reader, ledger

    def start(self, command: StartJob) -> Job:
        return self.open(command.kind, command.filter, command.matched, None)

    def open(self, kind: JobKind, filter: Filter, matched: int, queue: Destination | None) -> Job:
        number = (self._db.execute("select max(number) from jobs").get or 0) + 1
        self._db.execute(
            "insert into jobs values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, null)",
            (
                number,
                kind,
                filter_text(filter),
                queue.number if queue else None,
                self._ledger.head,
                max(self._names.by_number, default=0),
                matched,
                self._ledger.now,
            ),
        )
        return job_of(self._db, number)

    def work(self, command: Work) -> bool:
        row = self._db.execute(
            "select number, kind, filter, destination, until, newest, after from jobs where ended_at is null"
            " order by number limit 1"
        ).get
        if row is None:
            return False
        number, kind, filter, destination, until, newest, after = row
        chosen = filter_of(filter)
        began, done = after, 0
        while done < command.limit and after < until and after < began + SEARCH_WINDOW:
            found, following = self._reader.search(chosen, after, command.limit - done)
            for queue_number, info in found:
                if info.sequence <= until and queue_number <= newest and destination in (None, queue_number):
                    slot = self._ledger.slot(info.sequence, queue_number, info.slot)
                    done += self._work_on(JobKind(kind), slot)
            after = until if following is None else following
        ended_at = self._ledger.now if done < command.limit and after >= until else None
        self._db.execute(
            "update jobs set after = ?, done = done + ?, ended_at = ? where number = ?",
            (after, done, ended_at, number),
        )
        return self._db.execute("select 1 from jobs where ended_at is null limit 1").get is not None

    def _work_on(self, kind: JobKind, slot: Slot) -> bool:
        """Whether it was one that the job may touch."""
        if slot.state not in JOB_STATES[kind] or slot.queue.deleted != (kind is JobKind.DELETE):
            return False
        if kind is JobKind.REDRIVE:
            if self._db.execute("select body is null from messages where sequence = ?", (slot.sequence,)).get:
                return False  # what has no body any more cannot be delivered again
            self._ledger.take(slot, Step((Q,), Reason.REDRIVEN))
        else:
            self._ledger.take(slot, Step((C,), _REASONS[kind], None, slot.tries))
        return True


def job_of(db: Db, number: int) -> Job:
    kind, matched, done, started_at, ended_at = db.execute(
        "select kind, matched, done, started_at, ended_at from jobs where number = ?", (number,)
    ).get
    return Job(
        id=str(number),
        kind=JobKind(kind),
        matched=matched,
        done=done,
        started_at=started_at,
        ended_at=ended_at,
    )
