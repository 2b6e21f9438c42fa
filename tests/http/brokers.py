"""A broker in a thread of its own, and requests to it in one line."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar
from urllib.parse import quote

from tests.http.harness import PATIENCE, Answer, Wire, wait_until
from waypost.destinations import Kind
from waypost.http import run
from waypost.http.service import Serving
from waypost.store import Store
from waypost.testing.running import running_broker

T = TypeVar("T")


class BrokerInThread:
    """Its objects belong to its thread: use `call`."""

    def __init__(self, open_store: Callable[[], Store], **options: Any) -> None:
        self._open_store, self._options = open_store, options

    def __enter__(self) -> Self:
        started = threading.Event()

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            async with running_broker(self._open_store(), **self._options) as self.serving:
                started.set()
                await self._stop.wait()

        self.thread = threading.Thread(target=run, args=(main(),))
        self.thread.start()
        assert started.wait(PATIENCE)
        self.port, self.server = self.serving.port, self.serving.server
        return self

    serving: Serving

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    @property
    def store(self) -> Store:
        return self.serving.broker.store

    def wire(self) -> Wire:
        return Wire(self)  # type: ignore[arg-type]

    def ask(self, method: str, target: str, body: bytes | str = b"", **headers: str) -> Answer:
        """One request on a connection of its own; `waypost_key` is the header Waypost-Key."""
        with self.wire() as wire:
            return wire.ask(request(method, target, body, **headers))

    def publish(self, target: str, body: bytes | str = b"x", **headers: str) -> str:
        """The new message's id."""
        answer = self.ask("POST", target, body, **headers)
        assert answer.status == 201, answer
        return answer.headers["x-message-id"]

    def get(self, target: str) -> Any:
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json()

    def events(self, target: str = "/log") -> list[dict[str, Any]]:
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return [json.loads(line) for line in answer.body.splitlines()]

    def journey(self, id: str) -> str:
        """The states of a message's events, one letter each."""
        return "".join(event["toState"] for event in self.get(f"/v1/messages/{id}")["journey"])

    def found(self, filter: str) -> list[dict[str, Any]]:
        return list(self.get(f"/v1/messages?filter={quote(filter)}")["deliveries"])

    def confirm(self, queue: str, receipt: str, **more: Any) -> Answer:
        return self.ask("POST", f"/queue/{queue}/confirm", json.dumps({"receipts": [receipt], **more}))

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in the broker's loop."""

        async def main() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(main(), self.loop).result(PATIENCE)

    def await_(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)


def request(method: str, target: str, body: bytes | str = b"", **headers: str) -> bytes:
    payload = body.encode() if isinstance(body, str) else body
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if payload or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(payload)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def parked(broker: BrokerInThread, name: str, count: int, kind: Kind = Kind.QUEUE) -> None:
    """Wait until so many fetches wait for the queue or channel."""

    def waiting() -> int:
        fetches = [
            waiter.command for those in broker.serving.broker._parked.values() for waiter in those.values()
        ]
        return sum((fetch.kind, fetch.queue) == (kind, name) for fetch in fetches)

    wait_until(lambda: broker.call(waiting) == count, f"{count} waiting")
