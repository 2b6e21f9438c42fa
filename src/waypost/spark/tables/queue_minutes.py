"""queue_minutes: what happened in a queue or channel in each minute, and how much was open at its end.

A minute has a row for each queue or channel where something happened in it.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ...arrow import MOMENT
from ...delivery import C, E, I, K, N, O, Q, R, S, T
from ...delivery import F as FETCHED
from . import shape

_COUNTS = {
    "queued": (Q,),
    "fetched": (FETCHED,),
    "confirmed": (S,),
    "kicked": (K,),
    "retried": (R,),
    "dead": (E, I),
    "timed_out": (T,),
    "cancelled": (C,),
    "obsolete": (O,),
    "not_interested": (N,),
}
_OPEN = (Q, R, FETCHED)
_KEY = ("minute", "destination_code")
SCHEMA = pa.schema(
    [
        ("minute", MOMENT),
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("destination_code", pa.int32()),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.int64()) for name in shape.percentile_names("wait")),
        *((name, pa.int64()) for name in shape.percentile_names("processing")),
        ("depth", pa.int64()),
    ]
)


def fold(events: DataFrame) -> DataFrame:
    """Depths are counted from the first of these events on."""
    opened = shape.enters(*_OPEN).cast("int") - shape.leaves(*_OPEN).cast("int")
    minutes = (
        events.where(F.col("slot").isNotNull())
        .groupBy(shape.minute(), "queue", "channel", "destination_code")
        .agg(
            *(shape.count(shape.enters(*states)).alias(name) for name, states in _COUNTS.items()),
            *shape.percentiles(shape.leaves(Q) & shape.enters(FETCHED), "wait"),
            *shape.percentiles(shape.leaves(FETCHED) & shape.enters(S, I, N), "processing"),
            F.sum(opened).alias("opened"),
        )
    )
    so_far = Window.partitionBy("destination_code").orderBy("minute")
    return minutes.withColumn("depth", F.sum("opened").over(so_far)).select(*SCHEMA.names)


QUEUE_MINUTES_TABLE = shape.Counted(
    name="queue_minutes", schema=SCHEMA, key=_KEY, fold=fold, carried=("destination_code", "depth")
)
