"""The one seam: what the broker asks of a store, and what a store shows.

    broker --- apply(commands) ---> store          one caller at a time; one transaction; one sync
           <-- results, ready, due -

`apply` is plain blocking code. Commands are decided in order, earlier ones visible to later ones; when it returns, all of it
is on stable media. It raises only `StoreBroken`: then nothing of the group may be acknowledged, and the process must end.
Everything else here reads committed state and may be called between groups, from the thread that calls `apply` or any other.

A new store passes `waypost.testing.StoreTests` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from .commands import Batch, Command, Job, Staged, Upload
from .consumers import Consumer
from .delivery import State
from .destinations import Kind
from .filters import Filter
from .instants import Clock
from .message import Envelope
from .objects import ObjectPolicy
from .policy import Policy
from .topics import any_topic_matches


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What a group did."""

    #: one for each command, a `Refused` where it was not carried out
    results: list[Any]
    #: queue -> how many deliveries became fetchable
    ready: Mapping[str, int]
    #: when a Tick is needed next
    due_at: int | None
    #: whether a job waits for a Work
    working: bool = False
    #: channel -> how many deliveries became fetchable
    ready_channels: Mapping[str, int] = {}
    #: the lowest sequence of messages that wait for a Decide since this group; None: none came
    logged: int | None = None


class Heard(msgspec.Struct, frozen=True, gc=False):
    """What others did, or what time brought, in a home that several brokers share."""

    #: without results
    applied: Applied
    #: whether `due_at` and `working` were looked at
    timed: bool = False
    #: whether queues, channels, objects or consumers changed, or this broker's tasks
    renamed: bool = False


class Task(StrEnum):
    """What one broker does for all that share a home."""

    EXPIRY = "expiry"  #: leases that are over, delays, ttls
    JOBS = "jobs"
    REAPING = "reaping"
    PUSH = "push"
    SEAL = "seal"  #: all that is written to the lake; only of those who were told where it is


class Tenure(Protocol):
    """A task that brokers share, as one of them sees it."""

    #: by which other processes know whether the task is this broker's (`stores.exporting.is_owner`)
    broker: str

    def asked(self) -> int:
        """Up to where others have asked for it, as of a second ago. Cheap."""
        ...

    def ask(self, upto: int) -> None:
        """Whichever broker does it hears of it within a second. From any thread but the event loop's."""
        ...


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transition, as the log shows it."""

    offset: int
    at: int
    message_id: str
    sequence: int
    #: both None for L, U and X, which are the message's own
    queue: str | None = None
    channel: str | None = None
    slot: int | None = None
    from_state: State | None = None
    to_state: State
    attempt: int | None = None
    consumer: str | None = None
    reason: str | None = None
    #: time spent in from_state
    duration_ms: int | None = None
    #: on L only, with hash and size
    envelope: Envelope | None = None
    hash: bytes | None = None
    size: int | None = None
    same_as: str | None = None


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    policy: Policy
    created_at: int
    #: deliveries in each state
    states: dict[State, int]
    #: bytes of what has not ended
    bytes: int
    #: of those waiting, how many could be fetched now
    ready: int


class ChannelInfo(QueueInfo, frozen=True, kw_only=True):
    #: patterns
    topics: tuple[str, ...]

    def wants(self, topics: tuple[str, ...]) -> bool:
        """Whether it gets messages of these topics."""
        return any(any_topic_matches(pattern, topics) for pattern in self.topics)


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    policy: ObjectPolicy
    #: how many messages were unchanged, by producer
    unchanged: dict[str, int]
    #: how many wait in L for a decision
    logged: int


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    consumer: Consumer
    created_at: int


class SpectatorInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: the last one it has read
    offset: int
    #: how many events it has not read
    lag: int
    #: when it said so
    at: int


class Depths(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries were in each state at a moment."""

    at: int
    #: the last event counted
    offset: int
    states: dict[State, int]


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """A message in L."""

    id: str
    sequence: int
    envelope: Envelope
    created_at: int
    size: int
    body: bytes | Staged


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery as search and the message's page show it."""

    sequence: int
    message_id: str
    #: one of the two
    queue: str | None
    channel: str | None = None
    slot: int
    state: State
    attempt: int
    consumer: str | None
    #: the last one given
    reason: str | None
    created_at: int
    changed_at: int
    #: when it may be fetched, or when its lease ends
    due_at: int | None
    #: the only one who may fetch it; None: anyone
    named: str | None = None


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message with all that happened to it."""

    id: str
    sequence: int
    envelope: Envelope
    hash: bytes
    size: int
    priority: int
    created_at: int
    expires_at: int | None
    #: from its queue slots; L before it is routed, U when it repeats `same_as`
    state: State
    same_as: str | None
    deliveries: list[DeliveryInfo]
    #: its events, as far back as the log goes
    journey: list[Event]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a whole store."""

    #: of the log: the first offset that can be read, and the last
    oldest: int
    head: int
    #: bytes on disk, 0 where there is none
    disk_bytes: int
    #: messages in L, for which nobody has decided yet
    undecided: int


