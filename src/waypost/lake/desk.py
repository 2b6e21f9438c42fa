"""The desk: what the child was asked, done in its turn.

    seal, erase, maintain, open ──▶ one thread, one after the other: these write
    look                        ──▶ the same thread: where another broker writes, how far it has come
    events, tables              ──▶ two threads; each read makes as many pieces as its reader has asked for, then waits

What is sealed is read from the lake, the rest from the store's file. A range that is asked for whole is checked for its number of rows by
whoever reads it (`reading.py`, `export.py`), so a stream that comes to its end has everything.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow import EVENTS, LIVE
from ..errors import LakeUnusable, LogTrimmed, Refused
from ..message import parse_id
from ..store import Task
from ..stores.exporting import is_owner, open_export
from . import delta, maintaining, reading, sealing
from .forms import JSON_COLUMNS, ArrowStream, Choice, check_columns, json_lines, projected
from .frames import PIECE_BYTES, Ask, Tell, What
from .owner import SEALER, Lake, check_owner, claim, writing

if TYPE_CHECKING:
    from ..stores.exporting import Export

#: events read from the store's file at a time
RANGE_EVENTS = 1 << 16
#: pieces that a read makes before another one has its turn
TURN_PIECES = 8
READING_THREADS = 2
#: what tells two events of one offset apart
_SAME = ("offset", "at", "message_id", "sequence", "to_state")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Figures = dict[str, Any]


class Teller(Protocol):
    def tell(self, tell: Tell, body: bytes | memoryview = b"") -> None: ...


def failure(id: int, error: BaseException) -> Tell:
    """A refusal keeps its word; anything else is the lake's own trouble, in one line."""
    if isinstance(error, Refused):
        return Tell(id, What.FAILED, code=error.code, detail=error.detail, hint=error.hint)
    text = str(error).strip().partition("\n")[0]
    plain = isinstance(error, LakeUnusable) and text
    return Tell(id, What.FAILED, detail=text if plain else f"{type(error).__name__}: {text}".rstrip(": "))


