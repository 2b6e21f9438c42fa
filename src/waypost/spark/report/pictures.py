"""The report's pictures: from rows to what is drawn, the one sentence that says what one sees, and the numbers.

One function a picture. What has no rows has no drawing, and says so kindly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from . import charts, scales, units
from .charts import COLOURS, Bar, Range, Series
from .figures import MOST_SERIES, OTHERS, Figures, Row, Trouble, by_name, carried, filled, troubles
from .markup import Markup, element, join
from .scales import Across

#: a backlog lower than this part of the highest would be a line along the ground
LEAST_BACKLOG = 0.03
#: the three percentiles, from the usual to the worst
PERCENTILES = (("p50", "p1"), ("p95", "p2"), ("p99", "p3"))


@dataclass(frozen=True)
class Numbers:
    """A picture's numbers, for those who do not see it and those who want to know exactly."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    #: for links
    id: str
    title: str
    #: what one sees, in one sentence
    sees: str
    sql: str
    drawing: Markup | None = None
    numbers: Numbers | None = None


def _picture(figures: Figures, question: str, id: str, title: str) -> Picture:
    return Picture(id, title, "", figures.answers[question].sql)


# ── volume ──────────────────────────────────────────────────────────────────────────────────────


def volume(figures: Figures) -> Picture:
    picture = _picture(figures, "volume", "volume", "Messages published")
    rows, across = figures.rows("volume"), figures.across()
    if not rows:
        return replace(picture, sees="Nothing was published in this time.")
    unchanged = filled(rows, "unchanged", across)
    published = filled(rows, "published", across)
    news = [(all_ or 0) - (same or 0) for all_, same in zip(published, unchanged, strict=True)]
    series = [Series("to deliver", news, "s1"), Series("unchanged", unchanged, "quiet")]
    most = max(range(len(published)), key=lambda index: published[index] or 0)
    each = units.step_text(across.step)
    sees = _most([value or 0 for value in published], across, "message", "came in")
    if share := unchanged[most] or 0:
        sees += f", {units.share(share, published[most] or 0)} of them unchanged"
    return replace(
        picture,
        title=f"Messages published, per {each.removeprefix('1 ')}",
        sees=sees + ".",
        drawing=_one_above_other(sees, across, series) if any(unchanged) else _alone(sees, across, series[0]),
        numbers=_over_time(across, series, units.count),
    )


def _alone(sees: str, across: Across, series: Series) -> Markup:
    scale = scales.counts(_highest(series), charts.HEIGHT)
    return charts.columns(sees, across, scale, [replace(series, name="published")])


def _one_above_other(sees: str, across: Across, series: Sequence[Series]) -> Markup:
    """Each on its own scale: a nightly resend would press everything else flat."""
    drawings = []
    for one, height in zip(series, (charts.HEIGHT - 60, 80.0), strict=True):
        drawings += [
            charts.legend((one.name, one.colour)),
            charts.columns(
                f"{one.name}: {sees}",
                across,
                scales.counts(_highest(one), height),
                [one],
                foot=one is series[-1],
            ),
        ]
    return join(*drawings)


def _highest(series: Series) -> float:
    return max((value for value in series.values if value is not None), default=0)


def destinations(figures: Figures) -> Picture:
    picture = _picture(
        figures, "destinations", "destinations", "What became of deliveries, by queue and channel"
    )
    rows = figures.rows("destinations")
    if not rows:
        return replace(picture, sees="No queue and no channel had anything to do in this time.")
    kinds = (("confirmed", "good"), ("dead", "bad"), ("ended", "quiet"))
    shown = rows[:10]
    busiest, dead = rows[0], sum(row["dead"] for row in rows)
    ended = sum(row["confirmed"] + row["dead"] + row["ended"] for row in rows)
    sees = (
        f"{units.share(sum(row['confirmed'] for row in rows), ended)} of the {units.counted(ended, 'delivery', 'deliveries')} "
        f"that ended were confirmed"
        if ended
        else "No delivery ended"
    )
    sees += f", {units.count(dead)} are dead letters" if dead else ", none is a dead letter" if ended else ""
    sees += f"; {busiest['destination']} had the most"
    return replace(
        picture,
        sees=sees + ".",
        drawing=join(
            charts.legend(
                ("confirmed", "good"),
                ("dead", "bad"),
                ("cancelled, timed out, obsolete or declined", "quiet"),
            ),
            charts.bars(
                sees,
                [
                    Bar(
                        row["destination"],
                        f"{units.count(row['queued'])} queued, {units.count(row['retried'])} retried",
                        [(row[kind], colour) for kind, colour in kinds],
                        units.count(row["confirmed"] + row["dead"] + row["ended"]),
                    )
                    for row in shown
                ],
            ),
            _left_out(len(rows) - len(shown), "destination"),
        ),
        numbers=_listed(
            rows,
            ("queue or channel", "destination", str),
            ("queued", "queued", units.count),
            ("fetched", "fetched", units.count),
            ("confirmed", "confirmed", units.count),
            ("retried", "retried", units.count),
            ("dead", "dead", units.count),
            ("ended otherwise", "ended", units.count),
        ),
    )


