"""kill -9 of what is shared: of brokers on one folder; of brokers on one PostgreSQL, and of PostgreSQL itself.

    one broker or two ─▶ load on each ─▶ the fault ─▶ load on who is left ─▶ who was struck again ─▶ … ─▶ drain ─▶ judge

Between two lives the number of brokers changes as chance says: those that are too many are stopped as a person would, and must end well. A broker
that was not struck must live on, also when its database was.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

from scripts.postgres_server import Server, programs

from .child import Child, is_writing, serve_url_command
from .evidence import kept_when_wrong
from .kills import LONGEST_SECONDS, SHORTEST_SECONDS, START_KILLS, Struck, kill_while_starting, read_log
from .load import drain, share
from .messages import FOLDER_RUN, POSTGRES_RUN
from .record import Record
from .verdict import judge

#: who is struck
ONLY, ONE, SERVER, BOTH = "the only broker", "one of two", "PostgreSQL", "PostgreSQL and a broker"


def round_of_folder_kills(seed: int, kills: int, tell: Callable[[], None] = lambda: None) -> Struck:
    """`tell` hears of every kill."""
    with tempfile.TemporaryDirectory(prefix="waypost-kills-", dir="/var/tmp") as name:
        folder = Path(name)
        record = Record(f"{FOLDER_RUN}{seed}")
        return _Round(record, folder, f"folder:///{folder / 'mq'}", random.Random(seed)).run(kills, tell)


def round_of_postgres_kills(seed: int, kills: int, tell: Callable[[], None] = lambda: None) -> Struck:
    found = programs()
    assert found is not None, "PostgreSQL is not on this machine"
    server = Server(found)
    try:
        record = Record(f"{POSTGRES_RUN}{seed}")
        return _Round(record, server.folder, server.url, random.Random(seed), server).run(kills, tell)
    finally:
        server.remove()


class _Round:
    def __init__(
        self, record: Record, folder: Path, url: str, rng: random.Random, server: Server | None = None
    ) -> None:
        self._record, self._folder, self._rng, self._server = record, folder, rng, server
        self._command = serve_url_command(url)
        self._started = count(1)
        self._brokers: list[Child] = []
        self._victims: Counter[str] = Counter()
        self._writing: list[bool] = []

    def run(self, kills: int, tell: Callable[[], None]) -> Struck:
        began = time.monotonic()
        start_kills = 0
        with kept_when_wrong(self._folder, self._record.run, besides=("data", ".s.*")) as checked:
            try:
                for _ in range(kills):
                    if self._rng.random() < START_KILLS:
                        kill_while_starting(self._start(), self._rng)
                        start_kills += 1
                    self._be(self._rng.choice((1, 2)))
                    self._live()
                    tell()
                self._be(1)
                log, depths = drain(self._record, self._brokers[0])
                self._be(0)
            finally:
                for child in self._brokers:
                    child.kill()
            verdict = checked(judge(self._record, read_log(log), depths))
        return Struck(
            faults=kills,
            open_commits=sum(
                wrote or life in verdict.unanswered_lives for life, wrote in enumerate(self._writing, 1)
            ),
            start_kills=start_kills,
            victims=dict(self._victims),
            server="" if self._server is None else self._server.version(),
            verdict=verdict,
            seconds=time.monotonic() - began,
        )

    def _start(self) -> Child:
        return Child(self._command, self._folder / f"broker-{next(self._started)}.log")

    def _be(self, brokers: int) -> None:
        while len(self._brokers) > brokers:
            child = self._brokers.pop(self._rng.randrange(len(self._brokers)))
            if status := child.stop():
                self._record.strange.append(f"a broker ended with status {status}: {child.said[-300:]}")
        while len(self._brokers) < brokers:
            self._brokers.append(self._start())

    def _live(self) -> None:
        victim = self._rng.choice(self._brokers)
        alone = ONLY if len(self._brokers) == 1 else ONE
        what = alone if self._server is None else self._rng.choice((alone, SERVER, BOTH))
        self._victims[what] += 1

        def strike() -> None:
            server = self._server if what in (SERVER, BOTH) else None
            pids = [victim.process.pid] if server is None else server.processes()
            self._writing.append(any(map(is_writing, pids)))
            if what != SERVER:
                victim.process.kill()
            if server is not None:
                server.kill()
                server.start()

        seconds = self._rng.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        share(self._record, self._brokers, self._rng, seconds, strike)
        if what != SERVER:
            self._brokers.remove(victim)
            victim.kill()
        for child in self._brokers:
            if child.process.poll() is not None:
                self._record.strange.append(
                    f"a broker ended that nobody had struck ({what} was): {child.said[-300:]}"
                )
        self._brokers = [child for child in self._brokers if child.process.poll() is None]
