"""Store, broker and server, wired together.

    serving = await run(store, port=0)
    …
    await serving.stop()

To stop is to answer what is under way, commit it, and close the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

from waypost.broker import Broker
from waypost.errors import StoreBroken
from waypost.http import (
    batches,
    consumers,
    decisions,
    destinations,
    eventlog,
    jobs,
    messages,
    mqcore,
    objects,
    operations,
    quetipp,
    spectators,
)
from waypost.http import (
    lake as lakes,
)
from waypost.http.consumers import Pushing
from waypost.http.head import Head
from waypost.http.lake import Lake
from waypost.http.limits import Limits
from waypost.http.problem import Problem
from waypost.http.routes import Route, Routes
from waypost.http.server import Server
from waypost.http.wire import Request
from waypost.router import RouteFunction
from waypost.store import Store
from waypost.waiting import WARN_SECONDS

log = logging.getLogger("waypost")

#: the exit status of a process whose store broke
BROKEN_EXIT = 1
DRAIN_SECONDS = 10.0
#: of it, what webhooks under way may take; then they are cut off, and their messages go back
PUSH_SHARE = 0.8


class Serving:
    """A broker that can be asked over HTTP."""

    def __init__(
        self, broker: Broker, server: Server, push: Pushing | None, lake: Lake | None = None
    ) -> None:
        self.broker, self.server, self.push, self.lake = broker, server, push, lake

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        host = self.server.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        pushing = [] if self.push is None else [self.push.stop(PUSH_SHARE * seconds)]
        await asyncio.gather(self.server.drain(seconds), *pushing)
        if self.lake is not None:
            await self.lake.close()  # before the store, whose file its process reads
        await self.broker.close()


def exit_at_once(broken: StoreBroken) -> None:
    """After a failed commit no answer may leave this process, not even one that waits in a buffer."""
    log.critical("the store is broken, stopping at once: %s", broken)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(BROKEN_EXIT)


async def run(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    names: Iterable[str] = (),
    limits: Limits | None = None,
    authorize: Callable[[Head], Problem | None] | None = None,
    rows: Iterable[Route] = (),
    access: Callable[[Request, int], None] | None = None,
    route: RouteFunction | None = None,
    route_seconds: float = 5.0,
    warn_seconds: float = WARN_SECONDS,
    push: Callable[[Broker], Pushing] | None = None,
    lake: Callable[[Broker], Lake] | None = None,
    on_broken: Callable[[StoreBroken], None] = exit_at_once,
) -> Serving:
    """Serve a store. `rows` are those of other edges, `route` decides where messages go and has `route_seconds` for each, messages
    that wait for a decision for longer than `warn_seconds` are a warning, `push` makes what pushes, `lake` what keeps the lake. Raises OSError when the address cannot be had."""
    broker = Broker(
        store, on_broken=on_broken, route=route, route_seconds=route_seconds, warn_seconds=warn_seconds
    )
    pusher = None if push is None else push(broker)
    keeper = None if lake is None else lake(broker)
    table = Routes(
        [
            *operations.rows(broker, lambda: server, lambda: table, pusher, keeper),
            *quetipp.rows(broker),
            *eventlog.rows(broker, keeper),
            *messages.rows(broker, keeper),
            *batches.rows(broker),
            *destinations.rows(broker),
            *objects.rows(broker),
            *decisions.rows(broker),
            *consumers.rows(broker, pusher),
            *spectators.rows(broker),
            *jobs.rows(broker),
            *lakes.rows(broker, keeper),
            *rows,
            *mqcore.rows(broker),
        ],
        store.lacks,
    )
    server = Server(table, host, port, limits=limits, authorize=authorize, names=names, access=access)
    server.on_drain(broker.drain)
    try:
        await server.start()
    except BaseException:
        await broker.close()
        raise
    if pusher is not None:
        pusher.start()
    if keeper is not None:
        keeper.start()
    return Serving(broker, server, pusher, keeper)
