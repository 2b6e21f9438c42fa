"""A long backlog: memory, fetch latency and cold start with 0, 1 M and 10 M waiting messages.

    python -m benchmarks.backlog [--full]

At each size: fill through `POST /v1/messages`, note the memory, stop, start again (cold, the time until
/health/ready answers), then the same load of publish → fetch → confirm on the long queue, which leaves
its length as it is; fetches are timed one by one, and the memory is noted again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loader import Load, Script, Tick, family, percentile
from benchmarks.peers import WAYPOST, Running, running
from benchmarks.wires import BODY
from benchmarks.wires.http import Waypost, ask, header, request

QUEUE = "backlog"
SIZES = (0, 1_000_000)
FULL_SIZES = (*SIZES, 10_000_000)
FILL_BATCH, FILL_CONNECTIONS = 1_000, 4
FETCH_CONNECTIONS, FETCH_SECONDS, FETCH_REPEATS = 8, 4.0, 3


def rss_bytes(pid: int) -> int:
    """Resident memory of the server and its children."""
    total = 0
    for member in family(pid):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
    return total


def fill(server: Running, count: int, progress: Callable[[int], None]) -> float:
    """Adds so many messages; seconds."""
    line = json.dumps({"object": QUEUE, "topics": [f"{QUEUE}.made"], "body": BODY.decode()}) + "\n"
    publish = request("POST", "/v1/messages", line.encode() * FILL_BATCH, "application/x-ndjson")
    left = count // FILL_BATCH

    def script(tick: Tick) -> Script:
        nonlocal left
        tick()
        while left > 0:
            left -= 1
            yield from ask(publish, b"201")
            tick()
            progress(FILL_BATCH)

    start = time.perf_counter()
    load = Load([server.address], FILL_CONNECTIONS, script)
    try:
        load.finish()
    finally:
        load.close()
    return time.perf_counter() - start


def fetch_latencies(server: Running, seconds: float) -> list[float]:
    """The fetch alone, within a cycle that keeps the queue as long as it was. Ordered."""
    latencies: list[float] = []
    publish = request("POST", f"/in/{QUEUE}/{QUEUE}.made", BODY)
    fetch = request("GET", f"/queue/{QUEUE}")
    wire = Waypost()

    def script(tick: Tick) -> Script:
        while tick():
            yield from ask(publish, b"201")
            asked_at = time.perf_counter()
            reply = yield from ask(fetch, b"200", b"204")
            while reply[9:12] == b"204":
                reply = yield from ask(fetch, b"200", b"204")
            latencies.append(time.perf_counter() - asked_at)
            yield from wire.confirm(QUEUE, [header(b"Waypost-Receipt", reply)])

    load = Load([server.address], FETCH_CONNECTIONS, script)
    try:
        load.run_for(0.5, 1)
        latencies.clear()
        load.run_for(seconds, 1)
        load.finish()
    finally:
        load.close()
    return sorted(latencies)


def measure_backlog(
    folder: Path, sizes: tuple[int, ...], progress: Callable[[int], None] = lambda _: None
) -> list[dict[str, Any]]:
    measured: list[dict[str, Any]] = []
    waiting = 0
    for size in sizes:
        with running(WAYPOST, folder) as server:
            fetch_latencies(server, 1.0)
            took = fill(server, size - waiting, progress) if size > waiting else 0.0
            rss_filled = rss_bytes(server.pid)
        with running(WAYPOST, folder) as server:
            cold_start = server.started_after
            repeats = [fetch_latencies(server, FETCH_SECONDS) for _ in range(FETCH_REPEATS)]
            measured.append(
                {
                    "waiting": size,
                    "rss": rss_bytes(server.pid),
                    "rss_filled": rss_filled,
                    "fetch_p50": median(percentile(one, 0.5) for one in repeats),
                    "fetch_p99": median(percentile(one, 0.99) for one in repeats),
                    "cold_start": cold_start,
                    "fill_rate": (size - waiting) / took if took else None,
                }
            )
        waiting = size
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="10 M messages too")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the store lies")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waypost-backlog-", dir=asked.dir) as folder:
        print(json.dumps(measure_backlog(Path(folder), FULL_SIZES if asked.full else SIZES), indent=2))


if __name__ == "__main__":
    main()
