"""Messages as rows of an Arrow stream: the columns, and every row checked as a line of JSON would be.

    value (string or binary) ┬ topics (list of strings, or a string with commas) ┬ key, mime_type, timestamp, delay, ttl, priority
                             └ object ────────────────────────────────────────────┘

A row that is wrong is named by its number. Compressed and dictionary-encoded streams are refused, because what they hold has no bound.
Needs the `lake` extra; imported only where a request brings Arrow.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from waypost.batches import PLAIN, SLICE_ROWS, Kind, Packing, Rows
from waypost.commands import Publish
from waypost.errors import RequestInvalid
from waypost.instants import parse_instant, parse_span
from waypost.message import payload_hash
from waypost.wire import TooManyMessages, alike, check_key, check_moment, check_priority

#: makes Python values of a column
_Reader = Callable[[pa.Array], list[Any]]
#: what a column is, in words; for each type that it may have, how it is read
_Kind = tuple[str, list[tuple[Callable[[Any], bool], _Reader]]]

_FIRST_MOMENT = parse_instant("0001-01-01T00:00:00Z")
_LAST_MOMENT = parse_instant("9999-12-31T23:59:59.999999Z")


class RowInvalid(RequestInvalid):
    """One row of many; its number is in the text, its code is the reason's."""

    status = 422

    def __init__(self, number: int, wrong: RequestInvalid) -> None:
        super().__init__(f"row {number}: {wrong.detail}", wrong.hint, wrong.code)
        self.title = wrong.title


def read_rows(stream: bytes, most: int) -> list[Publish]:
    """At most so many. Raises RequestInvalid, RowInvalid, TooManyMessages."""
    return [message for rows in _slices(stream, most, 1) for message in rows.messages()]


def pack_rows(stream: bytes, most: int, first: int) -> Packing:
    """The same, packed; `first` is the number of the first row."""
    packing = Packing()
    for rows in _slices(stream, most, first):
        time.sleep(0)  # the event loop has work too
        packing.add(rows)
        time.sleep(0)
    return packing


def _slices(stream: bytes, most: int, first: int) -> Iterator[Rows]:
    try:
        _check_plain(stream)
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            columns = _columns(reader.schema)
            batches = []
            rows = 0
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
                rows += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        said = " ".join(str(error).split())[:200]
        raise RequestInvalid(f"not an Arrow stream: {said}", _HINT, "ARROW_INVALID") from None
    if not rows:
        raise RequestInvalid("no row", "send a row for each message")
    if rows > most:
        raise TooManyMessages(f"{rows} rows in one request", f"send at most {most} at once")
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            some = batch.slice(start, SLICE_ROWS)
            yield _checked(some, columns, first)
            first += some.num_rows


def _checked(batch: pa.RecordBatch, columns: dict[str, _Reader], first: int) -> Rows:
    read: dict[str, list[Any]] = {}
    for name, reader in columns.items():
        try:
            read[name] = reader(batch.column(name))
        except pa.ArrowException as error:
            raise RequestInvalid(f"column {name}: {str(error)[:200]}", _HINT, "COLUMN_INVALID") from None
    try:
        return _rows(**read)
    except RequestInvalid:
        for number in range(batch.num_rows):
            try:
                _rows(**{name: column[number : number + 1] for name, column in read.items()})
            except RequestInvalid as wrong:
                raise RowInvalid(first + number, wrong) from None
        raise


def _rows(
    value: list[bytes | None],
    topics: list[tuple[str, ...] | None] | None = None,
    object: list[str | None] | None = None,
    key: list[str | None] | None = None,
    mime_type: list[str | None] | None = None,
    timestamp: list[Any] | None = None,
    delay: list[Any] | None = None,
    ttl: list[Any] | None = None,
    priority: list[int | None] | None = None,
) -> Rows:
    """Raises RequestInvalid for the first thing that is wrong, in whichever row. What several rows say alike is checked once."""
    bodies = [body for body in value if body is not None]
    if len(bodies) < len(value):
        raise RequestInvalid("value is null", "a message has a value; an empty one is not null", "VALUE_NULL")
    nothing = [None] * len(value)
    said = list(zip(topics or nothing, object or nothing, mime_type or nothing, strict=True))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(said))}
    return Rows(
        kinds=[_kind(*kind) for kind in numbers],
        kind=None if len(numbers) == 1 else [numbers[kind] for kind in said],
        bodies=bodies,
        hashes=list(map(payload_hash, bodies)),
        keys=_said(key, check_key),
        timestamps=_said(timestamp, _moment),
        delays_us=_said(delay, partial(parse_span, what="delay"), PLAIN.delay_us),
        ttls_us=_said(ttl, partial(parse_span, what="ttl"), PLAIN.ttl_us),
        priorities=_said(priority, check_priority, PLAIN.priority),
    )


def _kind(topics: tuple[str, ...] | None, object: str | None, mime_type: str | None) -> Kind:
    if not topics and object is None:
        raise RequestInvalid("neither topics nor object", "one of them says where it goes", "TOPIC_INVALID")
    envelope = alike(topics or (), object, mime_type, None)
    return envelope.topics, envelope.object, envelope.mime_type


