"""Which addresses a webhook may call: what the public can reach, and what the operator allowed.

    https://hooks.example/in ──▶ check_url ──▶ resolve ──▶ refusal(address) for each ──▶ connect to one that passed
                                 words only    every time   the last word, also for an address written in the URL

A consumer's URL is an outsider's wish. Without this check it reads the cloud's metadata, or speaks to whatever
trusts this host. `ipaddress.is_global` lets too much through, so the list is our own. An IPv6 address that carries an
IPv4 address inside is only as good as that one. `--push-allow` lists networks that may be called all the same.

This file knows no network: it judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from ..consumers import LONGEST_URL
from ..errors import RequestInvalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: what nobody outside can reach, or nobody should; in the order in which they are looked through
_REFUSED_4 = [
    (IPv4Network(network), word)
    for network, word in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's metadata"),
        ("169.254.169.254/32", "a cloud's metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for measurements"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_REFUSED_6 = [
    (IPv6Network(network), word)
    for network, word in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "for documentation"),
        ("fd00:ec2::254/128", "a cloud's metadata"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
]
#: of IPv6, only this was ever given out
_PUBLIC_6 = IPv6Network("2000::/3")
_NAT64, _NAT64_LOCAL = IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48")
_COMPATIBLE, _TEREDO, _6TO4 = IPv6Network("::/96"), IPv6Network("2001::/32"), IPv6Network("2002::/16")
#: the middle of an ISATAP address, without the bit that says whether its IPv4 address is unique
_ISATAP = 0x00005EFE

#: a last label that old resolvers read as a number: 2130706433, 0x7f000001, 127.1, 0177.0.0.1
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)


def parse_allowed(given: Iterable[str]) -> tuple[Network, ...]:
    """The networks of --push-allow. Raises ValueError with what it should be."""
    networks: list[Network] = []
    for text in given:
        try:
            networks.append(ip_network(text.strip()))
        except ValueError:
            raise ValueError(f"a network such as 10.1.0.0/16 or fd00::/8, not {text!r}") from None
    return tuple(networks)


def refusal(address: Address, allowed: Sequence[Network] = ()) -> str | None:
    """Why it may not be called, in a word or two; None: it may."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            # The kernel sends it as IPv4.
            return refusal(address.ipv4_mapped, allowed)
        for inner in _embedded(address):
            why = refusal(inner, allowed)
            if why is not None:
                return f"{inner} inside it is {why}"
    if any(address in network for network in allowed):
        return None
    if isinstance(address, IPv4Address):
        return next((word for network, word in _REFUSED_4 if address in network), None)
    return next(
        (word for network, word in _REFUSED_6 if address in network),
        None if address in _PUBLIC_6 else "not a public address",
    )


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that a translator or tunnel would go on to."""
    bits = int(address)
    low = bits & 0xFFFFFFFF
    if address in _NAT64:
        inside = [low]
    elif address in _COMPATIBLE:
        inside = [low] if low > 1 else []  # :: and ::1 are themselves
    elif address in _NAT64_LOCAL:
        # A local translator's prefix may be of 48 bits, around the octet 64-71, or of 96: take both, where they say something.
        inside = [found for found in (low, (bits >> 64 & 0xFFFF) << 16 | bits >> 40 & 0xFFFF) if found]
    elif address in _6TO4:
        inside = [bits >> 80 & 0xFFFFFFFF]
    elif address in _TEREDO:
        inside = [
            bits >> 64 & 0xFFFFFFFF,
            low ^ 0xFFFFFFFF,
        ]  # its server, and its client with all bits turned
    elif (bits >> 32 & 0xFDFFFFFF) == _ISATAP:
        inside = [low]
    else:
        inside = []
    return [IPv4Address(found) for found in inside]


def literal(host: str) -> Address | None:
    """The address that a URL's host is, or None: a name. Raises RequestInvalid for one in an odd spelling."""
    try:
        address = ip_address(host)
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        if ":" in host or "%" in host or _NUMBER.fullmatch(last):
            raise _wrong(
                f"not a host: {host[:80]!r}", "write an IPv4 address as four decimal numbers, or use a name"
            ) from None
        return None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise _wrong(f"an address with a zone: {host[:80]!r}", "leave out what follows the %")
    return address


def check_url(url: str, allowed: Sequence[Network] = ()) -> SplitResult:
    """What can be said before anything is resolved. Raises RequestInvalid."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url or len(url) > LONGEST_URL:
        raise _wrong(
            "a URL has at most 2,000 printable ASCII signs", "percent-encode the path, punycode the host"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(f"not a URL: {error}", "https://hooks.example/in") from None
    if parts.scheme not in ("http", "https"):
        raise _wrong(f"not http or https: {parts.scheme[:20]!r}", "https://hooks.example/in")
    if "@" in parts.netloc:
        raise _wrong(
            "a URL with a user or password", "the receiver knows Waypost by the signature: see docs/push.md"
        )
    if not parts.hostname or port == 0:
        raise _wrong("a URL without a host, or with port 0", "https://hooks.example/in")
    if parts.fragment:
        raise _wrong("a URL with a fragment", "leave out what follows the #")
    address = literal(parts.hostname)
    why = None if address is None else refusal(address, allowed)
    if why is not None:
        raise AddressRefused(str(address), why)
    return parts


class AddressRefused(RequestInvalid):
    """An address that the operator has not allowed."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"{address} may not be called: {why}",
            "the operator allows a network with --push-allow CIDR",
            "ADDRESS_REFUSED",
        )


def _wrong(detail: str, hint: str) -> RequestInvalid:
    return RequestInvalid(detail, hint, "URL_INVALID")
