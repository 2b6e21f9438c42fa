"""The report: what it says of given figures, that nothing in it is more than text, and how it looks in a browser."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from scripts.test_servers import SERVERS
from tests.spark.a_day import BUG, MIDNIGHT
from tests.spark.a_day import HOSTILE as PLAY_HOSTILE
from waypost.cli.failures import CommandMisused
from waypost.cli.report import period_meant
from waypost.spark.report import charts, gather, last_day, scales, units
from waypost.spark.report.figures import OTHERS, Answer, Figures, Row, carried, filled, troubles
from waypost.spark.report.headline import headlines, summary
from waypost.spark.report.markup import Markup, element, text
from waypost.spark.report.page import page
from waypost.spark.report.period import MOST_STEPS, Period, floor
from waypost.spark.report.pictures import PICTURES
from waypost.spark.report.queries import queries
from waypost.spark.report.scales import Across
from waypost.stores.sqlite.export import Export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = Period(MIDNIGHT, MIDNIGHT + timedelta(days=1))
HOSTILE = "<img src=x onerror=\"document.title='owned'\">&'\N{RIGHT-TO-LEFT OVERRIDE}"


def at(hour: int, minute: int = 0) -> datetime:
    return MIDNIGHT + timedelta(hours=hour, minutes=minute)


def rows_of_a_day(
    consumer: str = "crm", reason: str = "KeyError: 'canton'", producer: str = "erp"
) -> dict[str, Any]:
    """Customers come again at 02:00; a consumer is broken from 10:00 to 11:30, and its queue fills."""
    steps = DAY.starts(DAY.step)
    broken = [start for start in steps if at(10) <= start < at(11, 30)]
    counts = {"queued": 900, "confirmed": 880, "retried": 160, "dead": 12}
    percentiles = {"fetched": 40, "p50": 12, "p95": 240, "p99": 61_000}
    return {
        "totals": [
            {"current": False, "published": 9_000, "unchanged": 8_000, "wait_p50_ms": 11, "wait_p95_ms": 90, **counts, "dead": 1},
            {"current": True, "published": 9_100, "unchanged": 8_100, "wait_p50_ms": 12, "wait_p95_ms": 240, **counts},
        ],
        "volume": [
            {"time": start, "published": 8_010 if start == at(2) else 10, "unchanged": 7_990 if start == at(2) else 1}
            for start in steps
        ],
        "destinations": [
            {"destination": "customers", "fetched": 1_000, "ended": 3, **counts},
            {"destination": "channel analytics", "fetched": 10, "ended": 0, **dict.fromkeys(counts, 0)},
        ],
        "waits": [
            {"destination": name, "time": time, **percentiles}
            for name in (None, "customers", "orders", OTHERS)
            for time in (None, *steps[::3])
        ],
        "backlog": [
            {"destination": "customers", "time": None, "depth": 3, "peak": 9},
            *({"destination": "customers", "time": start, "depth": 40, "peak": 60} for start in broken),
            {"destination": "customers", "time": at(11, 30), "depth": 0, "peak": 0},
            {"destination": "orders", "time": at(6), "depth": 10, "peak": 10},
            {"destination": "tiny", "time": at(6), "depth": 1, "peak": 1},
        ],
        "failures": [
            *({"consumer": consumer, "time": start, "fetched": 30, "failed": 28} for start in broken),
            {"consumer": OTHERS, "time": at(3), "fetched": 30, "failed": 1},
        ],
        "reasons": [
            {
                "reason": reason, "destination": "customers", "consumer": consumer, "state": "E", "letters": 11,
                "first": at(10, 1), "last": at(11, 29), "example": "01a1e299", "total": 12,
            },
            {
                "reason": "lease-over", "destination": "customers", "consumer": None, "state": "E", "letters": 1,
                "first": at(12), "last": at(12), "example": "01a1e29a", "total": 12,
            },
        ],
        "consumers": [
            {"consumer": consumer, "destination": "customers", "confirmed": 880, "lease_over": 1, "p50": 40, "p95": 400, "p99": 2_000},
            {"consumer": "billing", "destination": "orders", "confirmed": 1, "lease_over": 0, "p50": 0, "p95": 0, "p99": 0},
        ],
        "duplicates": [{"object": "customer", "producer": producer, "published": 8_500, "unchanged": 8_100, "bytes": 3_000_000}],
    }  # fmt: skip


def figures(
    rows: dict[str, Any] | None = None, period: Period = DAY, until: datetime | None = DAY.until
) -> Figures:
    asked = queries(period)
    answers = {name: Answer(sql.strip(), tuple((rows or {}).get(name, ()))) for name, sql in asked.items()}
    return Figures(period, at(33), answers, until, {"lake": "/var/lib/waypost/lake"})


# ── steps and scales ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("length", "step"),
    [
        (timedelta(minutes=1), timedelta(seconds=1)),
        (timedelta(hours=2), timedelta(minutes=1)),
        (timedelta(days=1), timedelta(minutes=15)),
        (timedelta(days=7), timedelta(hours=3)),
        (timedelta(days=365), timedelta(days=4)),
    ],
)
def test_a_period_is_walked_in_round_steps_and_never_in_too_many(length: timedelta, step: timedelta) -> None:
    period = Period(MIDNIGHT, MIDNIGHT + length)
    assert period.step == step
    assert 1 <= len(period.starts(step)) <= MOST_STEPS + 1


def test_the_first_step_begins_before_a_period_that_begins_within_one() -> None:
    period = Period(at(0, 7), at(23, 59))
    assert period.starts(period.step)[0] == at(0) == floor(at(0, 7), timedelta(minutes=15))


def test_a_period_that_ends_before_it_begins_is_none() -> None:
    with pytest.raises(ValueError, match="ends after it begins"):
        Period(MIDNIGHT, MIDNIGHT)


@pytest.mark.parametrize("highest", [0, 1, 3, 7, 99, 100, 101, 1_350, 13_500, 8.2e6])
def test_an_axis_of_counts_holds_the_highest_in_few_whole_steps(highest: float) -> None:
    scale = scales.counts(highest, 200)
    values = [value for value, _ in scale.marks]
    assert scale.high >= highest
    assert 2 <= len(values) <= 6
    assert all(value == int(value) for value in values)
    assert scale.place(0) == 200
    assert scale.place(scale.high) == 0


@pytest.mark.parametrize("values", [[], [0.0], [1.0], [3.0, 4_000.0], [864_000_001.0], [5e9, 6e9]])
def test_an_axis_of_spans_holds_every_value(values: list[float]) -> None:
    scale = scales.spans(values, 120)
    assert scale.low < scale.high
    for value in values:
        assert 0 <= scale.place(value) <= 120
    assert all(
        one.place - other.place >= 20 for one, other in zip(scale.ticks(), scale.ticks()[1:], strict=False)
    )


def test_time_has_ticks_at_round_moments_and_a_day_is_named_at_midnight() -> None:
    ticks = Across(tuple(DAY.starts(DAY.step)), DAY.step).ticks()
    assert [tick.text for tick in ticks] == [
        "15 Nov", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "16 Nov",
    ]  # fmt: skip
    assert ticks[0].place == 0
    assert ticks[-1].place == scales.WIDE


def test_labels_that_would_cover_each_other_move_apart_and_stay_inside() -> None:
    placed = scales.spread([100, 99, 100, 5], 17, 100)
    assert placed[3] == 5
    assert sorted(placed) == [5, 66, 83, 100]
    assert placed[1] < placed[0] < placed[2]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (units.span(None), "–"),
        (units.span(0), "0 ms"),
        (units.span(999.9), "1 s"),
        (units.span(61_000), "1 min"),
        (units.span(5_400_000), "1.5 h"),
        (units.count(1_234), "1,234"),
        (units.count(1_234_567), "1.23M"),
        (units.counted(1, "delivery", "deliveries"), "1 delivery"),
        (units.size(1_536), "1.5 KiB"),
        (units.share(1, 3_000), "< 0.1 %"),
        (units.share(2_999, 3_000), "> 99.9 %"),
        (units.share(1, 3), "33 %"),
        (units.share(0, 0), "–"),
    ],
)
def test_numbers_are_said_with_their_unit(said: str, words: str) -> None:
    assert said == words


# ── from rows to series ─────────────────────────────────────────────────────────────────────────


def test_a_step_without_a_row_has_nothing_or_no_value() -> None:
    across = Across((at(0), at(1), at(2)), timedelta(hours=1))
    rows = [{"time": at(1), "n": 5}]
    assert filled(rows, "n", across) == [0, 5, 0]
    assert filled(rows, "n", across, None) == [None, 5, None]


def test_a_depth_stays_what_it_was_while_nothing_happens() -> None:
    across = Across((at(0), at(1), at(2), at(3)), timedelta(hours=1))
    rows: list[Row] = [
        {"time": None, "depth": 7, "peak": 90},
        {"time": at(1), "depth": 2, "peak": 30},
        {"time": at(3), "depth": 0, "peak": 0},
    ]
    assert carried(rows, across) == [7, 30, 2, 0]


def test_a_consumer_is_in_trouble_while_half_of_what_it_fetches_fails() -> None:
    across = Across(tuple(DAY.starts(DAY.step)), DAY.step)
    spell = [
        {"consumer": "crm", "time": at(10, minute), "fetched": 10, "failed": 9} for minute in (0, 15, 45)
    ]
    good = [{"consumer": "crm", "time": at(hour), "fetched": 100, "failed": 49} for hour in (3, 15)]
    few = [{"consumer": "billing", "time": at(4), "fetched": 2, "failed": 2}]
    [found] = troubles([*good, *spell, *few, {**spell[0], "consumer": OTHERS, "failed": 400}], across)
    assert (found.consumer, found.since, found.until) == ("crm", at(10), at(11))
    assert (found.failed, found.fetched) == (27, 30)


# ── the page ────────────────────────────────────────────────────────────────────────────────────


class Reading(HTMLParser):
    """Which elements and attributes a page has, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_says_what_the_day_was_like() -> None:
    said = " ".join(summary(figures(rows_of_a_day())))
    assert said == (
        "9,100 messages came in, and 89 % of them repeated what was known and went nowhere. "
        "crm was in trouble from 15 Nov 10:00 to 11:30: 93 % of its 180 attempts failed. "
        "12 deliveries died, all of them still dead."
    )
    tiles = {one.name: (one.value, one.detail) for one in headlines(figures(rows_of_a_day()))}
    assert tiles["published"] == ("9,100", "as the day before")
    assert tiles["dead letters"] == ("12", "the day before: 1")
    assert tiles["wait, 95th percentile"] == ("240 ms", "the day before: 90 ms")
    assert tiles["largest backlog"] == ("60", "customers, 10:00–10:15")


