"""Events and tables as DataFrames: the lake's files read natively, what is not sealed yet read from the broker.

    events   1 … sealed │ sealed + 1 … head         one snapshot: both ends are fixed when `events` is called
             Parquet      format("waypost")

Where: `url` names the broker, which says where its lake is; `lake` names the folder where it is found under another path.
With `lake` alone no broker is asked, and what is not sealed is not there. The list of a table's files comes from its Delta
log, so no file that is half written or already replaced is ever read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_waypost.broker import SHORT_PATIENCE_SECONDS, Broker
from pyspark_waypost.errors import SourceError
from pyspark_waypost.options import DEFAULT_URL

from .. import arrow
from ..errors import LakeUnusable, WaypostError
from ..lake import delta
from ..lake.delta import DataFile
from ..lake.owner import SEALER, Lake, check_owner, owner
from ..lake.reading import events as sealed_events
from .tables import TABLES, Counted, of_events, of_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: an offset, or an instant: a datetime with its zone, or text such as 2026-01-31T10:00:00Z
Position = int | str | datetime

#: events that are read by the driver itself, and handed to Spark with the question
SHORT_TAIL = 50_000

_MICROSECOND = timedelta(microseconds=1)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_GLOB = re.compile(r"([*?{}\[\]\\])")


class ReadingImpossible(WaypostError):
    """What was asked for is not there; the text says what is."""


def events(
    spark: SparkSession,
    url: str | None = None,
    lake: str | Path | None = None,
    from_: Position | None = None,
    until: Position | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Every event from `from_` to `until`, both included; what comes after this call is not in it."""
    schema = _narrowed(arrow.EVENTS, columns)
    place = find(url, lake)
    sealed = None if place.lake is None else Sealed.of(place.lake)
    lo, hi = _offsets(place, sealed, from_, until)
    parts = []
    if sealed is not None and lo <= min(sealed.upto, hi):
        parts.append(sealed.read(spark, schema, lo, min(sealed.upto, hi)))
        lo = sealed.upto + 1
    if place.broker is not None and lo <= hi:
        parts.append(_live(spark, place.broker, schema, lo, hi))
    if not parts:
        return spark.createDataFrame([], _spark_schema(schema))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def table(
    spark: SparkSession,
    name: str,
    asOf: Position | None = None,
    url: str | None = None,
    lake: str | Path | None = None,
) -> DataFrame:
    """A table by its name. With `asOf` as it was at that offset or instant, folded from the events up to it."""
    if name == "message_events":
        return events(spark, url, lake, until=asOf)
    if name == "payloads":
        return _payloads(spark, find(url, lake), asOf)
    if name not in TABLES:
        known = ", ".join(["message_events", "payloads", *TABLES])
        raise ReadingImpossible(f"no table {name!r}; there are: {known}")
    if asOf is None:
        place = find(url, lake)
        return of_kept(name, lambda kept: _kept(spark, place, kept))
    asked = _position(asOf, "asOf")
    past = events(spark, url, lake, until=asked)
    first = _first_offset(url, lake)
    if first > 1:  # of messages logged before, the beginning is gone, and a fold without it would be wrong
        past = past.where(F.col("sequence") >= first)
    if isinstance(asked, int) and isinstance(TABLES[name], Counted):
        return of_events(name, past, _moment(events(spark, url, lake, asked, asked, ["at"])))
    return of_events(name, past, asked if isinstance(asked, datetime) else None)


# --- where -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    #: None: only the lake is read
    broker: Broker | None
    #: of the broker, at this moment
    oldest: int
    head: int
    #: None: it has none, and all is read from the broker
    lake: Lake | None


