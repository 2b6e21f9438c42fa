"""Delta tables as Waypost writes them. The only file that knows delta-rs.

    append, rewrite    rows ─▶ Parquet file ─▶ sync file, folder ─▶ commit ─▶ sync entry, log folder
                       └──────── before anyone can see it ──────┘             └─ before anyone is told ─┘
    merge, replace     delta-rs writes files and commits ─▶ sync files, folders, entry, log folder

delta-rs syncs nothing, so that is done here. Each of these commits bears a transaction, (app, version): the last offset whose
events are in the table. A sequential replay is not refused by Delta: whoever writes asks `version_of` first.
The transaction stands last in an entry and its app is named in the first line, so an entry cut short is known by its missing
end (`mending`). An entry that cannot be synced is taken back.

Tables have the protocol (1, 2), which every reader of Delta knows; any other is refused, since its files may not say all
(deletion vectors) or may name their columns otherwise (column mapping).
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from ..errors import LakeFull, LakeUnusable
from .mending import MARK, added_files, entry_path, log_folder
from .syncing import sync_file, sync_folder, sync_with_folders

#: what a table of ours asks of its readers and writers
PROTOCOL = (1, 2)
#: removed files stay this long for those who still read an older version
KEEP_REMOVED_HOURS = 1
#: entries between two checkpoints; each costs a reader one small file to open
CHECKPOINT_EVERY = 100
#: a row group ends when it has so many rows or so many bytes: what a reader of a short range must decode
GROUP_ROWS = 1 << 17
GROUP_BYTES = 32 << 20
#: files of this size are left alone by compaction
FILE_BYTES = 64 << 20

#: columns whose values rise with the rows: kept as differences
_RISING = ("offset", "sequence", "at", "timestamp", "sent")
#: columns whose values are seldom the same: no dictionary. With `_RISING`, a third less to write, in time and in bytes
_UNLIKE = ("message_id", "hash", "same_as", "meta", "traceparent")

_STATISTICS = "delta.dataSkippingStatsColumns"
#: our own checkpoints and clean-up: delta-rs' hooks sync nothing before they delete
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Batches = Iterable[pa.RecordBatch]
#: called between every two durable steps, with the step's name: where tests let a process die, and where one stops, by raising at
#: COMMITTING or TIDYING, that may not write any more
Reached = Callable[[str], None]
#: the next step is seen by all
COMMITTING = "committing"
#: files are about to go
TIDYING = "tidying"


def nothing(point: str) -> None:
    """Of `reached`, where nobody listens."""


# --- opening -----------------------------------------------------------------------------------------------------


def exists(path: Path) -> bool:
    return DeltaTable.is_deltatable(str(path))


def open_table(path: Path) -> DeltaTable:
    """The table's newest version. LakeUnusable if there is none or it is not of our protocol."""
    with plainly(path):
        table = DeltaTable(path)
        protocol = table.protocol()
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    if versions != PROTOCOL or features:
        named = f" with {', '.join(features)}" if features else ""
        raise LakeUnusable(
            f"{path} has the Delta protocol {versions}{named}; Waypost writes and reads {PROTOCOL} only: "
            "somebody else changed this table"
        )
    return table


def open_or_create(
    path: Path, schema: pa.Schema, *, statistics: Sequence[str], partition_by: Sequence[str] = ()
) -> DeltaTable:
    """The table, made and synced if there is none; columns that `schema` has and the table has not are added.

    `statistics`: columns by whose lowest and highest values files are found. In tables that `merge` writes no moments:
    delta-rs cuts their highest value to the millisecond below.
    """
    if not exists(path):
        with plainly(path):
            path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                path,
                schema,
                partition_by=list(partition_by),
                configuration={
                    _STATISTICS: ",".join(statistics),
                    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
                    "delta.deletedFileRetentionDuration": f"interval {KEEP_REMOVED_HOURS} hours",
                    "delta.logRetentionDuration": "interval 1 days",
                },
                post_commithook_properties=_NO_HOOKS,
            )
            _settle(path, -1, 0)
            sync_folder(path.parent)
        return open_table(path)
    table = open_to_write(path)
    missing = _missing(path, schema, arrow_schema(table))
    if missing:
        with plainly(path):
            before = table.version()
            table.alter.add_columns(
                list(Schema.from_arrow(pa.schema(missing)).fields), post_commithook_properties=_NO_HOOKS
            )
            _settle(path, before, table.version())
    return table


def open_to_write(path: Path) -> DeltaTable:
    """The same for who goes on to commit. What is found newest is synced first: should an earlier call have failed
    between its commit and its sync, nothing may be built on that."""
    table = open_table(path)
    with plainly(path):
        _sync_entry(path, entry_path(path, table.version()), with_files=True)
    return table


def arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def version_of(path: Path, app: str) -> int | None:
    """The last offset that `app` has put into the table; None before its first, and where there is no table."""
    return open_table(path).transaction_version(app) if exists(path) else None


def version_at(path: Path, version: int, app: str) -> int | None:
    """The same, as of an older version of the table."""
    if version < 0:
        return None
    with plainly(path):
        return DeltaTable(path, version=version).transaction_version(app)


def _missing(path: Path, wanted: pa.Schema, found: pa.Schema) -> list[pa.Field]:
    for field in wanted:
        if field.name in found.names and found.field(field.name).type != field.type:
            raise LakeUnusable(
                f"{path} has {field.name} as {found.field(field.name).type}, and {field.type} was meant: "
                "this is another table"
            )
    return [field for field in wanted if field.name not in found.names]


# --- our own commits ---------------------------------------------------------------------------------------------


def append(
    table: DeltaTable,
    path: Path,
    batches: Batches,
    *,
    app: str,
    version: int,
    label: str = "part",
    reached: Reached = nothing,
) -> int:
    """Rows as one file and one commit, durable when this returns; how many. No rows: the version moves all the same.

    `label` begins the file's name, for people who look into the folder.
    """
    with plainly(path):
        added = _write(table, path, batches, label=label, data_change=True, reached=reached)
        _commit(table, path, added, [], app=app, version=version, reached=reached)
    return sum(file.rows for file in added)


def rewrite(
    table: DeltaTable,
    path: Path,
    old: Sequence[DataFile],
    batches: Batches,
    *,
    app: str,
    data_change: bool,
    label: str = "part",
    reached: Reached = nothing,
) -> int:
    """One file with `batches` in the place of `old` files, in one commit; the number of its rows. No rows: they just go."""
    version = table.transaction_version(app)
    with plainly(path):
        added = _write(table, path, batches, label=label, data_change=data_change, reached=reached)
        now = _now_ms()
        removed = [RemoveAction(file.name, data_change, now, file.size, {}) for file in old]
        _commit(table, path, added, removed, app=app, version=version or 0, reached=reached)
    return sum(file.rows for file in added)


@dataclass(frozen=True, slots=True)
class _Added:
    action: AddAction
    rows: int


def _write(
    table: DeltaTable, path: Path, batches: Batches, *, label: str, data_change: bool, reached: Reached
) -> list[_Added]:
    """One synced file with all the rows, or none where there are none. Memory: one row group."""
    schema = arrow_schema(table)
    file = path / f"{label}-{uuid.uuid4().hex[:16]}.parquet"
    statistics = Statistics(table.metadata().configuration.get(_STATISTICS, "").split(","))
    try:
        with parquet_writer(file, schema) as writer:
            for group in _groups(batches, schema):
                statistics.add(group)
                writer.write_table(group, row_group_size=GROUP_ROWS)
        if not statistics.rows:
            file.unlink()
            return []
        reached("written")
        sync_file(file)
        sync_folder(path)
        reached("file synced")
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
    action = AddAction(file.name, file.stat().st_size, {}, _now_ms(), data_change, statistics.text())
    return [_Added(action, statistics.rows)]


def _commit(
    table: DeltaTable,
    path: Path,
    added: Sequence[_Added],
    removed: Sequence[RemoveAction],
    *,
    app: str,
    version: int,
    reached: Reached,
) -> None:
    before = table.version()
    try:
        reached(COMMITTING)
        table.create_write_transaction(
            [*removed, *(file.action for file in added)],
            "append",
            table.schema(),
            commit_properties=_properties(app, version),
            post_commithook_properties=_NO_HOOKS,
        )
    except BaseException:
        _remove_unnamed(path, added, entry_path(path, before + 1))
        raise
    reached("committed")
    table.update_incremental()  # the handle does not see its own commit by itself
    _settle(path, before, table.version(), files_are_synced=True)
    reached("entry synced")
    _checkpoint_if_due(table, path, before)


def _remove_unnamed(path: Path, added: Sequence[_Added], entry: Path) -> None:
    """Files of a commit that did not come about: on a full disk every attempt would leave some."""
    with suppress(OSError):
        said = entry.read_text() if entry.exists() else ""
        for file in added:
            if file.action.path not in said:
                (path / file.action.path).unlink()


