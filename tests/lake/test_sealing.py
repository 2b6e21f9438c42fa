"""Sealing: nothing lost, nothing doubled, wherever it stops."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import rows
from tests.lake.dying import HEAD, moment_of
from waypost.errors import LakeUnusable
from waypost.lake import delta, reading, sealing
from waypost.lake.owner import SEALER, Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory where there is one: a process that dies there leaves the same behind, and syncs take no time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="waypost-dying-", dir=memory) as folder:
        yield Path(folder)


def events_in(lake: Lake, lo: int, hi: int) -> pa.Table:
    return pa.Table.from_batches(reading.events(lake, lo, hi))


def payloads_in(lake: Lake) -> pa.Table:
    return pa.Table.from_batches(reading.payloads(lake, 1, reading.MOST))


def all_rows(path: Path) -> int:
    return int(delta.open_table(path).to_pyarrow_table().num_rows)


def dying(how: str, what: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lake.dying", how, what, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    points: list[str] = json.loads(done.stdout)
    return points


def assert_sealed(lake: Lake, head: int, size: int) -> None:
    assert delta.version_of(lake.events, SEALER) == delta.version_of(lake.payloads, SEALER) == head
    assert all_rows(lake.events) == head
    assert events_in(lake, 1, head) == rows.events(1, head)
    assert payloads_in(lake) == pa.Table.from_batches(rows.payloads(1, head, size=size))


def test_a_log_is_sealed_range_by_range_and_says_how_far_it_is(lake: Lake) -> None:
    heard: list[int] = []
    sealed = sealing.seal_upto(rows.Source(1_000), lake, range_events=300, progress=heard.append)
    assert heard == [300, 600, 900, 1_000]
    assert (sealed.upto, sealed.events, sealed.payloads) == (1_000, 1_000, 334)
    assert_sealed(lake, 1_000, 40)
    assert len(delta.files(lake.events, 1, 1_000)) == 4


def test_sealing_again_does_nothing_until_there_is_more(lake: Lake) -> None:
    source = rows.Source(1_000)
    sealing.seal_upto(source, lake)
    version = delta.open_table(lake.events).version()
    again = sealing.seal_upto(source, lake)
    assert (again.upto, again.events, again.payloads) == (1_000, 0, 0)
    assert delta.open_table(lake.events).version() == version
    source.grow(10)
    assert sealing.seal_upto(source, lake).events == 10
    assert_sealed(lake, 1_010, 40)


def test_sealing_stops_where_it_is_told_and_never_goes_past_the_head(lake: Lake) -> None:
    source = rows.Source(1_000)
    assert sealing.seal_upto(source, lake, 400).upto == 400
    assert sealing.seal_upto(source, lake, 300).upto == 400
    assert sealing.seal_upto(source, lake, 5_000).upto == 1_000
    assert_sealed(lake, 1_000, 40)


def test_many_bodies_become_many_files_of_bounded_size(lake: Lake) -> None:
    source = rows.Source(300, body_bytes=10_000)
    source.batch_rows = 10
    sealing.seal_upto(source, lake, portion_bytes=150_000)
    assert [(file.low, file.high) for file in delta.files(lake.payloads, 1, 300, "sequence")] == [
        (1, 58), (61, 118), (121, 178), (181, 238), (241, 298),
    ]  # fmt: skip
    assert_sealed(lake, 300, 10_000)


def test_a_range_without_messages_is_sealed_in_both_tables(lake: Lake) -> None:
    source = rows.Source(1)
    sealing.seal_upto(source, lake)
    source.grow(2)  # a Q and an F
    assert sealing.seal_upto(source, lake).payloads == 0
    assert delta.version_of(lake.payloads, SEALER) == 3


def test_a_store_whose_log_no_longer_begins_at_1_is_sealed_from_its_oldest(lake: Lake) -> None:
    sealed = sealing.seal_upto(rows.Source(1_000, oldest=301), lake)
    assert sealed.events == 700
    standing = reading.standing(lake)
    assert (standing.oldest, standing.sealed) == (301, 1_000)
    assert events_in(lake, 301, 1_000) == rows.events(301, 1_000)


def test_a_gap_between_lake_and_store_is_refused(lake: Lake) -> None:
    sealing.seal_upto(rows.Source(100), lake)
    with pytest.raises(LakeUnusable, match="goes up to offset 100 and the store's log begins at 151"):
        sealing.seal_upto(rows.Source(200, oldest=151), lake)


def test_a_store_that_gives_other_rows_than_asked_for_is_refused_and_nothing_of_it_is_sealed(
    lake: Lake,
) -> None:
    class Lossy(rows.Source):
        def events(self, lo: int, hi: int) -> pa.Table:
            return super().events(lo, hi).slice(0, hi - lo)

    with pytest.raises(LakeUnusable, match="other rows than offsets 1 to 100"):
        sealing.seal_upto(Lossy(100), lake)
    assert delta.version_of(lake.events, SEALER) is None
    assert sealing.seal_upto(rows.Source(100), lake).upto == 100
    assert_sealed(lake, 100, 40)


def test_a_lake_that_lost_one_of_its_tables_is_refused(lake: Lake) -> None:
    sealing.seal_upto(rows.Source(100), lake)
    lake.payloads.rename(lake.folder / "elsewhere")
    with pytest.raises(LakeUnusable, match="payloads is missing"):
        sealing.seal_upto(rows.Source(200), lake)


def test_a_body_that_was_erased_before_it_was_sealed_has_a_row_without_it(lake: Lake) -> None:
    source = rows.Source(30)
    source.erased = {4}
    sealing.seal_upto(source, lake)
    found = reading.payloads_of(lake, [1, 4], ["sequence", "body", "size"])
    assert found.to_pylist() == [
        {"sequence": 1, "body": rows.body(1), "size": 40},
        {"sequence": 4, "body": None, "size": 40},
    ]


def test_a_sealer_that_dies_at_any_step_loses_and_doubles_nothing(quick: Path) -> None:
    points = dying("each", "seal", quick)
    of_an_append = ["written", "file synced", "committing", "committed", "entry synced"]
    of_a_range = [
        f"{table} {point}" for table in ("payloads", "payloads", "message_events") for point in of_an_append
    ]
    assert points == ["payloads made", "message_events made", *of_a_range, *of_a_range]
    for step in range(1, len(points) + 2):
        assert_sealed(Lake(quick / str(step)), HEAD, 1_000)


@pytest.mark.parametrize("seed", [1, 2])
def test_sealers_that_die_again_and_again_lose_and_double_nothing(quick: Path, seed: int) -> None:
    assert dying("often", str(seed), quick)
    assert_sealed(Lake(quick / "often"), HEAD, 1_000)


def test_a_compaction_that_dies_at_any_step_loses_and_doubles_nothing(quick: Path) -> None:
    points = dying("each", "compact", quick)
    assert "message_events committed" in points
    assert "payloads file synced" in points
    for step in range(1, len(points) + 2):
        lake = Lake(quick / str(step))
        assert_sealed(lake, HEAD, 1_000)
        assert len(delta.files(lake.events, 1, HEAD)) == 1


def test_forgetting_that_dies_at_any_step_ends_at_the_same_oldest(quick: Path) -> None:
    points = dying("each", "forget", quick)
    assert "message_events committed" in points
    assert "payloads committed" in points
    for step in range(1, len(points) + 2):
        lake = Lake(quick / str(step))
        assert reading.standing(lake).oldest == 31
        assert events_in(lake, 31, HEAD) == rows.events(31, HEAD)
        assert all_rows(lake.events) == HEAD - 30
        assert payloads_in(lake)["sequence"].to_pylist() == list(range(31, HEAD, 3))
        assert reading.standing(lake).at == moment_of(HEAD)


def test_erasing_that_dies_at_any_step_erases_when_repeated(quick: Path) -> None:
    points = dying("each", "erase", quick)
    assert points.count("payloads committed") == 3
    for step in range(1, len(points) + 2):
        found = payloads_in(Lake(quick / str(step)))
        without = [row["sequence"] for row in found.to_pylist() if row["body"] is None]
        assert without == [1, 43, 88]
        assert found["sequence"].to_pylist() == list(range(1, HEAD + 1, 3))


def test_files_that_are_away_for_a_while_cost_nothing_that_the_store_has_forgotten(lake: Lake) -> None:
    source = rows.Source(300)
    for upto in (100, 200, 300):
        sealing.seal_upto(source, lake, upto)
    away = lake.folder / "away"
    away.mkdir()
    files = list(lake.events.glob("*.parquet"))
    for file in files:
        file.rename(away / file.name)
    with pytest.raises(LakeUnusable, match="the store has those events no more: bring the lake's files back"):
        sealing.prepare(lake, oldest=250)
    for file in files:
        (away / file.name).rename(file)
    assert sealing.prepare(lake, oldest=250) == []
    assert delta.version_of(lake.events, SEALER) == 300


def test_what_the_store_still_has_is_taken_back_and_sealed_again(lake: Lake) -> None:
    source = rows.Source(300)
    for upto in (100, 200, 300):
        sealing.seal_upto(source, lake, upto)
    newest = max(lake.events.glob("201-300-*.parquet"))
    newest.unlink()
    assert len(sealing.prepare(lake, oldest=150)) == 1
    assert sealing.seal_upto(source, lake).upto == 300
