"""The lake and Spark: sealing, reading, folding, beside native Parquet, SQLite itself and DuckDB.

    python -m benchmarks.lake [--events 5000000] [--growth 20000000] [--rounds 5] [--only seal,read,...]

One run on one machine, with a real broker on a store of so many real events. What is compared is measured in turns, every
round beginning with another one; a figure is the median of its rounds, a ratio the median of the rounds' ratios. The first round of
all warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import lake_folds, lake_store
from benchmarks.lake_page import write_page
from benchmarks.loader import Script, Tick, measure
from benchmarks.peers import WAYPOST, Running, running
from benchmarks.wires import BODY
from benchmarks.wires.http import ask, request
from prove.lake import sealer_of

PARTS = ("source", "seal", "read", "fold", "growth", "latency", "start")
TAIL = 20_000
ROOT = Path(__file__).resolve().parents[1]
console = Console()


# ── in turns ─────────────────────────────────────────────────────────────────────────────────────────


def in_turns(what: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, by round."""
    order = list(what)
    seconds: dict[str, list[float]] = {name: [] for name in what}
    for number in range(rounds + 1):
        for name in order:
            began = time.perf_counter()
            what[name]()
            if number:
                seconds[name].append(time.perf_counter() - began)
        order.append(order.pop(0))
    return seconds


def ratio(over: list[float], under: list[float]) -> float:
    return round(median(a / b for a, b in zip(over, under, strict=True)), 2)


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(median(values), 3) for name, values in seconds.items()}


# ── a broker with a long log ─────────────────────────────────────────────────────────────────────────


