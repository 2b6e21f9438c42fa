"""The job: rounds of read, decide and hand back; and the streaming query that wakes them.

A round takes the first 10,000 messages that wait, or 32 MiB of them. The query's stream is the log's ranges, a row a batch: it says
that something happened, and as spectator `routing` it shows in Waypost how far the job is. Decisions are events too, so while
there is something to decide the next batch follows at once. What begins to wait without an event, because a policy changed, is
looked for every few seconds.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from pyspark_waypost.errors import SourceError

from ..failures import SparkFailed, in_one_line, reason_of
from .asking import Desk
from .deciding import DECISIONS, decider
from .failures import RoutingStuck
from .packing import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPECTATOR = "routing"
#: messages of a round
ROUND = 10_000
#: fewer in a task cost more to hand out than to decide
FEWEST_A_TASK = 50
#: how often the log is looked at
TRIGGER_SECONDS = 0.2
#: how long the function may take for a message
ROUTE_SECONDS = 5.0
#: how long a batch of the query goes on when ever more waits, so that the spectator moves
BATCH_SECONDS = 2.0
#: how often it is looked whether something waits without an event
IDLE_SECONDS = 5.0
#: how soon a stop is noticed
_LOOK_SECONDS = 0.2
#: keeps the rows of a round as Arrow on their way to the tasks, a batch a task
ARROW_BATCHES = {"spark.sql.execution.arrow.localRelationThreshold": "0"}

_SAID = re.compile(r"pyspark_waypost\.errors\.\w+: ([^\n]+)")
T = TypeVar("T")


@dataclass
class Round:
    """What one round came to."""

    decided: int = 0
    unchanged: int = 0
    #: decided by somebody else meanwhile
    late: int = 0
    #: dead letters: the function raised, hung, or answered nonsense
    failed: int = 0
    seconds: float = 0.0


@dataclass
class Figures(Round):
    """Of all rounds."""

    rounds: int = 0

    def add(self, one: Round) -> None:
        self.rounds += 1
        self.decided += one.decided
        self.unchanged += one.unchanged
        self.late += one.late
        self.failed += one.failed
        self.seconds += one.seconds

    @property
    def rate(self) -> float:
        return self.decided / self.seconds if self.seconds else 0.0


Tell = Callable[[Round, Figures], None]


def quiet(one: Round, figures: Figures) -> None:
    """Of `tell`, where nobody listens."""


def once(
    spark: SparkSession,
    url: str,
    router: str | None = None,
    *,
    route_seconds: float = ROUTE_SECONDS,
    stopped: threading.Event | None = None,
    tell: Tell = quiet,
) -> Figures:
    """Everything that waits, until nothing does."""
    job = _Job(spark, url, router, route_seconds, stopped or threading.Event(), tell)
    head = plainly(job.desk.bounds).head
    job.drain()
    plainly(lambda: job.desk.move_spectator(SPECTATOR, head))
    return job.figures


def run(
    spark: SparkSession,
    url: str,
    stopped: threading.Event,
    router: str | None = None,
    *,
    route_seconds: float = ROUTE_SECONDS,
    trigger_seconds: float = TRIGGER_SECONDS,
    tell: Tell = quiet,
) -> Figures:
    """Until `stopped` is set."""
    job = _Job(spark, url, router, route_seconds, stopped, tell)
    head = plainly(job.desk.bounds).head
    plainly(lambda: job.desk.move_spectator(SPECTATOR, head))  # seen before the query begins
    job.drain(BATCH_SECONDS)
    job.follow(head + 1, trigger_seconds)
    return job.figures


class _Job:
    def __init__(
        self,
        spark: SparkSession,
        url: str,
        router: str | None,
        route_seconds: float,
        stopped: threading.Event,
        tell: Tell,
    ) -> None:
        pack(spark, router)
        self.desk = Desk(url)
        self._spark, self._router, self._route_seconds = spark, router, route_seconds
        self._stopped, self._tell = stopped, tell
        self._tasks = spark.sparkContext.defaultParallelism
        #: one round at a time, whoever begins it
        self._deciding = threading.Lock()
        self._looked_at = 0.0
        self._failure: BaseException | None = None
        self.figures = Figures()

    # ── a round ─────────────────────────────────────────────────────────────────────────────

    def drain(self, seconds: float = float("inf")) -> None:
        """Until nothing waits, or for so long."""
        give_up_at = time.monotonic() + seconds
        with self._deciding:
            while not self._stopped.is_set() and time.monotonic() < give_up_at:
                if not self._round():
                    break
            self._looked_at = time.monotonic()

    def _round(self) -> bool:
        """Whether something waited."""
        began = time.monotonic()
        waiting = plainly(lambda: self.desk.undecided(ROUND))
        if not waiting.num_rows:
            return False
        lines = self._decide(waiting)
        one = self._hand_back(lines)
        one.seconds = time.monotonic() - began
        self.figures.add(one)
        self._tell(one, self.figures)
        return True

    def _decide(self, waiting: pa.Table) -> list[str]:
        """In the order of sequence."""
        consumers = plainly(self.desk.registered) if self._router is not None else []
        function = decider(self._router, consumers, self._route_seconds)
        with in_one_line():
            rows = self._spark.createDataFrame(in_parts(waiting, self._tasks))
            made = rows.mapInArrow(function, DECISIONS).toArrow().sort_by("sequence")
        if made["sequence"].to_pylist() != waiting["sequence"].to_pylist():
            raise RoutingStuck(f"{waiting.num_rows} messages gave {made.num_rows} decisions")
        lines: list[str] = made["line"].to_pylist()
        return lines

    def _hand_back(self, lines: list[str]) -> Round:
        results = plainly(lambda: self.desk.decide(lines))
        refused = [result for result in results if "error" in result]
        if refused:
            # The broker would not have it: a dead letter then, never a message that stays in L for ever.
            failures = [
                json.dumps({"id": result["id"], "failure": f"not routed: {result['error']['detail']}"})
                for result in refused
            ]
            again = plainly(lambda: self.desk.decide(failures))
            if len(refused) == len(lines) and all("error" in result for result in again):
                raise RoutingStuck(f"the broker takes no decision: {again[0]['error']['detail']}")
        return Round(
            decided=sum(result.get("applied", False) for result in results),
            unchanged=sum(result.get("state") == "U" for result in results if result.get("applied")),
            late=sum(not result["applied"] for result in results if "applied" in result),
            failed=len(refused)
            + sum(result.get("state") == "E" for result in results if result.get("applied")),
        )

    # ── the query ───────────────────────────────────────────────────────────────────────────

    def follow(self, start: int, trigger_seconds: float) -> None:
        # Nothing is lost with it: what waits is asked of the broker.
        checkpoint = tempfile.mkdtemp(prefix="waypost-routing-")
        try:
            query = (
                self._ranges(start)
                .writeStream.foreachBatch(self._each)
                .queryName("waypost routing")
                .option("checkpointLocation", checkpoint)
                .trigger(processingTime=f"{trigger_seconds} seconds")
                .start()
            )
            self._wait(query)
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _ranges(self, start: int) -> DataFrame:
        options: dict[str, Any] = {
            "url": self.desk.url,
            "table": "ranges",
            "from": start,
            "spectator": SPECTATOR,
        }
        with in_one_line():
            return self._spark.readStream.format("waypost").options(**options).load()

    def _each(self, ranges: DataFrame, number: int) -> None:
        try:
            self.drain(BATCH_SECONDS)
        except BaseException as failure:
            self._failure = failure  # Spark would only hand on its text, in the midst of its own
            raise

    def _wait(self, query: Any) -> None:
        try:
            while query.isActive and not self._stopped.wait(_LOOK_SECONDS):
                if time.monotonic() > self._looked_at + IDLE_SECONDS:
                    self.drain(BATCH_SECONDS)
            if not query.isActive and not self._stopped.is_set():
                query.awaitTermination()  # says why it ended, if there was a reason
        except StreamingQueryException as error:
            raise self._failure or _plain(error) from None
        finally:
            with self._deciding:  # what is under way is handed back first
                pass
            query.stop()


def in_parts(waiting: pa.Table, tasks: int) -> pa.Table:
    """The same rows in as many batches as there are tasks for them: disjoint ranges."""
    rows = waiting.num_rows
    parts = max(1, min(tasks, rows // FEWEST_A_TASK))
    whole = waiting.combine_chunks()
    edges = [rows * part // parts for part in range(parts + 1)]
    slices = [whole.slice(lo, hi - lo) for lo, hi in pairwise(edges)]
    return pa.concat_tables(slices)


def plainly(ask: Callable[[], T]) -> T:
    """What the broker refuses, as one of our errors."""
    try:
        return ask()
    except SourceError as error:
        raise RoutingStuck(str(error)) from error


def _plain(error: StreamingQueryException) -> Exception:
    """What the source said, out of the midst of Spark's own words."""
    said = _SAID.search(str(error))
    return SparkFailed(reason_of(str(error))) if said is None else RoutingStuck(said[1])
