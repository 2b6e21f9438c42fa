"""What Waypost does with Spark, on a handful of rows: so that `waypost spark warm` sees the classes it takes.

Nothing here is looked at; it only has to touch what reading, folding and streaming touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from ..arrow import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200


def rehearse(spark: SparkSession, folder: Path) -> None:
    spark.dataSource.register(Rehearsal)
    live = spark.read.format("waypost-rehearsal").load()
    file = str(folder / "events")
    live.coalesce(1).write.parquet(file)
    sealed = spark.read.schema(from_arrow_schema(EVENTS)).parquet(file)
    _ask(sealed.where("offset between 10 and 190").unionByName(live))
    stream = spark.readStream.format("waypost-rehearsal").load()
    query = (
        stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(lambda batch, _: _ask(batch))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _ask(events: DataFrame) -> None:
    events.persist()
    folded = events.groupBy("sequence").agg(
        F.max(F.expr("offset * 32 + to_code")).alias("last"),
        F.min("at").alias("at"),
        F.count_if(F.col("to_state") == "F").alias("fetched"),
        F.max_by("reason", "offset").alias("reason"),
    )
    folded.join(events.where("to_state = 'L'"), "sequence").toArrow()
    minutes = events.groupBy(F.date_trunc("minute", "at").alias("minute"), "queue").agg(
        F.count("*").alias("events"),
        F.percentile("duration_ms", F.array(F.lit(0.5), F.lit(0.95))).alias("waits"),
    )
    in_order = Window.partitionBy("object", "key").orderBy("offset")
    minutes.orderBy("minute").collect()
    events.withColumn("next", F.lead("at").over(in_order)).select("object", "next").distinct().toArrow()
    events.select(F.explode("topics").alias("topic")).groupBy("topic").count().collect()
    events.unpersist()


class Rehearsal(DataSource):
    """A made-up log: messages that are logged, queued, fetched and done."""

    @classmethod
    def name(cls) -> str:
        return "waypost-rehearsal"

    def schema(self) -> StructType:
        made = from_arrow_schema(EVENTS)
        assert isinstance(made, StructType)
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(schema)


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType) -> None:
        self.columns = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        lo = partition.value * (ROWS // 2)
        yield pa.RecordBatch.from_pylist(
            [_event(offset) for offset in range(lo, lo + ROWS // 2)], self.columns
        )


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType) -> None:
        self.batch = _Reader(schema)

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        return {"offset": ROWS}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return self.batch.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.batch.read(partition)


def _event(offset: int) -> dict[str, Any]:
    sequence, step = divmod(offset, 4)
    return {
        "offset": offset,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=offset),
        "message_id": f"m{sequence}",
        "sequence": sequence * 4,
        "queue": None if step == 0 else f"q{sequence % 3}",
        "slot": 0,
        "to_state": "LQFS"[step],
        "duration_ms": offset % 17,
        "topics": [f"q{sequence % 3}.made"] if step == 0 else None,
        "object": f"q{sequence % 3}",
        "key": f"k{sequence % 5}",
        "to_code": step,
    }