def parquet_writer(file: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """As sealed tables are written."""
    searched = [field for field in schema if not pa.types.is_binary(field.type)]
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=[_leaf(field) for field in searched if field.name not in (*_RISING, *_UNLIKE)],
        column_encoding={field.name: "DELTA_BINARY_PACKED" for field in searched if field.name in _RISING},
        write_statistics=[_leaf(field) for field in searched],
        write_page_checksum=True,  # zstd alone lets many a flipped bit through
        store_schema=False,
    )


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def _groups(batches: Batches, schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches gathered until they fill a row group."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if gathered and (rows + batch.num_rows > GROUP_ROWS or size + batch.nbytes > GROUP_BYTES):
            yield pa.Table.from_batches(gathered, schema)
            gathered, rows, size = [], 0, 0
        if batch.num_rows:
            gathered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if gathered:
        yield pa.Table.from_batches(gathered, schema)


class Statistics:
    """A file's lowest and highest values, by which readers pass it over; whole numbers and moments, to the microsecond."""

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = [column for column in columns if column]
        self.rows = 0
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}
        self._nulls = dict.fromkeys(self._columns, 0)

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for name in self._columns:
            column = table.column(name)
            self._nulls[name] += column.null_count
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                self._lowest[name] = min(self._lowest.get(name, ends["min"]), ends["min"])
                self._highest[name] = max(self._highest.get(name, ends["max"]), ends["max"])

    def text(self) -> str:
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _plain(value) for name, value in self._lowest.items()},
                "maxValues": {name: _plain(value) for name, value in self._highest.items()},
                "nullCount": self._nulls,
            }
        )


def _plain(value: int | datetime) -> int | str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


# --- commits by delta-rs, for the pipeline -----------------------------------------------------------------------


def merge(
    path: Path,
    source: pa.Table,
    on: Sequence[str],
    update: Mapping[str, str],
    *,
    app: str,
    version: int,
    bucket_values: Iterable[int] | None = None,
) -> dict[str, Any]:
    """Rows of `source` into the table's: one commit, with (app, version) in it, durable when this returns; delta-rs' figures.

    `on`: the columns that make a row the same; what is new is inserted as it stands. `update`: for rows that are there,
    column = SQL over `t.` (the table) and `s.` (the source). `bucket_values`: the partitions touched, where `bucket` is one;
    the others are not even looked at.
    """
    same = [f"t.{name} = s.{name}" for name in on]
    if bucket_values is not None:
        same.insert(0, f"t.bucket in ({', '.join(map(str, sorted(set(bucket_values))))})")
    table = open_to_write(path)
    before = table.version()
    with plainly(path):
        merger = table.merge(
            source,
            " and ".join(same),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # the source's own lowest and highest values pass files over
            writer_properties=_WRITER,
            commit_properties=_properties(app, version),
            post_commithook_properties=_NO_HOOKS,
        )
        if update:
            merger = merger.when_matched_update(dict(update))
        figures: dict[str, Any] = merger.when_not_matched_insert_all().execute()
        _settle(path, before, table.version())
        _checkpoint_if_due(table, path, before)
    return figures


def replace_where(path: Path, source: pa.Table, predicate: str, *, app: str, version: int) -> None:
    """`source` in the place of the rows where `predicate` holds, in one commit with (app, version), durable on return.

    Every row of `source` must fit the predicate itself. No rows: what was there is deleted.
    """
    table = open_to_write(path)
    before = table.version()
    with plainly(path):
        write_deltalake(
            table,
            source,
            mode="overwrite",
            predicate=predicate,
            writer_properties=_WRITER,
            commit_properties=_properties(app, version),
            post_commithook_properties=_NO_HOOKS,
        )
        table.update_incremental()
        _settle(path, before, table.version())
        _checkpoint_if_due(table, path, before)


#: Rows are rewritten with most merges, so what counts is how soon they are written: without dictionaries, a quarter less time, and smaller.
_WRITER = WriterProperties(
    compression="ZSTD",
    max_row_group_size=GROUP_ROWS,
    default_column_properties=ColumnProperties(dictionary_enabled=False),
)


def _properties(app: str, version: int) -> CommitProperties:
    return CommitProperties(custom_metadata={MARK: app}, app_transactions=[Transaction(app, version)])


# --- durable -----------------------------------------------------------------------------------------------------


def _settle(path: Path, before: int, after: int, *, files_are_synced: bool = False) -> None:
    """The entries after `before`, just committed, become durable with the files that they add; else they are taken back.

    They are not left standing: a page that failed to be written once counts as clean from then on, so a later sync
    would say yes to an entry that is not on the disk.
    """
    entries = [entry_path(path, version) for version in range(before + 1, after + 1)]
    try:
        for entry in entries:
            _sync_entry(path, entry, with_files=not files_are_synced)
    except OSError:
        for entry in reversed(entries):
            entry.unlink(missing_ok=True)
        raise


