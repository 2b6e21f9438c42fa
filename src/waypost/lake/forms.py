"""Events on their way out of the child: chosen, and as Arrow messages or as lines of JSON.

    Table ──▶ Choice(queue, channel, topic) ──▶ ArrowStream: IPC messages, buffers packed by zstd      json_lines: as GET /log has them

A line is the same, byte for byte, as the one that the broker makes of the same event (`waypost.wire.event_json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import RequestInvalid
from ..instants import instant_text
from ..wire import body_json

#: A tenth of the bytes for a third of a microsecond an event: it is the broker's loop that they go through. Every reader of Arrow
#: knows zstd.
_PACKED = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
#: what a filter looks at, beside what is asked for
_LOOKED_AT = {"queue": ("queue",), "channel": ("channel",), "topic": ("topics", "from_state")}

_instant = lru_cache(maxsize=4_096)(instant_text)
_encode = msgspec.json.Encoder()


class Choice(msgspec.Struct, frozen=True):
    """Of the events in a range: all, or those of one queue, channel or topic."""

    queue: str | None = None
    channel: str | None = None
    topic: str | None = None

    @property
    def is_all(self) -> bool:
        return self == Choice()

    def columns(self, wanted: Sequence[str]) -> list[str]:
        """Those to be read."""
        looked_at = (
            column
            for field, columns in _LOOKED_AT.items()
            if getattr(self, field) is not None
            for column in columns
        )
        return list(dict.fromkeys([*wanted, *looked_at]))

    def of(self, events: pa.Table) -> pa.Table:
        if self.queue is not None:
            return events.filter(pc.equal(events["queue"], self.queue))
        if self.channel is not None:
            return events.filter(pc.equal(events["channel"], self.channel))
        if self.topic is not None:
            return _with_topic(events, self.topic)
        return events


def _with_topic(events: pa.Table, pattern: str) -> pa.Table:
    """L events with a topic that matches; the E → L of a routing that is tried again is none."""
    logged = events.filter(pc.is_null(events["from_state"])).combine_chunks()
    topics = logged["topics"].combine_chunks()
    flat, rows = pc.list_flatten(topics), pc.list_parent_indices(topics)
    matches = pc.starts_with(flat, pattern[:-1]) if pattern.endswith("*") else pc.equal(flat, pattern)
    return logged.take(pc.unique(rows.filter(matches)))


def check_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """All of them where none are named."""
    if columns is None:
        return list(schema.names)
    for column in columns:
        if column not in schema.names:
            raise RequestInvalid(
                f"no column {column[:60]!r}", f"there are {', '.join(schema.names)}", "COLUMN_UNKNOWN"
            )
    if len(set(columns)) != len(columns):
        raise RequestInvalid("a column is named twice", "name each once", "COLUMN_UNKNOWN")
    return list(columns)


def projected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(column) for column in columns])


class ArrowStream:
    """An Arrow stream as it comes into being. Its last bytes are its end mark: a stream that lacks it is not whole."""

    def __init__(self, schema: pa.Schema) -> None:
        self._written = BytesIO()
        self._writer = pa.ipc.new_stream(self._written, schema, options=_PACKED)

    def add(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch)
        return self.taken()

    def end(self) -> bytes:
        self._writer.close()
        return self.taken()

    def taken(self) -> bytes:
        """What was written since."""
        written = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return written


def json_lines(events: pa.Table, bodies: Mapping[int, bytes | None] | None = None) -> bytes:
    """All columns of EVENTS but the codes. `bodies` by sequence, where they are wanted."""
    return _encode.encode_lines([_line(row, bodies) for row in _rows(events)])


#: of an event, the columns in the order of its JSON form
_EVERY = (
    ("offset", "offset"),
    ("at", "at"),
    ("message_id", "messageId"),
    ("sequence", "sequence"),
    ("queue", "queue"),
    ("channel", "channel"),
    ("slot", "slot"),
    ("from_state", "fromState"),
    ("to_state", "toState"),
    ("attempt", "attempt"),
    ("consumer", "consumer"),
    ("reason", "reason"),
    ("duration_ms", "durationMs"),
)
_OF_L = (
    ("topics", "topics"),
    ("object", "object"),
    ("key", "key"),
    ("mime_type", "mimeType"),
    ("producer", "producer"),
    ("hash", "hash"),
    ("size", "size"),
    ("timestamp", "timestamp"),
    ("sent", "sent"),
)
_MOMENTS = {"at", "timestamp", "sent"}
JSON_COLUMNS = [column for column, _ in (*_EVERY, *_OF_L)] + ["same_as"]


def _rows(events: pa.Table) -> list[tuple[Any, ...]]:
    columns = []
    for name in JSON_COLUMNS:
        column = events[name]
        values = column.cast(pa.int64()).to_pylist() if name in _MOMENTS else column.to_pylist()
        if name in _MOMENTS:
            values = [None if value is None else _instant(value) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


_EVERY_NAMES = [name for _, name in _EVERY]
_OF_L_NAMES = [name for _, name in _OF_L]
_FROM_STATE = _EVERY_NAMES.index("fromState")
_SEQUENCE = _EVERY_NAMES.index("sequence")


def _line(row: tuple[Any, ...], bodies: Mapping[int, bytes | None] | None) -> dict[str, Any]:
    line = dict(zip(_EVERY_NAMES, row, strict=False))
    if row[_FROM_STATE] is None:
        line |= zip(_OF_L_NAMES, row[len(_EVERY_NAMES) :], strict=False)
        if bodies is not None:
            body = bodies.get(row[_SEQUENCE])
            line |= {"body": None} if body is None else body_json(body)
    if row[-1] is not None:
        line["sameAs"] = row[-1]
    return line
