"""Commands: everything that changes state, and what each answers.

The edges put commands into the committer's queue; a store applies a group of them in one transaction. A command's result
is the type named beside it, or a `Refused` in its place.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .consumers import Consumer
from .delivery import DEAD, ENDED, WAITING, Outcome, State
from .destinations import Kind
from .filters import Filter
from .message import Envelope
from .names import ANONYMOUS
from .objects import ObjectPolicy
from .policy import DEFAULT, Policy
from .routing import Route


class Staged(msgspec.Struct, frozen=True, gc=False):
    """A body that a store has put away already, because it is too large for the way of the small ones."""

    size: int
    #: the store's own word for where it lies
    place: str
    #: SHA-256 of what must be there
    hash: bytes = b""


class Publish(msgspec.Struct, kw_only=True, gc=False):
    """-> Published"""

    envelope: Envelope
    body: bytes | Staged
    #: SHA-256 of the body; the broker fills it in
    hash: bytes = b""
    #: the one queue it goes to; None: routed by object and topics
    queue: str | None = None
    #: whether a queue that does not exist is made
    create: bool = True
    #: the producer's own id
    id: str | None = None
    idempotency_key: str | None = None
    delay_us: int = 0
    ttl_us: int | None = None
    #: 0 first, 9 last
    priority: int = 5
    #: delivered even if it repeats the last one of its object and key
    force: bool = False
    #: hash of its content (canonical.py); the broker fills it in for large bodies, the store for the others
    content: bytes = b""
    #: stops at L: a routing function decides later; the broker fills it in
    hold: bool = False

    @property
    def size(self) -> int:
        return self.body.size if isinstance(self.body, Staged) else len(self.body)


class PublishMany(msgspec.Struct, gc=False):
    """-> list[Published]; all or none"""

    messages: list[Publish]


class Published(msgspec.Struct, frozen=True, gc=False):
    id: str
    state: State
    same_as: str | None = None


class Fetch(msgspec.Struct, kw_only=True, gc=False):
    """-> list[Fetched], empty when there is nothing to have"""

    #: of the queue or channel
    queue: str
    kind: Kind = Kind.QUEUE
    consumer: str = ANONYMOUS
    n: int = 1
    #: None: the queue's
    lease_us: int | None = None
    #: only messages with a topic that matches; several patterns are separated by commas
    topic: str | None = None


class Fetched(msgspec.Struct, frozen=True, gc=False):
    id: str
    receipt: str
    attempt: int
    envelope: Envelope
    created_at: int
    body: bytes | Staged
    until_at: int


class Confirm(msgspec.Struct, kw_only=True, gc=False):
    """-> list[Settled], one for each receipt"""

    queue: str
    kind: Kind = Kind.QUEUE
    receipts: list[str]
    outcome: Outcome = Outcome.SUCCESS
    reason: str | None = None
    #: for a retry; None: the policy's back-off
    delay_us: int | None = None


class Settled(msgspec.Struct, frozen=True, gc=False):
    receipt: str
    id: str | None = None
    #: the delivery's; None when the receipt is stale
    state: State | None = None


class Extend(msgspec.Struct, kw_only=True, gc=False):
    """-> list[Extended], one for each receipt"""

    queue: str
    kind: Kind = Kind.QUEUE
    receipts: list[str]
    lease_us: int | None = None


class Extended(msgspec.Struct, frozen=True, gc=False):
    receipt: str
    #: None when the receipt is stale
    until_at: int | None = None


class Release(msgspec.Struct, gc=False):
    """Give back what could not be handed over. -> list[Settled]"""

    receipts: list[str]


class Kick(msgspec.Struct, gc=False):
    """At most once: it is about to be handed over, and no confirm is waited for. -> list[Settled]"""

    receipts: list[str]


class Remove(msgspec.Struct, gc=False):
    """MQ-Core's unfenced DELETE: fetched becomes S, waiting C, anything else stays. -> bool: something was done"""

    queue: str
    id: str
    kind: Kind = Kind.QUEUE


class DeclareQueue(msgspec.Struct, gc=False):
    """Make a queue, or change its policy; `policy` None leaves an existing one's as it is. -> Declared"""

    name: str
    policy: Policy | None = None


