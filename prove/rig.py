"""A disk whose power can be cut, and whose writes can fail and heal. Needs root.

    mnt (ext4) ─ loop ─ nbdfuse ─ nbdkit: error filter ─ write-back cache in memory ─ disk.img
                                                                        ▲
                                          the cut: nbdkit is killed, and what was not synced never was

The loop device and both mounts are undone by their own names; nothing else on the machine is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

#: the store keeps 128 MiB free, and a ballast; the file has holes, so most of this is never written
DISK_BYTES = 1 << 30
PATIENCE = 20.0


class RigFailed(Exception):
    """The rig itself did not do what was asked."""


class Disk:
    """From attach to cut; then, by `attach_again`, what is left of it."""

    def __init__(self) -> None:
        # Short: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="waypost-cut-", dir="/var/tmp"))
        self.mount = self.folder / "mnt"
        self._fuse_mount = self.folder / "nb"
        self._image = self.folder / "disk.img"
        self._trouble = self.folder / "inject-eio"
        self._pid: int | None = None
        self._fuse: subprocess.Popen[bytes] | None = None
        self._loop: str | None = None

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _attach(self) -> None:
        self.mount.mkdir()
        self._fuse_mount.mkdir()
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))
        socket, pid_file = self.folder / "s.sock", self.folder / "nbdkit.pid"
        _run(
            *("nbdkit", "-U", str(socket), "-P", str(pid_file), "--filter=error", "--filter=cache"),
            *("file", str(self._image), "cache=writeback"),
            *("error-pwrite=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={self._trouble}"),
        )
        _wait(pid_file.exists, "nbdkit")
        self._pid = int(pid_file.read_text())
        self._fuse = subprocess.Popen(
            ["nbdfuse", str(self._fuse_mount), f"nbd+unix:///?socket={socket}"],
            stderr=subprocess.DEVNULL,  # it complains of the cut
        )
        _wait((self._fuse_mount / "nbd").exists, "nbdfuse")
        self._mount(self._fuse_mount / "nbd")

    def _mount(self, file: Path) -> None:
        self._loop = _run("losetup", "-f", "--show", str(file)).strip()
        # A journal that could not be written stops the file system for good, so it is written seldom.
        _run("mount", "-o", "commit=60", self._loop, str(self.mount))

    def fail_writes(self) -> None:
        self._trouble.touch()

    def heal(self) -> None:
        self._trouble.unlink()

    def cut(self) -> None:
        """The power is gone. Quick, and from any thread."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            _wait(lambda: not Path(f"/proc/{self._pid}").exists(), "the end of nbdkit")
            self._pid = None

    def attach_again(self) -> None:
        """After a cut, and with nobody on the mount: the image as the cut left it, on a new device."""
        self._detach()
        self._mount(self._image)

    def _detach(self) -> None:
        if self._loop is not None:
            # The mount may not have come about; lazily, because the disk below it may be gone.
            subprocess.run(["umount", "-l", str(self.mount)], capture_output=True, check=False)
            subprocess.run(["losetup", "-d", self._loop], capture_output=True, check=False)
            loop, self._loop = self._loop, None
            _wait(lambda: not _run("losetup", "-n", "-O", "BACK-FILE", loop, check=False).strip(), loop)
        if self._fuse is not None:
            subprocess.run(["umount", "-l", str(self._fuse_mount)], capture_output=True, check=False)
            try:
                self._fuse.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._fuse.kill()
                self._fuse.wait()
            self._fuse = None

    def remove(self) -> None:
        self._detach()
        self.cut()
        shutil.rmtree(self.folder)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RigFailed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RigFailed(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.01)
