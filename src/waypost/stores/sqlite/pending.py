"""Pending rows: what the hot paths of a group collect, written at once by set statements.

Publish, first fetch and success are most of what a broker does; each costs a few rows, and rows of one kind are cheap
together. Whoever reads a table in the middle of a group flushes first.
"""

from __future__ import annotations

from array import array
from itertools import count
from typing import Any

import apsw

from ...delivery import F, Outcome, S, X
from .rows import OUTCOMES, Db, Row, pack_path

SUCCESS = OUTCOMES[Outcome.SUCCESS]
INSERT_FETCH = "insert into fetches values (?,?,?,?,?,?,?,?,?,?,?,?,null,null,null)"
_SUCCESS_ALONE = pack_path((F, S, X))
#: deliveries fetched for the first time; the others have their row. All fetches from the first pending one on are pending:
#: whoever writes one himself has flushed before.
_INSERT_FETCHED = """
    insert or ignore into deliveries
    select sequence, destination, slot, 4, 1, 1, consumer, null, at, "offset", until_at, null, null, null, null, null
    from fetches where "offset" >= ?"""
_UPDATE_REFETCHED = """
    update deliveries set state = 4, attempt = ?, tries = ?, consumer = ?, reason = null, since_at = ?, last = ?, due_at = ?
    where sequence = ? and destination = ? and slot = ?"""
#: likewise, for steps
_UPDATE_CONFIRMED = """
    update deliveries set state = 5, since_at = s.at, last = s."offset", due_at = null, reason = s.reason
    from steps s where s."offset" >= ? and deliveries.sequence = s.sequence
    and deliveries.destination = s.destination and deliveries.slot = s.slot"""
_UPDATE_SETTLED = f"""
    update fetches set settled_at = s.at, outcome = {SUCCESS}, became = 5
    from steps s where s."offset" >= ? and fetches."offset" = s.previous"""
#: rows that one statement inserts, most first; few sizes, so that all of them stay prepared
_AT_ONCE = (32, 4, 1)


class Rows:
    """Rows of one table. Neighbours say most things alike, so those are bound once for all that follow each other: half the
    time of a statement a row, whose repetition would also drive all others out of the connection's cache."""

    def __init__(self, insert: str, form: str) -> None:
        """`form` are a row's values: ?1, ?2 … those it shares, {} its own, of which the first is the key."""
        self._width = form.count("{}")
        self._inserts = [
            (rows * self._width, f"{insert} values {_numbered(form, rows)}") for rows in _AT_ONCE
        ]
        #: (what is shared, what is not, row after row)
        self._runs: list[tuple[Row, list[Any]]] = []
        self._shared: Row = ()

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first(self) -> int:
        """The first row's key."""
        key: int = self._runs[0][1][0]
        return key

    def add(self, shared: Row, own: Row) -> None:
        if shared is not self._shared:
            if shared != self._shared:
                self._runs.append((shared, []))
            self._shared = shared
        self._runs[-1][1].extend(own)

    def write(self, db: Db) -> None:
        for shared, own in self._runs:
            start, end = 0, len(own)
            for width, insert in self._inserts:
                while end - start >= width:
                    db.execute(insert, (*shared, *own[start : start + width]))
                    start += width
        self.clear()

    def clear(self) -> None:
        self._runs.clear()
        self._shared = ()


def _numbered(form: str, rows: int) -> str:
    numbers = count(form.count("?") + 1)
    return ", ".join(
        form.format(*(f"?{next(numbers)}" for _ in range(form.count("{}")))) for _ in range(rows)
    )


class Pending:
    def __init__(self, db: Db) -> None:
        self._db = db
        #: shared: at, route … traceparent; own: sequence, salt, own_id, key, timestamp, priority, expires_at, same_as, hash, size, body
        self.messages = Rows(
            "insert into messages", "({},?1,{},{},?2,?3,?4,{},?5,{},?6,?7,?8,?9,?10,{},{},{},{},{},{})"
        )
        #: idempotency keys: (producer, key) -> hash, id, state, same_as; looked at before their table
        self.keys: dict[tuple[int, str], Row] = {}
        self.keys_at = 0
        self._keys = Rows("insert or replace into idempotency", "(?1,{},{},?2,{},{},{})")
        #: (destination, priority) -> sequences of plain deliveries
        self.ready: dict[tuple[int, int], array[int]] = {}
        #: shared: at, destination, consumer, until_at; own: offset, sequence, slot, from_state, duration_ms, attempt, salt, previous
        self.fetches = Rows("insert into fetches", "({},?1,{},?2,{},{},{},{},?3,{},{},?4,null,null,null)")
        #: what a fetch changes of deliveries that have a row already
        self.refetched: list[Row] = []
        #: (destination, priority) -> the last (sequence, slot) taken from its front
        self.taken: dict[tuple[int, int], tuple[int, int]] = {}
        #: successes; shared: at, destination, reason; own: offset, sequence, slot, duration_ms, attempt, consumer, previous
        self.successes = Rows(
            "insert into steps", f"({{}},?1,{{}},?2,{{}},{_SUCCESS_ALONE},{{}},{{}},{{}},?3,{{}})"
        )

    def add_ready(self, destination: int, priority: int, sequences: array[int]) -> None:
        before = self.ready.get((destination, priority))
        if before is None:
            self.ready[destination, priority] = sequences
        else:
            before.extend(sequences)

    def clear(self) -> None:
        for rows in (self.messages, self._keys, self.fetches, self.successes):
            rows.clear()
        for taken in (self.keys, self.ready, self.refetched, self.taken):
            taken.clear()

    def flush(self) -> None:
        """What the hot paths collected, written by set statements that cannot violate a constraint."""
        db = self._db
        if self.messages:
            self.messages.write(db)
        if self.keys:
            for (producer, key), answer in self.keys.items():
                self._keys.add((producer, self.keys_at), (key, *answer))
            self._keys.write(db)
            self.keys.clear()
        for (destination, priority), sequences in self.ready.items():
            db.execute(
                "insert into ready select ?2, ?3, value, 0, 0 from carray(?1)",
                (apsw.carray(sequences), destination, priority),
            )
        self.ready.clear()
        if self.fetches:
            first = self.fetches.first
            self.fetches.write(db)
            db.execute(_INSERT_FETCHED, (first,))
            if self.refetched:
                db.executemany(_UPDATE_REFETCHED, self.refetched)
                self.refetched.clear()
            for (destination, priority), last in self.taken.items():
                db.execute(
                    "delete from ready where destination = ? and priority = ? and (sequence, slot) <= (?, ?)",
                    (destination, priority, *last),
                )
            self.taken.clear()
        if self.successes:
            first = self.successes.first
            self.successes.write(db)
            db.execute(_UPDATE_CONFIRMED, (first,))
            db.execute(_UPDATE_SETTLED, (first,))
