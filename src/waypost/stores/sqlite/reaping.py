"""Reaping: what has been kept for long enough is forgotten, a slice at a time.

    ended, none of it dead, for longer than its queues keep  ─▶  its body goes, if the lake has it
    events older than the log keeps, and in the lake         ─▶  the log's oldest offset moves up
    body gone, and all its events left the log               ─▶  its rows go

Without a lake, events wait for the spectators that have a name instead, and bodies for nothing.

It goes through the ended messages in log order, from the beginning again on each pass; a pass stops where messages are younger
than the shortest `keep`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ...delivery import DEAD, ENDED
from ...policy import DEFAULT
from .. import IDEMPOTENCY_KEPT_US, SPECTATORS_HOLD_US
from .names import Names
from .reading import Reader
from .rows import STATE, Db, events_after_l, unpack_path, unpack_route
from .slots import Ledger
from .snapshots import Snapshots


class Reaper:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        snapshots: Snapshots,
        log_keep_us: int,
        held_bytes: int,
    ) -> None:
        self._db, self._names, self._reader, self._ledger = db, names, reader, ledger
        self._snapshots, self._log_keep_us, self._held_bytes = snapshots, log_keep_us, held_bytes
        #: something was forgotten in this group
        self.forgotten = False
        self._after = 0
        self._files: list[str] = []
        #: whether there is a lake, and up to where it was seen to go; None: to where it was sealed
        self.lake = False
        self.lake_holds: int | None = None
        self.load()

    def load(self) -> None:
        """As the file has it."""
        #: the last offset that a lake holds; None: none ever held any
        self.sealed: int | None = self._db.execute("select sealed from head").get

    def seal(self, upto: int) -> None:
        self.sealed = max(upto, self.sealed or 0)
        self._db.execute("update head set sealed = ?", (self.sealed,))

    def _in_lake(self) -> int:
        sealed = self.sealed or 0
        return sealed if self.lake_holds is None else min(sealed, self.lake_holds)

    def undo(self) -> None:
        """Its group was rolled back: the rows are there again, and need their files."""
        self._after = 0
        self._files.clear()
        self.load()

    def drop_files(self, names: Iterable[str]) -> None:
        self._files += names

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
            self._forget_contents()
            if self._trim(limit):
                return True
        return self._pass(limit)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def _trim(self, limit: int) -> bool:
        oldest = self._reader.bounds()[0]
        target = self._trim_to()
        if target <= oldest:
            return False
        bound = min(target, oldest + 4 * limit)
        if bound < target:
            # Never between two events of one row.
            bound = self._reader.row_of(bound)[0]
            if bound <= oldest:
                bound = target
        self._db.execute("update head set oldest = ?", (bound,))
        # A spectator may stand between two events of one row.
        row = self._reader.row_of(bound)[0] if bound <= self._ledger.head else bound
        self._db.execute('delete from steps where "offset" < ?', (row,))
        self._db.execute('delete from fetches where "offset" < ? and settled_at is not null', (row,))
        self._snapshots.trim(bound)
        return bound < target

    def _trim_to(self) -> int:
        """Up to here the log has been kept for long enough, and the lake has it; or, without one, every spectator has read it or
        had its time and space."""
        target = self._reader.offset_at(self._ledger.now - self._log_keep_us)
        if self.lake:
            return min(target, self._in_lake() + 1)
        read: int | None = self._db.execute('select min("offset") from spectators').get
        if read is None or self._file_bytes() > self._held_bytes:
            return target
        return min(target, max(read + 1, self._reader.offset_at(self._ledger.now - SPECTATORS_HOLD_US)))

    def _file_bytes(self) -> int:
        pages, free, size = (self._db.pragma(word) for word in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * size)

    def _forget_keys(self, limit: int) -> None:
        self._db.execute(
            "delete from idempotency where at <= ?1 and rowid in (select rowid from idempotency order by rowid limit ?2)",
            (self._ledger.now - IDEMPOTENCY_KEPT_US, limit),
        )

    def _forget_contents(self) -> None:
        for object in self._names.compared:
            unchanged = self._names.objects[object].unchanged
            assert unchanged is not None
            self._db.execute(
                "delete from contents where object = ? and at <= ?",
                (object, self._ledger.now - unchanged.window_us),
            )

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _pass(self, limit: int) -> bool:
        keeps = [queue.policy.keep_us for queue in self._names.by_number.values()]
        youngest = self._ledger.now - min([DEFAULT.keep_us, self._log_keep_us, *keeps])
        rows = self._db.execute(
            "select d.sequence, d.destination, d.slot, d.state, d.since_at, d.last, m.at, m.route, m.body is null, m.same_as is not null"
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
        route, by_number = group[0][7], self._names.by_number
        places = {(row[1], row[2]) for row in group}
        if any(place not in places for place in unpack_route(route)):
            return False
        if route is None and not group[0][9] and all(row[1] == 0 for row in group):
            return False  # still in L
        in_queues = self._in_queues(group)
        for _, destination, _, state, since_at, *_ in group:
            if destination == 0:
                if not in_queues and since_at + DEFAULT.keep_us > self._ledger.now:
                    return False
                continue
            place = by_number[destination]
            if STATE[state] not in ENDED or (STATE[state] in DEAD and not place.deleted):
                return False
            if since_at + place.policy.keep_us > self._ledger.now:
                return False
        return True

    def _in_queues(self, group: list[Any]) -> bool:
        return any(row[1] and self._names.by_number[row[1]].is_queue for row in group)

    def _reap(self, sequence: int, group: list[Any], oldest: int) -> None:
        if not group[0][8]:
            if self.lake and sequence > self._in_lake():
                return
            self.drop_body(sequence)
        if max(sequence + self._offsets(group), *(self._last_offset(row[5]) for row in group)) < oldest:
            self._forget(sequence, group)

    def drop_body(self, sequence: int) -> None:
        body = self._db.execute("select body from messages where sequence = ?", (sequence,)).get
        if isinstance(body, str):
            self._files.append(body)
            self._db.execute("delete from bodies where name = ?", (body,))
        self._db.execute("update messages set body = null where sequence = ?", (sequence,))

    def _offsets(self, group: list[Any]) -> int:
        """How many events the message's row stands for, after L."""
        route = group[0][7]
        by_number = self._names.by_number
        in_queues = any(by_number[place[0]].is_queue for place in unpack_route(route))
        return events_after_l(route, bool(group[0][9]), in_queues)

    def _last_offset(self, last: int) -> int:
        """Of a slot's last event: its last row may hold several."""
        path = self._db.execute('select path from steps where "offset" = ?', (last,)).get
        return last if path is None else last + len(unpack_path(path)) - 2

    def _forget(self, sequence: int, group: list[Any]) -> None:
        self.forgotten = True
        state = self._reader.state_of(sequence)
        self._db.execute(
            "update contents set ended = ?2 where (object, key) ="
            " (select object, key from messages where sequence = ?1) and sequence = ?1",
            (sequence, state),
        )
        for _, destination, _, slot_state, *_ in group:
            if destination:
                place = self._names.by_number[destination]
                place.states[slot_state] -= 1
                self._ledger.touched.add(place)
        self._db.execute(
            "delete from own_ids where id = (select own_id from messages where sequence = ?)", (sequence,)
        )
        for table in ("deliveries", "refusals", "undecided", "messages"):
            self._db.execute(f"delete from {table} where sequence = ?", (sequence,))
