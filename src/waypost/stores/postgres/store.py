"""The PostgreSQL store: the lane that groups go through (`lane.py`), and what is read between them (`reading.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from ...commands import Batch, Command, Job, Staged, Upload
from ...destinations import Kind
from ...errors import PayloadReaped
from ...filters import Filter
from ...instants import Clock, SteadyClock
from ...message import Entropy, system_entropy
from ...policy import DEFAULT
from ...store import (
    Applied,
    ChannelInfo,
    ConsumerInfo,
    DeliveryInfo,
    Depths,
    Event,
    Feature,
    Heard,
    MessageInfo,
    ObjectInfo,
    QueueInfo,
    Races,
    SpectatorInfo,
    Stats,
    Task,
    Tenure,
    Undecided,
)
from .batches import put_chunk
from .connecting import open_checked
from .group import Keeping
from .lane import Common, Lane
from .reading import Reader
from .watching import SharedTask, Watch


class PostgresStore:
    #: PostgreSQL itself puts large values away, up to 1 GiB; a body comes whole and is bounded by the server's limit
    inline_bytes = 1 << 62
    threaded = shared = True
    lacks: frozenset[Feature] = frozenset()
    races: Races | None = None

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
    ) -> None:
        self.url = url
        self.clock = clock or SteadyClock()
        self._keeping = Keeping(log_keep_us, False, None)
        self.broker = os.urandom(8).hex()
        connection = open_checked(url)
        self._reader = Reader(url)
        self._watch = Watch(url, self.broker, self.clock)
        common = Common(url, self.clock, entropy or system_entropy(), infer_types, self._watch)
        self.lane = Lane(self.broker, common, connection)
        self._closed = False

    # ── groups ──────────────────────────────────────────────────────────────────────────────

    def apply(self, commands: Sequence[Command]) -> Applied:
        return self.lane.apply(commands, self._keeping)

    @property
    def sync_seconds(self) -> float:
        return self.lane.sync_seconds

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> bytes | Staged:
        return body

    def unstage(self, body: Staged) -> bytes:
        raise PayloadReaped("the PostgreSQL store stages nothing")

    def stage_chunk(self, id: str, chunk: bytes) -> bytes | Staged:
        put_chunk(self.url, id, chunk, self.clock())
        return Staged(len(chunk), id)

    def refusal(self) -> Exception | None:
        return None

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        return self._reader.ready(queue, kind)

    def queue(self, name: str) -> QueueInfo | None:
        return next(iter(self._reader.infos(Kind.QUEUE, name)), None)

    def queues(self) -> list[QueueInfo]:
        return self._reader.infos(Kind.QUEUE)

    def channel(self, name: str) -> ChannelInfo | None:
        return next(iter(self._reader.infos(Kind.CHANNEL, name)), None)

    def channels(self) -> list[ChannelInfo]:
        return self._reader.infos(Kind.CHANNEL)

    def object(self, name: str) -> ObjectInfo | None:
        return next(iter(self._reader.objects(name)), None)

    def objects(self) -> list[ObjectInfo]:
        return self._reader.objects()

    def consumer(self, name: str) -> ConsumerInfo | None:
        return self._reader.consumers().get(name)

    def consumers(self) -> list[ConsumerInfo]:
        return [info for _, info in sorted(self._reader.consumers().items())]

    def spectator(self, name: str) -> SpectatorInfo | None:
        return next((info for info in self.spectators() if info.name == name), None)

    def spectators(self) -> list[SpectatorInfo]:
        return self._reader.spectators()

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        return self._reader.depths(kind, name, at)

    def sparks(self) -> frozenset[str]:
        return self._reader.sparks()

    def undecided(
        self, after: int, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Undecided]:
        return self._reader.undecided(after, limit, only, but)

    def bounds(self) -> tuple[int, int]:
        return self._reader.bounds()

    def events(self, lo: int, hi: int) -> list[Event]:
        return self._reader.events(lo, hi)

    def offset_at(self, at: int) -> int:
        return self._reader.offset_at(at)

    def message(self, id: str) -> MessageInfo | None:
        return self._reader.message(id)

    def body(self, id: str) -> bytes | Staged:
        return self._reader.body(id)

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        return self._reader.find(filter, after, limit)

    def job(self, id: str) -> Job | None:
        return self._reader.job(id)

    def batch(self, query: str, batch: int) -> Batch | None:
        return self._reader.batch(query, batch)

    def open_batches(self) -> list[Batch]:
        return self._reader.open_batches()

    def uploads(self, batch: int | None) -> list[Upload]:
        return self._reader.uploads(batch)

    def chunk(self, id: str) -> bytes | Staged:
        return self._reader.chunk(id)

    def stats(self) -> Stats:
        return self._reader.stats()

    def id(self) -> str:
        return self._reader.id()

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        self._keeping = Keeping(self._keeping.log_keep_us, on, holds)
        self._watch.keeps_lake = on

    def sealed(self) -> int | None:
        return self._reader.sealed() if self._keeping.lake else None

    def erasures(self) -> list[int]:
        return self._reader.erasures()

    def export_source(self) -> str | None:
        return self.url

    def listen(self, heard: Callable[[Heard], None]) -> None:
        self._watch.listen(heard)

    def awaited(self, on: bool) -> None:
        self._watch.awaited(on)

    def owns(self, task: Task) -> bool:
        return self._watch.owns(task)

    def tenure(self, task: Task) -> Tenure:
        return SharedTask(self._watch, task)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watch.stop()
        self.lane.close()
        self._reader.close()
