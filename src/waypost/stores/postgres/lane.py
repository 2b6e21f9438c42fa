"""A lane: groups on one connection, and what is done when one does not go through.

apply ─▶ parts ─▶ a transaction each ─┬─ committed: results
                                      ├─ deadlock, names changed …: rolled back, again
                                      ├─ connection lost: made anew ── COMMIT was under way? `brokers` says whether it went through
                                      └─ for longer than PATIENCE: StoreUnavailable, and the broker lives on
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import errors

from ...commands import (
    Command,
    Confirm,
    Decide,
    Extend,
    Fetch,
    Kick,
    Publish,
    PublishMany,
    Release,
    Remove,
)
from ...destinations import Kind
from ...errors import Failed, StoreUnavailable
from ...instants import Clock
from ...message import Entropy
from ...store import Applied
from ..rules import Rules
from ..urls import masked
from . import recent
from .columns import bigints
from .connecting import (
    Conn,
    begin,
    begin_by_hand,
    check_unheard,
    connect_for_groups,
    one_line,
    schema_version,
)
from .group import GroupRows, Head, Keeping, Overtaken, receipts_of
from .loading import send
from .marks import Marks
from .names import Db, Names
from .reaping import reap
from .rows import Written
from .watching import NEXT_DUE, Due, Watch
from .writing import NamesChanged, Wrote, enrol, is_dirty, lock, write

log = logging.getLogger("waypost")

#: how long a group waits for a server that is gone, before its callers hear 503
PATIENCE_SECONDS = 5.0
#: how long one waits whose COMMIT was not answered
IN_DOUBT_SECONDS = 60.0
#: how often a group runs again that others were in the way of
MOST_RERUNS = 20

#: what shares a transaction with its neighbours; anything else has one of its own
_TOGETHER = frozenset({Publish, PublishMany, Fetch, Confirm, Extend, Release, Kick, Remove, Decide})
#: nothing is wrong but that somebody was quicker
_RERUN = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.UniqueViolation,
    NamesChanged,
    Overtaken,
)


#: the server, or the way to it; or a standby that was not made the primary yet
_GONE = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)
_IN_DOUBT_HINT = (
    "it may be stored: look, or repeat it; with the same Idempotency-Key a repeat is the same message"
)


_HELD = 'select sequence, destination from fetches where "offset" = any(%b::bigint[])'
_THERE = "from counts where destination = any(%s) and ready > 0"
#: when a Tick is needed next, whether a job waits, and in which of these places how many are ready
_AFTER = f"{NEXT_DUE}, {', '.join(f'(select array_agg({what} order by destination) {_THERE})' for what in ('destination', 'ready'))}"


class InDoubt(Exception):
    """Nobody knows whether a group was committed."""


class _Found(NamedTuple):
    """What a group knows of what is ready and due after it: by asking, or by what it wrote."""

    asked: Db | None
    wrote: Wrote | None = None

    def ready(self) -> list[Any]:
        if self.wrote is None or self.wrote.ready.description is None:
            return []
        return self.wrote.ready.fetchall()


class Common(NamedTuple):
    """What a lane needs of its broker."""

    url: str
    clock: Clock
    draw: Entropy
    infer_types: bool
    watch: Watch


class Lane:
    def __init__(self, name: str, common: Common, connection: Conn | None = None) -> None:
        """`name`: its row in `brokers`."""
        self.name, self._common = name, common
        self.connection = connection
        if connection is not None:
            begin_by_hand(connection)
        self.sync_seconds = 0.0
        self._group = 0
        self._names: Names | None = None
        #: as this lane's last group left it
        self._head: Head | None = None
        self._marks = Marks()
        self._recent = recent.Recent()
        #: the last turn that was this lane's; and when another's was noticed, or may have been the reason of something
        self._turn: int | None = None
        self._others_at = -math.inf
        #: the group that is being decided relies on what those before it left behind
        self._relies = False
        self._enrolled = False

    def apply(self, commands: Sequence[Command], keeping: Keeping) -> Applied:
        deadline = time.monotonic() + PATIENCE_SECONDS
        parts = [self._apply(part, keeping, deadline) for part in _parts(commands) or [[]]]
        return parts[0] if len(parts) == 1 else self._as_it_is_now(_together(parts))

    def _forget(self) -> None:
        """What was known may not be so any more."""
        self._relies = False
        self._names = self._head = None
        self._recent.clear()
        self._others_at = time.monotonic()

    def close(self) -> None:
        self._forget()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _apply(self, commands: Sequence[Command], keeping: Keeping, deadline: float) -> Applied:
        """One transaction, again and again until it went through or there is no point any more."""
        reruns = 0
        while True:
            try:
                return self._transact(commands, keeping)
            except _RERUN as error:
                self._roll_back()
                reruns += 1
                late = isinstance(error, errors.QueryCanceled) and time.monotonic() > deadline
                if late or reruns > MOST_RERUNS:
                    return _refused(
                        commands, StoreUnavailable(f"others were always quicker: {one_line(error)}")
                    )
                time.sleep(random.random() * 0.002 * min(reruns, 10))
            except _GONE as error:
                self.close()
                if time.monotonic() > deadline:
                    log.error("store: %s is not reached: %s", masked(self._common.url), one_line(error))
                    return _refused(commands, StoreUnavailable(one_line(error)))
                time.sleep(0.05 + random.random() * 0.1)
            except InDoubt as error:
                refusal = StoreUnavailable(str(error), _IN_DOUBT_HINT)
                refusal.retry_after = None  # with it, a caller may repeat what may have been done
                return _refused(commands, refusal)
            except Exception as error:
                relied = self._relies
                self._roll_back()
                if relied:
                    # What it read need not fit what it remembered, if somebody was there. Else it happens again.
                    continue
                if len(commands) > 1:
                    # One bad command never fails its neighbours.
                    return _together([self._apply([command], keeping, deadline) for command in commands])
                log.exception("a command failed")
                return _refused(commands, Failed(f"{type(error).__name__}: {one_line(error)}"))

    def _transact(self, commands: Sequence[Command], keeping: Keeping) -> Applied:
        connection = self._connected()
        self._group += 1
        receipts = receipts_of(commands)
        with connection.cursor() as db:
            left = self._recent if self._is_alone(commands) else None
            head, held, fresh = self._head, [], False
            if left is not None and left.knows(receipts):
                held = left.held(receipts)
            elif head is None or self._names is None or not _reads_nothing(commands, self._names):
                fresh = True
                head, held = self._begin(connection, db, receipts)
                if left is not None and head.turn != left.turn:
                    left = None
            assert head is not None
            assert self._names is not None
            now = max(head.at, self._common.clock())
            self._relies = left is not None
            rows = GroupRows(db, self._names, head, now, keeping, reap, self._marks, left)
            rows.prepare(commands, receipts, held)
            rules = Rules(rows, self._common.draw, self._common.infer_types)
            results = rules.run(commands)
            # What is due hangs on more than the rows of a group; but if it only published, fetched and settled, on no more than before.
            asks = not (self._common.watch.knows_due and _is_together(commands))
            if not is_dirty(rows):
                if (rows.alone or not fresh) and Head.read(Head.ask(db)).turn != head.turn:
                    raise Overtaken("another broker has written")
                asked = _ask(db, rows, rows.now) if asks else None
                connection.rollback()
                if rows.alone:
                    rows.leave(head.turn, [])
                else:
                    rows.let_go()
                return self._applied(rows, results, rules.logged, _Found(asked))
            written, self._head = lock(rows)
            # All that can go wrong does so before COMMIT.
            results = written.results(results)
            logged = written.number(rules.logged)
            if rows.alone:
                check_unheard(connection)
            self._relies = False
            began = time.perf_counter()
            found = self._write(connection, rows, written, asks)
            self.sync_seconds = time.perf_counter() - began
        if self._turn is not None and written.turn != self._turn + 1:
            self._others_at = time.monotonic()
        self._turn = written.turn
        self._leave(rows, written.turn, found and found.wrote)
        rows.names.version += rows.renamed
        if found is None:
            # The watch tells what became ready.
            self._common.watch.forget_due()
            return Applied(results, {}, written.at, True, {}, logged)
        self._common.watch.own(written.turn, rows.names.version)
        return self._applied(rows, results, logged, found)

    def _is_alone(self, commands: Sequence[Command]) -> bool:
        """Whether what recent groups left can be relied on; an order by key asks for more than they leave."""
        return (
            time.monotonic() - self._others_at >= recent.ALONE_AFTER_SECONDS
            and self._head is not None
            and self._head.turn == self._recent.turn
            and self._names is not None
            and not self._names.keyed
            and _is_together(commands)
        )

    def _leave(self, rows: GroupRows, turn: int, wrote: Wrote | None) -> None:
        """It is committed: whatever goes wrong now must not make it run again."""
        if wrote is None or not rows.alone:
            rows.let_go()
            self._recent.clear(turn)
            return
        try:
            rows.leave(turn, wrote.changes)
        except Exception:
            log.exception("what a group left behind is forgotten")
            self._recent.clear(turn)

    def _begin(self, connection: Conn, db: Db, receipts: set[int]) -> tuple[Head, list[Any]]:
        """The head as it is, names that fit it, and what the receipts stand for: sequences and destinations."""
        with connection.pipeline():
            begin(connection)
            asked = Head.ask(db)
            held = send(db, _HELD, (bigints(list(receipts)),)) if receipts else None
        head = Head.read(asked)
        if self._names is None or self._names.version != head.version:
            self._names = Names(db)
            self._recent.clear()  # it speaks of other destinations
            # Not older than the names: where a channel starts is told by a number.
            head = Head.read(Head.ask(db))._replace(version=self._names.version)
        self._head = head
        return head, [] if held is None else held.fetchall()

    def _write(self, connection: Conn, rows: GroupRows, written: Written, asks: bool) -> _Found | None:
        """All at once, and COMMIT with it. When the connection breaks now, nobody has heard whether it went through: the next one is
        asked. None: it did, and what was asked besides is not known."""
        group = self._group
        try:
            with connection.pipeline():
                wrote = write(rows, written, self.name, group)
                asked = _ask(rows.db, rows, written.at) if asks else None
                connection.execute("COMMIT", prepare=False)
            return _Found(asked, wrote)
        except _RERUN:
            raise
        except errors.NotNullViolation as error:
            if not rows.alone:
                raise
            raise Overtaken("another broker has written") from error
        except _GONE:
            self.close()
            if not self._went_through(group):
                raise
            return None

    def _applied(self, rows: GroupRows, results: list[Any], logged: int | None, found: _Found) -> Applied:
        watch = self._common.watch
        counts: Iterable[tuple[int, int]]
        if found.asked is not None:
            *due, places, numbers = found.asked.fetchone() or ()
            counts, now = zip(places or (), numbers or (), strict=True), watch.read_due(Due.of(due))
        else:
            counts, now = found.ready(), watch.due_by(found.wrote and found.wrote.due_at)
        queues, channels = _ready(rows.names, counts)
        return Applied(results, queues, now.at, now.working, channels, logged)

    def _as_it_is_now(self, applied: Applied) -> Applied:
        """What one part made ready, a later one may have taken away."""
        said = {Kind.QUEUE: applied.ready, Kind.CHANNEL: applied.ready_channels}
        if self._names is None or self.connection is None:
            return applied
        named = self._names.named
        numbers = [named[kind][name].number for kind in said for name in said[kind] if name in named[kind]]
        try:
            found = self.connection.execute(f"select destination, ready {_THERE}", (numbers,)).fetchall()
            self.connection.rollback()
        except psycopg.Error:
            self.close()  # all of it is committed; who is woken for nothing looks, and waits on
            return applied
        queues, channels = _ready(self._names, found)
        return msgspec.structs.replace(applied, ready=queues, ready_channels=channels)

    def _went_through(self, group: int) -> bool:
        """Whether a group whose COMMIT was not answered was committed. Its server may still be at work on it, or have it before itself: the
        last lock waits until it is over with one that has it, and after another turn none goes through that counted on the one before."""
        deadline = time.monotonic() + IN_DOUBT_SECONDS
        while True:
            try:
                connection = self._connected()
                with connection.transaction(), connection.cursor() as db:
                    db.execute("update log_head set turn = turn + 1")
                    db.execute("select last_group from brokers where id = %s", (self.name,))
                    row = db.fetchone()
                return row is not None and row[0] >= group
            except _GONE as error:
                # Its callers wait for long: neither yes nor no would be true.
                self.close()
                log.warning(
                    "store: a commit is in doubt until %s answers: %s",
                    masked(self._common.url),
                    one_line(error),
                )
                if time.monotonic() > deadline:
                    raise InDoubt("the database went away during a commit, and did not come back") from error
                time.sleep(0.5)

    def _connected(self) -> Conn:
        if self.connection is None or self.connection.closed:
            self._forget()
            self._marks.clear()
            self.connection = connect_for_groups(self._common.url)
            begin_by_hand(self.connection)
        if not self._enrolled:
            # Before the first group, so that its row is there to wait for when that one's COMMIT is in doubt.
            with self.connection.cursor() as db:
                enrol(db, self.name, 0, schema_version(db))
            self.connection.commit()
            self._enrolled = True
        return self.connection

    def _roll_back(self) -> None:
        self._forget()
        try:
            if self.connection is not None:
                self.connection.rollback()
        except psycopg.Error:
            self.close()


def _is_together(part: Sequence[Command]) -> bool:
    """One of `_parts`: all of it, or none."""
    return all(type(command) in _TOGETHER for command in part[:1])


def _parts(commands: Sequence[Command]) -> list[list[Command]]:
    """Runs that share a transaction, and what has one of its own."""
    parts: list[list[Command]] = []
    open = False
    for command in commands:
        together = type(command) in _TOGETHER
        if together and open:
            parts[-1].append(command)
        else:
            parts.append([command])
        open = together
    return parts


def _refused(commands: Sequence[Command], refusal: Exception) -> Applied:
    return Applied([refusal] * len(commands), {}, None)


def _together(parts: list[Applied]) -> Applied:
    logged = [part.logged for part in parts if part.logged is not None]
    return Applied(
        [result for part in parts for result in part.results],
        _joined(parts, lambda part: part.ready),
        parts[-1].due_at,
        parts[-1].working,
        _joined(parts, lambda part: part.ready_channels),
        min(logged, default=None),
    )


def _joined(parts: list[Applied], of: Callable[[Applied], Any]) -> dict[str, int]:
    joined: dict[str, int] = {}
    for part in parts:
        joined |= of(part)
    return joined


def _ready(names: Names, counts: Iterable[tuple[int, int]]) -> tuple[dict[str, int], dict[str, int]]:
    """In queues and in channels, by name."""
    ready: dict[Kind, dict[str, int]] = {Kind.QUEUE: {}, Kind.CHANNEL: {}}
    for number, count in counts:
        place = names.places[number]
        if count > 0 and not place.deleted and not place.policy.paused:
            ready[place.kind][place.name] = count
    return ready[Kind.QUEUE], ready[Kind.CHANNEL]


def _reads_nothing(commands: Sequence[Command], names: Names) -> bool:
    """Whether nothing that is there bears on them but names: then they are decided on the head as this lane knows it, and the last lock
    tells how far behind that was. A group that reads after all, and finds what is newer, runs again on the head as it is."""
    keys_matter = names.keyed or any(policy.unchanged is not None for policy in names.objects.values())
    return not names.limited and all(
        type(command) is Publish
        and command.idempotency_key is None
        and command.id is None
        and (command.envelope.key is None or not keys_matter)
        for command in commands
    )


def _ask(db: Db, rows: GroupRows, now: int) -> Db:
    touched = [place.number for place in rows.touched if not place.deleted and not place.policy.paused]
    return send(db, _AFTER, (now, now, touched, touched))
