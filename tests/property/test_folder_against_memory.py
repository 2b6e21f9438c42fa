"""The folder store beside the memory store, with restarts, and crashes that leave the files as they are."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from waypost.message import Entropy
from waypost.stores.folder import FolderStore
from waypost.testing.clock import MovableClock
from waypost.testing.model import machine


def _copied(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # the reaper was quicker
        shutil.copy2(source, target)


class Folder:
    """A crash copies the files as they lie into a new folder: nothing is ever closed in there."""

    def __init__(self) -> None:
        # In memory where there is such a folder; the conformance suite is what runs on the disk.
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="waypost-walk-", dir=quick))
        self.lives = 1

    def open(self, clock: MovableClock, entropy: Entropy) -> FolderStore:
        return FolderStore(self.root / str(self.lives), clock=clock, entropy=entropy, ballast_bytes=4096)

    def crash(self) -> None:
        before = self.root / str(self.lives)
        self.lives += 1
        shutil.copytree(before, self.root / str(self.lives), copy_function=_copied)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


TestFolderAgainstMemory = machine(Folder).TestCase
