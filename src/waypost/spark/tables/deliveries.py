"""deliveries: one row a delivery, that is a message on its way to one queue or channel, in one slot, as it is now.

A slot whose routing failed, and that was sent back to be routed again (E to L), is no delivery any more: its row stays in L and
is not shown, until it should be routed there again.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...arrow import DELIVERIES, MOMENT
from ...delivery import F as FETCHED
from ...delivery import I, L, N, Q, R, S
from . import shape

_KEY = ("sequence", "destination_code", "slot")
SCHEMA = pa.schema(
    [
        *(field for field in DELIVERIES if field.name not in ("due_at", "named", "destination_code")),
        ("queued_at", MOMENT),
        ("first_fetched_at", MOMENT),
        ("confirmed_at", MOMENT),
        ("wait_ms", pa.int64()),
        ("processing_ms", pa.int64()),
        ("retries", pa.int32()),
        ("last_offset", pa.int64()),
        DELIVERIES.field("destination_code"),
        ("bucket", pa.int64()),
    ]
)


def numbers(events: DataFrame) -> DataFrame:
    changes = (
        events.where(F.col("slot").isNotNull())
        .groupBy(*_KEY)
        .agg(
            shape.last_state().alias("_last"),
            F.max("at").alias("changed_at"),
            F.max("attempt").alias("attempt"),
            shape.last_consumer().alias("consumer_code"),
            F.max(shape.when(_gives_reason(), "offset")).alias("_given_at"),
            F.min(shape.when(shape.enters(Q), "at")).alias("queued_at"),
            F.min(shape.when(shape.enters(FETCHED), "at")).alias("first_fetched_at"),
            F.max(shape.when(shape.enters(S), "at")).alias("confirmed_at"),
            F.sum(shape.when(shape.leaves(Q), "duration_ms")).alias("wait_ms"),
            F.sum(shape.when(shape.leaves(FETCHED) & shape.enters(S, I, N), "duration_ms")).alias(
                "processing_ms"
            ),
            shape.count(shape.enters(R)).cast("int").alias("retries"),
            F.max(shape.leaves(L)).alias(shape.BEGUN),
        )
    )
    return (
        changes.withColumn("state", shape.letter(F.col("_last") % 32))
        .withColumn("last_offset", F.expr("_last div 32"))
        # The last reason counts only if the last step gave it.
        .withColumn("_reason_at", F.when(F.col("_given_at") == F.col("last_offset"), F.col("_given_at")))
        .withColumn("bucket", shape.bucket())
        .drop("_last", "_given_at")
    )


def _gives_reason() -> Column:
    return F.col("slot").isNotNull() & F.col("reason").isNotNull()


DELIVERIES_TABLE = shape.Folded(
    name="deliveries",
    schema=SCHEMA,
    key=_KEY,
    numbers=numbers,
    texts=(
        shape.Text(("reason",), "_reason_at", _gives_reason),
        shape.Text(("message_id", "at"), "sequence", shape.logged, sole=True),
    ),
    names=(shape.CONSUMER, shape.PLACE),
    update={
        "state": "s.state",
        "attempt": "greatest(t.attempt, s.attempt)",
        "consumer": shape.newest("consumer"),
        "reason": "s.reason",
        "changed_at": "s.changed_at",
        "queued_at": shape.first("queued_at"),
        "first_fetched_at": shape.first("first_fetched_at"),
        "confirmed_at": shape.newest("confirmed_at"),
        "wait_ms": shape.added("wait_ms"),
        "processing_ms": shape.added("processing_ms"),
        "retries": "t.retries + s.retries",
        "last_offset": "s.last_offset",
    },
    gone=f"state = '{L.name}'",
    logged=("message_id", "at"),
)
