"""Rows on their way to the broker: which columns they have, and chunks of them that a request can carry.

Columns are checked before any row is read; what they hold is checked by the broker, row by row. This file knows no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegralType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from .errors import SourceError
from .options import Options

#: what one upload can carry, and what is aimed at
MOST_BYTES = 8 << 20
AIM_BYTES = 4 << 20
MOST_ROWS = 50_000

_SPANS = (NumericType, StringType, DayTimeIntervalType)
#: by column: its types, and how people say them
_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": ((StringType, BinaryType), "string or binary"),
    "topics": ((StringType, ArrayType), "array<string>, or string"),
    "object": ((StringType,), "string"),
    "key": ((StringType,), "string"),
    "mime_type": ((StringType,), "string"),
    "timestamp": ((TimestampType, TimestampNTZType, StringType), "timestamp or string"),
    "delay": (_SPANS, "seconds (a number), string or interval"),
    "ttl": (_SPANS, "seconds (a number), string or interval"),
    "priority": ((IntegralType,), "int"),
}
COLUMNS = tuple(_COLUMNS)


def check_rows(schema: StructType, options: Options) -> None:
    """Whether rows of this kind can be messages; `options` may say for all of them what they do not say themselves."""
    names = [field.name for field in schema]
    for field in schema:
        if field.name not in _COLUMNS:
            raise SourceError(f"unknown column {field.name!r}; the columns are: {', '.join(COLUMNS)}")
        types, said = _COLUMNS[field.name]
        given = field.dataType
        of_texts = not isinstance(given, ArrayType) or isinstance(given.elementType, StringType)
        if not isinstance(given, (*types, NullType)) or not of_texts:
            raise SourceError(f"column {field.name} is {given.simpleString()}, not {said}")
        if names.count(field.name) > 1:
            raise SourceError(f"column {field.name} is there twice")
    if "value" not in names:
        raise SourceError("no column value: it is what the message carries; .selectExpr('… as value', …)")
    defaults = {"topics": options.topics, "object": options.object}
    for name, default in defaults.items():
        if default is not None and name in names:
            raise SourceError(f"both a column and an option {name}: say it once")
    if not any(name in names or default is not None for name, default in defaults.items()):
        raise SourceError("neither topics nor object: a column or an option must say where the messages go")


def with_defaults(batch: pa.RecordBatch, options: Options) -> pa.RecordBatch:
    for name, value in (("topics", options.topics), ("object", options.object)):
        if value is not None:
            batch = batch.append_column(name, pa.repeat(pa.scalar(value), batch.num_rows))
    return batch


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Arrow streams that fit into an upload, in order; each with the number of its rows."""
    some: list[pa.RecordBatch] = []
    size = rows = done = 0
    for batch in batches:
        for piece in _pieces(batch):
            if some and (size + piece.nbytes > AIM_BYTES or rows + piece.num_rows > MOST_ROWS):
                yield from _streams(some, done)
                done += rows
                some, size, rows = [], 0, 0
            some.append(piece)
            size += piece.nbytes
            rows += piece.num_rows
    if some:
        yield from _streams(some, done)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices that are not too large, as far as their average tells."""
    if not batch.num_rows:
        return
    average = batch.nbytes / batch.num_rows
    step = max(1, min(MOST_ROWS, int(AIM_BYTES / max(average, 1))))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _streams(batches: list[pa.RecordBatch], before: int) -> Iterator[tuple[int, bytes]]:
    """One stream; where it became too large, because some rows are larger than others, its halves."""
    written = _written(batches)
    rows = sum(batch.num_rows for batch in batches)
    if len(written) <= MOST_BYTES:
        yield rows, written
        return
    if rows == 1:
        raise SourceError(f"row {before + 1}: it has {len(written)} bytes; a row of a sink has at most 8 MiB")
    whole = pa.Table.from_batches(batches).combine_chunks()
    half = rows // 2
    yield from _streams(whole.slice(0, half).to_batches(), before)
    yield from _streams(whole.slice(half).to_batches(), before + half)


def _written(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