def test_a_time_within_a_day_is_not_said_twice() -> None:
    assert "<h1>15 Nov 10:00 – 13:30</h1>" in page(figures(period=Period(at(10), at(13, 30))))
    assert "<h1>15 Nov 10:00:00 – 10:01:30</h1>" in page(
        figures(period=Period(at(10), at(10, 1) + timedelta(seconds=30)))
    )
    assert "<h1>15 Nov 10:00 – 16 Nov 02:00</h1>" in page(figures(period=Period(at(10), at(26))))


def test_failures_without_a_spell_of_trouble_are_counted() -> None:
    rows = [{"consumer": "crm", "time": at(3), "fetched": 30, "failed": 4}]
    [picture] = [make(figures({"failures": rows})) for make in PICTURES if make.__name__ == "failures"]
    assert picture.sees == "4 attempts failed, all 03:00–03:15."
    rows.append({"consumer": "crm", "time": at(4), "fetched": 30, "failed": 1})
    [picture] = [make(figures({"failures": rows})) for make in PICTURES if make.__name__ == "failures"]
    assert picture.sees == "5 attempts failed, most 03:00–03:15: 4."


def test_each_picture_says_in_one_sentence_what_one_sees() -> None:
    sees = {one.id: one.sees for one in (make(figures(rows_of_a_day())) for make in PICTURES)}
    assert sees == {
        "volume": "8,960 messages came in, most 02:00–02:15: 8,010, 99.8 % of them unchanged.",
        "destinations": "98 % of the 895 deliveries that ended were confirmed, 12 are dead letters; customers had the most.",
        "waits": "Half of all fetches came within 12 ms, 99 % within 1 min; customers waited longest, 240 ms at its 95th percentile.",
        "backlog": "customers had the largest backlog, 60 deliveries at 10:00–10:15; 11 were left at the end.",
        "failures": "crm failed 93 % of 180 attempts from 15 Nov 10:00 to 11:30.",
        "reasons": "12 deliveries that died in this time are dead now, 92 % for one reason: “KeyError: 'canton'”.",
        "consumers": "crm in customers took longest: 400 ms at its 95th percentile; 1 lease ran out.",
        "duplicates": "8,100 messages (2.9 MiB) were not delivered again; 95 % of what erp sent as customer was known already.",
    }


