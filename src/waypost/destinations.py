"""Destinations: what deliveries go to.

A queue hands each message to one worker (unless its policy asks for more confirmations); a channel belongs to one subscriber
and gets every message whose topics match. Both have a policy, and fetch and confirm work alike; names of
queues and names of channels do not meet.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Which of the two; numbers never change, stores write them."""

    QUEUE = 1
    CHANNEL = 2

    @property
    def word(self) -> str:
        return "queue" if self is Kind.QUEUE else "channel"


QUEUE, CHANNEL = Kind.QUEUE, Kind.CHANNEL
