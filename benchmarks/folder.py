"""The folder store beside folders without a group: how many publishes a second, on the same disk, in turns.

    python -m benchmarks.folder [--seconds 3] [--rounds 5] [--clients 32] [--folder DIR]

one by one   each message by itself, as MQ-Core's document has it: write into new/, fsync, rename, fsync the folder; a queue's requests
             are serialised, so clients wait for each other
in threads   the same, by as many threads as there are clients: what the file system's journal makes of it
waypost      the broker with the folder store, without HTTP: what waits is one group, with two syncs and a log

Every way has the same clients, each with one message under way. Ratios are those of a round's neighbours, and their median. What a round has
written stays until the end, and fetches and confirms, which unlink, come last: an ext4 without a journal looks at every inode that was deleted
in the last minutes whenever it makes a file. So a second run soon after the first shows less of everything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
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


def waypost(folder: Path, seconds: float, clients: int) -> float:
    """Publishes a second."""

    async def publish(broker: Broker) -> bool:
        await broker.ask(Publish(envelope=Envelope(), body=BODY, queue="queue", create=False))
        return True

    return asyncio.run(_rate(folder, publish, seconds, clients))


def waypost_cycle(folder: Path, seconds: float, clients: int) -> float:
    """Fetch and confirm together a second, of what waits."""

    async def cycle(broker: Broker) -> bool:
        fetched = await broker.ask(Fetch(queue="queue"))
        if fetched:
            await broker.ask(Confirm(queue="queue", receipts=[fetched[0].receipt]))
        return bool(fetched)

    return asyncio.run(_rate(folder, cycle, seconds, clients))


async def _rate(
    folder: Path, step: Callable[[Broker], Awaitable[bool]], seconds: float, clients: int
) -> float:
    broker = Broker(FolderStore(folder), on_broken=_broken)
    try:
        await broker.ask(DeclareQueue("queue"))
        began, done = time.monotonic(), 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < began + seconds and await step(broker):
                done += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / (time.monotonic() - began)
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
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=asked.folder) as name:
        rounds = [Path(name) / str(turn + 1) for turn in range(asked.rounds)]
        for folder in rounds:
            rates["one by one"].append(one_by_one(folder / "one", asked.seconds, asked.clients))
            rates["waypost"].append(waypost(folder / "mq", asked.seconds, asked.clients))
            rates["in threads"].append(one_by_one(folder / "threads", asked.seconds, asked.clients, False))
            said = ", ".join(f"{name} {all[-1]:,.0f}/s" for name, all in rates.items() if all)
            print(f"round {folder.name}: {said}", flush=True)
        for folder in rounds:
            rates["fetch + confirm"].append(waypost_cycle(folder / "mq", asked.seconds, asked.clients))
    for name, all in rates.items():
        print(f"{name:16} median {median(all):9,.0f}/s   {min(all):9,.0f} to {max(all):,.0f}")
    for beside in ("one by one", "in threads"):
        ratios = [ours / theirs for ours, theirs in zip(rates["waypost"], rates[beside], strict=True)]
        print(f"waypost / {beside}: median {median(ratios):.1f} x   {min(ratios):.1f} to {max(ratios):.1f}")
        if beside == "one by one" and asked.clients >= 32 and median(ratios) < TARGET:
            raise SystemExit(f"below the target of {TARGET:g} x")


if __name__ == "__main__":
    main()