def test_the_page_has_every_picture_with_its_query_and_its_numbers() -> None:
    html = page(figures(rows_of_a_day()))
    read = Reading(html)
    for make in PICTURES:
        picture = make(figures(rows_of_a_day()))
        assert ("id", picture.id) in read.attributes
        assert picture.drawing is not None
        assert picture.numbers is not None
        assert picture.sql in read.words
    assert read.elements.count("table") == len(PICTURES)
    assert "All times are UTC." in read.words
    assert "Sun 15 Nov 2026" in read.words


def test_the_page_needs_nothing_from_outside() -> None:
    read = Reading(page(figures(rows_of_a_day())))
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(read.elements)
    assert not [value for name, value in read.attributes if name in ("src", "srcset", "xlink:href", "data")]
    assert all(str(value).startswith("#") for name, value in read.attributes if name == "href")
    policy = next(
        str(value) for name, value in read.attributes if name == "content" and "default-src" in str(value)
    )
    assert policy.startswith("default-src 'none';")


def test_what_others_wrote_is_text_wherever_it_stands() -> None:
    plain = Reading(page(figures(rows_of_a_day())))
    hostile = Reading(page(figures(rows_of_a_day(consumer=HOSTILE, reason=HOSTILE, producer=HOSTILE))))
    assert hostile.elements == plain.elements
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in hostile.words


