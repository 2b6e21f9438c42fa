"""What Waypost does with Spark, on a handful of rows: so that `waypost spark warm` sees the classes it takes.

Nothing here is looked at; it only has to touch what reading, folding and streaming touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..arrow import EVENTS
from ..delivery import F as FETCHED
from ..delivery import L, Q, S
from .session import UNCOMPILED
from .tables import KEPT, TABLES, of_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200
#: what each message goes through
_STEPS = (L, Q, FETCHED, S)


def rehearse(spark: SparkSession, folder: Path) -> None:
    spark.dataSource.register(Rehearsal)
    live = spark.read.format("waypost-rehearsal").load()
    file = str(folder / "events")
    live.coalesce(1).write.parquet(file)
    sealed = spark.read.schema(live.schema).parquet(file)
    events = sealed.where("offset between 10 and 190").unionByName(live.where("offset < 10"))
    for name in TABLES:
        of_events(name, events).toArrow()
    for setting, value in UNCOMPILED.items():
        spark.conf.set(setting, value)
    for name in KEPT:
        of_events(name, events.coalesce(1)).toArrow()
    for setting in UNCOMPILED:
        spark.conf.unset(setting)
    stream = spark.readStream.format("waypost-rehearsal").load()
    query = (
        stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(_fold)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _fold(batch: DataFrame, _: int) -> None:
    of_events("messages", batch).toArrow()


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
    sequence, step = divmod(offset, len(_STEPS))
    logged = step == 0
    return {
        "offset": offset,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=offset),
        "message_id": f"m{sequence}",
        "sequence": sequence * len(_STEPS),
        "queue": None if logged else f"q{sequence % 3}",
        "slot": None if logged else 0,
        "from_state": None if logged else _STEPS[step - 1].name,
        "to_state": _STEPS[step].name,
        "attempt": None if logged else step // 2,
        "consumer": "somebody" if _STEPS[step] in (FETCHED, S) else None,
        "duration_ms": None if logged else offset % 17,
        "topics": [f"q{sequence % 3}.made"] if logged else None,
        "object": f"q{sequence % 3}" if logged else None,
        "key": f"k{sequence % 5}" if logged else None,
        "from_code": None if logged else int(_STEPS[step - 1]),
        "to_code": int(_STEPS[step]),
        "destination_code": None if logged else sequence % 3,
    }
