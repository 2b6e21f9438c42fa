"""Where things stand in a picture: scales and ticks, decided before anything is drawn.

Across, a picture is WIDE units wide, whatever room it gets: its marks stretch. Down, a unit is a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from . import units
from .period import floor

WIDE = 1000.0
#: so many find room anywhere
FEW_TICKS = 3

#: spans at which a logarithmic axis may have a tick, in milliseconds
_SPAN_TICKS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
_TIME_TICKS = (
    *(timedelta(seconds=n) for n in (1, 5, 15, 30)),
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=n) for n in (1, 2, 3, 6, 12)),
    *(timedelta(days=n) for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True)
class Tick:
    place: float
    text: str
    #: 0 stays where there is little room; 1 goes then, 2 before it
    rank: int = 0


@dataclass(frozen=True)
class Upright:
    """A scale for values, from the bottom up."""

    height: float
    low: float
    high: float
    logarithmic: bool
    #: the values that have a tick, and its text
    marks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Pixels from the top."""
        return self.height * (1 - self.part(value))

    def part(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies outside stands at the edge."""
        if self.logarithmic:
            value, low, high = math.log(max(value, self.low)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self, gap: float = 20) -> list[Tick]:
        """From the bottom up, those that have a gap between them."""
        ticks: list[Tick] = []
        for value, text in self.marks:
            place = self.place(value)
            if not ticks or ticks[-1].place - place >= gap:
                ticks.append(Tick(place, text))
        return ticks


def counts(highest: float, height: float) -> Upright:
    """From 0 to a round number that holds the highest, in 2 to 5 whole steps."""
    step = _round_step(max(highest, 1) / 4)
    top = step * max(1, math.ceil(highest / step))
    marks = tuple((step * n, units.short(step * n)) for n in range(round(top / step) + 1))
    return Upright(height, 0, top, False, marks)


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return max(1.0, next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * 0.999))


def spans(values: Sequence[float], height: float) -> Upright:
    """Logarithmic, as spans differ by powers: from the tick below the lowest to the one above the highest."""
    known = [value for value in values if value > 0] or [1.0]
    low = max((tick for tick in _SPAN_TICKS if tick <= min(known)), default=1)
    high = min((tick for tick in _SPAN_TICKS if tick >= max(known) and tick > low), default=max(known))
    marks = tuple((float(tick), units.span(tick)) for tick in _SPAN_TICKS if low <= tick <= high)
    return Upright(height, low, high, True, marks)


@dataclass(frozen=True)
class Across:
    """The time axis: steps from left to right."""

    starts: tuple[datetime, ...]
    step: timedelta

    @property
    def width(self) -> float:
        """Of one step."""
        return WIDE / max(1, len(self.starts))

    @property
    def one_day(self) -> bool:
        first, last = self.starts[0], self.starts[-1]
        return self.step < timedelta(days=1) and first.astimezone(UTC).date() == last.astimezone(UTC).date()

    def left(self, index: int) -> float:
        return index * self.width

    def middle(self, index: int) -> float:
        return (index + 0.5) * self.width

    def label(self, index: int) -> str:
        """When a step is: 10:00–10:15, with its day where there are several."""
        start = self.starts[index]
        end = start + self.step
        if self.one_day:
            return f"{units.clock(start, self.step)}–{units.clock(end, self.step)}"
        if self.step >= timedelta(days=1):
            last = end - timedelta(days=1)
            return units.moment(start, self.step) + (
                f" – {units.moment(last, self.step)}" if last > start else ""
            )
        return f"{units.moment(start, self.step)}–{units.clock(end, self.step)}"

    def ticks(self, most: int = 9) -> list[Tick]:
        """At round moments; where there is little room every other one stays, or every fourth, midnight among them."""
        if not self.starts:
            return []
        begin, end = self.starts[0], self.starts[-1] + self.step
        if self.step < timedelta(minutes=1):
            most = max(3, most - 3)  # seconds take room
        spacing = next((one for one in _TIME_TICKS if one * most >= end - begin), _TIME_TICKS[-1])
        at = floor(begin, spacing)
        if at < begin:
            at += spacing
        ticks = []
        while at <= end:
            place = WIDE * ((at - begin) / (end - begin))
            number = round(at.timestamp() / spacing.total_seconds())
            ticks.append(Tick(place, _tick_text(at, spacing), 2 if number % 2 else 1 if number % 4 else 0))
            at += spacing
        return ticks if len(ticks) > FEW_TICKS else [replace(tick, rank=0) for tick in ticks]


def _tick_text(at: datetime, spacing: timedelta) -> str:
    at = at.astimezone(UTC)
    if spacing >= timedelta(days=1) or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at.day} {at:%b}"
    return units.clock(at, spacing)


def spread(places: Sequence[float], gap: float, height: float) -> list[float]:
    """Where labels go that would like to be at these places: in the same order, a gap apart, within the height."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    placed = [0.0] * len(places)
    lowest = -math.inf
    for index in order:
        lowest = max(places[index], lowest + gap)
        placed[index] = lowest
    ceiling = height
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed
