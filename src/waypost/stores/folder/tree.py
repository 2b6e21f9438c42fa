"""The tree: MQ-Core's folders, and the moves between them.

    new/      .<name>      a body on its way in; never seen by a fetch
              queue:id     dropped here by somebody else: the mover publishes it
    queues/   queue/id     can be fetched
    delay/    queue:id     fetched, or waiting for its moment, which is the file's mtime
    dead/     queue:id     given up, until somebody redrives it
    remove/   queue:id     done; the reaper unlinks it
    log                    every event (`log.py`)

A file is written once and unlinked once; all between are renames. Names are checked before they come here, and once more: every
one is a single name below an open folder, nothing is ever followed, and all folders are on one file system, where a rename is atomic.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import StoreUnusable
from .picture import Place

FOLDERS = ("new", "queues", "delay", "remove", "dead")
LOG = "log"
PICTURE = "log.picture"
#: there while the folder is filled by a copy
COPYING = "log.copying"

_FOLDER_OF = {Place.DELAY: "delay", Place.DEAD: "dead", Place.REMOVE: "remove"}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_QUEUE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_ID = re.compile(r"[a-z0-9-]{1,50}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}-[0-9]+")
#: of folders and files, which hold payloads
_MODE, _FILE_MODE = 0o700, 0o600


class Spot(NamedTuple):
    """A name in an open folder."""

    folder: int
    name: str


class Unfit(NamedTuple):
    """Something in the tree that is no message's file."""

    where: str
    why: str


