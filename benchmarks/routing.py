"""Routing in Spark beside routing in the broker: decisions a second of the same messages with the same function, and how long one waits.

    python -m benchmarks.routing [--light 20000] [--heavy 4000] [--rounds 3] [--seconds 20] [--no-page]

inline      all messages wait in L, and the policy moves to `inline`: the broker drains them by its own router
local[1]    they wait in L, and a warm job with one core decides them; local[2]: with two

Rates are those from the first decision asked for to the last one applied, messages and broker alike for all ways, in turns; ratios are
those of a round's neighbours, and their median. A light function looks into the body, a heavy one takes a millisecond. Latency is what
the log says: from L to Q or U, at 1,000 messages a second, with a job that goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.folder import version_of_code
from benchmarks.report import write_between
from benchmarks.run import PAGE
from prove.child import Child, serve_url_command
from prove.routing import ask, publish

ROUTER = "benchmarks.routers:route"
ROOT = Path(__file__).resolve().parents[1]
MASTERS = ("local[1]", "local[2]")
WAYS = ("inline", *MASTERS)
POLICY: dict[str, Any] = {"unchanged": {"ignore": ["$.at"]}}
WARM_UP = 2_000
#: messages a second of the latency
PACE = 1_000
AT_ONCE = 10


class Desk:
    """The broker, and messages for it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._number = 0

    def policy(self, object: str, route: str) -> None:
        ask(f"{self.url}/v1/objects/{object}", "PUT", json.dumps({**POLICY, "route": route}).encode())

    def fill(self, object: str, count: int) -> None:
        """Nine of ten are new."""
        for start in range(0, count, 5_000):
            publish(self.url, [self.message(object) for _ in range(min(5_000, count - start))])

    def message(self, object: str) -> dict[str, Any]:
        self._number += 1
        n = self._number
        body = {"n": n - n % 10 // 9, "at": n, "text": "x" * 200}
        return {
            "object": object,
            "topics": [f"{object}.new"],
            "key": str(n - n % 10 // 9),
            "body": json.dumps(body),
        }

    def undecided(self) -> int:
        return int(ask(f"{self.url}/v1/stats")["undecided"])

    def head(self) -> int:
        return int(ask(f"{self.url}/v1/stats")["log"]["head"])


class Job:
    """A warm Spark in a process of its own, that does what it is told by a line."""

    def __init__(self, master: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.routing", "--job", master, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
        self.told()

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the job ended")
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def job(master: str, url: str) -> None:
    """`once` decides all that waits, `run` goes on until the next line; what was done is said in JSON."""
    from waypost.spark.routing import once, run
    from waypost.spark.routing.running import ARROW_BATCHES
    from waypost.spark.session import session

    conf: dict[str, Any] = {**ARROW_BATCHES}
    spark = session("bench", master, log="off", **conf)
    print("{}", flush=True)
    for line in sys.stdin:
        if line.strip() == "once":
            began = time.monotonic()
            figures = once(spark, url, ROUTER)
            print(json.dumps([figures.decided, time.monotonic() - began]), flush=True)
        else:
            stopped = threading.Event()
            running = threading.Thread(target=run, args=(spark, url, stopped, ROUTER))
            running.start()
            sys.stdin.readline()
            stopped.set()
            running.join()
            print("{}", flush=True)
    spark.stop()


def rate_inline(desk: Desk, object: str, count: int) -> float:
    desk.policy(object, "spark")
    desk.fill(object, count)
    began = time.monotonic()
    desk.policy(object, "inline")
    while desk.undecided():
        time.sleep(0.02)
    return count / (time.monotonic() - began)


def rate_in_spark(desk: Desk, job: Job, object: str, count: int) -> float:
    desk.policy(object, "spark")
    desk.fill(object, count)
    job.tell("once")
    decided, seconds = job.told()
    if decided != count:
        raise SystemExit(f"{decided} of {count} decided")
    return float(decided / seconds)


def latencies(desk: Desk, job: Job, seconds: float) -> list[int]:
    """Milliseconds in L, of what came after the first quarter."""
    desk.policy("light", "spark")
    job.tell("run")
    time.sleep(3)
    began = time.monotonic()
    start = 0
    for number in range(int(seconds * PACE / AT_ONCE)):
        pause = began + number * AT_ONCE / PACE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        if not start and time.monotonic() > began + seconds / 4:
            start = desk.head()
        publish(desk.url, [desk.message("light") for _ in range(AT_ONCE)])
    while desk.undecided():
        time.sleep(0.05)
    job.tell("stop")
    job.told()
    return list(_waits(desk, start))


def _waits(desk: Desk, start: int) -> Iterator[int]:
    import urllib.request

    with urllib.request.urlopen(f"{desk.url}/log?from={start + 1}", timeout=120) as answer:
        for line in answer:
            event = json.loads(line)
            if event["fromState"] == "L":
                yield event["durationMs"]


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"rates": {}}
    with ExitStack() as stack:
        desk = Desk(stack.enter_context(served()))
        jobs = {master: Job(master, desk.url) for master in MASTERS}
        for one in jobs.values():
            stack.callback(one.end)
            rate_in_spark(desk, one, "light", WARM_UP)
        for object, count in (("light", asked.light), ("heavy", asked.heavy)):
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            for turn in range(asked.rounds):
                rates["inline"].append(rate_inline(desk, object, count))
                for master, one in jobs.items():
                    rates[master].append(rate_in_spark(desk, one, object, count))
                said = ", ".join(f"{way} {all[-1]:,.0f}/s" for way, all in rates.items())
                print(f"{object}, round {turn + 1}: {said}", flush=True)
            found["rates"][object] = rates
        found["waits"] = latencies(desk, jobs["local[2]"], asked.seconds)
    return found


@contextmanager
def served() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir="/var/tmp") as name:
        command = serve_url_command(f"sqlite:///{Path(name) / 'waypost.db'}")
        child = Child([*command, "--router", ROUTER, "--lake", "off"], Path(name) / "broker.log")
        try:
            yield f"http://127.0.0.1:{child.port()}"
        finally:
            child.stop()


def ratios(rates: dict[str, list[float]], one: str, other: str) -> float:
    return median(a / b for a, b in zip(rates[one], rates[other], strict=True))


def page(found: dict[str, Any], asked: argparse.Namespace) -> str:
    lines = [
        f"{asked.rounds} rounds of {asked.light:,} messages with a light function and {asked.heavy:,} with one of a millisecond, on SQLite, "
        f"{os.cpu_count()} cores that broker and job share; load of the last quarter of an hour at the end {os.getloadavg()[2]:.1f}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {version_of_code()}.",
        "",
        "| decisions a second, median | light | heavy |",
        "|---|---:|---:|",
    ]
    light, heavy = found["rates"]["light"], found["rates"]["heavy"]
    lines += [f"| {way} | {median(light[way]):,.0f} | {median(heavy[way]):,.0f} |" for way in WAYS]
    for what, one, other in (
        ("one core beside inline", "local[1]", "inline"),
        ("two cores beside inline", "local[2]", "inline"),
        ("two cores beside one", "local[2]", "local[1]"),
    ):
        lines.append(f"| {what} | {ratios(light, one, other):.2f} × | {ratios(heavy, one, other):.2f} × |")
    cuts = quantiles(found["waits"], n=100)
    lines += [
        "",
        f"From publish to decided at {PACE:,} messages a second, light function, two cores: "
        f"p50 {cuts[49]:,.0f} ms, p99 {cuts[98]:,.0f} ms ({len(found['waits']):,} messages).",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Routing in Spark beside routing in the broker.")
    parser.add_argument("--light", type=int, default=20_000)
    parser.add_argument("--heavy", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the latency")
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--job", nargs=2, metavar=("MASTER", "URL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        job(*asked.job)
        return
    text = page(measure(asked), asked)
    print(text)
    if not asked.no_page:
        write_between(PAGE, "routing", text)


if __name__ == "__main__":
    main()