def find(url: str | None, lake: str | Path | None) -> Place:
    if url is None and lake is not None:
        found = Lake(Path(lake))
        if owner(found) is None:
            raise LakeUnusable(f"{found.folder} is no lake: it has no lake.json")
        return Place(None, 1, 0, found)
    broker = Broker(DEFAULT_URL if url is None else url)
    try:
        said = broker.lake(SHORT_PATIENCE_SECONDS)
    except SourceError as error:
        raise ReadingImpossible(str(error)) from error
    folder = said["lake"] if lake is None else lake
    if folder is None or not said["sealed"]:  # nothing sealed: there may not be a table yet
        return Place(broker, said["oldest"], said["head"], None)
    found = Lake(Path(folder))
    if not found.folder.is_dir():
        raise ReadingImpossible(
            f"the lake of {broker.url} is {found.folder}, which is not on this machine: say with lake= where it is, "
            "or read everything over HTTP with format('waypost')"
        )
    check_owner(found, said["store"], said["sealed"])
    return Place(broker, said["oldest"], said["head"], found)


def _first_offset(url: str | None, lake: str | Path | None) -> int:
    place = find(url, lake)
    sealed = None if place.lake is None else Sealed.of(place.lake)
    return _offsets(place, sealed, None, None)[0]


def _offsets(
    place: Place, sealed: Sealed | None, from_: Position | None, until: Position | None
) -> tuple[int, int]:
    """The first and the last offset that are meant."""
    lo, hi = _position(from_, "from_"), _position(until, "until")
    if place.broker is None:
        assert sealed is not None
        offset_at, oldest, head = sealed.offset_at, sealed.oldest, sealed.upto
    else:
        offset_at, oldest, head = place.broker.offset_at, place.oldest, place.head
        if sealed is not None:  # a broker that is just opening its lake speaks of its store alone
            oldest = min(oldest, sealed.oldest)
    try:
        return (
            offset_at(lo) if isinstance(lo, datetime) else _at_least(lo, oldest, head),
            min(head, offset_at(_after(hi)) - 1) if isinstance(hi, datetime) else _at_most(hi, head),
        )
    except SourceError as error:
        raise ReadingImpossible(str(error)) from error


def _after(moment: datetime) -> datetime:
    return moment if moment >= _LAST_MOMENT else moment + _MICROSECOND


def _position(given: Position | None, name: str) -> int | datetime | None:
    if isinstance(given, str):
        try:
            given = int(given) if given.isascii() and given.isdigit() else datetime.fromisoformat(given)
        except ValueError:
            given = datetime.min
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ReadingImpossible(f"{name} is an offset or an instant with its zone: 2026-01-31T10:00:00Z")
        try:
            return given.astimezone(UTC)
        except OverflowError:
            raise ReadingImpossible(f"{name} is beyond all calendars: {given.isoformat()}") from None
    return given


def _at_least(offset: int | None, oldest: int, head: int) -> int:
    if offset is not None and max(1, offset) < oldest:
        raise ReadingImpossible(f"offset {offset} is not kept any more, the log begins at {oldest}")
    if offset is not None and offset > head + 1:
        raise ReadingImpossible(f"offset {offset} is beyond the head, which is {head}")
    return oldest if offset is None else max(1, offset)


def _at_most(offset: int | None, head: int) -> int:
    if offset is not None and offset > head:
        raise ReadingImpossible(f"offset {offset} is beyond the head, which is {head}")
    return head if offset is None else offset


# --- what lies in the lake ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sealed:
    """One version of `message_events`."""

    lake: Lake
    upto: int
    files: list[DataFile]

    @classmethod
    def of(cls, lake: Lake) -> Sealed:
        opened = delta.open_table(lake.events)
        upto = opened.transaction_version(SEALER) or 0
        return cls(lake, upto, delta.data_files(opened, lake.events))

    @property
    def oldest(self) -> int:
        return next((file.low for file in self.files if file.low is not None), self.upto + 1)

    def read(self, spark: SparkSession, schema: pa.Schema, lo: int, hi: int) -> DataFrame:
        files = delta.between(self.files, lo, hi)
        self._check_whole(files, lo, hi)
        inside = files[0].low == lo and files[-1].high == hi
        if inside or "offset" in schema.names:
            rows = _parquet(spark, self.lake.events, files, schema)
        else:
            rows = _parquet(spark, self.lake.events, files, schema.append(arrow.EVENTS.field("offset")))
        return rows if inside else rows.where(F.col("offset").between(lo, hi)).select(*schema.names)

    def _check_whole(self, files: Sequence[DataFile], lo: int, hi: int) -> None:
        """That the files have each offset once, by what the Delta log says of them."""
        wanted = files[0].low if files else None
        for file in files:
            if (
                file.low is None
                or file.high is None
                or file.low != wanted
                or file.rows != file.high - file.low + 1
            ):
                raise LakeUnusable(
                    f"{self.lake.events} is not whole at offset {wanted}; see: waypost lake verify"
                )
            wanted = file.high + 1
        if wanted is None or wanted <= hi or (files[0].low or 0) > lo:
            raise LakeUnusable(f"{self.lake.events} has not all of {lo} to {hi}; see: waypost lake verify")

    def offset_at(self, moment: datetime) -> int:
        """The first offset that is not before the moment; the one after the last when none is."""
        for file in self.files:
            if file.last_at is not None and file.last_at >= moment:
                for batch in sealed_events(self.lake, file.low or 0, file.high or 0, ["offset", "at"]):
                    later = batch.filter(pc.greater_equal(batch["at"], pa.scalar(moment, arrow.MOMENT)))
                    if later.num_rows:
                        return int(later["offset"][0].as_py())
        return self.upto + 1