class Desk:
    def __init__(self, pipe: Teller) -> None:
        self._pipe = pipe
        self._writing = ThreadPoolExecutor(1, "lake")
        self._reading = ThreadPoolExecutor(READING_THREADS, "read")
        self._exports = Exports()
        self._lake: OpenLake | None = None
        self._reads: dict[int, Read] = {}
        self._writes: dict[str, Callable[..., Figures]] = {
            "open": self._open,
            "seal": self._seal,
            "erase": lambda id, sequences: self._opened.erase(sequences),
            "maintain": lambda id: self._opened.maintain(),
            "tidy": lambda id: self._opened.tidy(),
            "look": lambda id: self._opened.look(),
        }
        self._looks: dict[str, Callable[..., Figures]] = {
            "offset_at": lambda id, at: self._opened.offset_at(at),
            "find": lambda id, message: self._opened.find(message),
        }
        self._streams: dict[str, Callable[..., Iterator[bytes]]] = {
            "events": self._events,
            "table": self._table,
        }

    def take(self, ask: Ask) -> None:
        """In the thread that reads the pipe: nothing here takes long."""
        if ask.do == "begin":
            self._exports.begin(ask.given["source"])
            self._pipe.tell(Tell(ask.id, What.DONE))
        elif ask.do in self._writes:
            self._writing.submit(self._answer, ask, self._writes[ask.do])
        elif ask.do in self._looks:
            self._reading.submit(self._answer, ask, self._looks[ask.do])
        elif ask.do in self._streams:
            self._begin_read(ask)
        else:
            read = self._reads.get(ask.id)  # it may have come to its end
            if read is not None:
                read.stop() if ask.do == "stop" else read.more(ask.given["pieces"])

    def _answer(self, ask: Ask, do: Callable[..., Figures]) -> None:
        try:
            self._pipe.tell(Tell(ask.id, What.DONE, do(ask.id, **ask.given)))
        except BaseException as error:
            self._pipe.tell(failure(ask.id, error))
        give_back_memory()

    @property
    def _opened(self) -> OpenLake:
        if self._lake is None:
            raise LakeUnusable("the lake is not open")
        return self._lake

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def _open(
        self, id: int, lake: str, store: str, keep_us: int | None, writes: bool, broker: str | None
    ) -> Figures:
        """`broker`: the one of this process, where it can lose the right to write to another."""
        if self._lake is None or self._lake.writes != writes:
            fence = delta.nothing if broker is None else Fence(self._exports, broker)
            with self._exports.one() as export:
                if writes:
                    opened = OpenLake.open(Lake(Path(lake)), store, keep_us, export, fence, broker is None)
                else:
                    opened = OpenLake.open_to_read(Lake(Path(lake)), store, export)
            self._lake = opened
        return {**self._lake.figures(), "mended": self._lake.mended}

    def _seal(self, id: int, upto: int) -> Figures:
        lake = self._opened

        def progress(sealed: int) -> None:
            lake.sealed = sealed
            self._pipe.tell(Tell(id, What.PROGRESS, lake.figures()))

        with self._exports.one() as export:
            lake.seal(export, upto, progress)
        return lake.figures()

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def _begin_read(self, ask: Ask) -> None:
        given = dict(ask.given)
        pieces = given.pop("pieces")
        read = Read(ask.id, self._streams[ask.do](**given), self._pipe, self._reading, self._ended)
        self._reads[ask.id] = read
        read.more(pieces)

    def _ended(self, id: int) -> None:
        self._reads.pop(id, None)
        if not self._reads:
            give_back_memory()

    def _events(
        self,
        *,
        lo: int,
        hi: int,
        form: str,
        columns: Sequence[str] | None,
        queue: str | None,
        channel: str | None,
        topic: str | None,
        payload: bool,
        limit: int | None,
        erased: Sequence[int],
        use_lake: bool,
    ) -> Iterator[bytes]:
        choice = Choice(queue, channel, topic)
        if form == "json":
            tables = chosen(self._ranges(lo, hi, choice.columns(JSON_COLUMNS), use_lake), choice, limit)
            for events in tables:
                yield from self._lines(events, payload, frozenset(erased))
            return
        wanted = check_columns(columns, EVENTS)
        schema = projected(EVENTS, wanted)
        stream = ArrowStream(schema)
        yield stream.taken()
        for events in chosen(self._ranges(lo, hi, choice.columns(wanted), use_lake), choice, limit):
            yield from arrow_pieces(stream, events.select(wanted).cast(schema))
        yield stream.end()

    def _ranges(self, lo: int, hi: int, columns: Sequence[str], use_lake: bool) -> Iterator[pa.Table]:
        """All events lo … hi in their order, from where they are."""
        failed_at = 0
        while lo <= hi:
            lake = self._lake if use_lake else None
            if lake is not None and lo <= lake.sealed:
                try:
                    for batch in reading.events(lake.lake, lo, min(hi, lake.sealed), columns):
                        yield pa.Table.from_batches([batch])
                        lo += batch.num_rows
                except LakeUnusable:
                    # A reader slower than an hour finds its files replaced: the newest version has the same rows.
                    if lo == failed_at:
                        raise
                    failed_at = lo
                continue
            end = min(hi, lo + RANGE_EVENTS - 1)
            try:
                with self._exports.one() as export:
                    table = export.events(lo, end, columns)
            except LogTrimmed:
                if lake is None or lo > lake.sealed:
                    raise
                continue  # sealed and let go since it was looked at
            yield table
            lo = end + 1

    def _lines(self, events: pa.Table, payload: bool, erased: frozenset[int]) -> Iterator[bytes]:
        if not payload or not events.num_rows:
            yield json_lines(events)
            return
        for some, bodies in with_bodies(self._opened.lake, events):
            yield json_lines(
                some, {sequence: None if sequence in erased else body for sequence, body in bodies.items()}
            )

    def _table(
        self, *, table: str, lo: int, hi: int, columns: Sequence[str] | None, use_lake: bool
    ) -> Iterator[bytes]:
        wanted = check_columns(columns, LIVE[table])
        stream = ArrowStream(projected(LIVE[table], wanted))
        yield stream.taken()
        with self._exports.one() as export:
            rows = export.messages if table == "messages" else export.deliveries
            for batch in rows(lo, hi, wanted):
                yield from arrow_pieces(stream, pa.Table.from_batches([batch]))
        yield stream.end()


def chosen(tables: Iterable[pa.Table], choice: Choice, limit: int | None) -> Iterator[pa.Table]:
    """Of each range those that are wanted; also where that is none, so that it is known that the work goes on."""
    left = limit
    for table in tables:
        if left == 0:
            return
        found = choice.of(table).slice(0, left)
        left = None if left is None else left - found.num_rows
        yield found


def arrow_pieces(stream: ArrowStream, table: pa.Table) -> Iterator[bytes]:
    for batch in table.to_batches(RANGE_EVENTS):
        yield stream.add(batch)
    if not table.num_rows:
        yield b""


def with_bodies(lake: Lake, events: pa.Table) -> Iterator[tuple[pa.Table, dict[int, bytes | None]]]:
    """The events a part at a time, each with the bodies of its L: so many bodies as lie together in a file."""
    offsets = events["offset"].to_numpy()
    start = 0
    for batch in reading.payloads(lake, int(offsets[0]), int(offsets[-1]), ["sequence", "body"]):
        sequences = batch["sequence"].to_pylist()
        end = int(np.searchsorted(offsets, sequences[-1], side="right"))
        yield events.slice(start, end - start), dict(zip(sequences, batch["body"].to_pylist(), strict=True))
        start = end
    yield events.slice(start), {}