# ── waits ───────────────────────────────────────────────────────────────────────────────────────


def waits(figures: Figures) -> Picture:
    picture = _picture(figures, "waits", "waits", "How long deliveries waited to be fetched")
    rows, across = figures.rows("waits"), figures.across()
    totals = {row["destination"]: row for row in rows if row["time"] is None}
    if None not in totals:
        return replace(picture, sees="Nothing was fetched in this time, so nothing has a wait.")
    timed = by_name(
        [row for row in rows if row["time"] is not None and row["destination"] is not None], "destination"
    )
    whole = [row for row in rows if row["time"] is not None and row["destination"] is None]
    panels = {"all": whole} | (timed if len(timed) > 1 else {})
    values = [row[name] for its in panels.values() for row in its for name, _ in PERCENTILES]
    scale = scales.spans(values, charts.PANEL_HEIGHT)
    total = totals.pop(None)
    sees = (
        f"Half of all fetches came within {units.span(total['p50'])}, 99 % within {units.span(total['p99'])}"
    )
    named = {name: row for name, row in totals.items() if name != OTHERS}
    if len(named) > 1:
        slowest = max(named.values(), key=lambda row: row["p95"])
        sees += (
            f"; {slowest['destination']} waited longest, {units.span(slowest['p95'])} at its 95th percentile"
        )
    drawing = element(
        "div",
        *(
            element(
                "figure",
                element(
                    "figcaption",
                    _panel_name(name),
                    element("small", _panel_detail(total if name == "all" else totals[name])),
                ),
                charts.lines(
                    f"Wait of {name}", across, scale, _percentiles(its, across), units.span, most_ticks=3
                ),
            )
            for name, its in panels.items()
        ),
        class_="panels",
    )
    numbers = _listed(
        [{**total, "destination": "all"}, *totals.values()],
        ("queue or channel", "destination", str),
        ("fetches", "fetched", units.count),
        *((name, name, units.span) for name, _ in PERCENTILES),
    )
    return replace(picture, sees=sees + ".", drawing=drawing, numbers=numbers)


def _panel_name(name: str) -> str:
    return "all queues and channels" if name == "all" else name


def _panel_detail(row: Row) -> str:
    return f"{units.counted(row['fetched'], 'fetch', 'fetches')}, p95 {units.span(row['p95'])}"


def _percentiles(rows: Sequence[Row], across: Across) -> list[Series]:
    """The worst first, so that its name stands highest where lines are one."""
    return [Series(name, filled(rows, name, across, None), colour) for name, colour in reversed(PERCENTILES)]


# ── backlog ─────────────────────────────────────────────────────────────────────────────────────


def backlog(figures: Figures) -> Picture:
    picture = _picture(figures, "backlog", "backlog", "Backlog: deliveries not yet ended")
    across = _known(figures, figures.across_minutes())
    named = {
        name: carried(rows, across) for name, rows in by_name(figures.rows("backlog"), "destination").items()
    }
    named = {name: values for name, values in named.items() if any(values)}
    if not named or not across.starts:
        return replace(picture, sees="Nothing waited at the end of any minute: no backlog.")
    peaks = {name: max(values) for name, values in named.items()}
    order = sorted(named, key=lambda name: -peaks[name])
    order = [name for name in order if peaks[name] >= LEAST_BACKLOG * peaks[order[0]]][:MOST_SERIES]
    series = [Series(name, named[name], colour) for name, colour in zip(order, COLOURS, strict=False)]
    highest = order[0]
    at = max(range(len(named[highest])), key=lambda index: named[highest][index])
    left = sum(values[-1] for values in named.values())
    sees = f"{highest} had the largest backlog, {units.counted(named[highest][at], 'delivery', 'deliveries')} at {across.label(at)}; "
    sees += f"{units.count(left)} were left at the end" if left else "all was through at the end"
    scale = scales.counts(peaks[highest], charts.HEIGHT)
    low = max((peak for name, peak in peaks.items() if name not in order), default=0)
    return replace(
        picture,
        sees=sees + ".",
        drawing=join(
            charts.lines(sees, across, scale, series, units.count),
            _left_out(len(named) - len(order), "destination", f", never above {units.count(low)}"),
        ),
        numbers=_over_time(across, series, units.count),
    )


