"""Writers: rows become messages, all of a batch or none, and once.

    task: write(rows) ─▶ chunks ─▶ upload, upload …   kept by the broker, seen by nobody
    driver: commit ─▶ one small request names the uploads ─▶ the broker lets their rows enter ─▶ wait until they are in

A stream's batch is named by the query's id, which lies in its checkpoint, and Spark's number of the batch: one that is written again changes
nothing. What a failed write has uploaded is swept by the broker, after an hour.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from .broker import Broker
from .errors import SourceError
from .options import Options
from .rows import check_rows, chunks, with_defaults
from .sending import Upload, accept, upload, wait

#: set by Spark in the tasks of a streaming query
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What a task did."""

    partition: int
    query: str | None
    uploads: list[Upload]


class Uploading:
    """What both kinds of writers do."""

    def __init__(self, options: Options, broker: Broker, schema: StructType) -> None:
        options.check_write()
        check_rows(schema, options)
        self.options, self.broker = options, broker

    def uploaded(self, batches: Iterable[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        uploads: list[Upload] = []
        first = 1
        try:
            for rows, stream in chunks(with_defaults(batch, self.options) for batch in batches):
                uploads.append(upload(self.broker, stream, first))
                first += rows
        except SourceError as error:
            raise type(error)(f"partition {partition}: {error}") from None
        return Written(partition, query, uploads)

    def committed(self, query: str, batch: int, written: Sequence[Written]) -> None:
        uploads = [one for task in sorted(written, key=_partition) for one in task.uploads]
        if not uploads:
            return
        accepted = accept(self.broker, query, batch, uploads)
        if self.options.wait_seconds:
            wait(self.broker, accepted, self.options.wait_seconds)


class Writer(Uploading, DataSourceArrowWriter):
    def __init__(self, options: Options, broker: Broker, schema: StructType) -> None:
        super().__init__(options, broker, schema)
        self.query = options.query or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.uploaded(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.committed(self.query, 0, _given(messages))


class StreamWriter(Uploading, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.uploaded(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _given(messages)
        query = self.options.query or next((one.query for one in written if one.query), None)
        if query is None and any(one.uploads for one in written):
            raise SourceError("Spark does not say which query this is; .option('query', …) names it")
        self.committed(query or "", batchId, written)


def _given(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Those of the tasks; they come from where this class has another identity."""
    return [message for message in messages if message is not None]  # type: ignore[misc]


def _partition(written: Written) -> int:
    return written.partition
