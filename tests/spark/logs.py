"""A log in a file, for a pipeline without a broker; and the tables that it keeps, as people read them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark import replay
from waypost.arrow import MOMENT
from waypost.lake.delta import Reached, nothing
from waypost.lake.owner import Lake, claim, owner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder that costs nothing to sync, where there is such a thing."""
    quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="waypost-tables-", dir=quick) as folder:
        yield Path(folder)


class FileLog:
    """`oldest`: what is before it is not there any more."""

    def __init__(self, spark: SparkSession, events: pa.Table, folder: Path, oldest: int = 1) -> None:
        self._spark, self._file = spark, folder / "log.parquet"
        pq.write_table(events, self._file)
        self._moments = events["at"].cast(pa.int64()).to_numpy()
        self.oldest, self.head = oldest, events.num_rows
        self.reads: list[tuple[int, int]] = []

    def bounds(self) -> tuple[int, int]:
        return self.oldest, self.head

    @contextmanager
    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[DataFrame]:
        assert self.oldest <= lo <= hi <= self.head
        self.reads.append((lo, hi))
        rows = self._spark.read.parquet(str(self._file)).where(f"offset between {lo} and {hi}")
        yield rows if columns is None else rows.select(*columns)

    def rows(self, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
        return pq.read_table(self._file, columns=list(columns)).slice(lo - 1, hi - lo + 1)

    def at(self, offset: int) -> datetime:
        at: datetime = pa.scalar(int(self._moments[offset - 1]), MOMENT).as_py()
        return at

    def offset_at(self, moment: datetime) -> int:
        return int(np.searchsorted(self._moments, pa.scalar(moment, MOMENT).cast(pa.int64()).as_py())) + 1


class Tables:
    """The pipeline's tables in a lake, which is made if there is none."""

    def __init__(self, spark: SparkSession, log: Any, folder: Path) -> None:
        self.spark, self.log, self.lake = spark, log, Lake(folder)
        if owner(self.lake) is None:
            claim(self.lake, "a store", None)

    def keep(self, upto: int | None = None, *, slice: int = 500_000, reached: Reached = nothing) -> list[Any]:
        """A pipeline that starts, brings the tables up to there, and ends; what it told."""
        from waypost.spark.pipeline.keeping import Keeper, kept_in, prepare

        kept = kept_in(self.lake)
        prepare(kept)
        told: list[Any] = []
        keeper = Keeper(self.spark, self.log, kept, reached, slice)
        try:
            keeper.keep(self.log.head if upto is None else upto, told.append)
        finally:
            keeper.close()
        return told

    def rows(self, name: str) -> list[replay.Row]:
        from waypost.spark import table

        return replay.rows(table(self.spark, name, lake=self.lake.folder).toArrow())


def same(found: list[replay.Row], expected: list[replay.Row], key: Sequence[str]) -> None:
    """On the columns that are expected; the first row that differs is shown."""
    names = list(expected[0]) if expected else []

    def place(row: replay.Row) -> tuple[str, ...]:
        return tuple(f"{row[name]!r:>30}" for name in key)

    ours = {place(row): {name: row[name] for name in names} for row in found}
    theirs = {place(row): row for row in expected}
    assert len(ours) == len(found), "a key is there twice"
    for where in sorted(theirs):
        assert ours.get(where) == theirs[where]
    assert len(ours) == len(theirs)
