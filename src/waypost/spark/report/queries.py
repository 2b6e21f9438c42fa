"""The questions a report asks of the lake's tables: Spark SQL that a person can paste, and a few rows as answer.

Every answer is bounded, however many queues, consumers or reasons there are: time comes in steps, and of names only the
first ones are kept apart. Percentiles are taken from the single fetches, not from percentiles of minutes.
Times are written with their zone, so that a query means the same in any session.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from .figures import MOST_SERIES, OTHERS, Answer, Row
from .period import Period

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: the tables that the questions are about
TABLES = ("messages", "receipts", "queue_minutes", "consumer_minutes", "dead_letters")

#: more rows than this no list shows
MOST_ROWS = 500

#: while one question is planned, another's tasks run
AT_ONCE = 3

#: a queue goes by its name; a channel may have the same
_DESTINATION = "coalesce(queue, 'channel ' || channel)"


def queries(period: Period) -> dict[str, str]:
    """By the question's name."""
    step, coarse = period.step, period.coarse_step
    return {
        "totals": _totals(period),
        "volume": f"""
SELECT {_time("at", step)} AS time,
       count(*) AS published,
       count_if(state = 'U') AS unchanged
FROM messages
WHERE {_within("at", period)}
GROUP BY time
ORDER BY time""",
        "destinations": f"""
SELECT {_DESTINATION} AS destination,
       sum(queued) AS queued,
       sum(fetched) AS fetched,
       sum(confirmed + kicked) AS confirmed,
       sum(retried) AS retried,
       sum(dead) AS dead,
       sum(timed_out + cancelled + obsolete + if(channel IS NULL, 0, not_interested)) AS ended
FROM queue_minutes
WHERE {_within("minute", period)}
GROUP BY destination
ORDER BY confirmed + dead + ended DESC, queued DESC, destination
LIMIT {MOST_ROWS}""",
        "waits": f"""
WITH fetches AS (
  SELECT {_time("fetched_at", step)} AS time,
         {_DESTINATION} AS destination,
         wait_ms
  FROM receipts
  WHERE {_within("fetched_at", period)} AND wait_ms IS NOT NULL
), busiest AS (
  SELECT destination FROM fetches
  GROUP BY destination ORDER BY count(*) DESC, destination LIMIT {MOST_SERIES}
), named AS (
  SELECT time, coalesce(busiest.destination, '{OTHERS}') AS destination, wait_ms
  FROM fetches LEFT JOIN busiest ON fetches.destination = busiest.destination
)
SELECT destination, time,
       count(*) AS fetched,
       percentile_approx(wait_ms, 0.50, 1000) AS p50,
       percentile_approx(wait_ms, 0.95, 1000) AS p95,
       percentile_approx(wait_ms, 0.99, 1000) AS p99
FROM named
GROUP BY GROUPING SETS ((), (time), (destination), (destination, time))
ORDER BY destination IS NULL DESC, destination = '{OTHERS}', destination, time""",
        "backlog": f"""
WITH depths AS (
  SELECT minute, {_DESTINATION} AS destination, sum(depth) AS depth
  FROM queue_minutes
  WHERE minute < {_moment(period.until)}
  GROUP BY minute, destination
), deepest AS (
  SELECT destination,
         greatest(max(depth) FILTER (WHERE minute >= {_moment(period.since)}),
                  max_by(depth, minute) FILTER (WHERE minute < {_moment(period.since)})) AS peak
  FROM depths
  GROUP BY destination HAVING peak > 0
  ORDER BY peak DESC, destination LIMIT {MOST_ROWS // 10}
)
SELECT destination,
       if(minute < {_moment(period.since)}, NULL, {_time("minute", coarse)}) AS time,
       max_by(depth, minute) AS depth,
       max(depth) AS peak
FROM depths JOIN deepest USING (destination)
GROUP BY destination, time
ORDER BY destination, time""",
        "failures": f"""
WITH attempts AS (
  SELECT {_time("minute", coarse)} AS time,
         consumer,
         sum(fetched) AS fetched,
         sum(retried + invalid + lease_over) AS failed
  FROM consumer_minutes
  WHERE {_within("minute", period)}
  GROUP BY time, consumer
), worst AS (
  SELECT consumer, sum(failed) AS most FROM attempts
  GROUP BY consumer HAVING most > 0
  ORDER BY most DESC, consumer LIMIT {MOST_SERIES}
)
SELECT coalesce(worst.consumer, '{OTHERS}') AS consumer,
       time,
       sum(fetched) AS fetched,
       sum(failed) AS failed
FROM attempts LEFT JOIN worst ON attempts.consumer = worst.consumer
GROUP BY coalesce(worst.consumer, '{OTHERS}'), time
ORDER BY max(coalesce(most, 0)) DESC, consumer, time""",
        "reasons": f"""
WITH letters AS (
  SELECT {_reason("reason")} AS reason,
         {_DESTINATION} AS destination, consumer, state, since, message_id
  FROM dead_letters
  WHERE {_within("since", period)}
)
SELECT reason, destination, consumer, state,
       count(*) AS letters,
       min(since) AS first,
       max(since) AS last,
       max(message_id) AS example,
       sum(count(*)) OVER () AS total
FROM letters
GROUP BY reason, destination, consumer, state
ORDER BY letters DESC, reason, destination, consumer, state
LIMIT {MOST_ROWS}""",
        "consumers": f"""
SELECT consumer,
       {_DESTINATION} AS destination,
       count_if(outcome = 'S') AS confirmed,
       count_if(reason = 'lease-over') AS lease_over,
       percentile_approx(processing_ms, 0.50, 1000) AS p50,
       percentile_approx(processing_ms, 0.95, 1000) AS p95,
       percentile_approx(processing_ms, 0.99, 1000) AS p99
FROM receipts
WHERE {_within("fetched_at", period)}
GROUP BY consumer, destination
HAVING p50 IS NOT NULL
ORDER BY p95 DESC, p99 DESC, consumer, destination
LIMIT {MOST_ROWS}""",
        "duplicates": f"""
SELECT coalesce(object, split_part(topics[0], '.', 1)) AS object,
       coalesce(producer, 'someone') AS producer,
       count(*) AS published,
       count_if(state = 'U') AS unchanged,
       sum(if(state = 'U', size, 0)) AS bytes
FROM messages
WHERE {_within("at", period)}
GROUP BY 1, 2
HAVING unchanged > 0
ORDER BY unchanged DESC, object, producer
LIMIT {MOST_ROWS}""",
    }


