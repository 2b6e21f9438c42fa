"""One life, lived by every store: the same answers, ids and receipts, and the same log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.postgres.fixtures import database
from tests.stores.trace import live, trace
from waypost.message import Entropy
from waypost.store import Feature, Store
from waypost.stores.folder import FolderStore
from waypost.stores.memory import MemoryStore
from waypost.stores.postgres import PostgresStore
from waypost.stores.sqlite import SqliteStore
from waypost.testing.clock import MovableClock, seeded_entropy

__all__ = ["database"]

GROUPS = 250
Open = Callable[[MovableClock, Entropy], Store]


def lived(open_store: Open, steps: list[Any]) -> tuple[list[Any], list[Any]]:
    """Its answers, and its log."""
    clock = MovableClock()
    store = open_store(clock, seeded_entropy())
    try:
        answers = live(store, clock, steps)
        return answers, store.events(*store.bounds())
    finally:
        store.close()


def compare(one: Open, other: Open, steps: list[Any]) -> None:
    (answers, log), (others, other_log) = lived(one, steps), lived(other, steps)
    for number, (wanted, found) in enumerate(zip(answers, others, strict=True)):
        assert found == wanted, f"group {number}: {steps[number]}"
    assert len(log) > 500
    assert other_log == log


@pytest.mark.parametrize("seed", [1, 2])
def test_sqlite_lives_as_the_model_does(tmp_path: Path, seed: int) -> None:
    compare(
        lambda clock, entropy: MemoryStore(clock=clock, entropy=entropy),
        lambda clock, entropy: SqliteStore(
            tmp_path / "w.db", clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0
        ),
        trace(seed, GROUPS),
    )


def test_postgres_lives_as_the_model_does(database: str) -> None:
    compare(
        lambda clock, entropy: MemoryStore(clock=clock, entropy=entropy),
        lambda clock, entropy: PostgresStore(database, clock=clock, entropy=entropy),
        trace(1, GROUPS),
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_a_folder_lives_as_the_model_does_with_what_it_has(tmp_path: Path, seed: int) -> None:
    compare(
        lambda clock, entropy: MemoryStore(clock=clock, entropy=entropy, keeps=False),
        lambda clock, entropy: FolderStore(tmp_path / "mq", clock=clock, entropy=entropy, ballast_bytes=4096),
        trace(seed, GROUPS, frozenset(Feature)),
    )
