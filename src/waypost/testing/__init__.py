"""What Waypost is tested with, shipped so that a store from elsewhere can be held to the same rules.

    class TestMyStore(StoreTests):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda clock, entropy: MyStore(tmp_path, clock=clock, entropy=entropy)

`waypost.testing.model` (needs Hypothesis) runs any store beside the memory store, step by step. Needs pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("waypost.testing.hand", "waypost.testing.conformance", "waypost.testing.model")

from .clock import MovableClock, seeded_entropy  # noqa: E402 - after the rewriting is registered
from .conformance import OpenStore, StoreTests  # noqa: E402
from .hand import Hand, audit  # noqa: E402

__all__ = ["Hand", "MovableClock", "OpenStore", "StoreTests", "audit", "seeded_entropy"]
