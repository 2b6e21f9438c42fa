"""The reaper inside a broker: what is done is unlinked at once, in a thread of its own.

To unlink a file can take longer than to sync a group (some file systems give its blocks back to the device in that call), and nobody
waits for it: a file that is still in remove/ when the process ends is unlinked by the next one.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from .tree import Spot, Tree


class Reaping:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        #: None: the end
        self._done: SimpleQueue[Spot | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._reap, name="reaper", daemon=True)
        self._thread.start()

    def take(self, spot: Spot) -> None:
        self._done.put(spot)

    def sweep(self) -> None:
        """What others left."""
        for spot in self._tree.removed():
            self.take(spot)

    def _reap(self) -> None:
        while (spot := self._done.get()) is not None:
            self._tree.unlink(spot)

    def close(self) -> None:
        """What is left is the next one's."""
        while not self._done.empty():
            self._done.get()
        self._done.put(None)
        self._thread.join()
