"""The sqlite store beside the memory store, with restarts, and crashes that leave the files as they are."""

import os
import shutil
import tempfile
from pathlib import Path

from waypost.message import Entropy
from waypost.stores.sqlite import SqliteStore
from waypost.testing.clock import MovableClock
from waypost.testing.model import machine


class Folder:
    """A crash copies the files as they lie into a new folder: nothing is ever closed in there."""

    def __init__(self) -> None:
        # In memory where there is such a folder: what a walk tries does not depend on the disk.
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="waypost-walk-", dir=quick))
        self.lives = 1

    @property
    def path(self) -> Path:
        return self.root / str(self.lives)

    def open(self, clock: MovableClock, entropy: Entropy) -> SqliteStore:
        self.path.mkdir(exist_ok=True)
        return SqliteStore(
            self.path / "waypost.db", clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0
        )

    def crash(self) -> None:
        before = self.path
        self.lives += 1
        shutil.copytree(before, self.path)

    def remove(self) -> None:
        shutil.rmtree(self.root)


TestSqliteAgainstMemory = machine(Folder).TestCase