def _sync_entry(path: Path, entry: Path, *, with_files: bool) -> None:
    if with_files:
        sync_with_folders(added_files(path, entry), path)
    sync_file(entry)
    sync_folder(log_folder(path))


def _checkpoint_if_due(table: DeltaTable, path: Path, before: int) -> None:
    if before // CHECKPOINT_EVERY != table.version() // CHECKPOINT_EVERY:
        checkpoint(table, path)


def checkpoint(table: DeltaTable, path: Path) -> None:
    """One file that says what all the entries so far say; synced, so that they may go."""
    log = log_folder(path)
    with plainly(path):
        table.create_checkpoint()
        sync_file(log / f"{table.version():020d}.checkpoint.parquet")
        sync_file(log / "_last_checkpoint")
        sync_folder(log)


def clean_log(table: DeltaTable, path: Path) -> None:
    """Entries older than a day that a checkpoint covers go. The caller has synced everything."""
    with plainly(path):
        table.cleanup_metadata()
        sync_folder(log_folder(path))


def vacuum(table: DeltaTable, path: Path) -> list[str]:
    """Files that no version of the last hour has go; which. The caller has synced everything."""
    with plainly(path):
        before = table.version()
        gone = table.vacuum(
            KEEP_REMOVED_HOURS,
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        if not gone:  # it would write two entries to say so
            return []
        gone = table.vacuum(
            KEEP_REMOVED_HOURS,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
            post_commithook_properties=_NO_HOOKS,
        )
        table.update_incremental()
        _settle(path, before, table.version())
    return list(gone)


def compact_partitions(table: DeltaTable, path: Path) -> int:
    """Small files of each partition into larger ones, by delta-rs; how many went. Rows are in no order afterwards."""
    with plainly(path):
        before = table.version()
        figures = table.optimize.compact(
            target_size=FILE_BYTES,
            max_concurrent_tasks=1,
            writer_properties=_WRITER,
            post_commithook_properties=_NO_HOOKS,
        )
        table.update_incremental()
        _settle(path, before, table.version())
    return int(figures["numFilesRemoved"])


# --- files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFile:
    path: Path
    #: as the log has it: below the table's folder
    name: str
    rows: int
    size: int
    #: of the column asked for; None where the log does not say
    low: int | None
    high: int | None
    first_at: datetime | None
    last_at: datetime | None


def data_files(table: DeltaTable, path: Path, column: str = "offset") -> list[DataFile]:
    """The table's files by the lowest value of `column`."""
    with plainly(path):
        actions = pa.table(table.get_add_actions(flatten=True))

    def values(name: str) -> list[Any]:
        found: list[Any] = actions.column(name).to_pylist() if name in actions.column_names else []
        return found or [None] * actions.num_rows

    rows = zip(
        values("path"),
        values("num_records"),
        values("size_bytes"),
        values(f"min.{column}"),
        values(f"max.{column}"),
        values("min.at"),
        values("max.at"),
        strict=True,
    )
    found = [DataFile(path / name, name, *rest) for name, *rest in rows]
    return sorted(found, key=lambda file: (file.low is not None, file.low or 0, file.name))


def between(files: Iterable[DataFile], lo: int, hi: int) -> list[DataFile]:
    """Those that may hold values from `lo` to `hi`, both included."""
    return [
        file
        for file in files
        if (file.low is None or file.low <= hi) and (file.high is None or file.high >= lo)
    ]


def files(path: Path, lo: int, hi: int, column: str = "offset") -> list[DataFile]:
    """The files of the newest version that may hold values from `lo` to `hi`, by their statistics."""
    return between(data_files(open_table(path), path, column), lo, hi)


# --- what goes wrong ---------------------------------------------------------------------------------------------


@contextmanager
def plainly(path: Path) -> Iterator[None]:
    """Errors of the disk and of delta-rs in one line."""
    try:
        yield
    except TableNotFoundError as error:
        raise LakeUnusable(f"{path} is no Delta table") from error
    except CommitFailedError as error:
        raise LakeUnusable(f"{path}: somebody else writes to this table: {_first_line(error)}") from error
    except (OSError, DeltaError, pa.ArrowException) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL or any(f"os error {full}" in str(error) for full in _FULL):
            raise LakeFull(f"no room for {path}: {os.strerror(number or errno.ENOSPC)}") from error
        raise LakeUnusable(f"{path}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """delta-rs adds stack traces to some texts."""
    return re.sub(r"\s+", " ", (str(error).strip() or type(error).__name__).splitlines()[0])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
