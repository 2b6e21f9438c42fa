"""All endpoints: one for each registered consumer with a URL, for as long as it is registered.

    start ── store.consumers() ──▶ endpoints          changed(name) after a consumer was declared or deleted
    stop  ── fetch no more ──▶ what is under way ends, or after some seconds goes back

The owner of a `Pusher` calls `changed` when the command is committed, and `stop` before it closes the broker. Without
consumers that are pushed to this costs nothing: aiohttp is loaded for the first of them, in a thread, and those declared
meanwhile begin when it is there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from ..broker import Broker
from ..commands import DeclareConsumer
from ..consumers import Consumer
from ..destinations import Kind
from ..errors import Busy, NotOffered, Refused, StoreUnavailable
from ..store import Task
from .addresses import Network, check_url
from .breaker import Tripping
from .crew import Crew
from .endpoint import BUSY_SECONDS, Endpoint
from .figures import Figures

if TYPE_CHECKING:
    from .sending import Lookup, Sender

#: what imports aiohttp
SENDING = "waypost.push.sending"
STOP_SECONDS = 8.0
#: for the commits of what was cancelled at the end
LAST_SECONDS = 2.0
#: between two looks whether nothing is under way to the store
IDLE_SECONDS = 0.01


class Pusher:
    def __init__(
        self,
        broker: Broker,
        allow: Sequence[Network] = (),
        *,
        tripping: Tripping | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        """`allow`: networks that may be called although they are not public (`addresses.parse_allowed`)."""
        self._broker, self._allow, self._lookup = broker, tuple(allow), lookup
        self._tripping = tripping or Tripping()
        self._sender: Sender | None = None
        #: the consumers to look at when aiohttp is loaded
        self._loading: set[str] = set()
        self._endpoints: dict[str, Endpoint] = {}
        self._crews: dict[tuple[Kind, str], Crew] = {}
        #: stopped, until nothing of theirs is under way
        self._leaving: dict[Endpoint, asyncio.Task[None]] = {}
        self._stopped = False

    def check(self, consumer: Consumer) -> None:
        """Before it is declared. Raises RequestInvalid for a URL that would be refused whatever it resolves to."""
        if consumer.url is not None:
            check_url(consumer.url, self._allow)

    def start(self) -> None:
        try:
            registered = self._broker.store.consumers()
        except NotOffered:
            return
        for info in registered:
            self.changed(info.name)
        self._broker.on_renamed.append(self._look_again)

    def _look_again(self) -> None:
        """Another broker declared or deleted some, or pushing became another broker's task, or this one's."""
        try:
            registered = {info.name for info in self._broker.store.consumers()}
            for name in sorted(registered | set(self._endpoints)):
                self.changed(name)
        except StoreUnavailable:
            asyncio.get_running_loop().call_later(1.0, self._look_again)

    def changed(self, name: str) -> None:
        """Look at a consumer again: it was declared, changed or deleted."""
        if self._stopped:
            return
        info = self._broker.store.consumer(name)
        consumer = None if info is None or info.consumer.url is None else info.consumer
        if not self._broker.store.owns(Task.PUSH):
            consumer = None
        endpoint = self._endpoints.get(name)
        if endpoint is not None:
            self._leave_crew(endpoint)
        if consumer is None:
            if endpoint is not None:
                self._leave(name, endpoint)
            return
        if self._sender is None and not self._have_sender(name):
            return
        crew = self._crew(consumer)
        if endpoint is None:
            assert self._sender is not None
            endpoint = self._endpoints[name] = Endpoint(
                name, consumer, self._broker, self._sender, self._tripping, crew, self._gone
            )
            crew.members.append(endpoint)
            endpoint.start()
        else:
            crew.members.append(endpoint)
            endpoint.change(consumer, crew)

    def figures(self, name: str) -> Figures | None:
        endpoint = self._endpoints.get(name)
        return None if endpoint is None else endpoint.figures()

    def all_figures(self) -> dict[str, Figures]:
        return {name: endpoint.figures() for name, endpoint in sorted(self._endpoints.items())}

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """What is under way may end within the given time; the rest goes back."""
        self._stopped = True
        for name, endpoint in list(self._endpoints.items()):
            self._leave(name, endpoint)
        ending = list(self._leaving.values())
        if ending:
            _, late = await asyncio.wait(ending, timeout=seconds)
            if late:
                for endpoint in self._leaving:
                    endpoint.cancel()
                await asyncio.wait(late, timeout=LAST_SECONDS)
        if self._sender is not None:
            await self._sender.close()

    def _leave(self, name: str, endpoint: Endpoint) -> None:
        del self._endpoints[name]
        endpoint.stop()
        ending = asyncio.create_task(endpoint.ended())
        self._leaving[endpoint] = ending
        ending.add_done_callback(lambda _: self._leaving.pop(endpoint))

    def _gone(self, endpoint: Endpoint) -> None:
        """Its receiver wants nothing any more: paused, until somebody declares it again.

        A declaration that is just being committed must not be undone. So the pause is asked for while nothing is under way to
        the store: then what is registered is what was looked at, and a declaration that comes later is applied later. Until
        then the endpoint rests anyway; if the broker ends before, the next 410 does it.
        """
        name, consumer = endpoint.name, endpoint.consumer
        paused = DeclareConsumer(name, msgspec.structs.replace(consumer, paused=True))
        loop = asyncio.get_running_loop()

        def pause() -> None:
            if not self._broker.committer.idle:
                loop.call_later(IDLE_SECONDS, again)
                return
            info = self._broker.store.consumer(name)
            if info is not None and info.consumer == consumer:
                self._broker.submit(paused, done)

        def again() -> None:
            if not self._stopped:
                pause()

        def done(result: Any) -> None:
            if isinstance(result, Busy):
                loop.call_later(BUSY_SECONDS, again)
            elif not isinstance(result, Refused):
                self.changed(name)

        pause()

    def _leave_crew(self, endpoint: Endpoint) -> None:
        endpoint.crew.members.remove(endpoint)
        if not endpoint.crew.members:
            del self._crews[endpoint.consumer.kind, endpoint.consumer.destination]

    def _crew(self, consumer: Consumer) -> Crew:
        return self._crews.setdefault((consumer.kind, consumer.destination), Crew())

    def _have_sender(self, name: str) -> bool:
        """Whether it is there; else the consumer is looked at again when it is. Importing aiohttp takes a fifth of a second."""
        if not self._loading and SENDING in sys.modules:  # where it stands as soon as its import begins
            self._make_sender()
            return True
        if not self._loading:
            loading = asyncio.get_running_loop().run_in_executor(None, import_module, SENDING)
            loading.add_done_callback(self._loaded)
        self._loading.add(name)
        return False

    def _loaded(self, loading: asyncio.Future[Any]) -> None:
        names, self._loading = sorted(self._loading), set()
        loading.result()
        for name in names:
            self.changed(name)

    def _make_sender(self) -> None:
        from .sending import Sender, system_lookup

        self._sender = Sender(self._allow, self._lookup or system_lookup)