def _known(figures: Figures, across: Across) -> Across:
    """Only as far as the tables of minutes go: what comes after is not 0, it is not known."""
    end = figures.tables_until
    return replace(across, starts=tuple(start for start in across.starts if end is not None and start < end))


# ── what went wrong ─────────────────────────────────────────────────────────────────────────────


def failures(figures: Figures) -> Picture:
    picture = _picture(figures, "failures", "failures", "Failed attempts, by consumer")
    across = figures.across_minutes()
    rows = [row for row in figures.rows("failures") if row["failed"]]
    if not rows:
        return replace(picture, sees="No attempt failed: no retry, nothing invalid, no lease that ran out.")
    order = [name for name in by_name(rows, "consumer") if name != OTHERS]
    series = [
        Series(name, filled(its, "failed", across), "quiet" if name == OTHERS else COLOURS[order.index(name)])
        for name, its in by_name(rows, "consumer").items()
    ]
    found = troubles(figures.rows("failures"), across)
    heights = [sum(one.values[index] or 0 for one in series) for index in range(len(across.starts))]
    worst = [one for one in found if one.consumer == found[0].consumer]
    sees = _spell(worst) if worst else _most(heights, across, "attempt", "failed")
    scale = scales.counts(max(heights), charts.HEIGHT)
    return replace(
        picture,
        title=f"Failed attempts per {units.step_text(across.step).removeprefix('1 ')}, by consumer",
        sees=sees + ".",
        drawing=join(
            charts.legend(*((one.name, one.colour) for one in series)),
            charts.columns(sees, across, scale, series),
        ),
        numbers=_over_time(across, series, units.count),
    )


def _spell(spells: Sequence[Trouble]) -> str:
    """What happened to a consumer that had trouble, the worst time first."""
    worst = spells[0]
    said = (
        f"{worst.consumer} failed {units.share(worst.failed, worst.fetched)} of "
        f"{units.counted(worst.fetched, 'attempt')} {worst.when}"
    )
    return said + (f", and {units.counted(len(spells) - 1, 'more time')}" if len(spells) > 1 else "")


def reasons(figures: Figures) -> Picture:
    picture = _picture(figures, "reasons", "reasons", "Dead letters, by reason")
    rows = figures.rows("reasons")
    if not rows:
        return replace(picture, sees="Nothing that died in this time is dead now.")
    total = sum(row["letters"] for row in rows)
    first = rows[0]
    sees = (
        f"{units.counted(total, 'delivery', 'deliveries')} that died in this time "
        f"{'is' if total == 1 else 'are'} dead now, {units.share(first['letters'], total)} for one reason: “{_short(first['reason'])}”"
        if len(rows) > 1
        else f"{units.counted(total, 'delivery', 'deliveries')} died for one reason: “{_short(first['reason'])}”"
    )
    shown = rows[:10]
    return replace(
        picture,
        sees=sees + ".",
        drawing=join(
            charts.bars(
                sees,
                [
                    Bar(
                        _short(row["reason"], 120),
                        _where(row) + f", {_from_to(row)}",
                        [(row["letters"], "bad")],
                        units.count(row["letters"]),
                    )
                    for row in shown
                ],
            ),
            _left_out(len(rows) - len(shown), "reason"),
        ),
        numbers=_listed(
            rows,
            ("reason", "reason", str),
            ("queue or channel", "destination", str),
            ("last consumer", "consumer", _or_dash),
            ("state", "state", str),
            ("letters", "letters", units.count),
            ("first", "first", units.moment),
            ("last", "last", units.moment),
            ("for example", "example", str),
        ),
    )


def _where(row: Row) -> str:
    return f"{row['destination']}" + (f", last fetched by {row['consumer']}" if row["consumer"] else "")


def _from_to(row: Row) -> str:
    first, last = units.moment(row["first"]), units.moment(row["last"])
    if first == last:
        return first
    return f"{first} – {units.clock(row['last'], timedelta(minutes=1)) if first[:6] == last[:6] else last}"


# ── consumers ───────────────────────────────────────────────────────────────────────────────────