class Tree:
    def __init__(self, root: Path, unfinished: bool = False) -> None:
        """Made where it is not there; `unfinished`: also a copy that is not finished. Raises StoreUnusable, in one line."""
        self.root = Path(os.path.abspath(root))
        self._folders: dict[str, int] = {}
        self._queues: dict[str, int] = {}
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=_MODE)
            self.fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreUnusable(f"folder {self.root} cannot be used: {_said(error)}") from error
        try:
            self._device = os.fstat(self.fd).st_dev
            if not unfinished and self.is_unfinished():
                raise StoreUnusable(
                    f"{self.root} is a copy that was not finished: run `waypost copy` to it again"
                )
            for name in FOLDERS:
                self._folders[name] = self._open_folder(self.fd, name, name)
            for name in self._names("queues"):
                if _QUEUE.fullmatch(name) and self._is_folder("queues", name):
                    self._queues[name] = self._open_folder(self._folders["queues"], name, f"queues/{name}")
            self._check_writable()
        except BaseException:
            self.close()
            raise

    def _open_folder(self, parent: int, name: str, shown: str) -> int:
        try:
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=parent)
            except FileNotFoundError:
                os.mkdir(name, _MODE, dir_fd=parent)
                fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            why = "it is a link or a file" if error.errno in (errno.ELOOP, errno.ENOTDIR) else _said(error)
            raise StoreUnusable(f"{self.root / shown} must be a folder of its own: {why}") from error
        if os.fstat(fd).st_dev != self._device:
            os.close(fd)
            raise StoreUnusable(
                f"{self.root / shown} is another file system than {self.root}: messages could not be moved there in one step; "
                "unmount it"
            )
        return fd

    def _check_writable(self) -> None:
        try:
            probe = Spot(self._folders["new"], f".probe-{os.urandom(8).hex()}")
            os.close(self._create(probe))
            self.unlink(probe)
            for fd in (self.fd, *self._folders.values(), *self._queues.values()):
                if not os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreUnusable(f"folder {self.root} cannot be written: {_said(error)}") from error

    def close(self) -> None:
        for fd in (*self._queues.values(), *self._folders.values(), self.fd):
            os.close(fd)
        self._queues.clear()
        self._folders.clear()

    # ── a copy on its way ───────────────────────────────────────────────────────────────────

    def is_unfinished(self) -> bool:
        return self.exists(Spot(self.fd, COPYING))

    def set_unfinished(self, on: bool) -> None:
        mark = Spot(self.fd, COPYING)
        if not on:
            self.unlink(mark)
        elif not self.exists(mark):
            os.close(self._create(mark))
        os.fsync(self.fd)

    def used(self) -> bool:
        """Whether anything lies in its folders."""
        return any(self._names(folder) for folder in FOLDERS)

    def clear(self) -> None:
        """What an unfinished copy left."""
        for queue in self._names("queues"):
            folder = self.queue(queue)
            for name in os.listdir(folder):
                os.unlink(name, dir_fd=folder)
            self.remove_queue(queue)
        for kind in FOLDERS:
            for name in self._names(kind):
                os.unlink(name, dir_fd=self._folders[kind])
        self.unlink(Spot(self.fd, PICTURE))

    def sync(self) -> None:
        """Every name in it."""
        for fd in (*self._queues.values(), *self._folders.values(), self.fd):
            os.fsync(fd)

    # ── places ──────────────────────────────────────────────────────────────────────────────

    def spot(self, place: Place, queue: str, id: str) -> Spot:
        if not _ID.fullmatch(id):
            raise ValueError(f"not an id: {id!r}")
        if place is Place.QUEUE:
            return Spot(self.queue(queue), id)
        assert place is not Place.NEW, "its name there is not its own"
        return Spot(self._folders[_FOLDER_OF[place]], f"{_checked(queue)}:{id}")

    def folder(self, name: str) -> int:
        return self._folders[name]

    def queue(self, name: str) -> int:
        """The folder of a queue, made where it is not there."""
        fd = self._queues.get(name)
        if fd is not None and _is_there(fd):
            return fd
        self._let_go_of(name)  # another broker removed it
        fd = self._queues[name] = self._open_folder(self._folders["queues"], _checked(name), f"queues/{name}")
        return fd

    def _let_go_of(self, queue: str) -> None:
        fd = self._queues.pop(queue, None)
        if fd is not None:
            os.close(fd)

    def remove_queue(self, name: str) -> None:
        """If nothing is left in it."""
        self._let_go_of(_checked(name))
        try:
            os.rmdir(name, dir_fd=self._folders["queues"])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def in_new(self, name: str) -> Spot:
        return Spot(self._folders["new"], name)

    def write(self, spot: Spot, body: bytes) -> int:
        """A new file; its open descriptor."""
        fd = self._create(spot)
        try:
            written = os.write(fd, body)
            while written < len(body):
                written += os.write(fd, body[written:])
        except BaseException:
            os.close(fd)
            self.unlink(spot)
            raise
        return fd

    def _create(self, spot: Spot) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(spot.name, flags, _FILE_MODE, dir_fd=spot.folder)

    def open(self, spot: Spot) -> int:
        """To be read. Raises OSError, also for what is no plain file."""
        fd = os.open(spot.name, _READ, dir_fd=spot.folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a plain file")
        return fd

    def move(self, spot: Spot, to: Spot) -> None:
        """Never over another file: those who move into a place hold the log's lock and know what is there."""
        os.rename(spot.name, to.name, src_dir_fd=spot.folder, dst_dir_fd=to.folder)

    def unlink(self, spot: Spot) -> None:
        with suppress(FileNotFoundError):
            os.unlink(spot.name, dir_fd=spot.folder)

    def exists(self, spot: Spot) -> bool:
        try:
            os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
            return True
        except FileNotFoundError:
            return False

    def set_due(self, spot: Spot, at: int) -> None:
        """Its mtime says until when it is kept from fetches."""
        moment = at * 1_000
        with suppress(FileNotFoundError):
            os.utime(spot.name, ns=(moment, moment), dir_fd=spot.folder, follow_symlinks=False)

    # ── what lies there ─────────────────────────────────────────────────────────────────────

    def _names(self, folder: str) -> list[str]:
        return os.listdir(self._folders[folder])

    def _is_folder(self, folder: str, name: str) -> bool:
        try:
            found = os.stat(name, dir_fd=self._folders[folder], follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(found.st_mode)

    def dropped(self) -> frozenset[str]:
        """Names in new/, but for what is on its way."""
        return frozenset(name for name in self._names("new") if not name.startswith("."))

    def listed(self, folder: str) -> tuple[list[tuple[str, str]], list[Unfit]]:
        """(queue, id) of the messages' files in new, delay, dead or remove; and what else is there."""
        found, unfit = [], []
        for name in self._names(folder):
            if name.startswith("."):
                continue
            queue, colon, id = name.partition(":")
            why = None
            if not colon or not _QUEUE.fullmatch(queue) or not _ID.fullmatch(id):
                why = "its name is not queue:id"
            else:
                why = self._not_plain(Spot(self._folders[folder], name))
            if why is None:
                found.append((queue, id))
            elif why:
                unfit.append(Unfit(f"{folder}/{_printable(name)}", why))
        return sorted(found), unfit

    def listed_queues(self) -> tuple[dict[str, list[str]], list[Unfit]]:
        """The ids in each queue's folder, those too that were made by somebody else."""
        queues: dict[str, list[str]] = {}
        unfit = []
        for queue in sorted(self._names("queues")):
            if not _QUEUE.fullmatch(queue) or not self._is_folder("queues", queue):
                unfit.append(Unfit(f"queues/{_printable(queue)}", "not a folder with the name of a queue"))
                continue
            folder = self.queue(queue)
            ids = queues[queue] = []
            for id in sorted(os.listdir(folder)):
                why = self._not_plain(Spot(folder, id)) if _ID.fullmatch(id) else "its name is not an id"
                if why is None:
                    ids.append(id)
                elif why:
                    unfit.append(Unfit(f"queues/{queue}/{_printable(id)}", why))
        return queues, unfit

    def _not_plain(self, spot: Spot) -> str | None:
        """Why it is no message; None: it is one; empty: it is gone."""
        try:
            found = os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
        except FileNotFoundError:
            return ""
        if not stat.S_ISREG(found.st_mode):
            return "it is not a plain file"
        return "it has another name elsewhere (a hard link)" if found.st_nlink > 1 else None

    def removed(self) -> Iterator[Spot]:
        """What is done, and can go for good."""
        for name in self._names("remove"):
            spot = Spot(self._folders["remove"], name)
            if not self._not_plain(spot):
                yield spot

    def temporaries(self) -> Iterator[Spot]:
        """Ours: others that copy a file in may use dot names, too."""
        for name in self._names("new"):
            if _TEMPORARY.fullmatch(name):
                yield Spot(self._folders["new"], name)


def _is_there(folder: int) -> bool:
    try:
        return os.fstat(folder).st_nlink > 0
    except OSError:  # on NFS, a handle that is stale
        return False


def _checked(queue: str) -> str:
    if not _QUEUE.fullmatch(queue):
        raise ValueError(f"not a queue: {queue!r}")
    return queue


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:120]


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
