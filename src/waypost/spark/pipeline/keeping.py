"""Bringing tables up to an offset.

Each table is asked how far it is; what is missing is read from the log, in slices, folded by Spark and committed by delta-rs
together with the last offset of the slice. So it does not matter where a process died, which table it had reached, what was
restored from a copy or which was rebuilt: a second call does what the first left undone, and nothing twice.

    messages    ░░░░░░░░░░░░░░░░░├──────── slice ────────┤
    deliveries  ░░░░░░░░░░░░░░░░░├──────── slice ────────┤      tables of the same height share what is read
    receipts    ░░░░░░░░░░├ slice ┤                             lower ones are brought up to them first
    minutes     ░░░░░░░░░░░░░░░├── closed minutes ──┤

A slice is small for Spark: one task a table, without a shuffle, and the tables side by side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from ...lake import delta
from ...lake.delta import Reached, nothing
from ...lake.maintaining import maintain_kept
from ...lake.mending import log_folder, mend
from ...lake.owner import PIPELINE, Lake
from ..tables import COUNTED, FOLDED, Counted, Folded
from ..tables.shape import BEGUN
from .failures import PipelineStuck
from .log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: events folded at once: what the driver holds of their rows stays below 200 MB
SLICE = 500_000
#: events between two that are wanted which are rather read along than passed over: a row group, about
NEAR = 1 << 16
#: commits between two clean-ups of a table
MAINTAIN_EVERY = 100


@dataclass(frozen=True)
class Kept:
    """A table and where it lies."""

    table: Folded | Counted
    path: Path

    @property
    def name(self) -> str:
        return self.table.name

    def folded(self) -> int | None:
        """The last offset that is in it."""
        return delta.version_of(self.path, PIPELINE)


def kept_in(lake: Lake, names: Iterable[str] | None = None) -> list[Kept]:
    """The lake's tables of these names, or all; in the order in which they are brought up to date."""
    wanted = None if names is None else set(names)
    return [
        Kept(table, lake.table(table.name))
        for table in (*FOLDED, *COUNTED)
        if wanted is None or table.name in wanted
    ]


def prepare(kept: Sequence[Kept]) -> list[str]:
    """Damage of a power cut is mended, what is missing is made; what was mended, a line each."""
    mended = [line for one in kept for line in mend(one.path)]
    for one in kept:
        if isinstance(one.table, Folded):
            delta.open_or_create(one.path, one.table.schema, statistics=["sequence"], partition_by=["bucket"])
        else:
            delta.open_or_create(one.path, one.table.schema, statistics=["minute"])
    return mended


@dataclass
class Batch:
    """What one call has folded."""

    lo: int
    hi: int
    seconds: float
    #: rows changed or made, by table
    rows: dict[str, int]

    @property
    def events(self) -> int:
        return self.hi - self.lo + 1


@dataclass
class Figures:
    """What a run has done so far."""

    began: float = field(default_factory=time.monotonic)
    batches: int = 0
    events: int = 0
    #: spent folding and committing
    seconds: float = 0.0
    upto: int = 0
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.batches += 1
        self.events += batch.events
        self.seconds += batch.seconds
        self.upto = max(self.upto, batch.hi)
        for name, rows in batch.rows.items():
            self.rows[name] = self.rows.get(name, 0) + rows

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


