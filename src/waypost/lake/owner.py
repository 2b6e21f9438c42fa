"""Whose lake this is, and who may write to it now.

    lake/
      lake.json           {"format": 1, "store": id}: written by the first sealer, before its first commit
      .sealer.lock        held by the one process that writes message_events and payloads; not where brokers share a store, which
                          itself says whose turn it is, also to other machines
      .pipeline.lock      held by the one process that writes the other tables
      message_events/  payloads/  messages/  deliveries/ …

A lake belongs to one store for ever: offsets of another would fall on its own. This file imports nothing heavy, so the
broker asks it at start.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import LakeUnusable
from .syncing import sync_file, sync_folder

FORMAT = 1
SEALER = "sealer"
PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Lake:
    """The folder and what lies where in it."""

    folder: Path

    @property
    def events(self) -> Path:
        return self.table("message_events")

    @property
    def payloads(self) -> Path:
        return self.table("payloads")

    def table(self, name: str) -> Path:
        return self.folder / name

    @property
    def label(self) -> Path:
        return self.folder / "lake.json"


def owner(lake: Lake) -> str | None:
    """The id of the store whose lake this is; None while it is nobody's."""
    try:
        said = json.loads(lake.label.read_bytes())
        format, store = said["format"], str(said["store"])
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise LakeUnusable(f"{lake.folder} is not a folder: give another with --lake") from error
    except OSError as error:
        raise LakeUnusable(f"{lake.label} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LakeUnusable(f"{lake.label} says nothing of its store: restore it from a copy") from error
    if format != FORMAT:
        raise LakeUnusable(
            f"{lake.folder} has the format {format}, and this Waypost knows {FORMAT}: it is newer"
        )
    return store


def check_owner(lake: Lake, store: str, sealed: int | None) -> None:
    """LakeUnusable unless the store `store`, which has sealed up to `sealed`, may use this lake. Changes nothing."""
    found = owner(lake)
    if found == store:
        return
    if found is not None:
        raise LakeUnusable(
            f"{lake.folder} is the lake of another store, {found}: give this one its own with --lake"
        )
    if sealed:
        raise LakeUnusable(
            f"{lake.folder} is not the lake of this store, which has sealed up to offset {sealed}: "
            "say with --lake where that is"
        )
    if (lake.events / "_delta_log").exists():
        raise LakeUnusable(
            f"{lake.folder} has tables and no lake.json that says whose: give another with --lake"
        )


def claim(lake: Lake, store: str, sealed: int | None) -> None:
    """Checks, and makes the lake the store's if it was nobody's. Durable when it returns."""
    check_owner(lake, store, sealed)
    if owner(lake) == store:
        return
    try:
        _make_folder(lake)
        staged = lake.folder / ".lake.json"
        staged.write_text(json.dumps({"format": FORMAT, "store": store}) + "\n")
        sync_file(staged)
        staged.replace(lake.label)
        sync_folder(lake.folder)
        sync_folder(lake.folder.parent)
    except OSError as error:
        raise LakeUnusable(f"{lake.folder} cannot be made: {error.strerror}") from error


def _make_folder(lake: Lake) -> None:
    """As private as the store's own files: bodies lie in it. Whoever lets others read widens the folder's mode."""
    lake.folder.mkdir(0o700, parents=True, exist_ok=True)


def _lock(fd: int, wait: bool) -> None:
    """Without `wait` for a second all the same: somebody who only asks who writes has it for an instant."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def writing(lake: Lake, who: str, *, wait: bool = False) -> Iterator[None]:
    """The lock of the sealer or of the pipeline, until the block or the process ends. `wait`: for the one who has it now."""
    path = lake.folder / f".{who}.lock"
    try:
        _make_folder(lake)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LakeUnusable(f"{path} cannot be made: {error.strerror}") from error
    try:
        try:
            _lock(fd, wait)
        except BlockingIOError as error:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
            raise LakeUnusable(f"another {who} writes to {lake.folder}: process {holder}") from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
