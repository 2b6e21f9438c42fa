"""Why a routing job cannot go on."""

from __future__ import annotations

from ...errors import WaypostError


class RoutingStuck(WaypostError):
    """The broker does not answer, or not as it should; the text says what to do."""
