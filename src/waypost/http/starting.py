"""Where in the log somebody begins: an offset or a moment that is still kept, and not ahead of the head."""

from __future__ import annotations

from waypost.errors import LogTrimmed, RequestInvalid
from waypost.store import Store


def check_offset(offset: int, store: Store, oldest: int | None = None) -> int:
    """Kept, and not ahead. `oldest` where more is kept than in the store."""
    first, head = store.bounds()
    start = check_start(offset, head)
    kept = first if oldest is None else oldest
    if start < kept:
        raise LogTrimmed(kept)
    return start


def check_start(offset: int, head: int) -> int:
    """0 reads as 1; the one after the head is what comes next."""
    start = max(1, offset)
    if start > head + 1:
        raise _beyond(start, head)
    return start


def check_until(offset: int, head: int) -> int:
    """The last one of a range: it must be there."""
    if offset > head:
        raise _beyond(offset, head)
    return offset


def _beyond(offset: int, head: int) -> RequestInvalid:
    return RequestInvalid(
        f"offset {offset} is beyond the head, {head}"[:200],
        f"{head + 1} is what comes next: /log?from={head + 1}&follow=1 waits for it",
        "OFFSET_BEYOND_HEAD",
    )


def check_moment_kept(at: int, store: Store) -> int:
    """A moment before which nothing has been forgotten."""
    oldest, head = store.bounds()
    if oldest == 1:
        return at
    if oldest > head:
        raise LogTrimmed(oldest)
    oldest_at = store.events(oldest, oldest)[0].at
    if at < oldest_at:
        raise LogTrimmed(oldest, oldest_at)
    return at
