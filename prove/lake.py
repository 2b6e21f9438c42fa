"""The pipeline under kill -9: alone, with the sealer, with the broker; and once without its checkpoint. On SQLite, and on PostgreSQL beside a
second broker, which then goes on sealing where the first one was struck.

    broker ─▶ load ─▶ pipeline run ─▶ kill it (and the sealer, or the broker) ─▶ again … ─▶ once ─▶ compare

A kill comes a random moment after the pipeline's tables have moved on, so that it hits one that works. Meanwhile strangers
read the lake (`watching`). In the end nothing may differ: the lake's events from the broker's own log, the kept tables from a
fold over everything, and from what the broker itself says of each message.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from scripts.postgres_server import Server, programs

from .child import ROOT, Child, serve_url_command
from .kills import read_log
from .load import THINK_SECONDS, drain, live
from .outcome import Outcome, total
from .record import Record
from .verdict import judge

#: few: Spark needs the cores
CLIENTS = 2
#: Spark's start, and a first batch, on a busy machine
PATIENCE_SECONDS = 240.0
#: after the tables have moved on
LONGEST_WAIT_SECONDS = 4.0
#: kills of the pipeline for each of the broker
KILLS_A_LIFE = 3
KEPT = ("messages", "deliveries", "receipts", "queue_minutes", "consumer_minutes")


class Piped(Outcome):
    """What a round of kills came to."""

    kills: int
    #: of those, together with the broker; with its sealer
    with_broker: int
    with_sealer: int
    acknowledged: int
    lost: int
    events: int
    #: rows of the lake's events that the broker's log does not have just so, or the other way round
    wrong_events: int
    #: kept tables: rows, and those that differ from a fold over everything or from what the broker says
    rows: dict[str, int]
    wrong_rows: dict[str, int]
    #: of strangers
    reads: int
    read_errors: list[str]

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.wrong_events or any(self.wrong_rows.values()) or self.read_errors)

    @classmethod
    def figures(cls, rounds: Sequence[Piped]) -> str:
        wrong = total(rounds, "wrong_events") + sum(sum(one.wrong_rows.values()) for one in rounds)
        return f"{total(rounds, 'events'):,} events, {wrong:,} rows wrong"

    @classmethod
    def lines(cls, rounds: Sequence[Piped]) -> list[str]:
        rows = sum(sum(one.rows.values()) for one in rounds)
        wrong = sum(sum(one.wrong_rows.values()) for one in rounds)
        return [
            "| the pipeline | |",
            "|---|---:|",
            f"| `kill -9` of it under load | {total(rounds, 'kills')} |",
            f"| … with the broker and its sealer, with the sealer alone | {total(rounds, 'with_broker')}, {total(rounds, 'with_sealer')} |",
            f"| its checkpoint deleted | {len(rounds)} |",
            f"| messages acknowledged, lost | {total(rounds, 'acknowledged'):,}, **{total(rounds, 'lost')}** |",
            f"| events in the lake, of them not as in the broker's log | {total(rounds, 'events'):,}, **{total(rounds, 'wrong_events')}** |",
            f"| rows of the kept tables, of them not as a fold over everything or the broker says | {rows:,}, **{wrong}** |",
            f"| reads by Polars and delta-rs meanwhile, with an error or a wrong row | {total(rounds, 'reads'):,}, "
            f"**{sum(len(one.read_errors) for one in rounds)}** |",
        ]


class NoProgress(Exception):
    """The pipeline's tables do not move on."""


