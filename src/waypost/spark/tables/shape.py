"""What a table is: columns, and how events or other tables become its rows.

    Folded     one row a thing, kept by merging: the fold of newer events onto the row of the older ones
    Counted    one row a closed minute, kept by adding minutes; never changed afterwards
    Computed   asked of kept tables whenever it is read

Functions here and in the tables' files are pure, from DataFrame to DataFrame, in expressions only: Spark runs them without
Python, on any number of machines, over a batch or over everything, with the same result. Aggregates have buffers of fixed width
(numbers, moments; never text), so that Spark keeps them in hash tables instead of sorting twice. Text comes in as a
grouping key, or is joined to the few rows that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ...delivery import LETTERS, State

#: messages of one partition: as many as this many offsets of the log begin
BUCKET = 1 << 16
#: beside the columns of its schema, where `logged` is not empty: whether the row's first event is among those folded
BEGUN = "_begun"


@dataclass(frozen=True)
class Folded:
    """A kept table whose rows change."""

    name: str
    #: as it is kept: what people read, then with `_` what only merging needs, then `bucket`, its partition
    schema: pa.Schema
    #: what a row is about
    key: tuple[str, ...]
    #: events to rows with all columns of `schema`. Of what began before these events, columns that only its beginning says are null.
    fold: Callable[[DataFrame], DataFrame]
    #: how the rows of later events (s) change those there are (t): column = SQL, that delta-rs understands. Others stay.
    update: Mapping[str, str]
    #: SQL, true of the row of a thing that is no more: it is kept, and not shown
    gone: str | None = None
    #: columns that a message's L says. A row can begin long after it: then they are null, and BEGUN is true.
    logged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counted:
    """A kept table of minutes."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    #: events of whole minutes to rows; with what was there before them, where that counts: (destination_code, depth)
    fold: Callable[[DataFrame, DataFrame | None], DataFrame]
    #: whether `fold` needs the depths before
    carries: bool = False


@dataclass(frozen=True)
class Computed:
    """A table that is not kept."""

    name: str
    schema: pa.Schema
    #: kept tables it is asked of, in the order of the function's arguments
    sources: tuple[str, ...]
    compute: Callable[..., DataFrame] = field(repr=False)


Table = Folded | Counted | Computed

# --- expressions that tables share -------------------------------------------------------------------------------


def enters(*states: State) -> Column:
    return F.col("to_code").isin(*map(int, states))


def leaves(*states: State) -> Column:
    """False on L, which comes from nowhere."""
    return F.coalesce(F.col("from_code").isin(*map(int, states)), F.lit(False))


def count(condition: Column) -> Column:
    return F.sum(condition.cast("int"))


def when(condition: Column, value: str) -> Column:
    return F.when(condition, F.col(value))


def letter(number: Column) -> Column:
    """The state's letter."""
    return F.substring(F.lit(LETTERS), number + 1, F.lit(1))


def last_state() -> Column:
    """An aggregate: the last offset and, in its lowest five bits, the state it led to."""
    return F.max(F.col("offset") * 32 + F.col("to_code"))


def bucket() -> Column:
    return F.expr(f"sequence div {BUCKET}").alias("bucket")


def logged(events: DataFrame, *columns: str | Column) -> DataFrame:
    """What the L events among these say."""
    return events.where(F.col("from_code").isNull()).select("sequence", *columns)


def consumers(events: DataFrame) -> DataFrame:
    """(consumer_code, consumer): few, however many events there are."""
    named = events.where(F.col("consumer_code").isNotNull()).select("consumer_code", "consumer").distinct()
    return F.broadcast(named)


def last_consumer() -> Column:
    """An aggregate: the number of the last one named."""
    return F.max_by("consumer_code", when(F.col("consumer_code").isNotNull(), "offset"))


def last_reasons(events: DataFrame, *key: str) -> DataFrame:
    """(key, reason_offset, reason): the last one given for each key. Few events have a reason, so these may be sorted."""
    latest = Window.partitionBy(*key).orderBy(F.col("offset").desc())
    given = events.where(F.col("reason").isNotNull()).withColumn("_rank", F.row_number().over(latest))
    return given.where("_rank = 1").select(*key, F.col("offset").alias("reason_offset"), "reason")


def minute() -> Column:
    return F.date_trunc("minute", "at").alias("minute")


PERCENTILES = (50, 95, 99)


def percentile_names(prefix: str) -> list[str]:
    return [f"{prefix}_p{share}_ms" for share in PERCENTILES]


def percentiles(condition: Column, prefix: str) -> list[Column]:
    """Aggregates over duration_ms where it holds; exact, so that they do not depend on how rows were spread."""
    taken = (F.percentile(when(condition, "duration_ms"), F.lit(share / 100)) for share in PERCENTILES)
    return [
        F.round(value).cast("bigint").alias(name)
        for value, name in zip(taken, percentile_names(prefix), strict=True)
    ]


def added(column: str) -> str:
    """SQL: both together; null only while neither is known."""
    return f"coalesce(t.{column} + s.{column}, t.{column}, s.{column})"


def first(column: str) -> str:
    """SQL: the one there was."""
    return f"coalesce(t.{column}, s.{column})"


def newest(column: str) -> str:
    """SQL: the one of the later events, if they have one."""
    return f"coalesce(s.{column}, t.{column})"
