"""Customers whose address changed more than three times in a day: found in Spark, and one message published for each.

    waypost serve                        a broker with a lake, and customers published as JSON with an "address"
    waypost pipeline once                its log, folded into tables
    python examples/address_changes.py   (--url where the broker is elsewhere; --dry-run only shows them)
    waypost fetch review

What was said of a customer, and when, is the table `object_history`; the bodies are `payloads`, joined by `sequence`. The rows that are found become messages
through the sink. A second run finds the same customers again: object `review` is compared, so what it repeats is logged as unchanged and reaches no queue.
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
        F.lit("application/json").alias("mime_type"),
    ).orderBy("key")


def publish(found: DataFrame, url: str) -> None:
    with BlockingClient(url) as client:
        client.declare_object("review", {"unchanged": {}})
    found.write.format("waypost").option("url", url).mode("append").save()


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
        found = found.cache()
        publish(messages(found), asked.url)
        print(f"{found.count()} customers moved more than {USUAL} times in a day: waypost fetch review")


if __name__ == "__main__":
    main()
