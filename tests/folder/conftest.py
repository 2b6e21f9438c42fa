"""A tree on the disk, and a store on it that can be opened, abandoned and opened again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from waypost.stores.folder import FolderStore
from waypost.testing.clock import MovableClock
from waypost.testing.hand import Hand, audit

Open = Callable[..., Hand]


@pytest.fixture
def root(on_disk: Path) -> Path:
    return on_disk / "mq"


@pytest.fixture
def open_hand(root: Path) -> Iterator[Open]:
    opened: list[Hand] = []
    clock = MovableClock()

    def open_hand(where: Path | None = None, **given: Any) -> Hand:
        given.setdefault("ballast_bytes", 4096)
        hand = Hand(FolderStore(where or root, clock=clock, **given), clock)
        opened.append(hand)
        return hand

    yield open_hand
    for hand in opened:
        hand.store.close()


@pytest.fixture
def hand(open_hand: Open) -> Iterator[Hand]:
    hand = open_hand()
    yield hand
    audit(hand.store)


def folder_of(hand: Hand) -> FolderStore:
    assert isinstance(hand.store, FolderStore)
    return hand.store


def crashed(root: Path) -> Path:
    """The files as they lie, in a folder where nothing was ever closed."""
    copy = root.with_name(f"{root.name}-crashed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, symlinks=True, copy_function=_copied)
    return copy


def _copied(source: str, target: str) -> None:
    """What the reaper unlinks meanwhile was gone when the power went."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def files(root: Path) -> dict[str, bytes]:
    """What a stranger sees: every message's file with its bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("new", "queues", "delay", "remove", "dead")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
