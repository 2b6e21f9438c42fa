"""Reading the sealed half: ranges by the files' statistics, in order, checked for gaps, in bounded memory.

    lo … hi ─▶ files whose lowest and highest offset say so ─▶ row groups likewise ─▶ batches

A call reads one version of the table from its first batch to its last, whatever is sealed or compacted meanwhile: removed files stay
for an hour. Anybody may read, also without any lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import LakeUnusable
from . import delta
from .delta import DataFile
from .owner import SEALER, Lake

BATCH_ROWS = 1 << 16
#: more than any offset
MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of the log the lake has; from the tables' logs alone, no row is read."""

    #: the first offset there is; where there is none, the first that will be
    oldest: int
    #: the last offset that is in both tables; None before the first seal
    sealed: int | None
    #: the moment of the last event
    at: datetime | None
    events: int
    payloads: int
    files: int
    #: on the disk, without what older versions still have
    size: int


def standing(lake: Lake) -> Standing:
    versions = [delta.version_of(path, SEALER) for path in (lake.events, lake.payloads)]
    if versions[0] is None:
        return Standing(1, None, None, 0, 0, 0, 0)
    events = delta.data_files(delta.open_table(lake.events), lake.events, "offset")
    payloads = delta.data_files(delta.open_table(lake.payloads), lake.payloads, "sequence")
    return Standing(
        oldest=next((file.low for file in events if file.low is not None), versions[0] + 1),
        sealed=min(version or 0 for version in versions),
        at=max((file.last_at for file in events if file.last_at is not None), default=None),
        events=sum(file.rows for file in events),
        payloads=sum(file.rows for file in payloads),
        files=len(events) + len(payloads),
        size=sum(file.size for file in (*events, *payloads)),
    )


def events(lake: Lake, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Events `lo` to `hi`, each exactly once, by offset; LakeUnusable as soon as one is missing."""
    wanted = lo
    for offsets, batch in Rows(lake.events, "offset", columns).between(lo, hi):
        if not np.array_equal(offsets, np.arange(wanted, wanted + len(offsets))):
            raise LakeUnusable(
                f"{lake.events}: after offset {wanted - 1} something else follows than {wanted}"
            )
        wanted += len(offsets)
        yield batch
    if wanted <= hi:
        raise LakeUnusable(f"{lake.events}: offsets {wanted} to {hi} are missing")


def payloads(lake: Lake, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Payloads of the messages logged from `lo` to `hi`, by sequence."""
    return (batch for _, batch in Rows(lake.payloads, "sequence", columns).between(lo, hi))


def payloads_of(lake: Lake, sequences: Iterable[int], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these messages, by sequence; those that the lake does not have are left out."""
    rows = Rows(lake.payloads, "sequence", columns)
    wanted = sorted(set(sequences))
    found: list[pa.RecordBatch] = []
    for file in rows.files:
        here = pa.array(sequences_in(file, wanted), pa.int64())
        if len(here):
            for numbers, batch in rows.read(file, here[0].as_py(), here[-1].as_py()):
                found.append(batch.filter(pc.is_in(pa.array(numbers), here)))
    return pa.Table.from_batches(found, rows.schema)


def sequences_in(file: DataFile, wanted: list[int]) -> list[int]:
    """Those of the sorted numbers that the file may hold."""
    start = 0 if file.low is None else bisect_left(wanted, file.low)
    return wanted[start : len(wanted) if file.high is None else bisect_right(wanted, file.high)]


class Rows:
    """One version of a table, read by the column that orders it, with the columns asked for."""

    def __init__(
        self, path: Path, column: str, columns: Sequence[str] | None = None, *, to_write: bool = False
    ) -> None:
        self._column = column
        self.table = delta.open_to_write(path) if to_write else delta.open_table(path)
        self.files = delta.data_files(self.table, path, column)
        found = delta.arrow_schema(self.table)
        self.schema = found if columns is None else pa.schema([found.field(name) for name in columns])

    def between(self, lo: int, hi: int) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """The column's values from `lo` to `hi`, and the rows that have them."""
        for file in delta.between(self.files, lo, hi):
            yield from self.read(file, lo, hi)

    def read(
        self, file: DataFile, lo: int = -MOST, hi: int = MOST
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """The same of one file; row groups that cannot hold such values are passed over."""
        with (
            delta.plainly(file.path),
            pq.ParquetFile(file.path, page_checksum_verification=True) as opened,
        ):
            there = set(opened.schema_arrow.names)
            names = {self._column, *(name for name in self.schema.names if name in there)}
            groups = [
                group
                for group in range(opened.num_row_groups)
                if _may_hold(opened.metadata.row_group(group), self._column, lo, hi)
            ]
            # One group at a time: a batch would go on over the end of a group, however large its rows are.
            batches = (
                batch
                for group in groups
                for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group], columns=sorted(names))
            )
            for batch in batches:
                numbers = batch.column(self._column).to_numpy()
                inside = (numbers >= lo) & (numbers <= hi)
                if inside.any():
                    yield (
                        numbers[inside],
                        self._fitted(batch if inside.all() else batch.filter(pa.array(inside))),
                    )

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns asked for; those that are younger than the file are null."""
        there = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _may_hold(group: pq.RowGroupMetaData, column: str, lo: int, hi: int) -> bool:
    for index in range(group.num_columns):
        if group.column(index).path_in_schema == column:
            found = group.column(index).statistics
            return found is None or not found.has_min_max or (found.min <= hi and found.max >= lo)
    return True
