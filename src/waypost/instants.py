"""Instants and spans, as Waypost writes them.

An instant is an integer of microseconds since 1970 in UTC (names end in `_at`); on the wire it is RFC 3339 with
microseconds. A span is an integer of microseconds (`_us`); on the wire seconds, or text such as `5m`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from .errors import RequestInvalid

SECOND = 1_000_000
#: gives the present instant; passed to what needs one, so that tests can move it
Clock = Callable[[], int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"us": 1, "ms": 1_000, "s": SECOND, "m": 60 * SECOND, "h": 3_600 * SECOND, "d": 86_400 * SECOND}
_UNITS["w"] = 7 * _UNITS["d"]
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d|w)?")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)T?(\d\d)(\d\d)(\d\d)?Z?")
_TIME_ONLY = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?")
#: nothing longer makes sense, and it keeps sums far from 64 bits
LONGEST_SPAN = 100 * 365 * _UNITS["d"]


def instant_text(at: int) -> str:
    """RFC 3339 in UTC with microseconds."""
    return (_EPOCH + at * _MICROSECOND).isoformat(timespec="microseconds")[:26] + "Z"


def parse_instant(text: str, now: int = 0, zone: tzinfo = UTC) -> int:
    """RFC 3339, the compact `20200101101010`, a date, or a bare time, which means today in `zone`."""
    text = text.strip()
    try:
        if match := _COMPACT.fullmatch(text):
            year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        elif match := _TIME_ONLY.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in match.groups())
            today = (_EPOCH + now * _MICROSECOND).astimezone(zone)
            moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=zone)
        # In UTC, so that one which only its own zone can write down is refused, not stored.
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        raise RequestInvalid(
            f"not an instant: {text[:60]!r}",
            "use RFC 3339 (2026-01-31T10:00:00Z), 20260131100000, or a time of today (10:00)",
            "INSTANT_INVALID",
        ) from None


def parse_span(value: object, what: str = "span") -> int:
    """Microseconds from seconds (a number) or text such as `90`, `1.5s`, `5m`, `7d`."""
    span = -1
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == value and abs(value) < LONGEST_SPAN:
            span = round(value * SECOND)
    elif isinstance(value, str) and (match := _SPAN.fullmatch(value.strip())):
        given = float(match[1]) * _UNITS[match[2] or "s"]
        span = round(given) if given < LONGEST_SPAN + 1 else -1
    if not 0 <= span <= LONGEST_SPAN:
        raise RequestInvalid(
            f"{what} is not a span of time: {str(value)[:60]!r}",
            "use seconds, or a number with ms, s, m, h or d, such as 5m",
            "SPAN_INVALID",
        )
    return span


def span_text(span_us: int) -> str | int | float:
    """The shortest way back: whole seconds and fractions as numbers, whole days, hours and minutes as text."""
    for unit in ("d", "h", "m"):
        if span_us and span_us % _UNITS[unit] == 0:
            return f"{span_us // _UNITS[unit]}{unit}"
    return span_us // SECOND if span_us % SECOND == 0 else span_us / SECOND


class SteadyClock:
    """Wall time that never jumps: monotonic between readings, drawn towards the wall by at most a tenth.

    A stepped system clock would end every lease at once, or none for an hour; here a step shows
    only as slightly short or long seconds until both agree again.
    """

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._read_ns, self._now_ns = monotonic(), wall()

    def __call__(self) -> int:
        read_ns = self._monotonic()
        passed = read_ns - self._read_ns
        behind = self._wall() - (self._now_ns + passed)
        self._now_ns += passed + max(-passed // 10, min(passed // 10, behind))
        self._read_ns = read_ns
        return self._now_ns // 1_000
