"""Pace: how a job keeps to its rate. Ten small slices a second, and after each a pause as long as it was worth."""

from __future__ import annotations

from ..instants import SECOND


def slice_of(limit: int, rate: float | None) -> int:
    """How many deliveries one slice may touch."""
    return limit if rate is None else max(1, min(limit, int(rate / 10)))


def next_at(now: int, done: int, rate: float | None) -> int:
    """When the next slice may begin."""
    return now if rate is None else now + int(done * SECOND / rate)
