"""The broker as a process of its own: started, watched, struck."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: a start on a slow disk
READY_SECONDS = 30.0
_READY = re.compile(r"ready on http://127\.0\.0\.1:(\d+)")
#: pwrite64, fsync, fdatasync, ftruncate, syncfs: the calls in which a store writes
_WRITING = {"x86_64": {"18", "74", "75", "77", "306"}, "aarch64": {"68", "82", "83", "46", "267"}}


class NotServing(Exception):
    """The broker refused to start, or ended before it was ready."""


def serve_command(store: Path) -> list[str]:
    """The real thing, as a person starts it."""
    return serve_url_command(f"sqlite:///{store}")


def serve_url_command(url: str) -> list[str]:
    return [sys.executable, "-m", "waypost", "serve", "--store", url, "--port", "0"]


def normal_command(store: Path) -> list[str]:
    """A control: synchronous=NORMAL."""
    return [sys.executable, "-m", "prove.careless", "normal", str(store)]


def unchecked_command(store: Path) -> list[str]:
    """A control: no checkpoint at the start."""
    return [sys.executable, "-m", "prove.careless", "unchecked", str(store)]


def is_writing(pid: int) -> bool:
    """Whether a thread of it is inside a write or a sync at this moment, as far as the kernel tells."""
    for task in Path(f"/proc/{pid}/task").glob("*/syscall"):
        try:
            call = task.read_text().split()[0]
        except (OSError, IndexError):
            continue
        if call in _WRITING.get(platform.machine(), ()):
            return True
    return False


class Child:
    """One life of the broker."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        # What is proved is this checkout's code, with nothing from the person's settings.
        env = {name: value for name, value in os.environ.items() if not name.startswith("WAYPOST_")}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=env, cwd=log.parent
            )

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def port(self) -> int:
        """Waits until it is ready."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if ready := _READY.search(self.said):
                return int(ready[1])
            if self.process.poll() is not None:
                raise NotServing(f"status {self.process.returncode}: {self.said.strip()[-500:]}")
            time.sleep(0.005)
        self.kill()
        raise NotServing(f"not ready after {READY_SECONDS:g} s: {self.said.strip()[-500:]}")

    def is_writing(self) -> bool:
        return is_writing(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """As a person would; its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
