"""One request: resolve, check, connect, post, read a little. The only file that knows aiohttp.

    post ──▶ connection kept from before? ──▶ yes: it goes to an address that was checked
                      │ no
                      ▼
             resolve (a thread for each host)        ──▶ refused addresses dropped ──▶ socket ──▶ TLS
                                                                                          '─ checked once more: an address
                                                                                             in the URL is never resolved
No redirects, no cookies, no proxy from the environment, no decompression; of the answer's body at most a few
kilobytes are read, and all of it within the consumer's timeout. What the receiver says leaves this file harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from ..version import __version__
from .addresses import AddressRefused, Network, refusal
from .answers import Answer, Silence, harmless

#: of an answer's body, what is read; a longer one costs its connection
ANSWER_BYTES = 16 << 10
#: of that, what may stand in a reason
TEXT_CHARACTERS = 150
#: of a header, what is looked at
HEADER_CHARACTERS = 100
#: shorter than servers keep an idle connection, so that we seldom post into one that is just being closed
IDLE_SECONDS = 1.5
#: larger bodies are written piece by piece, with others in between
WHOLE_BYTES = 64 << 10
#: for name, connection and TLS together
CONNECT_SECONDS = 10.0

#: (family, type, proto, canonical name, socket address) of each address of a host
Lookup = Callable[[str, int], Sequence[tuple[Any, ...]]]


def system_lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class _Refused(OSError):
    """An address that may not be called. An OSError, because that is what aiohttp expects where it connects."""


class CheckedResolver(AbstractResolver):
    """Gives only addresses that may be called."""

    def __init__(self, allowed: Sequence[Network], lookup: Lookup) -> None:
        self._allowed, self._lookup = allowed, lookup
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[tuple[Any, ...]]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        refused = _Refused(f"{host} has no address")
        passed: list[ResolveResult] = []
        for kind, _, proto, _, place in await self._addresses(host, port):
            address = ip_address(place[0].partition("%")[0])
            why = refusal(address, self._allowed)
            if why is not None:
                refused = _Refused(AddressRefused(str(address), why).detail)
            elif family in (socket.AF_UNSPEC, kind):
                passed.append(
                    ResolveResult(
                        hostname=host,
                        host=str(address),
                        port=port,
                        family=kind,
                        proto=proto,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        if not passed:
            raise refused
        return passed

    async def _addresses(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        """Those who ask for one host at the same time share a thread; a look-up that hangs holds up nobody else, and no exit."""
        running = self._running.get((host, port))
        if running is None:
            running = self._running[host, port] = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._look_up, args=(host, port, running), daemon=True).start()
        return await asyncio.shield(running)

    def _look_up(self, host: str, port: int, running: asyncio.Future[Sequence[tuple[Any, ...]]]) -> None:
        found: Sequence[tuple[Any, ...]] | OSError
        try:
            found = self._lookup(host, port)
        except OSError as error:
            found = error
        except ValueError as error:  # a name that cannot be encoded
            found = OSError(str(error))
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            running.get_loop().call_soon_threadsafe(self._found, (host, port), running, found)

    def _found(
        self,
        key: tuple[str, int],
        running: asyncio.Future[Sequence[tuple[Any, ...]]],
        found: Sequence[tuple[Any, ...]] | OSError,
    ) -> None:
        del self._running[key]
        if isinstance(found, OSError):
            running.set_exception(found)
            running.exception()  # seen, also when nobody waits any more
        else:
            running.set_result(found)

    async def close(self) -> None:
        """Look-ups under way end by themselves."""


class Sender:
    """All endpoints' requests. They share connections to one host, and nothing else."""

    def __init__(self, allowed: Sequence[Network], lookup: Lookup = system_lookup) -> None:
        self._allowed = allowed
        self._resolver = CheckedResolver(allowed, lookup)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._resolver,
                socket_factory=self._socket,
                use_dns_cache=False,
                limit=0,
                keepalive_timeout=IDLE_SECONDS,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"User-Agent": f"waypost/{__version__}", "Accept": "*/*"},
            skip_auto_headers=("Content-Type", "Accept-Encoding"),
        )

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Where every connection begins, so here is the last word on its address."""
        family, kind, proto, _, place = info
        address = ip_address(place[0].partition("%")[0])
        why = refusal(address, self._allowed)
        if why is not None:
            raise _Refused(AddressRefused(str(address), why).detail)
        return socket.socket(family, kind, proto)

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Answer | Silence:
        """Whatever goes wrong on the way is a Silence; only a cancellation is raised."""
        timeout = aiohttp.ClientTimeout(total=seconds, connect=min(seconds, CONNECT_SECONDS))
        data = body if len(body) <= WHOLE_BYTES else io.BytesIO(body)
        try:
            async with self._session.post(
                url, data=data, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                said = response.headers
                return Answer(
                    status=response.status,
                    confirm=_harmless(said.get("Waypost-Confirm")),
                    retry_after=_harmless(said.get("Retry-After")),
                    text=await _beginning(response),
                )
        except aiohttp.ConnectionTimeoutError:
            return Silence(f"no connection within {min(seconds, CONNECT_SECONDS):g} s", sent=False)
        except TimeoutError:
            return Silence(f"no answer within {seconds:g} s", sent=True)
        except aiohttp.ClientConnectorError as error:
            return Silence(harmless(f"no connection: {_words(error.os_error)}"), sent=False)
        except aiohttp.InvalidURL as error:
            return Silence(harmless(f"not a URL: {error}"), sent=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Silence(harmless(f"no answer: {_words(error)}"), sent=True)

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """Of the answer's body, for the reason. What is not read to its end closes the connection."""
    content = response.content
    data = b""
    try:
        while len(data) < ANSWER_BYTES and not content.at_eof():
            data += await content.read(ANSWER_BYTES - len(data))
    except (aiohttp.ClientError, OSError):
        # The status is here, and it decides.
        response.close()
    if response.status < 300 or not data:
        return ""
    return harmless(data[: 4 * TEXT_CHARACTERS].decode(errors="replace"), TEXT_CHARACTERS)


def _harmless(header: str | None) -> str | None:
    return None if header is None else harmless(header, HEADER_CHARACTERS)


def _words(error: BaseException) -> str:
    """What went wrong, without the numbers and names around it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".replace("_", " ").lower()
    if isinstance(error, OSError) and (error.errno or 0) in errno.errorcode:
        return os.strerror(error.errno or 0).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
