"""`BlockingClient`: the client's verbs for code that has no event loop.

    with BlockingClient("http://127.0.0.1:8080") as client:
        client.publish("orders.created", {"number": 17})

A `Client` on a loop in a thread of its own; any number of threads may share it. For workers use `Client`: it
runs plain functions, too, each in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from .client import BATCH_MESSAGES, Client
from .forms import NewMessage, Published

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
    channels = _blocking(Client.channels)
    channel = _blocking(Client.channel)
    declare_channel = _blocking(Client.declare_channel)
    delete_channel = _blocking(Client.delete_channel)
    objects = _blocking(Client.objects)
    object = _blocking(Client.object)
    declare_object = _blocking(Client.declare_object)
    delete_object = _blocking(Client.delete_object)
    consumers = _blocking(Client.consumers)
    consumer = _blocking(Client.consumer)
    declare_consumer = _blocking(Client.declare_consumer)
    delete_consumer = _blocking(Client.delete_consumer)
    spectators = _blocking(Client.spectators)
    spectator = _blocking(Client.spectator)
    set_spectator = _blocking(Client.set_spectator)
    delete_spectator = _blocking(Client.delete_spectator)
    message = _blocking(Client.message)
    payload = _blocking(Client.payload)
    bounds = _blocking(Client.bounds)
    stats = _blocking(Client.stats)
    lake = _blocking(Client.lake)
    seal_lake = _blocking(Client.seal_lake)
    maintain_lake = _blocking(Client.maintain_lake)
    redrive = _blocking(Client.redrive)
    replay = _blocking(Client.replay)
    cancel = _blocking(Client.cancel)
    act = _blocking(Client.act)
    purge = _blocking(Client.purge)
    job = _blocking(Client.job)
    job_done = _blocking(Client.job_done)

    def publish_stream(
        self, messages: Iterable[NewMessage | Mapping[str, Any]], batch: int = BATCH_MESSAGES
    ) -> Generator[list[Published], None, None]:
        """Any number of messages, in batches that are each all or none; gives each batch's results."""
        return self._each(self.client.publish_stream(messages, batch))

    def log(
        self,
        start: int | datetime | str = 1,
        n: int | None = None,
        *,
        follow: bool = False,
        topic: str | None = None,
        queue: str | None = None,
        channel: str | None = None,
    ) -> Generator[dict[str, Any], None, None]:
        return self._each(self.client.log(start, n, follow=follow, topic=topic, queue=queue, channel=channel))

    def spectate(self, name: str, *, follow: bool = True) -> Generator[dict[str, Any], None, None]:
        return self._each(self.client.spectate(name, follow=follow))

    def search(self, filter: str) -> list[dict[str, Any]]:
        async def every() -> list[dict[str, Any]]:
            return [delivery async for delivery in self.client.search(filter)]

        return self.wait_for(every())

    def _each(self, given: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while True:
                try:
                    yield self.wait_for(_next(given))
                except StopAsyncIteration:
                    return
        finally:
            # Left behind unfinished, it may be found by the collector in any thread, and after the end.
            if not self._loop.is_closed() and threading.current_thread() is not self._thread:
                self.wait_for(_end(given))

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


async def _next(given: AsyncGenerator[T, None]) -> T:
    return await anext(given)


async def _end(given: AsyncGenerator[T, None]) -> None:
    await given.aclose()
