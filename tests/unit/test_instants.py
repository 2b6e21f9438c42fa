"""Instants, spans, and a clock that never jumps."""

from datetime import timedelta, timezone

import pytest

from waypost.errors import RequestInvalid
from waypost.instants import (
    LONGEST_SPAN,
    SECOND,
    SteadyClock,
    instant_text,
    parse_instant,
    parse_span,
    span_text,
)

T0 = 1_769_853_600 * SECOND  # 2026-01-31T10:00:00Z


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T10:00:00Z",
        "2026-01-31T10:00:00.000000Z",
        "2026-01-31 10:00:00",
        "2026-01-31T11:00:00+01:00",
        "20260131100000",
        "202601311000",
        "20260131T100000Z",
        " 2026-01-31T10:00Z ",
        "10:00",
        "10:00:00",
    ],
)
def test_one_instant_has_many_writings(text: str) -> None:
    assert parse_instant(text, now=T0 + 3_600 * SECOND + 17) == T0


def test_a_bare_time_is_today_in_the_zone_of_who_asks() -> None:
    zone = timezone(timedelta(hours=2))
    assert parse_instant("12:00", T0, zone) == T0
    assert parse_instant("2026-01-31T12:00", T0, zone) == T0
    assert (
        parse_instant("00:30", T0 + 13 * 3_600 * SECOND, zone)
        == T0 + (14 * 3_600 - 1_800 - 2 * 3_600 + 3_600) * SECOND
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "25:00",
        "20261301000000",
        "2026-02-30",
        "10000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-05:00",
    ],
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        parse_instant(text, T0)
    assert refused.value.code == "INSTANT_INVALID"


@pytest.mark.parametrize("at", [0, T0, T0 + 1, -1, -62_135_596_800 * SECOND, 253_402_300_799_999_999])
def test_an_instant_is_written_with_four_digits_of_year_and_microseconds_and_read_back(at: int) -> None:
    text = instant_text(at)
    assert len(text) == len("2026-01-31T10:00:00.000000Z")
    assert text.endswith("Z")
    assert parse_instant(text) == at


@pytest.mark.parametrize(
    ("value", "span"),
    [
        (0, 0),
        (5, 5 * SECOND),
        (0.25, 250_000),
        ("90", 90 * SECOND),
        ("1.5s", 1_500_000),
        ("250ms", 250_000),
        ("7us", 7),
        ("5m", 300 * SECOND),
        ("2h", 7_200 * SECOND),
        ("7d", 604_800 * SECOND),
        (" 1 w ", 604_800 * SECOND),
        ("100.0", 100 * SECOND),
    ],
)
def test_a_span_is_seconds_or_a_number_with_its_unit(value: object, span: int) -> None:
    assert parse_span(value) == span


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        True,
        None,
        [],
        "",
        "5 minutes",
        "-5",
        "1e3",
        "٥",
        float("nan"),
        float("inf"),
        "9" * 400,
        10**400,
        "200000d",
    ],
)
def test_what_is_no_span_is_refused_by_name(value: object) -> None:
    with pytest.raises(RequestInvalid) as refused:
        parse_span(value, "delay")
    assert refused.value.code == "SPAN_INVALID"
    assert "delay" in refused.value.detail


@pytest.mark.parametrize(
    "span", [0, 1, 999, SECOND, 1_500_000, 60 * SECOND, 86_400 * SECOND, 90 * SECOND, LONGEST_SPAN]
)
def test_a_span_is_read_back_as_it_was_written(span: int) -> None:
    assert parse_span(span_text(span)) == span


class Clocks:
    """The system's two clocks, in nanoseconds, moved by hand."""

    def __init__(self) -> None:
        self.wall = T0 * 1_000
        self.steady = 5_000_000_000

    def move(self, seconds: float) -> None:
        self.wall += round(seconds * 1e9)
        self.steady += round(seconds * 1e9)

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.steady)


def test_a_steady_clock_shows_wall_time() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    for seconds in (0.0, 1.5, 0.000_001, 3_600.0):
        clocks.move(seconds)
        assert clock() == clocks.wall // 1_000


@pytest.mark.parametrize("step", [3_600, -3_600, 0.5, -0.5])
def test_a_stepped_wall_clock_is_approached_by_a_tenth_and_never_jumped_to(step: float) -> None:
    clocks = Clocks()
    clock = clocks.clock()
    before = clock()
    clocks.wall += round(step * 1e9)
    assert clock() == before, "no time has passed, whatever the wall says"
    shown = before
    for _ in range(100):
        clocks.move(1)
        now = clock()
        assert 0.9 * SECOND - 1 <= now - shown <= 1.1 * SECOND + 1
        shown = now
    if abs(step) < 1:
        assert abs(shown - clocks.wall // 1_000) <= 1, "both agree again"


def test_a_steady_clock_never_falls_however_often_it_is_read() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall -= 10**13
    readings = []
    for nanoseconds in (0, 1, 1, 0, 7, 13, 999, 1, 0, 1_000) * 20:
        clocks.steady += nanoseconds
        clocks.wall += nanoseconds
        readings.append(clock())
    assert readings == sorted(readings)
