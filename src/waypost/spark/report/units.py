"""Numbers as people read them, each with its unit. Times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_SPANS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def count(value: float) -> str:
    """12,345; from a million on three figures are enough."""
    return f"{value:,.0f}" if abs(value) < 1_000_000 else short(value)


def short(value: float) -> str:
    """For axes: 15k, 1.5M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def counted(value: float, one: str, many: str | None = None) -> str:
    """1 message, 2 messages."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def span(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    for unit, length in _SPANS:
        if milliseconds >= length * 0.9995:
            return f"{_figures(milliseconds / length)} {unit}"
    return f"{milliseconds:.0f} ms"


def _figures(value: float) -> str:
    """Three figures at most, and no .0."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0")


def size(octets: float) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if octets >= length:
            return f"{_figures(octets / length)} {unit}"
    return f"{octets:.0f} B"


def share(part: float, whole: float) -> str:
    """Never 0 % of something, never 100 % when something is left."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    exact = percent < 10 or percent > 99
    return f"{percent:.1f}".removesuffix(".0") + " %" if exact else f"{percent:.0f} %"


def day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%a} {at.astimezone(UTC).day} {at.astimezone(UTC):%b %Y}"


def clock(at: datetime, step: timedelta) -> str:
    """The time of a day, as exactly as a step needs it."""
    return at.astimezone(UTC).strftime("%H:%M:%S" if step < timedelta(minutes=1) else "%H:%M")


def moment(at: datetime, step: timedelta = timedelta(minutes=1)) -> str:
    at = at.astimezone(UTC)
    if step >= timedelta(days=1):
        return f"{at.day} {at:%b %Y}"
    return f"{at.day} {at:%b} {clock(at, step)}"


def step_text(step: timedelta) -> str:
    """5 minutes, 1 hour."""
    seconds = int(step.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return counted(seconds // length, unit)
    return counted(seconds, "second")
