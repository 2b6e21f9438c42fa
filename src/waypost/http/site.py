"""Which names this server answers to, so that no foreign web page speaks to it through a visitor's browser.

A server on loopback only takes a `Host` that is a loopback name or address, with any port; otherwise a page
whose own name was re-pointed to 127.0.0.1 could read it (DNS rebinding). A server on another address takes
that address and its `names`; without names any. An `Origin` (a browser's word on which page is asking) must
be the very host that is asked, or one of the `names`.
"""

import ipaddress
import re
from functools import lru_cache

from waypost.http.problem import Problem

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]*)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://(.+)")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class Site:
    """The names of one server: the address it is bound to and those it was given."""

    def __init__(self, bound: str, names: tuple[str, ...] = ()) -> None:
        self.loopback = is_loopback(bound)
        self.names = frozenset(name.lower() for name in names)
        self.any = not self.loopback and not names
        self.bound = bound.lower()
        # clients say the same few names again and again
        self._check_host = lru_cache(256)(self._refuse_host)

    def check(self, hosts: list[str], origin: str | None) -> Problem | None:
        """Refuse a request by its `Host` (and the authority of its target, if any) and its `Origin`."""
        for host in hosts:
            refusal = self._check_host(host)
            if refusal is not None:
                return refusal
        if origin is not None and not self._is_ours(origin, hosts):
            return Problem(
                403,
                "FOREIGN_ORIGIN",
                "Foreign origin",
                f"pages of {origin!r} may not use this server",
                "open the server's own pages, or start it with --name HOST",
            )
        return None

    def _refuse_host(self, host: str) -> Problem | None:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return Problem(
                400, "BAD_HOST", "Bad Host", f"{host!r} is not host or host:port", "send one Host header"
            )
        if self._answers_to(parts[1].lower()):
            return None
        return Problem(
            421,
            "WRONG_HOST",
            "Not this server",
            f"this server does not answer to {host!r}",
            "use the address it is bound to, or start it with --name HOST",
        )

    def _answers_to(self, host: str) -> bool:
        if self.any or host in self.names:
            return True
        return is_loopback(host) if self.loopback else host.strip("[]") == self.bound.strip("[]")

    def _is_ours(self, origin: str, hosts: list[str]) -> bool:
        parts = _ORIGIN.fullmatch(origin.lower())
        asked = parts and _HOST.fullmatch(parts[2])
        if not parts or not asked:
            return False
        if asked[1] in self.names:
            return True
        default = _DEFAULT_PORTS[parts[1]]
        for host in hosts:
            ours = _HOST.fullmatch(host.lower())
            if ours is None or (ours[1], ours[2] or default) != (asked[1], asked[2] or default):
                return False
        return bool(hosts)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