def _totals(period: Period) -> str:
    both = Period(period.before.since, period.until)

    def now(column: str) -> str:
        return f"{column} >= {_moment(period.since)} AS current"

    return f"""
WITH published AS (
  SELECT {now("at")}, count(*) AS published, count_if(state = 'U') AS unchanged
  FROM messages WHERE {_within("at", both)} GROUP BY current
), moved AS (
  SELECT {now("minute")}, sum(queued) AS queued, sum(confirmed + kicked) AS confirmed,
         sum(retried) AS retried, sum(dead) AS dead
  FROM queue_minutes WHERE {_within("minute", both)} GROUP BY current
), waited AS (
  SELECT {now("fetched_at")},
         percentile_approx(wait_ms, 0.50, 1000) AS wait_p50_ms,
         percentile_approx(wait_ms, 0.95, 1000) AS wait_p95_ms
  FROM receipts WHERE {_within("fetched_at", both)} GROUP BY current
)
SELECT * FROM published FULL JOIN moved USING (current) FULL JOIN waited USING (current)
ORDER BY current"""


def _moment(at: datetime) -> str:
    return f"TIMESTAMP '{at.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}Z'"


def _within(column: str, period: Period) -> str:
    return f"{column} >= {_moment(period.since)} AND {column} < {_moment(period.until)}"


def _time(column: str, step: timedelta) -> str:
    """The beginning of the step a moment is in, as Period.starts has it."""
    seconds = int(step.total_seconds())
    return f"timestamp_seconds(unix_seconds({column}) div {seconds} * {seconds})"


def _reason(column: str) -> str:
    """What reasons of one kind share: of a traceback the last line, and no long numbers or ids."""
    last_line = f"substring_index(trim({column}), '\\n', -1)"
    return f"regexp_replace(coalesce({last_line}, 'no reason given'), '[0-9a-f]{{8}}-[0-9a-f-]{{27}}|[0-9]{{4,}}', '…')"


def ask(spark: SparkSession, period: Period) -> Mapping[str, Answer]:
    """The answers; the session has a view of every one of TABLES."""
    asked = queries(period)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = threads.map(lambda sql: Answer(sql.strip(), _rows(spark, sql)), asked.values())
        return dict(zip(asked, answers, strict=True))


def extent(spark: SparkSession) -> tuple[datetime | None, datetime | None]:
    """When the tables of minutes begin, and the end of the last minute that they have."""
    [row] = _rows(
        spark, "SELECT min(minute) AS first, max(minute) + INTERVAL 1 MINUTE AS last FROM queue_minutes"
    )
    return row["first"], row["last"]


def _rows(spark: SparkSession, sql: str) -> tuple[Row, ...]:
    """Through Arrow, where moments keep their zone."""
    return tuple(spark.sql(sql).toArrow().to_pylist())
