"""Folds over a lake's events: ours, the one a person would write first, and DuckDB's; and the continuous fold as tables grow."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.lake_events import events as made_events
from waypost.lake import delta

#: text that a message's L event says
LOGGED = ("message_id", "topics", "object", "key", "mime_type", "producer", "hash")

InTurns = Callable[[dict[str, Callable[[], Any]], int], dict[str, list[float]]]


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def sorted_fold(events: Any, whole: bool, key: str = "message_id") -> Any:
    """`messages` with max_by, min_by for whatever is text: what one writes first, and Spark sorts twice. `whole`: with what L says."""
    from pyspark.sql import functions as F

    offset = F.col("offset")
    logged = F.when(F.col("from_code").isNull(), offset)
    return events.where("channel is null").groupBy(key).agg(
        *(F.max_by(name, logged).alias(name) for name in LOGGED if whole and name != key),
        F.max_by("to_state", offset).alias("state"),
        F.max_by("same_as", F.when(F.col("same_as").isNotNull(), offset)).alias("same_as"),
        F.max_by("consumer", F.when(F.col("consumer").isNotNull(), offset)).alias("consumer"),
        F.max_by("reason", F.when(F.col("reason").isNotNull(), offset)).alias("reason"),
        F.min("at").alias("at"),
        F.max("at").alias("changed_at"),
        F.max("attempt").alias("attempt"),
        F.sum(F.when(F.col("from_code") == 3, F.col("duration_ms"))).alias("wait_ms"),
        F.sum(F.when(F.expr("from_code = 4 and to_code in (5, 9, 10)"), F.col("duration_ms"))).alias("processing_ms"),
        F.min(F.when(F.col("to_code") == 4, F.col("at"))).alias("first_fetched_at"),
        F.max(F.when(F.col("to_code") == 5, F.col("at"))).alias("confirmed_at"),
        F.max(F.when(F.col("to_code") == 14, F.col("at"))).alias("completed_at"),
        F.max("offset").alias("last_offset"),
    )  # fmt: skip


def duckdb_sql(files: list[str]) -> str:
    """The same in DuckDB."""
    logged = ", ".join(f'arg_max({name}, "offset") filter (from_code is null) as {name}' for name in LOGGED)
    return f"""
        select sequence, {logged},
            arg_max(to_state, "offset") as state,
            arg_max(same_as, "offset") filter (same_as is not null) as same_as,
            arg_max(consumer, "offset") filter (consumer is not null) as consumer,
            arg_max(reason, "offset") filter (reason is not null) as reason,
            min("at") as "at", max("at") as changed_at, max(attempt) as attempt,
            sum(duration_ms) filter (from_code = 3) as wait_ms,
            sum(duration_ms) filter (from_code = 4 and to_code in (5, 9, 10)) as processing_ms,
            min("at") filter (to_code = 4) as first_fetched_at, max("at") filter (to_code = 5) as confirmed_at,
            max("at") filter (to_code = 14) as completed_at, max("offset") as last_offset
        from read_parquet({files!r}) where channel is null group by sequence"""


def measure_folds(spark: Any, lake: Path, rounds: int, in_turns: InTurns) -> dict[str, Any]:
    import duckdb
    from deltalake import DeltaTable

    from waypost.spark.tables import COMPUTED, COUNTED, FOLDED, of_events

    files = DeltaTable(str(lake / "message_events")).file_uris()
    events = spark.read.parquet(*files)
    count = events.count()
    database = duckdb.connect()
    messages = FOLDED[0]
    folds = in_turns(
        {
            "packed": lambda: noop(messages.numbers(events)),
            "max_by": lambda: noop(sorted_fold(events, whole=False)),
            "max_by, by our key": lambda: noop(sorted_fold(events, whole=False, key="sequence")),
            "whole, packed": lambda: noop(messages.fold(events)),
            "whole, max_by": lambda: noop(sorted_fold(events, whole=True)),
            "whole, DuckDB": lambda: database.execute(
                f"create or replace temp table messages as {duckdb_sql(files)}"
            ),
        },
        rounds,
    )

    def times(over: str, under: str) -> float:
        return round(median(a / b for a, b in zip(folds[over], folds[under], strict=True)), 2)

    names = [table.name for table in (*FOLDED, *COUNTED, *COMPUTED)]
    tables = in_turns({name: lambda name=name: noop(of_events(name, events)) for name in names}, 2)  # type: ignore[misc]
    return {
        "events": count,
        "seconds": {name: round(median(values), 2) for name, values in folds.items()},
        "packed / DuckDB": times("whole, packed", "whole, DuckDB"),
        "max_by / packed": times("max_by", "packed"),
        "max_by, by our key / packed": times("max_by, by our key", "packed"),
        "whole, max_by / packed": times("whole, max_by", "whole, packed"),
        "tables": {name: round(median(values), 2) for name, values in tables.items()},
    }


# ── the continuous fold ──────────────────────────────────────────────────────────────────────────────

SLICE = 500_000
SMALL = 1_000_000
#: slices folded in turns into a small lake and a large one
TURNS = 5
BASE = 5_000_000


class FilesLog:
    """A log of made events, one Parquet file a slice, as long as anybody reads."""

    def __init__(self, spark: Any, folder: Path, last: int) -> None:
        self._spark, self._folder, self._last = spark, folder, last
        from pyspark.sql.pandas.types import from_arrow_schema

        folder.mkdir(parents=True)
        self._base = made_events(BASE)
        self._schema = from_arrow_schema(self._base.schema)

    def bounds(self) -> tuple[int, int]:
        return 1, self._last

    @contextmanager
    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        assert (lo % SLICE, hi - lo, columns) == (1, SLICE - 1, None)
        yield self._spark.read.schema(self._schema).parquet(str(self._file(lo)))

    def rows(self, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
        firsts = range((lo - 1) // SLICE * SLICE + 1, hi + 1, SLICE)
        parts = [pq.read_table(self._file(first), columns=list(columns)) for first in firsts]
        return pa.concat_tables(parts).slice(lo - firsts[0], hi - lo + 1)

    def _file(self, first: int) -> Path:
        return self._folder / f"{first}.parquet"

    def make(self, lo: int) -> None:
        """The base again and again, each time with further offsets."""
        shift = (lo - 1) // BASE * BASE
        part = self._base.slice((lo - 1) % BASE, SLICE)
        for name in ("offset", "sequence"):
            moved = pc.add(part[name], shift)
            part = part.set_column(part.column_names.index(name), name, moved)
        with delta.parquet_writer(self._file(lo), part.schema) as writer:
            writer.write_table(part, row_group_size=delta.GROUP_ROWS)

    def at(self, offset: int) -> datetime:
        raise NotImplementedError("only tables of minutes ask for it")

    def offset_at(self, moment: datetime) -> int:
        raise NotImplementedError("only tables of minutes ask for it")


def measure_growth(spark: Any, folder: Path, growth: int) -> dict[str, Any]:
    """`messages` and `deliveries` by the pipeline's own code, in slices, up to `growth` events; then slices in turns into a lake of
    1 M events and into the large one."""
    from waypost.lake.owner import Lake
    from waypost.spark.pipeline.keeping import Keeper, kept_in, prepare

    log = FilesLog(spark, folder / "events", growth + (TURNS + 1) * SLICE)
    large, small = Lake(folder / "large"), Lake(folder / "small")

    def keeper_of(lake: Lake) -> Keeper:
        kept = kept_in(lake, ["messages", "deliveries"])
        prepare(kept)
        return Keeper(spark, log, kept, slice=SLICE)

    def fold(keeper: Keeper, upto: int) -> float:
        log.make(upto - SLICE + 1)
        began = time.perf_counter()
        keeper.keep(upto)
        return time.perf_counter() - began

    growing = keeper_of(large)
    for upto in range(SLICE, growth + 1, SLICE):
        fold(growing, upto)
        if upto == SMALL:
            shutil.copytree(large.folder, small.folder)
    little = keeper_of(small)
    seconds: dict[str, list[float]] = {"small": [], "large": []}
    for turn in range(TURNS + 1):
        one = fold(little, SMALL + (turn + 1) * SLICE)
        other = fold(growing, growth + (turn + 1) * SLICE)
        if turn:
            seconds["small"].append(one)
            seconds["large"].append(other)
    growing.close()
    little.close()
    pairs = zip(seconds["large"], seconds["small"], strict=True)
    return {
        "events/s": round(SLICE / median(seconds["small"])),
        "to": growth,
        "grown": round(median(b / a for b, a in pairs), 2),
        "seconds": {
            f"{SMALL:,}": round(median(seconds["small"]), 2),
            f"{growth:,}": round(median(seconds["large"]), 2),
        },
    }
