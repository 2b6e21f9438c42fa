"""Sealing: closed ranges of the log become rows of `message_events` and `payloads`, so that the store may forget them.

                     ┌─ payloads ───────────────────────┐  ┌─ message_events ─────────────┐
    lo … hi    read ─▶ files, each a commit, version =  ─▶  one file, one commit,         ─▶  sealed up to hi
    ≤ 500,000        │ last sequence in it; at the end hi│  │ version = hi                 │
                     └──────────────────────────────────┘  └──────────────────────────────┘

Each table says itself how far it goes, and each commit is durable before the next begins. So a sealer that dies anywhere goes on
from there: what was committed is not read again, what was not is a file that nobody refers to, which the next vacuum takes.
Payloads come first: an event that is in the lake has its payload there.

This file knows a store only by `Source`. One process at a time seals: it holds `owner.writing(lake, SEALER)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from ..arrow import EVENTS, PAYLOADS
from ..errors import LakeUnusable
from . import delta
from .delta import Reached, nothing
from .mending import mend, torn
from .owner import SEALER, Lake

#: events a commit, at most
RANGE_EVENTS = 500_000
#: events read at a time: a row group, so that memory does not follow the range
READ_EVENTS = delta.GROUP_ROWS
#: bodies a commit, at most and before compression
PORTION_BYTES = delta.FILE_BYTES

#: by these columns files are found
EVENT_STATISTICS = ("offset", "sequence", "at")
PAYLOAD_STATISTICS = ("sequence", "at")


class Source(Protocol):
    """A store's log, read in another process than the broker's; ranges are inclusive."""

    def head(self) -> tuple[int, int, int | None, int | None]:
        """The oldest offset there is, the newest, what the store holds for sealed, the moment of the newest."""

    def events(self, lo: int, hi: int) -> pa.Table:
        """Exactly hi - lo + 1 rows of EVENTS, by offset."""

    def payloads(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """Rows of PAYLOADS, by sequence, in batches of some MiB."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What one call has done."""

    #: the last offset that is in both tables
    upto: int
    events: int
    payloads: int
    seconds: float


def prepare(lake: Lake, oldest: int = 1) -> list[str]:
    """Before the first seal of a process: mends both tables; what was taken back, one line each.

    `oldest`: the store's first offset. What it does not have any more is never taken back: a power cut cannot tear what was
    acknowledged, so files that lack are on a disk that is not there yet, or were moved.
    """
    for path in (lake.payloads, lake.events):
        found = torn(path)
        if found and oldest > 1:
            version, why = found[-1]
            if (delta.version_at(path, version - 1, SEALER) or 0) + 1 < oldest:
                raise LakeUnusable(
                    f"{why}, and the store has those events no more: bring the lake's files back"
                )
    return [line for path in (lake.payloads, lake.events) for line in mend(path)]


def seal_upto(
    source: Source,
    lake: Lake,
    upto: int | None = None,
    *,
    range_events: int = RANGE_EVENTS,
    portion_bytes: int = PORTION_BYTES,
    progress: Callable[[int], None] | None = None,
    reached: Reached = nothing,
) -> Sealed:
    """All events up to `upto`, or to the head, are durable in the lake when this returns; a repeat does nothing.

    `progress` hears of each offset up to which both tables go.
    """
    began = time.monotonic()
    oldest, head, *_ = source.head()
    tables = _Tables(lake, oldest, reached)
    end = head if upto is None else min(upto, head)
    events = payloads = 0
    while (start := tables.next()) <= end:
        hi = min(start + range_events - 1, end)
        payloads += _seal_payloads(source, tables, hi, portion_bytes)
        events += _seal_events(source, tables, hi)
        if progress is not None:
            progress(hi)
    return Sealed(tables.next() - 1, events, payloads, time.monotonic() - began)


class _Tables:
    """The two tables and how far each goes."""

    def __init__(self, lake: Lake, oldest: int, reached: Reached) -> None:
        self._refuse_a_lost_half(lake)
        self.lake = lake
        self.payloads = delta.open_or_create(lake.payloads, PAYLOADS, statistics=PAYLOAD_STATISTICS)
        reached("payloads made")
        self.events = delta.open_or_create(lake.events, EVENTS, statistics=EVENT_STATISTICS)
        reached("message_events made")
        self._oldest, self._reached = oldest, reached
        if oldest > self.next():
            raise LakeUnusable(
                f"{lake.folder} goes up to offset {self.next() - 1} and the store's log begins at {oldest}: "
                "what was between is in neither. Give a new folder with --lake"
            )

    @staticmethod
    def _refuse_a_lost_half(lake: Lake) -> None:
        for lost, other in ((lake.payloads, lake.events), (lake.events, lake.payloads)):
            if not delta.exists(lost) and delta.version_of(other, SEALER):
                raise LakeUnusable(f"{lost} is missing while {other} is there: restore it from a copy")

    def next(self) -> int:
        """The first offset that is not in both."""
        return min(self.next_of(self.payloads), self.next_of(self.events))

    def next_of(self, table: DeltaTable) -> int:
        version = table.transaction_version(SEALER)
        return self._oldest if version is None else version + 1

    def append(self, table: DeltaTable, batches: delta.Batches, lo: int, hi: int) -> int:
        path = self.lake.payloads if table is self.payloads else self.lake.events
        return delta.append(
            table,
            path,
            batches,
            app=SEALER,
            version=hi,
            label=f"{lo}-{hi}",
            reached=partial(_say, self._reached, path.name),
        )


def _say(reached: Reached, table: str, point: str) -> None:
    reached(f"{table} {point}")


def _seal_payloads(source: Source, tables: _Tables, hi: int, portion_bytes: int) -> int:
    lo = tables.next_of(tables.payloads)
    if lo > hi:
        return 0
    rows = size = 0
    gathered: list[pa.RecordBatch] = []
    for batch in _ahead(source.payloads(lo, hi)):
        gathered.append(batch)
        size += batch.nbytes
        if size >= portion_bytes:
            last = batch.column("sequence")[-1].as_py()
            rows += tables.append(tables.payloads, gathered, lo, last)
            gathered, size, lo = [], 0, last + 1
    return rows + tables.append(tables.payloads, gathered, lo, hi)


def _seal_events(source: Source, tables: _Tables, hi: int) -> int:
    lo = tables.next_of(tables.events)
    return tables.append(tables.events, _ahead(_read_events(source, lo, hi)), lo, hi) if lo <= hi else 0


def _read_events(source: Source, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    for start in range(lo, hi + 1, READ_EVENTS):
        end = min(start + READ_EVENTS - 1, hi)
        table = source.events(start, end)
        if not np.array_equal(table.column("offset").to_numpy(), np.arange(start, end + 1)):
            raise LakeUnusable(f"the store gave {table.num_rows} other rows than offsets {start} to {end}")
        yield from table.to_batches()


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, the next one being read while the last one is written: each takes about as long as the other."""
    with ThreadPoolExecutor(1, "waypost-reading") as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch
