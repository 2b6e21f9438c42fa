"""Channels that do not match: does a publish cost more, the more of them there are?

    python -m benchmarks.channels [--rounds 5] [--seconds 1.5] [--clients 32]

Three brokers side by side: one with 10 channels, the same once more (the spread of what is the same), and one with 10,000. Half of
their topics are exact, half are prefixes; every message matches one channel, which is there in all three. Each
round measures all of them, beginning with another one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loader import Refused, Script, Tick, drive, measure
from benchmarks.peers import WAYPOST, Running, running
from benchmarks.wires import BODY
from benchmarks.wires.http import ask, request

FEW, MANY = 10, 10_000
#: how much more a publish may cost among many
RATIO_TARGET = 1.2


def declare(count: int) -> Script:
    """One that matches, and others that do not."""
    for number in range(count):
        if number == 0:
            topics = ["fruit.*"]
        else:
            topics = [f"animal.a{number}.*" if number % 2 else f"animal.b{number}.seen"]
        body = json.dumps({"topics": topics}).encode()
        yield from ask(request("PUT", f"/v1/channels/c{number}", body, "application/json"), b"200", b"201")


def publish(tick: Tick) -> Script:
    asked = request("POST", "/in/fruit/fruit.apple", BODY)
    while tick():
        yield from ask(asked, b"201")


def measure_channels(folder: Path, rounds: int, seconds: float, clients: int) -> dict[str, Any]:
    """Publishes a second, and microseconds of the server's processor for each: medians, and ratios to the first."""
    sizes = {"few": FEW, "few again": FEW, "many": MANY}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    with ExitStack() as stack:
        servers: dict[str, Running] = {}
        for name, count in sizes.items():
            servers[name] = stack.enter_context(running(WAYPOST, folder / name.replace(" ", "-")))
            drive(servers[name].address, declare(count))
        order = list(sizes)
        for _ in range(rounds):
            for name in order:
                server = servers[name]
                one = measure(server.address, server.pid, clients, publish, seconds)
                found[name].append((one.rate, one.server_cpu / one.operations * 1e6))
            order.append(order.pop(0))
    medians = {
        name: tuple(median(column) for column in zip(*rows, strict=True)) for name, rows in found.items()
    }
    rate, cpu = medians["few"]
    return {
        "rates": {name: round(values[0]) for name, values in medians.items()},
        "cpuMicroseconds": {name: round(values[1], 1) for name, values in medians.items()},
        "slower": {name: round(rate / values[0], 2) for name, values in medians.items()},
        "costlier": {name: round(values[1] / cpu, 2) for name, values in medians.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the stores lie")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waypost-channels-", dir=asked.dir) as folder:
        try:
            found = measure_channels(Path(folder), asked.rounds, asked.seconds, asked.clients)
        except Refused as error:
            raise SystemExit(f"void: {error}") from None
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
