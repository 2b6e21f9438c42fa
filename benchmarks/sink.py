"""Spark's sink beside `POST /v1/messages` in batches of 100: rows a second into one broker, in turns.

    python -m benchmarks.sink [--rows 500000] [--rounds 5] [--clients 4] [--no-page]

sink    rows that lie in Parquet, written by `df.write.format("waypost")` in a warm session; from save() to its return, when all rows are in
post    the same rows as newline JSON, made beforehand, 100 a request, by clients that each have one request under way; to the last answer

Both go to a broker on SQLite that has read a row of Arrow before and has nothing else to do, on the same machine, whose cores Spark and the clients share with it. Ratios are those
of a round's neighbours, and their median; the broker's own time is what the kernel counted for its process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.report import write_between
from benchmarks.run import PAGE
from prove.child import Child, serve_command
from pyspark_waypost.broker import ARROW

BODY_BYTES = 256
BATCH = 100
TARGET = 1.0  #: times what POST does


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Target:
    """A fresh broker."""

    def __init__(self, folder: Path) -> None:
        self._child = Child([*serve_command(folder / "waypost.db"), "--lake", "off"], folder / "broker.log")
        self.port = self._child.port()

    @property
    def cpu(self) -> float:
        return cpu_seconds(self._child.process.pid)

    def count(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/v1/queues/bench")
        depth: int = json.load(connection.getresponse())["figures"]["depth"]
        connection.close()
        return depth

    def stop(self) -> None:
        self._child.stop()


def requests(rows: int) -> list[bytes]:
    made = []
    for first in range(0, rows, BATCH):
        lines = [
            json.dumps(
                {"topics": ["bench.row"], "key": f"k{number % 1_000}", "body": f"{number:0{BODY_BYTES}d}"}
            )
            for number in range(first, min(rows, first + BATCH))
        ]
        made.append("\n".join(lines).encode())
    return made


def post(port: int, bodies: Sequence[bytes], clients: int) -> None:
    turn = iter(bodies)
    lock = threading.Lock()
    failures: list[str] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                body = next(turn, None)
            if body is None:
                connection.close()
                return
            connection.request("POST", "/v1/messages", body)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 201:
                failures.append(f"{answer.status}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"POST /v1/messages was answered {failures[0]}")


def warm(port: int) -> None:
    """A broker that has been running for a while has read Arrow before."""
    sink = pa.BufferOutputStream()
    row = pa.record_batch({"value": ["warm"], "topics": ["warm.row"]})
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/messages", bytes(sink.getvalue()), {"Content-Type": ARROW})
    answer = connection.getresponse()
    if answer.status != 201:
        raise RuntimeError(f"a row of Arrow was answered {answer.status}")
    connection.close()


def measured(what: str, folder: Path, rows: int, act: Any) -> dict[str, float]:
    folder.mkdir()
    target = Target(folder)
    try:
        warm(target.port)
        before, began = target.cpu, time.perf_counter()
        act(target.port)
        seconds = time.perf_counter() - began
        cpu = target.cpu - before
        if target.count() != rows:
            raise RuntimeError(f"{what}: {target.count()} of {rows} rows came in")
    finally:
        target.stop()
    return {"rows/s": rows / seconds, "broker, us a row": cpu / rows * 1e6}


def run(rows: int, rounds: int, clients: int) -> dict[str, Any]:
    from waypost.spark.session import session

    began = time.monotonic()
    spark = session("bench")
    bodies = requests(rows)
    found: dict[str, list[dict[str, float]]] = {"sink": [], "post": []}
    with tempfile.TemporaryDirectory(prefix="waypost-bench-sink-") as name:
        folder = Path(name)
        source = str(folder / "rows")
        spark.range(0, rows, 1, 2).selectExpr(
            f"lpad(cast(id as string), {BODY_BYTES}, '0') as value",
            "'bench.row' as topics",
            "concat('k', id % 1000) as key",
        ).write.parquet(source)
        data = spark.read.parquet(source)

        def sink(port: int) -> None:
            data.write.format("waypost").option("url", f"http://127.0.0.1:{port}").mode("append").save()

        measured("warming", folder / "warm", rows, sink)
        for number in range(rounds):
            for what, act in (("sink", sink), ("post", lambda port: post(port, bodies, clients))):
                figures = measured(what, folder / f"{what}{number}", rows, act)
                found[what].append(figures)
                print(
                    f"{number + 1}/{rounds} {what:5} {figures['rows/s']:10,.0f} rows/s, broker {figures['broker, us a row']:.1f} us a row"
                )
    spark.stop()

    def middle(what: str, figure: str) -> float:
        return median(one[figure] for one in found[what])

    ratios = [
        one["rows/s"] / other["rows/s"] for one, other in zip(found["sink"], found["post"], strict=True)
    ]
    return {
        "rows": rows,
        "rounds": rounds,
        "clients": clients,
        "minutes": round((time.monotonic() - began) / 60),
        "load": round(os.getloadavg()[2], 1),
        "ratio": round(median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in sorted(ratios)],
        "sink": {figure: round(middle("sink", figure), 1) for figure in ("rows/s", "broker, us a row")},
        "post": {figure: round(middle("post", figure), 1) for figure in ("rows/s", "broker, us a row")},
    }


def page(found: dict[str, Any]) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        f"{found['rows']:,} rows of {BODY_BYTES} bytes with a key, {found['rounds']} rounds, {found['clients']} clients that post, {os.cpu_count()} cores, "
        f"commit {commit or 'unknown'}; load of the last quarter of an hour at the end {found['load']}.",
        "",
        "| | rows/s | broker's own time, µs a row |",
        "|---|---:|---:|",
    ]
    for what, title in (("sink", "Spark's sink"), ("post", "`POST /v1/messages`, 100 a request")):
        lines.append(f"| {title} | {found[what]['rows/s']:,.0f} | {found[what]['broker, us a row']} |")
    held = "held" if found["ratio"] >= TARGET else "**not held**"
    lines += [
        "",
        f"The sink's rate as a multiple of POST's: **{found['ratio']} ×** (wanted ≥ {TARGET:g} ×: {held}); the rounds: "
        f"{', '.join(map(str, found['ratios']))}.",
    ]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("benchmarks.sink", description="Spark's sink beside POST /v1/messages.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--no-page", action="store_true", help="print only")
    arguments = parser.parse_args(given)
    found = run(arguments.rows, arguments.rounds, arguments.clients)
    text = page(found)
    print(text)
    if not arguments.no_page:
        write_between(PAGE, "sink", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
