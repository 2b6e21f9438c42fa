"""Syncing: the bodies of a group are on stable media when `sync` returns, all at once where the file system can.

ext4, xfs, btrfs and tmpfs are synced as a whole, by one `syncfs`, however many files the group wrote. Elsewhere that call may mean
less (on NFS and FUSE it is not promised), so there each file is synced by itself, and then their folder.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_WHOLE = {0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs"}
#: larger than any machine's `struct statfs`; it begins with the type, a long
_STATFS_BYTES = 512

_libc = ctypes.CDLL(None, use_errno=True)


class Syncing:
    def __init__(self, root: int, each: bool = False) -> None:
        """`root`: an open descriptor in the file system; `each`: one by one in any case."""
        self._root = root
        self.whole = None if each else _WHOLE.get(file_system(root))

    def __str__(self) -> str:
        return (
            "each body synced by itself" if self.whole is None else f"bodies synced by syncfs ({self.whole})"
        )

    def sync(self, files: Iterable[int], folder: int) -> None:
        """Open files, and the folder that has their names. Raises OSError: then nothing of it may be acknowledged."""
        if self.whole is None:
            for file in files:
                os.fsync(file)
            os.fsync(folder)
        elif _libc.syncfs(self._root) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def file_system(descriptor: int) -> int:
    """Its type, as `statfs` numbers it."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, found) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(found).value


_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def punch(descriptor: int, start: int, end: int) -> None:
    """Gives the blocks of a range back to the file system, where it can; what lies there reads as zeros from then on."""
    length = ctypes.c_longlong(end - start)
    _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_longlong(start), length)
