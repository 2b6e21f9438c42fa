"""Snapshots: depths at past moments, so that the depth of a queue at any moment is found without reading its whole life.

    moment asked ──▶ the last snapshot before it ──▶ and the events between the two, at most as many as one snapshot is apart

A snapshot is written with the group that makes it due: 10,000 events or an hour after the last one, and when something was forgotten,
which no event tells. It has rows for what changed since the last one, and one for destination 0, which says that all others
are as they were.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from ...delivery import F, L, Q, State, X
from ...destinations import Kind
from ...errors import LogTrimmed
from ...instants import SECOND
from ...store import Depths
from .names import Destination, Names
from .reading import Reader
from .rows import STATE, Db, unpack_path, unpack_route

SNAPSHOT_EVENTS = 10_000
SNAPSHOT_EVERY_US = 3_600 * SECOND


class Snapshots:
    """The writer's half."""

    def __init__(self, db: Db, names: Names) -> None:
        self._db, self._names = db, names
        self.load()

    def load(self) -> None:
        """As the file has it; what changed since the last one is not known, so the next one has all."""
        row: tuple[int, int] | None = self._db.execute(
            'select at, "offset" from snapshots where destination = 0 order by at desc limit 1'
        ).get
        self._at, self._offset = row or (0, 0)
        self._changed: set[Destination] | None = None

    def after(self, touched: set[Destination], head: int, now: int, forgotten: bool) -> None:
        """At the end of each group."""
        if self._changed is not None and touched:
            self._changed |= touched
        due = head - self._offset >= SNAPSHOT_EVENTS or now - self._at >= SNAPSHOT_EVERY_US
        if not (forgotten or (due and head != self._offset)):
            return
        places = self._names.by_number.values() if self._changed is None else self._changed
        rows = [(place.number, now, head, msgspec.json.encode(place.states).decode()) for place in places]
        self._db.executemany(
            "insert or replace into snapshots values (?, ?, ?, ?)", [*rows, (0, now, head, "")]
        )
        self._at, self._offset, self._changed = now, head, set()

    def trim(self, oldest: int) -> None:
        """The log begins later now: what lies before the first moment that can still be asked for goes."""
        first = self._db.execute(
            'select min(at) from snapshots where destination = 0 and "offset" >= ?', (oldest - 1,)
        ).get
        if first is not None:
            self._db.execute(
                "delete from snapshots where at < ?1 and exists (select 1 from snapshots later"
                " where later.destination = snapshots.destination and later.at > snapshots.at and later.at <= ?1)",
                (first,),
            )


def depths_at(db: Db, names: Names, reader: Reader, kind: Kind, name: str, at: int) -> Depths | None:
    oldest, head = reader.bounds()
    base: tuple[int, int] | None = db.execute(
        'select at, "offset" from snapshots where destination = 0 and at <= ? order by at desc limit 1', (at,)
    ).get
    first: tuple[int, int] | None = db.execute(
        'select at, "offset" from snapshots where destination = 0 and "offset" >= ? order by at limit 1',
        (oldest - 1,),
    ).get
    # Without a snapshot before it, a moment is found from the log's beginning, as long as that is near enough: a file of
    # version 1 has a long life before its first snapshot.
    from_the_start = oldest == 1 and (head if first is None else first[1]) <= 2 * SNAPSHOT_EVENTS
    if (base is None and not from_the_start) or (base is not None and base[1] < oldest - 1):
        raise LogTrimmed(oldest, reader.row_of(head)[1] if first is None else first[0])
    there = [
        place
        for place in list(names.by_number.values())
        if (place.kind, place.name) == (kind, name)
        and place.created_at <= at
        and (place.deleted_at is None or at < place.deleted_at)
    ]
    if not there:
        return None
    number = max(place.number for place in there)
    counts = [0] * (len(State) + 1)
    since_at, since = base or (0, 0)
    if base is not None:
        row = db.execute(
            "select states from snapshots where destination = ? and at <= ? order by at desc limit 1",
            (number, since_at),
        ).get
        counts = counts if row is None else msgspec.json.decode(row, type=list[int])
    offset = reader.offset_at(at + 1) - 1
    _fold(db, number, since + 1, offset, counts)
    states = {STATE[state]: count for state, count in enumerate(counts) if count}
    return Depths(at=at, offset=offset, states=states)


def _fold(db: Db, number: int, lo: int, hi: int, counts: list[int]) -> None:
    """The events lo … hi of one destination, added to the counts."""
    for route, count in db.execute(
        "select route, count(*) from messages where sequence between ? and ? and route is not null group by route",
        (lo, hi),
    ):
        counts[Q] += count * sum(place[0] == number for place in unpack_route(route))
    for from_state, count in db.execute(
        'select from_state, count(*) from fetches where "offset" between ? and ? and destination = ? group by from_state',
        (lo, hi, number),
    ):
        counts[from_state] -= count
        counts[F] += count
    for path, count in db.execute(
        'select path, count(*) from steps where "offset" between ? and ? and destination = ? group by path',
        (lo, hi, number),
    ):
        for from_state, to_state in pairwise(unpack_path(path)):
            if to_state is X:
                continue  # the message's own
            if from_state is not L:
                counts[from_state] -= count
            if to_state is not L:
                counts[to_state] += count
