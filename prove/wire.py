"""One connection to the broker, and nothing between the load and its bytes: no retries, no pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import msgspec

#: an answer that takes longer than this does not come
PATIENCE = 20.0


class Unanswered(Exception):
    """The connection ended before the whole answer was there: what was asked may have happened or not."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def open_to(cls, port: int) -> AsyncIterator[Self]:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            raise Unanswered(str(error)) from error
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):  # it was gone already
                await writer.wait_closed()

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        try:
            async with asyncio.timeout(PATIENCE):
                self._writer.write(head.encode() + body)
                await self._writer.drain()
                return await self._answer(method)
        except (OSError, EOFError, TimeoutError) as error:
            raise Unanswered(f"{method} {path}: {type(error).__name__}") from error

    async def _answer(self, method: str) -> Answer:
        start, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for line in lines if line for name, _, value in [line.partition(": ")]}
        if method == "HEAD":
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self._chunks()])
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(start.split(" ")[1]), headers, body)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
