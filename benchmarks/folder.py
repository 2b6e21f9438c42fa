"""The folder store beside folders without a group: how many publishes a second, on the same disk, in turns.

    python -m benchmarks.folder [--seconds 3] [--rounds 5] [--clients 32] [--folder DIR]

one by one   each message by itself, as MQ-Core's document has it: write into new/, fsync, rename, fsync the folder; a queue's requests
             are serialised, so clients wait for each other
in threads   the same, by as many threads as there are clients: what the file system's journal makes of it
waypost      the broker with the folder store, without HTTP: what waits is one group, with two syncs and a log

Every way has the same clients, each with one message under way. Ratios are those of a round's neighbours, and their median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from waypost.broker import Broker
from waypost.commands import Confirm, DeclareQueue, Fetch, Publish
from waypost.errors import StoreBroken
from waypost.message import Envelope
from waypost.stores.folder import FolderStore

TARGET = 5.0  #: times one by one, at 32 clients
BODY = b"x" * 256


def one_by_one(folder: Path, seconds: float, clients: int, serialised: bool = True) -> float:
    for name in ("new", "queue"):
        (folder / name).mkdir(parents=True)
    queue = os.open(folder / "queue", os.O_RDONLY | os.O_DIRECTORY)
    turn = threading.Lock()
    deadline = time.monotonic() + seconds
    counts = [0] * clients

    def publish(name: str) -> None:
        new = folder / "new" / name
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(handle, BODY)
        os.fsync(handle)
        os.close(handle)
        os.rename(new, folder / "queue" / name)
        os.fsync(queue)

    def client(number: int) -> None:
        while time.monotonic() < deadline:
            name = f"{number}-{counts[number]}"
            if serialised:
                with turn:
                    publish(name)
            else:
                publish(name)
            counts[number] += 1

    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(queue)
    return sum(counts) / (time.monotonic() - began)


def waypost(folder: Path, seconds: float, clients: int) -> tuple[float, float]:
    """Publishes a second; then, of what waits, fetch and confirm together a second."""
    return asyncio.run(_waypost(folder, seconds, clients))


async def _waypost(folder: Path, seconds: float, clients: int) -> tuple[float, float]:
    broker = Broker(FolderStore(folder), on_broken=_broken)
    await broker.ask(DeclareQueue("queue"))
    envelope = Envelope()

    async def publish() -> bool:
        await broker.ask(Publish(envelope=envelope, body=BODY, queue="queue", create=False))
        return True

    async def cycle() -> bool:
        fetched = await broker.ask(Fetch(queue="queue"))
        if fetched:
            await broker.ask(Confirm(queue="queue", receipts=[fetched[0].receipt]))
        return bool(fetched)

    async def rate(step: Callable[[], object]) -> float:
        began, done = time.monotonic(), 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < began + seconds and await step():  # type: ignore[misc]
                done += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / (time.monotonic() - began)

    try:
        return await rate(publish), await rate(cycle)
    finally:
        await broker.close()


def _broken(error: StoreBroken) -> None:
    raise SystemExit(f"the store failed: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The folder store beside one fsync and rename a message.")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {"one by one": [], "in threads": [], "waypost": [], "fetch + confirm": []}
    for turn in range(asked.rounds):
        folder = Path(tempfile.mkdtemp(prefix="waypost-bench-", dir=asked.folder))
        try:
            rates["one by one"].append(one_by_one(folder / "one", asked.seconds, asked.clients))
            published, cycled = waypost(folder / "mq", asked.seconds, asked.clients)
            rates["waypost"].append(published)
            rates["fetch + confirm"].append(cycled)
            rates["in threads"].append(one_by_one(folder / "threads", asked.seconds, asked.clients, False))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.sync()
        print(f"round {turn + 1}: " + ", ".join(f"{name} {all[-1]:,.0f}/s" for name, all in rates.items()))
    for name, all in rates.items():
        print(f"{name:16} median {median(all):9,.0f}/s   {min(all):9,.0f} to {max(all):,.0f}")
    for beside in ("one by one", "in threads"):
        ratios = [ours / theirs for ours, theirs in zip(rates["waypost"], rates[beside], strict=True)]
        print(f"waypost / {beside}: median {median(ratios):.1f} x   {min(ratios):.1f} to {max(ratios):.1f}")
        if beside == "one by one" and asked.clients >= 32 and median(ratios) < TARGET:
            raise SystemExit(f"below the target of {TARGET:g} x")


if __name__ == "__main__":
    main()
