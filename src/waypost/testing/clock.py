"""Time and chance in a test's hand: a clock that moves when told to, and the same random words every run."""

from __future__ import annotations

import random

from ..instants import SECOND
from ..message import Entropy


class MovableClock:
    """The present instant, in microseconds; stands still until it is moved."""

    def __init__(self, now: int = 1_800_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


def seeded_entropy(seed: int = 0) -> Entropy:
    """64 bits a call, the same ones for the same seed."""
    source = random.Random(seed)
    return lambda: source.getrandbits(64)
