"""The lake's tables without Spark and without Java: they are Delta tables, which others read as they are.

    waypost serve                              a broker, with some traffic
    waypost pipeline once                      its log, folded into tables
    pip install duckdb polars
    python examples/lake_without_spark.py      (--lake DIR: no broker is asked)

On one machine DuckDB and Polars answer such questions sooner than Spark starts; the tables are the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from urllib.request import urlopen

import duckdb
import polars as pl
from deltalake import DeltaTable

#: the log itself, sealed by the broker, and what the pipeline keeps
TABLES = ("message_events", "messages", "deliveries", "receipts", "queue_minutes", "consumer_minutes")

WHO_FAILED = """
SELECT date_trunc('hour', fetched_at) AS hour, consumer, coalesce(queue, channel) AS place,
       reason, count(*) AS attempts, count(DISTINCT sequence) AS messages
FROM receipts
WHERE outcome IN ('R', 'E', 'I')
GROUP BY ALL
ORDER BY attempts DESC
LIMIT 10"""

HOW_LONG_THEY_WAITED = """
SELECT coalesce(queue, channel) AS place, count(*) AS fetches,
       quantile_disc(wait_ms, 0.5) AS p50_ms,
       quantile_disc(wait_ms, 0.95) AS p95_ms,
       quantile_disc(wait_ms, 0.99) AS p99_ms
FROM receipts
GROUP BY place
ORDER BY p95_ms DESC"""

WHAT_A_MESSAGE_GOES_THROUGH = """
SELECT coalesce(from_state, '') AS from_state, to_state, count(*) AS events, round(avg(duration_ms)) AS mean_ms
FROM message_events
GROUP BY ALL
ORDER BY events DESC"""


def with_duckdb(lake: Path) -> None:
    """The Delta log says which files a table has at this moment; others in its folder are none of its."""
    with duckdb.connect() as connection:
        for name in TABLES:
            files = DeltaTable(lake / name).file_uris()
            connection.read_parquet(files, hive_partitioning=True, union_by_name=True).create_view(name)
        for question, sql in {
            "Who failed, when and why?": WHO_FAILED,
            "How long did messages wait, by queue?": HOW_LONG_THEY_WAITED,
            "What do messages go through?": WHAT_A_MESSAGE_GOES_THROUGH,
        }.items():
            print(f"\nDuckDB: {question}\n")
            print(connection.sql(sql))


def with_polars(lake: Path) -> None:
    repetitions = (
        pl.scan_delta(str(lake / "messages"))
        .filter(pl.col("state") == "U")
        .group_by("object", "producer", pl.col("at").dt.date().alias("day"))
        .agg(messages=pl.len(), bytes=pl.col("size").sum())
        .sort("messages", descending=True)
    )
    waiting = (
        pl.scan_delta(str(lake / "deliveries"))
        .filter(pl.col("state").is_in(["Q", "R", "F"]))
        .group_by(pl.coalesce("queue", "channel").alias("place"), "state")
        .agg(deliveries=pl.len(), oldest=pl.col("at").min())
        .sort("deliveries", descending=True)
    )
    for question, answer in {
        "What did it save to recognise repetitions?": repetitions,
        "What waits?": waiting,
    }.items():
        print(f"\nPolars: {question}\n")
        print(answer.collect())


def lake_of(url: str) -> Path:
    with urlopen(f"{url}/v1/lake", timeout=10) as answer:
        return Path(json.load(answer)["lake"])


def main() -> None:
    parser = argparse.ArgumentParser(description="The lake's tables, read by DuckDB and Polars.")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="the broker, which says where its lake is"
    )
    parser.add_argument("--lake", type=Path, help="the lake's folder")
    given = parser.parse_args()
    lake = given.lake or lake_of(given.url)
    with_duckdb(lake)
    with_polars(lake)


if __name__ == "__main__":
    main()
