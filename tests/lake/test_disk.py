"""A full disk: one clear line, nothing half done, and it goes on when there is room.

The small disk is a tmpfs, so these tests need root.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import miss
from tests.lake import rows
from waypost.errors import LakeFull
from waypost.lake import delta, maintaining, reading, sealing
from waypost.lake.mending import mend
from waypost.lake.owner import SEALER, Lake, claim
from waypost.lake.verifying import Verification

DISK_BYTES = 4 << 20
BODY_BYTES = 4_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        miss("a small disk is a tmpfs, and mounting one needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        miss(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, but: int) -> Path:
    """As others would, until so many bytes are free."""
    space = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - but)
    return filler


@pytest.fixture
def lake(disk: Path) -> Lake:
    lake = Lake(disk / "lake")
    claim(lake, "a store", sealed=None)
    sealing.seal_upto(rows.Source(300), lake)
    return lake


#: room for nothing, for a part of the payloads' file, for the files and not for the entries that name them …
ROOMS = [0, 4_096, 8_192, 16_384, 24_576, 32_768, 49_152, 65_536]


@pytest.mark.parametrize("room", ROOMS)
def test_sealing_onto_a_full_disk_fails_in_one_line_and_goes_on_when_there_is_room(
    lake: Lake, disk: Path, room: int
) -> None:
    filler = fill(disk, room)
    source = rows.Source(2_000, body_bytes=BODY_BYTES)
    with pytest.raises(LakeFull, match=r"no room for .*No space left on device") as full:
        sealing.seal_upto(source, lake, range_events=100)
    assert "\n" not in str(full.value)

    reached = delta.version_of(lake.events, SEALER)
    assert reached is not None
    assert sum(batch.num_rows for batch in reading.events(lake, 1, reached)) == reached
    filler.unlink()
    assert mend(lake.events) == mend(lake.payloads) == []
    assert sealing.seal_upto(source, lake).upto == 2_000
    assert pa.Table.from_batches(reading.events(lake, 1, 2_000)) == rows.events(1, 2_000)
    assert list(Verification(lake, source).findings()) == []
    live = {
        file.path
        for path in (lake.events, lake.payloads)
        for file in delta.files(path, 0, reading.MOST, "sequence")
    }
    assert {file for path in (lake.events, lake.payloads) for file in path.glob("*.parquet")} == live


def test_maintaining_on_a_full_disk_fails_in_one_line_and_loses_nothing(lake: Lake, disk: Path) -> None:
    source = rows.Source(2_000)
    sealing.seal_upto(source, lake, range_events=100)
    filler = fill(disk, 8_192)
    for attempt in (lambda: maintaining.maintain(lake), lambda: maintaining.erase(lake, [1])):
        with pytest.raises(LakeFull, match="no room"):
            attempt()
    assert pa.Table.from_batches(reading.events(lake, 1, 2_000)) == rows.events(1, 2_000)
    filler.unlink()
    maintaining.maintain(lake)
    assert maintaining.erase(lake, [1]) == [1]
    assert list(Verification(lake, source).findings()) == []


def test_a_merge_onto_a_full_disk_fails_in_one_line_and_changes_nothing(disk: Path) -> None:
    path = disk / "messages"
    schema = pa.schema([("bucket", pa.int64()), ("sequence", pa.int64())])
    delta.open_or_create(path, schema, statistics=["sequence"], partition_by=["bucket"])
    few = pa.table({"bucket": [0], "sequence": [1]}, schema=schema)
    delta.merge(path, few, ["bucket", "sequence"], {}, app="pipeline", version=1)
    filler = fill(disk, 4_096)
    many = pa.table({"bucket": [0] * 50_000, "sequence": list(range(2, 50_002))}, schema=schema)
    with pytest.raises(LakeFull, match=r"no room for .*No space left on device"):
        delta.merge(path, many, ["bucket", "sequence"], {}, app="pipeline", version=2)
    assert delta.version_of(path, "pipeline") == 1
    filler.unlink()
    assert mend(path) == []
    delta.merge(path, many, ["bucket", "sequence"], {}, app="pipeline", version=2)
    assert delta.open_table(path).count() == 50_001
