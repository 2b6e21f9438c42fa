"""The listening server: takes connections, looks after them once a second, stops without dropping an answer.

    server = Server(routes, "127.0.0.1", 8080)
    await server.start()                     # server.port is the real port, also for port 0
    …
    await server.drain(seconds=10)           # SIGTERM

There is no timer per request or connection: one sweep a second over all connections finds those whose head,
body or next request has been coming for too long. `stats` are plain numbers for /metrics.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from waypost.http.head import Head, Heads
from waypost.http.limits import Limits
from waypost.http.listening import Listener
from waypost.http.problem import Problem
from waypost.http.routes import Routes
from waypost.http.site import Site
from waypost.http.wire import Connection, Request, Stats

log = logging.getLogger("waypost.http")

T = TypeVar("T")


class Server:
    """One listening address.

    `authorize(head)` is asked before a request's body is read, for every request that has a route; it returns
    the Problem to answer, or None. `names` are the host names it answers to besides its address (see `site`).
    """

    def __init__(
        self,
        routes: Routes,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        limits: Limits | None = None,
        authorize: Callable[[Head], Problem | None] | None = None,
        names: Iterable[str] = (),
        access: Callable[[Request, int], None] | None = None,
    ) -> None:
        self.routes = routes
        self.host = host
        self.port = port
        self.limits = limits or Limits()
        self.authorize = authorize
        #: told of every answer as it is given, with its status
        self.access = access
        self.heads = Heads(routes, Site(host, tuple(names)), self.limits)
        self.stats = Stats()
        self.now = 0.0
        self.arriving = 0
        #: The server is stopping: what waits for work should answer now.
        self.draining = False
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_drain: list[Callable[[], object]] = []
        self._empty = asyncio.Event()
        self._listener: Listener | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._loop = loop = asyncio.get_running_loop()
        self.now = loop.time()
        self._listener = await Listener.open(
            self.host, self.port, lambda: Connection(self, loop), self.limits.accepts
        )
        self.port = self._listener.port
        self._sweeper = loop.call_later(self.limits.sweep_seconds, self._sweep)

    def on_drain(self, callback: Callable[[], object]) -> None:
        """Call back when the drain begins; long polls and followers then answer early."""
        self._on_drain.append(callback)

    async def drain(self, seconds: float = 10.0) -> None:
        """Stop: take no more connections, answer what is in flight; after `seconds` cut off what is left."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.drain()
        for callback in self._on_drain:
            try:
                callback()
            except Exception:
                log.exception("on_drain failed")
        if self._connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                log.warning("%d connections cut off after %g s", len(self._connections), seconds)
        await self.close()

    async def close(self) -> None:
        """Stop at once."""
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.cut_off()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    # -- connections call ------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        room = len(self._connections) < self.limits.connections and not self.draining
        self._connections.add(connection)
        self.stats.open += 1
        if room:
            self.stats.connections += 1
        else:
            self.stats.refused += 1
        return room

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.stats.open -= 1
        if not self._connections:
            self._empty.set()

    def spawn(self, coroutine: Coroutine[Any, Any, None], done: Callable[[asyncio.Task[None]], None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(done)

    def _sweep(self) -> None:
        # first of all the next one: nothing that happens here may end the sweeping
        self._sweeper = self._loop.call_later(self.limits.sweep_seconds, self._sweep)
        self.now = now = self._loop.time()
        for connection in list(self._connections):
            connection.sweep(now)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the program's main coroutine on uvloop, or on asyncio's own loop where there is no uvloop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
