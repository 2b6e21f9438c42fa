"""Taking connections: all that wait, in one turn of the loop.

libuv accepts one connection a turn. Here a turn may hold a commit, so a burst of 256 clients would be let in over 256
commits; measured, the last of them waited 630 ms for its first answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger("waypost.http")

BACKLOG = 1_024
#: out of descriptors or memory: look again after this
PAUSE_SECONDS = 1.0
_SHORT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """The sockets of one host and port; a name may stand for several addresses."""

    def __init__(
        self, sockets: list[socket.socket], factory: Callable[[], asyncio.Protocol], accepts: int
    ) -> None:
        self._sockets, self._factory, self._accepts = sockets, factory, accepts
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        for sock in sockets:
            sock.listen(BACKLOG)
            self._watch(sock)

    @classmethod
    async def open(
        cls, host: str, port: int, factory: Callable[[], asyncio.Protocol], accepts: int
    ) -> Listener:
        """Raises OSError when the address cannot be had."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
        return cls(bind(list(addresses)), factory, accepts)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more; what was taken stays."""
        if not self._closed:
            self._closed = True
            for sock in self._sockets:
                self._loop.remove_reader(sock)
                sock.close()

    def _watch(self, sock: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(self._accepts):
            try:
                connection, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT_OF:
                    raise
                log.error("no connection can be taken: %s", error)
                self._loop.remove_reader(sock)
                self._loop.call_later(PAUSE_SECONDS, self._watch, sock)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._attach(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attach(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError:
            connection.close()  # gone again already


def bind(addresses: list[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    """A socket on each; where the port is 0, the first chooses for all."""
    sockets: list[socket.socket] = []
    try:
        for family, (host, port, *scope) in addresses:
            if not port and sockets:
                port = sockets[0].getsockname()[1]
            sockets.append(_bound(family, (host, port, *scope)))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{error.strerror}: {address[0]} port {address[1]}") from None
    return sock