class Fence:
    """Stops who is about to write after the lake became another broker's to write. One that hangs between this and its commit finds
    the other's there: Delta refuses it."""

    def __init__(self, exports: Exports, broker: str) -> None:
        self._exports, self._broker = exports, broker

    def __call__(self, point: str) -> None:
        if point.endswith((delta.COMMITTING, delta.TIDYING)):
            with self._exports.one() as export:
                if not is_owner(export, Task.SEAL, self._broker):
                    raise LakeUnusable("another broker writes to the lake now")


class OpenLake:
    """The lake while it is this process's to write; or, opened to read, another broker's."""

    #: the lock, for as long as this process lives; where there is one
    _held: ExitStack

    def __init__(
        self, lake: Lake, keep_us: int | None, fence: delta.Reached = delta.nothing, *, writes: bool = True
    ) -> None:
        self.lake, self._keep_us, self._fence, self.writes = lake, keep_us, fence, writes
        self.oldest, self.sealed = self._stand()
        #: what was found torn and taken back, a line each
        self.mended: list[str] = []
        #: touched by each maintenance
        self._stamp = lake.folder / ".maintained"
        self._look()

    @classmethod
    def open(
        cls, lake: Lake, store: str, keep_us: int | None, export: Export, fence: delta.Reached, lock: bool
    ) -> OpenLake:
        """Ours, mended, and no further than the store. `lock`: that of a child that is ending is waited for."""
        head = export.head()
        check_owner(lake, store, head.sealed)
        with ExitStack() as held:
            if lock:
                held.enter_context(writing(lake, SEALER, wait=True))
            fence(delta.COMMITTING)
            claim(lake, store, head.sealed)
            mended = sealing.prepare(lake, head.oldest)
            opened = cls(lake, keep_us, fence)
            opened.mended = mended
            if head.sealed and head.oldest > 1 and not opened.sealed:
                raise LakeUnusable(
                    f"{lake.folder} is empty, and the store has sealed up to {head.sealed} and forgotten what is before "
                    f"{head.oldest}: bring the lake's files back"
                )
            opened._check_its_end(export)
            opened._held = held.pop_all()
        return opened

    @classmethod
    def open_to_read(cls, lake: Lake, store: str, export: Export) -> OpenLake:
        """As another broker has left it so far. Changes nothing."""
        check_owner(lake, store, export.head().sealed)
        opened = cls(lake, None, writes=False)
        opened._check_its_end(export)
        return opened

    def look(self) -> Figures:
        self.oldest, self.sealed = self._stand()
        return self.figures()

    def _check_its_end(self, export: Export) -> None:
        """The last sealed event is the same in the store: if not, an older copy of the store goes on where the lake went on otherwise."""
        head, last = export.head(), self.sealed
        if last > head.head:
            why = f"the store's log only to {head.head}"
        elif head.oldest <= last and export.events(last, last, _SAME).to_pylist() != self._last_event():
            why = f"the store has another event at {last}"
        else:
            return
        raise LakeUnusable(
            f"{self.lake.folder} goes up to offset {last}, and {why}: was an older copy of the store restored? "
            "Give it a new folder with --lake"
        )

    def _last_event(self) -> list[dict[str, Any]]:
        return [
            row
            for batch in reading.events(self.lake, self.sealed, self.sealed, _SAME)
            for row in batch.to_pylist()
        ]

    def _stand(self) -> tuple[int | None, int]:
        stands = reading.standing(self.lake)
        return (stands.oldest if stands.events else None), stands.sealed or 0

    def figures(self) -> Figures:
        """How far it goes, when it was maintained, and when removed files may go from the disk."""
        return {
            "oldest": self.oldest,
            "sealed": self.sealed,
            "maintained_at": self._maintained_at,
            "tidy_at": self._tidy_at,
        }

    def _look(self) -> None:
        due = maintaining.vacuum_due(self.lake.payloads)
        self._tidy_at = None if due is None else due.timestamp()
        stamp = self._stamp if self._stamp.exists() else self.lake.label
        self._maintained_at = stamp.stat().st_mtime

    def seal(self, export: Export, upto: int, progress: Callable[[int], None]) -> None:
        if self.oldest is None:
            self.oldest = export.head().oldest
        self.sealed = sealing.seal_upto(export, self.lake, upto, progress=progress, reached=self._fence).upto

    def erase(self, sequences: Sequence[int]) -> Figures:
        """`erased`: those that are done; the others are not sealed yet, and will be without their bodies."""
        erased = maintaining.erase(self.lake, sequences, reached=self._fence)
        self._look()
        return {**self.figures(), "erased": erased}

    def maintain(self) -> Figures:
        older_than = None
        if self._keep_us is not None:
            older_than = datetime.now(UTC) - timedelta(microseconds=self._keep_us)
        maintained = maintaining.maintain(self.lake, older_than=older_than, reached=self._fence)
        self._stamp.touch()
        self.oldest, self.sealed = self._stand()
        self._look()
        return {**self.figures(), "maintained": asdict(maintained)}

    def tidy(self) -> Figures:
        maintaining.tidy(self.lake.payloads, reached=self._fence)
        self._look()
        return self.figures()

    def find(self, message: str) -> Figures:
        """The sequence of a message by its id."""
        parsed = parse_id(message)
        columns = ["sequence", "message_id"]
        if parsed is not None:
            rows = reading.payloads_of(self.lake, [parsed.sequence], columns)
            if message in rows["message_id"].to_pylist():
                return {"sequence": parsed.sequence}
        for batch in reading.payloads(self.lake, self.oldest or 1, self.sealed, columns):
            found = batch.filter(pc.equal(batch["message_id"], message))
            if found.num_rows:
                return {"sequence": found["sequence"][0].as_py()}
        return {"sequence": None}

    def offset_at(self, at: int) -> Figures:
        """The first offset that is not before the instant, None where none is; and the instant of the first event."""
        moment = _EPOCH + timedelta(microseconds=at)
        files = delta.data_files(delta.open_table(self.lake.events), self.lake.events, "offset")
        first_at = files[0].first_at if files else None
        oldest_at = None if first_at is None else (first_at - _EPOCH) // timedelta(microseconds=1)
        for file in files:
            if file.last_at is not None and file.last_at >= moment:
                for batch in reading.events(self.lake, file.low or 0, file.high or 0, ["offset", "at"]):
                    later = batch.filter(pc.greater_equal(batch["at"], pa.scalar(moment, batch["at"].type)))
                    if later.num_rows:
                        return {"offset": later["offset"][0].as_py(), "oldest_at": oldest_at}
        return {"offset": None, "oldest_at": oldest_at}


