"""Pending rows: what the hot paths of a group collect, written at once by set statements.

Publish, first fetch and success are most of what a broker does; each costs a few rows, and rows of one kind are cheap
together. Whoever reads a table in the middle of a group flushes first.
"""

from __future__ import annotations

from array import array

import apsw

from ...delivery import Outcome
from .rows import OUTCOMES, Db, Row

SUCCESS = OUTCOMES[Outcome.SUCCESS]
INSERT_FETCH = "insert into fetches values (?,?,?,?,?,?,?,?,?,?,?,?,null,null,null)"
_INSERT_MESSAGE = "insert into messages values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


class Pending:
    def __init__(self, db: Db) -> None:
        self._db = db
        self.messages: list[Row] = []
        #: (destination, priority) -> sequences of plain deliveries
        self.ready: dict[tuple[int, int], array[int]] = {}
        self.fetches: list[Row] = []
        #: deliveries fetched for the first time
        self.deliveries: list[Row] = []
        #: and those fetched again
        self.refetched: list[Row] = []
        #: (destination, priority) -> the last (sequence, slot) taken from its front
        self.taken: dict[tuple[int, int], tuple[int, int]] = {}
        self.steps: list[Row] = []
        #: what a success changes of deliveries, and of fetches
        self.confirmed: list[Row] = []
        self.settled: list[Row] = []

    def add_ready(self, destination: int, priority: int, sequences: array[int]) -> None:
        before = self.ready.get((destination, priority))
        if before is None:
            self.ready[destination, priority] = sequences
        else:
            before.extend(sequences)

    def clear(self) -> None:
        for rows in (
            self.messages,
            self.fetches,
            self.deliveries,
            self.refetched,
            self.steps,
            self.confirmed,
            self.settled,
        ):
            rows.clear()
        self.ready.clear()
        self.taken.clear()

    def flush(self) -> None:
        """What the hot paths collected, written by set statements that cannot violate a constraint."""
        db = self._db
        if self.messages:
            db.executemany(_INSERT_MESSAGE, self.messages)
            self.messages.clear()
            for (destination, priority), sequences in self.ready.items():
                db.execute(
                    "insert into ready select ?2, ?3, value, 0, 0 from carray(?1)",
                    (apsw.carray(sequences), destination, priority),
                )
            self.ready.clear()
        if self.fetches:
            db.executemany(INSERT_FETCH, self.fetches)
            db.executemany(
                "insert into deliveries values (?,?,?,4,1,1,?,null,?,?,?,null,null,null,null,null)",
                self.deliveries,
            )
            db.executemany(
                "update deliveries set state = 4, attempt = ?, tries = ?, consumer = ?, reason = null, since_at = ?,"
                " last = ?, due_at = ? where sequence = ? and destination = ? and slot = ?",
                self.refetched,
            )
            for (destination, priority), last in self.taken.items():
                db.execute(
                    "delete from ready where destination = ? and priority = ? and (sequence, slot) <= (?, ?)",
                    (destination, priority, *last),
                )
            for taken in (self.fetches, self.deliveries, self.refetched, self.taken):
                taken.clear()
        if self.steps:
            db.executemany("insert into steps values (?,?,?,?,?,?,?,?,?,?,?)", self.steps)
            db.executemany(
                "update deliveries set state = 5, since_at = ?, last = ?, due_at = null, reason = ?"
                " where sequence = ? and destination = ? and slot = ?",
                self.confirmed,
            )
            db.executemany(
                f'update fetches set settled_at = ?, outcome = {SUCCESS}, became = 5 where "offset" = ?',
                self.settled,
            )
            for settled in (self.steps, self.confirmed, self.settled):
                settled.clear()
