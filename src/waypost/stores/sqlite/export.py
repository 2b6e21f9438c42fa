"""Export: ranges of the log, of payloads and of the store's rows as Arrow, for whoever seals or analyses.

Runs only in another process than the broker's (`scan.py` says why). A range is read in one go and must be bounded by whoever
asks; nothing is held between two calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ...arrow import DELIVERIES, EVENTS, MESSAGES
from ...errors import LogBroken, LogTrimmed
from .events import Events
from .live import Live
from .payloads import payloads
from .scan import File, Names

#: of messages and deliveries, so many offsets are read at once
WINDOW = 200_000


class Head(NamedTuple):
    #: of the log in the store: the first and the last offset
    oldest: int
    head: int
    #: the last one that a lake holds, 0: none
    sealed: int
    #: the instant of the last one
    at: int


class Export:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = File(Path(path))
        self._names = Names(self._file)

    def close(self) -> None:
        self._file.close()

    @property
    def id(self) -> str:
        """The store's own."""
        (row,) = self._file.table("select id from head", 1).to_pylist()
        return str(row["id"])

    def head(self) -> Head:
        (row,) = self._file.table(
            'select oldest, "offset" as head, ifnull(sealed, 0) as sealed, at from head', 1
        ).to_pylist()
        return Head(**row)

    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Exactly the events lo … hi in their order, with the columns of EVENTS or those named. Raises LogTrimmed when lo is older
        than what is kept, LogBroken when one is missing."""
        head = self.head()
        if lo < head.oldest:
            raise LogTrimmed(head.oldest)
        if hi > head.head:
            raise LogBroken(f"the log ends at {head.head}, and {hi} was asked for")
        wanted = EVENTS.names if columns is None else columns
        if hi < lo:  # what a writer does at this moment may lie on both sides of it
            return EVENTS.empty_table().select(wanted)
        try:
            return Events(self._file, self._names, lo, hi, wanted).table()
        except LogBroken:
            oldest = self.head().oldest
            if lo < oldest:
                raise LogTrimmed(oldest) from None  # meanwhile
            raise

    def payloads(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """PAYLOADS of the messages lo … hi, by sequence, some 32 MiB at a time. A body that is gone, or not what was published,
        is null."""
        return payloads(self._file, lo, hi)

    def messages(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """MESSAGES, or those of its columns that are named: the messages lo … hi, by sequence, as the store has them now."""
        for live in self._live(lo, hi):
            yield live.messages(MESSAGES.names if columns is None else columns)

    def deliveries(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """DELIVERIES of the same messages."""
        for live in self._live(lo, hi):
            yield live.deliveries(DELIVERIES.names if columns is None else columns)

    def _live(self, lo: int, hi: int) -> Iterator[Live]:
        hi = min(hi, self.head().head)
        for first in range(max(lo, 1), hi + 1, WINDOW):
            yield Live(self._file, self._names, first, min(hi, first + WINDOW - 1))