def fill(folder: Path, events: int) -> int:
    path = folder / "waypost.db"
    path.parent.mkdir(parents=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        task = bar.add_task("filling a store", total=events)
        return lake_store.fill(path, events, lambda head: bar.update(task, completed=min(head, events)))


def store_file(folder: Path) -> Path:
    return folder / "waypost.db"


def url_of(server: Running) -> str:
    host, port = server.address
    return f"http://{host}:{port}"


def http(url: str, method: str = "GET", body: bytes | None = None) -> dict[str, Any]:
    asked = urllib.request.Request(url, method=method, data=body)
    with urllib.request.urlopen(asked, timeout=600) as answer:
        return dict(json.loads(answer.read() or b"{}"))


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────


def by_destination(frame: Any) -> None:
    """The question that source, native Parquet and SQLite all answer."""
    from pyspark.sql import functions as F

    rows = frame.groupBy("destination_code", "to_code").agg(F.count("*"), F.max("at"))
    rows.write.format("noop").mode("overwrite").save()


def measure_source(spark: Any, url: str, store: Path, head: int, rounds: int) -> dict[str, Any]:
    def source() -> None:
        frame = spark.read.format("waypost").option("url", url).option("until", head)
        by_destination(frame.schema("destination_code int, to_code int, at timestamp").load())

    def whole() -> None:
        by_destination(spark.read.format("waypost").option("url", url).option("until", head).load())

    seconds = in_turns(
        {"source": source, "source, all columns": whole, "sqlite": lambda: lake_store.aggregate(store)},
        rounds,
    )
    return {
        "seconds": medians(seconds),
        "rates": {name: round(head / median(values)) for name, values in seconds.items()},
        "rate": ratio(seconds["sqlite"], seconds["source"]),
    }


def publish(tick: Tick) -> Script:
    asked = request("POST", "/in/tail/tail.made", BODY)
    while tick():
        yield from ask(asked, b"201")


def p99_ms(server: Running) -> float:
    """What publishers feel."""
    return measure(server.address, server.pid, 8, publish, 2.0).p99 * 1_000


def measure_seal(server: Running, head: int) -> dict[str, Any]:
    """A broker that was just started seals all that it finds; what publishers feel of that, in turns with moments in which the sealer is
    stopped: each beside the two around it. What those two differ by is noise."""
    give_up_at = time.monotonic() + 60
    while (sealer := sealer_of(server.pid)) is None:
        if time.monotonic() > give_up_at:
            raise SystemExit("the broker has no sealer")
        time.sleep(0.1)
    working, seconds = [], 0.0
    stopped = [while_stopped(server, sealer)]
    while (status := http(f"{url_of(server)}/v1/lake"))["sealed"] < head:
        began = time.perf_counter()
        working.append(p99_ms(server))
        seconds += time.perf_counter() - began
        stopped.append(while_stopped(server, sealer))
        if seconds > 600:
            raise SystemExit(f"sealing does not come to its end: {status}")
    felt = [p99 / mean(around) for p99, around in zip(working, pairwise(stopped), strict=True)]
    noise = [max(pair) / min(pair) for pair in pairwise(stopped)]
    return {
        "under load, events/s": round(head / seconds),
        "p99 ms": {"sealing": round(median(working), 2), "stopped": round(median(stopped), 2)},
        "sealing / stopped": round(median(felt), 2),
        "stopped / stopped": round(median(noise), 2),
    }


def while_stopped(server: Running, sealer: int) -> float:
    os.kill(sealer, signal.SIGSTOP)
    try:
        return p99_ms(server)
    finally:
        os.kill(sealer, signal.SIGCONT)


def seal_alone(folder: Path, path: Path) -> dict[str, Any]:
    """The sealer's own work, of the whole log, into a lake of its own, with nothing else going on."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from waypost.lake.owner import Lake; from waypost.lake.sealing import seal_upto\n"
        "from waypost.stores.sqlite.export import Export\n"
        "done = seal_upto(Export(sys.argv[1]), Lake(Path(sys.argv[2])))\n"
        "print(done.events / done.seconds)"
    )
    lake = folder / "second-lake"
    lake.mkdir()
    said = subprocess.run(
        [sys.executable, "-c", code, str(path), str(lake)], check=True, capture_output=True, text=True
    )
    return {"events/s": round(float(said.stdout))}


def measure_read(spark: Any, url: str, lake: Path, rounds: int) -> dict[str, Any]:
    """`events()` with a tail in the store against the same number of rows in Parquet alone."""
    from deltalake import DeltaTable

    from waypost.spark import events

    line = json.dumps({"topics": ["tail.made"], "body": BODY.decode()}) + "\n"
    status = http(f"{url}/v1/lake")
    for _ in range(TAIL // 2 // 1_000):  # L and Q each
        http(f"{url}/v1/messages", "POST", (line * 1_000).encode())
    tail = http(f"{url}/v1/lake")["head"] - status["sealed"]
    files = DeltaTable(str(lake / "message_events")).file_uris()
    seconds = in_turns(
        {
            "events()": lambda: by_destination(events(spark, url=url)),
            "parquet": lambda: by_destination(spark.read.parquet(*files)),
            "parquet again": lambda: by_destination(spark.read.parquet(*files)),
        },
        rounds,
    )
    return {
        "tail": tail,
        "seconds": medians(seconds),
        "ratio": ratio(seconds["events()"], seconds["parquet"]),
        "same": ratio(seconds["parquet again"], seconds["parquet"]),
    }


def measure_latency(spark: Any, url: str, lake: Path, times: int = 20) -> dict[str, Any]:
    """From the answer to a publish until it can be read in the lake (asked to seal), and until a stream has it."""
    from deltalake import DeltaTable

    def one() -> int:
        http(f"{url}/in/tail/tail.made", "POST", b"x")
        return int(http(f"{url}/v1/lake")["head"])

    to_lake = []
    for _ in range(times):
        one()
        began = time.perf_counter()
        sealed = http(f"{url}/v1/lake/seal", "POST")["sealed"]
        assert (DeltaTable(str(lake / "message_events")).transaction_version("sealer") or 0) >= sealed
        to_lake.append(time.perf_counter() - began)
    seen: dict[int, float] = {}
    arrived = threading.Condition()

    def each(frame: Any, number: int) -> None:
        newest = frame.agg({"offset": "max"}).first()[0]
        if newest is not None:
            with arrived:
                seen[newest] = time.perf_counter()
                arrived.notify_all()

    head = http(f"{url}/v1/lake")["head"]
    stream = spark.readStream.format("waypost").option("url", url).option("from", head + 1)
    query = stream.load().writeStream.foreachBatch(each).trigger(processingTime="0 seconds").start()
    to_stream = []
    try:
        for number in range(times + 3):
            began = time.perf_counter()
            offset = one()
            with arrived:
                arrived.wait_for(lambda offset=offset: any(newest >= offset for newest in seen), 60)  # type: ignore[misc]
            if number >= 3:
                to_stream.append(min(at for newest, at in seen.items() if newest >= offset) - began)
            time.sleep(0.2)
    finally:
        query.stop()
    return {
        "to lake, ms": round(median(to_lake) * 1_000),
        "to stream, ms": round(median(to_stream) * 1_000),
        "to stream, worst ms": round(max(to_stream) * 1_000),
    }


def measure_start(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """`waypost pipeline once` on a small log, from the command to its end; with and without the archive of `spark warm`."""
    cold, warm = folder / "cold-cache", folder / "warm-cache"
    found: dict[str, list[float]] = {"cold": [], "warm": []}

    def run(cache: Path, *words: str) -> float:
        began = time.perf_counter()
        env = os.environ | {"XDG_CACHE_HOME": str(cache)}
        subprocess.run([sys.executable, "-m", "waypost", *words], check=True, capture_output=True, env=env)
        return time.perf_counter() - began

    warming = run(warm, "spark", "warm")
    for number in range(rounds):
        for name, cache in (("cold", cold), ("warm", warm)):
            with running(WAYPOST, folder / f"small-{name}-{number}") as server:
                for _ in range(50):
                    http(f"{url_of(server)}/in/small/small.made", "POST", b"x")
                found[name].append(run(cache, "pipeline", "once", "--url", url_of(server)))
    return {
        "warm, s": round(median(found["warm"]), 1),
        "without, s": round(median(found["cold"]), 1),
        "warming, s": round(warming, 1),
    }


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def telling(what: str) -> Iterator[None]:
    began = time.perf_counter()
    console.print(f"{what} …", highlight=False)
    yield
    console.print(f"{what}: {time.perf_counter() - began:.0f} s", highlight=False)


def run(
    folder: Path, chosen: tuple[str, ...], events: int, growth: int, rounds: int, found: dict[str, Any]
) -> None:
    """Into `found`, a part at a time: what was measured before a failure is not lost."""
    from waypost.spark import launching, session

    server_folder = folder / "waypost"
    head = fill(server_folder, events)
    spark = session("benchmarks.lake")
    try:
        store = store_file(server_folder)
        with launching.environment({"WAYPOST_LAKE": "off"}), running(WAYPOST, server_folder) as server:
            if "source" in chosen:
                with telling("source"):
                    found["source"] = measure_source(spark, url_of(server), store, head, rounds)
        if "seal" in chosen:
            with telling("seal, alone"):
                found["seal"] = seal_alone(folder, store)
        with running(WAYPOST, server_folder) as server:
            url = url_of(server)
            lake = Path(http(f"{url}/v1/lake")["lake"])
            if "seal" in chosen:
                with telling("seal"):
                    found["seal"] |= measure_seal(server, head)
            if {"read", "fold", "latency"} & set(chosen):
                http(f"{url}/v1/lake/seal", "POST")
            if "read" in chosen:
                with telling("read"):
                    found["read"] = measure_read(spark, url, lake, rounds)
            if "fold" in chosen:
                with telling("fold"):
                    found["fold"] = lake_folds.measure_folds(spark, lake, rounds, in_turns)
            if "latency" in chosen:
                with telling("latency"):
                    found["latency"] = measure_latency(spark, url, lake)
        if "growth" in chosen:
            with telling("growth"):
                found["growth"] = lake_folds.measure_growth(spark, folder / "growth", growth)
    finally:
        spark.stop()
    if "start" in chosen:
        with telling("start"):
            found["start"] = measure_start(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--growth", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="the disk where all lies")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    asked = parser.parse_args()
    chosen = tuple(asked.only.split(","))
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    began = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="waypost-lake-", dir=asked.dir) as name:
            run(Path(name), chosen, asked.events, asked.growth, asked.rounds, found)
    except BaseException:
        console.print(json.dumps(found, indent=2), markup=False, highlight=False)
        raise
    found["run"] = {
        "events": asked.events,
        "rounds": asked.rounds,
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load before": round(os.getloadavg()[2], 2),
    }
    text = json.dumps(found, indent=2)
    if asked.json:
        asked.json.write_text(text)
    console.print(text, markup=False, highlight=False)
    if chosen == PARTS:
        write_page(found)


if __name__ == "__main__":
    main()
