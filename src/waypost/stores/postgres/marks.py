"""Marks: up to where a destination has nothing for a consumer, so that no fetch passes the same rows again.

A consumer may not have what is named for another, what it refused, and a second slot of a message. A thousand of those may lie before the first one
that it may have. A broker remembers, for each consumer and priority, the sequence up to which there is nothing for it:

    look, without locks: the first row for it ─▶ its mark lies right before that one ─▶ rows are taken, and locked, from there on

Not every row behind the mark stays out of reach: a retry is due, a neighbour's slot is given back, a decision comes late. Whichever broker does that
writes a lowering, under the last lock: the lowest sequence that it opened. The next look starts from there, if the lowering's turn is later than
the head that the mark was made with; what is earlier, that look saw. So a mark may be too low, which costs a longer look, and never too high.
Brokers of schema 2 write no lowerings: every group of one of them ends all marks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...delivery import OPEN
from ..things import HAD, Destination
from .names import Db

#: the schema that has the table
SINCE_SCHEMA = 3
PRIORITIES = 10
#: marks that a broker remembers
MOST = 10_000
#: lowerings of so many groups are kept apart, older ones become one
KEPT_TURNS = 10_000

#: ready: `deliveries_ready` has these, in the order in which they are handed out
READY = "d.state in (3, 7) and d.due_at is null and not d.blocked"

#: what brokers have done that write no lowerings: it rises with every group of theirs
_UNTOLD = "(select coalesce(sum(last_group), 0)::bigint as groups from brokers where not lowers)"
#: where a look starts: at the mark, or lower; or at the beginning, when something happened that nobody told of
_START = (
    "case when u.groups = %s then least(p.passed,"
    " (select min(l.sequence) - 1 from lowerings l where l.destination = %s and l.turn > %s)) else 0 end"
)


class Mark(NamedTuple):
    """As of a head and its turn; and of what was `_UNTOLD` then."""

    turn: int
    untold: int
    #: for each priority: nothing up to here
    passed: list[int]


class Marks:
    def __init__(self) -> None:
        #: by destination and consumer, the one that was used last at the end
        self._known: dict[tuple[int, str], Mark] = {}

    def clear(self) -> None:
        self._known.clear()

    def first(
        self,
        db: Db,
        place: Destination,
        consumer: str,
        others: tuple[str, tuple[Any, ...]],
        turn: int,
        base: int,
    ) -> list[tuple[int, int]]:
        """Each priority that has something for this consumer, in order, and the sequence of its first row, whoever holds that.
        `others`: the condition that passes over what it may not have; `turn` and `base`: of the head as the group saw it."""
        mark = self._known.pop((place.number, consumer), _NEW)
        condition, values = others
        db.execute(
            "select u.groups, f.sequence from unnest(%s::smallint[], %s::bigint[]) as p (priority, passed)"
            f" cross join {_UNTOLD} u left join lateral (select d.sequence from deliveries d"
            f" where d.destination = %s and d.priority = p.priority and {READY}"
            f" and d.sequence > {_START} and d.sequence <= %s{condition}"
            " order by d.sequence limit 1) f on true order by p.priority",
            (
                list(range(PRIORITIES)),
                mark.passed,
                place.number,
                mark.untold,
                place.number,
                mark.turn,
                base,
                *values,
            ),
        )
        rows: list[tuple[int, int | None]] = db.fetchall()
        found = [sequence for _, sequence in rows]
        passed = [base if sequence is None else sequence - 1 for sequence in found]
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[place.number, consumer] = Mark(turn, rows[0][0], passed)
        return [(priority, sequence) for priority, sequence in enumerate(found) if sequence is not None]


_NEW = Mark(0, 0, [0] * PRIORITIES)


def frees(was: tuple[Any, ...] | None, row: tuple[Any, ...] | None) -> bool:
    """Whether, by this change of a slot (its `slot_row`; None: there is none), somebody may have another slot of its message."""
    return not _kept_off(was) <= _kept_off(row)


def _kept_off(row: tuple[Any, ...] | None) -> set[str]:
    """Those who may have no other slot of the message because of this one: `holds_off` and `waits_for`, of its row."""
    if row is None:
        return set()
    state, named, consumer, refused = row[0], row[5], row[8], row[11]
    kept = set(refused.split(","))
    if state in HAD:
        kept.add(consumer)
    if state in OPEN:
        kept.add(named)
    return kept - {None, ""}


def join_lowerings(db: Db, turn: int) -> None:
    """Those long ago become one for each destination: the lowest, as of the latest of them."""
    kept = turn - KEPT_TURNS
    db.execute(
        "insert into lowerings (destination, turn, sequence)"
        " select destination, max(turn), min(sequence) from lowerings where turn < %s group by destination"
        " on conflict (destination, turn) do update set sequence = excluded.sequence",
        (kept,),
    )
    db.execute(
        "delete from lowerings l where l.turn < (select max(o.turn) from lowerings o"
        " where o.destination = l.destination and o.turn < %s)",
        (kept,),
    )