class Keeper:
    """Keeps tables. One caller at a time, which holds the pipeline's lock: so what the tables said once still holds."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        kept: Sequence[Kept],
        reached: Reached = nothing,
        slice: int = SLICE,
    ) -> None:
        self._spark, self._log, self._reached, self._slice = spark, log, reached, slice
        self._folded = [one for one in kept if isinstance(one.table, Folded)]
        self._counted = [one for one in kept if isinstance(one.table, Counted)]
        oldest, head = log.bounds()
        #: the first offset that a table lacks
        self._heights = {one.name: _height(one, oldest, head) for one in kept}
        self._first = first_message(kept, oldest)
        self._threads = ThreadPoolExecutor(len(kept) + 1, "waypost-table")

    def close(self) -> None:
        self._threads.shutdown()

    @property
    def start(self) -> int:
        """The first offset that some table lacks."""
        return min(self._heights.values())

    def keep(self, upto: int, tell: Callable[[Batch], None] = lambda batch: None) -> None:
        """Every table has everything up to there, of minutes those that are closed by then."""
        while (lowest := self._lowest(self._folded, upto)) is not None:
            began = time.monotonic()
            level, lo, hi = lowest
            hi = min(hi, lo + self._slice - 1)
            with self._log.events(lo, hi) as events:
                known = without_texts(self._known(events)).coalesce(1)
                said = self._threads.submit(self._log.rows, lo, hi, _words(level))
                rows = self._side_by_side(level, hi, partial(self._merge, known, said, lo))
            rows |= self._count(hi)
            tell(Batch(lo, hi, time.monotonic() - began, rows))
        began, start = time.monotonic(), self.start
        if rows := self._count(upto):
            tell(Batch(start, upto, time.monotonic() - began, rows))

    def _lowest(self, kept: Sequence[Kept], upto: int) -> tuple[list[Kept], int, int] | None:
        """Those that are furthest behind, and the range that only they lack."""
        heights = {self._heights[one.name] for one in kept}
        lo = min(heights, default=upto + 1)
        if lo > upto:
            return None
        hi = min([upto, *(height - 1 for height in heights if height > lo)])
        return [one for one in kept if self._heights[one.name] == lo], lo, hi

    def _known(self, events: DataFrame) -> DataFrame:
        return events.where(F.col("sequence") >= self._first)

    def _side_by_side(self, level: Sequence[Kept], hi: int, do: Callable[[Kept, int], int]) -> dict[str, int]:
        """`do` for each table up to `hi`; the rows it gave, by table. Ends when all of them have."""
        tasks = {one.name: self._threads.submit(do, one, hi) for one in level}
        wait(tasks.values())
        rows = {name: task.result() for name, task in tasks.items()}
        self._heights |= dict.fromkeys(rows, hi + 1)
        return rows

    # --- rows that change ------------------------------------------------------------------------------------

    def _merge(self, events: DataFrame, said: Future[pa.Table], lo: int, one: Kept, hi: int) -> int:
        table = one.table
        assert isinstance(table, Folded)
        numbers = table.numbers(events).toArrow()
        rows = table.told(numbers, said.result(), lo)
        if table.logged:
            rows = self._completed(rows, table.logged)
        rows = rows.select(table.schema.names).cast(table.schema)
        self._reached(f"{one.name} folded")
        before = newest_entry(one.path)
        if rows.num_rows:
            delta.merge(
                one.path,
                rows,
                ["bucket", *table.key],
                table.update,
                app=PIPELINE,
                version=hi,
                bucket_values=pc.unique(rows["bucket"]).to_pylist(),
            )
        else:
            delta.append(delta.open_table(one.path), one.path, [], app=PIPELINE, version=hi)
        self._reached(f"{one.name} committed")
        self._maintain(one, before)
        return int(rows.num_rows)

    def _completed(self, rows: pa.Table, logged: Sequence[str]) -> pa.Table:
        """With what L says where that is older than the slice, for rows that begin in it."""
        lacking = pc.and_(rows[BEGUN], pc.is_null(rows[logged[0]]))
        sequences = pc.unique(pc.filter(rows["sequence"], lacking))
        if not len(sequences):
            return rows
        oldest = self._log.bounds()[0]  # what is older than all that is kept stays unknown
        wanted = np.sort(sequences.to_numpy())
        wanted = wanted[wanted >= oldest]
        parts = [self._logged(stretch, logged) for stretch in stretches(wanted, self._slice)]
        if not parts:
            return rows
        places = pc.index_in(rows["sequence"], value_set=pa.array(wanted))
        found = pa.concat_tables(parts)
        for name in logged:
            filled = pc.coalesce(rows[name], found[name].take(places))
            rows = rows.set_column(rows.column_names.index(name), name, filled)
        return rows

    def _logged(self, sequences: np.ndarray[Any, np.dtype[np.int64]], columns: Sequence[str]) -> pa.Table:
        """What the L of these messages say: a message's sequence is the offset of its L."""
        lo, hi = int(sequences[0]), int(sequences[-1])
        return self._log.rows(lo, hi, columns).take(pa.array(sequences - lo))

    # --- minutes ---------------------------------------------------------------------------------------------

    def _count(self, upto: int) -> dict[str, int]:
        """Minutes that are closed by the event `upto`: something happened after them. The rows they gave, by table."""
        if self._lowest(self._counted, upto) is None:
            return {}
        minute = self._log.at(upto).replace(second=0, microsecond=0)
        closed = self._log.offset_at(minute) - 1
        made: dict[str, int] = {}
        while (lowest := self._lowest(self._counted, closed)) is not None:
            level, lo, hi = lowest
            with self._log.events(lo, hi) as events:
                made |= self._side_by_side(level, hi, partial(self._add, self._known(events)))
        return made

    def _add(self, events: DataFrame, one: Kept, hi: int) -> int:
        table = one.table
        assert isinstance(table, Counted)
        rows = table.fold(events).toArrow().cast(table.schema)
        if table.carried is not None:
            rows = carried_on(rows, one.path, *table.carried)
        rows = rows.sort_by("minute")
        self._reached(f"{one.name} folded")
        entry = newest_entry(one.path)
        delta.append(
            delta.open_table(one.path), one.path, rows.to_batches(), app=PIPELINE, version=hi, label="minutes"
        )
        self._reached(f"{one.name} committed")
        self._maintain(one, entry)
        return int(rows.num_rows)

    def _maintain(self, one: Kept, before: int) -> None:
        if before // MAINTAIN_EVERY != newest_entry(one.path) // MAINTAIN_EVERY:
            maintain_kept(one.path)
            self._reached(f"{one.name} maintained")


