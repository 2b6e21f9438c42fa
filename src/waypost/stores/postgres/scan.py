"""Scan: the database read as columns, from another process than the broker's.

ADBC copies results in PostgreSQL's binary form straight into Arrow's: no Python object is made for a cell. Nothing is held between two
queries, and each is one snapshot. A connection that broke since its last query is made anew, once. One thread at a time.
"""

from __future__ import annotations

from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...arrow import TOPICS
from ...errors import StoreUnusable
from ..columns import known_of
from ..urls import masked

#: for one query; the longest reads a row group of events, or 32 MiB of bodies
STATEMENT_MS = 120_000
CONNECT_SECONDS = 5

Rows = dict[str, Any]

_ENVELOPE = pa.schema(
    [
        ("topics", TOPICS),
        ("object", pa.string()),
        ("key", pa.string()),
        ("mime_type", pa.string()),
        ("timestamp", pa.int64()),
        ("sent", pa.int64()),
        ("producer", pa.string()),
        ("encoding", pa.string()),
        ("meta", pa.list_(pa.list_(pa.string()))),
        ("traceparent", pa.string()),
    ]
)
#: an envelope in SQL, such that many of them, one after the other, are lines of JSON
LINE = "envelope || chr(10) as envelope"


class Database:
    def __init__(self, url: str) -> None:
        self._shown = masked(url)
        given = conninfo_to_dict(url)
        self._password = str(given.get("password") or "")
        self._conninfo = make_conninfo(
            url,
            application_name="waypost export",
            connect_timeout=given.get("connect_timeout") or CONNECT_SECONDS,
            options=f"{given.get('options') or ''} -c statement_timeout={STATEMENT_MS}".strip(),
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        )
        self._fresh = False
        self._connection: Any = None
        self._connect()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def table(self, sql: str) -> pa.Table:
        try:
            return self._ask(sql)
        except adbc_driver_manager.Error as error:
            if self._fresh:
                raise self._unusable(error) from None
        self.close()
        self._connect()
        try:
            return self._ask(sql)
        except adbc_driver_manager.Error as error:
            raise self._unusable(error) from None

    def rows(self, sql: str) -> Rows:
        """By column: Arrow's for texts, bytes and what has nulls, numpy's integers for all else."""
        rows: Rows = {}
        table = self.table(sql)
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            plain = pa.types.is_integer(array.type) and not array.null_count
            rows[name] = array.to_numpy() if plain else array
        return rows

    def _connect(self) -> None:
        try:
            self._connection = adbc_driver_postgresql.dbapi.connect(self._conninfo, autocommit=True)
        except adbc_driver_manager.Error as error:
            raise self._unusable(error) from None
        self._fresh = True

    def _ask(self, sql: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            table = cursor.fetch_arrow_table()
        self._fresh = False
        return table

    def _unusable(self, error: Exception) -> StoreUnusable:
        """In one line; the driver's own error is not kept as its cause, because it may know the password."""
        said = " ".join(str(error).split())
        if self._password:
            said = said.replace(self._password, "…")
        return StoreUnusable(f"cannot read {self._shown}: {said}")


class Lookup:
    """A small table of the store by one of its columns; read again when something is asked for that came later."""

    def __init__(self, database: Database, sql: str, key: str) -> None:
        self._database, self._sql, self._key = database, sql, key
        self._load()

    def _load(self) -> None:
        table = self._database.table(self._sql)
        self._columns = {name: table[name].combine_chunks() for name in table.column_names}

    def of(self, keys: pa.Array, column: str) -> pa.Array:
        """What stands beside each key, null beside none. To be called after what names the keys was read."""
        places = pc.index_in(keys, value_set=self._columns[self._key])
        if places.null_count > keys.null_count:
            self._load()
            places = pc.index_in(keys, value_set=self._columns[self._key])
        return self._columns[column].take(places)


class Envelopes:
    """What producers said, of rows of which some have an envelope."""

    def __init__(self, lines: pa.StringArray) -> None:
        known = known_of(lines)
        #: which envelope each row has
        self._rows = pa.array(np.cumsum(known) - 1, mask=~known)
        self._said = _read(lines)

    def column(self, name: str) -> pa.Array:
        return self._said[name].combine_chunks().take(self._rows)


def _read(lines: pa.StringArray) -> pa.Table:
    """The texts lie behind each other already, as a file of JSON would have them."""
    text = pc.drop_null(lines)
    if not len(text):
        return _ENVELOPE.empty_table()
    starts = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    first, last = int(starts[0]), int(starts[-1])
    return pyarrow.json.read_json(
        pa.BufferReader(text.buffers()[2].slice(first, last - first)),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=last - first),
        parse_options=pyarrow.json.ParseOptions(_ENVELOPE, unexpected_field_behavior="ignore"),
    )
