"""Figures of one endpoint, since this process began to push to it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..instants import instant_text
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

    def as_json(self) -> dict[str, Any]:
        """As `GET /v1/consumers/{name}` shows them."""
        return {
            "sent": self.sent,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "inFlight": self.in_flight,
            "breaker": self.breaker.value,
            "lastError": self.last_error,
            "lastErrorAt": None if self.last_error_at is None else instant_text(self.last_error_at),
            "lastSuccess": None if self.last_success_at is None else instant_text(self.last_success_at),
        }
