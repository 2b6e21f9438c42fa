"""The report: one page that says what a day was like.

queries    Spark SQL over the lake's tables ─▶ a few plain rows       the only part that knows Spark
figures    the rows, and how they become series
headline   the first screen's figures and sentences
pictures   from rows to what is drawn, said and listed, one function each
charts     columns, lines, bars, ranges as SVG                        scales, units: where things stand, how
page       everything as one HTML page                                they read; markup: nothing unescaped

figures = report.gather(spark, Period(since, until), lake="/var/lib/waypost/lake")
Path("report.html").write_text(report.page(figures))
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from .figures import Figures
from .headline import headlines, summary
from .page import page
from .period import Period, floor
from .queries import TABLES, ask, extent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Figures", "Period", "gather", "headlines", "page", "summary"]

DAY = timedelta(days=1)


def gather(
    spark: SparkSession,
    period: Period | None = None,
    *,
    url: str | None = None,
    lake: str | None = None,
    now: datetime | None = None,
) -> Figures:
    """What the tables say of a period; of the last 24 hours when none is given. `url`, `lake`: as in `table`."""
    from ..reading import table

    for name in TABLES:
        table(spark, name, url=url, lake=lake).createOrReplaceTempView(name)
    place = {"url": url, "lake": lake}
    where = {name: value for name, value in place.items() if value is not None}
    return asked(spark, period, now or datetime.now(UTC), where)


def asked(
    spark: SparkSession, period: Period | None, now: datetime, where: Mapping[str, str] | None = None
) -> Figures:
    """The same of views that the session has already."""
    first, last = extent(spark)
    period = period or last_day(now, first)
    return Figures(period, now, ask(spark, period), last, where or {})


def last_day(now: datetime, first: datetime | None) -> Period:
    """The last 24 hours, but not what was before anything happened; it begins where a step of its pictures does."""
    since = now - DAY if first is None else max(first, now - DAY)
    if since >= now:
        since = now - DAY
    return Period(floor(since, Period(since, now).step), now)