class Declared(msgspec.Struct, frozen=True, gc=False):
    created: bool
    #: the job that brings older messages into a channel
    job: str | None = None


class DeleteQueue(msgspec.Struct, gc=False):
    """The name is free at once; a job cancels what was in it. -> Job"""

    name: str


class DeclareChannel(msgspec.Struct, kw_only=True, gc=False):
    """Make a channel, or change its topics and policy. -> Declared

    It gets every message logged from here on, or from `start` (an offset) or `start_at` (an instant) on: those
    that are there already are brought in by a job. Of one that exists, they bring in what it has not had.
    """

    name: str
    topics: tuple[str, ...]
    start: int | None = None
    start_at: int | None = None
    policy: Policy = DEFAULT


class DeleteChannel(msgspec.Struct, gc=False):
    """As DeleteQueue. -> Job"""

    name: str


class DeclareObject(msgspec.Struct, gc=False):
    """-> Declared"""

    name: str
    policy: ObjectPolicy


class DeleteObject(msgspec.Struct, gc=False):
    """Back to the default. -> bool: there was one"""

    name: str


class DeclareConsumer(msgspec.Struct, gc=False):
    """Register a consumer of a queue or channel that exists. -> Declared"""

    name: str
    consumer: Consumer


class DeleteConsumer(msgspec.Struct, gc=False):
    """Slots that are named for it stay. -> bool: there was one"""

    name: str


class SetSpectator(msgspec.Struct, gc=False):
    """A reader of the log says how far it has read. -> Declared"""

    name: str
    #: the last one it has read, 0: none
    offset: int


class DeleteSpectator(msgspec.Struct, gc=False):
    """-> bool: there was one"""

    name: str


class Decide(msgspec.Struct, kw_only=True, gc=False):
    """Where a message goes that stopped at L; one that is further on stays as it is. -> Decided

    Without `route` it goes where its topics and the policies send it; with a `failure` it is dead-lettered.
    """

    id: str
    route: Route | None = None
    #: why there is no route, such as a traceback
    failure: str | None = None
    #: hash of its content, where whoever decides has computed it
    content: bytes = b""


class Decided(msgspec.Struct, frozen=True, gc=False):
    id: str
    #: the message's, now
    state: State
    same_as: str | None = None
    #: False: it came late, and nothing was changed
    applied: bool = True


class JobKind(StrEnum):
    REDRIVE = "redrive"
    #: as redrive, for what was confirmed too
    REPLAY = "replay"
    CANCEL = "cancel"
    PURGE = "purge"
    #: what a deleted queue or channel leaves behind
    DELETE = "delete"
    #: what a new channel gets of older messages
    BACKFILL = "backfill"


#: the deliveries a job may touch
JOB_STATES = {
    JobKind.REDRIVE: ENDED,
    JobKind.REPLAY: ENDED,
    JobKind.CANCEL: WAITING,
    JobKind.PURGE: WAITING,
    JobKind.DELETE: WAITING | {State.F},
}
#: those it takes when the filter names no state
JOB_DEFAULTS = {JobKind.REDRIVE: DEAD, JobKind.REPLAY: ENDED, JobKind.CANCEL: WAITING, JobKind.PURGE: WAITING}


class StartJob(msgspec.Struct, kw_only=True, gc=False):
    """Accept work on many deliveries, done later in slices; messages logged after this are not touched. -> Job"""

    kind: JobKind
    filter: Filter
    matched: int
    #: redrive and replay: only this one may have them afterwards
    consumer: str | None = None
    #: deliveries a second; None: as fast as it goes
    rate: float | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    kind: JobKind
    matched: int
    done: int
    started_at: int
    ended_at: int | None = None
    consumer: str | None = None
    rate: float | None = None


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """A message's deliveries in a queue, in a channel or, where neither is named, all of them."""

    id: str
    queue: str | None = None
    channel: str | None = None


