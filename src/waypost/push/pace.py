"""How many may be sent now, where a consumer has a rate."""

from __future__ import annotations

#: what may go out at once after a pause, in seconds of the rate
BURST_SECONDS = 0.1


class Pace:
    """Time is an argument: seconds of a clock that only goes forward."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._at = rate, now
        self._most = max(1.0, rate * BURST_SECONDS)
        self._ready = self._most

    def ready(self, now: float) -> int:
        self._ready = min(self._most, self._ready + (now - self._at) * self._rate)
        self._at = now
        return int(self._ready)

    def take(self, n: int, now: float) -> None:
        self.ready(now)
        self._ready -= n

    def seconds(self) -> float:
        """Until the next one is ready."""
        return max(0.0, 1.0 - self._ready) / self._rate