class Races(msgspec.Struct):
    """What a store counts whose messages others fetch as well."""

    #: taken by somebody else before it could be opened, and between that and the rename
    lost_opens: int = 0
    lost_renames: int = 0
    #: waits because there was little to choose from
    naps: int = 0


class Feature(StrEnum):
    """What a store may do without. The routes that need it answer 501 then, and the tests of it do not apply."""

    CHANNELS = "channels"
    #: unchanged detection, and messages that stop at L for a routing function or for Spark
    OBJECTS = "objects"
    #: registered ones: webhooks, `complete: all`
    CONSUMERS = "consumers"
    #: more deliveries of a message than one: several queues, several slots, a queue for dead letters
    SEVERAL = "several"
    #: many messages in one request, all or none
    ATOMIC = "atomic"
    #: bodies of what has ended, for the policy's `keep`
    KEPT = "kept"
    #: erasing a payload
    ERASING = "erasing"
    #: depths as of a past moment
    MOMENTS = "moments"
    #: its own rows as Arrow, for Spark
    TABLES = "tables"


class Store(Protocol):
    #: what it cannot do
    lacks: frozenset[Feature]
    #: bodies above this go through `stage` first
    inline_bytes: int
    #: True where `apply` must never run in the event loop's thread
    threaded: bool
    #: True where other brokers may write to the same home: what was read is outdated the next moment, and a read may take its time
    shared: bool
    #: what its instants come from
    clock: Clock
    #: None where nobody else fetches
    races: Races | None

    @property
    def sync_seconds(self) -> float:
        """How long the last sync took."""
        ...

    def apply(self, commands: Sequence[Command]) -> Applied:
        """Called by the committer alone, one group at a time. A repeat is a new group."""
        ...

    def stage(self, body: bytes) -> bytes | Staged:
        """The slow half of storing a large body: from any thread, before its Publish is applied. A body
        staged and never published is removed by the store at its next start."""
        ...

    def unstage(self, body: Staged) -> bytes:
        """The bytes of a large body, from any thread. Raises PayloadReaped when they are gone."""
        ...

    def stage_chunk(self, id: str, chunk: bytes) -> bytes | Staged:
        """The slow half of keeping an upload: from any thread, before its KeepUpload is applied. One that is never kept goes as an upload
        does that has no batch, or at the next start."""
        ...

    def refusal(self) -> Exception | None:
        """Why publishes are refused at this moment (a disk almost full), or None. Cheap: called for every publish."""
        ...

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        """How many deliveries a fetch would find now; None: no such queue or channel. Cheap: called before every fetch."""
        ...

    def queue(self, name: str) -> QueueInfo | None: ...

    def queues(self) -> list[QueueInfo]: ...

    def channel(self, name: str) -> ChannelInfo | None: ...

    def channels(self) -> list[ChannelInfo]: ...

    def object(self, name: str) -> ObjectInfo | None: ...

    def objects(self) -> list[ObjectInfo]:
        """Those with a policy."""
        ...

    def consumer(self, name: str) -> ConsumerInfo | None: ...

    def consumers(self) -> list[ConsumerInfo]:
        """By name."""
        ...

    def spectator(self, name: str) -> SpectatorInfo | None: ...

    def spectators(self) -> list[SpectatorInfo]: ...

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        """As of a moment; None: there was no such queue or channel. Raises LogTrimmed, with the oldest moment, when that is
        longer ago than what is kept."""
        ...

    def sparks(self) -> frozenset[str]:
        """Objects whose messages Spark routes. Cheap."""
        ...

    def undecided(
        self, after: int, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Undecided]:
        """Messages in L, by sequence, from beyond `after` on: of these objects only, or of all but those. Whoever decides in that
        order, from the lowest on, lets none be overtaken; `only` and `but` are said, and not looked up, so that what is chosen does
        not change between two reads."""
        ...

    def bounds(self) -> tuple[int, int]:
        """(oldest, head): the log's first and last readable offsets; (1, 0) when it is empty."""
        ...

    def events(self, lo: int, hi: int) -> list[Event]:
        """Exactly the events lo … hi. Raises LogTrimmed when lo is older than what is kept."""
        ...

    def offset_at(self, at: int) -> int:
        """The first offset whose event is not before that instant; head + 1 when there is none."""
        ...

    def message(self, id: str) -> MessageInfo | None: ...

    def body(self, id: str) -> bytes | Staged:
        """Raises MessageNotFound or PayloadReaped."""
        ...

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        """Deliveries of messages whose sequence is greater than `after`, in log order, whole messages at a time;
        and the `after` for the next page, None when there is none. May return fewer than asked, even none, with a next page: it
        looks at a bounded number of rows."""
        ...

    def job(self, id: str) -> Job | None: ...

    def batch(self, query: str, batch: int) -> Batch | None: ...

    def open_batches(self) -> list[Batch]:
        """Accepted, and not all of their rows are in; the oldest first. Cheap where nobody else writes."""
        ...

    def uploads(self, batch: int | None) -> list[Upload]:
        """Of the batch with this number, in its order, while it is open; None: those that wait for one."""
        ...

    def chunk(self, id: str) -> bytes | Staged:
        """Of an upload. Raises PayloadReaped."""
        ...

    def stats(self) -> Stats: ...

    def id(self) -> str:
        """The store's own, from its creation."""
        ...

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        """Whether there is a lake, off until somebody says so; and up to where it was seen to go, None: to where it was sealed. A
        lake that was restored from a copy may hold less than was sealed once.

        With one, events leave the store when they are sealed and old enough, whoever has read them, and a body only when its L is sealed.
        Without, named spectators hold events."""
        ...

    def sealed(self) -> int | None:
        """The last offset that the lake holds, 0: none yet; None without a lake. Cheap."""
        ...

    def erasures(self) -> list[int]:
        """Sequences, ascending, of payloads that were erased here and that the lake may still hold."""
        ...

    def export_source(self) -> str | None:
        """What another process opens to export the store's log and rows: a file's absolute path or a URL, for `stores.exporting`, never for anybody's eyes. None:
        there is nothing to open, and no lake."""
        ...

    def listen(self, heard: Callable[[Heard], None]) -> None:
        """Once, when a broker starts. In a shared home `heard` is called, from any thread, with what others made ready while
        somebody is `awaited` here, and with what is due for the tasks that are this broker's. Elsewhere it never is."""
        ...

    def awaited(self, on: bool) -> None:
        """Whether anybody here waits for what others may do: a parked fetch, a follower of the log. Cheap."""
        ...

    def owns(self, task: Task) -> bool:
        """Whether this broker is the one that does it now; always, where there is no other, or where it does no harm if several do.
        Cheap."""
        ...

    def tenure(self, task: Task) -> Tenure | None:
        """None where no other broker can do it."""
        ...

    def close(self) -> None:
        """After the last group; a second time does nothing."""
        ...
