"""Compacting, forgetting, erasing: fewer files, the same rows, and what should be gone is gone from the disk."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.lake import rows
from tests.lake.dying import moment_of
from waypost.arrow import MOMENT
from waypost.errors import LakeUnusable
from waypost.lake import delta, maintaining, reading, sealing
from waypost.lake.delta import DataFile
from waypost.lake.mending import log_folder, mend
from waypost.lake.owner import SEALER, Lake, claim
from waypost.lake.verifying import Verification

HEAD = 3_000
HOUR = timedelta(hours=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Thirty files of each table."""
    lake = Lake(tmp_path / "lake")
    claim(lake, "a store", sealed=None)
    sealing.seal_upto(rows.Source(HEAD), lake, range_events=100)
    return lake


def ranges(path: Path, column: str = "offset") -> list[tuple[int | None, int | None]]:
    return [(file.low, file.high) for file in delta.files(path, 0, reading.MOST, column)]


def on_disk(path: Path) -> int:
    return len(list(path.glob("*.parquet")))


def aged(path: Path, by: timedelta) -> None:
    """As if all that lies there had been written, committed and removed so much earlier."""
    for checkpoint in log_folder(path).glob("*checkpoint*"):  # the entries say the same
        checkpoint.unlink()
    ms = int(by / timedelta(milliseconds=1))
    for entry in log_folder(path).glob("*.json"):
        text = entry.read_text()
        for word in ("timestamp", "deletionTimestamp", "modificationTime"):
            text = shifted(text, f'"{word}":', -ms)
        entry.write_text(text)
    then = time.time() - by.total_seconds()
    for file in path.rglob("*"):
        os.utime(file, (then, then))


def shifted(text: str, before: str, by: int) -> str:
    pieces = text.split(before)
    for index, piece in enumerate(pieces[1:], 1):
        digits = len(piece) - len(piece.lstrip("0123456789"))
        pieces[index] = str(int(piece[:digits]) + by) + piece[digits:]
    return before.join(pieces)


def assert_same(lake: Lake, oldest: int = 1) -> None:
    table = pa.Table.from_batches(reading.events(lake, oldest, HEAD))
    assert table == rows.events(oldest, HEAD)
    stored = pa.Table.from_batches(reading.payloads(lake, 1, HEAD))
    assert stored == pa.Table.from_batches(rows.payloads(oldest, HEAD))
    assert delta.version_of(lake.events, SEALER) == delta.version_of(lake.payloads, SEALER) == HEAD


def test_small_files_become_one_and_rows_stay_where_offsets_find_them(lake: Lake) -> None:
    maintained = maintaining.maintain(lake)
    assert (maintained.compacted, maintained.into, maintained.forgotten) == (60, 2, 0)
    assert ranges(lake.events) == [(1, HEAD)]
    assert ranges(lake.payloads, "sequence") == [(1, HEAD - 2)]
    (file,) = delta.files(lake.events, 1, HEAD)
    in_order = parquet.read_table(file.path, columns=["offset"])["offset"].to_pylist()
    assert in_order == list(range(1, HEAD + 1))
    assert_same(lake)
    assert maintaining.maintain(lake).compacted == 0


