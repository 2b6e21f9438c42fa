"""bench: a small load on one broker, from one process.

It says whether a broker is well and roughly how quick; the client is Python, too, and is itself the limit
on a fast disk. Measurements that compare belong to `make bench`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .asking import Json, Url, broker, do
from .output import json_document, note, show, table

if TYPE_CHECKING:
    from ..client import Client

#: does one operation and says how many messages it moved
Operation = Callable[[], Awaitable[int]]


def bench(
    clients: Annotated[int, typer.Option(min=1, max=1_000, help="At the same time.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="For each of the two parts.")] = 5,
    size: Annotated[int, typer.Option(min=0, max=1 << 20, help="Bytes of a body.")] = 256,
    batch: Annotated[int, typer.Option(min=1, max=1_000, help="Messages a request.")] = 1,
    url: Url = None,
    json: Json = False,
) -> None:
    """A small load on one broker: publish, then publish, fetch and confirm."""

    async def work() -> None:
        queue = f"bench-{uuid.uuid4().hex[:8]}"
        async with broker(url, connections=clients) as client:
            await client.declare(queue, {"keep": 0})
            try:
                body = "x" * size
                parts = {
                    "publish": publishing(client, queue, body, batch),
                    "publish, fetch, confirm": cycling(client, queue, body, batch),
                }
                measured = [
                    {"part": name, **await _measure(operation, clients, seconds)}
                    for name, operation in parts.items()
                ]
            finally:
                await client.delete_queue(queue)
        if json:
            json_document({"clients": clients, "batch": batch, "size": size, "parts": measured})
            return
        figures = ("messages/s", "p50 ms", "p99 ms", "messages")
        made = table(f"{clients} clients, {size} bytes, {batch} a request", *figures, right=figures)
        for part in measured:
            made.add_row(
                part["part"],
                f"{part['perSecond']:,.0f}",
                f"{part['p50Ms']:.2f}",
                f"{part['p99Ms']:.2f}",
                f"{part['messages']:,}",
            )
        show(made)
        note("one Python process sends this load and is part of what is measured; make bench compares")

    do(work())


def publishing(client: Client, queue: str, body: str, batch: int) -> Operation:
    async def one() -> int:
        if batch == 1:
            await client.publish(f"{queue}.load", body)
        else:
            await client.publish_many([{"queue": queue, "body": body}] * batch)
        return batch

    return one


def cycling(client: Client, queue: str, body: str, batch: int) -> Operation:
    publish = publishing(client, queue, body, batch)

    async def one() -> int:
        await publish()
        messages = await client.fetch(queue, batch, wait=5)
        if messages:
            await client.confirm(queue, [message.receipt for message in messages])
        return len(messages)

    return one


async def _measure(operation: Operation, clients: int, seconds: float) -> dict[str, Any]:
    took: list[float] = []
    moved = 0
    began = time.perf_counter()

    async def one_client() -> None:
        nonlocal moved
        now = time.perf_counter()
        while now < began + seconds:
            count = await operation()
            moved += count
            before, now = now, time.perf_counter()
            took.append(now - before)

    await asyncio.gather(*(one_client() for _ in range(clients)))
    passed = time.perf_counter() - began
    took.sort()
    return {
        "messages": moved,
        "perSecond": round(moved / passed, 1),
        "p50Ms": round(took[len(took) // 2] * 1_000, 3),
        "p99Ms": round(took[min(len(took) - 1, len(took) * 99 // 100)] * 1_000, 3),
    }
