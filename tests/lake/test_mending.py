"""A table after a power cut: every kind of damage that one can leave, and that is all there is to mend."""

import json
from collections.abc import Callable
from pathlib import Path

import polars
import pyarrow as pa
import pytest

from tests.lake import rows
from waypost.errors import LakeUnusable
from waypost.lake import delta, reading, sealing
from waypost.lake.mending import entry_path, log_folder, mend
from waypost.lake.owner import SEALER, Lake

HEAD = 400


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four commits of a hundred events each."""
    lake = Lake(tmp_path / "lake")
    sealing.seal_upto(rows.Source(HEAD), lake, range_events=100)
    return lake


def newest(path: Path) -> Path:
    return entry_path(path, delta.open_table(path).version())


def checkpoint(path: Path) -> Path:
    table = delta.open_table(path)
    delta.checkpoint(table, path)
    return log_folder(path) / f"{table.version():020d}.checkpoint.parquet"


def assert_whole(lake: Lake, upto: int) -> None:
    """The table goes up to there; sealing goes on, and readers see every event once."""
    assert delta.version_of(lake.events, SEALER) == upto
    sealing.seal_upto(rows.Source(HEAD), lake)
    found = polars.scan_delta(str(lake.events)).select("offset").collect()["offset"].sort().to_list()
    assert found == list(range(1, HEAD + 1))
    assert sum(batch.num_rows for batch in reading.payloads(lake, 1, HEAD)) == 134


def emptied(entry: Path) -> None:
    entry.write_bytes(b"")


def halved(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])


def zeroed(entry: Path) -> None:
    """The size has reached the disk, the last block has not."""
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-100] + bytes(100))


def without_its_last_line(entry: Path) -> None:
    """Rows without the version: sealed again they would stand there twice."""
    entry.write_text("\n".join(entry.read_text().splitlines()[:-1]))


def without_a_line_end(entry: Path) -> None:
    entry.write_text(entry.read_text()[:-1])


def its_file_missing(entry: Path) -> None:
    added(entry).unlink()


def its_file_empty(entry: Path) -> None:
    added(entry).write_bytes(b"")


def its_file_short(entry: Path) -> None:
    file = added(entry)
    file.write_bytes(file.read_bytes()[:-1])


def added(entry: Path) -> Path:
    (name,) = [
        action["add"]["path"] for action in map(json.loads, entry.read_text().splitlines()) if "add" in action
    ]
    return entry.parent.parent / str(name)


DAMAGES = [
    (emptied, "is empty"),
    (halved, "is torn"),
    (zeroed, "is torn"),
    (without_its_last_line, "is cut short"),
    (without_a_line_end, "is torn"),
    (its_file_missing, "which is missing"),
    (its_file_empty, "and it has 0"),
    (its_file_short, "bytes, and it has"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_torn_newest_entry_is_taken_back_and_its_range_sealed_again(
    lake: Lake, damage: Callable[[Path], None], says: str
) -> None:
    damage(newest(lake.events))
    (line,) = mend(lake.events)
    assert says in line
    assert_whole(lake, 300)
    assert mend(lake.events) == []


def test_several_torn_entries_are_taken_back_one_after_the_other(lake: Lake) -> None:
    last = delta.open_table(lake.events).version()
    emptied(entry_path(lake.events, last))
    its_file_missing(entry_path(lake.events, last - 1))
    assert len(mend(lake.events)) == 2
    assert_whole(lake, 200)


def test_an_older_entry_whose_file_is_long_gone_is_left_alone(lake: Lake) -> None:
    table = delta.open_table(lake.events)
    first = delta.data_files(table, lake.events)[0]
    delta.rewrite(
        table, lake.events, [first], rows.events(1, 100).to_batches(), app=SEALER, data_change=False
    )
    first.path.unlink()  # as vacuum does an hour later
    assert mend(lake.events) == []
    assert_whole(lake, HEAD)


def test_an_empty_last_checkpoint_is_removed(lake: Lake) -> None:
    checkpoint(lake.events)
    last = log_folder(lake.events) / "_last_checkpoint"
    emptied(last)
    (line,) = mend(lake.events)
    assert "names no checkpoint" in line
    assert not last.exists()
    assert_whole(lake, HEAD)


@pytest.mark.parametrize("damage", [emptied, halved], ids=["empty", "half"])
def test_a_torn_checkpoint_is_removed_and_the_entries_say_the_same(
    lake: Lake, damage: Callable[[Path], None]
) -> None:
    torn = checkpoint(lake.events)
    damage(torn)
    with pytest.raises(LakeUnusable):
        delta.open_table(lake.events)
    (line,) = mend(lake.events)
    assert "cannot be read: removed" in line
    assert not torn.exists()
    assert_whole(lake, HEAD)


def test_a_torn_entry_goes_with_the_checkpoint_of_it(lake: Lake) -> None:
    covering = checkpoint(lake.events)
    its_file_empty(newest(lake.events))
    mend(lake.events)
    assert not covering.exists()
    assert_whole(lake, 300)


def test_a_torn_entry_after_a_checkpoint_falls_back_to_it(lake: Lake) -> None:
    version = delta.open_table(lake.events).version()
    checkpoint(lake.events)
    for before in range(version):
        entry_path(lake.events, before).unlink()  # as cleaning the log does
    source = rows.Source(HEAD + 100)
    sealing.seal_upto(source, lake)
    halved(newest(lake.events))
    assert len(mend(lake.events)) == 1
    assert delta.version_of(lake.events, SEALER) == HEAD
    assert sealing.seal_upto(source, lake).events == 100


def test_a_table_whose_making_was_torn_is_made_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    sealing.seal_upto(rows.Source(0), lake)
    for path in (lake.events, lake.payloads):
        entry = entry_path(path, 0)
        entry.write_text(entry.read_text().splitlines()[0])
        assert len(mend(path)) == 1
    sealing.seal_upto(rows.Source(HEAD), lake)
    assert_whole(lake, HEAD)


def test_what_a_power_cut_cannot_do_is_not_mended_but_named(lake: Lake) -> None:
    """Cleaning the log comes after everything is synced: these are damages of another kind."""
    covering = checkpoint(lake.events)
    version = delta.open_table(lake.events).version()
    for before in range(version):
        entry_path(lake.events, before).unlink()
    whole = covering.read_bytes()
    halved(covering)
    with pytest.raises(LakeUnusable, match="cannot be read, and the entries that it stands for are gone"):
        mend(lake.events)
    covering.write_bytes(whole)
    emptied(entry_path(lake.events, version))
    with pytest.raises(LakeUnusable, match="is empty, and the entries before it are gone"):
        mend(lake.events)
    assert covering.exists()


def test_what_a_killed_commit_left_unnamed_is_removed(lake: Lake) -> None:
    left = log_folder(lake.events) / f"{9:020d}.json#1"
    left.write_text("{")
    assert mend(lake.events) == []
    assert not left.exists()
    assert_whole(lake, HEAD)


def test_a_compaction_by_delta_rs_that_is_cut_at_a_line_is_taken_back(tmp_path: Path) -> None:
    """Cut after its removes it would take rows away."""
    path = tmp_path / "messages"
    schema = pa.schema([("bucket", pa.int64()), ("sequence", pa.int64())])
    delta.open_or_create(path, schema, statistics=["sequence"], partition_by=["bucket"])
    for n in range(3):
        row = pa.table({"bucket": [0], "sequence": [n]}, schema=schema)
        delta.merge(path, row, ["bucket", "sequence"], {}, app="pipeline", version=n)
    assert delta.compact_partitions(delta.open_table(path), path) == 3
    without_its_last_line(newest(path))
    (line,) = mend(path)
    assert "is cut short" in line
    assert sorted(delta.open_table(path).to_pyarrow_table()["sequence"].to_pylist()) == [0, 1, 2]
    assert delta.version_of(path, "pipeline") == 2


def test_where_there_is_no_table_there_is_nothing_to_mend(tmp_path: Path) -> None:
    assert mend(tmp_path / "nowhere") == []
    assert sealing.prepare(Lake(tmp_path)) == []
