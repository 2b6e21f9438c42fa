"""A Delta table after a power cut: what stands torn at its end is taken back.

    _delta_log/   …41.json …42.json   43.json   _last_checkpoint   42.checkpoint.parquet
                                      └ empty, half, without its end, or adds a file that is missing or of another size:
                                        it goes, with any checkpoint of it; then the one before it is looked at

Only what was never acknowledged can be torn: files are synced before their entry, entries before anyone is told, checkpoints
before the entries they replace go. So nothing is lost by taking it back; whoever wrote it asks the table how far it goes and writes
it again. What stays standing is synced, since a killed process may have left it in the page cache only.

This file knows the log's files, not delta-rs. The caller holds the table's lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import LakeUnusable
from .syncing import sync_everything, sync_folder

#: in an entry's first line: the app whose transaction ends the entry
MARK = "waypost"

_LAST_CHECKPOINT = "_last_checkpoint"


def log_folder(path: Path) -> Path:
    return path / "_delta_log"


def entry_path(path: Path, version: int) -> Path:
    return log_folder(path) / f"{version:020d}.json"


def added_files(path: Path, entry: Path) -> list[Path]:
    return [path / name for name, _ in _added(_actions(entry))]


def mend(path: Path) -> list[str]:
    """What was taken back, one line each. LakeUnusable where that would take back more than a power cut can tear."""
    log = log_folder(path)
    if not log.is_dir():
        return []
    done = [*_remove_torn_entries(path, log), *_remove_torn_checkpoints(log)]
    for staged in log.glob("*#*"):  # a commit that was killed before it got its name
        staged.unlink()
    sync_folder(log)
    sync_everything(path)
    return done


def torn(path: Path) -> list[tuple[int, str]]:
    """What `mend` would take back: version and reason, the newest first. Changes nothing."""
    found: list[tuple[int, str]] = []
    for entry in reversed(_numbered(log_folder(path), ".json")):
        why = _what_is_torn(path, entry)
        if why is None:
            break
        found.append((_version(entry), f"{entry} {why}"))
    return found


def _remove_torn_entries(path: Path, log: Path) -> Iterator[str]:
    while entries := _numbered(log, ".json"):
        newest = entries[-1]
        why = _what_is_torn(path, newest)
        if why is None:
            return
        if not _leads_to(log, _version(newest) - 1, before=_version(newest)):
            raise LakeUnusable(
                f"{newest} {why}, and the entries before it are gone: restore the table from a copy"
            )
        for checkpoint in _numbered(log, ".checkpoint.parquet"):
            if _version(checkpoint) >= _version(newest):
                _remove_checkpoint(checkpoint)
        newest.unlink()
        yield f"{newest} {why}: taken back"


def _remove_torn_checkpoints(log: Path) -> Iterator[str]:
    while checkpoints := _numbered(log, ".checkpoint.parquet"):
        newest = checkpoints[-1]
        if _is_readable(newest):
            break
        end = max(_version(file) for file in (newest, *_numbered(log, ".json")))
        if not _leads_to(log, end, before=_version(newest)):
            raise LakeUnusable(
                f"{newest} cannot be read, and the entries that it stands for are gone: restore the table from a copy"
            )
        _remove_checkpoint(newest)
        yield f"{newest} cannot be read: removed, the entries say the same"
    last = log / _LAST_CHECKPOINT
    if last.exists() and not _names_a_checkpoint(last):
        last.unlink()
        yield f"{last} names no checkpoint: removed"


def _leads_to(log: Path, version: int, before: int) -> bool:
    """Whether entries lead to `version` without a gap, from the first one or from a checkpoint older than `before`."""
    checkpoints = [_version(file) for file in _numbered(log, ".checkpoint.parquet")]
    start = max((found + 1 for found in checkpoints if found < before), default=0)
    return set(range(start, version + 1)) <= {_version(entry) for entry in _numbered(log, ".json")}


def _remove_checkpoint(checkpoint: Path) -> None:
    (checkpoint.parent / _LAST_CHECKPOINT).unlink(missing_ok=True)
    checkpoint.unlink()


def _what_is_torn(path: Path, entry: Path) -> str | None:
    """None for a whole entry."""
    try:
        actions = _actions(entry)
    except (ValueError, AttributeError):
        return "is torn"
    if not actions:
        return "is empty"
    if _is_cut_short(_version(entry), actions):
        return "is cut short"
    for name, size in _added(actions):
        file = path / name
        if not file.is_file():
            return f"adds {name}, which is missing"
        if file.stat().st_size != size:
            return f"adds {name} with {size} bytes, and it has {file.stat().st_size}"
    return None


def _is_cut_short(version: int, actions: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether lines are missing at the end; the first one says what must follow."""
    kinds = [kind for kind, _ in actions]
    said = actions[0][1] if kinds[0] == "commitInfo" else {}
    if version == 0 and not {"protocol", "metaData"} <= set(kinds):
        return True
    if MARK in said and (kinds[-1], actions[-1][1].get("appId")) != ("txn", said[MARK]):
        return True
    compacted = said.get("operationMetrics", {})  # delta-rs' compaction bears no transaction, but it counts
    return "numFilesAdded" in compacted and (kinds.count("add"), kinds.count("remove")) != (
        compacted["numFilesAdded"],
        compacted["numFilesRemoved"],
    )


def _actions(entry: Path) -> list[tuple[str, dict[str, Any]]]:
    """Kind and content of each line; ValueError or AttributeError where it is none."""
    lines = entry.read_text("utf-8").splitlines()
    return [next(iter(json.loads(line).items())) for line in lines if line]


def _added(actions: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, int]]:
    return ((unquote(content["path"]), content["size"]) for kind, content in actions if kind == "add")


def _is_readable(checkpoint: Path) -> bool:
    try:
        return bool(pq.read_table(checkpoint, use_threads=False).num_rows)
    except (OSError, pa.ArrowException):
        return False


def _names_a_checkpoint(last: Path) -> bool:
    try:
        version = int(json.loads(last.read_bytes())["version"])
    except (ValueError, KeyError, TypeError):
        return False
    return (last.parent / f"{version:020d}.checkpoint.parquet").exists()


def _numbered(log: Path, suffix: str) -> list[Path]:
    """Entries or checkpoints by version."""
    return sorted(file for file in log.glob(f"*{suffix}") if file.name.removesuffix(suffix).isdigit())


def _version(file: Path) -> int:
    return int(file.name.partition(".")[0])
