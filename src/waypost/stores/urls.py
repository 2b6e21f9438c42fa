"""Store URLs as people may see them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def masked(url: str) -> str:
    """Without its password, wherever it stands."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{user.partition(':')[0]}{at}{host}", parts.path, "", ""))
