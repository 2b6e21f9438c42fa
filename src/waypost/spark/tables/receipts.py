"""receipts: one row a fetch, with how it ended.

A fetch ends when its slot leaves F. A confirm that comes after the lease, and before the next fetch, still counts: then
it leaves R, and the event names its consumer. What happens to a waiting slot by itself (T, C, O) names nobody.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
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


def numbers(events: DataFrame) -> DataFrame:
    """Whoever fetched it is named by all events of a fetch: a part of its key."""
    fetched, settled = shape.enters(FETCHED), _settles()
    changes = (
        events.where(fetched | settled)
        .groupBy(*_KEY, "consumer_code")
        .agg(
            F.min(shape.when(fetched, "offset")).alias("offset"),
            F.min(shape.when(fetched, "at")).alias("fetched_at"),
            F.min(shape.when(fetched & shape.leaves(Q), "duration_ms")).alias("wait_ms"),
            F.max(shape.when(settled, "at")).alias("settled_at"),
            F.max(F.when(settled, F.col("offset") * 32 + F.col("to_code"))).alias("_settled"),
            F.max(shape.when(_gives_reason(), "offset")).alias("_given_at"),
        )
    )
    held = F.expr("(unix_micros(settled_at) - unix_micros(fetched_at)) div 1000")
    return (
        changes.withColumn("outcome", shape.letter(F.col("_settled") % 32))
        .withColumn("_reason_at", F.when(F.col("_given_at") == F.expr("_settled div 32"), F.col("_given_at")))
        .withColumn("processing_ms", F.when(F.col("outcome").isin(*_CONFIRMED), held))
        .withColumn("bucket", shape.bucket())
        .drop("_settled", "_given_at")
    )


def _settles() -> Column:
    late = shape.leaves(R) & F.col("consumer_code").isNotNull() & ~shape.enters(FETCHED)
    return shape.leaves(FETCHED) | late


def _gives_reason() -> Column:
    return _settles() & F.col("reason").isNotNull()


_HELD = "(cast(s.settled_at as bigint) - cast(t.fetched_at as bigint)) / 1000"

RECEIPTS_TABLE = shape.Folded(
    name="receipts",
    schema=SCHEMA,
    key=_KEY,
    numbers=numbers,
    texts=(
        shape.Text(("reason",), "_reason_at", _gives_reason),
        # Its own F says it too, so that a slice need not have the message's L.
        shape.Text(("message_id",), "offset", shape.logged, sole=True),
    ),
    names=(shape.CONSUMER, shape.PLACE),
    update={
        "settled_at": shape.newest("settled_at"),
        "outcome": shape.newest("outcome"),
        "reason": "case when s.outcome is null then t.reason else s.reason end",
        "processing_ms": f"case when s.outcome in {_CONFIRMED} then {_HELD} else t.processing_ms end",
    },
)
