"""The time a report is about, and the steps in which its pictures walk through it.

Steps start at multiples of their own length, counted in UTC, so the same moment falls into the same step in every
report, and into the same one that Spark's `window(…)` puts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: more points than this no picture shows apart
MOST_STEPS = 120
#: what the tables of minutes cannot tell apart
MINUTE = timedelta(minutes=1)

_SECONDS = (1, 5, 10, 30)
_MINUTES = (1, 5, 10, 15, 30)
_HOURS = (1, 3, 6, 12)
_STEPS = (
    *(timedelta(seconds=n) for n in _SECONDS),
    *(timedelta(minutes=n) for n in _MINUTES),
    *(timedelta(hours=n) for n in _HOURS),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Period:
    """From `since`, up to and without `until`."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.until <= self.since:
            raise ValueError("a period ends after it begins")

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    @property
    def step(self) -> timedelta:
        """The shortest one that needs no more than MOST_STEPS; whole days when nothing shorter does."""
        for step in _STEPS:
            if self.length <= step * MOST_STEPS:
                return step
        return timedelta(days=-(-self.length // timedelta(days=MOST_STEPS)))

    @property
    def coarse_step(self) -> timedelta:
        """For what is known by the minute only."""
        return max(self.step, MINUTE)

    @property
    def before(self) -> Period:
        """As long, and just before."""
        return Period(self.since - self.length, self.since)

    def starts(self, step: timedelta) -> list[datetime]:
        """The beginning of every step that has a part of this period."""
        at, starts = floor(self.since, step), []
        while at < self.until:
            starts.append(at)
            at += step
        return starts


def floor(at: datetime, step: timedelta) -> datetime:
    """The beginning of the step a moment is in."""
    return at - (at - _EPOCH) % step
