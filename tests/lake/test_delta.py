"""Tables as they are written: one commit each, durable in the right order, readable by everyone."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from tests.lake import rows
from waypost.arrow import EVENTS, MOMENT, PAYLOADS
from waypost.errors import LakeUnusable
from waypost.lake import delta, syncing
from waypost.lake.mending import entry_path, mend

FOLDED = pa.schema(
    [
        ("bucket", pa.int64()),
        ("sequence", pa.int64()),
        ("state", pa.string()),
        ("attempts", pa.int64()),
        ("changed_at", MOMENT),
    ]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "message_events"


def open_events(path: Path) -> DeltaTable:
    return delta.open_or_create(path, EVENTS, statistics=["offset", "sequence", "at"])


def seal(path: Path, lo: int, hi: int) -> None:
    delta.append(open_events(path), path, rows.events(lo, hi).to_batches(), app="sealer", version=hi)


def folded(lo: int, hi: int, state: str = "Q", attempts: int = 1) -> pa.Table:
    sequences = range(lo, hi)
    return pa.table(
        {
            "bucket": [sequence >> 4 for sequence in sequences],
            "sequence": list(sequences),
            "state": [state] * len(sequences),
            "attempts": [attempts] * len(sequences),
            "changed_at": pa.array([rows.moment(sequence) for sequence in sequences], MOMENT),
        },
        schema=FOLDED,
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A table of the pipeline's kind."""
    path = tmp_path / "lake" / "messages"
    delta.open_or_create(path, FOLDED, statistics=["sequence"], partition_by=["bucket"])
    return path


def merge(path: Path, source: pa.Table, version: int, **more: Any) -> dict[str, Any]:
    return delta.merge(
        path,
        source,
        ["bucket", "sequence"],
        {"state": "s.state", "attempts": "t.attempts + s.attempts"},
        app="pipeline",
        version=version,
        bucket_values=source["bucket"].to_pylist(),
        **more,
    )


