"""A replay from a lake under kill -9: of the replay, of its target, of both.

    source ─▶ lake        replay ─▶ target ─▶ kill one or both ─▶ the same command … ─▶ to its end ─▶ compare

A kill comes a random moment after the target's log has moved on, so that it hits a replay that sends. A target that was struck comes back on the same
port, and a replay that was not struck goes on by itself. In the end the target's log must have every message of the lake once, in the lake's order, and hand
out the same bodies.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from waypost import BlockingClient

from .child import Child, serve_command
from .outcome import Outcome, struck, total

MESSAGES = 10_000
#: messages a second: a replay lives for a few kills
RATE = 1_000
#: after the target's log has moved on
LONGEST_WAIT_SECONDS = 0.6
#: imports, and a target that starts, on a busy machine
PATIENCE_SECONDS = 120.0
NAME = "proof"
VICTIMS = ("replay", "target", "both")


class Replayed(Outcome):
    """What a round of kills came to."""

    #: of the replay alone, of the target alone, of both
    victims: dict[str, int]
    messages: int
    #: of the lake, which the target does not have; which it has more than once; which stand after a later one
    lost: int
    doubled: int
    overtaken: int
    #: that a consumer of the target gets otherwise than they were published, or not
    wrong_bodies: int

    @property
    def kills(self) -> int:
        return sum(self.victims.values())

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.doubled or self.overtaken or self.wrong_bodies)

    @classmethod
    def figures(cls, rounds: Sequence[Replayed]) -> str:
        wrong = total(rounds, "lost", "doubled", "overtaken", "wrong_bodies")
        return f"{total(rounds, 'messages'):,} messages, {wrong:,} wrong"

    @classmethod
    def lines(cls, rounds: Sequence[Replayed]) -> list[str]:
        return [
            "| replay from the lake | |",
            "|---|---:|",
            f"| `kill -9` of it, of its target, of both | {struck(rounds, 'replay', 'target', 'both')} |",
            f"| messages of the lake, of them lost | {total(rounds, 'messages'):,}, **{total(rounds, 'lost')}** |",
            f"| … doubled, after a later one | **{total(rounds, 'doubled')}**, **{total(rounds, 'overtaken')}** |",
            f"| … that the target hands out otherwise than they were published | **{total(rounds, 'wrong_bodies')}** |",
        ]


class NoProgress(Exception):
    """The target's log does not move on."""


def body_of(number: int) -> str:
    return json.dumps({"number": number, "text": "x" * (number % 400)})


def round_of_replay_kills(
    seed: int, kills: int, tell: Callable[[], None] = lambda: None, messages: int = MESSAGES
) -> Replayed:
    """`tell` hears of every kill."""
    began = time.monotonic()
    rng = random.Random(seed)
    victims = dict.fromkeys(VICTIMS, 0)
    with tempfile.TemporaryDirectory(prefix="waypost-replay-", dir="/var/tmp") as name:
        folder = Path(name)
        lake = filled(folder / "source", messages)
        (folder / "target").mkdir()
        port = free_port()
        target = started(folder, port)
        replay: subprocess.Popen[bytes] | None = None
        try:
            head = 0
            for turn in range(kills):
                if replay is None or replay.poll() is not None:
                    replay = replaying(folder, lake, port)
                head = moved_on(port, head, replay)
                time.sleep(rng.random() * LONGEST_WAIT_SECONDS)
                victim = VICTIMS[turn % len(VICTIMS)]
                if victim != "target":
                    replay.kill()
                    replay.wait()
                if victim != "replay":
                    target.kill()
                    target = started(folder, port)
                victims[victim] += 1
                tell()
            while (replay := finished(replay, folder, lake, port)) is not None:
                pass
            figures = judged(port, lake, messages)
        finally:
            if replay is not None:
                replay.kill()
                replay.wait()
            target.kill()
    return Replayed(victims=victims, messages=messages, **figures, seconds=time.monotonic() - began)


def filled(folder: Path, messages: int) -> Path:
    folder.mkdir()
    broker = Child(serve_command(folder / "waypost.db"), folder / "broker.log")
    try:
        with BlockingClient(f"http://127.0.0.1:{broker.port()}") as client:
            for start in range(0, messages, 500):
                client.publish_many(
                    {"topics": ["proof.made"], "key": str(n % 50), "body": body_of(n)}
                    for n in range(start, min(messages, start + 500))
                )
                client.publish_many([{"topics": ["noise.made"], "body": ""} for _ in range(50)])
            client.seal_lake()
    finally:
        broker.stop()
    return folder / "lake"


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def started(folder: Path, port: int) -> Child:
    command = serve_command(folder / "target" / "waypost.db")
    child = Child([*command[:-1], str(port), "--lake", "off"], folder / "target.log")
    assert child.port() == port
    return child


def replaying(folder: Path, lake: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "waypost", "replay", "object=proof", "--from-lake", str(lake)]
    command += ["--to", f"http://127.0.0.1:{port}", "--go", "--name", NAME, "--rate", str(RATE)]
    with (folder / "replay.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def moved_on(port: int, head: int, replay: subprocess.Popen[bytes]) -> int:
    """The target's head once it is beyond this one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with BlockingClient(f"http://127.0.0.1:{port}") as client:
        while time.monotonic() < deadline:
            now = client.bounds()[1]
            if replay.poll() == 0:
                raise NoProgress("the replay was through before the last kill: it needs more messages")
            if now > head:
                return now
            time.sleep(0.02)
    raise NoProgress(f"the target's log stands at {head} for {PATIENCE_SECONDS:g} s")


def finished(
    replay: subprocess.Popen[bytes] | None, folder: Path, lake: Path, port: int
) -> subprocess.Popen[bytes] | None:
    """None when the replay has ended well; else the next one."""
    if replay is not None and replay.wait(PATIENCE_SECONDS) == 0:
        return None
    return replaying(folder, lake, port)


def judged(port: int, lake: Path, messages: int) -> dict[str, Any]:
    from deltalake import DeltaTable

    table = DeltaTable(lake / "message_events").to_pyarrow_table(columns=["sequence", "object", "from_state"])
    expected = sorted(
        row["sequence"] for row in table.to_pylist() if row["object"] == "proof" and row["from_state"] is None
    )
    assert len(expected) == messages
    prefix = f"replay-{NAME}-"
    with BlockingClient(f"http://127.0.0.1:{port}") as client:
        found = [
            int(event["messageId"].removeprefix(prefix))
            for event in client.log()
            if event["fromState"] is None and event["messageId"].startswith(prefix)
        ]
        bodies: list[str] = []
        while got := client.fetch("proof", 1_000, lease=600):
            bodies += [message.text() for message in got]
    wanted = [body_of(number) for number in range(messages)]
    right = sum(one == two for one, two in zip(bodies, wanted, strict=False))
    return {
        "lost": len(set(expected) - set(found)),
        "doubled": len(found) - len(set(found)),
        "overtaken": sum(later < earlier for earlier, later in pairwise(found)),
        "wrong_bodies": max(len(bodies), messages) - right,
    }
