"""What a table is: columns, and how events or other tables become its rows.

    Folded     one row a thing, kept by merging: the fold of newer events onto the row of the older ones
    Counted    one row a closed minute, kept by adding minutes; never changed afterwards
    Computed   asked of kept tables whenever it is read

Functions here and in the tables' files are pure, from DataFrame to DataFrame, in expressions only: Spark runs them without
Python, on any number of machines, over a slice or over everything, with the same result.

A fold has two halves. Its **numbers** are aggregates with buffers of fixed width (numbers, moments; never text), so that Spark
keeps them in hash tables instead of sorting twice; for each text they have the offset of the event that says it. Its **texts** are
then taken from those events: from everything by joins (`fold`), from a slice in memory by position (`told`), as offsets are dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ...delivery import LETTERS, State

#: messages of one partition: as many as this many offsets of the log begin
BUCKET = 1 << 16
#: beside the columns of its schema, where `logged` is not empty: whether the row's first event is among those folded
BEGUN = "_begun"


@dataclass(frozen=True)
class Text:
    """Columns that one event says of a row."""

    columns: tuple[str, ...]
    #: the column of the numbers that has its offset; null: there is none
    at: str
    #: events that can be it; of those of one row it is the last
    said: Callable[[], Column]
    #: whether a message has just one such event
    sole: bool = False


@dataclass(frozen=True)
class Name:
    """Columns that a small number stands for, in every event that has it."""

    code: str
    columns: tuple[str, ...]


CONSUMER = Name("consumer_code", ("consumer",))
#: a queue or channel
PLACE = Name("destination_code", ("queue", "channel"))


@dataclass(frozen=True)
class Folded:
    """A kept table whose rows change."""

    name: str
    #: as it is kept: what people read, then with `_` what only merging needs, then `bucket`, its partition
    schema: pa.Schema
    #: what a row is about
    key: tuple[str, ...]
    #: events to rows: all columns of `schema` but those of `texts`, for which there are offsets, and of `names`, for which there are codes
    numbers: Callable[[DataFrame], DataFrame]
    texts: tuple[Text, ...]
    names: tuple[Name, ...]
    #: how the rows of later events (s) change those there are (t): column = SQL, that delta-rs understands. Others stay.
    update: Mapping[str, str]
    #: SQL, true of the row of a thing that is no more: it is kept, and not shown
    gone: str | None = None
    #: columns that a message's L says, in tables whose rows can begin long after it; BEGUN is true of those that begin
    logged: tuple[str, ...] = ()

    def fold(self, events: DataFrame) -> DataFrame:
        """Rows from events that go back to the beginning of every message in them."""
        rows = self.numbers(events)
        for name in self.names:
            rows = rows.join(_named(events, name), name.code, "left")
        for text in self.texts:
            rows = _joined(rows, events, text, self.key)
        return rows.select(*self.schema.names)

    def told(self, numbers: pa.Table, slice: pa.Table, start: int) -> pa.Table:
        """The same from the numbers of a slice and its events, which begin with offset `start`. Of what began before it, columns
        that only its beginning says are null."""
        rows = numbers
        for name in self.names:
            found = _names_in(slice, name)
            places = pc.index_in(rows[name.code], value_set=found[name.code])
            for column in name.columns:
                rows = rows.append_column(column, found[column].take(places))
        for text in self.texts:
            places = pc.subtract(rows[text.at], start)
            places = pc.if_else(pc.greater_equal(places, 0), places, None)
            for column in text.columns:
                rows = rows.append_column(column, slice[column].take(places))
        return rows.select([*self.schema.names, *([BEGUN] if self.logged else [])])

    @property
    def words(self) -> list[str]:
        """The columns of events that `told` needs."""
        told = [column for text in self.texts for column in text.columns]
        return told + [column for name in self.names for column in (name.code, *name.columns)]


@dataclass(frozen=True)
class Counted:
    """A kept table of minutes."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    #: events of whole minutes to rows
    fold: Callable[[DataFrame], DataFrame]
    #: (of what, which column): a running number, to which that of the row before is added
    carried: tuple[str, str] | None = None


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


def _named(events: DataFrame, name: Name) -> DataFrame:
    """A row a code: few, however many events there are."""
    return F.broadcast(events.where(F.col(name.code).isNotNull()).select(name.code, *name.columns).distinct())


def last_consumer() -> Column:
    """An aggregate: the number of the last one named."""
    return F.max_by("consumer_code", when(F.col("consumer_code").isNotNull(), "offset"))


def logged() -> Column:
    """Of the message's first event."""
    return F.col("from_code").isNull()


def _joined(rows: DataFrame, events: DataFrame, text: Text, key: Sequence[str]) -> DataFrame:
    said = events.where(text.said())
    if text.sole:
        return rows.join(said.select("sequence", *text.columns), "sequence", "left")
    # Few events say such a thing, so they may be sorted.
    latest = Window.partitionBy(*key).orderBy(F.col("offset").desc())
    last = said.withColumn("_rank", F.row_number().over(latest)).where("_rank = 1")
    joined = rows.join(last.select(*key, F.col("offset").alias("_said_at"), *text.columns), list(key), "left")
    for name in text.columns:
        joined = joined.withColumn(name, F.when(F.col("_said_at") == F.col(text.at), F.col(name)))
    return joined.drop("_said_at")


def _names_in(slice: pa.Table, name: Name) -> pa.RecordBatch:
    """The same of a slice."""
    codes = slice[name.code].combine_chunks()
    known = pc.unique(codes.drop_null())
    firsts = pc.index_in(known, value_set=codes)
    columns = [slice[column].take(firsts).combine_chunks() for column in name.columns]
    return pa.record_batch([known, *columns], names=[name.code, *name.columns])


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
