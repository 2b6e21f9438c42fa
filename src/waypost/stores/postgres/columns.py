"""Columns as PostgreSQL's binary arrays.

A group writes its rows column by column, tens of values for each message. The driver looks at every value of a list several times; here
each is packed once, one that repeats is packed once for all, and a column of nothing but nulls is an empty array: `unnest` fills up the
shorter ones with nulls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_length = struct.Struct("!i").pack
_bigint = struct.Struct("!iq").pack
_integer = struct.Struct("!ii").pack
_smallint = struct.Struct("!ih").pack
_boolean = struct.Struct("!i?").pack
_double = struct.Struct("!id").pack
_head = struct.Struct("!iiiii").pack
_NULL = _length(-1)


def _bytea(value: bytes) -> bytes:
    return _length(len(value)) + value


def _text(value: str) -> bytes:
    """PostgreSQL's texts have no NUL; in a reason, the only text that may have one, the sign for what cannot be shown stands for it."""
    return _bytea(value.encode().replace(b"\0", b"\xef\xbf\xbd"))


#: by type: its number in pg_type, and how a value is packed
_PACKED: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "boolean": (16, lambda value: _boolean(1, value)),
    "bytea": (17, _bytea),
    "bigint": (20, lambda value: _bigint(8, value)),
    "smallint": (21, lambda value: _smallint(2, value)),
    "integer": (23, lambda value: _integer(4, value)),
    "text": (25, _text),
    "float8": (701, lambda value: _double(8, value)),
}


class Column(bytes):
    """An array as it goes over the wire."""


class ColumnDumper(Dumper):
    """Its type is what the statement casts it to."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        return obj  # type: ignore[no-any-return]


def column(kind: str, values: Sequence[Any]) -> Column:
    number, pack = _PACKED[kind]
    nulls, count = values.count(None), len(values)
    if nulls == count:
        return Column(struct.pack("!iii", 0, 0, number))
    head = _head(1, nulls > 0, number, count, 1)
    if values.count(values[0]) == count:
        return Column(head + pack(values[0]) * count)
    if nulls:
        return Column(head + b"".join([_NULL if value is None else pack(value) for value in values]))
    return Column(head + b"".join(map(pack, values)))
