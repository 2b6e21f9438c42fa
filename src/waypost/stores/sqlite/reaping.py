"""Reaping: what has been kept for long enough is forgotten, a slice at a time.

    ended, none of it dead, for longer than its queues keep  ─▶  its body goes
    events older than the log keeps                          ─▶  the log's oldest offset moves up
    body gone, and all its events left the log               ─▶  its rows go

It goes through the ended messages in log order, from the beginning again on each pass; a pass stops where messages are younger
than the shortest `keep`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ...delivery import DEAD, ENDED, X
from ...policy import DEFAULT
from .. import IDEMPOTENCY_KEPT_US
from .names import Names
from .reading import Reader
from .rows import STATE, Db, unpack_path, unpack_route
from .slots import Ledger


class Reaper:
    def __init__(self, db: Db, names: Names, reader: Reader, ledger: Ledger, log_keep_us: int) -> None:
        self._db, self._names, self._reader, self._ledger = db, names, reader, ledger
        self._log_keep_us = log_keep_us
        self._after = 0
        self._files: list[str] = []

    def take_files(self) -> list[str]:
        """Names of body files to be removed, once the commit that forgot them went through."""
        if not self._files:
            return self._files
        files, self._files = self._files, []
        return files

    def reap(self, limit: int) -> bool:
        if self._after == 0:
            # Before a pass, never during it: what the log has let go is then seen by the whole pass.
            self._forget_keys(limit)
            if self._trim(limit):
                return True
        return self._pass(limit)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def _trim(self, limit: int) -> bool:
        oldest = self._reader.bounds()[0]
        target = self._reader.offset_at(self._ledger.now - self._log_keep_us)
        if target <= oldest:
            return False
        bound = min(target, oldest + 4 * limit)
        if bound < target:
            # Never between two events of one row.
            bound = self._reader.row_of(bound)[0]
            if bound <= oldest:
                bound = target
        self._db.execute("update head set oldest = ?", (bound,))
        self._db.execute('delete from steps where "offset" < ?', (bound,))
        self._db.execute('delete from fetches where "offset" < ? and settled_at is not null', (bound,))
        return bound < target

    def _forget_keys(self, limit: int) -> None:
        self._db.execute(
            "delete from idempotency where at <= ?1 and rowid in (select rowid from idempotency order by rowid limit ?2)",
            (self._ledger.now - IDEMPOTENCY_KEPT_US, limit),
        )

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _pass(self, limit: int) -> bool:
        keeps = [queue.policy.keep_us for queue in self._names.by_number.values()]
        youngest = self._ledger.now - min([DEFAULT.keep_us, self._log_keep_us, *keeps])
        rows = self._db.execute(
            "select d.sequence, d.destination, d.slot, d.state, d.since_at, d.last, m.at, m.route, m.body is null, m.size"
            " from deliveries d cross join messages m on m.sequence = d.sequence"
            " where d.sequence > ?1 and d.sequence <= (select max(sequence) from"
            " (select distinct sequence from deliveries where sequence > ?1 order by sequence limit ?2))"
            " order by d.sequence",
            (self._after, limit),
        ).fetchall()
        groups = [(sequence, list(group)) for sequence, group in groupby(rows, key=lambda row: row[0])]
        full = len(groups) == limit
        oldest = self._reader.bounds()[0]
        for sequence, group in groups:
            if group[0][6] > youngest:
                full = False
                break
            if group[0][8] or self._outlived(group):
                self._reap(sequence, group, oldest)
            self._after = sequence
        if not full:
            self._after = 0
        return full

    def _outlived(self, group: list[Any]) -> bool:
        places = {(row[1], row[2]) for row in group}
        if any(place not in places for place in unpack_route(group[0][7])):
            return False
        for _, destination, _, state, since_at, *_ in group:
            queue = self._names.by_number.get(destination)
            if STATE[state] is not X and STATE[state] not in ENDED:
                return False
            if STATE[state] in DEAD and queue is not None and not queue.deleted:
                return False
            keep_us = DEFAULT.keep_us if queue is None else queue.policy.keep_us
            if since_at + keep_us > self._ledger.now:
                return False
        return True

    def _reap(self, sequence: int, group: list[Any], oldest: int) -> None:
        if not group[0][8]:
            self._drop_body(sequence)
        if max(sequence + self._offsets(group), *(self._last_offset(row[5]) for row in group)) < oldest:
            self._forget(sequence, group)

    def _drop_body(self, sequence: int) -> None:
        body = self._db.execute("select body from messages where sequence = ?", (sequence,)).get
        if isinstance(body, str):
            self._files.append(body)
            self._db.execute("delete from bodies where name = ?", (body,))
        self._db.execute("update messages set body = null where sequence = ?", (sequence,))

    def _offsets(self, group: list[Any]) -> int:
        """How many events the message's row stands for, after L."""
        return max(1, len(unpack_route(group[0][7])))

    def _last_offset(self, last: int) -> int:
        """Of a slot's last event: its last row may hold several."""
        path = self._db.execute('select path from steps where "offset" = ?', (last,)).get
        return last if path is None else last + len(unpack_path(path)) - 2

    def _forget(self, sequence: int, group: list[Any]) -> None:
        for _, destination, _, state, *_ in group:
            queue = self._names.by_number.get(destination)
            if queue is not None:
                queue.states[state] -= 1
                self._ledger.touched.add(queue)
        self._db.execute(
            "delete from own_ids where id = (select own_id from messages where sequence = ?)", (sequence,)
        )
        for table in ("deliveries", "refusals", "messages"):
            self._db.execute(f"delete from {table} where sequence = ?", (sequence,))
