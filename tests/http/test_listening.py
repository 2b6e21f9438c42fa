"""The listening sockets: how many connections are taken, and what happens when none can be."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest

from waypost.http.listening import Listener, bind
from waypost.http.server import run

Runner = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[run, asyncio.run], ids=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Runner:
    chosen: Runner = request.param
    return chosen


class Greeter(asyncio.Protocol):
    def __init__(self, made: list[Greeter]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        self._made.append(self)
        self.transport: Any = transport
        self.transport.write(b"welcome")


def connected(stack: ExitStack, port: int, host: str = "127.0.0.1") -> socket.socket:
    return stack.enter_context(socket.create_connection((host, port), timeout=10))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for lies outside of the loop
            await asyncio.sleep(0.01)


def test_all_who_wait_are_let_in_within_a_few_turns(runner: Runner) -> None:
    made: list[Greeter] = []

    async def main() -> None:
        listener = await Listener.open("127.0.0.1", 0, lambda: Greeter(made), accepts=256)
        with ExitStack() as stack:
            # The loop does not run meanwhile: they wait in the kernel's queue.
            clients = [connected(stack, listener.port) for _ in range(200)]
            for _ in range(8):
                await asyncio.sleep(0)
            assert len(made) == 200
            assert clients[-1].recv(16) == b"welcome"
            listener.close()
            for one in made:
                one.transport.abort()
            await asyncio.sleep(0.01)

    runner(main())


def test_several_addresses_have_one_port() -> None:
    addresses: list[tuple[int, tuple[str, int]]] = [(socket.AF_INET, (f"127.0.0.{n}", 0)) for n in (1, 2)]
    sockets = bind(list(addresses))
    names = [sock.getsockname() for sock in sockets]
    for sock in sockets:
        sock.close()
    assert names == [("127.0.0.1", names[0][1]), ("127.0.0.2", names[0][1])]
    assert names[0][1] > 0


def test_an_address_in_use_is_said_with_its_port(runner: Runner) -> None:
    async def main() -> None:
        listener = await Listener.open("127.0.0.1", 0, lambda: Greeter([]), accepts=4)
        with pytest.raises(OSError, match=f"127.0.0.1 port {listener.port}") as refused:
            await Listener.open("127.0.0.1", listener.port, lambda: Greeter([]), accepts=4)
        assert refused.value.errno == errno.EADDRINUSE
        listener.close()
        listener.close()

    runner(main())


def test_out_of_descriptors_it_pauses_and_goes_on(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waypost.http.listening.PAUSE_SECONDS", 0.05)
    made: list[Greeter] = []

    async def main() -> None:
        listener = await Listener.open("127.0.0.1", 0, lambda: Greeter(made), accepts=4)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as stack:
            client = connected(stack, listener.port)
            # No descriptor above those in use can be had from here on.
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            try:
                await until(lambda: "no connection can be taken" in caplog.text)
                assert made == []
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: len(made) == 1)
            listener.close()
            made[0].transport.abort()
            await asyncio.sleep(0.01)

    runner(main())
