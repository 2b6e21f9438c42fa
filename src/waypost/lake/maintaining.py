"""Keeping the lake small and quick: once a day, or when asked.

    forget    what is older than --lake-keep                ┐ rewritten files: synced, then committed
    erase     bodies that were erased in the store          ┤
    compact   neighbouring small files into one             ┘
    tidy      checkpoint ─▶ sync everything ─▶ entries that it covers go ─▶ files that nobody has used for an hour go

Sealed tables are rewritten by us, not by delta-rs, whose compaction puts the newest rows first and cuts a moment's highest
value to the millisecond below: rows stay in the order of offsets, and a range stays one or two files. The pipeline's tables have no
such order, and delta-rs compacts them. Whoever calls holds the lock of the tables' writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow import MOMENT
from ..errors import LakeUnusable
from . import delta
from .delta import DataFile, Reached, nothing
from .mending import log_folder
from .owner import SEALER, Lake
from .reading import MOST, Rows, sequences_in
from .syncing import sync_everything


@dataclass(frozen=True, slots=True)
class Maintained:
    """What one call has done."""

    #: events that are no more, by --lake-keep
    forgotten: int = 0
    #: small files that were put together, and what became of them
    compacted: int = 0
    into: int = 0
    #: files that went from the disk
    vacuumed: int = 0


def maintain(
    lake: Lake,
    *,
    older_than: datetime | None = None,
    between: Callable[[], object] = lambda: None,
    reached: Reached = nothing,
) -> Maintained:
    """Both sealed tables. `older_than`: what to forget. `between` is called between two commits: a sealer may seal there."""
    if not delta.exists(lake.events) or not delta.exists(lake.payloads):
        return Maintained()
    forgotten = 0 if older_than is None else forget(lake, older_than, reached=reached)
    compacted = into = 0
    for path, column in ((lake.events, "offset"), (lake.payloads, "sequence")):
        sealed = delta.version_of(path, SEALER) or 0  # what is sealed meanwhile is left for the next time
        while joined := compact(path, column, upto=sealed, reached=reached):
            compacted, into = compacted + joined, into + 1
            between()
    gone = [name for path in (lake.events, lake.payloads) for name in tidy(path, reached=reached)]
    return Maintained(forgotten, compacted, into, len(gone))


def maintain_kept(path: Path) -> Maintained:
    """A table of the pipeline's."""
    table = delta.open_to_write(path)
    compacted = delta.compact_partitions(table, path)
    return Maintained(compacted=compacted, vacuumed=len(tidy(path)))


def tidy(path: Path, *, reached: Reached = nothing) -> list[str]:
    """A synced checkpoint, then what it makes needless goes; the files that went from the disk."""
    reached(f"{path.name} {delta.TIDYING}")
    table = delta.open_table(path)
    delta.checkpoint(table, path)
    with delta.plainly(path):
        sync_everything(path)
    delta.clean_log(table, path)
    return delta.vacuum(table, path)


# --- rewriting sealed tables -------------------------------------------------------------------------------------


def compact(
    path: Path, column: str, *, upto: int, target: int = delta.FILE_BYTES, reached: Reached = nothing
) -> int:
    """The first small neighbours up to that value become one file; how many did, 0 when there are none left."""
    rows = Rows(path, column, to_write=True)
    bins = worth_joining([file for file in rows.files if file.high is not None and file.high <= upto], target)
    if not bins:
        return 0
    batches = (batch for file in bins[0] for _, batch in rows.read(file))
    complete = _all_of(batches, sum(file.rows for file in bins[0]), path)
    _rewrite(rows, path, bins[0], complete, data_change=False, reached=reached)
    return len(bins[0])


def worth_joining(files: Sequence[DataFile], target: int) -> list[list[DataFile]]:
    """Neighbours, by their lowest values, that together make a file of about the target size."""
    bins: list[list[DataFile]] = [[]]
    for file in files:
        if sum(one.size for one in bins[-1]) + file.size > target:
            bins.append([])
        bins[-1].append(file)
    return [found for found in bins if len(found) > 1]


def forget(lake: Lake, older_than: datetime, *, reached: Reached = nothing) -> int:
    """Events before that moment go, and the payloads of messages logged before it; how many events.

    Events first: a payload that is left over is found again by the next call, an event without its payload is a fault.
    """
    events = Rows(lake.events, "offset", to_write=True)
    oldest = _first_since(events, older_than)
    forgotten = _drop_below(events, lake.events, oldest, reached)
    _drop_below(Rows(lake.payloads, "sequence", to_write=True), lake.payloads, oldest, reached)
    return forgotten