class Act(msgspec.Struct, kw_only=True, gc=False):
    """Redrive, replay or cancel deliveries that somebody chose one by one: at once, in the order of the log. -> Acted

    What has changed since `as_of` is left alone, so that a repeat touches nothing twice. `acts.py` decides.
    """

    kind: JobKind
    chosen: list[Chosen]
    #: only what is in one of these
    states: frozenset[State]
    as_of: int | None = None
    #: redrive and replay: only this one may have them afterwards
    consumer: str | None = None
    #: only counts
    dry_run: bool = False


class Acted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an Act did or, of a dry run, would do. Every delivery is counted once."""

    #: its moment: whoever saw this saw deliveries as they were then
    at: int
    #: how many of those it touched were in which state
    done: dict[State, int]
    #: how many were left alone because of their state
    left: dict[State, int]
    #: left alone: not as they were any more
    changed: int
    #: left alone: without a body, in a deleted queue or channel, or such that the consumer could never fetch them
    unable: int
    #: for each chosen one the sequence of its message, None: there is no such delivery
    sequences: list[int | None]


class Work(msgspec.Struct, gc=False):
    """One slice of the oldest open job that may go on now. -> bool: more may be done now"""

    limit: int = 1_000


class Upload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rows that are kept for a batch, and that nobody sees."""

    id: str
    rows: int
    #: the sum of its rows' (batches.py)
    hash: bytes
    #: bytes, as it is kept
    size: int
    kept_at: int
    #: the number of the batch that has it, and its place there
    batch: int | None = None
    position: int = 0


class KeepUpload(msgspec.Struct, kw_only=True, gc=False):
    """Its chunk was put away by `stage_chunk`, from whose answer `body` is. Without a batch it is forgotten after an hour. -> Upload"""

    id: str
    body: bytes | Staged
    rows: int
    hash: bytes


class AcceptBatch(msgspec.Struct, kw_only=True, gc=False):
    """From now on the rows of these uploads are messages that will enter, in this order. A repeat with the same content changes nothing, also long
    after they have; with other content it is refused. -> Batch"""

    query: str
    batch: int
    uploads: list[str]
    rows: int
    hash: bytes


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    query: str
    batch: int
    #: the store's own; older ones have lower ones
    number: int
    rows: int
    hash: bytes
    accepted_at: int
    #: how many rows are messages already
    entered: int = 0
    #: when the last one was
    ended_at: int | None = None


class EnterRows(msgspec.Struct, kw_only=True, gc=False):
    """A slice of a batch: these messages, all or none, if just so many rows before them are in; else nothing changes. -> Batch"""

    query: str
    batch: int
    after: int
    messages: list[Publish]


class Tick(msgspec.Struct, gc=False):
    """What is due by the clock: leases that are over, delays that have passed, ttls. -> bool: more is due"""

    limit: int = 1_000


class Reap(msgspec.Struct, gc=False):
    """Forget what has been kept for long enough. -> bool: more is left"""

    limit: int = 1_000


class Seal(msgspec.Struct, gc=False):
    """All events up to here, and the payloads of their messages, are on stable media in the lake: from now on the store may forget
    them. An earlier one than before changes nothing. -> None"""

    upto: int


class ErasePayload(msgspec.Struct, gc=False):
    """Forget a message's payload for good: here at once, and in the lake once `Erased` says so. What could still have been delivered
    is cancelled. A repeat does nothing new. -> bool: there was a payload here

    The body of a message that is still in L is needed to decide where it goes: StillLogged.
    """

    id: str
    #: where the lake has it, for one that the store has forgotten
    sequence: int | None = None


class Erased(msgspec.Struct, gc=False):
    """The lake no longer holds the payloads of these messages. -> None"""

    sequences: list[int]


Command = (
    Publish
    | PublishMany
    | Fetch
    | Confirm
    | Extend
    | Release
    | Kick
    | Remove
    | DeclareQueue
    | DeleteQueue
    | DeclareChannel
    | DeleteChannel
    | DeclareObject
    | DeleteObject
    | DeclareConsumer
    | DeleteConsumer
    | SetSpectator
    | DeleteSpectator
    | Decide
    | StartJob
    | Act
    | Work
    | KeepUpload
    | AcceptBatch
    | EnterRows
    | Tick
    | Reap
    | Seal
    | ErasePayload
    | Erased
)
