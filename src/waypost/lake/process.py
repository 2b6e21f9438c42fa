"""The lake's child process, as the broker sees it: started, asked, gone.

    Process.start() ──▶ python -m waypost.lake.child      no descriptor but one end of a socket pair
        ask(…) ──▶ Call: pieces and progress, then its result; raises ChildFailed or ChildGone
        stop() ──▶ the pipe is closed, and with it the child ends

Nothing here waits for the child but those who asked it: it is spawned and waited for in threads, frames come by the loop's streams,
and a call holds no more than the window of pieces that it asked for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from ..errors import WaypostError
from .frames import HEADER_BYTES, Ask, Tell, What, decode_tell, frame, lengths

#: pieces of one read that may be under way or wait here
WINDOW_PIECES = 8
#: after the pipe is closed; then it is killed
ENDING_SECONDS = 5.0
_BUFFER_BYTES = 512 << 10


class ChildGone(WaypostError):
    """It ended before it had answered."""


class ChildFailed(WaypostError):
    """It could not do what was asked."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell.detail)
        self.code, self.detail, self.hint = tell.code, tell.detail, tell.hint


class Call:
    """One thing that the child was asked. As an iterator it gives what comes before the end; then `result` is there."""

    def __init__(self, process: Process, id: int) -> None:
        self._process, self._id = process, id
        self._told: asyncio.Queue[tuple[Tell, bytes] | ChildGone] = asyncio.Queue()
        self._taken = 0
        self.result: dict[str, Any] | None = None

    def told(self, what: tuple[Tell, bytes] | ChildGone) -> None:
        self._told.put_nowait(what)

    def __aiter__(self) -> AsyncIterator[tuple[Tell, bytes]]:
        return self

    async def __anext__(self) -> tuple[Tell, bytes]:
        told = await self._told.get()
        if isinstance(told, ChildGone):
            raise told
        tell, body = told
        if tell.what is What.FAILED:
            raise ChildFailed(tell)
        if tell.what is What.DONE:
            self.result = tell.figures
            raise StopAsyncIteration
        if tell.what is What.PIECE:
            self._take_piece()
        return tell, body

    def _take_piece(self) -> None:
        """Ask for more when half of the window is used up: the child goes on while this piece is dealt with."""
        self._taken += 1
        if self._taken == WINDOW_PIECES // 2:
            self._process.send(Ask(self._id, "more", {"pieces": self._taken}))
            self._taken = 0

    async def end(self) -> dict[str, Any]:
        """The result, when all that comes before it does not matter."""
        async for _ in self:
            pass
        assert self.result is not None
        return self.result


class Process:
    def __init__(self, popen: subprocess.Popen[bytes], on_end: Callable[[str], None]) -> None:
        self._popen, self._on_end = popen, on_end
        self._calls: dict[int, Call] = {}
        self._last_id = 0
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        #: why nothing is answered any more
        self._gone: str | None = None
        #: what it said of itself when it could not go on
        self._last_words = ""

    @classmethod
    async def start(cls, on_end: Callable[[str], None]) -> Self:
        """`on_end` hears why it ended, once, unless it was told to. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            popen = await asyncio.to_thread(_spawn, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process = cls(popen, on_end)
        reader, process._writer = await asyncio.open_unix_connection(sock=ours, limit=_BUFFER_BYTES)
        process._listening = asyncio.create_task(process._listen(reader))
        return process

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def gone(self) -> bool:
        return self._gone is not None

    def ask(self, do: str, **given: Any) -> Call:
        self._last_id += 1
        call = Call(self, self._last_id)
        if self._gone is not None:
            call.told(ChildGone(self._gone))
        else:
            self._calls[self._last_id] = call
            self.send(Ask(self._last_id, do, given))
        return call

    def drop(self, call: Call) -> None:
        """Nobody waits for it any more."""
        if self._calls.pop(call._id, None) is not None and call.result is None:
            self.send(Ask(call._id, "stop"))

    def send(self, ask: Ask) -> None:
        if self._writer is not None and self._gone is None:
            self._writer.write(frame(ask))

    async def stop(self) -> None:
        """Its end is waited for: it must not hold the store's file any longer."""
        self._on_end = _nobody_cares
        if self._writer is not None:
            self._writer.close()
        if self._listening is not None:
            await self._listening

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head_bytes, body_bytes = lengths(await reader.readexactly(HEADER_BYTES))
                tell = decode_tell(await reader.readexactly(head_bytes))
                self._hear(tell, await reader.readexactly(body_bytes) if body_bytes else b"")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await asyncio.shield(self._bury())

    def _hear(self, tell: Tell, body: bytes) -> None:
        call = self._calls.get(tell.id)
        if call is not None:
            call.told((tell, body))
            if tell.what is What.DONE or tell.what is What.FAILED:
                del self._calls[tell.id]
        elif tell.id == 0:
            self._last_words = tell.detail

    async def _bury(self) -> None:
        if self._writer is not None:
            self._writer.close()
        code = await asyncio.to_thread(_wait, self._popen)
        self._gone = self._last_words or f"the lake's process {self.pid} ended: {_cause(code)}"
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.told(ChildGone(self._gone))
        self._on_end(self._gone)


def _nobody_cares(why: str) -> None:
    pass


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    # Found as this process finds it, and never in the folder where the broker happens to be started.
    found = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "waypost.lake.child"],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=subprocess.DEVNULL,
        close_fds=True,
        env={**os.environ, "PYTHONPATH": found},
    )


def _wait(popen: subprocess.Popen[bytes]) -> int:
    try:
        return popen.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.wait()


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
