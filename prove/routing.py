"""Routing in Spark under kill -9: of the job, of the broker, of both; and then message by message beside a broker that routes itself.

    broker ─▶ load ─▶ pipeline route ─▶ kill one, or both ─▶ again … ─▶ all is decided ─▶ compare with inline routing

A kill comes a random moment after a job has decided something, so that it hits one that works. The producer has ids of its own and
repeats what was not answered, so each message is there once. In the end every one must have been decided once, as the same function
does inside a broker, and none before an earlier one of its key.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .child import Child, serve_url_command
from .lake import NoProgress, environment
from .outcome import Outcome, struck, total

ROUTER = "prove.routers:route"
VICTIMS = ("job", "broker", "both")
POLICY: dict[str, Any] = {"unchanged": {"ignore": ["$.at"]}}
KEYS = 40
#: messages of one request, and how often there is one
AT_ONCE = 20
PAUSE_SECONDS = 0.1
#: Spark's start, and a first round, on a busy machine
PATIENCE_SECONDS = 240.0
#: after the job has decided something
LONGEST_WAIT_SECONDS = 2.0
_DECIDED = 'waypost_decisions_total{by="spark"'


class Routed(Outcome):
    """What a round of kills came to."""

    kills: int
    victims: dict[str, int]
    acknowledged: int
    #: of those, by Spark
    decided_by_spark: int
    unchanged: int
    failed: int
    #: acknowledged, and not in the log, or still in L
    lost: int
    #: decided otherwise than inline: twice, elsewhere, into another state
    wrong: int
    #: decided before an earlier one of its key
    overtaken: int

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.wrong or self.overtaken)

    @classmethod
    def figures(cls, rounds: Sequence[Routed]) -> str:
        wrong = total(rounds, "lost", "wrong", "overtaken")
        return f"{total(rounds, 'decided_by_spark'):,} decided, {wrong:,} wrong"

    @classmethod
    def lines(cls, rounds: Sequence[Routed]) -> list[str]:
        decided = f"{total(rounds, 'decided_by_spark'):,}"
        return [
            "| routing in Spark | |",
            "|---|---:|",
            f"| `kill -9` under load: of the job, of the broker, of both | {struck(rounds, 'job', 'broker', 'both')} |",
            f"| messages acknowledged, of them not there or left in L | {total(rounds, 'acknowledged'):,}, **{total(rounds, 'lost')}** |",
            f"| decided, of them not just as a broker decides that routes by itself | {decided}, **{total(rounds, 'wrong')}** |",
            f"| … of those unchanged; failed on purpose | {total(rounds, 'unchanged'):,}; {total(rounds, 'failed'):,} |",
            f"| decided before an earlier one of their key | **{total(rounds, 'overtaken')}** |",
        ]


class Job:
    """One life of `waypost pipeline route`, in a process group of its own."""

    def __init__(self, url: str, log: Path) -> None:
        command = [sys.executable, "-m", "waypost", "pipeline", "route", "--url", url, "--router", ROUTER]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(),
                start_new_session=True,
            )
        self._log = log

    def check(self) -> None:
        if self.process.poll() is not None:
            raise NoProgress(self._log.read_text()[-2_000:])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def message_of(run: str, number: int) -> dict[str, Any]:
    """The same for the same run and number."""
    chance = random.Random(f"{run}/{number}")
    body = {"level": chance.choice((1, 1, 1, 2, 2, 3, 5, 7)), "at": number}
    return {
        "id": f"{run}-{number}",
        "object": "customer",
        "topics": chance.choice((["customer.changed"], ["customer.changed", "customer.moved"])),
        "key": str(chance.randrange(KEYS)),
        "body": json.dumps(body),
    }


def ask(url: str, method: str = "GET", body: bytes | None = None) -> Any:
    request = urllib.request.Request(url, body, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def publish(url: str, messages: Iterable[dict[str, Any]]) -> None:
    ask(f"{url}/v1/messages", "POST", "\n".join(map(json.dumps, messages)).encode())


class Round:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.run = folder, f"routing{seed}"
        self.rng = random.Random(seed)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.acknowledged = 0
        self.victims: Counter[str] = Counter()
        self._stopped = threading.Event()

    def broker(self) -> Child:
        """Always at one address: a job that outlives it finds the next one."""
        command = serve_url_command(f"sqlite:///{self.folder / 'waypost.db'}")[:-2]
        child = Child([*command, "--port", str(self._port), "--lake", "off"], self.folder / "broker.log")
        child.port()
        return child

    def job(self) -> Job:
        return Job(self.url, self.folder / "job.log")

    def load(self) -> None:
        """What was not answered is sent again, in its place."""
        while not self._stopped.wait(PAUSE_SECONDS):
            numbers = range(self.acknowledged, self.acknowledged + AT_ONCE)
            with suppress(OSError):  # the broker is struck now and then
                publish(self.url, [message_of(self.run, number) for number in numbers])
                self.acknowledged += AT_ONCE

    def strike(self, kills: int, tell: Callable[[], None]) -> None:
        child, job = self.broker(), self.job()
        ask(f"{self.url}/v1/objects/customer", "PUT", json.dumps({**POLICY, "route": "spark"}).encode())
        loading = threading.Thread(target=self.load)
        loading.start()
        try:
            for number in range(kills):
                victim = VICTIMS[number % len(VICTIMS)]
                self._await_decisions(job)
                time.sleep(self.rng.uniform(0, LONGEST_WAIT_SECONDS))
                if victim != "broker":
                    job.kill()
                if victim != "job":
                    child.kill()
                    child = self.broker()
                if victim != "broker" and number + 1 < kills:
                    job = self.job()
                self.victims[victim] += 1
                tell()
        finally:
            self._stopped.set()
            loading.join()
            job.kill()
            child.stop()

    def _await_decisions(self, job: Job) -> None:
        """Until this job has decided something, in this life of the broker."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        before = self._decided()
        while self._decided() <= before:
            job.check()
            if time.monotonic() > deadline:
                raise NoProgress(f"nothing is decided:\n{(self.folder / 'job.log').read_text()[-2_000:]}")
            time.sleep(0.05)

    def _decided(self) -> int:
        """In this life of the broker."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(_DECIDED))


def round_of_routing_kills(
    seed: int, kills: int, tell: Callable[[], None] = lambda: None, spark: Any = None
) -> Routed:
    """`spark`: a session that decides the rest; else one is made and stopped."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-routing-", dir="/var/tmp") as name:
        round = Round(Path(name), seed)
        round.strike(kills, tell)
        child = round.broker()
        try:
            decide_the_rest(round.url, spark)
            log = events_of(round.url)
        finally:
            child.stop()
        found = judge(round, log, inline_log(round, log))
    return Routed(kills=kills, victims=dict(round.victims), seconds=time.monotonic() - began, **found)


