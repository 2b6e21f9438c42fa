"""Readers of the log and of the store's rows, in batches and as a stream.

    load()                       the head is asked once: that is the read's snapshot
    partitions()                 disjoint ranges, which can be read in any order, anywhere, and again
    read(range)                  Arrow batches of exactly the columns that are wanted

There is no pushFilters, on purpose: in Spark 4.3 it gives wrong rows when a DataFrame is used twice. Options and
.schema(…) narrow a read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .broker import Bounds, Broker
from .errors import SourceError
from .options import Options
from .schemas import check_columns
from .spans import Span, split

#: what is read by offsets of events; the other tables by the sequences of messages
OF_THE_LOG = ("message_events", "ranges")


def start_of(options: Options, broker: Broker, log: Bounds) -> int:
    """The first offset that the options mean."""
    start = options.start
    if isinstance(start, datetime):
        return broker.offset_at(start)
    if start is None:
        # Messages can be older than the oldest event: dead letters are kept, and so is what waits.
        start = log.oldest if options.table in OF_THE_LOG else 1
    start = max(1, start)
    if start > log.head + 1:
        raise SourceError(
            f"from {start} is beyond the head, which is {log.head}; {log.head + 1} is what comes next"
        )
    check_kept(options.table, start, log.oldest)
    return start


def end_of(options: Options, broker: Broker, log: Bounds) -> int:
    """The last offset that the options mean: never one that came after load()."""
    until = options.until
    if isinstance(until, datetime):
        return min(log.head, broker.last_offset_until(until))
    if until is not None and until > log.head:
        raise SourceError(f"until {until} is beyond the head, which is {log.head}")
    return log.head if until is None else until


def check_kept(table: str, start: int, oldest: int) -> None:
    if start < oldest and table in OF_THE_LOG:
        raise SourceError(
            f"offset {start} is not kept any more, the log begins at {oldest}: read from there; a stream that was "
            "further back than that begins anew with another checkpoint"
        )


class _Rows:
    """What batch and stream share: a range, read."""

    def __init__(self, options: Options, broker: Broker, schema: StructType) -> None:
        self.options = options
        self.broker = broker
        self.columns = check_columns(options.table, schema)
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def split(self, lo: int, hi: int) -> list[InputPartition]:
        return [*split(lo, hi, self.options.partitions, os.cpu_count() or 1)]

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        if span.size == 0:
            return
        options = self.options
        if options.table == "message_events":
            batches = self.broker.events(span.lo, span.hi, self.columns, options.filter)
        else:
            batches = self.broker.rows(options.table, span.lo, span.hi, self.columns)
        for batch in batches:
            # Spark compares order, types and nullability with its own schema, and accepts nothing else.
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in self.columns], schema=self.arrow)


class Reader(DataSourceReader):
    def __init__(self, options: Options, broker: Broker, log: Bounds, schema: StructType) -> None:
        options.check_batch()
        self.rows = _Rows(options, broker, schema)
        self.start, self.end = start_of(options, broker, log), end_of(options, broker, log)

    def partitions(self) -> list[InputPartition]:
        return self.rows.split(self.start, max(self.end, self.start - 1))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows.read(
            cast(Span, partition)
        )  # of a class that travelled, so it is no instance of ours


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A position is {"offset": the last one read}."""

    def __init__(self, options: Options, broker: Broker, log: Bounds, schema: StructType) -> None:
        options.check_stream()
        self.rows = _Rows(options, broker, schema)
        self.options = options
        self.broker = broker
        self.log = log
        #: where an AvailableNow query ends
        self.target: int | None = None
        #: what the spectator was last told
        self.told: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"offset": start_of(self.options, self.broker, self.log) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.broker.bounds().head

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        read = start["offset"]
        oldest, head = self.broker.bounds()
        if read > head:
            raise SourceError(
                f"the stream has read up to {read}, but the log ends at {head}: it is another log"
            )
        check_kept(self.options.table, read + 1, oldest)
        # Spark asks for a next batch when the last one is in its checkpoint; commit() comes one batch later, if at all.
        self._tell(read)
        end = head if self.target is None else min(head, self.target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, read + limit.max_rows)
        return {"offset": max(end, read)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"offset": self.broker.bounds().head}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        lo, hi = start["offset"] + 1, end["offset"]
        if lo > hi:
            return []
        return [Span(lo, hi)] if self.options.table == "ranges" else self.rows.split(lo, hi)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        span = cast(Span, partition)
        if self.options.table == "ranges":
            values = {"from": span.lo, "until": span.hi}
            arrays = [pa.array([values[name]], pa.int64()) for name in self.rows.columns]
            return iter([pa.RecordBatch.from_arrays(arrays, schema=self.rows.arrow)])
        return self.rows.read(span)

    def commit(self, end: dict[str, int]) -> None:
        self._tell(end["offset"])

    def _tell(self, read: int) -> None:
        if self.options.spectator is not None and read != self.told:
            self.broker.move_spectator(self.options.spectator, read)
            self.told = read
