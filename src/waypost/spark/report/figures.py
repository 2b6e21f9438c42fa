"""What a report is made of: the answers to its questions, as plain rows. And how rows become series.

Spark ends here: whatever draws or says something is given Figures and needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from . import units
from .period import MINUTE, Period
from .scales import Across

Row = Mapping[str, Any]

#: what has no place of its own; no queue or consumer can be called so
OTHERS = "all others"
#: more lines than this nobody tells apart
MOST_SERIES = 7


@dataclass(frozen=True)
class Answer:
    #: as asked; a person can paste it
    sql: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Figures:
    period: Period
    made_at: datetime
    #: by the question's name, see queries.py
    answers: Mapping[str, Answer]
    #: up to where the tables of minutes go; None when they are empty
    tables_until: datetime | None
    #: what to say to `waypost.spark.table` to find the same tables: url, lake
    where: Mapping[str, str] = field(default_factory=dict)

    def rows(self, question: str) -> tuple[Row, ...]:
        return self.answers[question].rows

    def across(self) -> Across:
        return Across(tuple(self.period.starts(self.period.step)), self.period.step)

    def across_minutes(self) -> Across:
        step = self.period.coarse_step
        return Across(tuple(self.period.starts(step)), step)


def by_name(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """Rows of each name, in the order in which the names come first."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(row[name], []).append(row)
    return named


def filled(rows: Iterable[Row], column: str, across: Across, nothing: float | None = 0) -> list[float | None]:
    """One value a step; a step without a row has `nothing`."""
    known: dict[datetime, float | None] = {row["time"]: row[column] for row in rows}
    return [known.get(start, nothing) for start in across.starts]


def carried(rows: Iterable[Row], across: Across) -> list[float]:
    """The highest depth of each step: where nothing happened it is what the step before ended with.

    A row without a time says how it was before the first step.
    """
    known = {row["time"]: row for row in rows}
    depth = float(known[None]["depth"]) if None in known else 0.0
    values = []
    for start in across.starts:
        if row := known.get(start):
            values.append(float(max(row["peak"], row["depth"])))
            depth = float(row["depth"])
        else:
            values.append(depth)
    return values


@dataclass(frozen=True)
class Trouble:
    """A consumer for whom most went wrong, for a while."""

    consumer: str
    since: datetime
    until: datetime
    failed: int
    fetched: int

    @property
    def when(self) -> str:
        end = units.clock if self.until.date() == self.since.date() else units.moment
        return f"from {units.moment(self.since)} to {end(self.until, MINUTE)}"


#: a spell of trouble has at least so many failures
LEAST_FAILURES = 10


def troubles(rows: Iterable[Row], across: Across) -> list[Trouble]:
    """Spells in which at least half of what a consumer fetched failed; one quiet step does not end a spell."""
    found = []
    for consumer, its in by_name(rows, "consumer").items():
        if consumer == OTHERS:
            continue
        bad = [
            row
            for row in sorted(its, key=lambda row: row["time"])
            if row["failed"] and row["failed"] * 2 >= row["fetched"]
        ]
        for spell in _spells(bad, across):
            failed = sum(row["failed"] for row in spell)
            if failed >= LEAST_FAILURES:
                found.append(
                    Trouble(
                        consumer,
                        spell[0]["time"],
                        spell[-1]["time"] + across.step,
                        failed,
                        max(failed, sum(row["fetched"] for row in spell)),
                    )
                )
    return sorted(found, key=lambda trouble: -trouble.failed)


def _spells(rows: Sequence[Row], across: Across) -> list[list[Row]]:
    spells: list[list[Row]] = []
    for row in rows:
        if spells and row["time"] - spells[-1][-1]["time"] <= 2 * across.step:
            spells[-1].append(row)
        else:
            spells.append([row])
    return spells
