"""Set statements: many rows at once, each column an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from .columns import Column, column
from .names import Db


def insert(db: Db, table: str, rows: Sequence[tuple[Any, ...]], conflict: str = "") -> None:
    """`table` is its name with the columns and their types."""
    if rows:
        insert_columns(db, table, columns_of(types_of(table), rows), conflict)


def insert_columns(db: Db, table: str, columns: Sequence[Column], conflict: str = "") -> None:
    name, names, types = _parts(table)
    arrays = ", ".join(f"%b::{kind}[]" for kind in types)
    db.execute(
        f"insert into {name} ({', '.join(names)}) select * from unnest({arrays})"
        + (f" on conflict {conflict}" if conflict else ""),
        columns,
    )


def update(db: Db, table: str, keys: str, fields: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if not rows:
        return
    _, names, types = _parts(f"{table} ({keys}, {fields})")
    count = keys.count(",") + 1
    arrays = ", ".join(f"%b::{kind}[]" for kind in types)
    sets = ", ".join(f"{name} = u.{name}" for name in names[count:])
    where = " and ".join(f"t.{name} = u.{name}" for name in names[:count])
    db.execute(
        f"update {table} t set {sets} from unnest({arrays}) as u ({', '.join(names)}) where {where}",
        columns_of(types, rows),
    )


def types_of(table: str) -> list[str]:
    return _parts(table)[2]


def names_of(table: str) -> list[str]:
    return _parts(table)[1]


@cache
def _parts(table: str) -> tuple[str, list[str], list[str]]:
    name, _, columns = table.partition(" (")
    pairs = [column.strip().rsplit(" ", 1) for column in columns.rstrip(")").split(",")]
    return name, [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def columns_of(types: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> list[Column]:
    return [column(kind, values) for kind, values in zip(types, zip(*rows, strict=True), strict=True)]
