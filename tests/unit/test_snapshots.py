"""Depths as of a moment: however long the log, few events are read for one."""

from pathlib import Path

import apsw
import pytest

from waypost.commands import Confirm, Fetch
from waypost.delivery import Q, S
from waypost.destinations import Kind
from waypost.errors import LogTrimmed
from waypost.instants import SECOND
from waypost.stores.sqlite import SqliteStore, snapshots
from waypost.testing import MovableClock
from waypost.testing.hand import publish


def opened(path: Path, clock: MovableClock) -> SqliteStore:
    return SqliteStore(path, clock=clock, ballast_bytes=4096, pregrown_bytes=0)


def test_a_moment_is_found_from_the_snapshot_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVENTS", 20)
    clock = MovableClock()
    store = opened(tmp_path / "waypost.db", clock)
    expected = {}
    try:
        for number in range(1, 101):
            clock.move(1)
            (_, fetched) = store.apply([publish("a.x"), Fetch(queue="a")]).results
            if number % 2:
                store.apply([Confirm(queue="a", receipts=[fetched[0].receipt])])
            info = store.queue("a")
            assert info is not None
            expected[clock.now] = info.states
        assert store.bounds()[1] > 350
        read: list[int] = []
        fold = snapshots._fold

        def watched(db: object, number: int, lo: int, hi: int, counts: list[int]) -> None:
            read.append(hi - lo + 1)
            fold(db, number, lo, hi, counts)

        monkeypatch.setattr(snapshots, "_fold", watched)
        for at, states in expected.items():
            found = store.depths(Kind.QUEUE, "a", at)
            assert found is not None
            assert found.states == states
        assert len(read) == 100
        assert max(read) <= 25
    finally:
        store.close()


def test_a_long_life_before_the_first_snapshot_is_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the migration of a file that had none."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVENTS", 20)
    clock, path = MovableClock(), tmp_path / "waypost.db"
    store = opened(path, clock)
    for _ in range(30):
        clock.move(1)
        store.apply([publish("a.x")])
    store.close()
    db = apsw.Connection(str(path))
    db.execute("delete from snapshots")
    db.close()
    clock.move(10)
    store = opened(path, clock)
    try:
        with pytest.raises(LogTrimmed):
            store.depths(Kind.QUEUE, "a", clock.now - 20 * SECOND)
        store.apply([publish("a.x")])
        with pytest.raises(LogTrimmed) as refused:
            store.depths(Kind.QUEUE, "a", clock.now - 20 * SECOND)
        assert refused.value.oldest_at == clock.now
        found = store.depths(Kind.QUEUE, "a", clock.now)
        assert found is not None
        assert found.states == {Q: 31}
        assert S not in found.states
    finally:
        store.close()
