"""The disk: publishes are refused before it is full, and what frees space goes on.

Below the mark nothing new is accepted; fetch and confirm still write a little. Should others fill the disk to its end, the
ballast, a file that holds blocks and nothing else, is given up for them; it comes back when there is room again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..errors import DiskLow

MARK_BYTES = 128 << 20
BALLAST_BYTES = 32 << 20
#: the free space is looked at this often
EVERY_SECONDS = 0.25


def ballast(path: Path) -> Path:
    """Beside the store's file."""
    return path.with_name(path.name + ".ballast")


class Disk:
    def __init__(self, path: Path, mark_bytes: int = MARK_BYTES, ballast_bytes: int = BALLAST_BYTES) -> None:
        self._folder = path.parent
        self._ballast = ballast(path)
        self._mark, self._size = mark_bytes, ballast_bytes
        self._looked = 0.0
        self._refusal: DiskLow | None = None
        self._held = self._ballast.exists()
        self._look()

    def refusal(self) -> DiskLow | None:
        if time.monotonic() - self._looked > EVERY_SECONDS:
            self._look()
        return self._refusal

    def _look(self) -> None:
        self._looked = time.monotonic()
        free = self.free_bytes()
        if free >= self._mark:
            self._refusal = None
            if not self._held and free >= self._mark + self._size:
                self._hold()
            return
        self._refusal = DiskLow(
            f"{free >> 20} MiB are free on the store's disk, below the mark of {self._mark >> 20} MiB"
        )
        if free < self._size // 2:
            self.give_up()

    def free_bytes(self) -> int:
        space = os.statvfs(self._folder)
        return space.f_bavail * space.f_frsize

    def _hold(self) -> None:
        try:
            fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _allocate(fd, self._size)
            finally:
                os.close(fd)
            self._held = True
        except OSError:
            self.give_up()

    def give_up(self) -> None:
        self._ballast.unlink(missing_ok=True)
        self._held = False


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:  # macOS
        os.pwrite(fd, bytes(size), 0)
