"""The routes that the wire's tests are run against, a server that serves them, and a whole broker."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread
from tests.http.harness import Running, wait_until
from waypost.http import Limits, Problem, Request, Route, Routes, render
from waypost.store import Store
from waypost.stores.memory import MemoryStore
from waypost.stores.sqlite import SqliteStore


class Desk:
    """Handlers for tests. Requests to /later wait in `waiting` until the test answers them."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.gone: list[str] = []
        self.seen_bodies: list[bytes] = []

    def routes(self) -> Routes:
        return Routes(
            [
                Route("POST", "/echo", self.echo, cacheable=True),
                Route("PUT", "/echo", self.echo, cacheable=True),
                Route("POST", "/small", self.echo, max_body=10, cacheable=True),
                Route("GET", "/seen/{first}/{second}", self.seen, cacheable=True),
                Route("POST", "/seen/{first}/{second}", self.seen),
                Route("GET", "/seen/{first}/literal", self.literal),
                Route("GET", "/later/{name}", self.later),
                Route("POST", "/later/{name}", self.later),
                Route("GET", "/poll/{name}", self.poll, head=False, cacheable=True),
                Route("GET", "/async/{name}", self.later_by_task),
                Route("GET", "/stream/{pieces}", self.stream),
                Route("GET", "/flood", self.flood),
                Route("GET", "/torn", self.torn),
                Route("GET", "/problem", self.problem),
                Route("GET", "/problem-task", self.problem_in_task),
                Route("GET", "/bare", self.problem, errors="bare"),
                Route("POST", "/bare", self.problem, errors="bare", max_body=10),
                Route("GET", "/boom", self.boom),
                Route("GET", "/boom-task", self.boom_in_task),
                Route("GET", "/silent", self.silent),
                Route("GET", "/split", self.split_response),
                Route("GET", "/twice", self.twice),
                Route("DELETE", "/nothing", self.nothing),
            ]
        )

    def echo(self, request: Request) -> None:
        self.seen_bodies.append(request.body)
        request.send(render(200, request.body, request.head.headers.get("content-type")))

    def seen(self, request: Request) -> None:
        head = request.head
        told = {
            "method": head.method,
            "path": head.path,
            "params": head.params,
            "query": head.query,
            "headers": head.headers,
            "length": len(request.body),
        }
        request.answer(200, json.dumps(told).encode(), "application/json")

    def literal(self, request: Request) -> None:
        request.answer(200, b"literal")

    def later(self, request: Request) -> None:
        self.waiting.append(request)

    def poll(self, request: Request) -> None:
        request.on_gone(lambda: self.gone.append(request.head.params["name"]))
        self.waiting.append(request)

    async def later_by_task(self, request: Request) -> None:
        answered = asyncio.Event()
        self.waiting.append(request)
        asyncio.get_running_loop().call_soon(answered.set)
        await answered.wait()
        request.answer(200, request.head.params["name"].encode())

    async def stream(self, request: Request) -> None:
        stream = request.stream(200, [("X-Kind", "stream")], "text/plain")
        for number in range(int(request.head.params["pieces"])):
            await stream.write(b"piece %d\n" % number)
            await stream.write(b"")
        await stream.end()

    async def flood(self, request: Request) -> None:
        request.on_gone(lambda: self.gone.append("flood"))
        stream = request.stream(200)
        while True:
            await stream.write(b"x" * 65536)

    async def torn(self, request: Request) -> None:
        stream = request.stream(200)
        await stream.write(b"half")
        raise RuntimeError("torn on purpose")

    def problem(self, request: Request) -> None:
        raise Problem(409, "TAKEN", "Taken", "it is", "take another", [("Retry-After", "7")])

    async def problem_in_task(self, request: Request) -> None:
        raise Problem(409, "TAKEN", "Taken", "it is", "take another", [("Retry-After", "7")])

    def boom(self, request: Request) -> None:
        raise RuntimeError("on purpose")

    async def boom_in_task(self, request: Request) -> None:
        raise RuntimeError("on purpose")

    async def silent(self, request: Request) -> None:
        pass

    def split_response(self, request: Request) -> None:
        request.answer(200, headers=[("X-Key", "one\r\nX-Other: two")])

    def twice(self, request: Request) -> None:
        request.answer(200, b"first")
        request.answer(200, b"second")

    def nothing(self, request: Request) -> None:
        request.answer(204)

    def wait_for(self, *names: str) -> list[Request]:
        """The waiting requests, when all of them, by their path's last part, have come."""
        wait_until(
            lambda: [r.head.params["name"] for r in list(self.waiting)] == list(names), f"waiting {names}"
        )
        return list(self.waiting)


class Started(Running):
    """A running server with the desk that serves it."""

    def __init__(self, desk: Desk, **options: Any) -> None:
        super().__init__(desk.routes(), **options)
        self.desk = desk


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Start a server with options of one's own; it ends with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Started(Desk(), **options))


@pytest.fixture
def served(start: Callable[..., Started]) -> Started:
    return start()


@pytest.fixture
def hasty(start: Callable[..., Started]) -> Started:
    """A server that loses patience quickly."""
    return start(
        limits=Limits(
            head_seconds=0.15, body_seconds=0.3, idle_seconds=0.6, linger_seconds=0.2, sweep_seconds=0.02
        )
    )


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    if request.param == "memory":
        return MemoryStore
    return lambda: SqliteStore(tmp_path / "waypost.db", ballast_bytes=4096, pregrown_bytes=0)


@pytest.fixture
def broker(open_store: Callable[[], Store]) -> Iterator[BrokerInThread]:
    """A broker on each store in turn."""
    with BrokerInThread(open_store) as running:
        yield running


@pytest.fixture
def memory_broker() -> Iterator[BrokerInThread]:
    """For what no store has a say in."""
    with BrokerInThread(MemoryStore) as running:
        yield running
