"""The memory store does what every store must."""

import pytest

from waypost.message import Entropy
from waypost.stores.memory import MemoryStore
from waypost.testing import MovableClock, OpenStore, StoreTests


class TestMemoryStore(StoreTests):
    durable = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> MemoryStore:
            return MemoryStore(clock=clock, entropy=entropy)

        return open_store
