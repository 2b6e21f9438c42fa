"""Reaping: what has been kept for long enough is forgotten, a slice at a time.

ended, none of it dead, for longer than its queues keep  ─▶  its body goes, if the lake has it
events older than the log keeps, and in the lake         ─▶  the log's oldest offset moves up
body gone, and all its events left the log               ─▶  its rows go
"""

from __future__ import annotations

from ...policy import DEFAULT
from .. import IDEMPOTENCY_KEPT_US, SPECTATORS_HOLD_US
from ..rules import outlived
from ..things import Message
from . import batches, marks
from .group import GroupRows


def reap(rows: GroupRows, limit: int) -> bool:
    """Whether more is left."""
    return Reaper(rows).reap(limit)


class Reaper:
    def __init__(self, rows: GroupRows) -> None:
        self._rows, self._db, self._now = rows, rows.db, rows.now

    def reap(self, limit: int) -> bool:
        self._rows.reaped = True
        more = self._drop_bodies(limit)
        more = self._trim(limit) or more
        more = self._forget_messages(limit) or more
        more = batches.forget(self._db, self._now) or more
        if self._rows.names.schema >= marks.SINCE_SCHEMA:
            marks.join_lowerings(self._db, self._rows.began.turn)
        self._db.execute("delete from idempotency where at <= %s", (self._now - IDEMPOTENCY_KEPT_US,))
        self._db.execute("delete from brokers where seen_at < now() - interval '30 days'")
        for object, policy in self._rows.objects.items():
            if policy.unchanged is not None:
                self._db.execute(
                    "delete from contents where object = %s and at <= %s",
                    (object, self._now - policy.unchanged.window_us),
                )
        return more

    def _in_lake(self) -> int:
        sealed, holds = self._rows.sealed or 0, self._rows.keeping.lake_holds
        return sealed if holds is None else min(sealed, holds)

    def _drop_bodies(self, limit: int) -> bool:
        """In log order; a pass ends where messages are younger than the shortest `keep`."""
        keeps = [place.policy.keep_us for place in self._rows.names.places.values()]
        youngest = self._now - min([DEFAULT.keep_us, *keeps])
        last = self._in_lake() if self._rows.keeping.lake else self._rows.head
        after, dropped = 0, 0
        while dropped < limit:
            self._db.execute(
                "select m.sequence from messages m where m.kept and m.sequence > %s and m.sequence <= %s"
                " and m.at <= %s and not m.undecided and not exists (select 1 from deliveries d"
                " where d.sequence = m.sequence and (d.state in (3, 4, 7) or (d.state in (8, 9)"
                " and exists (select 1 from destinations p where p.number = d.destination and p.deleted_at is null))))"
                " order by m.sequence limit %s",
                (after, last, youngest, limit),
            )
            sequences = [sequence for (sequence,) in self._db.fetchall()]
            if not sequences:
                return False
            for message in self._rows.obtain(sequences):
                if message.kept and outlived(message, self._now):
                    self._rows.drop_body(message)
                    dropped += 1
            after = sequences[-1]
        return True

    def _trim(self, limit: int) -> bool:
        rows = self._rows
        oldest, target = rows.began.oldest, self._trim_to()
        if target <= oldest:
            return False
        bound = min(target, oldest + 4 * limit)
        rows.new_oldest = bound
        self._db.execute('delete from events where "offset" < %s', (bound,))
        self._db.execute(
            'delete from fetches f where "offset" < %s and not exists (select 1 from deliveries d'
            " where d.sequence = f.sequence and d.destination = f.destination and d.slot = f.slot"
            ' and d.fetched = f."offset" and d.state = 4)',
            (bound,),
        )
        return bound < target

    def _trim_to(self) -> int:
        """Up to here the log has been kept for long enough, and the lake has it; or, without one, every spectator has read it or
        had its time."""
        rows = self._rows
        target = rows.offset_at(self._now - rows.keeping.log_keep_us)
        if rows.keeping.lake:
            return min(target, self._in_lake() + 1)
        self._db.execute('select min("offset") from spectators')
        row = self._db.fetchone()
        assert row is not None
        read = rows.head if row[0] is None else row[0]
        return min(target, max(read + 1, rows.offset_at(self._now - SPECTATORS_HOLD_US)))

    def _forget_messages(self, limit: int) -> bool:
        oldest = self._rows.new_oldest or self._rows.began.oldest
        dropped = self._rows.dropped_bodies
        self._db.execute(
            "select m.sequence from messages m where (not m.kept or m.sequence = any(%s)) and m.sequence < %s"
            ' and not exists (select 1 from events e where e.sequence = m.sequence and e."offset" >= %s)'
            " order by m.sequence limit %s",
            (dropped, oldest, oldest, limit),
        )
        sequences = [sequence for (sequence,) in self._db.fetchall()]
        for message in self._rows.obtain(sequences):
            self._forget(message)
        return len(sequences) == limit

    def _forget(self, message: Message) -> None:
        rows = self._rows
        rows.forgotten = True
        if message.thing is not None:
            self._db.execute(
                "update contents set ended = %s where object = %s and key = %s and sequence = %s",
                (int(message.state), *message.thing, message.sequence),
            )
            self._db.execute(
                "delete from latest where object = %s and key = %s and sequence = %s",
                (*message.thing, message.sequence),
            )
        for slot in message.slots:
            rows.counted[slot.queue, slot.state] -= 1
        for table in ("payloads", "deliveries", "fetches", "messages"):
            self._db.execute(f"delete from {table} where sequence = %s", (message.sequence,))