def test_what_is_empty_says_so_kindly() -> None:
    html = page(figures())
    read = Reading(html)
    assert "It was quiet: nothing was published and nothing was delivered." in read.words
    assert "Nothing was published in this time." in read.words
    assert "No attempt failed" in read.words
    assert "svg" not in read.elements
    assert all(("id", make(figures()).id) in read.attributes for make in PICTURES)


def test_the_page_says_when_the_tables_do_not_reach_its_end() -> None:
    assert "waypost pipeline once" not in page(figures(rows_of_a_day()))
    assert "The tables know of minutes up to 15 Nov 12:00." in page(figures(rows_of_a_day(), until=at(12)))
    assert "No minute is closed in the tables yet" in page(figures(until=None))


def test_a_backlog_is_not_drawn_beyond_what_the_tables_know() -> None:
    drawn = [make(figures(rows_of_a_day(), until=at(12))) for make in PICTURES if make.__name__ == "backlog"]
    assert drawn[0].drawing is not None
    assert "11:45–12:00" in drawn[0].drawing
    assert "12:00–12:15" not in drawn[0].drawing


def test_one_value_alone_is_a_dot() -> None:
    across = Across((at(0), at(1), at(2)), timedelta(hours=1))
    series = charts.Series("p50", [None, 5.0, None], "p1")
    assert "line p1 dot" in charts.lines("one", across, scales.spans([5.0], 100), [series], units.span)


def test_markup_is_escaped_unless_it_is_markup() -> None:
    assert text("a<b>\x00\t") == "a&lt;b&gt;\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert (
        element("p", "<i>", Markup("<b/>"), None, title='"', hidden=None)
        == '<p title="&quot;">&lt;i&gt;<b/></p>'
    )


# ── from a real log ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def events(day: Path) -> Iterator[pa.Table]:
    """What a broker logged in a day."""
    with closing(Export(day / "waypost.db")) as export:
        yield export.events(1, export.head().head)


@pytest.fixture(scope="module")
def asked_of_a_day(spark: SparkSession, day: Path) -> Figures:
    return gather(spark, DAY, lake=str(day / "lake"), now=at(33))


@pytest.mark.timeout(300)
def test_the_answers_are_what_the_log_says(asked_of_a_day: Figures, events: pa.Table) -> None:
    happened = events.to_pylist()
    entered = Counter(event["to_state"] for event in happened)
    [totals] = asked_of_a_day.rows("totals")
    assert totals["current"]
    assert (totals["published"], totals["unchanged"]) == (entered["L"], entered["U"])
    closed = Counter(event["to_state"] for event in until_closed(asked_of_a_day, happened))
    assert (totals["confirmed"], totals["retried"]) == (closed["S"], closed["R"])
    assert totals["dead"] == closed["E"] + closed["I"] > 0
    assert sum(row["published"] for row in asked_of_a_day.rows("volume")) == entered["L"]
    assert sum(row["unchanged"] for row in asked_of_a_day.rows("duplicates")) == entered["U"] > 0

    waits = sorted(
        event["duration_ms"] for event in happened if (event["from_state"], event["to_state"]) == ("Q", "F")
    )
    [all_waits] = [
        row for row in asked_of_a_day.rows("waits") if row["time"] is None and row["destination"] is None
    ]
    assert all_waits["fetched"] == len(waits)
    for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        rank = sum(wait <= all_waits[name] for wait in waits) / len(waits)
        assert rank >= part - 0.002
        assert sum(wait < all_waits[name] for wait in waits) / len(waits) <= part + 0.002

    dead: dict[tuple[int, int, int], bool] = {}
    for event in happened:
        if event["slot"] is not None:
            dead[event["sequence"], event["destination_code"], event["slot"]] = event["to_state"] in "EI"
    reasons = {row["reason"]: row["letters"] for row in asked_of_a_day.rows("reasons")}
    assert sum(reasons.values()) == sum(dead.values()) > 0
    assert set(reasons) <= {BUG, "no such customer …", f"HTTP 503 {PLAY_HOSTILE}"}


