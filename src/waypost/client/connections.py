"""Connections to one broker: HTTP/1.1, kept open between requests.

    exchange ──▶ a connection that is free, or a new one ──▶ request out ──▶ Response ──▶ read to its end? free again
                                                                                └─ not? closed, as its rest would be the next one's

aiohttp would do as well, but its import takes as long as all the rest of a command.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import SupportsIndex
from urllib.parse import unquote, urlsplit

import httptools

from ..errors import RequestInvalid
from ..version import __version__

CONNECT_SECONDS = 5.0
#: before the next address of a name is tried beside the first
_NEXT_ADDRESS_SECONDS = 0.25
_READ_BYTES = 256 << 10
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class NotConnected(Exception):
    """Nothing was sent."""


class BrokenOff(Exception):
    """The answer did not come, or not whole, or not as HTTP."""


class _Reader(asyncio.StreamReader):
    """Notices what comes while nobody has asked: it must not be taken for the next answer."""

    free = spoilt = False

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.spoilt |= self.free
        super().feed_data(data)

    def feed_eof(self) -> None:
        self.spoilt |= self.free
        super().feed_eof()


_Wire = tuple[_Reader, asyncio.StreamWriter]


class Headers(Mapping[str, str]):
    """By name, in whatever case; of several with one name the last."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._values = {
            name.lower().decode("latin-1"): value.decode("utf-8", "replace") for name, value in pairs
        }

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Response:
    """An answer whose head has come."""

    def __init__(self, reader: asyncio.StreamReader, silence: float | None) -> None:
        self._reader, self._silence = reader, silence
        self._parser = httptools.HttpResponseParser(self)
        self._pairs: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._whole = self._goes_on = False
        self.status = 0
        self.headers: Mapping[str, str] = MappingProxyType({})

    @property
    def reusable(self) -> bool:
        """Whether the connection is at the beginning of the next answer."""
        return self._whole and self._goes_on

    async def begin(self) -> None:
        while not self.status:
            await self._feed()

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        while True:
            parts, self._parts = self._parts, []
            for part in parts:
                yield part
            if self._whole:
                return
            await self._feed()

    async def _feed(self) -> None:
        async with asyncio.timeout(self._silence):
            data = await self._reader.read(_READ_BYTES)
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise BrokenOff("what came is not HTTP") from error
        elif self.status and not {"content-length", "transfer-encoding"} & set(self.headers):
            self._whole = True  # its end is the connection's
        else:
            raise BrokenOff("the connection was closed")

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._pairs = []
        self._goes_on = False  # until it is whole; and one that nobody asked for never is

    def on_header(self, name: bytes, value: bytes) -> None:
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self._whole:
            self.status, self.headers = status, Headers(self._pairs)

    def on_body(self, body: bytes) -> None:
        if not self._whole:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.status and not self._whole:  # before it may come 1xx, which say nothing
            self._whole, self._goes_on = True, bool(self._parser.should_keep_alive())


class Connections:
    """At most `most` at a time; who comes then waits."""

    def __init__(self, url: str, most: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._secure = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path
        self._places = asyncio.Semaphore(most)
        self._free: list[_Wire] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._always = f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: waypost/{__version__}\r\n"
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._always += f"Authorization: Basic {base64.b64encode(user).decode()}\r\n"

    @asynccontextmanager
    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, silence: float | None
    ) -> AsyncIterator[Response]:
        """One request; `silence` is how long the broker may say nothing. Raises NotConnected, TimeoutError, BrokenOff, OSError."""
        request = self._request(method, target, headers, body)
        async with self._places:
            reader, writer = self._take() or await self._connect()
            self._open.add(writer)
            response = Response(reader, silence)
            try:
                writer.writelines([request, body or b""])
                await response.begin()
                yield response
            finally:
                self._open.discard(writer)
                if response.reusable and not writer.is_closing():
                    reader.free = True
                    self._free.append((reader, writer))
                else:
                    writer.close()

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {self._base}{target} HTTP/1.1\r\n{self._always}"]
        for name, value in headers.items():
            if _CONTROL.search(value):
                raise RequestInvalid(f"a control character in {name}", "send it in the body")
            lines.append(f"{name}: {value}\r\n")
        if body is not None or method not in ("GET", "DELETE"):
            lines.append(f"Content-Length: {len(body or b'')}\r\n")
        return "".join([*lines, "\r\n"]).encode()

    def _take(self) -> _Wire | None:
        """The one that was used last: it is the least likely to be closed by now."""
        while self._free:
            reader, writer = self._free.pop()
            if not reader.spoilt and not reader.at_eof() and not writer.is_closing():
                reader.free = False
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> _Wire:
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=_READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await loop.create_connection(
                    lambda: protocol,
                    self._host,
                    self._port,
                    ssl=True if self._secure else None,
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                )
            return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        except TimeoutError as error:
            raise NotConnected("it took too long") from error
        except (OSError, UnicodeError) as error:
            raise NotConnected(plain(error)) from error

    async def close(self) -> None:
        """Also those that are in use; nothing is waited for that the other side still has to say."""
        writers = [*self._open, *(writer for _, writer in self._free)]
        self._free.clear()
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()


def plain(error: Exception) -> str:
    """A connection's failure in few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