def test_compaction_goes_in_steps_of_a_files_size_and_lets_the_sealer_in_between(lake: Lake) -> None:
    size = sum(file.size for file in delta.files(lake.events, 1, HEAD))
    source, joined = rows.Source(HEAD), []
    while count := maintaining.compact(lake.events, "offset", upto=HEAD, target=size // 5):
        joined.append(count)
        source.grow(10)
        sealing.seal_upto(source, lake)
    found = ranges(lake.events)
    compacted, tail = found[: -len(joined)], found[-len(joined) :]
    assert len(joined) >= 2
    assert [high for _, high in compacted[:-1]] == [low - 1 for low, _ in compacted[1:] if low is not None]
    assert compacted[-1][1] == HEAD
    assert tail == [(lo, lo + 9) for lo in range(HEAD + 1, HEAD + 10 * len(joined), 10)]


@given(sizes=st.lists(st.integers(1, 120), max_size=60))
def test_what_is_joined_are_neighbours_and_never_more_than_a_file(sizes: list[int]) -> None:
    files = [DataFile(Path(str(i)), str(i), 1, size, i, i, None, None) for i, size in enumerate(sizes)]
    for joined in maintaining.worth_joining(files, 100):
        places = [files.index(file) for file in joined]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(joined) > 1
        assert sum(file.size for file in joined) <= 100


def test_a_file_with_fewer_rows_than_its_log_says_is_not_compacted_away(lake: Lake) -> None:
    first = delta.files(lake.events, 1, 1)[0]
    parquet.write_table(rows.events(1, 99), first.path)
    with pytest.raises(LakeUnusable, match="should hold 3000 rows hold 2999"):
        maintaining.maintain(lake)
    assert len(ranges(lake.events)) == 30


def test_removed_files_stay_for_an_hour_and_then_go_from_the_disk(lake: Lake) -> None:
    assert maintaining.vacuum_due(lake.events) is None
    before = datetime.now(UTC)
    assert maintaining.maintain(lake).vacuumed == 0
    assert on_disk(lake.events) == 31
    due = maintaining.vacuum_due(lake.events)
    assert due is not None
    assert before + HOUR - timedelta(seconds=1) <= due <= datetime.now(UTC) + HOUR
    aged(lake.events, HOUR * 2)
    assert maintaining.vacuum_due(lake.events) == due - HOUR * 2
    assert len(maintaining.tidy(lake.events)) == 30
    assert on_disk(lake.events) == 1
    assert maintaining.vacuum_due(lake.events) is None
    assert_same(lake)


def test_a_file_that_a_killed_sealer_left_goes_with_the_others(lake: Lake) -> None:
    orphan = lake.events / "3001-3100-0123456789abcdef.parquet"
    orphan.write_bytes(b"half a fi")
    maintaining.tidy(lake.events)
    assert orphan.exists()
    aged(lake.events, HOUR * 2)
    maintaining.tidy(lake.events)
    assert not orphan.exists()
    assert_same(lake)


def test_entries_that_a_checkpoint_covers_go_after_a_day(lake: Lake) -> None:
    aged(lake.events, timedelta(days=2))
    maintaining.maintain(lake)
    entries = sorted(log_folder(lake.events).glob("*.json"))
    assert len(entries) < 5
    assert mend(lake.events) == []
    assert_same(lake)
    source = rows.Source(HEAD + 10)
    assert sealing.seal_upto(source, lake).events == 10


def test_what_is_older_than_the_lake_keeps_goes_in_both_tables(lake: Lake) -> None:
    maintaining.compact(lake.events, "offset", upto=HEAD)  # so that the border lies inside a file
    maintained = maintaining.maintain(lake, older_than=moment_of(1_051))
    assert maintained.forgotten == 1_050
    assert reading.standing(lake).oldest == 1_051
    assert_same(lake, oldest=1_051)
    assert list(Verification(lake).findings()) == []
    assert maintaining.forget(lake, moment_of(1_051)) == 0


def test_a_lake_may_forget_everything_and_go_on(lake: Lake) -> None:
    assert maintaining.forget(lake, moment_of(HEAD + 1)) == HEAD
    standing = reading.standing(lake)
    assert (standing.oldest, standing.sealed, standing.events, standing.payloads) == (HEAD + 1, HEAD, 0, 0)
    assert sealing.seal_upto(rows.Source(HEAD + 30), lake).events == 30
    assert reading.standing(lake).oldest == HEAD + 1
    assert maintaining.forget(lake, moment_of(1)) == 0


def test_an_erased_body_is_gone_from_the_newest_version_at_once_and_from_the_disk_after_an_hour(
    lake: Lake,
) -> None:
    files = set(lake.payloads.glob("*.parquet"))
    assert maintaining.erase(lake, [4, 1_000, HEAD + 1]) == [4, 1_000]
    found = reading.payloads_of(lake, [1, 4, 1_000], ["sequence", "body", "hash"]).to_pylist()
    assert [row["body"] for row in found] == [rows.body(1), None, None]
    assert all(row["hash"] for row in found)
    assert len(ranges(lake.payloads, "sequence")) == 30

    aged(lake.payloads, HOUR * 2)
    maintaining.tidy(lake.payloads)
    gone = files - set(lake.payloads.glob("*.parquet"))
    assert len(gone) == 2
    assert not any(holds(file, rows.body(4)) for file in lake.payloads.glob("*.parquet"))


def holds(file: Path, body: bytes) -> bool:
    return body in parquet.read_table(file, columns=["body"])["body"].to_pylist()


def test_erasing_what_is_erased_already_writes_nothing(lake: Lake) -> None:
    maintaining.erase(lake, [4])
    version = DeltaTable(lake.payloads).version()
    assert maintaining.erase(lake, [4, 5]) == [4, 5]
    assert DeltaTable(lake.payloads).version() == version
    assert maintaining.erase(Lake(lake.folder / "nowhere"), [4]) == []


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A table of the pipeline's with many small merges."""
    path = tmp_path / "lake" / "messages"
    schema = pa.schema([("bucket", pa.int64()), ("sequence", pa.int64()), ("changed_at", MOMENT)])
    delta.open_or_create(path, schema, statistics=["sequence"], partition_by=["bucket"])
    for lo in range(0, 60, 4):
        source = pa.table(
            {
                "bucket": [n // 32 for n in range(lo, lo + 4)],
                "sequence": list(range(lo, lo + 4)),
                "changed_at": pa.array([rows.moment(n) for n in range(lo, lo + 4)], MOMENT),
            },
            schema=schema,
        )
        on = ["bucket", "sequence"]
        delta.merge(path, source, on, {}, app="pipeline", version=lo + 3, bucket_values=[lo // 32])
    return path


def test_the_pipelines_tables_are_maintained_too_and_keep_their_version(kept: Path) -> None:
    before = len(DeltaTable(kept).file_uris())
    maintained = maintaining.maintain_kept(kept)
    after = DeltaTable(kept)
    assert maintained.compacted == before == 15
    assert len(after.file_uris()) == 2
    assert after.transaction_version("pipeline") == 59
    assert sorted(after.to_pyarrow_table()["sequence"].to_pylist()) == list(range(60))
    assert mend(kept) == []
    aged(kept, HOUR * 2)
    assert maintaining.maintain_kept(kept).vacuumed == 15
