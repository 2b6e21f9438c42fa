"""A wire between broker and server that can be cut at a chosen moment."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum

#: after it the server answers
SYNC = b"S\0\0\0\4"


class Cut(Enum):
    NEVER = 0
    #: COMMIT does not reach the server
    BEFORE_COMMIT = 1
    #: the server commits, and its answer does not come back
    AFTER_COMMIT = 2


class Proxy:
    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut = Cut.NEVER
        #: how often it was cut
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                mute = threading.Event()
                threading.Thread(target=self._there, args=(client, server, mute), daemon=True).start()
                threading.Thread(target=self._back, args=(client, server, mute), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                if self.cut is not Cut.NEVER and b"COMMIT" in data:
                    way, self.cut = self.cut, Cut.NEVER
                    self.cuts += 1
                    mute.set()
                    if way is Cut.AFTER_COMMIT:
                        while SYNC not in data.partition(b"COMMIT")[2]:
                            data += client.recv(65_536)
                        server.sendall(data)
                        server.recv(65_536)  # it is committed
                    break
                server.sendall(data)
        _close(client)
        _close(server)

    def _back(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        with suppress(OSError):
            while True:
                server_data = server.recv(65_536, socket.MSG_PEEK)
                if mute.is_set():
                    return
                if not server_data:
                    break
                client.sendall(server.recv(len(server_data)))
        _close(client)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
