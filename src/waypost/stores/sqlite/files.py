"""The store's files: opening them safely, or saying in one line why not.

    waypost.db         the store; its -wal and -shm beside it
    waypost.db.lock    held by the one process that writes
    waypost.db.ballast room kept for fetch and confirm on a full disk
    waypost.db.bodies/ large bodies and uploads, one file each
    waypost.db.v1-…    the copy made before a migration

What is checked here is what the promise rests on: a fixed SQLite, the write-ahead log with a full sync, one
writer, and a checkpoint that went through before the first answer. (After a healed I/O error a log that was
not checkpointed can lose commits it acknowledges later.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import apsw

from ...errors import StoreUnusable

#: "WAYP", in the file's header
APPLICATION_ID = 0x57415950
#: "WAYc": a copy that is not finished
UNFINISHED_ID = 0x57415963
VERSION = 4
#: the first release without the bug that corrupts a file when two connections write and checkpoint at once
OLDEST_SQLITE = (3, 51, 3)
#: how long another reader may hold up the checkpoint at start; the lake's process of a broker that died lets go sooner
CHECKPOINT_SECONDS = 15.0
#: how long a connection waits for another's lock
BUSY_MS = 5_000
#: syncs that overwrite are quicker than those that append, so the write-ahead log gets its size at the start
PREGROWN_BYTES = 24 << 20

#: the mode of files that hold payloads and secrets
PRIVATE = 0o600

#: from version -> the SQL that leads to the next
Migrations = dict[int, str]


def known_migrations() -> Migrations:
    return {version: schema_text(f"v{version + 1}.sql") for version in range(1, VERSION)}


def schema_text(name: str = "schema.sql") -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def make_folder(path: Path) -> None:
    """With its entry on stable media, as everything in it will be."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_path(path.parent.parent)
    except OSError as error:
        raise StoreUnusable(f"cannot make the folder {path.parent}: {error.strerror}") from error


class Lock:
    """One process writes a store."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(f"cannot write {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreUnusable(
                f"{path} is served already, by process {holder}; one broker per file"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


def connect(path: Path, synchronous: str = "full") -> apsw.Connection:
    """A connection with the settings the promise rests on."""
    connection = apsw.Connection(str(path), statementcachesize=200)
    connection.set_busy_timeout(BUSY_MS)
    # Plans do not depend on what is bound: else a statement with `limit ?` is prepared anew each time it is run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute("pragma temp_store = memory; pragma wal_autocheckpoint = 0; pragma cache_size = -8192")
    connection.execute("pragma secure_delete = fast")
    # Only macOS knows these; there a plain fsync does not reach the disk.
    connection.execute("pragma fullfsync = on; pragma checkpoint_fullfsync = on")
    connection.execute(f"pragma synchronous = {synchronous}")
    return connection


@contextmanager
def overwriting(connection: apsw.Connection) -> Iterator[None]:
    """What is taken out of the file meanwhile is overwritten in it. Where a message's row is written anew its body moves, so that too is
    done in here: an erased body is then nowhere in the file. (What else a change leaves free is overwritten only where that costs no
    more writing.)"""
    connection.execute("pragma secure_delete = on")
    try:
        yield
    finally:
        connection.execute("pragma secure_delete = fast")


def open_file(
    path: Path,
    *,
    now: int,
    synchronous: str = "full",
    pregrown_bytes: int = PREGROWN_BYTES,
    migrations: Migrations | None = None,
) -> apsw.Connection:
    """The writing connection, ready to serve. The caller holds the lock."""
    _check_library()
    try:
        _make_private(path)
        connection = connect(path, synchronous)
        mode = connection.execute("pragma journal_mode = wal").get
        if mode != "wal":
            raise StoreUnusable(
                f"{path} cannot have a write-ahead log ({mode}): is it on a network file system?"
            )
        _check_version(connection, path, now, known_migrations() | (migrations or {}))
        checkpoint(connection, path)
        sync_path(path.parent)
        if pregrown_bytes:
            _pregrow(connection, path, pregrown_bytes)
    except apsw.NotADBError as error:
        raise StoreUnusable(f"{path} is not a SQLite file") from error
    except (apsw.CorruptError, apsw.IOError) as error:
        raise StoreUnusable(
            f"{path} is damaged: {error}; restore a copy, or move it away to start anew"
        ) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise StoreUnusable(f"cannot write {path}: {error}") from error
    except apsw.FullError as error:
        raise StoreUnusable(f"the disk of {path} is full") from error
    except apsw.BusyError as error:
        raise StoreUnusable(f"{path} is held by {_holders(path)}") from error
    return connection


def _make_private(path: Path) -> None:
    """Payloads and secrets are for the broker's user; SQLite gives its other files the mode of this one."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    except FileExistsError:
        return  # its mode is the operator's affair
    except OSError as error:
        raise StoreUnusable(f"cannot write {path}: {error.strerror}") from error


