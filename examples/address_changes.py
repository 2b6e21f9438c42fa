"""Customers whose address changed more than three times in a day: found in Spark, and one message published for each.

    waypost serve                        a broker with a lake, and customers published as JSON with an "address"
    waypost pipeline once                its log, folded into tables
    python examples/address_changes.py   (--url where the broker is elsewhere; --dry-run only shows them)
    waypost fetch review

What was said of a customer, and when, is the table `object_history`; the bodies are `payloads`, joined by `sequence`. A customer that is found again, by
a second run on the same day, is published once: its message has the day and the customer as its idempotency key.
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import waypost.spark
from waypost import BlockingClient

#: changes in a day that are nothing special yet
USUAL = 3
#: messages in one request
BATCH = 1_000


def restless(spark: SparkSession, object: str = "customer", usual: int = USUAL, **where: Any) -> DataFrame:
    """A row for each customer and day with more changes than usual. `where`: the broker's url, or the lake; with asOf no pipeline is needed."""
    history = waypost.spark.table(spark, "object_history", **where).where(F.col("object") == object)
    bodies = waypost.spark.table(spark, "payloads", **where).select("sequence", "body")
    in_order = Window.partitionBy("key").orderBy("sequence")
    return (
        history.join(bodies, "sequence")
        .withColumn("address", F.get_json_object(F.col("body").cast("string"), "$.address"))
        .where(F.col("address").isNotNull())
        .withColumn("before", F.lag("address").over(in_order))
        .where(F.col("address") != F.col("before"))
        .groupBy("key", F.to_date("valid_from").alias("day"))
        .agg(F.count("*").alias("changes"), F.max_by("address", "sequence").alias("address"))
        .where(F.col("changes") > usual)
    )


def messages(found: DataFrame) -> DataFrame:
    """In the columns that the sink takes: one message for each row."""
    return found.select(
        F.to_json(F.struct("key", "day", "changes", "address")).alias("value"),
        F.array(F.lit("review.address")).alias("topics"),
        F.lit("review").alias("object"),
        "key",
        F.concat_ws(" ", F.lit("address"), "day", "key").alias("idempotency_key"),
    ).orderBy("key")


def publish(found: DataFrame, url: str) -> int:
    """How many were published, now or by an earlier run."""
    rows = [row.asDict() for row in found.toLocalIterator()]
    with BlockingClient(url, producer="address-changes") as client:
        for start in range(0, len(rows), BATCH):
            client.publish_many(
                {
                    "topics": row["topics"],
                    "object": row["object"],
                    "key": row["key"],
                    "mimeType": "application/json",
                    "body": row["value"],
                    "idempotencyKey": row["idempotency_key"],
                }
                for row in rows[start : start + BATCH]
            )
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Publishes a message for each customer that moves too often."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--object", default="customer")
    parser.add_argument("--dry-run", action="store_true", help="only show them")
    asked = parser.parse_args()
    spark = waypost.spark.session("address changes")
    found = restless(spark, asked.object, url=asked.url)
    if asked.dry_run:
        found.orderBy("day", "key").show(truncate=False)
    else:
        print(f"{publish(messages(found), asked.url)} customers moved more than {USUAL} times in a day")


if __name__ == "__main__":
    main()
