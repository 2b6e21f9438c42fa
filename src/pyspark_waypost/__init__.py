"""Waypost for Spark, its log and its messages: `format("waypost")`, found by Spark itself.

    spark.read.format("waypost").load()                                every event up to now
    spark.read.format("waypost").option("table", "messages").load()    the store's own rows, as they are now
    spark.readStream.format("waypost").option("url", "http://broker:8080").load()
    rows.write.format("waypost").mode("append").save()                 rows become messages, all or none

Runs on the standard library, pyarrow and pyspark alone, and travels with its tasks: executors need not have it.

    options   what can be said          schemas   which columns there are
    broker    the log over HTTP         spans     ranges for tasks             readers   reading, in batches and as a stream
    sending   batches over HTTP         rows      columns and chunks           writers   writing, likewise
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .broker import PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS, Broker
from .errors import SourceError, Unreachable
from .options import parse
from .readers import Reader, StreamReader
from .schemas import SCHEMAS
from .writers import StreamWriter, Writer

__all__ = ["DefaultSource", "SourceError", "Unreachable"]

# Spark imports sources by their name on executors, where only the driver may have this package: so send the code along.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class DefaultSource(DataSource):
    """Made once for each load(), save() and start(): options are checked and the head is asked then."""

    @classmethod
    def name(cls) -> str:
        return "waypost"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.said = parse(options)
        self.broker = Broker(self.said.url, self.said.token)
        self.log = self.broker.bounds(PATIENCE_SECONDS if self.said.checkpointed else SHORT_PATIENCE_SECONDS)

    def schema(self) -> StructType:
        return SCHEMAS[self.said.table]

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.said, self.broker, self.log, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.said, self.broker, self.log, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_append(overwrite)
        return Writer(self.said, self.broker, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _check_append(overwrite)
        return StreamWriter(self.said, self.broker, schema)


def _check_append(overwrite: bool) -> None:
    if overwrite:
        raise SourceError("what is published stays published: .mode('append'), .outputMode('append')")