def _check_library() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    if version < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnusable(
            f"SQLite {apsw.sqlite_lib_version()} is too old, {wanted} is needed: pip install -U apsw"
        )


def _check_version(connection: apsw.Connection, path: Path, now: int, migrations: Migrations) -> None:
    application = connection.pragma("application_id")
    version = connection.pragma("user_version")
    newest = max(migrations, default=VERSION - 1) + 1
    empty = connection.execute("select count(*) from sqlite_schema").get == 0
    if empty and application == 0:
        _create(connection, now)
    elif application == UNFINISHED_ID:
        raise StoreUnusable(f"{path} is a copy that was not finished: run `waypost copy` to it again")
    elif application != APPLICATION_ID:
        raise StoreUnusable(f"{path} is another program's database; name a file of Waypost's, or a new one")
    elif version > newest:
        raise StoreUnusable(
            f"{path} has schema version {version}, this Waypost knows {newest}: install the newer Waypost again"
        )
    while version and version < newest:
        backup = path.with_name(f"{path.name}.v{version}-{now // 1_000_000}")
        _migrate(connection, path, backup, version, migrations[version])
        version += 1


def _create(connection: apsw.Connection, now: int) -> None:
    with connection:
        connection.execute(schema_text())
        store_id = os.urandom(16).hex()
        connection.execute('insert into head (id, "offset", at, oldest) values (?, 0, ?, 1)', (store_id, now))
        connection.execute(f"pragma application_id = {APPLICATION_ID}; pragma user_version = {VERSION}")


def _migrate(connection: apsw.Connection, path: Path, backup: Path, version: int, sql: str) -> None:
    """A copy first; then one transaction."""
    checkpoint(connection, path)
    partial = backup.with_name(backup.name + ".partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    shutil.copyfile(path, partial)
    sync_path(partial)
    partial.rename(backup)
    sync_path(path.parent)
    if version == 1:
        os.chmod(path, PRIVATE)  # from here on it may hold secrets
    with connection:
        connection.execute(sql)
        connection.execute(f"pragma user_version = {version + 1}")


def checkpoint(connection: apsw.Connection, path: Path, mode: int = apsw.SQLITE_CHECKPOINT_TRUNCATE) -> None:
    """Everything in the write-ahead log goes into the file and is synced, or the store is not served."""
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    connection.set_busy_timeout(0)
    while True:
        try:
            connection.wal_checkpoint(mode=mode)
            break
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise StoreUnusable(f"cannot checkpoint {path}: it is held by {_holders(path)}") from None
            time.sleep(0.05)
    connection.set_busy_timeout(BUSY_MS)


def _pregrow(connection: apsw.Connection, path: Path, size: int) -> None:
    """A start that was killed may have left the table; a disk without the room serves without."""
    connection.execute("drop table if exists pregrown")
    try:
        with connection:
            connection.execute("create table pregrown (filling)")
            connection.execute("insert into pregrown values (zeroblob(?))", (size,))
    except apsw.FullError:
        return
    connection.execute("drop table pregrown")
    checkpoint(connection, path, apsw.SQLITE_CHECKPOINT_RESTART)


def _holders(path: Path) -> str:
    """Who has the file open, as far as /proc tells."""
    names = []
    wanted = {os.path.realpath(path), os.path.realpath(path) + "-wal"}
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            if any(os.path.realpath(fd) in wanted for fd in (process / "fd").iterdir()):
                command = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                )
                names.append(f"process {process.name} ({command[:60]})")
        except OSError:
            continue
    return ", ".join(names) or "another process"


def sync_path(path: Path) -> None:
    """A file or a folder, to stable media."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


#: tells how many pages the write-ahead log has, after each commit
WalHook = Callable[[apsw.Connection, str, int], int]
