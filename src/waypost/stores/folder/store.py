"""The folder store: MQ-Core's folders, with a log beside them that says what happened.

    apply(group)
      bodies into new/, one sync                       nobody sees them yet
      ── the log's lock ─────────────────────────────────────────────────────────────
      what others appended is read                     the picture is everybody's
      commands are decided                             claims by rename
      the group's records are appended, one sync       from here on it is true
      files go where they belong                       a start would do it again
      ── unlock ─────────────────────────────────────────────────────────────────────
      what is done is unlinked by the reaper

A fault while a group is decided undoes it, in memory and in the folders, and its commands run again one by one.
Any number of brokers work on one tree. An error of the disk ends the process; the next start puts every file where the log says.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ...commands import Batch, Command, Fetch, Job, Publish, Reap, Staged, Tick, Upload
from ...delivery import OPEN, Reason, message_state
from ...destinations import Kind
from ...errors import (
    DiskLow,
    Failed,
    LogTrimmed,
    MessageNotFound,
    NotOffered,
    PayloadDamaged,
    PayloadReaped,
    StoreBroken,
    StoreUnusable,
)
from ...filters import Filter
from ...instants import Clock, SteadyClock
from ...message import Entropy, payload_hash, system_entropy
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
from ..disk import BALLAST_BYTES, MARK_BYTES, Disk
from .claiming import Claims, read_all, spot_of
from .deciding import Decider, Found, Group, id_of, selects
from .locking import come, exclusive, shared
from .log import HEADER_BYTES, Begin, Frame, Log, LogDamaged, Places, read_header
from .picture import Message, Picture, Place, Queue, Snapshot
from .reaping import Reaping
from .records import QueueMade, Trimmed, count_of, encode, events_of
from .recovering import clear_temporaries, dropped, recover
from .syncing import Syncing
from .tree import LOG, PICTURE, Spot, Tree, Unfit
from .watching import Watch

log = logging.getLogger("waypost")

#: bodies above this are written before their group, and read after it
INLINE_BYTES = 64 << 10
#: how long a start waits for the log's lock
START_SECONDS = 15.0
#: how long a read may wait for it, to have the newest
GLANCE_SECONDS = 0.02
#: after so many events the picture is written into its file, so that a start after a kill reads no more than that
SAVE_EVERY = 200_000
#: dropped files taken in at once
DROPPED_AT_ONCE = 1_000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class FolderStore:
    inline_bytes = INLINE_BYTES
    threaded = shared = True
    lacks = frozenset(Feature)

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        infer_types: bool = True,
        peers: int = 0,
        mover: bool = True,
        reaper: bool = True,
        log_keep_us: int = DEFAULT.keep_us,
        sync_each: bool = False,
        disk_mark_bytes: int = MARK_BYTES,
        ballast_bytes: int = BALLAST_BYTES,
    ) -> None:
        """`mover`, `reaper`: whether this process moves what is due and unlinks what is done. Raises StoreUnusable."""
        self.clock = clock or SteadyClock()
        self.sync_seconds = 0.0
        races = Races()
        self.races: Races | None = races
        self._mover = mover
        #: held by whoever changes the picture, or reads more of it than a number
        self._busy = threading.Lock()
        self._now = 0
        #: of bodies on their way in, told apart from those of other brokers
        self._token, self._temporaries = os.urandom(8).hex(), 0
        self._said: set[Unfit] = set()
        #: what could not be taken in from new/, and how many queues there had been by then
        self._left: tuple[frozenset[str], int] = (frozenset(), 0)
        self._closed = False
        #: an error of the disk that somebody else met than a group
        self._broken: StoreBroken | None = None
        self._watch = Watch(self._hear, mover)
        with ExitStack() as opened:
            self._tree = Tree(Path(root))
            opened.callback(self._tree.close)
            self._syncing = Syncing(self._tree.fd, sync_each)
            self._log = Log(open_log(self._tree))
            opened.callback(os.close, self._log.descriptor)
            self._reaping = Reaping(self._tree) if reaper else None
            if self._reaping is not None:
                opened.callback(self._reaping.close)
            self._disk = Disk(self._tree.root / LOG, disk_mark_bytes, ballast_bytes)
            try:
                with exclusive(self._log.descriptor, START_SECONDS):
                    self._begin = self._log.begin(os.urandom(16).hex())
                    self._picture, self._end = self._load()
                    self._decider = Decider(
                        self._picture,
                        self._tree,
                        Claims(self._picture, self._tree, peers, self.inline_bytes, races),
                        draw=entropy or system_entropy(),
                        infer_types=infer_types,
                        log_keep_us=log_keep_us,
                        moves=mover,
                        offset_at=self._offset_at,
                    )
                    self._start()
            except TimeoutError as error:
                raise StoreUnusable(
                    f"the lock of {self._tree.root / LOG} could not be had for {START_SECONDS:g} s: "
                    "is another broker on this folder stopped or hanging?"
                ) from error
            except OSError as error:
                raise StoreUnusable(f"folder {self._tree.root} cannot be used: {error}") from error
            self._opened = opened.pop_all()

    def __str__(self) -> str:
        return str(self._syncing)

    # ── start ───────────────────────────────────────────────────────────────────────────────

    def _load(self) -> tuple[Picture, int]:
        """The picture as it was kept, or an empty one; and up to where in the log."""
        self._saved_head = 0
        snapshot = read_snapshot(self._tree, self._begin.id)
        if snapshot is None or not self._begin.position <= snapshot.position <= self._log.size():
            if self._begin.position > HEADER_BYTES:
                raise StoreUnusable(
                    f"{self._tree.root / PICTURE} is missing or damaged, and the log begins after its first event: restore the "
                    "file from a copy; or move `log` away, and the files become new messages"
                )
            return Picture(), HEADER_BYTES
        self._saved_head = snapshot.head
        places = self._log.places
        places.positions, places.firsts, places.ats = (array("q", column) for column in snapshot.places)
        return Picture.of(snapshot), snapshot.position

    def _start(self) -> None:
        alone = come(self._log.descriptor)
        cut = self._catch_up()
        if cut:
            log.warning("%s: the end of the log was half written and is cut off", self._tree.root)
        self._now = max(self._picture.at, self.clock())
        self._recover()
        self._sync()
        clear_temporaries(self._tree, alone)
        self._told = self._end
        self._show()
        if self._reaping is not None:
            self._reaping.sweep()

    def _recover(self) -> None:
        """Under the lock: every file goes where the log says."""
        group = Group(self._now, {})
        self._say(recover(self._tree, self._picture, self._decider, group))
        if group.records:
            log.warning(
                "%s: %d records that a crash left out, %s",
                self._tree.root,
                len(group.records),
                Reason.RECOVERED,
            )
        self._commit(group, encode(group.records))

    def _say(self, unfit: list[Unfit]) -> None:
        """Once each."""
        for one in unfit:
            if one not in self._said:
                log.warning("%s: %s stays where it is: %s", self._tree.root, one.where, one.why)
        self._said.update(unfit)

    # ── groups ──────────────────────────────────────────────────────────────────────────────

    def apply(self, commands: Sequence[Command]) -> Applied:
        with self._busy, self._breaking():
            return self._apply(commands)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """After an error of the disk nothing is true any more that was not known before."""
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except (OSError, LogDamaged) as error:
            self._broken = StoreBroken(f"{self._tree.root}: {error}")
            raise self._broken from error

    def _apply(self, commands: Sequence[Command]) -> Applied:
        staged = self._put_away(commands)
        found, unfit = self._dropped(commands)
        for command in commands:
            if isinstance(command, Fetch):
                self._decider.nap(command)
        applied = self._run(commands, staged, found)
        self._say(unfit)
        if self._reaping is not None and any(isinstance(command, Reap) for command in commands):
            self._reaping.sweep()
        return applied

    def _run(
        self, commands: Sequence[Command], staged: Mapping[int, Spot | DiskLow], found: Sequence[Found]
    ) -> Applied:
        began = time.monotonic()
        with exclusive(self._log.descriptor):
            waited = time.monotonic() - began
            self._catch_up()
            self._now = max(self._picture.at, self._now, self.clock())
            group = Group(self._now, staged)
            results: list[Any] | None
            try:
                results = self._decide(group, commands, found)
                body = encode(group.records)
            except (OSError, LogDamaged):
                raise
            except Exception as error:
                self._roll_back(group)
                results = None if len(commands) > 1 else [self._failure(error)]
                group.staged = dict(staged)
            else:
                # From here on nothing may lead to a second run.
                self._commit(group, body)
            self.sync_seconds += waited
        if results is None:
            return self._one_by_one(commands, staged, found)
        for spot in group.staged.values():
            if isinstance(spot, Spot):
                self._tree.unlink(spot)  # of what was refused, or known already
        return self._applied(results)

    def _decide(self, group: Group, commands: Sequence[Command], found: Sequence[Found]) -> list[Any]:
        for one in found:
            if one.id not in self._picture.by_id and one.queue in self._picture.queues:
                self._decider.adopt(group, one)
        results = [self._decider.decide(group, command) for command in commands]
        if any(isinstance(command, Reap) for command in commands):
            self._look_for_lost(group)
        return results

    def _one_by_one(
        self, commands: Sequence[Command], staged: Mapping[int, Spot | DiskLow], found: Sequence[Found]
    ) -> Applied:
        """One bad command never fails its neighbours."""
        ready: dict[str, int] = {}
        results = []
        for command in commands:
            own = {id_of(command): staged[id_of(command)]} if id_of(command) in staged else {}
            applied = self._run([command], own, found if isinstance(command, Tick) else ())
            results += applied.results
            ready |= applied.ready
        return Applied(results, ready, applied.due_at, applied.working)

    def _failure(self, error: Exception) -> Failed:
        log.error("a command failed and was undone", exc_info=error)
        return Failed(f"{type(error).__name__}: {error}")

    def _roll_back(self, group: Group) -> None:
        """Under the lock: what was decided is forgotten, and what was claimed goes back, as at a start."""
        picture, end = self._load()
        for frame in self._log.follow(end):
            _absorb(picture, frame)
            end = frame.end
        _follow_log(picture)
        # At once, for those who ask for a number and wait for nobody.
        self._picture, self._end = picture, end
        self._decider.turn_to(picture)
        for record in group.records:
            if isinstance(record, QueueMade) and record.name not in picture.queues:
                self._tree.remove_queue(record.name)
        self._recover()

    def _applied(self, results: list[Any]) -> Applied:
        ready = {queue.name: queue.ready for queue in self._picture.touched if _hands_out(queue)}
        self._picture.touched.clear()
        self._told = self._end
        self._show()
        return Applied(
            results,
            {name: count for name, count in ready.items() if count},
            self._due_at(),
            self._picture.next_job(self._now) is not None,
        )

    def _due_at(self) -> int | None:
        return self._picture.due_at(self._now, self._mover)

    def _show(self) -> None:
        """What is committed, for those who do not wait for a group."""
        self._bounds = (self._picture.oldest, self._picture.head)

    def _put_away(self, commands: Sequence[Command]) -> dict[int, Spot | DiskLow]:
        """The bodies of a group, on stable media before anybody can see one."""
        staged: dict[int, Spot | DiskLow] = {}
        written: list[int] = []
        try:
            for command in commands:
                if not isinstance(command, Publish):
                    continue
                if isinstance(command.body, Staged):
                    staged[id_of(command)] = self._tree.in_new(command.body.place)
                    continue
                spot = self._temporary()
                try:
                    written.append(self._tree.write(spot, command.body))
                    staged[id_of(command)] = spot
                except OSError as error:
                    staged[id_of(command)] = _no_room(error)
            if written:
                self._syncing.sync(written, self._tree.folder("new"))
        finally:
            for handle in written:
                os.close(handle)
        return staged

    def _temporary(self) -> Spot:
        self._temporaries += 1
        return self._tree.in_new(f".{self._token}-{self._temporaries}")

    def _dropped(self, commands: Sequence[Command]) -> tuple[list[Found], list[Unfit]]:
        if not self._mover or not any(isinstance(command, Tick) for command in commands):
            return [], []
        found, unfit = dropped(self._tree, self._picture, DROPPED_AT_ONCE)
        taken = {one.name for one in found}
        self._left = (self._tree.dropped() - taken, len(self._picture.numbered))
        return found, unfit

    def _catch_up(self) -> bool:
        """Under the lock: what others appended; whether something half written was cut off."""
        if self._log.size() == self._end:
            return False
        self._read_on()
        return self._log.cut(self._end)

    def _read_on(self) -> None:
        picture, oldest = self._picture, self._picture.oldest
        for frame in self._log.follow(self._end):
            _follow_log(picture)
            _absorb(picture, frame)
            self._end = frame.end
        # Whoever appended the last group may have been killed before its files followed. Nobody was after one before it: the next
        # one who appended had read it, and so done this.
        for message in picture.moved.values():
            self._finish(message)
        picture.moved.clear()
        if picture.oldest != oldest:
            self._begin = read_header(self._log.descriptor)
            self._log.places.forget(self._begin.position)

    def _commit(self, group: Group, body: bytes) -> None:
        """`body`: the group's records. True once the log is synced; then the files follow, which a start would do again."""
        self.sync_seconds = 0.0
        if group.records:
            count = sum(map(count_of, group.records))
            frame = self._log.append(self._end, body, count, self._picture.standing)
            self._sync()
            self._end = frame.end
        for message in self._picture.moved.values():
            self._put_in_place(message)
        self._picture.moved.clear()
        for queue in group.emptied:
            if queue not in self._picture.queues:
                self._tree.remove_queue(queue)
        if any(isinstance(record, Trimmed) for record in group.records):
            self._trim()
        elif self._picture.head - self._saved_head >= SAVE_EVERY:
            self._save()

    def _sync(self) -> None:
        began = time.monotonic()
        os.fdatasync(self._log.descriptor)
        self.sync_seconds = time.monotonic() - began

    def _put_in_place(self, message: Message) -> None:
        belongs = message.belongs
        if belongs is Place.REMOVE:
            self._remove(message)
            return
        if message.place is not belongs:
            here = self._spot(message)
            message.place = belongs
            try:
                self._tree.move(here, self._spot(message))
            except FileNotFoundError:
                self._picture.lose(message)
        if message.due_at is not None and belongs is Place.DELAY:
            self._tree.set_due(self._spot(message), message.due_at)

    def _finish(self, message: Message) -> None:
        """As `_put_in_place`, where somebody else should have. Under the lock, also a shared one: who is second finds it done."""
        belongs, queue = message.belongs, self._picture.numbered[message.number].name
        there = self._tree.spot(belongs, queue, message.id)
        places = [self._tree.spot(message.place, queue, message.id)] if message.place is not belongs else []
        if message.staged is not None:
            places.append(self._tree.in_new(message.staged))
        message.place = belongs
        if belongs is not Place.REMOVE and self._tree.exists(there):
            return
        for here in places:
            with suppress(FileNotFoundError):
                self._tree.move(here, there)
                return
        if belongs is not Place.REMOVE and not self._tree.exists(there):
            self._picture.lose(message)

    def _remove(self, message: Message) -> None:
        here = self._spot(message)
        message.place = Place.REMOVE
        there = self._spot(message)
        try:
            self._tree.move(here, there)
        except FileNotFoundError:
            return
        if self._reaping is not None:
            self._reaping.take(there)

    def _spot(self, message: Message) -> Spot:
        return spot_of(self._tree, message, self._picture.numbered[message.number].name)

    def _look_for_lost(self, group: Group) -> None:
        """Whose file somebody took without a word: it is back, or lies with those that were fetched, or is gone."""
        for message in [one for one in self._picture.messages.values() if one.lost]:
            queue = self._picture.numbered[message.number].name
            places = (Place.QUEUE, Place.DELAY, Place.DEAD, Place.REMOVE)
            spots = {place: self._tree.spot(place, queue, message.id) for place in places}
            if message.staged is not None:
                spots[Place.NEW] = self._tree.in_new(message.staged)
            there = [place for place, spot in spots.items() if self._tree.exists(spot)]
            if message.state not in OPEN or not there:
                message.lost = False
                self._decider.gone(group, message)
                continue
            message.place = there[0]
            self._picture.find_again(message)

    # ── what others did ─────────────────────────────────────────────────────────────────────

    def look(self) -> Applied | None:
        """Since the last look or group; None: nothing."""
        if self._log.size() == self._told:
            return None
        with self._busy:
            if self._closed:
                return None
            with self._breaking():
                with shared(self._log.descriptor):
                    self._read_on()
                os.fdatasync(self._log.descriptor)  # of one who was killed before it synced
            if self._end == self._told:
                return None
            self._now = max(self._picture.at, self._now, self.clock())
            return self._applied([])

    def _hear(self) -> Heard | None:
        seen = self.look()
        if self._mover and (self.dropped() or self._is_overdue()):
            ready = {} if seen is None else seen.ready
            return Heard(Applied([], ready, self.clock()), timed=True)
        return None if seen is None else Heard(seen, timed=True)

    def _is_overdue(self) -> bool:
        """A broker's timer is set by its own groups and by what it hears, in whichever order they come to it."""
        with self._busy:
            due_at = None if self._closed else self._due_at()
        return due_at is not None and due_at <= self.clock()

    def listen(self, heard: Callable[[Heard], None]) -> None:
        self._watch.listen(heard)

    def awaited(self, on: bool) -> None:
        self._watch.awaited(on)

    def owns(self, task: Task) -> bool:
        """Whoever has the log's lock does it; the next one finds nothing left."""
        return True

    def tenure(self, task: Task) -> Tenure | None:
        return None

    def _glance(self) -> None:
        """As look, for a read: in no time, or not at all."""
        if self._log.size() == self._end or not self._busy.acquire(blocking=False):
            return
        try:
            with shared(self._log.descriptor, GLANCE_SECONDS):
                self._read_on()
            self._show()
        except TimeoutError:
            pass
        finally:
            self._busy.release()

    def dropped(self) -> bool:
        """Whether somebody put something into new/ that was not there when it was last looked at. Cheap."""
        names = self._tree.dropped()
        return bool(names) and (names, len(self._picture.numbered)) != self._left

    # ── the log's past ──────────────────────────────────────────────────────────────────────

    def _trim(self) -> None:
        """The picture is kept first, since it cannot be made again from what is left."""
        self._save()
        position = self._position_of(self._picture.oldest)
        if position > self._begin.position:
            standing = self._picture.standing
            before = standing.head if position == self._end else standing.oldest - 1
            self._begin = Begin(self._begin.id, position, msgspec.structs.replace(standing, head=before))
            self._log.write_header(self._begin)
            self._sync()
            self._log.forget(self._begin)

    def _position_of(self, offset: int) -> int:
        """Of the frame with that event, or the end."""
        for frame in self._frames_from(self._log.places.before_offset(offset)):
            if frame.first + frame.events > offset:
                return frame.position
        return self._end

    def _frames_from(self, position: int | None) -> Iterator[Frame]:
        start = self._begin.position if position is None else max(position, self._begin.position)
        return self._log.frames(start, self._end)

    def _save(self) -> None:
        places: Places = self._log.places
        columns = (places.positions.tolist(), places.firsts.tolist(), places.ats.tolist())
        body = msgspec.msgpack.encode(self._picture.snapshot(self._begin.id, self._end, columns))
        write_snapshot(self._tree, body)
        self._saved_head = self._picture.head

    def _offset_at(self, at: int) -> int:
        for frame in self._frames_from(self._log.places.before_moment(at)):
            if frame.events and frame.at >= at and frame.first + frame.events > self._picture.oldest:
                return max(frame.first, self._picture.oldest)
        return self._picture.head + 1

    # ── reads ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _committed(self) -> Iterator[Picture]:
        self._glance()
        with self._busy:
            yield self._picture

    def stage(self, body: bytes) -> bytes | Staged:
        with self._busy:
            spot = self._temporary()
        try:
            handle = self._tree.write(spot, body)
        except OSError as error:
            raise _no_room(error) from error
        try:
            os.fsync(handle)
            os.fsync(spot.folder)
        finally:
            os.close(handle)
        return Staged(len(body), spot.name, payload_hash(body))

    def unstage(self, body: Staged) -> bytes:
        with self._committed() as picture:
            message = picture.by_id.get(body.place)
            if message is None:
                raise PayloadReaped(f"the body of {body.place!r} is gone")
            return self._read(message)

    def _read(self, message: Message) -> bytes:
        try:
            handle = self._tree.open(self._spot(message))
        except OSError as error:
            raise PayloadReaped(f"the body of {message.id!r} is gone") from error
        try:
            body = read_all(handle)
        finally:
            os.close(handle)
        if payload_hash(body) != message.hash:
            raise PayloadDamaged(f"the body of {message.id!r} is not what was published")
        return body

    def refusal(self) -> Exception | None:
        return self._disk.refusal()

    def ready(self, queue: str, kind: Kind = Kind.QUEUE) -> int | None:
        if kind is not Kind.QUEUE:
            return None
        self._glance()
        known = self._picture.queues.get(queue)
        if known is None:
            return None
        return known.ready if _hands_out(known) else 0

    def queue(self, name: str) -> QueueInfo | None:
        with self._committed() as picture:
            queue = picture.queues.get(name)
            return None if queue is None else _queue_info(queue)

    def queues(self) -> list[QueueInfo]:
        with self._committed() as picture:
            return [_queue_info(picture.queues[name]) for name in sorted(picture.queues)]

    def channel(self, name: str) -> ChannelInfo | None:
        return None

    def channels(self) -> list[ChannelInfo]:
        return []

    def object(self, name: str) -> ObjectInfo | None:
        return None

    def objects(self) -> list[ObjectInfo]:
        return []

    def consumer(self, name: str) -> ConsumerInfo | None:
        return None

    def consumers(self) -> list[ConsumerInfo]:
        return []

    def spectator(self, name: str) -> SpectatorInfo | None:
        return next((info for info in self.spectators() if info.name == name), None)

    def spectators(self) -> list[SpectatorInfo]:
        with self._committed() as picture:
            return [
                SpectatorInfo(name=name, offset=offset, lag=picture.head - offset, at=at)
                for name, (offset, at) in sorted(picture.spectators.items())
            ]

    def depths(self, kind: Kind, name: str, at: int) -> Depths | None:
        raise NotOffered("the folder store keeps no depths of the past", "GET /log has every event")

    def sparks(self) -> frozenset[str]:
        return frozenset()

    def undecided(
        self, after: int, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Undecided]:
        return []

    def bounds(self) -> tuple[int, int]:
        self._glance()
        return self._bounds

    def events(self, lo: int, hi: int) -> list[Event]:
        with self._committed() as picture:
            if lo < picture.oldest:
                raise LogTrimmed(picture.oldest)
            return self._events(lo, hi)

    def _events(self, lo: int, hi: int) -> list[Event]:
        found: list[Event] = []
        for frame in self._frames_from(self._log.places.before_offset(lo)):
            if frame.first > hi:
                break
            if frame.first + frame.events > lo:
                events = events_of(frame.records(), frame.first, frame.at)
                found += [event for event in events if lo <= event.offset <= hi]
        return found

    def offset_at(self, at: int) -> int:
        with self._committed():
            return self._offset_at(at)

    def message(self, id: str) -> MessageInfo | None:
        with self._committed() as picture:
            message = picture.by_id.get(id)
            if message is None:
                return None
            kept = [offset for offset in message.offsets if offset >= picture.oldest]
            return MessageInfo(
                id=message.id,
                sequence=message.sequence,
                envelope=message.envelope,
                hash=message.hash,
                size=message.size,
                priority=message.priority,
                created_at=message.created_at,
                expires_at=message.first_expires_at,
                state=message_state([message.state]),
                same_as=None,
                deliveries=[_delivery_info(message, picture.numbered[message.number])],
                journey=[event for lo, hi in _runs(kept) for event in self._events(lo, hi)],
            )

    def body(self, id: str) -> bytes | Staged:
        with self._committed() as picture:
            message = picture.by_id.get(id)
            if message is None:
                raise MessageNotFound(id)
            if not message.has_body:
                raise PayloadReaped(f"the body of {id!r} is gone")
            if message.size > self.inline_bytes:
                return Staged(message.size, message.id, message.hash)
            return self._read(message)

    def find(self, filter: Filter, after: int, limit: int) -> tuple[list[DeliveryInfo], int | None]:
        with self._committed() as picture:
            found: list[DeliveryInfo] = []
            for message in picture.after(after):
                if len(found) >= limit:
                    return found, after
                queue = picture.numbered[message.number]
                if selects(filter, message, queue):
                    found.append(_delivery_info(message, queue))
                after = message.sequence
            return found, None

    def stage_chunk(self, id: str, chunk: bytes) -> bytes | Staged:
        raise NotOffered("the folder store keeps no uploads", "publish the messages one by one")

    def batch(self, query: str, batch: int) -> Batch | None:
        return None

    def open_batches(self) -> list[Batch]:
        return []

    def uploads(self, batch: int | None) -> list[Upload]:
        return []

    def chunk(self, id: str) -> bytes | Staged:
        raise PayloadReaped("the folder store keeps no uploads")

    def job(self, id: str) -> Job | None:
        with self._committed() as picture:
            noted = picture.jobs.get(id)
            return None if noted is None else noted.job

    def stats(self) -> Stats:
        with self._committed() as picture:
            held = sum(queue.bytes for queue in picture.numbered.values())
            blocks = os.fstat(self._log.descriptor).st_blocks * 512
            return Stats(oldest=picture.oldest, head=picture.head, disk_bytes=held + blocks, undecided=0)

    def id(self) -> str:
        return self._begin.id

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        self._decider.lake, self._decider.lake_holds = on, holds

    def sealed(self) -> int | None:
        return (self._picture.sealed or 0) if self._decider.lake else None

    def erasures(self) -> list[int]:
        return []

    def export_source(self) -> str | None:
        return str(self._tree.root / LOG)

    def close(self) -> None:
        self._watch.stop()
        with self._busy:
            if self._closed:
                return
            self._closed = True
            if self._picture.head != self._saved_head:
                with exclusive(self._log.descriptor):
                    self._catch_up()
                    self._save()
            self._opened.close()


