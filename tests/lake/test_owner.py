"""Whose lake it is, and who writes to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waypost.errors import LakeUnusable
from waypost.lake.owner import PIPELINE, SEALER, Lake, check_owner, claim, owner, writing


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "data" / "lake")


def test_the_first_sealer_makes_the_lake_its_stores(lake: Lake) -> None:
    check_owner(lake, "store-1", sealed=None)
    assert not lake.folder.exists()
    claim(lake, "store-1", sealed=None)
    assert owner(lake) == "store-1"
    assert lake.label.read_text() == '{"format": 1, "store": "store-1"}\n'
    claim(lake, "store-1", sealed=500)


def test_a_lake_that_waypost_makes_is_private_and_one_that_was_there_stays_as_it_is(lake: Lake) -> None:
    claim(lake, "store-1", sealed=None)
    assert lake.folder.stat().st_mode & 0o777 == 0o700
    lake.folder.chmod(0o750)
    with writing(lake, SEALER):
        assert lake.folder.stat().st_mode & 0o777 == 0o750


def test_another_stores_lake_is_refused_and_left_alone(lake: Lake) -> None:
    claim(lake, "store-1", sealed=None)
    for attempt in (check_owner, claim):
        with pytest.raises(LakeUnusable, match="lake of another store, store-1"):
            attempt(lake, "store-2", None)
    assert owner(lake) == "store-1"


def test_an_empty_lake_is_refused_by_a_store_that_has_sealed_before(lake: Lake) -> None:
    with pytest.raises(LakeUnusable, match="which has sealed up to offset 500"):
        check_owner(lake, "store-1", sealed=500)


def test_tables_that_are_nobodys_are_refused(lake: Lake) -> None:
    (lake.events / "_delta_log").mkdir(parents=True)
    with pytest.raises(LakeUnusable, match="has tables and no lake"):
        claim(lake, "store-1", sealed=None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "says nothing of its store"),
        ("[]", "says nothing of its store"),
        ('{"format": 1}', "says nothing of its store"),
        ('{"format": 2, "store": "store-1"}', "has the format 2"),
    ],
)
def test_a_label_that_cannot_be_understood_is_refused(lake: Lake, text: str, says: str) -> None:
    lake.folder.mkdir(parents=True)
    lake.label.write_text(text)
    with pytest.raises(LakeUnusable, match=says):
        check_owner(lake, "store-1", sealed=None)


def test_a_file_where_the_lake_should_be_is_refused(lake: Lake) -> None:
    lake.folder.parent.mkdir()
    lake.folder.write_text("")
    with pytest.raises(LakeUnusable, match="is not a folder"):
        claim(lake, "store-1", sealed=None)


def test_one_process_at_a_time_writes_and_the_next_one_may_wait(lake: Lake) -> None:
    claim(lake, "store-1", sealed=None)
    script = (
        "import sys; from pathlib import Path; from waypost.lake.owner import *\n"
        "with writing(Lake(Path(sys.argv[1])), SEALER): print('has it', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(lake.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"has it\n"
        with (
            pytest.raises(LakeUnusable, match=f"another sealer writes to .*: process {other.pid}"),
            writing(lake, SEALER),
        ):
            pass
        with writing(lake, PIPELINE):
            pass
        other.stdin.close()
        with writing(lake, SEALER, wait=True):
            assert other.wait(20) == 0


def test_asking_whose_it_is_loads_neither_arrow_nor_delta() -> None:
    script = (
        "import sys, waypost.lake.owner; print([m for m in ('pyarrow', 'deltalake') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
