"""kill -9 under load: a round is one file that lives through many of them, is drained, and is judged.

    start ─▶ load ─▶ kill ─▶ start ─▶ load ─▶ kill ─▶ … ─▶ start ─▶ drain ─▶ judge

Between two lives a start is sometimes killed too, before it is ready: those are counted by themselves.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from .child import Child, serve_command
from .evidence import kept_when_wrong
from .load import drain, live
from .record import Record
from .verdict import Event, Verdict, judge

#: a life is as long as chance says, between these
SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 1.6
#: the share of lives before which a start is killed
START_KILLS = 0.15
_events = msgspec.json.Decoder(Event)


class Struck(msgspec.Struct, kw_only=True):
    """What a round, or a cut, came to."""

    #: faults under load
    faults: int = 0
    #: … that hit an open commit: a thread was in a write or a sync, or a group was stored and not answered
    open_commits: int = 0
    #: starts that were killed before they were ready
    start_kills: int = 0
    #: how many faults struck what, where there is a choice
    victims: dict[str, int] = {}
    #: the server below the store, where there is one, with its version
    server: str = ""
    verdict: Verdict
    seconds: float = 0.0


def read_log(lines: bytes) -> list[Event]:
    return [_events.decode(line) for line in lines.splitlines()]


def round_of_kills(seed: int, kills: int, tell: Callable[[], None] = lambda: None) -> Struck:
    """`tell` hears of every kill."""
    began = time.monotonic()
    rng = random.Random(seed)
    record = Record(f"kills{seed}")
    writing: list[bool] = []
    start_kills = 0
    with (
        tempfile.TemporaryDirectory(prefix="waypost-kills-", dir="/var/tmp") as name,
        kept_when_wrong(Path(name), record.run) as checked,
    ):
        folder = Path(name)
        command = serve_command(folder / "waypost.db")

        def start() -> Child:
            return Child(command, folder / "broker.log")

        for _ in range(kills):
            if rng.random() < START_KILLS:
                kill_while_starting(start(), rng)
                start_kills += 1
            child = start()

            def strike(child: Child = child) -> None:
                writing.append(child.is_writing())
                child.process.kill()

            live(record, child, rng, rng.uniform(SHORTEST_SECONDS, LONGEST_SECONDS), strike)
            tell()
        child = start()
        try:
            log, depths = drain(record, child)
        finally:
            child.stop()
        verdict = checked(judge(record, read_log(log), depths))
    return Struck(
        faults=kills,
        open_commits=sum(wrote or life in verdict.unanswered_lives for life, wrote in enumerate(writing, 1)),
        start_kills=start_kills,
        verdict=verdict,
        seconds=time.monotonic() - began,
    )


def kill_while_starting(child: Child, rng: random.Random) -> None:
    time.sleep(rng.random() * 0.5)
    child.kill()
