"""The programs that tests and proofs run beside Waypost: how to find each, how to get it.

    python -m scripts.test_servers test        before `make test`
    python -m scripts.test_servers prove       before `make prove`

As root on Debian what is missing gets installed; anywhere else it is named with its command, and the run goes
on: a test that needs it skips with that reason, and under CI=true fails (tests/conftest.py).
"""

import os
import shutil
import sys
from dataclasses import dataclass
from glob import glob

from scripts import debian


@dataclass(frozen=True)
class Server:
    name: str
    #: All of these must be on PATH.
    commands: tuple[str, ...]
    #: The Debian packages that bring them.
    packages: tuple[str, ...]
    #: Which runs use it: `test`, `prove`.
    runs: tuple[str, ...]
    #: Why it is wanted, for people.
    purpose: str

    def missing(self) -> bool:
        return any(shutil.which(command, path=_search_path()) is None for command in self.commands)

    def install_command(self) -> str:
        return debian.install_command(list(self.packages))


SERVERS = {
    server.name: server
    for server in (
        Server("strace", ("strace",), ("strace",), ("test", "prove"), "makes a sync fail on purpose"),
        Server(
            "postgresql",
            ("initdb", "pg_ctl"),
            ("postgresql",),
            ("test", "prove"),
            "the store that brokers share",
        ),
        Server("chromium", ("chromium",), ("chromium",), ("test",), "looks at the report"),
        Server("nbdkit", ("nbdkit",), ("nbdkit",), ("prove",), "the disk whose power is cut"),
        Server("nbdfuse", ("nbdfuse",), ("libnbd-bin",), ("prove",), "shows that disk as a file"),
        Server("fuse3", ("fusermount3",), ("fuse3",), ("prove",), "mounts that file"),
    )
}


def _search_path() -> str:
    """PATH as root has it: Debian keeps some servers out of a user's PATH."""
    versions = sorted(
        glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]), reverse=True
    )
    usual = os.environ.get("PATH", os.defpath)
    return os.pathsep.join([usual, "/usr/local/sbin", "/usr/sbin", "/sbin", *versions])


def needed(run: str) -> list[Server]:
    return [server for server in SERVERS.values() if run in server.runs]


def table(servers: list[Server]) -> list[str]:
    """One line per server: its name, what it is for, how to get it."""
    width = max((len(server.name) for server in servers), default=0)
    return [f"{server.name:<{width}}  {server.install_command()}  ({server.purpose})" for server in servers]


def main(run: str) -> int:
    absent = [server for server in needed(run) if server.missing()]
    if absent and debian.can_install():
        debian.install([package for server in absent for package in server.packages])
        absent = [server for server in absent if server.missing()]
    if absent:
        print(f"waypost: not on this machine, so `make {run}` leaves out what needs it:")
        print("\n".join(f"  {line}" for line in table(absent)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