def until_closed(figures: Figures, happened: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events of the minutes that the tables of minutes have."""
    assert figures.tables_until is not None
    return [event for event in happened if event["at"] < figures.tables_until]


def depths(happened: list[dict[str, Any]]) -> dict[str, list[tuple[datetime, int]]]:
    """By queue or channel, its open deliveries at the end of every minute in which something happened."""
    open_now: Counter[str] = Counter()
    found: dict[str, dict[datetime, int]] = {}
    for event in happened:
        if event["slot"] is not None:
            place = event["queue"] or f"channel {event['channel']}"
            open_now[place] += (event["to_state"] in "QRF") - (event["from_state"] in "QRF")
            minute = floor(event["at"], timedelta(minutes=1))
            found.setdefault(place, {})[minute] = open_now[place]
    return {place: sorted(minutes.items()) for place, minutes in found.items()}


@pytest.mark.timeout(300)
def test_a_backlog_is_the_deepest_minute_of_each_step(asked_of_a_day: Figures, events: pa.Table) -> None:
    across = asked_of_a_day.across_minutes()
    rows: dict[str, list[Row]] = {}
    for row in asked_of_a_day.rows("backlog"):
        rows.setdefault(row["destination"], []).append(row)
    expected = {}
    for place, minutes in depths(until_closed(asked_of_a_day, events.to_pylist())).items():
        depth, values = 0, []
        for start in across.starts:
            within = [value for minute, value in minutes if start <= minute < start + across.step]
            values.append(max(within) if within else depth)
            depth = within[-1] if within else depth
        if any(values):
            expected[place] = values
    assert {place: carried(its, across) for place, its in rows.items()} == expected
    assert max(expected["orders"]) > 10, "billing stood still"


@pytest.mark.timeout(300)
def test_the_report_finds_who_was_broken_and_when(asked_of_a_day: Figures) -> None:
    across = asked_of_a_day.across_minutes()
    trouble = troubles(asked_of_a_day.rows("failures"), across)[0]
    assert trouble.consumer == "crm"
    assert at(9, 45) <= trouble.since <= at(10, 30)
    assert at(11) <= trouble.until <= at(11, 45)


@pytest.mark.timeout(300)
@pytest.mark.needs("chromium")
def test_a_real_report_is_readable(browser: Browser, asked_of_a_day: Figures, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text(page(asked_of_a_day))
    for width in (390, 1280):
        with browser.new_context(viewport={"width": width, "height": 900}) as context:
            shown = context.new_page()
            assert looked_at(shown, report) == []
            assert overflow(shown) <= 0
            assert [picture for picture, count in marks(shown).items() if not count] == []
            assert covered_labels(shown) == []


def test_a_session_that_is_asked_without_a_time_tells_of_the_last_day() -> None:
    now = at(9, 7)
    assert last_day(now, None) == Period(now - timedelta(days=1) - timedelta(minutes=7), now)
    assert last_day(now, at(-100)).since == last_day(now, None).since
    assert last_day(now, at(9, 6)) == Period(at(9, 6), now)
    assert last_day(now, at(10)).since == last_day(now, None).since


# ── which time is meant ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def in_zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Zurich")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_zurich")
def test_a_day_is_the_persons_own_with_its_summer_time() -> None:
    assert period_meant("2026-11-15", None, None, at(9)) == Period(at(-1), at(23))
    assert period_meant("yesterday", None, None, at(9)) == Period(at(-25), at(-1))
    longest = period_meant("2026-10-25", None, None, at(9))
    assert longest is not None
    assert longest.length == timedelta(hours=25)


@pytest.mark.usefixtures("in_zurich")
def test_bare_times_are_the_persons_and_the_rest_is_what_it_says() -> None:
    today = datetime.now().astimezone().replace(hour=10, minute=0, second=0, microsecond=0)
    meant = period_meant(None, "10:00", "10:30", at(9))
    assert meant == Period(today.astimezone(UTC), (today + timedelta(minutes=30)).astimezone(UTC))
    assert period_meant(None, "2026-11-15T03:00Z", None, at(9)) == Period(at(3), at(9))
    assert period_meant(None, None, "2026-11-15T03:00Z", at(9)) == Period(at(-21), at(3))
    assert period_meant(None, None, None, at(9)) is None


@pytest.mark.parametrize(
    ("day", "since", "until", "said"),
    [
        ("tomorrow", None, None, "not a day: 'tomorrow'"),
        ("2026-11-15", "10:00", None, "--day is a whole day"),
        (None, "soon", None, "not an instant: 'soon'"),
        (None, "2026-11-15T10:00Z", "2026-11-15T10:00Z", "is not before --until"),
        (None, "2026-11-15T10:00Z", None, "is not before --until"),
    ],
)
def test_a_time_that_cannot_be_meant_is_said(day: Any, since: Any, until: Any, said: str) -> None:
    with pytest.raises(CommandMisused, match=said):
        period_meant(day, since, until, at(9))


# ── in a browser ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which(SERVERS["chromium"].commands[0])
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, headless=True, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(figures(rows_of_a_day(consumer=HOSTILE, reason=HOSTILE, producer=HOSTILE))))
    return path


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_the_page_is_readable_at_any_width(browser: Browser, report: Path, width: int, scheme: Any) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        shown = context.new_page()
        complaints = looked_at(shown, report)
        assert complaints == []
        assert shown.title() == "Waypost, Sun 15 Nov 2026"
        assert overflow(shown) <= 0
        assert [one for one in marks(shown).values() if not one] == []
        assert covered_labels(shown) == []
        shown.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert overflow(shown) <= 0


@pytest.mark.needs("chromium")
def test_a_pointer_is_told_what_is_there(browser: Browser, report: Path) -> None:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        shown = context.new_page()
        looked_at(shown, report)
        shown.locator("#volume .hit").nth(8).hover()
        assert shown.locator("#tip").inner_text() == "02:00–02:15 UTC\nto deliver: 20"


@pytest.mark.needs("chromium")
def test_the_page_is_whole_without_scripts(browser: Browser, report: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        shown = context.new_page()
        shown.goto(report.as_uri())
        assert shown.locator("section").count() == len(PICTURES)
        title = shown.locator("#volume .hit title").nth(8)
        assert title.text_content() == "02:00–02:15 UTC\nto deliver: 20"


def looked_at(shown: Page, report: Path) -> list[str]:
    """What the browser complains of while it shows the page."""
    complaints: list[str] = []
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on(
        "request", lambda request: complaints.append(request.url) if request.url != report.as_uri() else None
    )
    shown.goto(report.as_uri())
    return complaints


def overflow(shown: Page) -> int:
    """Pixels that one would have to scroll sideways."""
    pixels: int = shown.evaluate("document.documentElement.scrollWidth - innerWidth")
    return pixels


def marks(shown: Page) -> dict[str, int]:
    """By picture, how many marks take room."""
    found: dict[str, int] = shown.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("section")].map(section => [
            section.id,
            [...section.querySelectorAll(".mark")].filter(mark => {
                const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
                const seen = style.fill !== "none" || style.stroke !== "none";
                return seen && box.width + box.height > 0 || mark.classList.contains("dot");
            }).length,
        ]))"""
    )
    assert len(found) == len(PICTURES)
    return found


def covered_labels(shown: Page) -> list[tuple[str, str]]:
    """Labels of axes and lines that lie over one another."""
    groups = shown.evaluate(
        """() => [...document.querySelectorAll(".upright, .across, .ends")].map(group =>
            [...group.children].filter(label => getComputedStyle(label).display !== "none").map(label => {
                const { left, right, top, bottom } = label.getBoundingClientRect();
                return [label.textContent, left, right, top, bottom];
            }))"""
    )
    return [
        (one[0], other[0])
        for labels in groups
        for one, other in itertools.combinations(labels, 2)
        if one[1] < other[2] and other[1] < one[2] and one[3] + 2 < other[4] and other[3] + 2 < one[4]
    ]
