"""`BlockingClient`: the client's verbs for code that has no event loop.

    with BlockingClient("http://127.0.0.1:8080") as client:
        client.publish("orders.created", {"number": 17})

A `Client` on a loop in a thread of its own; any number of threads may share it. For workers use `Client`: it
runs plain functions, too, each in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from .client import Client

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient, P], T]:
    def call(self: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait_for(method(self.client, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class BlockingClient:
    def __init__(self, url: str = "http://127.0.0.1:8080", **settings: Any) -> None:
        """The settings are those of `Client`."""
        self.client = Client(url, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="waypost-client", daemon=True)
        self._thread.start()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    publish = _blocking(Client.publish)
    publish_many = _blocking(Client.publish_many)
    fetch = _blocking(Client.fetch)
    confirm = _blocking(Client.confirm)
    extend = _blocking(Client.extend)
    queues = _blocking(Client.queues)
    queue = _blocking(Client.queue)
    declare = _blocking(Client.declare)
    delete_queue = _blocking(Client.delete_queue)
    message = _blocking(Client.message)
    bounds = _blocking(Client.bounds)
    stats = _blocking(Client.stats)
    redrive = _blocking(Client.redrive)
    cancel = _blocking(Client.cancel)
    purge = _blocking(Client.purge)
    job = _blocking(Client.job)
    job_done = _blocking(Client.job_done)

    def log(self, start: int = 1, n: int | None = None, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        events = self.client.log(start, n, follow=follow)
        while True:
            try:
                yield self.wait_for(_next(events))
            except StopAsyncIteration:
                return

    def search(self, filter: str) -> list[dict[str, Any]]:
        async def every() -> list[dict[str, Any]]:
            return [delivery async for delivery in self.client.search(filter)]

        return self.wait_for(every())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.wait_for(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(events: Any) -> dict[str, Any]:
    event: dict[str, Any] = await anext(events)
    return event
