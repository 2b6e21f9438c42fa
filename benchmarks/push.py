"""Webhooks: how many deliveries a second, and whether one endpoint that hangs slows the others.

    python -m benchmarks.push [--seconds 5] [--rounds 5]

A receiver in a process of its own answers 204 to everything but `/hang`, which it never answers. The broker runs here, on SQLite;
a delivery counts when its confirm is synced. For the second question 100 endpoints with a queue each get
messages at a steady pace, each measured from the moment it was due to its arrival; in every round all is measured twice with
100 that answer (the spread of what is the same), and once with one that hangs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loader import percentile
from waypost.broker import Broker
from waypost.commands import DeclareConsumer, DeclareQueue, Publish, PublishMany
from waypost.consumers import Consumer
from waypost.delivery import State
from waypost.errors import StoreBroken
from waypost.http.consumers import make_secret
from waypost.http.server import run
from waypost.message import Envelope
from waypost.policy import Policy
from waypost.push import Pusher
from waypost.push.addresses import parse_allowed
from waypost.stores.sqlite import SqliteStore

TARGET = 2_000  #: deliveries a second
RATIO_TARGET = 1.5  #: of the others' p99, with one of 100 hanging
ENDPOINTS, RATE = 100, 400  #: endpoints, and messages a second to all of them
CONCURRENCY = 64
BODY = b"x" * 256
#: room for the time at which a message was due
STAMP = 20


class Answering(asyncio.Protocol):
    """As little of a receiver as can be: it must not be what is measured."""

    def __init__(self, latencies: list[float]) -> None:
        self._latencies, self._data = latencies, b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._data = self._data + data
        head = data.find(b"\r\n\r\n") + 4
        if head < 4 or len(data) < head + len(BODY):
            return
        if b"/hang " not in data[: data.find(b"\r\n")]:
            stamp = data[head : head + STAMP]
            if stamp.isdigit():
                self._latencies.append((time.perf_counter_ns() - int(stamp)) / 1e9)
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        self._data = b""


def receive(pipe: Connection) -> None:
    """The other process. Whatever it is told, it gives the latencies since the last time."""
    latencies: list[float] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answering(latencies), "127.0.0.1", 0)
        ended = loop.create_future()

        def told() -> None:
            try:
                pipe.recv()
                pipe.send(latencies[:])
                latencies.clear()
            except EOFError:
                loop.remove_reader(pipe.fileno())
                ended.set_result(None)

        loop.add_reader(pipe.fileno(), told)
        pipe.send(server.sockets[0].getsockname()[1])
        await ended

    run(serve())


@asynccontextmanager
async def pushing(folder: Path) -> AsyncIterator[tuple[Broker, Pusher]]:
    def broken(error: StoreBroken) -> None:
        raise SystemExit(str(error))

    broker = Broker(SqliteStore(folder / "waypost.db"), on_broken=broken)
    pusher = Pusher(broker, parse_allowed(["127.0.0.0/8"]))
    try:
        yield broker, pusher
    finally:
        await pusher.stop(0.0)
        await broker.close()


async def register(broker: Broker, pusher: Pusher, name: str, queue: str, url: str, concurrency: int) -> None:
    consumer = Consumer(url=url, queue=queue, secrets=(make_secret(),), concurrency=concurrency)
    await broker.ask(DeclareConsumer(name, consumer))
    pusher.changed(name)


async def throughput(folder: Path, url: str, messages: int) -> float:
    """Deliveries a second to one endpoint, from a backlog."""
    async with pushing(folder) as (broker, pusher):
        await broker.ask(DeclareQueue("orders"))
        one = [Publish(envelope=Envelope(topics=("orders.made",)), body=BODY) for _ in range(500)]
        for _ in range(messages // len(one)):
            await broker.ask(PublishMany(one))
        start = time.perf_counter()
        await register(broker, pusher, "billing", "orders", url, CONCURRENCY)
        while True:
            queue = broker.store.queue("orders")
            assert queue is not None
            done = queue.states.get(State.S, 0)
            if done == messages:
                return done / (time.perf_counter() - start)
            await asyncio.sleep(0.01)


async def latencies(folder: Path, url: str, pipe: Connection, seconds: float, hanging: int) -> list[float]:
    """From due to arrival, in order; those that hang do not arrive."""
    async with pushing(folder) as (broker, pusher):
        for n in range(ENDPOINTS):
            await broker.ask(DeclareQueue(f"q{n}", Policy()))
            path = "hang" if n < hanging else "hook"
            await register(broker, pusher, f"c{n}", f"q{n}", f"{url}/{path}", 4)
        for warm in (True, False):
            start = time.perf_counter()
            for n in range(round((1.0 if warm else seconds) * RATE)):
                due = start + n / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                body = (b"%020d" % round(due * 1e9)) + BODY[STAMP:]
                queue = f"q{n % ENDPOINTS}"
                broker.publish(
                    Publish(envelope=Envelope(topics=(f"{queue}.made",)), body=body, queue=queue), _ignore
                )
            await asyncio.sleep(0.2)
            pipe.send("take")
            found = pipe.recv()
    return sorted(found)


def _ignore(result: Any) -> None:
    pass


async def _measure(folder: Path, url: str, pipe: Connection, seconds: float, rounds: int) -> dict[str, Any]:
    await throughput(folder / "warm", url, TARGET)
    rates = [await throughput(folder / f"rate{n}", url, round(TARGET * seconds)) for n in range(rounds)]
    p99: dict[str, list[float]] = {"answering": [], "again": [], "hanging": []}
    for n in range(rounds):
        for name, into in p99.items():
            hanging = 1 if name == "hanging" else 0
            found = await latencies(folder / f"{name}{n}", url, pipe, seconds, hanging)
            into.append(percentile(found, 0.99))
    same = sorted(b / a for a, b in zip(p99["answering"], p99["again"], strict=True))
    return {
        "rate": median(rates),
        "rates": rates,
        "ratio": median(p99["hanging"]) / median(p99["answering"] + p99["again"]),
        #: of what is the same: least, median, most
        "same": [same[0], median(same), same[-1]],
        "p99": p99,
    }


def measure_push(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Deliveries a second; and the p99 of 99 endpoints beside one that hangs, as a multiple of that of 100 that answer."""
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs,))
    receiver.start()
    theirs.close()  # so that ours is the only end, and its closing is heard
    url = f"http://127.0.0.1:{ours.recv()}"
    try:
        return run(_measure(folder, url, ours, seconds, rounds))
    finally:
        ours.close()
        receiver.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the store lies")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waypost-push-", dir=asked.dir) as folder:
        print(json.dumps(measure_push(Path(folder), asked.seconds, asked.rounds), indent=2))


if __name__ == "__main__":
    main()
