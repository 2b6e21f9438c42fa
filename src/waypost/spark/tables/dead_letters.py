"""dead_letters: deliveries that were given up (E) or called invalid (I), with what their messages were about."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...arrow import MESSAGES, MOMENT
from ...delivery import DEAD
from . import shape

_ABOUT = ("topics", "object", "key", "producer")
SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("slot", pa.int32()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("consumer", pa.string()),
        ("since", MOMENT),
        ("at", MOMENT),
        ("attempt", pa.int32()),
        *(MESSAGES.field(name) for name in _ABOUT),
        ("destination_code", pa.int32()),
    ]
)


def compute(deliveries: DataFrame, messages: DataFrame) -> DataFrame:
    dead = deliveries.where(F.col("state").isin(*(state.name for state in DEAD)))
    return (
        dead.withColumn("since", F.col("changed_at"))
        .join(messages.select("sequence", *_ABOUT), "sequence", "left")
        .select(*SCHEMA.names)
    )


DEAD_LETTERS_TABLE = shape.Computed(
    name="dead_letters", schema=SCHEMA, sources=("deliveries", "messages"), compute=compute
)
