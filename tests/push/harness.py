"""A real receiver on loopback, and a real broker on SQLite that pushes to it."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from standardwebhooks.webhooks import Webhook

from waypost.broker import Broker
from waypost.commands import (
    DeclareConsumer,
    DeclareQueue,
    DeleteConsumer,
    Publish,
    Published,
)
from waypost.consumers import Consumer
from waypost.delivery import LETTERS, State
from waypost.errors import StoreBroken
from waypost.http.consumers import make_secret
from waypost.http.server import run
from waypost.instants import SECOND
from waypost.message import Envelope
from waypost.policy import Policy
from waypost.push import Pusher
from waypost.push.addresses import parse_allowed
from waypost.push.breaker import Tripping
from waypost.push.figures import Figures
from waypost.store import Store
from waypost.stores.sqlite import SqliteStore

PATIENCE = 20.0
SECRET = make_secret()
#: retries without their waits
QUICK = Policy(lease_us=3 * SECOND, backoff_base_us=1_000, backoff_cap_us=2_000)
#: a breaker that is quick too
TRIPPING = Tripping(failures=5, first_seconds=0.2, longest_seconds=0.8)


@dataclass
class Got:
    """A request that came in."""

    at: float
    headers: dict[str, str]
    body: bytes
    path: str

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def attempt(self) -> int:
        return int(self.headers["waypost-attempt"])


Answering = Callable[[Got], Awaitable[web.StreamResponse] | web.StreamResponse]


class Receiver:
    """Every signature is verified, by the package that receivers use; then `answering` says what to answer."""

    def __init__(
        self, answering: Answering | None = None, secret: str = SECRET, tls: ssl.SSLContext | None = None
    ) -> None:
        self.got: list[Got] = []
        self.answering: Answering = answering or (lambda got: web.Response())
        self.secret, self._tls = secret, tls
        self.host, self.port = "127.0.0.1", 0
        #: requests under way, and the most there ever were
        self.running = self.most = 0
        self._came = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Self:
        self.host = host
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port or self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Got(time.monotonic(), headers, body, request.path)
        Webhook(self.secret).verify(body, headers, json_parse=False)
        self.got.append(got)
        self._came.set()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            answer = self.answering(got)
            return await answer if isinstance(answer, Awaitable) else answer
        finally:
            self.running -= 1

    async def came(self, count: int) -> list[Got]:
        """Until so many have come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.got) < count:
                self._came.clear()
                await self._came.wait()
        return self.got


class Bench:
    def __init__(self, store: Store, **options: Any) -> None:
        self.store = store
        self.broken: list[StoreBroken] = []
        self.broker = Broker(store, on_broken=self.broken.append, reap_every_seconds=3_600)
        options.setdefault("allow", parse_allowed(["127.0.0.0/8"]))
        options.setdefault("tripping", TRIPPING)
        self.pusher = Pusher(self.broker, **options)
        self.pusher.start()

    async def queue(self, name: str = "orders", policy: Policy = QUICK) -> None:
        await self.broker.ask(DeclareQueue(name, policy))

    async def register(self, name: str, url: str | None, queue: str | None = "orders", **fields: Any) -> None:
        fields.setdefault("secrets", (SECRET,))
        await self.broker.ask(DeclareConsumer(name, Consumer(url=url, queue=queue, **fields)))
        self.pusher.changed(name)

    async def forget(self, name: str) -> None:
        await self.broker.ask(DeleteConsumer(name))
        self.pusher.changed(name)

    async def publish(self, body: bytes = b"{}", queue: str = "orders", **said: Any) -> str:
        said.setdefault("topics", (queue + ".made",))
        published = await self.broker.ask(Publish(envelope=Envelope(**said), body=body, queue=queue))
        assert isinstance(published, Published)
        return published.id

    def state(self, id: str) -> State:
        info = self.store.message(id)
        assert info is not None
        (delivery,) = info.deliveries
        return delivery.state

    def journey(self, id: str) -> str:
        """The states that its delivery was in, as letters."""
        info = self.store.message(id)
        assert info is not None
        return "".join(LETTERS[event.to_state] for event in info.journey if event.queue is not None)

    def reasons(self, id: str) -> list[str | None]:
        info = self.store.message(id)
        assert info is not None
        return [event.reason for event in info.journey if event.queue is not None]

    def counts(self, queue: str = "orders") -> dict[str, int]:
        info = self.store.queue(queue)
        assert info is not None
        return {state.name: count for state, count in info.states.items() if count}

    def figures(self, name: str) -> Figures:
        figures = self.pusher.figures(name)
        assert figures is not None
        return figures

    async def until(self, condition: Callable[[], object], what: str = "it") -> None:
        """Looked at whenever the log has grown, and now and then."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (
                f"{what} did not come true: {self.counts()}, {self.pusher.all_figures()}, {self.broken}"
            )
            await self.broker.grown(self.store.bounds()[1], 0.02)

    async def ended(self, ids: str | Sequence[str], letters: str = "S") -> None:
        for id in [ids] if isinstance(ids, str) else ids:
            await self.until(lambda id=id: self.state(id).name in letters, f"{letters} of {id}")  # type: ignore[misc]

    async def close(self) -> None:
        await self.pusher.stop(1.0)
        await self.broker.close()
        assert self.broken == []


@asynccontextmanager
async def pushing(folder: Path, store: Store | None = None, **options: Any) -> AsyncIterator[Bench]:
    bench = Bench(store or SqliteStore(folder / "waypost.db"), **options)
    try:
        await bench.queue()
        yield bench
    finally:
        await bench.close()


@asynccontextmanager
async def speaking(*answers: bytes) -> AsyncIterator[str]:
    """A receiver that answers with these bytes, one after the other, and then with 200; its URL. For empty bodies."""
    spoken = iter(answers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(spoken, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def in_a_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Runs it on the loop that the broker is served with."""

    def running(tmp_path: Path) -> None:
        async def limited() -> None:
            await asyncio.wait_for(test(tmp_path), 60)

        run(limited())

    running.__name__ = test.__name__
    return running


def seconds(text: float) -> int:
    return round(text * SECOND)
