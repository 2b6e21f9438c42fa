"""The sqlite store does what every store must."""

from pathlib import Path

import pytest

from waypost.message import Entropy
from waypost.stores.sqlite import SqliteStore
from waypost.testing import MovableClock, OpenStore, StoreTests


class TestSqliteStore(StoreTests):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> SqliteStore:
            return SqliteStore(
                tmp_path / "waypost.db", clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0
            )

        return open_store
