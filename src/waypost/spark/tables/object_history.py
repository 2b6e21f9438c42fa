"""object_history: what was said of each business thing, and from when until when it held.

One row a message that names an object and a key and is not unchanged. Its body lies in `payloads`, under the same sequence.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ...arrow import MESSAGES, MOMENT
from ...delivery import U
from . import shape

_AS_IN_MESSAGES = ("hash", "size", "producer", "mime_type", "topics", "timestamp", "sent")
SCHEMA = pa.schema(
    [
        ("object", pa.string()),
        ("key", pa.string()),
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("state", pa.string()),
        ("valid_from", MOMENT),
        ("valid_to", MOMENT),
        *(MESSAGES.field(name) for name in _AS_IN_MESSAGES),
    ]
)


def compute(messages: DataFrame) -> DataFrame:
    thing = Window.partitionBy("object", "key").orderBy("sequence")
    return (
        messages.where(F.col("object").isNotNull() & F.col("key").isNotNull() & (F.col("state") != U.name))
        .withColumn("valid_from", F.col("at"))
        .withColumn("valid_to", F.lead("at").over(thing))
        .select(*SCHEMA.names)
    )


OBJECT_HISTORY_TABLE = shape.Computed(
    name="object_history", schema=SCHEMA, sources=("messages",), compute=compute
)