def decide_the_rest(url: str, spark: Any) -> None:
    if spark is not None:
        from waypost.spark.routing import once

        once(spark, url, ROUTER)
        return
    command = [sys.executable, "-m", "waypost", "pipeline", "route", "--once", "--url", url]
    subprocess.run([*command, "--router", ROUTER], env=environment(), check=True, capture_output=True)


# ── what there is in the end ────────────────────────────────────────────────────────────────────


def events_of(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/log?from=1", timeout=120) as answer:
        return [json.loads(line) for line in answer]


def inline_log(round: Round, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages in the same order, in a broker that routes by itself."""
    folder = round.folder / "inline"
    folder.mkdir()
    numbers = [
        int(event["messageId"].rpartition("-")[2])
        for event in log
        if event["toState"] == "L" and event["fromState"] is None
    ]
    command = [*serve_url_command(f"sqlite:///{folder / 'waypost.db'}"), "--router", ROUTER, "--lake", "off"]
    child = Child(command, folder / "broker.log")
    try:
        url = f"http://127.0.0.1:{child.port()}"
        ask(f"{url}/v1/objects/customer", "PUT", json.dumps(POLICY).encode())
        for start in range(0, len(numbers), 1_000):
            publish(url, [message_of(round.run, number) for number in numbers[start : start + 1_000]])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while ask(f"{url}/v1/stats")["undecided"]:
            if time.monotonic() > deadline:
                raise NoProgress("the broker's own router does not end")
            time.sleep(0.05)
        return events_of(url)
    finally:
        child.stop()


def journeys(log: list[dict[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """What happened to each message, in its order; of a failure the last line."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for event in log:
        step = (
            *(event[field] for field in ("fromState", "toState", "queue", "slot")),
            event.get("sameAs"),
            (event["reason"] or "").strip().rpartition("\n")[2],
        )
        found.setdefault(event["messageId"], []).append(step)
    return found


def overtakings(log: list[dict[str, Any]]) -> int:
    """Messages that were decided before an earlier one of their key."""
    key = {event["messageId"]: event["key"] for event in log if event["fromState"] is None}
    last: dict[str, int] = {}
    count = 0
    for event in log:
        if event["fromState"] == "L":
            thing = key[event["messageId"]]
            count += event["sequence"] < last.get(thing, 0)
            last[thing] = max(event["sequence"], last.get(thing, 0))
    return count


def judge(round: Round, log: list[dict[str, Any]], inline: list[dict[str, Any]]) -> dict[str, int]:
    here, there = journeys(log), journeys(inline)
    sent = [f"{round.run}-{number}" for number in range(round.acknowledged)]
    ends = Counter(steps[1][1] for steps in here.values() if len(steps) > 1)
    return {
        "acknowledged": len(sent),
        "decided_by_spark": ends.total(),
        "unchanged": ends["U"],
        "failed": ends["E"],
        "lost": sum(len(here.get(id, ())) < 2 for id in sent),
        "wrong": sum(here[id] != there.get(id) for id in here) + len(there.keys() - here.keys()),
        "overtaken": overtakings(log),
    }