def _kept(spark: SparkSession, place: Place, name: str) -> DataFrame:
    """A table that the pipeline keeps, with what its merges need."""
    lake = _lake_of(place)
    path = lake.table(name)
    if not delta.exists(path):
        raise ReadingImpossible(
            f"there is no table {name} in {lake.folder} yet: `waypost pipeline once` makes it; asOf= does without"
        )
    opened = delta.open_table(path)
    return _parquet(spark, path, delta.data_files(opened, path), delta.arrow_schema(opened))


def _payloads(spark: SparkSession, place: Place, asOf: Position | None) -> DataFrame:
    path = _lake_of(place).payloads
    opened = delta.open_table(path)
    rows = _parquet(spark, path, delta.data_files(opened, path, "sequence"), arrow.PAYLOADS)
    asked = _position(asOf, "asOf")
    if asked is None:
        return rows
    return rows.where(F.col("at" if isinstance(asked, datetime) else "sequence") <= F.lit(asked))


def _lake_of(place: Place) -> Lake:
    if place.lake is None:
        raise ReadingImpossible(
            "nothing is sealed: the broker has no lake, or `waypost lake seal` was never needed yet"
        )
    return place.lake


def _parquet(spark: SparkSession, folder: Path, files: Sequence[DataFile], schema: pa.Schema) -> DataFrame:
    """These files of a table. Partition columns are in the folders' names, which begin below `folder`."""
    if not files:
        return spark.createDataFrame([], _spark_schema(schema))
    paths = [_GLOB.sub(r"\\\1", str(file.path.absolute())) for file in files]
    reader = spark.read.schema(_spark_schema(schema)).option("basePath", str(folder.absolute()))
    return reader.parquet(*paths)


def _live(spark: SparkSession, broker: Broker, schema: pa.Schema, lo: int, hi: int) -> DataFrame:
    """A short tail is fetched here and now: a task for it, with its Python, takes longer than the reading."""
    if hi - lo < SHORT_TAIL:
        try:
            batches = list(broker.events(lo, hi, schema.names, {}))
        except SourceError as error:
            raise ReadingImpossible(str(error)) from error
        return spark.createDataFrame(pa.Table.from_batches(batches, schema), _spark_schema(schema))
    options = {"url": broker.url, "from": str(lo), "until": str(hi)}
    return spark.read.format("waypost").options(**options).schema(_spark_schema(schema)).load()


# --- columns -----------------------------------------------------------------------------------------------------


def _narrowed(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown or not columns:
        what = f"no column {unknown[0]!r}" if unknown else "no column named"
        raise ReadingImpossible(f"{what}; there are: {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def _spark_schema(schema: pa.Schema) -> StructType:
    made = from_arrow_schema(schema)
    assert isinstance(made, StructType)
    return made


def _moment(one: DataFrame) -> datetime | None:
    """When it happened."""
    row = one.first()
    # Spark gives the local time of this machine, without saying so.
    return None if row is None else row["at"].astimezone(UTC)
