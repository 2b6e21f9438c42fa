"""A store's holdings out of a folder, and into a new one.

Written are the bodies' files, each where it belongs; the log, from the first event that is kept on; and the picture, from which a start goes on. The
log's records carry what its events show, not all that a picture is made of: so it begins after an empty frame, and the picture is
needed, as it is for any log that was trimmed.

While it is filled there is a file `log.copying` in the folder: `serve` refuses it, and a copy that is begun anew empties it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ...delivery import DEAD, ENDED, F, L, S, State, X
from ...destinations import Kind
from ...errors import PayloadDamaged, StoreUnusable
from ...message import parse_id, payload_hash
from ...store import Event, Feature
from .. import holdings, things
from ..holdings import (
    Agreed,
    Entry,
    Figures,
    Held,
    KeyKept,
    LatestKept,
    LeftBehind,
    Standing,
    open_fetch,
)
from .claiming import read_all, spot_of
from .locking import come, exclusive
from .log import HEADER_BYTES, Begin, Log, read_header
from .log import Standing as LogStanding
from .picture import Fetch, Message, Picture, Queue, Remembered
from .records import JobNoted, Logged, Record, Stepped, by_record, count_of, encode
from .store import FolderStore, open_log, read_snapshot, write_snapshot
from .syncing import Syncing
from .tree import LOG, Tree

#: how long it is tried to get the log's lock
LOCK_SECONDS = 2.0
#: records in a frame
FRAME_RECORDS = 1_000


class Source:
    def __init__(self, root: Path) -> None:
        """Raises StoreUnusable, also when it is served."""
        if not (root / LOG).exists():
            raise StoreUnusable(f"there is no store at {root}")
        with ExitStack() as opened:
            tree = Tree(root)
            opened.callback(tree.close)
            log = Log(open_log(tree))
            opened.callback(os.close, log.descriptor)
            if not come(log.descriptor):
                raise StoreUnusable(
                    f"{root} is served by another process: stop its brokers, movers and reapers first"
                )
            # What a crash left is put in order by a start; nobody comes in between, but to wait for the lock.
            FolderStore(root, mover=False, reaper=False).close()
            try:
                opened.enter_context(exclusive(log.descriptor, LOCK_SECONDS))
            except TimeoutError:
                raise StoreUnusable(f"{root} is served by another process: stop it first") from None
            self._read(tree, log)
            self._opened = opened.pop_all()

    @classmethod
    def of(cls, tree: Tree, log: Log) -> Source:
        """What was written just now."""
        source = cls.__new__(cls)
        source._opened = ExitStack()
        source._read(tree, log)
        return source

    def _read(self, tree: Tree, log: Log) -> None:
        self._tree, self._log = tree, log
        self._begin = read_header(log.descriptor)
        snapshot = read_snapshot(tree, self._begin.id)
        picture = self._picture = Picture() if snapshot is None else Picture.of(snapshot)
        for frame in log.frames(HEADER_BYTES if snapshot is None else snapshot.position):
            for record in frame.records():
                picture.absorb(record, frame.at)
        picture.moved.clear()
        self._places = {
            queue.number: things.Destination(
                Kind.QUEUE, queue.name, queue.number, queue.policy, queue.created_at, queue.deleted_at
            )
            for queue in picture.numbered.values()
        }

    def close(self) -> None:
        self._opened.close()

    def turn(self) -> int:
        return 0  # it is locked

    def standing(self) -> Standing:
        picture = self._picture
        return Standing(self._begin.id, picture.oldest, picture.head, picture.at, picture.sealed)

    def agreed(self) -> Agreed:
        picture = self._picture
        jobs = sorted(map(self._job, picture.jobs.values()), key=lambda job: job.number)
        spectators = dict(sorted(picture.spectators.items()))
        return Agreed(list(self._places.values()), {}, {}, [], spectators, jobs, [], [])

    def _job(self, noted: JobNoted) -> things.OpenJob:
        job = noted.job
        return things.OpenJob(
            int(job.id),
            job.kind,
            noted.filter,
            noted.until,
            noted.newest,
            job.matched,
            job.started_at,
            None if noted.number is None else self._places[noted.number],
            job.consumer,
            job.rate,
            noted.next_at,
            noted.cursor,
            job.done,
            job.ended_at,
        )

    def left_behind(self) -> Iterator[LeftBehind]:
        for scope, kept in self._picture.keys.items():
            yield KeyKept(scope, things.Remembered(kept.hash, kept.published, kept.at))
        for queue in self._picture.numbered.values():
            for thing, sequence in queue.latest.items():
                yield LatestKept(queue.number, thing, sequence)

    def messages(self, bodies: bool = True) -> Iterator[Held]:
        for one in self._picture.after(0):
            parsed = parse_id(one.id)
            message = things.Message(
                one.id,
                one.sequence,
                one.created_at,
                one.envelope,
                one.hash,
                one.size,
                one.priority,
                one.first_expires_at,
                one.has_body,
                0 if one.own_id or parsed is None else parsed.salt,
                one.id if one.own_id else None,
            )
            slot = things.Slot(
                message,
                self._places[one.number],
                0,
                one.state,
                one.since_at,
                one.due_at,
                one.expires_at,
                one.named,
                attempt=one.attempt,
                tries=one.tries,
                consumer=one.consumer,
                reason=one.reason,
                redriven=one.redriven,
                refused=set(one.refused),
                fetch=one.fetches[-1].offset if one.held and one.fetches else None,
            )
            message.slots.append(slot)
            fetchings = [
                things.Fetching(
                    fetch.offset, slot, fetch.salt, fetch.consumer, fetch.at, fetch.outcome, fetch.became
                )
                for fetch in one.fetches
            ]
            yield Held(message, False, self._body(one) if bodies and one.has_body else None, fetchings)

    def _body(self, message: Message) -> bytes:
        try:
            handle = self._tree.open(
                spot_of(self._tree, message, self._picture.numbered[message.number].name)
            )
        except OSError as error:
            raise PayloadDamaged(f"the file of {message.id!r} is gone") from error
        try:
            body = read_all(handle)
        finally:
            os.close(handle)
        if payload_hash(body) != message.hash:
            raise PayloadDamaged(f"the body of {message.id!r} is not what was published")
        return body

    def events(self) -> Iterator[Entry]:
        oldest = self._picture.oldest
        for frame in self._log.frames(self._begin.position):
            for record, events in by_record(frame.records(), frame.first, frame.at):
                for event in events:
                    if event.offset >= oldest:
                        yield Entry(event, None if event.queue is None else record.number)

    def figures(self) -> dict[int, Figures]:
        return {
            queue.number: Figures(
                dict(queue.states),
                queue.bytes,
                0 if queue.deleted_at is not None or queue.policy.paused else queue.ready,
            )
            for queue in self._picture.numbered.values()
        }


class Target:
    lacks = frozenset(Feature)

    def __init__(self, root: Path) -> None:
        """Raises StoreUnusable when there is something already."""
        with ExitStack() as opened:
            self._tree = Tree(root, unfinished=True)
            opened.callback(self._tree.close)
            self._log = Log(open_log(self._tree))
            opened.callback(os.close, self._log.descriptor)
            if not come(self._log.descriptor):
                raise StoreUnusable(f"{root} is served by another process: stop it first")
            if not self._tree.is_unfinished() and (self._log.size() > HEADER_BYTES or self._tree.used()):
                raise StoreUnusable(f"{root} is not empty: name a folder that does not exist yet")
            self._syncing = Syncing(self._tree.fd)
            self._opened = opened.pop_all()
        self._picture = Picture()
        self._records: list[Record] = []
        #: the records' first offset and moment, and what has come after the last of them
        self._first = self._at = 0
        self._held_back: list[Event] = []

    def close(self) -> None:
        self._opened.close()

    def begin(self) -> None:
        self._tree.set_unfinished(True)
        os.ftruncate(self._log.descriptor, 0)
        self._tree.clear()

    def take_agreed(self, standing: Standing, agreed: Agreed) -> None:
        picture = self._picture
        picture.head, picture.oldest, picture.at = standing.head, standing.oldest, standing.at
        picture.sealed = standing.sealed
        for place in agreed.places:
            queue = Queue(place.name, place.number, place.policy, place.created_at, place.deleted_at)
            picture.numbered[place.number] = queue
            if not place.deleted:
                picture.queues[place.name] = queue
                self._tree.queue(place.name)
        picture.spectators = dict(agreed.spectators)
        for job in agreed.jobs:
            place_number = None if job.place is None else job.place.number
            noted = JobNoted(
                job.info(), job.filter, job.until, job.newest, job.cursor, job.next_at, place_number
            )
            picture.jobs[noted.job.id] = noted
        self._id = standing.id

    def take_left_behind(self, some: Sequence[LeftBehind]) -> None:
        for left in some:
            if isinstance(left, KeyKept):
                kept = left.remembered
                self._picture.keys[left.scope] = Remembered(kept.hash, kept.published, kept.at)
            elif isinstance(left, LatestKept):
                self._picture.numbered[left.place].latest[left.thing] = left.sequence

    def take_messages(self, some: Sequence[Held]) -> None:
        written: list[int] = []
        try:
            for held in some:
                message = _message(held)
                self._picture.messages[message.sequence] = message
                if message.has_body:
                    assert held.body is not None
                    message.place = message.belongs
                    spot = spot_of(self._tree, message, self._picture.numbered[message.number].name)
                    written.append(self._tree.write(spot, held.body))
                    if message.due_at is not None:
                        self._tree.set_due(spot, message.due_at)
            if written:
                self._syncing.sync(written, self._tree.folder("dead"))
        finally:
            for handle in written:
                os.close(handle)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def take_events(self, some: Sequence[Entry]) -> None:
        for event, _ in some:
            self._picture.messages[event.sequence].offsets.append(event.offset)
            self._take_event(event)

    def _take_event(self, event: Event) -> None:
        """L waits for its Q, and X is part of the step before it."""
        if event.to_state is X:
            if not self._records and not self._held_back and event.offset == self._picture.oldest:
                # The log begins between a confirm and the X that came with it.
                self._add(_step(event, self._picture, F, S), event.offset - 1, event.at)
            return
        if event.from_state is None:
            self._held_back = [event]
            return
        if self._held_back:
            (logged,) = self._held_back
            self._held_back = []
            self._add(_logged(logged, self._picture), logged.offset, logged.at)
            return
        self._add(_step(event, self._picture, event.from_state or L, event.to_state), event.offset, event.at)

    def _add(self, record: Record, offset: int, at: int) -> None:
        if self._records and (at != self._at or len(self._records) >= FRAME_RECORDS):
            self._end_frame()
        if not self._records:
            self._first, self._at = offset, at
        self._records.append(record)

    def _end_frame(self) -> None:
        if self._log.size() == 0:
            self._begin_log(self._first, self._at)
        if self._records:
            count = sum(map(count_of, self._records))
            standing = self._standing(self._first + count - 1, self._at)
            self._log.append(self._log.size(), encode(self._records), count, standing)
            self._records = []

    def _standing(self, head: int, at: int) -> LogStanding:
        return LogStanding(self._picture.oldest, head, at, self._picture.sealed)

    def _begin_log(self, first: int, at: int) -> None:
        self._log.write_header(Begin(self._id))
        before = self._standing(first - 1, at)
        frame = self._log.append(HEADER_BYTES, encode([]), 0, before)
        self._log.write_header(Begin(self._id, frame.end, before))

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def finish(self) -> holdings.Source:
        picture = self._picture
        if not self._records:
            self._first, self._at = picture.head + 1, picture.at
        self._end_frame()
        os.fsync(self._log.descriptor)
        places = self._log.places
        columns = (places.positions.tolist(), places.firsts.tolist(), places.ats.tolist())
        kept = picture.snapshot(self._id, self._log.size(), columns)
        write_snapshot(self._tree, msgspec.msgpack.encode(kept))
        self._tree.sync()
        return Source.of(self._tree, self._log)

    def accept(self) -> None:
        self._tree.set_unfinished(False)


def _message(held: Held) -> Message:
    (slot,) = held.message.slots
    message = held.message
    counts = open_fetch(slot, held.fetchings)
    return Message(
        id=message.id,
        sequence=message.sequence,
        number=slot.queue.number,
        created_at=message.created_at,
        envelope=message.envelope,
        hash=message.hash,
        size=message.size,
        priority=message.priority,
        first_expires_at=message.expires_at,
        expires_at=slot.expires_at,
        own_id=message.own_id is not None,
        staged=None,
        state=slot.state,
        since_at=slot.since_at,
        due_at=slot.due_at,
        attempt=slot.attempt,
        tries=slot.tries,
        consumer=slot.consumer,
        reason=slot.reason,
        named=slot.named,
        redriven=slot.redriven,
        refused=tuple(sorted(slot.refused)),
        fetches=[
            Fetch(one.offset, one.salt, one.consumer, one.at, one.outcome, one.became)
            for one in sorted(held.fetchings, key=lambda one: one.offset)
        ],
        held=counts is not None,
        offsets=[],
        has_body=held.body is not None and keeps_body(slot.state),
    )


def keeps_body(state: State) -> bool:
    """What has ended is gone from a folder, but for dead letters."""
    return state not in ENDED or state in DEAD


def _logged(event: Event, picture: Picture) -> Logged:
    message = picture.messages[event.sequence]
    assert event.envelope is not None
    return Logged(
        message.id,
        picture.numbered[message.number].name,
        message.number,
        event.envelope,
        message.hash,
        message.size,
        message.priority,
        None,
        message.first_expires_at,
        message.first_expires_at,
        message.own_id,
        None,
        reason=event.reason,
    )


def _step(event: Event, picture: Picture, from_state: State, to_state: State) -> Stepped:
    message = picture.messages[event.sequence]
    consumer, numbers = event.consumer, picture.consumers
    number = None if consumer is None else numbers.setdefault(consumer, len(numbers) + 1)
    fetch = next((one for one in message.fetches if one.offset == event.offset), None)
    return Stepped(
        message.sequence,
        message.id,
        picture.numbered[message.number].name,
        message.number,
        from_state,
        (to_state,),
        event.attempt or 0,
        consumer,
        number,
        event.reason,
        event.duration_ms or 0,
        (event.at - message.created_at) // 1_000,
        None,
        message.tries,
        None if fetch is None else fetch.salt,
    )
