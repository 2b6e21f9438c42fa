"""Figures of one endpoint, since this process began to push to it."""

from __future__ import annotations

import msgspec

from .breaker import Position


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    #: requests
    sent: int
    succeeded: int
    failed: int
    in_flight: int
    breaker: Position
    last_error: str | None
    last_error_at: int | None
    last_success_at: int | None
