"""A command that failed: its text is the one line that the person reads."""

from __future__ import annotations

from ..errors import WaypostError


class CommandFailed(WaypostError):
    """It could not be done."""


class CommandMisused(CommandFailed):
    """It cannot be meant."""