class Steps:
    """What was synced and committed, in order, with the names of a file's kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.done: list[str] = []
        self._path = path
        really = os.fsync

        def record(fd: int) -> None:
            self.done.append(f"sync {self._kind(Path(os.readlink(f'/proc/self/fd/{fd}')))}")
            really(fd)

        monkeypatch.setattr(os, "fsync", record)

    def reached(self, point: str) -> None:
        self.done.append(point)

    def _kind(self, file: Path) -> str:
        if file.suffix == ".parquet":
            return "data" if "_delta_log" not in file.parts else "checkpoint"
        if file == self._path:
            return "folder"
        return {"_delta_log": "log folder", "_last_checkpoint": "last checkpoint"}.get(
            file.name, "entry" if file.suffix == ".json" else file.name
        )


def test_an_append_is_synced_before_it_can_be_seen_and_before_it_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_events(path)
    steps = Steps(monkeypatch, path)
    delta.append(
        table, path, rows.events(1, 10).to_batches(), app="sealer", version=10, reached=steps.reached
    )
    assert steps.done == [
        "written",
        "sync data",
        "sync folder",
        "file synced",
        "committing",
        "committed",
        "sync entry",
        "sync log folder",
        "entry synced",
    ]


def test_making_a_table_is_synced_with_the_folder_it_stands_in(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, path)
    open_events(path)
    assert steps.done == ["sync folder", "sync entry", "sync log folder", "sync lake"]


def test_a_merge_is_synced_with_its_files_and_their_folders_before_it_returns(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, kept)
    merge(kept, folded(1, 20), 20)
    found = ["sync folder", "sync entry", "sync log folder"]  # what stood there before
    assert steps.done == [
        *found,
        "sync data",
        "sync data",
        "sync bucket=1",
        "sync bucket=0",
        "sync folder",
        "sync entry",
        "sync log folder",
    ]


def test_an_entry_that_cannot_be_synced_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_events(path)
    really = os.fsync

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("1.json"):
            raise OSError(5, "Input/output error")
        really(fd)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LakeUnusable, match="Input/output error"):
        delta.append(table, path, rows.events(1, 10).to_batches(), app="sealer", version=10)
    assert delta.version_of(path, "sealer") is None
    monkeypatch.undo()

    seal(path, 1, 10)
    assert delta.open_table(path).to_pyarrow_table().num_rows == 10


def test_an_entry_that_was_committed_and_not_synced_is_synced_before_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_events(path)

    def fail(point: str) -> None:
        if point == "committed":
            raise RuntimeError("between commit and sync")

    with pytest.raises(RuntimeError):
        delta.append(table, path, rows.events(1, 10).to_batches(), app="sealer", version=10, reached=fail)
    steps = Steps(monkeypatch, path)
    seal(path, 11, 20)
    assert steps.done[:4] == ["sync data", "sync folder", "sync entry", "sync log folder"]
    assert delta.open_table(path).to_pyarrow_table().num_rows == 20


def test_an_entry_that_stood_there_before_is_never_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(path, 1, 10)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(LakeUnusable, match="Input/output error"):
            seal(path, 11, 20)
    assert delta.version_of(path, "sealer") == 10


def test_the_table_says_how_far_it_goes(path: Path) -> None:
    assert delta.version_of(path, "sealer") is None
    seal(path, 1, 300)
    seal(path, 301, 500)
    assert delta.version_of(path, "sealer") == 500
    assert delta.version_of(path, "pipeline") is None


def test_no_rows_move_the_version_and_leave_no_file(path: Path) -> None:
    table = open_events(path)
    assert delta.append(table, path, [], app="sealer", version=7) == 0
    assert delta.version_of(path, "sealer") == 7
    assert [entry.name for entry in path.iterdir()] == ["_delta_log"]


def test_what_is_appended_is_read_back_alike_by_delta_rs_polars_and_duckdb(path: Path) -> None:
    for lo in range(1, 1_000, 100):
        seal(path, lo, lo + 99)
    expected = rows.events(1, 1_000)
    by_delta_rs = DeltaTable(path).to_pyarrow_table().sort_by("offset")
    assert by_delta_rs.cast(EVENTS) == expected

    by_polars = polars.scan_delta(str(path)).sort("offset").collect().to_arrow()
    assert by_polars.select(EVENTS.names).cast(EVENTS) == expected

    uris = DeltaTable(path).file_uris()
    by_duckdb = duckdb.read_parquet(uris).order('"offset"').to_arrow_table()
    some = ["offset", "message_id", "topics"]
    assert by_duckdb.select(some).to_pylist() == expected.select(some).to_pylist()
    dataset = duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset())
    assert dataset.aggregate('count(*), max("at")').fetchall() == [(1_000, expected["at"][-1].as_py())]


def test_files_are_found_by_offset_and_by_moment_to_the_microsecond(path: Path) -> None:
    for lo in range(1, 1_000, 100):
        seal(path, lo, lo + 99)
    found = delta.files(path, 150, 301)
    assert [(file.low, file.high, file.rows) for file in found] == [
        (101, 200, 100),
        (201, 300, 100),
        (301, 400, 100),
    ]
    assert [file.low for file in delta.files(path, 1, 3, column="sequence")] == [1]

    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(rows.moment(200)))
    assert found[0].last_at == last
    of_the_moment = polars.scan_delta(str(path)).filter(polars.col("at") == last).collect()
    assert of_the_moment["offset"].to_list() == [200]


def test_bodies_have_no_statistics(tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    table = delta.open_or_create(path, PAYLOADS, statistics=["sequence", "at"])
    delta.append(table, path, rows.payloads(1, 100), app="sealer", version=100)
    (file,) = delta.files(path, 1, 100, column="sequence")
    columns = parquet.ParquetFile(file.path).metadata.row_group(0)
    by_name = {columns.column(i).path_in_schema: columns.column(i) for i in range(columns.num_columns)}
    assert by_name["body"].statistics is None
    assert by_name["sequence"].statistics.max == 100
    entry = entry_path(path, 1).read_text()
    assert "body" not in entry


def test_a_merge_and_its_version_are_one_commit(kept: Path) -> None:
    merge(kept, folded(1, 40), 40)
    assert DeltaTable(kept).version() == 1
    merge(kept, folded(30, 60, state="F"), 60)
    table = DeltaTable(kept)
    assert table.version() == 2
    assert table.transaction_version("pipeline") == 60
    kinds = [next(iter(json.loads(line))) for line in entry_path(kept, 2).read_text().splitlines()]
    assert kinds.count("txn") == 1
    assert kinds[-1] == "txn"

    found = {row["sequence"]: row for row in table.to_pyarrow_table().to_pylist()}
    assert sorted(found) == list(range(1, 60))
    assert {(row["state"], row["attempts"]) for row in found.values() if row["sequence"] < 30} == {("Q", 1)}
    assert {(row["state"], row["attempts"]) for row in found.values() if 30 <= row["sequence"] < 40} == {
        ("F", 2)
    }
    assert {(row["state"], row["attempts"]) for row in found.values() if row["sequence"] >= 40} == {("F", 1)}


def test_a_merge_leaves_other_buckets_alone(kept: Path) -> None:
    merge(kept, folded(0, 160), 160)
    before = set(DeltaTable(kept).file_uris())
    figures = merge(kept, folded(35, 40), 165)
    after = set(DeltaTable(kept).file_uris())
    assert len(before - after) == len(after - before) == 1
    assert figures["num_target_files_scanned"] == 1


def test_rows_are_replaced_where_a_predicate_holds_in_one_commit(kept: Path) -> None:
    merge(kept, folded(0, 48), 48)
    delta.replace_where(kept, folded(16, 20, state="X"), "bucket = 1", app="pipeline", version=50)
    table = DeltaTable(kept)
    assert (table.version(), table.transaction_version("pipeline")) == (2, 50)
    found = {row["sequence"]: row["state"] for row in table.to_pyarrow_table().to_pylist()}
    assert sorted(found) == [*range(0, 20), *range(32, 48)]
    assert {sequence for sequence, state in found.items() if state == "X"} == {16, 17, 18, 19}

    delta.replace_where(kept, folded(0, 0), "bucket = 1", app="pipeline", version=51)
    assert sorted(DeltaTable(kept).to_pyarrow_table()["sequence"].to_pylist()) == [
        *range(0, 16),
        *range(32, 48),
    ]


@pytest.mark.parametrize(
    "configuration",
    [{"delta.enableDeletionVectors": "true"}, {"delta.columnMapping.mode": "name"}],
    ids=["deletion vectors", "column mapping"],
)
def test_a_table_of_a_foreign_protocol_is_refused_in_one_line(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    DeltaTable.create(tmp_path / "t", EVENTS, configuration=configuration)
    with pytest.raises(LakeUnusable, match=r"protocol .* reads \(1, 2\) only") as refused:
        delta.open_table(tmp_path / "t")
    assert "\n" not in str(refused.value)


def test_what_is_no_table_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for path in (tmp_path / "t", tmp_path / "nowhere"):
        with pytest.raises(LakeUnusable, match="is no Delta table") as refused:
            delta.open_table(path)
        assert "\n" not in str(refused.value)


def test_a_table_with_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", pa.schema([("offset", pa.string())]))
    with pytest.raises(LakeUnusable, match="has offset as string"):
        delta.open_or_create(tmp_path / "t", EVENTS, statistics=["offset"])


def test_columns_are_added_to_a_table_that_has_rows_already(path: Path) -> None:
    seal(path, 1, 10)
    more = pa.schema([*EVENTS, pa.field("colour", pa.string())])
    table = delta.open_or_create(path, more, statistics=["offset", "sequence", "at"])
    coloured = rows.events(11, 12).append_column("colour", pa.array(["red", "blue"]))
    delta.append(table, path, coloured.to_batches(), app="sealer", version=12)
    found = delta.open_table(path).to_pyarrow_table().sort_by("offset")
    assert found["colour"].to_pylist() == [None] * 10 + ["red", "blue"]
    assert delta.version_of(path, "sealer") == 12


def test_every_hundredth_entry_has_a_synced_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_events(path)
    for version in range(1, 100):
        delta.append(table, path, [], app="sealer", version=version)
    steps = Steps(monkeypatch, path)
    delta.append(table, path, [], app="sealer", version=100)
    assert steps.done[-3:] == ["sync checkpoint", "sync last checkpoint", "sync log folder"]
    assert (path / "_delta_log" / f"{100:020d}.checkpoint.parquet").exists()
    assert delta.version_of(path, "sealer") == 100
    assert mend(path) == []


def test_where_a_file_system_cannot_be_synced_as_a_whole_each_file_and_folder_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(path, 1, 10)
    steps = Steps(monkeypatch, path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "platform", "darwin")
        syncing.sync_everything(path)
    assert sorted(steps.done) == ["sync data", "sync entry", "sync entry", "sync folder", "sync log folder"]
