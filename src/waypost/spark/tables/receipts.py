"""receipts: one row a fetch, with how it ended.

A fetch ends when its slot leaves F. A confirm that comes after the lease, and before the next fetch, still counts: then
it leaves R, and the event names its consumer. What happens to a waiting slot by itself (T, C, O) names nobody.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...arrow import MOMENT
from ...delivery import F as FETCHED
from ...delivery import I, N, Q, R, S
from . import shape

_KEY = ("sequence", "destination_code", "slot", "attempt")
SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("slot", pa.int32()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        ("fetched_at", MOMENT),
        ("settled_at", MOMENT),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("wait_ms", pa.int64()),
        ("processing_ms", pa.int64()),
        ("offset", pa.int64()),
        ("destination_code", pa.int32()),
        ("bucket", pa.int64()),
    ]
)
#: outcomes that are a consumer's answer; what it asks to have again it has not processed
_CONFIRMED = tuple(state.name for state in (S, I, N))


def fold(events: DataFrame) -> DataFrame:
    fetched = shape.enters(FETCHED)
    late = shape.leaves(R) & F.col("consumer_code").isNotNull() & ~fetched
    settled = shape.leaves(FETCHED) | late
    rows = events.where(fetched | settled)
    changes = rows.groupBy(*_KEY, "message_id", "queue", "channel", "consumer").agg(
        F.min(shape.when(fetched, "offset")).alias("offset"),
        F.min(shape.when(fetched, "at")).alias("fetched_at"),
        F.min(shape.when(fetched & shape.leaves(Q), "duration_ms")).alias("wait_ms"),
        F.max(shape.when(settled, "at")).alias("settled_at"),
        F.max(F.when(settled, F.col("offset") * 32 + F.col("to_code"))).alias("_settled"),
    )
    held = F.expr("(unix_micros(settled_at) - unix_micros(fetched_at)) div 1000")
    return (
        changes.join(shape.last_reasons(rows.where(settled), *_KEY), list(_KEY), "left")
        .withColumn("outcome", shape.letter(F.col("_settled") % 32))
        .withColumn("reason", F.when(F.col("reason_offset") == F.expr("_settled div 32"), F.col("reason")))
        .withColumn("processing_ms", F.when(F.col("outcome").isin(*_CONFIRMED), held))
        .withColumn("bucket", shape.bucket())
        .select(*SCHEMA.names)
    )


_HELD = "(cast(s.settled_at as bigint) - cast(t.fetched_at as bigint)) / 1000"

RECEIPTS_TABLE = shape.Folded(
    name="receipts",
    schema=SCHEMA,
    key=_KEY,
    fold=fold,
    update={
        "settled_at": shape.newest("settled_at"),
        "outcome": shape.newest("outcome"),
        "reason": "case when s.outcome is null then t.reason else s.reason end",
        "processing_ms": f"case when s.outcome in {_CONFIRMED} then {_HELD} else t.processing_ms end",
    },
)