def _said(column: list[Any] | None, check: Callable[[Any], Any], otherwise: Any = None) -> list[Any] | None:
    """The column checked, `otherwise` for each null; None where all are."""
    distinct = set(column or ())
    if distinct <= {None}:
        return None
    checked = {value: otherwise if value is None else check(value) for value in distinct}
    return [checked[value] for value in column or ()]


def _moment(value: int | str) -> int:
    if isinstance(value, str):
        return check_moment(value, "timestamp")
    if not _FIRST_MOMENT <= value <= _LAST_MOMENT:
        raise RequestInvalid(
            f"timestamp is {value} microseconds since 1970",
            "an instant lies in the years 1 to 9999",
            "INSTANT_INVALID",
        )
    return value


# ── columns ─────────────────────────────────────────────────────────────────────────────────────


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _bytes(column: pa.Array) -> list[Any]:
    large = column.type in (pa.large_string(), pa.large_binary())
    return _plain(column.cast(pa.large_binary() if large else pa.binary()))


def _list(column: pa.Array) -> list[Any]:
    return [None if topics is None else _without_null(topics) for topics in column.to_pylist()]


def _without_null(topics: list[str | None]) -> tuple[str, ...]:
    return tuple("" if topic is None else topic for topic in topics)


def _commas(column: pa.Array) -> list[Any]:
    """`a.x, a.y`, as in a header."""
    texts = column.to_pylist()
    read = {
        text: None if text is None else tuple(map(str.strip, text.split(","))) if text else ()
        for text in set(texts)
    }
    return [read[text] for text in texts]


def _microseconds(column: pa.Array) -> list[Any]:
    unit = pa.duration("us") if pa.types.is_duration(column.type) else pa.timestamp("us", column.type.tz)
    finer = column.type.unit == "ns"  # than what is kept
    return _plain(column.cast(unit, safe=not finer).cast(pa.int64()))


def _seconds(column: pa.Array) -> list[Any]:
    return [None if span is None else span / 1_000_000 for span in _microseconds(column)]


def _floats(column: pa.Array) -> list[Any]:
    return [None if number is None else float(number) for number in column.to_pylist()]


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _is_list(type: pa.DataType) -> bool:
    return (pa.types.is_list(type) or pa.types.is_large_list(type)) and _is_text(type.value_type)


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


_TEXT: _Kind = ("a string", [(_is_text, _plain)])
_SPAN: _Kind = (
    "seconds (a number), a string such as 5m, or a duration",
    [
        (_is_number, _plain),
        (pa.types.is_decimal, _floats),
        (_is_text, _plain),
        (pa.types.is_duration, _seconds),
    ],
)
_COLUMNS: dict[str, _Kind] = {
    "value": ("a string or binary", [(_is_text, _bytes), (_is_bytes, _bytes)]),
    "topics": ("a list of strings, or a string", [(_is_list, _list), (_is_text, _commas)]),
    "object": _TEXT,
    "key": _TEXT,
    "mime_type": _TEXT,
    "timestamp": ("a timestamp or a string", [(pa.types.is_timestamp, _microseconds), (_is_text, _plain)]),
    "delay": _SPAN,
    "ttl": _SPAN,
    "priority": ("a whole number", [(pa.types.is_integer, _plain)]),
}
_HINT = "columns: " + ", ".join(f"{name} ({what})" for name, (what, _) in _COLUMNS.items())


def _columns(schema: pa.Schema) -> dict[str, _Reader]:
    """How each is read. Raises RequestInvalid."""
    found: dict[str, _Reader] = {}
    for field in schema:
        name = field.name
        if name not in _COLUMNS or name in found:
            raise RequestInvalid(f"unknown column {name[:60]!r}, or there twice", _HINT, "COLUMN_INVALID")
        what, readers = _COLUMNS[name]
        if pa.types.is_null(field.type):
            found[name] = _plain
            continue
        reader = next((read for fits, read in readers if fits(field.type)), None)
        if reader is None:
            raise RequestInvalid(
                f"column {name} is {str(field.type)[:60]}, not {what}", _HINT, "COLUMN_INVALID"
            )
        found[name] = reader
    if "value" not in found or not {"topics", "object"} & set(found):
        raise RequestInvalid("no value, or neither topics nor object", _HINT, "COLUMN_INVALID")
    return found


# ── compression ─────────────────────────────────────────────────────────────────────────────────

#: fields of the flatbuffers tables Message and RecordBatch of Arrow's format
_MESSAGE_HEADER, _BATCH_COMPRESSION = 2, 3


def _check_plain(stream: bytes) -> None:
    """No buffer may be compressed: a few bytes could become gigabytes."""
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch":
            metadata = message.metadata.to_pybytes()
            (root,) = struct.unpack_from("<I", metadata)
            header = _field(metadata, root, _MESSAGE_HEADER)
            if header is not None:
                (offset,) = struct.unpack_from("<I", metadata, header)
                if _field(metadata, header + offset, _BATCH_COMPRESSION) is not None:
                    raise RequestInvalid(
                        "a compressed Arrow stream", "write it without compression", "ENCODING_NOT_TAKEN"
                    )


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table lies, None: it is not there."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * number)
    return table + offset if offset else None
