"""The walk itself: two memory stores that get the same commands say the same, whatever the commands are."""

from waypost.message import Entropy
from waypost.stores.memory import MemoryStore
from waypost.testing.clock import MovableClock
from waypost.testing.model import machine


class OneMemory:
    """Keeps nothing by itself, so a restart or a crash hands out the store that was open."""

    def __init__(self) -> None:
        self.store: MemoryStore | None = None

    def open(self, clock: MovableClock, entropy: Entropy) -> MemoryStore:
        self.store = self.store or MemoryStore(clock=clock, entropy=entropy)
        return self.store

    def crash(self) -> None:
        """Nothing is lost: what is tried here is the walk."""

    def remove(self) -> None:
        self.store = None


TestMemoryAgainstItself = machine(OneMemory).TestCase
