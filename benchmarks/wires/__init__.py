"""What each protocol says for the same few operations.

A wire makes scripts for `benchmarks.loader`. All work on one queue and one 256-byte body; every reply is
checked. `cycle` is publish → fetch → confirm by the same client, in turn; the `batch` scripts do the
same with BATCH messages in one request, or in one write where the protocol pipelines.
"""

from __future__ import annotations

from typing import Protocol

from benchmarks.loader import Script, Tick

#: The body of every message, in every system.
BODY = (b"Waypost measures itself beside its peers. " * 7)[:256]
BATCH = 100


class Wire(Protocol):
    def hello(self) -> Script:
        """Greets the server on a new connection."""

    def prepare(self, queue: str) -> Script:
        """Makes an empty durable queue."""

    def remove(self, queue: str) -> Script:
        """Takes it away, where the system can do that without working on behind our back."""

    def publish(self, queue: str, tick: Tick) -> Script: ...

    def cycle(self, queue: str, tick: Tick) -> Script: ...

    def batch(self, queue: str, tick: Tick) -> Script: ...

    def batch_cycle(self, queue: str, tick: Tick) -> Script: ...


def nothing() -> Script:
    """For the steps that a protocol does not need."""
    yield from ()
