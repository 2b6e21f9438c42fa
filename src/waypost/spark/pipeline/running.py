"""The job: one streaming query, whose batches say how far the log goes; or once, up to where it goes now.

The query's stream is not the events themselves but their ranges, a row a batch (`table` ranges of the source): what is
sealed is then read as Parquet by Spark itself, and each table reads just what it lacks. Admission control bounds a batch; the
spectator `pipeline` shows in Waypost how far the job is. For once no query is needed: all is sealed first, and Spark starts no
Python of its own.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from pyspark_waypost.broker import Broker

from ...lake.delta import Reached, nothing
from ...lake.owner import PIPELINE, Lake, writing
from .failures import PipelineStuck
from .keeping import SLICE, Batch, Figures, Keeper, kept_in, prepare
from .log import BrokersLog, plainly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: how often new events are looked for
TRIGGER_SECONDS = 30.0
#: how soon a stop is noticed
_LOOK_SECONDS = 0.2

#: an error of the source, as it comes through Spark
_SAID = re.compile(r"pyspark_waypost\.errors\.\w+: ([^\n]+)")

Tell = Callable[[Batch, Figures], None]


def quiet(batch: Batch, figures: Figures) -> None:
    """Of `tell`, where nobody listens."""


def folder_of(lake: Lake) -> Path:
    """What the pipeline has beside its tables."""
    return lake.folder / "_pipeline"


def once(
    spark: SparkSession,
    url: str,
    lake: Lake,
    *,
    tell: Tell = quiet,
    say: Callable[[str], None] = lambda line: None,
    slice: int = SLICE,
    reached: Reached = nothing,
) -> Figures:
    """Everything there is when it is called; then it ends."""
    broker = Broker(url)
    with _job(spark, url, lake, tell, say, slice, reached) as job:
        plainly(broker.seal)
        head = plainly(broker.bounds).head
        job.keep(head)
        plainly(lambda: broker.move_spectator(PIPELINE, head))
    return job.figures


def run(
    spark: SparkSession,
    url: str,
    lake: Lake,
    stopped: threading.Event,
    *,
    trigger_seconds: float = TRIGGER_SECONDS,
    tell: Tell = quiet,
    say: Callable[[str], None] = lambda line: None,
    slice: int = SLICE,
    reached: Reached = nothing,
) -> Figures:
    """Until `stopped` is set."""
    with _job(spark, url, lake, tell, say, slice, reached) as job:
        query = job.start(processingTime=f"{trigger_seconds} seconds")
        job.wait(query, stopped)
    return job.figures


@contextmanager
def _job(
    spark: SparkSession,
    url: str,
    lake: Lake,
    tell: Tell,
    say: Callable[[str], None],
    slice: int,
    reached: Reached,
) -> Iterator[_Job]:
    with writing(lake, PIPELINE):
        kept = kept_in(lake)
        for line in prepare(kept):
            say(line)
        keeper = Keeper(spark, BrokersLog(spark, url, lake), kept, reached, slice)
        try:
            yield _Job(spark, url, lake, keeper, tell, slice)
        finally:
            keeper.close()


class _Job:
    def __init__(
        self, spark: SparkSession, url: str, lake: Lake, keeper: Keeper, tell: Tell, slice: int
    ) -> None:
        self._spark, self._url, self._keeper, self._tell, self._slice = spark, url, keeper, tell, slice
        self._checkpoint = folder_of(lake) / "checkpoint"
        self._failure: BaseException | None = None
        self.figures = Figures()

    def start(self, **trigger: Any) -> StreamingQuery:
        # The tables know how far they are. What Spark last wrote here it has not synced, so a power cut may have torn it.
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        ranges = (
            self._spark.readStream.format("waypost")
            .option("url", self._url)
            .option("table", "ranges")
            .option("from", self._keeper.start)
            .option("maxEventsPerTrigger", self._slice)
            .option("spectator", PIPELINE)
            .load()
        )
        return (
            ranges.writeStream.foreachBatch(self._each)
            .queryName("waypost pipeline")
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )

    def _each(self, ranges: DataFrame, number: int) -> None:
        try:
            for row in ranges.collect():
                self.keep(row["until"])
        except BaseException as failure:
            self._failure = failure  # Spark would only hand on its text, in the midst of its own
            raise

    def keep(self, upto: int) -> None:
        self._keeper.keep(upto, self._told)

    def _told(self, batch: Batch) -> None:
        self.figures.add(batch)
        self._tell(batch, self.figures)

    def wait(self, query: StreamingQuery, stopped: threading.Event) -> None:
        try:
            while query.isActive and not stopped.wait(_LOOK_SECONDS):
                pass
            if not query.isActive:
                query.awaitTermination()  # says why it ended, if there was a reason
        except StreamingQueryException as error:
            raise self._failure or _plain(error) from None
        finally:
            query.stop()


def _plain(error: StreamingQueryException) -> Exception:
    """What the source said, out of the midst of Spark's own words."""
    said = _SAID.search(str(error))
    return error if said is None else PipelineStuck(said[1])
