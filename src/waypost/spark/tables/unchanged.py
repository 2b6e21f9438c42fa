"""unchanged: what need not be delivered, because it repeated what was known; by object, producer and day."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...delivery import U
from . import shape

_KEY = ("day", "object", "producer")
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("object", pa.string()),
        ("producer", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def compute(messages: DataFrame) -> DataFrame:
    repeated = messages.where(F.col("state") == U.name).withColumn("day", F.to_date("at"))
    return repeated.groupBy(*_KEY).agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))


UNCHANGED_TABLE = shape.Computed(name="unchanged", schema=SCHEMA, sources=("messages",), compute=compute)
