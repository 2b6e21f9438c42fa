"""The sqlite store does what every store must."""

from pathlib import Path

import pytest

from waypost.message import Entropy
from waypost.stores.sqlite import SqliteStore
from waypost.stores.sqlite.young import Young
from waypost.testing import MovableClock, OpenStore, StoreTests


class TestSqliteStore(StoreTests):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> SqliteStore:
            return SqliteStore(
                tmp_path / "waypost.db", clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0
            )

        return open_store


class TestSqliteStoreThatReadsEverything(TestSqliteStore):
    """Nothing young is found in memory, so every fetch and every confirm reads its rows."""

    @pytest.fixture(autouse=True)
    def nothing_is_young(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Young, "trim", Young.clear)
