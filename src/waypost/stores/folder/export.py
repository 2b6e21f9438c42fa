"""Export: ranges of the log as Arrow, for whoever seals or analyses.

Runs in another process than the broker's. It reads the log's file and nothing else, under the shared lock for as long as it takes to
see how far whole groups go; what lies before that never changes. Payloads are not exported, since their files are gone as soon as
their messages are done: each has its row, as every message in a lake does, and no body.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ...arrow import EVENTS, PAYLOADS
from ...delivery import LETTERS
from ...errors import LogBroken, LogTrimmed, NotOffered
from ...store import Event
from .locking import shared
from .log import Log, Standing, read_header
from .records import Logged, Stepped, by_record

#: of payloads, at once
BATCH_ROWS = 50_000

_Row = tuple[Logged | Stepped, Event]


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
        self._log = Log(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        self._begin = read_header(self._log.descriptor)
        self._end = self._begin.position
        self._standing = self._begin.standing

    def close(self) -> None:
        os.close(self._log.descriptor)

    @property
    def id(self) -> str:
        """The store's own."""
        return self._begin.id

    def head(self) -> Head:
        standing = self._look()
        return Head(standing.oldest, standing.head, standing.sealed or 0, standing.at)

    def _look(self) -> Standing:
        with shared(self._log.descriptor):
            self._begin = read_header(self._log.descriptor)
            if self._begin.position > self._end:
                self._end, self._standing = self._begin.position, self._begin.standing
            self._log.places.forget(self._begin.position)
            for frame in self._log.follow(self._end):
                self._end, self._standing = frame.end, frame.standing
        return self._standing

    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Exactly the events lo … hi in their order, with the columns of EVENTS or those named. Raises LogTrimmed when lo is older
        than what is kept, LogBroken when one is missing."""
        standing = self._look()
        if lo < standing.oldest:
            raise LogTrimmed(standing.oldest)
        if hi > standing.head:
            raise LogBroken(f"the log ends at {standing.head}, and {hi} was asked for")
        rows = list(self._rows(lo, hi))
        if len(rows) != max(hi - lo + 1, 0):
            oldest = self._look().oldest
            if lo < oldest:
                raise LogTrimmed(oldest)  # meanwhile
            raise LogBroken(f"{len(rows)} events lie in {lo} to {hi}")
        wanted = EVENTS.names if columns is None else columns
        arrays = [
            pa.array([_COLUMNS[name](*row) for row in rows], EVENTS.field(name).type) for name in wanted
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema([EVENTS.field(name) for name in wanted]))

    def _rows(self, lo: int, hi: int) -> Iterator[_Row]:
        place = self._log.places.before_offset(lo)
        start = self._begin.position if place is None else place
        for frame in self._log.frames(start, self._end):
            if frame.first > hi:
                return
            if frame.first + frame.events <= lo:
                continue
            for record, events in by_record(frame.records(), frame.first, frame.at):
                yield from ((record, event) for event in events if lo <= event.offset <= hi)

    def payloads(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """PAYLOADS of the messages lo … hi, by sequence, without their bodies."""
        self._look()
        logged = ((record, event) for record, event in self._rows(lo, hi) if event.envelope is not None)
        while some := list(islice(logged, BATCH_ROWS)):
            columns = {name: [form(*row) for row in some] for name, form in _PAYLOADS.items()}
            yield pa.RecordBatch.from_pydict(columns, PAYLOADS)

    def messages(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        raise NotOffered("the folder store has no tables of its own", "the pipeline makes them from the log")

    deliveries = messages


def _said(name: str) -> Callable[[Logged | Stepped, Event], Any]:
    """Of L only."""
    return lambda record, event: None if event.envelope is None else getattr(event.envelope, name)


def _of_event(name: str) -> Callable[[Logged | Stepped, Event], Any]:
    return lambda record, event: getattr(event, name)


#: column -> what an event has there
_COLUMNS: dict[str, Callable[[Logged | Stepped, Event], Any]] = {
    **{
        name: _of_event(name)
        for name in (
            "offset",
            "at",
            "message_id",
            "sequence",
            "queue",
            "channel",
            "slot",
            "attempt",
            "consumer",
            "reason",
            "duration_ms",
            "size",
            "same_as",
        )
    },
    **{name: _said(name) for name in ("object", "key", "mime_type", "producer", "timestamp", "sent")},
    "topics": lambda record, event: None if event.envelope is None else list(event.envelope.topics),
    "hash": lambda record, event: None if event.hash is None else event.hash.hex(),
    "from_state": lambda record, event: None if event.from_state is None else LETTERS[event.from_state],
    "to_state": lambda record, event: LETTERS[event.to_state],
    "from_code": lambda record, event: None if event.from_state is None else int(event.from_state),
    "to_code": lambda record, event: int(event.to_state),
    "destination_code": lambda record, event: None if event.queue is None else record.number,
    "consumer_code": lambda record, event: (
        record.consumer_number if event.consumer is not None and isinstance(record, Stepped) else None
    ),
}


def _meta(record: Logged | Stepped, event: Event) -> str | None:
    """As JSON shows it."""
    said = () if event.envelope is None else event.envelope.meta
    return msgspec.json.encode(dict(said)).decode() if said else None


_PAYLOADS: dict[str, Callable[[Logged | Stepped, Event], Any]] = {
    **{name: _COLUMNS[name] for name in ("sequence", "at", "message_id", "mime_type", "hash", "size")},
    **{name: _said(name) for name in ("encoding", "traceparent")},
    "meta": _meta,
    "priority": lambda record, event: record.priority if isinstance(record, Logged) else None,
    "body": lambda record, event: None,
}