class Exports:
    """Readers of the store's file, each used by one thread at a time."""

    def __init__(self) -> None:
        self._source = ""
        self._idle: list[Export] = []
        self._lock = threading.Lock()

    def begin(self, source: str) -> None:
        self._source = source

    @contextmanager
    def one(self) -> Iterator[Export]:
        with self._lock:
            export = self._idle.pop() if self._idle else None
        export = export or open_export(self._source)
        try:
            yield export
        except BaseException:
            export.close()
            raise
        with self._lock:
            self._idle.append(export)


class Read:
    """One stream on its way to its reader."""

    def __init__(
        self,
        id: int,
        pieces: Iterable[bytes],
        pipe: Teller,
        pool: ThreadPoolExecutor,
        on_end: Callable[[int], None],
    ) -> None:
        self._id, self._pipe, self._pool, self._on_end = id, pipe, pool, on_end
        self._pieces = cut(pieces)
        self._lock = threading.Lock()
        self._asked = 0
        self._running = self._stopped = False

    def more(self, pieces: int) -> None:
        with self._lock:
            self._asked += pieces
            if self._running:
                return
            self._running = True
        self._pool.submit(self._run)

    def stop(self) -> None:
        """After the piece that is being made."""
        with self._lock:
            self._stopped = True
            if self._running:
                return
            self._running = True
        self._pool.submit(self._run)

    def _run(self) -> None:
        for _ in range(TURN_PIECES):
            with self._lock:
                if self._stopped:
                    break
                if not self._asked:
                    self._running = False
                    return
                self._asked -= 1
            try:
                piece = next(self._pieces)
            except StopIteration:
                self._end(Tell(self._id, What.DONE))
                return
            except BaseException as error:
                self._end(failure(self._id, error))
                return
            self._pipe.tell(Tell(self._id, What.PIECE), piece)
        if self._stopped:
            self._end(None)
        else:
            self._pool.submit(self._run)

    def _end(self, last: Tell | None) -> None:
        self._pieces.close()
        if last is not None:
            self._pipe.tell(last)
        self._on_end(self._id)


def give_back_memory() -> None:
    """What a seal or a large read needed is not kept for the next one."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it


def cut(pieces: Iterable[bytes]) -> Generator[memoryview, None, None]:
    """Into parts that no frame is too long for; an empty piece stays one: it says that the work goes on."""
    for piece in pieces:
        whole = memoryview(piece)
        yield whole[:PIECE_BYTES]
        for start in range(PIECE_BYTES, len(whole), PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]
