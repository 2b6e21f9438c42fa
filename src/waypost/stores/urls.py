"""Store URLs as people may see them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def masked(url: str) -> str:
    """Without its password, wherever it stands."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://…"
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{user.partition(':')[0]}{at}{host}", parts.path, "", ""))


def without_password(text: str, url: str) -> str:
    """What somebody says of a URL, which may repeat parts of it."""
    text = text.replace(url, masked(url))
    secret = url.rpartition("@")[0].partition("://")[2].partition(":")[2]
    return text.replace(secret, "***") if secret else text
