"""Large messages beside small ones: does a 16 MiB body stall a 256-byte publish?

    python -m benchmarks.large [--seconds 10]

Small publishes go out at a steady pace on a few connections, each measured from the moment it was due
(so a stall counts for all that were due in it); first alone, then beside five 16 MiB bodies a second
sent by another process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.loader import PATIENCE, Address, Refused, percentile
from benchmarks.peers import WAYPOST, running
from benchmarks.wires import BODY
from benchmarks.wires.http import request, whole

SMALL_CONNECTIONS, SMALL_RATE = 8, 400  #: connections, and publishes a second by all of them
LARGE_CONNECTIONS, LARGE_RATE = 5, 5
LARGE_BODY = 16 << 20


def paced(address: Address, asked: bytes, every: float, offset: float, end: float, into: list[float]) -> None:
    """One connection: asks at every due time, notes how long after it the answer was there."""
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.perf_counter() + offset
        while due < end:
            time.sleep(max(0.0, due - time.perf_counter()))
            sock.sendall(asked)
            data = b""
            while not whole(data):
                if not (more := sock.recv(65536)):
                    raise Refused("the server closed a connection")
                data += more
            if data[9:12] != b"201":
                raise Refused(data[:300].decode(errors="replace"))
            into.append(time.perf_counter() - due)
            due += every


def load(address: Address, asked: bytes, connections: int, rate: float, seconds: float) -> dict[str, float]:
    """Many paced connections, evenly staggered. What was due in time is sent, however late."""
    latencies: list[float] = []
    errors: list[BaseException] = []
    start = time.perf_counter()
    end = start + seconds

    def run(index: int) -> None:
        try:
            paced(address, asked, connections / rate, index / rate, end, latencies)
        except (OSError, Refused) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Refused(str(errors[0]))
    ordered = sorted(latencies)
    return {
        "rate": len(ordered) / max(seconds, time.perf_counter() - start),
        "p50": percentile(ordered, 0.5),
        "p99": percentile(ordered, 0.99),
        "longest": ordered[-1],
    }


def send_large(address: Address, seconds: float, answer: Connection) -> None:
    """The other process: five large bodies a second."""
    asked = request("POST", "/in/large/large.made", b"x" * LARGE_BODY, "application/octet-stream")
    answer.send("ready")
    try:
        answer.send(load(address, asked, LARGE_CONNECTIONS, LARGE_RATE, seconds))
    except Refused as error:
        answer.send(str(error))


def measure_large(folder: Path, seconds: float) -> dict[str, Any]:
    small = request("POST", "/in/small/small.made", BODY)
    with running(WAYPOST, folder) as server:
        load(server.address, small, SMALL_CONNECTIONS, SMALL_RATE, 1.0)  # warm
        alone = load(server.address, small, SMALL_CONNECTIONS, SMALL_RATE, seconds)
        ours, theirs = multiprocessing.Pipe()
        other = multiprocessing.get_context("spawn").Process(
            target=send_large, args=(server.address, seconds, theirs)
        )
        other.start()
        _hear(ours)
        beside = load(server.address, small, SMALL_CONNECTIONS, SMALL_RATE, seconds)
        large = _hear(ours)
        other.join()
    if isinstance(large, str):
        raise Refused(f"large bodies: {large}")
    return {"alone": alone, "beside": beside, "large": large}


def _hear(answer: Connection) -> Any:
    if not answer.poll(3 * PATIENCE):
        raise Refused("the large sender says nothing")
    return answer.recv()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the store lies")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waypost-large-", dir=asked.dir) as folder:
        print(json.dumps(measure_large(Path(folder), asked.seconds), indent=2))


if __name__ == "__main__":
    main()
