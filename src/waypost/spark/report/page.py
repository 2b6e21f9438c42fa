"""The report as one HTML page that needs nothing else: no file, no network, and JavaScript only for quick tooltips.

    headline   what it was like
    picture    title, one sentence, the drawing; folded below it: its numbers, and the query that made it
    ending     how to ask oneself

Its content security policy lets it load nothing at all, whatever a name or a reason in it says.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files

from ...version import __version__
from . import units
from .figures import Figures
from .headline import Headline, headlines, summary
from .markup import Markup, element
from .pictures import PICTURES, Numbers, Picture
from .queries import TABLES

#: a broker may be quiet for so long without a word about it
QUIET = timedelta(minutes=15)


def page(figures: Figures) -> str:
    style, script = _file("page.css"), _file("page.js")
    title = f"Waypost, {_when(figures)}"
    pictures = [make(figures) for make in PICTURES]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        _header(figures),
        element("nav", *(element("a", one.id, href=f"#{one.id}") for one in pictures), aria_label="Pictures"),
        element("main", *(_section(one) for one in pictures)),
        _footer(figures),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _when(figures: Figures) -> str:
    since, until = figures.period.since.astimezone(UTC), figures.period.until.astimezone(UTC)
    if until - since == timedelta(days=1) and not (since.hour or since.minute or since.second):
        return units.day(since)
    exact = timedelta(seconds=1) if figures.period.step < timedelta(minutes=1) else timedelta(minutes=1)
    end = units.clock if since.date() == until.date() else units.moment
    return f"{units.moment(since, exact)} – {end(until, exact)}"


def _header(figures: Figures) -> Markup:
    return element(
        "header",
        element("p", "Waypost report", class_="brand"),
        element("h1", _when(figures)),
        element("p", "All times are UTC.", class_="note"),
        element("p", " ".join(summary(figures)), class_="summary"),
        _late(figures),
        element("dl", *(_tile(one) for one in headlines(figures)), class_="tiles"),
    )


def _tile(headline: Headline) -> Markup:
    return element(
        "div",
        element("dt", headline.name),
        element("dd", headline.value, class_="value"),
        element("dd", headline.detail, class_="detail") if headline.detail else None,
        class_="alarming" if headline.alarming else None,
    )


def _late(figures: Figures) -> Markup | None:
    """Said when the tables do not reach the end of the time asked for."""
    until = figures.tables_until
    if until is None:
        return _notice(
            "No minute is closed in the tables yet, and much here is told of whole minutes. Later, run "
        )
    if until < min(figures.period.until, figures.made_at) - QUIET:
        return _notice(
            f"The tables know of minutes up to {units.moment(until)}. If more happened since, run "
        )
    return None


def _notice(before: str) -> Markup:
    return element("p", before, element("code", "waypost pipeline once"), ".", class_="notice", role="note")


def _section(picture: Picture) -> Markup:
    return element(
        "section",
        element("h2", picture.title),
        element("p", picture.sees, class_="sees"),
        element("div", picture.drawing, class_="picture") if picture.drawing else None,
        element(
            "div",
            _numbers(picture.numbers),
            element("details", element("summary", "The query"), element("pre", element("code", picture.sql))),
            class_="folds",
        ),
        id=picture.id,
        class_=None if picture.drawing else "empty",
    )


def _numbers(numbers: Numbers | None) -> Markup | None:
    if numbers is None:
        return None
    head = element("tr", *(element("th", column, scope="col") for column in numbers.columns))
    rows = (
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
        for row in numbers.rows
    )
    table = element("table", element("thead", head), element("tbody", *rows))
    return element(
        "details", element("summary", "The numbers"), element("div", table, class_="scroll", tabindex=0)
    )


def _footer(figures: Figures) -> Markup:
    return element(
        "footer",
        element("h2", "Ask yourself"),
        element("p", "Each query above runs as it stands, in a Spark session that knows the tables:"),
        element("pre", element("code", _session(figures.where))),
        element("p", f"Made {_made(figures.made_at)} UTC by Waypost {__version__}.", class_="note"),
    )


def _made(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _session(place: Mapping[str, str]) -> str:
    where = "".join(f", {name}={value!r}" for name, value in place.items())
    names = ", ".join(f'"{name}"' for name in TABLES)
    return (
        "import waypost.spark\n\n"
        "spark = waypost.spark.session()\n"
        f"for name in ({names}):\n"
        f"    waypost.spark.table(spark, name{where}).createOrReplaceTempView(name)\n"
        'spark.sql("""…""").show(truncate=False)'
    )
