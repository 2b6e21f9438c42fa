"""A table anew: folded from the whole log beside the one that is there, and put into its place by one commit.

Until that commit everybody reads the old rows, after it the new ones; readers in the middle of the old version have its files for an
hour. A process that dies before it leaves nothing but a folder, which the next rebuild removes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import LakeUnusable
from ...lake import delta
from ...lake.delta import Reached, nothing
from ...lake.mending import mend
from ...lake.owner import PIPELINE, Lake, writing
from ..tables import Folded
from .failures import PipelineStuck
from .keeping import SLICE, Batch, Figures, Keeper, Kept, first_message, kept_in, prepare
from .log import BrokersLog, Log
from .running import Tell, folder_of, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    spark: SparkSession,
    url: str,
    lake: Lake,
    names: Sequence[str] | None = None,
    *,
    tell: Tell = quiet,
    say: Callable[[str], None] = lambda line: None,
    slice: int = SLICE,
    reached: Reached = nothing,
) -> Figures:
    """The tables of these names, or all, from the log's first event to its last."""
    with writing(lake, PIPELINE):
        return rebuilt(
            spark, BrokersLog(spark, url, lake), lake, names, tell=tell, say=say, slice=slice, reached=reached
        )


def rebuilt(
    spark: SparkSession,
    log: Log,
    lake: Lake,
    names: Sequence[str] | None,
    *,
    tell: Tell = quiet,
    say: Callable[[str], None] = lambda line: None,
    slice: int = SLICE,
    reached: Reached = nothing,
) -> Figures:
    """The caller has the lock."""
    beside = folder_of(lake) / "rebuilt"
    shutil.rmtree(beside, ignore_errors=True)
    there = kept_in(lake, names)
    _refuse_a_part(lake, log, there)
    anew = [Kept(one.table, beside / one.name) for one in there]
    prepare(anew)
    figures = Figures()

    def told(batch: Batch) -> None:
        figures.add(batch)
        tell(batch, figures)

    keeper = Keeper(spark, log, anew, reached, slice)
    try:
        keeper.keep(log.bounds()[1], told)
    finally:
        keeper.close()
    for old, new in zip(there, anew, strict=True):
        if new.folded() is None:
            continue  # the log is empty, or no minute of it is over: there is nothing to put there yet
        _put(old, new, say)
        reached(f"{old.name} rebuilt")
    shutil.rmtree(beside)
    return figures


def _refuse_a_part(lake: Lake, log: Log, there: Sequence[Kept]) -> None:
    """Where the log's beginning has gone since the tables were made, they are made anew together: each must begin with the same
    message, or one tells of messages whose beginning another never saw."""
    everything = kept_in(lake)
    if len(there) == len(everything):
        return
    first, oldest = first_message(everything, log.bounds()[0]), log.bounds()[0]
    if first < oldest:
        raise PipelineStuck(
            f"the log begins at {oldest} by now, and the tables with message {first}: rebuild all of them together"
        )


def _put(old: Kept, new: Kept, say: Callable[[str], None]) -> None:
    """The new rows into the old table's place."""
    try:
        mend(old.path)
        if delta.exists(old.path):
            delta.open_table(old.path)
    except LakeUnusable as error:
        # Nobody could read it: it makes way, and stays beside for whoever wants to know why.
        aside = old.path.with_name(f".{old.name}.{time.time_ns()}")
        old.path.rename(aside)
        say(f"{error}: the old table is {aside} now")
    prepare([old])
    _overwrite(old, new)


def _overwrite(old: Kept, new: Kept) -> None:
    version = new.folded()
    assert version is not None
    everything = "bucket is not null" if isinstance(new.table, Folded) else "minute is not null"
    with delta.plainly(new.path):
        delta.replace_where(old.path, _reader(new.path, new), everything, app=PIPELINE, version=version)


def _reader(path: Path, kept: Kept) -> pa.RecordBatchReader:
    """All rows, a batch at a time."""
    import pyarrow.dataset as ds  # brings pandas along, which takes seconds

    files = [str(file.path) for file in delta.data_files(delta.open_table(path), path)]
    rows = ds.dataset(
        files, kept.table.schema, format="parquet", partitioning="hive", partition_base_dir=str(path)
    )
    return rows.scanner(batch_size=1 << 16).to_reader()