def open_log(tree: Tree) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(LOG, flags, 0o600, dir_fd=tree.fd)
    except OSError as error:
        raise StoreUnusable(
            f"{tree.root / LOG} must be a plain file: {(error.strerror or str(error)).lower()}"
        ) from error


def _absorb(picture: Picture, frame: Frame) -> None:
    if frame.first != picture.head + 1:
        raise LogDamaged(f"the log goes on with offset {frame.first} after {picture.head}")
    for record in frame.records():
        picture.absorb(record, frame.at)


def _follow_log(picture: Picture) -> None:
    """The files are where they belong: whoever appended has moved them."""
    for message in picture.moved.values():
        message.place = message.belongs
    picture.moved.clear()


def _no_room(error: OSError) -> DiskLow:
    """Anything but a full disk is the store's end."""
    if error.errno not in _NO_ROOM:
        raise error
    return DiskLow("the store's disk is full")


def _hands_out(queue: Queue) -> bool:
    return queue.deleted_at is None and not queue.policy.paused


def _queue_info(queue: Queue) -> QueueInfo:
    return QueueInfo(
        name=queue.name,
        policy=queue.policy,
        created_at=queue.created_at,
        states=dict(queue.states),
        bytes=queue.bytes,
        ready=queue.ready if _hands_out(queue) else 0,
    )


