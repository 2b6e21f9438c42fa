"""Watching: what others did to the same tree is told to the broker that serves it here.

    somebody waits here      every 50 ms the log's size is looked at, and read on if it grew
    the mover is here, too   new/ and what is overdue, 4 times a second
    neither                  nothing is looked at

A thread of its own. When the disk fails it, the broker is told that something is due: its next group meets the same error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...errors import StoreBroken
from ...store import Applied, Heard

LOOK_SECONDS = 0.05
MOVE_SECONDS = 0.25


class Watch:
    def __init__(self, look: Callable[[], Heard | None], moves: bool) -> None:
        self._look = look
        #: how long it rests while nobody waits; None: until somebody does
        self._rest = MOVE_SECONDS if moves else None
        self._changed = threading.Condition()
        self._awaited = self._stopped = False
        self._heard: Callable[[Heard], None] | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def listen(self, heard: Callable[[Heard], None]) -> None:
        self._heard = heard
        self._thread.start()

    def awaited(self, on: bool) -> None:
        with self._changed:
            self._awaited = on
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._heard is not None
        while not self._stopped:
            try:
                heard = self._look()
            except StoreBroken:
                self._heard(Heard(Applied([], {}, 0), timed=True))
                return
            if heard is not None:
                self._heard(heard)
            self._pause()

    def _pause(self) -> None:
        with self._changed:
            before = self._awaited
            self._changed.wait_for(
                lambda: self._stopped or (self._awaited and not before),
                LOOK_SECONDS if before else self._rest,
            )
