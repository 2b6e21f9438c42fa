"""The PostgreSQL store does what every store must."""

import pytest

from tests.postgres.fixtures import database
from waypost.message import Entropy
from waypost.stores.postgres import PostgresStore
from waypost.testing import MovableClock, OpenStore, StoreTests

__all__ = ["database"]


class TestPostgresStore(StoreTests):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> PostgresStore:
            return PostgresStore(database, clock=clock, entropy=entropy)

        return open_store
