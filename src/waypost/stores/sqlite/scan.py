"""Scan: a store's file read as columns, from another process than the broker's.

Two SQLite libraries in one process drop each other's locks, so nothing that opens the file with apsw uses this. It only reads
(`mode=ro`), and never longer than one query or one `snapshot` lasts, so that the writer's checkpoints go on. One thread at a time.

ADBC infers a column's type from its first batch; so every query comes in one batch, and a column of texts or bytes that was
null throughout gets its type here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import numpy.typing as npt
import pyarrow as pa

from ...destinations import Kind
from ...errors import StoreUnusable
from ..columns import known_of
from .files import VERSION

Rows = dict[str, Any]
#: more than there are of anything that has a number
_MANY = 1 << 24


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        try:
            self._connection = adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)
        except adbc_driver_manager.Error as error:
            raise StoreUnusable(f"cannot read {path}: {error}") from error
        try:
            self.table("pragma busy_timeout = 5000", 1)
            self.table("pragma cache_size = -16384", 1)
            (row,) = self.table("pragma user_version", 1).to_pylist()
            if row["user_version"] != VERSION:
                raise StoreUnusable(
                    f"{path} has schema version {row['user_version']}, {VERSION} is needed: serve it once with this Waypost"
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is all of one moment."""
        self.table("begin", 1)
        try:
            yield
        finally:
            self.table("commit", 1)

    def table(self, sql: str, most: int) -> pa.Table:
        """All rows, which are not more than `most`."""
        try:
            with self._connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(most + 1)})
                cursor.execute(sql)
                return cursor.fetch_arrow_table()
        except adbc_driver_manager.Error as error:
            raise StoreUnusable(f"cannot read {self.path}: {error}") from error

    def rows(self, sql: str, most: int, texts: Sequence[str] = (), blobs: Sequence[str] = ()) -> Rows:
        """By column: Arrow's for texts, blobs and what has nulls, numpy's integers for all else."""
        table = self.table(sql, most)
        rows: Rows = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            if name in texts or name in blobs:
                type = pa.string() if name in texts else pa.binary()
                rows[name] = array if array.type == type else pa.nulls(len(array), type)
            else:
                rows[name] = array if array.null_count else array.to_numpy()
        return rows


class Names:
    """By number, as Arrow columns; nobody has 0."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.load()

    def load(self) -> None:
        places = self._file.table("select number, kind, name from destinations", _MANY).to_pylist()
        parties = self._file.table("select name from parties order by number", _MANY).to_pylist()
        count = max((place["number"] for place in places), default=0) + 1
        queues: list[str | None] = [None] * count
        channels: list[str | None] = [None] * count
        for place in places:
            (queues if place["kind"] == Kind.QUEUE else channels)[place["number"]] = place["name"]
        self.queues, self.channels = pa.array(queues, pa.string()), pa.array(channels, pa.string())
        self.is_queue = known_of(self.queues)
        self.parties = pa.array([None, *(party["name"] for party in parties)], pa.string())

    def know(self, destinations: npt.NDArray[Any], *parties: npt.NDArray[Any]) -> None:
        """Reads them again if these came later; to be called after what names them was read."""
        newest = max((numbers.max(initial=0) for numbers in parties), default=0)
        if destinations.max(initial=0) >= len(self.queues) or newest >= len(self.parties):
            self.load()