def without_texts(events: DataFrame) -> DataFrame:
    """For numbers: of a text they ask at most whether there is one, and a row is copied on its way into one task."""
    texts = (field.name for field in events.schema if field.dataType.typeName() == "string")
    return events.withColumns({name: F.when(F.col(name).isNotNull(), F.lit("")) for name in texts})


def stretches(
    numbers: np.ndarray[Any, np.dtype[np.int64]], longest: int
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Ascending numbers, cut where much lies between two of them, and so that none spans more than `longest`."""
    parts = []
    while len(numbers):
        far = np.flatnonzero(np.diff(numbers) > NEAR)
        end = int(far[0]) + 1 if len(far) else len(numbers)
        end = min(end, int(np.searchsorted(numbers, numbers[0] + longest)))
        parts.append(numbers[:end])
        numbers = numbers[end:]
    return parts


def _words(kept: Sequence[Kept]) -> list[str]:
    """The columns with text that these tables take from events."""
    words = (word for one in kept if isinstance(one.table, Folded) for word in one.table.words)
    return list(dict.fromkeys(words))


def _height(one: Kept, oldest: int, head: int) -> int:
    """The first offset that a table lacks of a log."""
    folded = one.folded()
    if folded is None:
        return oldest
    if folded > head:
        raise PipelineStuck(
            f"{one.path} has events up to {folded}, and the log ends at {head}: the lake is newer than the store"
        )
    if folded + 1 < oldest:
        raise PipelineStuck(
            f"{one.path} has events up to {folded}, and the log begins at {oldest}: what is between is gone; "
            f"begin anew with: waypost pipeline rebuild {one.name}"
        )
    return folded + 1


def first_message(kept: Sequence[Kept], oldest: int) -> int:
    """Messages logged before are not told of: the beginning of their story was gone when the tables began."""
    for one in kept:
        if one.name == "messages" and delta.exists(one.path):
            files = delta.data_files(delta.open_table(one.path), one.path, "sequence")
            if files and files[0].low is not None:
                return files[0].low
    return oldest


def newest_entry(path: Path) -> int:
    """The number of the last commit."""
    return max(
        (int(name[:20]) for name in os.listdir(log_folder(path)) if name.endswith(".json")), default=-1
    )


def carried_on(rows: pa.Table, path: Path, of: str, column: str) -> pa.Table:
    """With the numbers of the last row that the table has of each added."""
    files = [file.path for file in delta.data_files(delta.open_table(path), path)]
    if not files:
        return rows
    with delta.plainly(path):
        parts = [pq.read_table(file, columns=[of, "minute", column], partitioning=None) for file in files]
    kept = pa.concat_tables(parts).sort_by([(of, "ascending"), ("minute", "ascending")])
    last = kept.group_by(of, use_threads=False).aggregate([(column, "last")])
    before = last[f"{column}_last"].take(pc.index_in(rows[of], value_set=last[of].combine_chunks()))
    total = pc.add(rows[column], pc.fill_null(before, 0))
    return rows.set_column(rows.column_names.index(column), column, total)
