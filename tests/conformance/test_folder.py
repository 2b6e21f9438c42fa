"""The folder store does what every store must, but for what it says that it lacks."""

from pathlib import Path

import pytest

from waypost.message import Entropy
from waypost.stores.folder import FolderStore
from waypost.testing import MovableClock, OpenStore, StoreTests


class TestFolderStore(StoreTests):
    @pytest.fixture
    def open_store(self, on_disk: Path) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> FolderStore:
            return FolderStore(on_disk / "mq", clock=clock, entropy=entropy, ballast_bytes=4096)

        return open_store


class TestFolderStoreThatSyncsEach(TestFolderStore):
    """As on a file system without a `syncfs` that can be trusted."""

    @pytest.fixture
    def open_store(self, on_disk: Path) -> OpenStore:
        def open_store(clock: MovableClock, entropy: Entropy) -> FolderStore:
            return FolderStore(
                on_disk / "mq", clock=clock, entropy=entropy, ballast_bytes=4096, sync_each=True
            )

        return open_store