class Pipeline:
    """One life of `waypost pipeline run`, in a process group of its own."""

    def __init__(self, url: str, log: IO[bytes]) -> None:
        command = [sys.executable, "-m", "waypost", "pipeline", "run", "--url", url, "--trigger", "1"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WAYPOST_")}
    return {**env, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def folded(lake: Path) -> int:
    """The last offset that the slowest of the kept tables has."""
    from waypost.lake.delta import version_of

    return min(version_of(lake / name, "pipeline") or 0 for name in ("messages", "deliveries", "receipts"))


def sealer_of(broker: int) -> int | None:
    """The process that the broker has begotten, in whichever of its threads."""
    lists = [path.read_text() for path in Path(f"/proc/{broker}/task").glob("*/children")]
    return next((int(child) for children in lists for child in children.split()), None)


def ask(url: str, method: str = "GET", accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, method=method, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def keep_sealing(url: str, stopped: threading.Event) -> None:
    """Far more often than a broker does by itself."""
    while not stopped.wait(1.5):
        with suppress(OSError):  # the broker is struck now and then
            ask(f"{url}/v1/lake/seal", "POST")


class Round:
    def __init__(self, folder: Path, seed: int, url: str | None, think_seconds: float) -> None:
        self.folder, self.lake = folder, folder / "lake"
        self._think_seconds = think_seconds
        url = url or f"sqlite:///{folder / 'waypost.db'}"
        self._command = [*serve_url_command(url), "--lake", str(self.lake)]
        self.rng = random.Random(seed)
        self.record = Record(f"pipeline{seed}")
        self.with_broker = self.with_sealer = 0

    def broker(self, name: str = "broker") -> Child:
        return Child(self._command, self.folder / f"{name}.log")

    def broker_life(self, kills: int, forget_checkpoint: bool, tell: Callable[[], None]) -> None:
        """Some kills of the pipeline, the last of them together with the broker."""
        child = self.broker()
        url = f"http://127.0.0.1:{child.port()}"
        loading = threading.Thread(
            target=live,
            args=(self.record, child, self.rng, 3_600.0, lambda: None),
            kwargs={"clients": CLIENTS, "think_seconds": self._think_seconds},
        )
        stopped = threading.Event()
        sealing = threading.Thread(target=keep_sealing, args=(url, stopped))
        loading.start()
        sealing.start()
        try:
            for number in range(kills):
                last = number == kills - 1
                self.pipeline_life(url, child, strike_broker=last, strike_sealer=number % 2 == 0)
                if forget_checkpoint and not number:
                    shutil.rmtree(self.lake / "_pipeline" / "checkpoint")
                tell()
        finally:
            child.kill()
            stopped.set()
            loading.join()
            sealing.join()

    def pipeline_life(self, url: str, child: Child, *, strike_broker: bool, strike_sealer: bool) -> None:
        before = folded(self.lake)
        with (self.folder / "pipeline.log").open("ab") as log:
            pipeline = Pipeline(url, log)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while folded(self.lake) <= before:
                if time.monotonic() > deadline or pipeline.process.poll() is not None:
                    raise NoProgress((self.folder / "pipeline.log").read_text()[-2_000:])
                time.sleep(0.05)
            time.sleep(self.rng.uniform(0, LONGEST_WAIT_SECONDS))
            sealer = sealer_of(child.process.pid) if strike_sealer and not strike_broker else None
        finally:
            pipeline.kill()
        if strike_broker:
            self.with_broker += 1
            child.kill()
        elif sealer is not None:
            self.with_sealer += 1
            os.kill(sealer, signal.SIGKILL)


def round_of_pipeline_kills(
    seed: int,
    kills: int,
    tell: Callable[[], None] = lambda: None,
    spark: Any = None,
    database: str | None = None,
    think_seconds: float = THINK_SECONDS,
) -> Piped:
    """`spark`: a session to compare with; else one is made and stopped. `database`: of a PostgreSQL, which two brokers share. `think_seconds`:
    between two requests of a client of the load."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-pipeline-", dir="/var/tmp") as name:
        round = Round(Path(name), seed, database, think_seconds)
        beside = [] if database is None else [round.broker("beside")]
        watcher = subprocess.Popen(
            [sys.executable, "-m", "prove.watching", str(round.lake)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
        )
        try:
            done = 0
            while done < kills:
                share = min(KILLS_A_LIFE, kills - done)
                round.broker_life(share, forget_checkpoint=done == 0 and share > 1, tell=tell)
                done += share
            found = conclude(round, spark)
        finally:
            for child in beside:
                child.stop()
            watched = json.loads(watcher.communicate(b"\n")[0] or b'{"reads": 0, "errors": ["it died"]}')
    return Piped(
        kills=kills,
        with_broker=round.with_broker,
        with_sealer=round.with_sealer,
        reads=watched["reads"],
        read_errors=watched["errors"],
        seconds=time.monotonic() - began,
        **found,
    )


def round_of_pipeline_kills_on_postgres(
    seed: int, kills: int, tell: Callable[[], None] = lambda: None, spark: Any = None
) -> Piped:
    found = programs()
    assert found is not None, "PostgreSQL is not on this machine"
    server = Server(found)
    try:
        return round_of_pipeline_kills(seed, kills, tell, spark, server.url)
    finally:
        server.remove()


# ── what there is in the end ────────────────────────────────────────────────────────────────────


def conclude(round: Round, spark: Any) -> dict[str, Any]:
    child = round.broker()
    try:
        lines, depths = drain(round.record, child)
        url = f"http://127.0.0.1:{child.port()}"
        seal_all(url)
        fold_the_rest(url, round.lake, spark)
        verdict = judge(round.record, read_log(lines), depths)
        rows, wrong_rows = compare_tables(url, spark)
        return {
            "acknowledged": verdict.acknowledged,
            "lost": verdict.lost + verdict.again + verdict.forgotten,
            "events": verdict.events,
            "wrong_events": compare_events(lines, round.lake),
            "rows": rows,
            "wrong_rows": wrong_rows,
        }
    finally:
        child.stop()


def seal_all(url: str) -> None:
    """Also where another broker does it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(urllib.error.HTTPError):
            ask(f"{url}/v1/lake/seal", "POST")
        status = json.loads(ask(f"{url}/v1/lake"))
        if (status["sealed"] or 0) >= status["head"]:
            return
        if time.monotonic() > deadline:
            raise NoProgress(f"nothing seals: {status}")
        time.sleep(0.5)


def fold_the_rest(url: str, lake: Path, spark: Any) -> None:
    if spark is not None:
        from waypost.lake.owner import Lake
        from waypost.spark.pipeline import once

        once(spark, url, Lake(lake))
        return
    command = [sys.executable, "-m", "waypost", "pipeline", "once", "--url", url]
    subprocess.run(command, env=environment(), check=True, capture_output=True)


def compare_events(lines: bytes, lake: Path) -> int:
    """Rows that only one of them has: the log as the broker tells it, the lake as a stranger reads it."""
    import polars as pl

    from waypost.arrow import EVENTS

    def snake(name: str) -> str:
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)

    sealed = pl.scan_delta(str(lake / "message_events")).collect()
    schema = {name: sealed.schema[name] for name in EVENTS.names if not name.endswith("_code")}
    texts = {name: pl.String() if isinstance(kind, pl.Datetime) else kind for name, kind in schema.items()}
    camel = {
        "".join(part.title() if i else part for i, part in enumerate(name.split("_"))): name for name in texts
    }
    logged = pl.read_ndjson(lines, schema={json_name: texts[name] for json_name, name in camel.items()})
    logged = logged.rename({name: snake(name) for name in logged.columns}).with_columns(
        pl.col(name).str.to_datetime(time_unit="us", time_zone="UTC")
        for name, kind in schema.items()
        if isinstance(kind, pl.Datetime)
    )
    mine, theirs = (table.select(list(schema)).sort("offset") for table in (sealed, logged))
    if mine.height == theirs.height and mine.equals(theirs):
        return 0
    hashes = [set(table.hash_rows().to_list()) for table in (mine, theirs)]
    return max(1, len(hashes[0] ^ hashes[1]), abs(mine.height - theirs.height))


def compare_tables(url: str, spark: Any = None) -> tuple[dict[str, int], dict[str, int]]:
    """Rows of each kept table, and how many differ from a fold over everything, or from the broker's own rows."""
    import waypost.spark as waypost_spark

    session = spark or waypost_spark.session("prove")
    rows: dict[str, int] = {}
    wrong: dict[str, int] = {}
    try:
        for name in KEPT:
            kept = waypost_spark.table(session, name, url=url)
            shown = [column for column in kept.columns if not column.startswith("_") and column != "bucket"]
            head = json.loads(ask(f"{url}/v1/lake"))["head"]
            everything = waypost_spark.table(session, name, asOf=head, url=url).select(shown)
            rows[name] = kept.count()
            wrong[name] = _different(kept.select(shown), everything)
        for name in ("messages", "deliveries"):
            kept = waypost_spark.table(session, name, url=url)
            said = session.read.format("waypost").option("url", url).option("table", name).load()
            common = [column for column in said.columns if column in kept.columns]
            wrong[name] += _different(kept.select(common), said.select(common))
    finally:
        if spark is None:
            session.stop()
    return rows, wrong


def _different(one: Any, other: Any) -> int:
    """Rows that only one of them has; each is computed once."""
    import polars as pl

    mine, theirs = (pl.from_arrow(frame.toArrow()) for frame in (one, other))
    assert isinstance(mine, pl.DataFrame)
    assert isinstance(theirs, pl.DataFrame)
    key = [name for name in mine.columns if not mine.schema[name].is_nested()]
    mine, theirs = mine.sort(key), theirs.select(mine.columns).sort(key)
    if mine.equals(theirs):
        return 0
    counts = [Counter(map(repr, table.iter_rows())) for table in (mine, theirs)]
    return max(1, (counts[0] - counts[1]).total() + (counts[1] - counts[0]).total())
