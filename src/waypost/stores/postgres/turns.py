"""Turns: a broker's groups, one behind the other through the log, two of them under way.

    decide (one at a time) ─▶ last lock ─▶ placed: the next one decides ─▶ written
                                 ▲                                             │
                 the one behind waits here for it, and starts over if this one must run again

So what came first is logged first, whatever goes wrong on the way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Displaced(Exception):
    """The group before this one lost its place and runs again; this one must wait for it, holding no lock."""


class Turn:
    def __init__(self, deciding: threading.Lock, placed: Callable[[], None] | None) -> None:
        """Waits until it may decide."""
        self._deciding, self._tell = deciding, placed
        self._decides = deciding.acquire()
        self._before: Turn | None = None
        #: it ended, or it lost its place
        self._moved, self._ended = threading.Event(), threading.Event()

    def follow(self, before: Turn | None) -> None:
        self._before = before

    def begin(self) -> bool:
        """Of every try: a group before this one that runs again goes first. Whether that was waited for."""
        if self._before is None or not self._before._moved.is_set() or self._before._ended.is_set():
            return False
        return self._before._ended.wait()

    def last(self) -> None:
        """Before the last lock. Raises Displaced."""
        if self._before is not None:
            self._before._moved.wait()
            if not self._before._ended.is_set():
                raise Displaced("the group before it runs again")

    def placed(self) -> None:
        """It has the last lock, and waits for nobody."""
        if self._decides:
            self._release()
            if self._tell is not None:
                self._tell()

    def lost(self) -> None:
        """It was rolled back, or nobody knows."""
        if not self._decides:
            self._moved.set()

    def end(self) -> None:
        self._before = None
        self._ended.set()
        self._moved.set()
        if self._decides:
            self._release()

    def _release(self) -> None:
        self._decides = False
        self._deciding.release()
