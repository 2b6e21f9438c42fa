"""Copying: what one store holds into another, empty one; then both are read and compared.

    source ─▶ does it fit? ─▶ the target is marked ─▶ slices ─▶ the target is read again beside the source ─▶ the mark goes

Ids, sequences, offsets, receipts, states, attempts and moments stay as they are, and so does the store's id: its lake goes on. Nobody may serve
either of the two meanwhile. A target that was not finished is refused by whoever would serve it, and taken by another copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..delivery import DEAD, ENDED, L
from ..errors import PayloadDamaged, StoreUnusable
from ..store import Feature
from .holdings import (
    Agreed,
    BatchKept,
    Entry,
    Held,
    LeftBehind,
    Source,
    Target,
    UploadKept,
    plain_agreed,
    plain_event,
    plain_left,
    plain_message,
)
from .opening import check_driver, parse_store_url

#: what is written at once
SLICE = 1_000
SLICE_BYTES = 8 << 20

#: what is being done, and how far it has come: of how many
Progress = Callable[[str, int, int], None]
T = TypeVar("T")


class Copied(NamedTuple):
    messages: int
    deliveries: int
    events: int


def copy_store(origin: str, target: str, progress: Progress, drop_bodies: bool = False) -> Copied:
    """From one URL to another. `drop_bodies`: bodies that the target cannot keep are left out. Raises StoreUnusable, in one line."""
    if parse_store_url(origin) == parse_store_url(target):
        raise StoreUnusable("a store cannot be copied to itself: --from and --to are the same")
    source = open_source(origin)
    try:
        into = open_target(target)
        try:
            return _Copy(source, into, progress, drop_bodies).run()
        finally:
            into.close()
    except PayloadDamaged as error:
        raise StoreUnusable(f"{error.detail}; erase it, or restore it from a copy, and begin anew") from error
    finally:
        source.close()


def open_source(url: str) -> Source:
    parsed = parse_store_url(url)
    if parsed.scheme == "sqlite":
        from .sqlite.copying import Source as SqliteSource

        return SqliteSource(Path(parsed.path))
    if parsed.scheme == "postgresql":
        check_driver()
        from .postgres.copying import Source as PostgresSource

        return PostgresSource(url)
    if parsed.scheme == "folder":
        from .folder.copying import Source as FolderSource

        return FolderSource(Path(parsed.path))
    raise StoreUnusable(_NOTHING_THERE)


def open_target(url: str) -> Target:
    parsed = parse_store_url(url)
    if parsed.scheme == "sqlite":
        from .sqlite.copying import Target as SqliteTarget

        return SqliteTarget(Path(parsed.path))
    if parsed.scheme == "postgresql":
        check_driver()
        from .postgres.copying import Target as PostgresTarget

        return PostgresTarget(url)
    if parsed.scheme == "folder":
        from .folder.copying import Target as FolderTarget

        return FolderTarget(Path(parsed.path))
    raise StoreUnusable(_NOTHING_THERE)


_NOTHING_THERE = "the memory store keeps nothing: copy to or from sqlite, postgresql or folder"


class _Copy:
    def __init__(self, source: Source, target: Target, progress: Progress, drop_bodies: bool) -> None:
        self._source, self._target, self._drop_bodies = source, target, drop_bodies
        self._progress = progress
        self._standing = source.standing()
        self._turn = source.turn()

    def run(self) -> Copied:
        agreed = self._source.agreed()
        self._check_fit(agreed)
        target = self._target
        target.begin()
        target.take_agreed(self._standing, agreed)
        for some in _slices(self._source.left_behind(), _chunk_bytes):
            target.take_left_behind(some)
        for held in _slices(self._messages("copying messages"), lambda one: len(one.body or b"")):
            target.take_messages(held)
        for entries in _slices(self._events("copying the log", self._source), lambda _: 0):
            target.take_events(entries)
        copied = self._compare(target.finish())
        if self._source.turn() != self._turn:
            raise StoreUnusable("the source was written to meanwhile: stop its brokers, and begin anew")
        target.accept()
        return copied

    # ── what is read ────────────────────────────────────────────────────────────────────────

    def _messages(self, doing: str, bodies: bool = True) -> Iterator[Held]:
        for held in self._source.messages(bodies):
            self._progress(doing, held.message.sequence, self._standing.head)
            yield held

    def _events(self, doing: str, source: Source) -> Iterator[Entry]:
        for entry in source.events():
            self._progress(doing, entry.event.offset, self._standing.head)
            yield entry

    # ── whether it fits ─────────────────────────────────────────────────────────────────────

    def _check_fit(self, agreed: Agreed) -> None:
        """What the target cannot hold, by its flags: all of it is named, and nothing is begun."""
        lacks = self._target.lacks
        if not lacks:
            return
        cannot: dict[str, int] = {}

        def count(what: str, feature: Feature, many: int) -> None:
            if many and feature in lacks:
                cannot[what] = cannot.get(what, 0) + many

        existing = [place for place in agreed.places if not place.deleted]
        count("channels", Feature.CHANNELS, sum(not place.is_queue for place in agreed.places))
        count("objects with a policy", Feature.OBJECTS, len(agreed.objects))
        count("consumers", Feature.CONSUMERS, len(agreed.consumers))
        count("erasures that its lake has still to do", Feature.ERASING, len(agreed.erasures))
        count(
            "queues with `complete` or `dead`",
            Feature.SEVERAL,
            sum(
                place.policy.complete not in ("any", 1) or place.policy.dead is not None for place in existing
            ),
        )
        batches = sum(isinstance(left, BatchKept) for left in self._source.left_behind())
        count("batches of many messages", Feature.ATOMIC, batches)
        kept = 0
        for held in self._messages("looking through", bodies=False):
            slots = held.message.slots
            count(
                "messages that were unchanged or are in L", Feature.OBJECTS, held.message.state.name in "LU"
            )
            if held.message.state.name not in "LU":
                alone = len(slots) == 1 and slots[0].queue.is_queue and slots[0].number == 0
                count("messages with several deliveries, or none", Feature.SEVERAL, not alone)
                kept += held.message.kept and all(slot.state in ENDED - DEAD for slot in slots)
        oldest = self._standing.oldest
        later = sum(
            # What was decided later than it was logged had a routing function.
            event.from_state is L and place is not None and oldest <= event.sequence != event.offset - 1
            for event, place in (self._events("looking through", self._source) if not cannot else ())
        )
        count("messages that were routed after they were logged", Feature.OBJECTS, later)
        if cannot:
            named = ", ".join(f"{many:,} {what}" for what, many in cannot.items())
            raise StoreUnusable(f"the target cannot hold {named}")
        if kept and Feature.KEPT in lacks and not self._drop_bodies:
            raise StoreUnusable(
                f"the target keeps no bodies of what has ended, and there are {kept:,}: --drop-bodies copies without them"
            )

    # ── the check ───────────────────────────────────────────────────────────────────────────

    def _compare(self, written: Source) -> Copied:
        _same("the log's bounds", self._standing, written.standing())
        for what, wanted in plain_agreed(self._source.agreed()).items():
            _same(what, wanted, plain_agreed(written.agreed())[what])
        _same("counters", self._source.figures(), written.figures())
        _same(
            "idempotency keys, contents, latest ones and batches",
            _digest(map(plain_left, self._source.left_behind())),
            _digest(map(plain_left, written.left_behind())),
        )
        drops = Feature.KEPT in self._target.lacks
        messages = deliveries = events = 0
        for one, two in zip_longest(self._messages("checking messages"), written.messages()):
            if one is None or two is None:
                raise StoreUnusable(f"{_FAILED}: one of them has more messages")
            wanted = one._replace(body=None) if drops and _is_done(one) else one
            _same(f"message {one.message.id}", plain_message(wanted), plain_message(two))
            messages += 1
            deliveries += len(one.message.slots)
        for first, second in zip_longest(self._events("checking the log", self._source), written.events()):
            if first is None or second is None:
                raise StoreUnusable(f"{_FAILED}: one of them has more events")
            _same(f"event {first.event.offset}", plain_event(first), plain_event(second))
            events += 1
        return Copied(messages, deliveries, events)


_FAILED = "the check failed, and the copy stays unfinished"


def _is_done(held: Held) -> bool:
    return all(slot.state in ENDED - DEAD for slot in held.message.slots)


def _chunk_bytes(left: LeftBehind) -> int:
    return len(left.chunk) if isinstance(left, UploadKept) else 0


def _same(what: str, wanted: Any, found: Any) -> None:
    if wanted != found:
        one, two = _difference(wanted, found)
        raise StoreUnusable(f"{_FAILED}: {what}: {one!r:.200} became {two!r:.200}")


def _difference(wanted: Any, found: Any) -> tuple[Any, Any]:
    """The part of both that is not the same."""
    if isinstance(wanted, tuple | list) and isinstance(found, tuple | list) and len(wanted) == len(found):
        return _difference(*next(pair for pair in zip(wanted, found, strict=True) if pair[0] != pair[1]))
    return wanted, found


def _digest(rows: Iterable[Any]) -> tuple[int, int]:
    """(how many, a sum that does not depend on their order)"""
    count = total = 0
    for row in rows:
        count += 1
        total += int.from_bytes(hashlib.sha256(repr(row).encode()).digest())
    return count, total % (1 << 256)


def _slices(things: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    some: list[T] = []
    size = 0
    for thing in things:
        some.append(thing)
        size += size_of(thing)
        if len(some) >= SLICE or size >= SLICE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
