"""Why a pipeline cannot go on."""

from __future__ import annotations

from ...errors import WaypostError


class PipelineStuck(WaypostError):
    """The tables and the log do not fit together; the text says what to do."""
