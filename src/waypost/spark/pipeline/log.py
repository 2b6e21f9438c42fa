"""The log as the pipeline reads it: ranges of events, and when they happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyspark import StorageLevel

from pyspark_waypost.broker import Broker
from pyspark_waypost.errors import SourceError

from ...arrow import EVENTS
from ...lake import delta
from ...lake.owner import SEALER, Lake, check_owner
from ...lake.reading import events as sealed_events
from ..reading import events as read_events
from .failures import PipelineStuck

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class Log(Protocol):
    def bounds(self) -> tuple[int, int]:
        """The first and the last offset there are."""
        ...

    def events(
        self, lo: int, hi: int, columns: Sequence[str] | None = None
    ) -> AbstractContextManager[DataFrame]:
        """Exactly the events lo … hi, to be read any number of times within the block."""
        ...

    def rows(self, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
        """The same as Arrow, by offset."""
        ...

    def at(self, offset: int) -> datetime: ...

    def offset_at(self, moment: datetime) -> int:
        """The first offset that is not before it; the one after the last when none is."""
        ...


class BrokersLog:
    """Sealed events from the lake's files, the rest from the broker."""

    def __init__(self, spark: SparkSession, url: str, lake: Lake) -> None:
        self._spark, self._url, self._lake = spark, url, lake
        self._broker = Broker(url)

    def bounds(self) -> tuple[int, int]:
        return plainly(self._broker.bounds)

    @contextmanager
    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[DataFrame]:
        sealed = delta.version_of(self._lake.events, SEALER) or 0
        if hi <= sealed:
            yield self._read(lo, hi, columns)
            return
        live = self._read(max(lo, sealed + 1), hi, columns).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            live.count()  # asks the broker once, however often the rows are read
            yield live if lo > sealed else self._read(lo, sealed, columns).unionByName(live)
        finally:
            live.unpersist()

    def _read(self, lo: int, hi: int, columns: Sequence[str] | None) -> DataFrame:
        return read_events(self._spark, self._url, self._lake.folder, lo, hi, columns)

    def rows(self, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
        sealed = delta.version_of(self._lake.events, SEALER) or 0
        names = list(columns)
        batches: list[pa.RecordBatch] = []
        if lo <= sealed:
            batches += sealed_events(self._lake, lo, min(hi, sealed), names)
        if hi > sealed:
            live = self._broker.events(max(lo, sealed + 1), hi, names, {})
            batches += (batch.select(names) for batch in plainly(lambda: list(live)))
        return pa.Table.from_batches(batches, pa.schema([EVENTS.field(name) for name in names]))

    def at(self, offset: int) -> datetime:
        (batch,) = plainly(lambda: list(self._broker.events(offset, offset, ["at"], {})))
        at: datetime = batch["at"][0].as_py()
        return at

    def offset_at(self, moment: datetime) -> int:
        return plainly(lambda: self._broker.offset_at(moment))


def plainly(ask: Callable[[], T]) -> T:
    """What the broker refuses, as one of our errors."""
    try:
        return ask()
    except SourceError as error:
        raise PipelineStuck(str(error)) from error


def lake_of(url: str, folder: str | Path | None = None) -> Lake:
    """Where a broker's lake is on this machine; PipelineStuck or LakeUnusable where there is none, or another's."""
    broker = Broker(url)
    said = plainly(lambda: broker.lake(0))
    if said["lake"] is None:
        raise PipelineStuck(
            f"the broker at {url} has no lake: start it with --lake DIR, or without --lake off"
        )
    if said["head"] and not said["sealed"]:
        plainly(broker.seal)  # a young broker has not come to it yet, and its tables lie in the lake
        said = plainly(lambda: broker.lake(0))
    found = Lake(Path(folder or said["lake"]).absolute())
    if said["sealed"] and not found.folder.is_dir():
        raise PipelineStuck(
            f"the lake of {url} is {said['lake']}, and there is no folder {found.folder} on this machine: "
            "say with --lake where it is"
        )
    check_owner(found, said["store"], said["sealed"])
    return found
