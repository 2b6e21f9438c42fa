"""Commands as a person runs them: in this process or as one of their own, against a broker that is one."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
WAYPOST = [sys.executable, "-m", "waypost"]


def environment(**more: str) -> dict[str, str]:
    """As a person's, without settings of whoever runs the tests."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("WAYPOST_")}, **more}


class Broker(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    port: int
    ready: str


def serve(folder: Path, *options: str, **settings: str) -> Broker:
    process = subprocess.Popen(
        [*WAYPOST, "serve", "--port", "0", *options],
        cwd=folder,
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    ready = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", ready)
    if found is None:
        process.kill()
        raise AssertionError(ready + process.stderr.read())
    return Broker(process, found[0], int(found[1]), ready)


def end(broker: Broker, code: int = 0) -> str:
    """What it said on its way out."""
    broker.process.send_signal(signal.SIGTERM)
    said = broker.process.communicate(timeout=20)[1]
    assert broker.process.returncode == code, said
    return said


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of a command that went wrong."""
        assert self.err.startswith("waypost: "), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        return self.err


Waypost = Callable[..., Done]


def outside(*arguments: str, stdin: str = "", **settings: str) -> Done:
    """Runs a command as a process."""
    done = subprocess.run(
        [*WAYPOST, *arguments], env=environment(**settings), input=stdin, capture_output=True, text=True
    )
    return Done(done.returncode, done.stdout, done.stderr)


def messages(waypost: Waypost, *where: str, n: int = 100) -> list[dict[str, Any]]:
    """Fetched from a queue, or with --channel NAME."""
    return [json.loads(line) for line in waypost("fetch", *where, "-n", str(n), "--json").out.splitlines()]


def all_of(terminal: int) -> bytes:
    """What was written to a terminal whose other end is still open here: with the last one, what was not read may go."""
    read = b""
    # On a busy machine the kernel takes its time to hand over even the first of it.
    while select.select([terminal], [], [], 1.0 if read else 10.0)[0]:
        read += os.read(terminal, 65_536)
    return read