def _delivery_info(message: Message, queue: Queue) -> DeliveryInfo:
    return DeliveryInfo(
        sequence=message.sequence,
        message_id=message.id,
        queue=queue.name,
        slot=0,
        state=message.state,
        attempt=message.attempt,
        consumer=message.consumer,
        reason=message.reason,
        created_at=message.created_at,
        changed_at=message.since_at,
        due_at=message.due_at,
        named=message.named,
    )


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets that follow each other, together."""
    start = 0
    for position in range(1, len(offsets) + 1):
        if position == len(offsets) or offsets[position] != offsets[position - 1] + 1:
            yield offsets[start], offsets[position - 1]
            start = position


# ── the picture's file ──────────────────────────────────────────────────────────────────────────


def write_snapshot(tree: Tree, body: bytes) -> None:
    """Under the log's lock, so that an older one never takes the place of a newer."""
    name = f".{PICTURE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=tree.fd), "wb") as file:
        file.write(struct.pack("<I", zlib.crc32(body)) + body)
        file.flush()
        os.fsync(file.fileno())
    os.rename(name, PICTURE, src_dir_fd=tree.fd, dst_dir_fd=tree.fd)
    os.fsync(tree.fd)


def read_snapshot(tree: Tree, store: str) -> Snapshot | None:
    """None where there is none that can be used."""
    try:
        with os.fdopen(os.open(PICTURE, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=tree.fd), "rb") as file:
            held = file.read()
    except FileNotFoundError:
        return None
    body = held[4:]
    if len(held) < 4 or zlib.crc32(body) != struct.unpack("<I", held[:4])[0]:
        log.warning("%s is damaged; the log is read from its beginning", tree.root / PICTURE)
        return None
    snapshot = msgspec.msgpack.decode(body, type=Snapshot)
    return snapshot if snapshot.store == store else None
