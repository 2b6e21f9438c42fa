"""Columns as PostgreSQL's binary arrays.

    values ─▶ cells (each its length and its bytes, one after the other) ─▶ column (a head before them)

A group writes its rows column by column, tens of values for each message. The driver looks at every value of a list several times; here
each is packed once, those of one size together, one that repeats is packed once for all, and a column of nothing but nulls is an empty
array: `unnest` fills up the shorter ones with nulls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_length = struct.Struct("!i").pack
_head = struct.Struct("!iiiii").pack
NULL = _length(-1)


def _bytea(value: bytes) -> bytes:
    return _length(len(value)) + value


def _text(value: str) -> bytes:
    """PostgreSQL's texts have no NUL; in a reason, the only text that may have one, the sign for what cannot be shown stands for it."""
    return _bytea(value.encode().replace(b"\0", b"\xef\xbf\xbd"))


def _sized(letter: str) -> tuple[str, Callable[[Any], bytes]]:
    of = struct.Struct(f"!i{letter}")
    size = of.size - 4
    return f"i{letter}", lambda value: of.pack(size, value)


#: by type: its number in pg_type, and how a value is packed; of those that have one size, how `struct` calls a cell
_PACKED: dict[str, tuple[int, str | None, Callable[[Any], bytes]]] = {
    "boolean": (16, *_sized("?")),
    "bytea": (17, None, _bytea),
    "bigint": (20, *_sized("q")),
    "smallint": (21, *_sized("h")),
    "integer": (23, *_sized("i")),
    "text": (25, None, _text),
    "float8": (701, *_sized("d")),
}


class Column(bytes):
    """An array as it goes over the wire."""


class ColumnDumper(Dumper):
    """Its type is what the statement casts it to."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        return obj  # type: ignore[no-any-return]


def column(kind: str, values: Sequence[Any]) -> Column:
    return whole(kind, len(values), None if values.count(None) == len(values) else cells(kind, values))


def whole(kind: str, count: int, cells: bytes | None) -> Column:
    """So many cells; None: all of them are null."""
    number = _PACKED[kind][0]
    if cells is None:
        return Column(struct.pack("!iii", 0, 0, number))
    return Column(_head(1, 1, number, count, 1) + cells)


def cell(kind: str, value: Any) -> bytes:
    return NULL if value is None else _PACKED[kind][2](value)


def cells(kind: str, values: Sequence[Any], gap: int = 0) -> bytes:
    """One after the other, each before a gap of so many nulls."""
    after = NULL * gap
    count = len(values)
    if values[0] == values[-1] and values.count(values[0]) == count:
        return (cell(kind, values[0]) + after) * count
    _, code, pack = _PACKED[kind]
    if None in values:
        return b"".join([(NULL if value is None else pack(value)) + after for value in values])
    if code is not None and not gap:
        return _numbers(code, values)
    if code is None and len(sizes := set(map(len, values))) == 1:
        together = _of_one_size(sizes.pop(), values, after)
        if together is not None:
            return together
    return b"".join([pack(value) + after for value in values])


def _numbers(code: str, values: Sequence[Any]) -> bytes:
    size = struct.calcsize(f"!{code}") - 4
    flat = [size] * (2 * len(values))
    flat[1::2] = values
    return struct.pack(f"!{code * len(values)}", *flat)


def _of_one_size(size: int, values: Sequence[Any], after: bytes) -> bytes | None:
    """None: texts that must be looked at one by one."""
    length = _length(size)
    if isinstance(values[0], bytes):
        return length + (after + length).join(values) + after
    if after or not 0 < size < 128:
        return None
    # A small length is a text itself, with three NULs; if that is all there is of them, and no letter takes more than a byte, it is right.
    between = length.decode()
    joined = (between + between.join(values)).encode()
    fits = len(joined) == (size + 4) * len(values) and joined.count(0) == 3 * len(values)
    return joined if fits else None
