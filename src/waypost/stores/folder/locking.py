"""The log's lock: one broker at a time appends, and nobody reads what is not synced yet.

A lock of the open file (`F_OFD_SETLK`), not of the process: it goes with the descriptor, also when the process is killed, and
two stores in one process exclude each other. On NFS it is the server's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: type, whence, start, length, pid: as the kernel has it on 64 bits
_FLOCK = struct.Struct("hhqqi4x")
#: beyond any log: what stands for it, and a byte that everyone holds who serves
_LOG = (0, 1 << 60)
_PRESENCE = (1 << 61, 1)
_PAUSE_SECONDS = 0.002


@contextmanager
def exclusive(fd: int, seconds: float | None = None) -> Iterator[None]:
    """Waits for as long as it takes, or raises TimeoutError."""
    _lock(fd, fcntl.F_WRLCK, _LOG, seconds)
    try:
        yield
    finally:
        _lock(fd, fcntl.F_UNLCK, _LOG, 0)


@contextmanager
def shared(fd: int, seconds: float | None = None) -> Iterator[None]:
    """While nobody appends."""
    _lock(fd, fcntl.F_RDLCK, _LOG, seconds)
    try:
        yield
    finally:
        _lock(fd, fcntl.F_UNLCK, _LOG, 0)


def come(fd: int) -> bool:
    """Here until the descriptor is closed; whether nobody else was. Under the log's lock."""
    try:
        _lock(fd, fcntl.F_WRLCK, _PRESENCE, 0)
        alone = True
    except TimeoutError:
        alone = False
    _lock(fd, fcntl.F_RDLCK, _PRESENCE, None)
    return alone


def _lock(fd: int, kind: int, part: tuple[int, int], seconds: float | None) -> None:
    wanted = _FLOCK.pack(kind, os.SEEK_SET, *part, 0)
    if seconds is None:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, wanted)
        return
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError("somebody else holds the log's lock")
        time.sleep(_PAUSE_SECONDS)
