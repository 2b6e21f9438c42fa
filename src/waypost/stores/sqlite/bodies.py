"""Large bodies: one file each beside the store.

A body of megabytes would hold up every small commit that shares its group; so it is written and synced by a
thread, before its message enters a group, and the row holds only the file's name. A file no row names was left by a crash
and is removed at the next start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ...commands import Staged
from ...errors import DiskLow, PayloadDamaged, PayloadReaped, StoreBroken
from ...message import payload_hash
from .files import sync_path

#: written and synced a piece at a time, so that the small commits' syncs never wait for long
PIECE_BYTES = 1 << 20


#: macOS has no fdatasync
_sync = getattr(os, "fdatasync", os.fsync)


def folder_of(path: Path) -> Path:
    """Beside the store's file."""
    return path.with_name(path.name + ".bodies")


class Bodies:
    def __init__(self, folder: Path, is_known: Callable[[str], bool]) -> None:
        self._folder = folder
        created = not folder.exists()
        folder.mkdir(exist_ok=True)
        if created:
            sync_path(folder.parent)
        for entry in os.scandir(folder):
            if not is_known(entry.name):
                os.unlink(entry.path)

    def put(self, body: bytes, name: str | None = None) -> Staged:
        """On stable media when it returns; from any thread."""
        name = name or os.urandom(16).hex()
        path = self._folder / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(body)
                while view:
                    view = view[os.write(fd, view[:PIECE_BYTES]) :]
                    _sync(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_path(self._folder)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskLow("the disk is full") from error
            raise StoreBroken(f"cannot write {path}: {error.strerror}") from error
        return Staged(len(body), name)

    def get(self, body: Staged) -> bytes:
        try:
            found = (self._folder / body.place).read_bytes()
        except FileNotFoundError:
            raise PayloadReaped("the body was reaped while it was read") from None
        except OSError as error:
            raise StoreBroken(f"cannot read body {body.place}: {error.strerror}") from error
        if payload_hash(found) != body.hash:
            raise PayloadDamaged(f"body {body.place} does not fit its checksum")
        return found

    def remove(self, names: Iterable[str]) -> None:
        """After the commit that forgot them; what is left by a crash goes at the next start."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
