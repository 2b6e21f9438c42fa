"""The first screen: a few figures, and two or three sentences that say what this time was like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from . import units
from .figures import Figures, Row, by_name, carried, troubles

#: changes smaller than this are none
_NOTABLE = 0.05


@dataclass(frozen=True)
class Headline:
    name: str
    value: str
    #: what is said below it
    detail: str = ""
    #: worth a second look
    alarming: bool = False


def headlines(figures: Figures) -> list[Headline]:
    now, before = _totals(figures)
    confirmed, dead = now["confirmed"], now["dead"]
    depth = _highest_backlog(figures)
    return [
        Headline("published", units.count(now["published"]), _change(now, before, "published", figures)),
        Headline(
            "unchanged",
            units.share(now["unchanged"], now["published"]) if now["unchanged"] else "0",
            f"{units.count(now['unchanged'])} not delivered again"
            if now["unchanged"]
            else "nothing was repeated",
        ),
        Headline("confirmed", units.count(confirmed), _change(now, before, "confirmed", figures)),
        Headline(
            "dead letters",
            units.count(dead),
            _change(now, before, "dead", figures)
            or (f"{units.share(dead, dead + confirmed)} of what ended" if dead else "none"),
            alarming=dead > 0,
        ),
        Headline(
            "wait, 95th percentile",
            units.span(now["wait_p95_ms"]),
            _change(now, before, "wait_p95_ms", figures, units.span),
        ),
        Headline("largest backlog", *depth),
    ]


def summary(figures: Figures) -> list[str]:
    """The most important first."""
    now, _ = _totals(figures)
    if not now["published"] and not now["confirmed"] and not now["queued"]:
        return ["It was quiet: nothing was published and nothing was delivered."]
    said = [f"{units.counted(now['published'], 'message')} came in{_unchanged(now)}."]
    found = troubles(figures.rows("failures"), figures.across_minutes())
    for trouble in found[:2]:
        said.append(
            f"{trouble.consumer} was in trouble {trouble.when}: {units.share(trouble.failed, trouble.fetched)} of its "
            f"{units.counted(trouble.fetched, 'attempt')} failed."
        )
    still = next((row["total"] for row in figures.rows("reasons")), 0)
    if died := max(now["dead"], still):  # the minute that runs may have more than the closed ones
        said.append(f"{units.counted(died, 'delivery', 'deliveries')} died, {_still_dead(died, still)}.")
    elif not found:
        said.append("No delivery died and no consumer was in trouble.")
    return said


def _still_dead(died: int, still: int) -> str:
    if not still:
        return "and all were taken up again since"
    return f"{'all' if still == died else units.count(still)} of them still dead"


def _unchanged(now: Row) -> str:
    if not now["unchanged"]:
        return ""
    return f", and {units.share(now['unchanged'], now['published'])} of them repeated what was known and went nowhere"


def _totals(figures: Figures) -> tuple[Row, Row | None]:
    rows = {row["current"]: row for row in figures.rows("totals")}
    empty = dict.fromkeys(("published", "unchanged", "queued", "confirmed", "retried", "dead"), 0)
    now = empty | {"wait_p50_ms": None, "wait_p95_ms": None}
    for name, value in rows.get(True, {}).items():
        if value is not None:
            now[name] = value
    return now, rows.get(False)


def _change(
    now: Row, before: Row | None, name: str, figures: Figures, say: Callable[[float], str] = units.count
) -> str:
    """Against the time before, where there was something."""
    was = before[name] if before is not None else None
    if not was or now[name] is None:
        return ""
    length = figures.period.length
    then = "the day before" if length == timedelta(days=1) else "the time before"
    if abs(now[name] - was) < _NOTABLE * was:
        return f"as {then}"
    return f"{then}: {say(was)}"


def _highest_backlog(figures: Figures) -> tuple[str, str]:
    across = figures.across_minutes()
    highest, where = 0.0, ""
    for name, rows in by_name(figures.rows("backlog"), "destination").items():
        values = carried(rows, across)
        for index, value in enumerate(values):
            if value > highest:
                highest, where = value, f"{name}, {across.label(index)}"
    return units.count(highest), where or "nothing waited at a minute's end"
