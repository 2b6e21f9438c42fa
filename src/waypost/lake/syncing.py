"""What is on stable media, and when. delta-rs never syncs; these few calls do it for the whole lake."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Its names: a file that was synced can still be without a name after a power cut."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_with_folders(paths: Iterable[Path], top: Path) -> None:
    """Files somewhere below `top`, and every folder on the way to them."""
    folders = {top}
    for path in paths:
        sync_file(path)
        folders.update(folder for folder in path.parents if folder.is_relative_to(top))
    for folder in sorted(folders, reverse=True):
        sync_folder(folder)


def sync_everything(top: Path) -> None:
    """All below `top`, whoever wrote it and however long ago: before anything is deleted that it replaces."""
    if sys.platform == "linux":
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(top))
        finally:
            os.close(fd)
    else:
        sync_with_folders((path for path in top.rglob("*") if path.is_file()), top)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
