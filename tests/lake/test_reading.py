"""Reading the sealed half: exact ranges, few files opened, and everyone else's readers at any moment."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from tests.lake import rows
from tests.lake.dying import moment_of
from waypost.arrow import EVENTS
from waypost.errors import LakeUnusable
from waypost.lake import delta, maintaining, reading, sealing
from waypost.lake.owner import SEALER, Lake

HEAD = 1_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    sealing.seal_upto(rows.Source(HEAD), lake, range_events=100)
    return lake


def table(lake: Lake, lo: int, hi: int, columns: list[str] | None = None) -> pa.Table:
    return pa.Table.from_batches(reading.events(lake, lo, hi, columns))


@pytest.mark.parametrize(("lo", "hi"), [(1, HEAD), (1, 1), (HEAD, HEAD), (150, 151), (95, 405), (101, 200)])
def test_a_range_has_exactly_its_events_in_order(lake: Lake, lo: int, hi: int) -> None:
    assert table(lake, lo, hi) == rows.events(lo, hi)


def test_columns_come_as_asked_for_also_without_the_offset(lake: Lake) -> None:
    assert table(lake, 95, 405, ["to_state", "at"]) == rows.events(95, 405).select(["to_state", "at"])


def test_columns_that_are_younger_than_a_file_are_null_there(lake: Lake) -> None:
    schema = pa.schema([*EVENTS, pa.field("colour", pa.string())])
    opened = delta.open_or_create(lake.events, schema, statistics=sealing.EVENT_STATISTICS)
    more = rows.events(HEAD + 1, HEAD + 1).append_column("colour", pa.array(["red"]))
    delta.append(opened, lake.events, more.to_batches(), app=SEALER, version=HEAD + 1)
    assert table(lake, HEAD, HEAD + 1, ["colour"])["colour"].to_pylist() == [None, "red"]


def test_only_the_files_of_a_range_are_opened(lake: Lake) -> None:
    needed = {file.path for file in delta.files(lake.events, 301, 400)}
    for file in lake.events.glob("*.parquet"):
        if file not in needed:
            file.unlink()
    assert table(lake, 301, 400) == rows.events(301, 400)
    with pytest.raises(LakeUnusable, match="No such file"):
        table(lake, 301, 401)


def test_only_the_row_groups_of_a_range_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "GROUP_ROWS", 50)
    lake = Lake(tmp_path / "lake")
    sealing.seal_upto(rows.Source(HEAD), lake)
    (file,) = delta.files(lake.events, 1, HEAD)
    groups = parquet.ParquetFile(file.path).metadata
    assert groups.num_row_groups == HEAD // 50
    # Everything but the group of offsets 501 to 550 is overwritten; its columns are read all the same.
    columns = [groups.row_group(10).column(index) for index in range(groups.row_group(10).num_columns)]
    start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
    end = start + sum(column.total_compressed_size for column in columns)
    whole = file.path.read_bytes()
    last = groups.row_group(groups.num_row_groups - 1)
    footer = max(
        (last.column(index).dictionary_page_offset or last.column(index).data_page_offset)
        + last.column(index).total_compressed_size
        for index in range(last.num_columns)
    )
    file.path.write_bytes(
        b"PAR1" + bytes(start - 4) + whole[start:end] + bytes(footer - end) + whole[footer:]
    )
    assert table(lake, 510, 540) == rows.events(510, 540)
    with pytest.raises(LakeUnusable):
        table(lake, 500, 540)


def test_a_range_that_is_not_wholly_there_fails_instead_of_ending_early(lake: Lake) -> None:
    with pytest.raises(LakeUnusable, match="offsets 1001 to 1005 are missing"):
        table(lake, 990, 1_005)
    opened = delta.open_table(lake.events)
    hole = delta.data_files(opened, lake.events)[4]
    delta.rewrite(opened, lake.events, [hole], [], app=SEALER, data_change=True)
    with pytest.raises(LakeUnusable, match="after offset 400 something else follows than 401"):
        table(lake, 390, 510)
    assert table(lake, 501, 600) == rows.events(501, 600)


def test_payloads_are_found_by_sequence_in_any_order(lake: Lake) -> None:
    found = reading.payloads_of(lake, [700, 4, 2, 997, 5_000], ["sequence", "body"])
    assert found.to_pylist() == [{"sequence": n, "body": rows.body(n)} for n in (4, 700, 997)]
    assert reading.payloads_of(lake, []).num_rows == 0


def test_what_stands_in_the_lake_is_known_without_reading_a_row(lake: Lake) -> None:
    files = [*lake.events.glob("*.parquet"), *lake.payloads.glob("*.parquet")]
    size = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    standing = reading.standing(lake)
    assert (standing.oldest, standing.sealed, standing.at) == (1, HEAD, moment_of(HEAD))
    assert (standing.events, standing.payloads, standing.files, standing.size) == (HEAD, 334, 20, size)
    empty = reading.standing(Lake(lake.folder / "nowhere"))
    assert (empty.sealed, empty.oldest, empty.files) == (None, 1, 0)


def test_a_read_that_has_begun_ends_on_the_version_it_began_with(lake: Lake) -> None:
    batches = reading.events(lake, 1, HEAD)
    first = next(batches)
    maintaining.maintain(lake)
    sealing.seal_upto(rows.Source(HEAD + 10), lake)
    assert pa.Table.from_batches([first, *batches]) == rows.events(1, HEAD)


#: reads the newest version again and again, however it is reached, until it is told to stop; says how often
OUTSIDE = """
import json, sys, threading
import numpy as np
import polars, duckdb
from deltalake import DeltaTable

path, told = sys.argv[1], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()

def by_polars():
    return polars.scan_delta(path).select("offset").collect()["offset"].to_numpy()

def by_delta_rs():
    return DeltaTable(path).to_pyarrow_table(columns=["offset"])["offset"].to_numpy()

def by_duckdb():
    uris = DeltaTable(path).file_uris()
    return duckdb.read_parquet(uris).select('"offset"').fetchnumpy()["offset"] if uris else np.empty(0, int)

print("ready", flush=True)
reads, most, last = 0, 0, False
while not last:
    last = told.is_set()
    for read in (by_polars, by_delta_rs, by_duckdb):
        offsets = np.sort(read())
        assert np.array_equal(offsets, np.arange(1, len(offsets) + 1)), (read.__name__, offsets)
        assert len(offsets) >= most, (read.__name__, len(offsets), most)
        most, reads = len(offsets), reads + 1
print(json.dumps([reads, most]))
"""


def test_others_read_the_table_at_any_moment_and_see_each_event_once(lake: Lake) -> None:
    command = [sys.executable, "-c", OUTSIDE, str(lake.events)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        source = rows.Source(HEAD)
        for step in range(60):
            source.grow(50)
            sealing.seal_upto(source, lake)
            if step % 10 == 9:
                maintaining.maintain(lake)
        said = reader.communicate(timeout=60)[0]
    reads, most = json.loads(said)
    assert most == HEAD + 60 * 50
    assert reads >= 6
    assert reader.returncode == 0


def test_a_reader_of_delta_that_knows_nothing_of_waypost_reads_payloads_too(lake: Lake) -> None:
    found: dict[int, Any] = {
        row["sequence"]: row["body"]
        for row in DeltaTable(lake.payloads).to_pyarrow_table(columns=["sequence", "body"]).to_pylist()
    }
    assert found == {sequence: rows.body(sequence) for sequence in range(1, HEAD + 1, 3)}