def _first_since(events: Rows, moment: datetime) -> int:
    """The first offset at or after the moment. Moments never fall with the offset."""
    since = pa.scalar(moment, MOMENT)
    for file in events.files:
        if file.last_at is None or file.last_at >= moment:
            for offsets, batch in events.read(file):
                young = pc.greater_equal(batch.column("at"), since)
                if pc.any(young).as_py():
                    return int(offsets[pc.index(young, True).as_py()])
    version = events.table.transaction_version(SEALER)
    return 1 if version is None else version + 1


def _drop_below(rows: Rows, path: Path, oldest: int, reached: Reached) -> int:
    old = [file for file in rows.files if file.low is not None and file.low < oldest]
    if not old:
        return 0
    kept = (batch for file in old for _, batch in rows.read(file, oldest, MOST))
    left = _rewrite(rows, path, old, kept, data_change=True, reached=reached)
    return sum(file.rows for file in old) - left


def erase(lake: Lake, sequences: Iterable[int], *, reached: Reached = nothing) -> list[int]:
    """Bodies of these messages become null; which of them are done: those not sealed yet are not.

    The rows stay, with hash and size, so that one still sees what was there. From the disk a body goes an hour later, with the
    first `tidy` after `vacuum_due`.
    """
    wanted = sorted(set(sequences))
    if not delta.exists(lake.payloads):
        return []
    rows = Rows(lake.payloads, "sequence", to_write=True)
    for file in rows.files:
        here = pa.array(sequences_in(file, wanted), pa.int64())
        if len(here) and _has_bodies(lake, file, here):
            batches = (_without_bodies(batch, here) for _, batch in rows.read(file))
            complete = _all_of(batches, file.rows, lake.payloads)
            _rewrite(rows, lake.payloads, [file], complete, data_change=True, reached=reached)
    sealed = rows.table.transaction_version(SEALER) or 0
    return [sequence for sequence in wanted if sequence <= sealed]


def _has_bodies(lake: Lake, file: DataFile, sequences: pa.Array) -> bool:
    rows = Rows(lake.payloads, "sequence", ["sequence", "body"])
    return any(
        pc.any(
            pc.and_(pc.is_in(batch.column("sequence"), sequences), batch.column("body").is_valid())
        ).as_py()
        for _, batch in rows.read(file, sequences[0].as_py(), sequences[-1].as_py())
    )


def _without_bodies(batch: pa.RecordBatch, sequences: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index("body")
    erased = pc.is_in(batch.column("sequence"), sequences)
    body = pc.if_else(erased, pa.scalar(None, pa.binary()), batch.column(index))
    return batch.set_column(index, batch.schema.field(index), body)


def _rewrite(
    rows: Rows,
    path: Path,
    old: Sequence[DataFile],
    batches: Iterator[pa.RecordBatch],
    *,
    data_change: bool,
    reached: Reached,
) -> int:
    return delta.rewrite(
        rows.table,
        path,
        old,
        batches,
        app=SEALER,
        data_change=data_change,
        label=f"{old[0].low}-{old[-1].high}",
        reached=lambda point: reached(f"{path.name} {point}"),
    )


def _all_of(batches: Iterable[pa.RecordBatch], expected: int, path: Path) -> Iterator[pa.RecordBatch]:
    """Stops a rewrite before its commit if the files hold other than what the log says."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if rows != expected:
        raise LakeUnusable(
            f"{path}: files that should hold {expected} rows hold {rows}: `waypost lake verify` says more"
        )


# --- when to vacuum ----------------------------------------------------------------------------------------------


def vacuum_due(path: Path) -> datetime | None:
    """When the first of the files that no version needs any more may go from the disk; None where there is none."""
    if not delta.exists(path):
        return None
    live = {file.path for file in delta.data_files(delta.open_table(path), path)}
    removed = _removals(path)
    dead = [
        removed.get(file) or datetime.fromtimestamp(file.stat().st_mtime, UTC)
        for file in path.rglob("*.parquet")
        if file not in live and log_folder(path) not in file.parents
    ]
    return min(dead) + timedelta(hours=delta.KEEP_REMOVED_HOURS) if dead else None


def _removals(path: Path) -> dict[Path, datetime]:
    """When files were removed, as far as entries still say so."""
    found = {}
    for entry in log_folder(path).glob("*.json"):
        for line in entry.read_text().splitlines():
            removed = json.loads(line).get("remove")
            if removed:
                moment = datetime.fromtimestamp(removed["deletionTimestamp"] / 1_000, UTC)
                found[path / removed["path"]] = moment
    return found
