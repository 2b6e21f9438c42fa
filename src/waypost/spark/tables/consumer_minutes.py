"""consumer_minutes: what each consumer did in each minute, by queue or channel."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...arrow import MOMENT
from ...delivery import E, I, N, R, Reason, S
from ...delivery import F as FETCHED
from . import shape

_KEY = ("minute", "consumer", "queue", "channel")
_COUNTS = ("fetched", "confirmed", "retried", "invalid", "not_interested", "lease_over")
SCHEMA = pa.schema(
    [
        ("minute", MOMENT),
        ("consumer", pa.string()),
        ("queue", pa.string()),
        ("channel", pa.string()),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.int64()) for name in shape.percentile_names("processing")),
    ]
)


def fold(events: DataFrame) -> DataFrame:
    again = shape.leaves(FETCHED, R) & shape.enters(R, E)
    lease_over = F.coalesce(F.col("reason") == Reason.LEASE_OVER.value, F.lit(False))
    counts = (
        shape.enters(FETCHED),
        shape.enters(S),
        again & ~lease_over,
        shape.enters(I),
        shape.enters(N),
        again & lease_over,
    )
    return (
        events.where(F.col("consumer_code").isNotNull())
        .groupBy(shape.minute(), *_KEY[1:])
        .agg(
            *(shape.count(condition).alias(name) for name, condition in zip(_COUNTS, counts, strict=True)),
            *shape.percentiles(shape.leaves(FETCHED) & shape.enters(S, I, N), "processing"),
        )
        .select(*SCHEMA.names)
    )


CONSUMER_MINUTES_TABLE = shape.Counted(name="consumer_minutes", schema=SCHEMA, key=_KEY, fold=fold)
