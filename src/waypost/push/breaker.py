"""The breaker: whether an endpoint is up, judged by its last answers.

              outage × 5 in a row                  the pause is over
    closed ─────────────────────────▶ open ───────────────────────────▶ half-open
       ▲                               ▲   nothing is sent or counted       │ one probe
       │                               '────────── it failed too ───────────┤ pause × 2, at most the longest
       '──────────────────────────────────── it was answered ◀──────────────'

An outage is: no connection, no answer in time, a connection that broke, 5xx. A message that its receiver cannot
digest (poison) must not look like one, so
* a failure of a *suspect*, a message that failed before another one was answered, says nothing of the endpoint;
* failures of one message alone do not open the breaker, unless it never left this host: then it cannot be its fault.

Time is an argument: seconds of a clock that only goes forward.
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec

#: suspects remembered; they are few, unless much is wrong
MOST_SUSPECTS = 10_000


class Position(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Tripping(msgspec.Struct, frozen=True, gc=False):
    """When a breaker opens, and for how long."""

    #: outages in a row
    failures: int = 5
    first_seconds: float = 1.0
    longest_seconds: float = 60.0


class Breaker:
    def __init__(self, tripping: Tripping) -> None:
        self._tripping = tripping
        #: outages since the last answer, and whether one of them was a message that never left
        self._row = 0
        self._unsent = False
        #: the messages that reached the endpoint in vain since then
        self._failed: set[str] = set()
        self._suspects: dict[str, None] = {}
        #: how often it opened since it was last closed
        self._openings = 0
        self._until = 0.0

    def position(self, now: float) -> Position:
        if not self._openings:
            return Position.CLOSED
        return Position.OPEN if now < self._until else Position.HALF_OPEN

    @property
    def until(self) -> float:
        """When a probe may go out, if it is open."""
        return self._until

    def answered(self, id: str, now: float) -> None:
        """The endpoint is there. A late answer while open does not shorten the pause of one just found to be down."""
        self._failed.discard(id)
        self._suspects.pop(id, None)
        self._suspects.update(dict.fromkeys(self._failed))
        while len(self._suspects) > MOST_SUSPECTS:
            self._suspects.pop(next(iter(self._suspects)))
        self._failed.clear()
        if self.position(now) is not Position.OPEN:
            self._openings = 0
        self._row, self._unsent = 0, False

    def outage(self, id: str, now: float, *, sent: bool) -> bool:
        """Whether this failure is counted as an attempt of the message."""
        position = self.position(now)
        suspect = id in self._suspects
        if sent and not suspect:
            self._failed.add(id)
        if position is not Position.CLOSED:
            if position is Position.HALF_OPEN:
                self._open(now)
            return False
        if sent and suspect:
            return True
        self._row += 1
        self._unsent = self._unsent or not sent
        if self._row >= self._tripping.failures and (self._unsent or len(self._failed) > 1):
            self._open(now)
        return sent

    def throttled(self, id: str) -> bool:
        """Whether it is the message's own fault: the endpoint had time for others since it last put this one off."""
        self._failed.add(id)
        return id in self._suspects

    def _open(self, now: float) -> None:
        doubled = self._tripping.first_seconds * 2 ** min(self._openings, 30)
        self._openings += 1
        # Not all endpoints that went down together are asked again together.
        self._until = now + min(self._tripping.longest_seconds, doubled) * random.uniform(0.75, 1.0)
        self._row, self._unsent = 0, False
