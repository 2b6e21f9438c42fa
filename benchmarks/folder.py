"""The folder store beside folders without a group: how many publishes a second, on the same disk, in turns.

    python -m benchmarks.folder [--seconds 3] [--rounds 5] [--clients 32] [--folder DIR] [--no-page]

one by one   each message by itself, as MQ-Core's document has it: write into new/, fsync, rename, fsync the folder; a queue's requests
             are serialised, so clients wait for each other
in threads   the same, by as many threads as there are clients: what the file system's journal makes of it
waypost      the broker with the folder store, without HTTP: what waits is one group, with two syncs and a log

Every way has the same clients, each with one message under way. Ratios are those of a round's neighbours, and their median. What a round has
written stays until the end, and fetches and confirms, which unlink, come last: an ext4 without a journal looks at every inode that was deleted
in the last minutes whenever it makes a file. So a second run soon after the first shows less of everything. Therefore, as root, all lies on an ext4 of its own, made as
`mkfs.ext4` makes it: with a journal, as nearly everybody has it; `--folder` is for another place.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.report import write_between
from benchmarks.run import PAGE
from waypost.broker import Broker
from waypost.commands import Confirm, DeclareQueue, Fetch, Publish
from waypost.errors import StoreBroken
from waypost.message import Envelope
from waypost.stores.folder import FolderStore

ONE_BY_ONE, IN_THREADS, WAYPOST, CYCLE = (
    "one by one",
    "in threads",
    "Waypost, publish",
    "Waypost, fetch and confirm",
)
#: sparse: only what is written takes room
IMAGE_BYTES = 8 << 30
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


@contextmanager
def own_disk() -> Iterator[tuple[Path, str]]:
    """A folder, and what it lies on."""
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir="/var/tmp") as name:
        place = Path(name)
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            yield place, "the disk of /var/tmp"
            return
        image, mounted = place / "image", place / "disk"
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
        try:
            yield mounted, "an ext4 with a journal, in a file that is mounted"
        finally:
            subprocess.run(["umount", mounted], check=True)


def measure(place: Path, seconds: float, rounds: int, clients: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in (ONE_BY_ONE, IN_THREADS, WAYPOST, CYCLE)}
    folders = [place / str(turn + 1) for turn in range(rounds)]
    for folder in folders:
        rates[ONE_BY_ONE].append(one_by_one(folder / "one", seconds, clients))
        rates[WAYPOST].append(waypost(folder / "mq", seconds, clients))
        rates[IN_THREADS].append(one_by_one(folder / "threads", seconds, clients, False))
        said = ", ".join(f"{name} {all[-1]:,.0f}/s" for name, all in rates.items() if all)
        print(f"round {folder.name}: {said}", flush=True)
    for folder in folders:
        rates[CYCLE].append(waypost_cycle(folder / "mq", seconds, clients))
    return rates


def table(rates: dict[str, list[float]], clients: int, disk: str) -> str:
    lines = [
        f"{clients} clients, {len(rates[WAYPOST])} rounds, on {disk}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {version_of_code()}.",
        "",
        "| | median a second | from | to | Waypost's publish is |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, all in rates.items():
        beside = "" if name in (WAYPOST, CYCLE) else f"{median(ratios(rates, name)):.1f} ×"
        lines.append(f"| {name} | {median(all):,.0f} | {min(all):,.0f} | {max(all):,.0f} | {beside} |")
    found = median(ratios(rates, ONE_BY_ONE))
    held = "held" if found >= TARGET else "**not held**"
    return "\n".join([*lines, "", f"Wanted beside one by one: ≥ {TARGET:g} ×; found {found:.1f} ×, {held}."])


def ratios(rates: dict[str, list[float]], beside: str) -> list[float]:
    return [ours / theirs for ours, theirs in zip(rates[WAYPOST], rates[beside], strict=True)]


def version_of_code() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description="The folder store beside one fsync and rename a message.")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="measure there instead")
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md as it is")
    asked = parser.parse_args()
    with ExitStack() as stack:
        if asked.folder is None:
            place, disk = stack.enter_context(own_disk())
        else:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=asked.folder))
            place, disk = Path(name), f"the disk of {asked.folder}"
        rates = measure(place, asked.seconds, asked.rounds, asked.clients)
    text = table(rates, asked.clients, disk)
    print(text)
    if asked.folder is None and not asked.no_page:
        write_between(PAGE, "folder", text)


if __name__ == "__main__":
    main()
