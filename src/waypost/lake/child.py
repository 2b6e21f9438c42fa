"""The child: the one process that writes the lake's sealed tables, and that makes Arrow of what the store has.

    python -m waypost.lake.child          started by the broker (process.py), which speaks to it over its standard input

It has no descriptor but that pipe, and ends with it: at the broker's death the pipe ends, and nothing that it was in the middle of
matters, because every step of sealing can be cut off. Signals that are meant for the broker's group do not end it earlier.
It is nicer than the broker, which has people waiting.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

from .frames import HEADER_BYTES, Ask, Tell, What, decode_ask, frame, lengths

NICENESS = 5


class Pipe:
    """Our end of the socket pair; any thread may tell."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._telling = threading.Lock()

    @classmethod
    def of_this_process(cls) -> Pipe:
        """Standard input and output go elsewhere: what a library prints must not be taken for a frame."""
        connection = socket.socket(fileno=os.dup(0))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        return cls(connection)

    def asks(self) -> Iterator[Ask]:
        """Until the broker is gone."""
        while header := self._read(HEADER_BYTES):
            head_bytes, _ = lengths(header)
            yield decode_ask(self._read(head_bytes))

    def tell(self, tell: Tell, body: bytes | memoryview = b"") -> None:
        head = frame(tell, len(body))
        try:
            with self._telling:
                self._socket.sendall(head)
                if body:
                    self._socket.sendall(body)
        except OSError:
            end(0)

    def _read(self, size: int) -> bytes:
        """Exactly so much; nothing at the pipe's end."""
        read = bytearray()
        while len(read) < size:
            try:
                more = self._socket.recv(size - len(read))
            except OSError:
                more = b""
            if not more:
                return b""
            read += more
        return bytes(read)


class Unneeded(MetaPathFinder):
    """What pyarrow and ADBC import when it is installed, and what three quarters of the start would go to: here it is not."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)


def end(code: int) -> None:
    """At once: threads may be anywhere, and whatever they were doing is done again."""
    os._exit(code)


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    pipe = Pipe.of_this_process()
    try:
        sys.meta_path.insert(0, Unneeded())
        from .desk import Desk  # what it needs may be missing or broken, and the broker should hear of that

        os.nice(NICENESS)  # only now: somebody waits for the first answer
        desk = Desk(pipe)
        for ask in pipe.asks():
            desk.take(ask)
    except BaseException as error:
        pipe.tell(Tell(0, What.FAILED, detail=f"the lake's process failed: {type(error).__name__}: {error}"))
        end(1)
    end(0)


if __name__ == "__main__":
    main()
