"""Five questions about a broker's past, answered in Spark.

    waypost serve                        a broker, with some traffic
    waypost pipeline once                its log, folded into tables
    python examples/questions.py         (--url where the broker is elsewhere)

Each question is SQL over a table of the lake; `waypost.spark.table` gives the tables. The same tables without Spark:
lake_without_spark.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

import waypost.spark

console = Console(highlight=False)

#: the tables that the questions name
TABLES = ("receipts", "object_history", "unchanged")

WHO_FAILED = """
SELECT date_trunc('HOUR', fetched_at) AS hour, consumer,
       coalesce(queue, channel) AS place, reason,
       count(*) AS attempts, count(DISTINCT sequence) AS messages
FROM receipts
WHERE outcome IN ('R', 'E', 'I')
GROUP BY ALL
ORDER BY attempts DESC
LIMIT 10"""

HOW_LONG_THEY_WAITED = """
SELECT coalesce(queue, channel) AS place, count(*) AS fetches,
       percentile_approx(wait_ms, 0.5) AS p50_ms,
       percentile_approx(wait_ms, 0.95) AS p95_ms,
       percentile_approx(wait_ms, 0.99) AS p99_ms
FROM receipts
GROUP BY place
ORDER BY p95_ms DESC"""

WHAT_WAITED_THEN = """
SELECT coalesce(queue, channel) AS place, state,
       count(*) AS deliveries, min(at) AS oldest
FROM deliveries_then
WHERE state IN ('Q', 'R', 'F')
GROUP BY place, state
ORDER BY deliveries DESC"""

WHAT_CHANGED_MOST = """
SELECT object, key, count(*) AS versions,
       count_if(state = 'X') AS delivered,
       max(valid_from) AS last_change,
       max_by(producer, valid_from) AS by
FROM object_history
GROUP BY object, key
ORDER BY versions DESC, object, key
LIMIT 10"""

WHAT_REPETITIONS_COST = """
SELECT object, producer,
       sum(messages) AS not_delivered_again, sum(bytes) AS bytes_saved
FROM unchanged
GROUP BY object, producer
ORDER BY not_delivered_again DESC"""


def questions(spark: SparkSession, **where: Any) -> Iterator[tuple[str, str, DataFrame]]:
    """Each with its SQL and its answer. `where`: the broker's url, or the lake."""
    for name in TABLES:
        waypost.spark.table(spark, name, **where).createOrReplaceTempView(name)
    then = datetime.now(UTC) - timedelta(hours=1)
    waypost.spark.table(spark, "deliveries", asOf=then, **where).createOrReplaceTempView("deliveries_then")
    for question, sql in {
        "Who failed, when and why?": WHO_FAILED,
        "How long did messages wait, by queue?": HOW_LONG_THEY_WAITED,
        f"What waited an hour ago, at {then:%H:%M} UTC?": WHAT_WAITED_THEN,
        "Which things changed most often?": WHAT_CHANGED_MOST,
        "What did it save to recognise repetitions?": WHAT_REPETITIONS_COST,
    }.items():
        yield question, sql.strip(), spark.sql(sql)


def show(number: int, question: str, sql: str, rows: list[dict[str, Any]]) -> None:
    console.print(f"\n[bold]{number}. {question}[/]\n")
    console.print(Syntax(sql, "sql", background_color="default", word_wrap=True))
    console.print()
    if not rows:
        console.print("nothing to tell", style="bright_black")
        return
    table = Table(*rows[0], box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(said(value)) for value in row.values()))
    console.print(table)


def said(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Five questions about a broker's past, answered in Spark.")
    parser.add_argument("--url", help="the broker, if not http://127.0.0.1:8080")
    parser.add_argument("--lake", help="the lake's folder; then no broker is asked")
    given = parser.parse_args()
    spark = waypost.spark.session("questions")
    for number, (question, sql, answer) in enumerate(questions(spark, url=given.url, lake=given.lake), 1):
        show(number, question, sql, answer.toArrow().to_pylist())


if __name__ == "__main__":
    main()
