"""Where in the log somebody begins: an offset or a moment that is still kept, and not ahead of the head."""

from __future__ import annotations

from waypost.errors import LogTrimmed, RequestInvalid
from waypost.store import Store


def check_offset(offset: int, store: Store) -> int:
    """0 reads as 1; the one after the head is what comes next."""
    oldest, head = store.bounds()
    start = max(1, offset)
    if start > head + 1:
        raise RequestInvalid(
            f"offset {start} is beyond the head, {head}"[:200],
            f"{head + 1} is what comes next: /log?from={head + 1}&follow=1 waits for it",
            "OFFSET_BEYOND_HEAD",
        )
    if start < oldest:
        raise LogTrimmed(oldest)
    return start


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
