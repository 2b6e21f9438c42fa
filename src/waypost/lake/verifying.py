"""Is the lake whole? Every file is read and everything that must be true of it is looked at.

    files      there, of their size, readable, with the rows and the range that the table's log says
    events     offsets without a gap from the oldest to the last sealed one; moments never fall
    payloads   one row for each message logged, and no other; bodies fit their size and SHA-256
    the store  says the same of every event that it still has

Nothing is changed and no lock is needed; what is sealed meanwhile is not looked at. Memory is bounded: both tables are read
side by side in the order of sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import LakeUnusable, LogBroken, LogTrimmed
from . import delta, reading
from .delta import DataFile
from .owner import SEALER, Lake, owner
from .reading import Rows

Sequences = npt.NDArray[np.int64]
_NONE: Sequences = np.empty(0, np.int64)

#: events compared with the store's at a time
WINDOW = 100_000


class Log(Protocol):
    """A store's own log, read past the lake; `sealing.Source` is one."""

    def head(self) -> tuple[int, int, int | None, int | None]: ...

    def events(self, lo: int, hi: int) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be."""

    table: str
    text: str

    def __str__(self) -> str:
        return f"{self.table}: {self.text}"


@dataclass(slots=True)
class Figures:
    """What was looked at; final when the findings have come to their end."""

    findings: int = 0
    files: int = 0
    size: int = 0
    events: int = 0
    payloads: int = 0
    #: payloads whose body was erased, or reaped before it was sealed
    without_body: int = 0
    #: events that were compared with the store's
    compared: int = 0
    oldest: int | None = None
    sealed: int | None = None


class Verification:
    """One look at a lake: iterate `findings`, then read `figures`."""

    def __init__(
        self, lake: Lake, log: Log | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """`progress` hears how many rows were read, and of how many."""
        self.figures = Figures()
        self._lake, self._log, self._progress = lake, log, progress
        self._read = self._all = 0

    def findings(self) -> Iterator[Finding]:
        for finding in self._findings():
            self.figures.findings += 1
            yield finding

    def _findings(self) -> Iterator[Finding]:
        try:
            if owner(self._lake) is None:
                yield Finding("lake.json", "is missing: nothing says whose lake this is")
        except LakeUnusable as error:
            yield Finding("lake.json", str(error))
        try:
            events, payloads = self._open()
        except LakeUnusable as error:
            yield Finding(self._lake.folder.name, str(error))
            return
        self._take_figures(events, payloads)
        if payloads.sealed < events.sealed:
            yield Finding(
                "payloads", f"goes up to {payloads.sealed}, and message_events up to {events.sealed}"
            )
        for table in (events, payloads):
            yield from table.check_files()
        yield from self._side_by_side(self._check_events(events), self._check_payloads(payloads, events))
        if self._log is not None:
            yield from self._compare(self._log, events)

    def _open(self) -> tuple[_Table, _Table]:
        """Both as they were at one moment: nothing was sealed or forgotten between the two."""
        while True:
            events = _Table(self._lake.events, "offset")
            payloads = _Table(self._lake.payloads, "sequence")
            if delta.open_table(self._lake.events).version() == events.rows.table.version():
                return events, payloads

    def _take_figures(self, events: _Table, payloads: _Table) -> None:
        files = (*events.rows.files, *payloads.rows.files)
        self.figures.files, self.figures.size = len(files), sum(file.size for file in files)
        self.figures.oldest, self.figures.sealed = events.oldest, events.sealed
        self._all = sum(file.rows for file in files)

    def _count(self, rows: int) -> None:
        self._read += rows
        if self._progress is not None:
            self._progress(self._read, self._all)

    def _check_events(self, table: _Table) -> Iterator[Finding | Sequences]:
        """Findings, and the sequences of the messages that were logged."""
        wanted, last_at = table.oldest, -(1 << 62)
        for batch in table.batches():
            if isinstance(batch, Finding):
                yield batch
                continue
            offsets = _numbers(batch, "offset")
            if not np.array_equal(offsets, np.arange(wanted, wanted + len(offsets))):
                yield Finding(table.name, _first_gap(offsets, wanted))
            moments = _numbers(batch, "at")
            fallen = np.flatnonzero(np.diff(moments, prepend=last_at) < 0)
            if len(fallen):
                yield Finding(
                    table.name, f"the moment of offset {offsets[fallen[0]]} is before the one of the last"
                )
            wanted, last_at = int(offsets[-1]) + 1, int(moments[-1])
            self.figures.events += len(offsets)
            self._count(len(offsets))
            yield offsets[offsets == _numbers(batch, "sequence")]
        if wanted != table.sealed + 1:
            yield Finding(table.name, f"ends with offset {wanted - 1}, and {table.sealed} were sealed")

    def _check_payloads(self, table: _Table, events: _Table) -> Iterator[Finding | Sequences]:
        """Findings, and the sequences that have a row, as far as the events go."""
        last = 0
        for batch in table.batches():
            if isinstance(batch, Finding):
                yield batch
                continue
            sequences = _numbers(batch, "sequence")
            steps = np.diff(sequences, prepend=last)
            if (steps <= 0).any():
                yield Finding(
                    table.name, f"{sequences[np.flatnonzero(steps <= 0)[0]]} stands there twice, or too late"
                )
            yield from self._check_bodies(table.name, batch)
            last = int(sequences[-1])
            self.figures.payloads += len(sequences)
            self._count(len(sequences))
            yield sequences[(sequences >= events.oldest) & (sequences <= events.sealed)]

    def _check_bodies(self, name: str, batch: pa.RecordBatch) -> Iterator[Finding]:
        columns = (batch.column(column) for column in ("sequence", "hash", "size", "body"))
        for sequence, expected, size, body in zip(*columns, strict=True):
            if not body.is_valid:
                self.figures.without_body += 1
                continue
            held = body.as_buffer()
            if held.size != size.as_py() or hashlib.sha256(held).hexdigest() != expected.as_py():
                yield Finding(name, f"the body of {sequence.as_py()} is not the one that was published")

    def _side_by_side(
        self, logged: Iterator[Finding | Sequences], stored: Iterator[Finding | Sequences]
    ) -> Iterator[Finding]:
        """The findings of both, and what only one of them has. Both come in rising order."""
        left, right = _Side(logged), _Side(stored)
        while left.more or right.more:
            for side in (left, right):
                yield from side.fill()
            upto = min(side.end for side in (left, right))
            only_left, only_right = _differences(left.take(upto), right.take(upto))
            if len(only_left):
                yield Finding("payloads", f"no row for {_some(only_left)}, logged in message_events")
            if len(only_right):
                yield Finding("payloads", f"a row for {_some(only_right)}, not logged in message_events")

    def _compare(self, log: Log, events: _Table) -> Iterator[Finding]:
        lo = events.oldest
        while True:
            oldest, head, *_ = log.head()  # it may move up while we look
            lo = max(lo, oldest)
            hi = min(lo + WINDOW - 1, events.sealed, head)
            if lo > hi:
                return
            try:
                theirs = log.events(lo, hi)
                ours = pa.Table.from_batches(reading.events(self._lake, lo, hi, theirs.column_names))
            except LogTrimmed:
                continue
            except (LakeUnusable, LogBroken) as error:
                yield Finding(events.name, f"cannot be compared with the store: {error}")
            else:
                self.figures.compared += hi - lo + 1
                if not ours.equals(theirs):
                    yield Finding(events.name, _first_difference(ours, theirs))
            lo = hi + 1


class _Table:
    """One version of a table, and those of its files that can be read."""

    def __init__(self, path: Path, column: str) -> None:
        self.name = path.name
        self.rows = Rows(path, column)
        self.sealed = self.rows.table.transaction_version(SEALER) or 0
        lows = [file.low for file in self.rows.files if file.low is not None]
        self.oldest = min(lows, default=self.sealed + 1)
        self._good = list(self.rows.files)
        self._column = column

    def check_files(self) -> Iterator[Finding]:
        for file in self.rows.files:
            if not file.path.is_file():
                yield Finding(self.name, f"{file.name} is missing, and with it {_range(file)}")
            elif file.path.stat().st_size != file.size:
                found = file.path.stat().st_size
                yield Finding(
                    self.name, f"{file.name} has {found} bytes instead of {file.size}: {_range(file)}"
                )
            else:
                continue
            self._good.remove(file)

    def batches(self) -> Iterator[pa.RecordBatch | Finding]:
        """All rows of the readable files, in order, and what is wrong with a file."""
        for file in self._good:
            rows, low, high = 0, reading.MOST, -reading.MOST
            try:
                for numbers, batch in self.rows.read(file):
                    rows, low, high = rows + len(numbers), min(low, numbers.min()), max(high, numbers.max())
                    yield batch
            except LakeUnusable as error:
                yield Finding(self.name, f"{error}, and with it {_range(file)}")
                continue
            if (rows, low, high) != (file.rows, file.low, file.high):
                yield Finding(
                    self.name,
                    f"{file.name} has {rows} rows from {low} to {high}; its log says {_range(file)}",
                )


class _Side:
    """A stream of rising numbers with findings between them."""

    def __init__(self, stream: Iterator[Finding | Sequences]) -> None:
        self._stream = stream
        self._held = _NONE
        self._ended = False

    @property
    def more(self) -> bool:
        return bool(len(self._held)) or not self._ended

    @property
    def end(self) -> int:
        """Up to here everything that comes is known."""
        return int(self._held[-1]) if len(self._held) else reading.MOST

    def fill(self) -> Iterator[Finding]:
        while not len(self._held) and not self._ended:
            found = next(self._stream, None)
            if found is None:
                self._ended = True
            elif isinstance(found, Finding):
                yield found
            else:
                self._held = found

    def take(self, upto: int) -> Sequences:
        cut = int(np.searchsorted(self._held, upto, side="right"))
        taken, self._held = self._held[:cut], self._held[cut:]
        return taken


def _differences(left: Sequences, right: Sequences) -> tuple[Sequences, Sequences]:
    if np.array_equal(left, right):
        return _NONE, _NONE
    return np.setdiff1d(left, right), np.setdiff1d(right, left)


def _numbers(batch: pa.RecordBatch, name: str) -> Sequences:
    found: Sequences = batch.column(name).cast(pa.int64()).to_numpy()
    return found


def _first_gap(offsets: Sequences, wanted: int) -> str:
    before = np.concatenate(([wanted - 1], offsets[:-1]))
    place = int(np.flatnonzero(offsets != before + 1)[0])
    return f"after offset {before[place]} comes {offsets[place]}"


def _first_difference(ours: pa.Table, theirs: pa.Table) -> str:
    differing = (name for name in theirs.column_names if not ours.column(name).equals(theirs.column(name)))
    for name in differing:
        pairs = zip(ours.column("offset"), ours.column(name), theirs.column(name), strict=True)
        for offset, our, their in pairs:
            if our != their:
                return f"{name} of offset {offset} is {our.as_py()!r}, and the store has {their.as_py()!r}"
    return "the store has other columns"


def _range(file: DataFile) -> str:
    return f"{file.rows} rows from {file.low} to {file.high}"


def _some(sequences: Sequences) -> str:
    first = ", ".join(map(str, sequences[:3].tolist()))
    return first if len(sequences) <= 3 else f"{first} and {len(sequences) - 3} more up to {sequences[-1]}"
