"""Set statements: many rows at once, each column an array; and many such statements as one.

What a statement costs the driver and the server by itself, whatever it does, is more than a row of it: a group that writes to eight
tables pays that once. CockroachDB's limits are kept: each part returns something, and no table is changed by two of them, unless all that
they do is insert.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any

from psycopg import RawCursor

from .columns import Column, column
from .names import Db


class Together:
    """Statements that change rows, none of which another one sees or changes, and selections that others are made from; a cursor for
    those who write, until it is run."""

    def __init__(self) -> None:
        self._statements: list[str] = []
        self._values: list[Any] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> str:
        """The name under which those that follow can select from it."""
        self._statements.append(statement)
        self._values += values
        return f"s{len(self._statements) - 1}"

    def __bool__(self) -> bool:
        return bool(self._statements)

    def run(self, db: Db) -> Db:
        """What the last one returns."""
        cursor: Db = RawCursor(db.connection)
        return cursor.execute(*self.text(), binary=True)

    def text(self) -> tuple[bytes, list[Any]]:
        return _joined(tuple(self._statements)), self._values


@lru_cache(1_000)
def _joined(statements: tuple[str, ...]) -> bytes:
    """With the server's own placeholders: the driver would look through so long a text every time."""
    _check(statements)
    *before, last = statements
    parts = [f"s{number} as ({_returning(statement)})" for number, statement in enumerate(before)]
    text = f"with {', '.join(parts)} {last}" if parts else last
    numbers = count(1)
    return re.sub("%[bs]", lambda _: f"${next(numbers)}", text).encode()


def _returning(statement: str) -> str:
    returns = statement.startswith("select") or " returning " in statement
    return statement if returns else f"{statement} returning 1"


def _check(statements: Iterable[str]) -> None:
    #: by table: whether all that was done to it so far was inserting
    inserted: dict[str, bool] = {}
    for statement in statements:
        changes = re.match(r"(insert into|update|delete from) (\w+)", statement)
        if changes is not None:
            verb, table = changes.groups()
            inserts = verb == "insert into" and " on conflict " not in statement
            if table in inserted and not (inserts and inserted[table]):
                raise ValueError(f"two parts of one statement change {table}")
            inserted[table] = inserts


def insert(db: Db | Together, table: str, rows: Sequence[tuple[Any, ...]], conflict: str = "") -> None:
    """`table` is its name with the columns and their types."""
    if rows:
        insert_columns(db, table, columns_of(parts_of(table)[2], rows), conflict)


def insert_columns(db: Db | Together, table: str, columns: Sequence[Column], conflict: str = "") -> None:
    db.execute(_insertion(table, conflict), columns)


@cache
def _insertion(table: str, conflict: str) -> str:
    name, names, types = parts_of(table)
    statement = f"insert into {name} ({', '.join(names)}) select * from unnest({_arrays(types)})"
    return f"{statement} on conflict {conflict}" if conflict else statement


def update(db: Db | Together, table: str, keys: str, fields: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        types = parts_of(f"{table} ({keys}, {fields})")[2]
        db.execute(_change(table, keys, fields), columns_of(types, rows))


@cache
def _change(table: str, keys: str, fields: str) -> str:
    _, names, types = parts_of(f"{table} ({keys}, {fields})")
    count = keys.count(",") + 1
    sets = ", ".join(f"{name} = u.{name}" for name in names[count:])
    where = " and ".join(f"t.{name} = u.{name}" for name in names[:count])
    return (
        f"update {table} t set {sets} from unnest({_arrays(types)}) as u ({', '.join(names)}) where {where}"
    )


def _arrays(types: Sequence[str]) -> str:
    return ", ".join(f"%b::{kind}[]" for kind in types)


@cache
def parts_of(table: str) -> tuple[str, list[str], list[str]]:
    """A table's name, and those and the types of its columns."""
    name, _, columns = table.partition(" (")
    pairs = [column.strip().rsplit(" ", 1) for column in columns.rstrip(")").split(",")]
    return name, [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def columns_of(types: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> list[Column]:
    return [column(kind, values) for kind, values in zip(types, zip(*rows, strict=True), strict=True)]