def consumers(figures: Figures) -> Picture:
    picture = _picture(figures, "consumers", "consumers", "Slowest consumers: from fetch to confirm")
    rows = figures.rows("consumers")
    if not rows:
        return replace(picture, sees="Nobody confirmed anything in this time.")
    shown = rows[:10]
    slowest = rows[0]
    sees = f"{slowest['consumer']} in {slowest['destination']} took longest: {units.span(slowest['p95'])} at its 95th percentile"
    over = sum(row["lease_over"] for row in rows)
    sees += f"; {units.counted(over, 'lease')} ran out" if over else "; no lease ran out"
    scale = scales.spans([row[name] for row in shown for name, _ in PERCENTILES], 18)
    return replace(
        picture,
        sees=sees + ".",
        drawing=join(
            charts.legend(("p50", "p1"), ("p95, the number", "p2"), ("p99", "p3")),
            charts.ranges(
                sees,
                [
                    Range(
                        row["consumer"],
                        f"{row['destination']}, {units.counted(row['confirmed'], 'confirm')}"
                        + (
                            f", {units.counted(row['lease_over'], 'lease')} over" if row["lease_over"] else ""
                        ),
                        [row[name] for name, _ in PERCENTILES],
                        units.span(row["p95"]),
                    )
                    for row in shown
                ],
                scale,
            ),
            _left_out(len(rows) - len(shown), "consumer"),
        ),
        numbers=_listed(
            rows,
            ("consumer", "consumer", str),
            ("queue or channel", "destination", str),
            ("confirms", "confirmed", units.count),
            *((name, name, units.span) for name, _ in PERCENTILES),
            ("leases over", "lease_over", units.count),
        ),
    )


# ── duplicates ──────────────────────────────────────────────────────────────────────────────────


def duplicates(figures: Figures) -> Picture:
    picture = _picture(
        figures, "duplicates", "duplicates", "Duplicates saved: messages that repeated what was known"
    )
    rows = figures.rows("duplicates")
    if not rows:
        return replace(
            picture,
            sees="No message repeated what was known. Repetitions are looked for where an object's policy says so: "
            "waypost object NAME --unchanged.",
        )
    total, octets = sum(row["unchanged"] for row in rows), sum(row["bytes"] for row in rows)
    best = rows[0]
    sees = (
        f"{units.counted(total, 'message')} ({units.size(octets)}) were not delivered again; "
        f"{units.share(best['unchanged'], best['published'])} of what {best['producer']} sent as {best['object']} was known already"
    )
    shown = rows[:10]
    return replace(
        picture,
        sees=sees + ".",
        drawing=join(
            charts.legend(("unchanged", "quiet"), ("new", "s1")),
            charts.bars(
                sees,
                [
                    Bar(
                        f"{row['object']} from {row['producer']}",
                        f"{units.count(row['unchanged'])} of {units.count(row['published'])} unchanged, {units.size(row['bytes'])} saved",
                        [(row["unchanged"], "quiet"), (row["published"] - row["unchanged"], "s1")],
                        units.share(row["unchanged"], row["published"]),
                    )
                    for row in shown
                ],
            ),
            _left_out(len(rows) - len(shown), "object"),
        ),
        numbers=_listed(
            rows,
            ("object", "object", str),
            ("producer", "producer", str),
            ("published", "published", units.count),
            ("unchanged", "unchanged", units.count),
            ("saved", "bytes", units.size),
        ),
    )


PICTURES: tuple[Callable[[Figures], Picture], ...] = (
    volume,
    destinations,
    waits,
    backlog,
    failures,
    reasons,
    consumers,
    duplicates,
)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────


def _over_time(across: Across, series: Sequence[Series], say: Callable[[float], str]) -> Numbers:
    """Steps in which nothing was are left out."""
    return Numbers(
        ("time (UTC)", *(one.name for one in series)),
        [
            (across.label(index), *(say(one.values[index] or 0) for one in series))
            for index in range(len(across.starts))
            if any(one.values[index] for one in series)
        ],
    )


def _listed(rows: Iterable[Row], *columns: tuple[str, str, Callable[..., str]]) -> Numbers:
    return Numbers(
        [title for title, _, _ in columns], [[say(row[key]) for _, key, say in columns] for row in rows]
    )


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)


def _short(value: str, most: int = 60) -> str:
    return value if len(value) <= most else value[: most - 1].rstrip() + "…"


def _most(values: Sequence[float], across: Across, what: str, did: str) -> str:
    """How many there were, and when most of them."""
    most = max(range(len(values)), key=lambda index: values[index])
    said = f"{units.counted(sum(values), what)} {did}"
    if values[most] == sum(values):
        return f"{said}, all {across.label(most)}"
    return f"{said}, most {across.label(most)}: {units.count(values[most])}"


def _left_out(number: int, what: str, how: str = "") -> Markup | None:
    said = f"and {units.counted(number, f'more {what}')}{how}"
    return element("p", said, class_="note") if number > 0 else None
