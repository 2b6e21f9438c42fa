"""The PostgreSQL store does what every store must."""

import pytest

from tests.postgres.fixtures import database
from waypost.message import Entropy
from waypost.stores.postgres import PostgresStore, recent
from waypost.testing import MovableClock, OpenStore, StoreTests

__all__ = ["database"]


class TestPostgresStore(StoreTests):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> PostgresStore:
            return PostgresStore(database, clock=clock, entropy=entropy)

        return open_store


class TestPostgresStoreAlone(TestPostgresStore):
    """The same by what its own groups left behind, as when no other broker writes."""

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recent, "ALONE_AFTER_SECONDS", 0.0)
