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
_NULL = _length(-1)


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
    """A value, mostly an array, as it goes over the wire."""


class ColumnDumper(Dumper):
    """Its type is what the statement casts it to."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        return obj  # type: ignore[no-any-return]


def scalar(kind: str, value: Any) -> Column | None:
    """One value by itself."""
    return None if value is None else Column(_PACKED[kind][2](value)[4:])


#: nothing but nulls
_EMPTY = {kind: Column(struct.pack("!iii", 0, 0, number)) for kind, (number, _, _) in _PACKED.items()}


def column(kind: str, values: Sequence[Any]) -> Column:
    number, count = _PACKED[kind][0], len(values)
    if values.count(None) == count:
        return _EMPTY[kind]
    return Column(_head(1, 1, number, count, 1) + _cells(kind, values))


def bigints(values: Sequence[int]) -> Column:
    return column("bigint", values)


def _cells(kind: str, values: Sequence[Any]) -> bytes:
    """One after the other."""
    _, code, pack = _PACKED[kind]
    if values[0] == values[-1] and values.count(values[0]) == len(values):
        return pack(values[0]) * len(values)
    if None in values:
        known = {value: _NULL if value is None else pack(value) for value in set(values)}
        return b"".join(map(known.__getitem__, values))
    if code is not None:
        return _numbers(code, values)
    if len(sizes := set(map(len, values))) == 1:
        together = _of_one_size(sizes.pop(), values)
        if together is not None:
            return together
    return b"".join(map(pack, values))


def _numbers(code: str, values: Sequence[Any]) -> bytes:
    size = struct.calcsize(f"!{code}") - 4
    flat = [size] * (2 * len(values))
    flat[1::2] = values
    return struct.pack(f"!{code * len(values)}", *flat)


def _of_one_size(size: int, values: Sequence[Any]) -> bytes | None:
    """None: texts that must be looked at one by one."""
    length = _length(size)
    if isinstance(values[0], bytes):
        return length + length.join(values)
    if not 0 < size < 128:
        return None
    # A small length is a text itself, with three NULs; if that is all there is of them, and no letter takes more than a byte, it is right.
    between = length.decode()
    joined = (between + between.join(values)).encode()
    fits = len(joined) == (size + 4) * len(values) and joined.count(0) == 3 * len(values)
    return joined if fits else None
