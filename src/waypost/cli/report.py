"""pipeline report: what a day was like, on one page."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RequestInvalid
from ..instants import parse_instant
from .asking import Url, as_instant
from .failures import CommandFailed, CommandMisused
from .output import note, pairs, plain, show, size
from .pipeline import Folder, Master

if TYPE_CHECKING:
    from ..spark.report import Period

DAY = timedelta(days=1)
#: days that have a word
_WORDS = {"today": 0, "yesterday": 1}


def report(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the page goes.")
    ] = Path("report.html"),
    day: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="2026-01-31, today or yesterday, in your zone.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="MOMENT", help="From: 10:00, 2026-01-31 10:00; else 24 h.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Up to and without; else now.", show_default=False)
    ] = None,
    url: Url = None,
    lake: Folder = None,
    master: Master = None,
) -> None:
    """Write one HTML page of the last 24 hours, or of another time: volume, waits, backlog, dead letters, consumers."""
    meant = period_meant(day, since, until, datetime.now(UTC))
    if not output.parent.is_dir():
        raise CommandFailed(f"{output.parent}: no such folder; say another file with -o")
    from ..config import load
    from ..spark.report import gather, headlines, page, summary
    from ..spark.session import session

    note("starting Spark")
    spark = session("waypost report", master, brief=True)
    note("asking the tables")
    # A lake that is named is enough: then no broker need be there.
    asked = load(url=url)["url"].value if url is not None or lake is None else None
    figures = gather(spark, meant, url=asked, lake=None if lake is None else str(lake))
    output.write_text(page(figures), "utf-8")
    for line in summary(figures):
        show(plain(line))
    show(pairs((one.name, f"{one.value}  {one.detail}".rstrip()) for one in headlines(figures)))
    show(plain(f"{output.resolve()} ({size(output.stat().st_size)})", "bold"))


def period_meant(day: str | None, since: str | None, until: str | None, now: datetime) -> Period | None:
    """The time that was asked for; None when nothing was said of it. Bare times and days are this person's."""
    from ..spark.report import Period

    if day is not None:
        if since is not None or until is not None:
            raise CommandMisused("--day is a whole day: say it, or --since and --until")
        first = _day(day, now)
        return Period(_midnight(first), _midnight(first + DAY))
    if since is None and until is None:
        return None
    end = _instant(until, now) if until is not None else now
    start = _instant(since, now) if since is not None else end - DAY
    if start >= end:
        raise CommandMisused(
            f"--since {start:%Y-%m-%dT%H:%M:%SZ} is not before --until {end:%Y-%m-%dT%H:%M:%SZ}"
        )
    return Period(start, end)


def _day(text: str, now: datetime) -> date:
    if text in _WORDS:
        return now.astimezone().date() - _WORDS[text] * DAY
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandMisused(f"not a day: {text[:60]!r}; say 2026-01-31, today or yesterday") from None


def _midnight(day: date) -> datetime:
    """Where this person is, with the summer time of that day."""
    return datetime(day.year, day.month, day.day).astimezone().astimezone(UTC)


def _instant(text: str, now: datetime) -> datetime:
    try:
        at = parse_instant(as_instant(text), int(now.timestamp() * 1_000_000))
    except RequestInvalid as error:
        raise CommandMisused(f"{error.detail}; {error.hint}") from error
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
