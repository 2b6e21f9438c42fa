"""A real server in a thread of its own, and a client that says exactly the bytes it is told to."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from waypost.http import Head, Limits, Problem, Routes, Server, run

T = TypeVar("T")

PATIENCE = 10.0  #: seconds after which something that should have happened has not


def wait_until(condition: Callable[[], object], what: str = "the condition") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true")
        os.sched_yield()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection of a client."""

    def __init__(self, running: "Running") -> None:
        self.running = running
        self.socket = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Go away the hard way: RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Each piece after the server has read the one before, so that it really sees pieces.

        Ends early when the server has closed its side: it reads no further pieces as requests then.
        """
        stats = self.running.server.stats
        for piece in pieces:
            before = stats.bytes_in
            try:
                self.socket.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                return
            wait_until(lambda before=before: stats.bytes_in > before or not stats.open, "reading")  # type: ignore[misc]

    def answer(self, to: str = "GET") -> Answer:
        """The next response; 100 Continue is one too."""
        head, _, rest = self._until(b"\r\n\r\n").partition(b"\r\n")
        version, status, _ = head.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers: dict[str, str] = {}
        for line in rest.split(b"\r\n"):
            if line:
                name, _, value = line.decode().partition(": ")
                assert name.lower() not in headers
                headers[name.lower()] = value
        code = int(status)
        if to == "HEAD" or code in (100, 204, 304):
            return Answer(code, headers, b"")
        if "content-length" in headers:
            return Answer(code, headers, self._exactly(int(headers["content-length"])))
        if headers.get("transfer-encoding") == "chunked":
            return Answer(code, headers, b"".join(self._chunks()))
        return Answer(code, headers, self.rest())

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer(data.split(b" ", 1)[0].decode("latin-1"))

    def rest(self) -> bytes:
        """Everything up to the server's end."""
        while more := self.socket.recv(65536):
            self._read += more
        data, self._read = self._read, b""
        return data

    def is_closed(self) -> bool:
        """The server sends nothing more. Waits for that, or for something it sends."""
        return not self._read and self.socket.recv(1) == b""

    def chunk(self) -> bytes:
        size = int(self._until(b"\r\n"), 16)
        data = self._exactly(size)
        assert self._exactly(2) == b"\r\n"
        return data

    def head(self) -> bytes:
        return self._until(b"\r\n\r\n")

    def _chunks(self) -> Iterator[bytes]:
        while data := self.chunk():
            yield data

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the server closed after {self._read!r}"
        self._read += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._more()
        data, _, self._read = self._read.partition(mark)
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        data, self._read = self._read[:size], self._read[size:]
        return data


@dataclass
class Running:
    """A server in its own thread. Its objects belong to that thread: use `call`."""

    routes: Routes
    limits: Limits = field(default_factory=Limits)
    authorize: Callable[[Head], Problem | None] | None = None
    names: tuple[str, ...] = ()
    runner: Callable[[Any], Any] = run

    def __enter__(self) -> Self:
        started = threading.Event()

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.server = Server(
                self.routes, port=0, limits=self.limits, authorize=self.authorize, names=self.names
            )
            self._stop = asyncio.Event()
            await self.server.start()
            started.set()
            await self._stop.wait()
            await self.server.close()

        self.thread = threading.Thread(target=self.runner, args=(main(),))
        self.thread.start()
        assert started.wait(PATIENCE)
        self.port = self.server.port
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def wire(self) -> Wire:
        return Wire(self)

    def ask(self, data: bytes) -> Answer:
        """One request on a connection of its own."""
        with self.wire() as wire:
            return wire.ask(data)

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in the server's loop."""

        async def main() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(main(), self.loop).result(PATIENCE)

    def drain(self, seconds: float = PATIENCE) -> "Draining":
        return Draining(asyncio.run_coroutine_threadsafe(self.server.drain(seconds), self.loop))


class Draining:
    def __init__(self, future: Any) -> None:
        self._future = future

    def done(self) -> bool:
        return bool(self._future.done())

    def wait(self) -> None:
        self._future.result(PATIENCE)
