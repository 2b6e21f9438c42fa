"""The sink under kill -9: of the job, of the broker, of both.

    stream ─▶ uploads, batches ─▶ broker ─▶ kill one, or both ─▶ again … ─▶ every row one message, in its key's order

A kill comes a random moment after rows came in, so that it hits a write under way. A broker that was struck alone starts again on its port, and the
job waits for it; a job that was struck goes on from its checkpoint, and writes again what Spark does not know to be committed. Somebody else
publishes beside it all the time.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .child import Child, serve_command
from .lake import PATIENCE_SECONDS, NoProgress, ask, environment
from .outcome import Outcome, struck, total
from .sinking import KEYS, ROWS_A_BATCH, TOPIC

#: after rows came in
LONGEST_WAIT_SECONDS = 3.0
VICTIMS = ("job", "broker", "both")
BESIDE = "beside.row"


class Sunk(Outcome):
    """What a round of kills came to."""

    kills: int
    #: how often each was struck
    victims: dict[str, int]
    batches: int
    rows: int
    #: rows that are no message, or several, or come after a later one of their key
    lost: int
    doubled: int
    disordered: int
    #: published meanwhile, and of those how many are not there
    acknowledged: int
    forgotten: int

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.forgotten)

    @classmethod
    def figures(cls, rounds: Sequence[Sunk]) -> str:
        return f"{total(rounds, 'rows'):,} rows, {total(rounds, 'lost', 'doubled', 'disordered'):,} wrong"

    @classmethod
    def lines(cls, rounds: Sequence[Sunk]) -> list[str]:
        return [
            "| the sink | |",
            "|---|---:|",
            f"| `kill -9` under load | {total(rounds, 'kills')} |",
            f"| … of the job, of the broker, of both | {struck(rounds, 'job', 'broker', 'both')} |",
            f"| batches, rows written | {total(rounds, 'batches'):,}, {total(rounds, 'rows'):,} |",
            f"| rows lost, doubled, after a later one of their key | **{total(rounds, 'lost')}**, **{total(rounds, 'doubled')}**, "
            f"**{total(rounds, 'disordered')}** |",
            f"| messages published beside it and acknowledged, lost | {total(rounds, 'acknowledged'):,}, **{total(rounds, 'forgotten')}** |",
        ]


class Job:
    """One life of the stream, in a process group of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._log = folder / "job.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prove.sinking", url, str(folder / "checkpoint")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def check(self) -> None:
        if self.process.poll() is not None:
            raise NoProgress(f"the job ended by itself: {self._log.read_text()[-2_000:]}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Round:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self._command = [*serve_command(folder / "waypost.db"), "--lake", "off"]
        self.broker = Child(self._command, folder / "broker.log")
        self.port = self.broker.port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.job = Job(self.url, folder)
        self.victims: Counter[str] = Counter()

    def strike(self, victim: str) -> None:
        self.move_on()
        time.sleep(self.rng.uniform(0, LONGEST_WAIT_SECONDS))
        if victim != "broker":
            self.job.kill()
        if victim != "job":
            self.broker.kill()
            self.broker = Child([*self._command, "--port", str(self.port)], self.folder / "broker.log")
            self.broker.port()
        if victim != "broker":
            self.job = Job(self.url, self.folder)
        self.victims[victim] += 1

    def move_on(self) -> None:
        """Until rows of a life of the job or broker that has just begun have come in."""
        before, deadline = self.entered(), time.monotonic() + PATIENCE_SECONDS
        while self.entered() <= before:
            self.job.check()
            if time.monotonic() > deadline:
                raise NoProgress("no row comes in")
            time.sleep(0.05)

    def entered(self) -> int:
        """How many rows came in, in whichever life: a count of deliveries, none of which anybody fetches."""
        try:
            queue = json.loads(ask(f"{self.url}/v1/queues/sunk"))
        except OSError:
            return 0  # there is none yet
        return int(queue["figures"]["depth"])

    def close(self) -> None:
        self.job.kill()
        self.broker.kill()


def publish_beside(port: int, stopped: threading.Event, acknowledged: list[str]) -> None:
    """One after the other; what is not answered may be there or not."""
    number = 0
    while not stopped.is_set():
        number += 1
        body = f"beside {number}"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", f"/in/{BESIDE}", body.encode())
            if connection.getresponse().status == 201:
                acknowledged.append(body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)  # it is struck now and then
        finally:
            connection.close()
        stopped.wait(0.002)


def round_of_sink_kills(seed: int, kills: int, tell: Callable[[], None] = lambda: None) -> Sunk:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-sink-", dir="/var/tmp") as name:
        round = Round(Path(name), seed)
        stopped = threading.Event()
        acknowledged: list[str] = []
        beside = threading.Thread(target=publish_beside, args=(round.port, stopped, acknowledged))
        beside.start()
        try:
            for number in range(kills):
                round.strike(VICTIMS[number % len(VICTIMS)])
                tell()
            round.move_on()
            round.job.kill()
            stopped.set()
            beside.join()
            found = judge(round.url, round.folder / "checkpoint", acknowledged)
        finally:
            stopped.set()
            beside.join()
            round.close()
    return Sunk(kills=kills, victims=dict(round.victims), seconds=time.monotonic() - began, **found)


def judge(url: str, checkpoint: Path, acknowledged: list[str]) -> dict[str, int]:
    """What was accepted has all to be there; and no row of anything that Spark knows to be committed may be missing."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while b"waypost_batches_open 0.0" not in ask(f"{url}/metrics"):
        if time.monotonic() > deadline:
            raise NoProgress("an accepted batch does not come to its end")
        time.sleep(0.1)
    committed = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    rows: list[int] = []
    others: set[str] = set()
    for line in ask(f"{url}/log?payload=1").splitlines():
        event = json.loads(line)
        if event["toState"] == "L":
            if event["topics"] == [TOPIC]:
                rows.append(int(event["body"]))
            else:
                others.add(event["body"])
    return weigh(rows, max(committed, default=-1) + 1) | {
        "acknowledged": len(acknowledged),
        "forgotten": len(set(acknowledged) - others),
    }


def weigh(rows: list[int], committed: int) -> dict[str, int]:
    """`rows`: those that are messages, in the order of the log; `committed`: how many batches Spark knows to be."""
    counts = Counter(rows)
    # A batch of which one row is there must be there whole.
    batches = max(committed, -(-(max(rows, default=-1) + 1) // ROWS_A_BATCH))
    newest: dict[int, int] = {}
    disordered = 0
    for row in rows:
        disordered += row < newest.get(row % KEYS, -1)
        newest[row % KEYS] = max(row, newest.get(row % KEYS, -1))
    return {
        "batches": batches,
        "rows": len(rows),
        "lost": batches * ROWS_A_BATCH - len(counts),
        "doubled": len(rows) - len(counts),
        "disordered": disordered,
    }
