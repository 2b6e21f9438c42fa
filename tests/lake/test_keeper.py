"""The keeper in a real broker: what it does by itself, and what it does when its child, or the lake, fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import miss
from tests.lake.brokers import SOON, WHEN_ASKED, LakeBroker, eventually
from tests.lake.traffic import many, of_every_kind, opened
from waypost.commands import Reap
from waypost.errors import LakeUnusable
from waypost.http.schemas import ARROW
from waypost.instants import SECOND
from waypost.lake import delta, reading
from waypost.lake.keeper import LONGEST_WAIT_SECONDS, Keeper, Pace, is_seal_due, wait_after
from waypost.lake.owner import SEALER, Lake, writing
from waypost.testing import MovableClock

DAY = 86_400.0


def lake_events(folder: Path, lo: int, hi: int) -> list[int]:
    """Offsets."""
    return [
        n for batch in reading.events(Lake(folder), lo, hi, ["offset"]) for n in batch["offset"].to_pylist()
    ]


def bodies(folder: Path) -> dict[str, bytes | None]:
    found = reading.payloads(Lake(folder), 1, reading.MOST, ["message_id", "body"])
    return {row["message_id"]: row["body"] for batch in found for row in batch.to_pylist()}


def forget(broker: LakeBroker) -> None:
    """All that may be forgotten now."""

    async def reap() -> None:
        while await broker.serving.broker.ask(Reap()):
            pass

    broker.await_(reap())


def is_replaced(keeper: Keeper, pid: int) -> bool:
    return keeper.pid not in (None, pid)


# ── deciding ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("unsealed", "waited", "due"),
    [(0, 1e9, False), (1, 59.9, False), (1, 60.0, True), (499_999, 1.0, False), (500_000, 0.0, True)],
)
def test_a_seal_is_due_after_a_while_or_when_there_is_much(unsealed: int, waited: float, due: bool) -> None:
    assert is_seal_due(Pace(), unsealed, waited) is due


def test_what_fails_again_and_again_is_tried_ever_later() -> None:
    assert [wait_after(failures) for failures in range(6)] == [0, 0, 1, 2, 4, 8]
    assert wait_after(1_000) == LONGEST_WAIT_SECONDS


# ── sealing ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_started_until_it_is_needed_and_then_events_are_sealed_by_themselves(
    tmp_path: Path,
) -> None:
    with LakeBroker(tmp_path, pace=SOON) as broker:
        assert broker.get("/v1/lake")["sealing"]["process"] is None
        broker.publish("/in/fruit.apple")
        status = eventually(lambda: (found := broker.get("/v1/lake"))["sealed"] == 2 and found, "sealed")
        assert (status["head"], status["lag"], status["oldest"], status["failure"]) == (2, 0, 1, None)
        assert status["lake"] == str(tmp_path / "lake")
        assert status["sealing"]["events"] == 2
        assert status["sealing"]["process"] != os.getpid()
        assert lake_events(tmp_path / "lake", 1, 2) == [1, 2]
        assert json.loads((tmp_path / "lake" / "lake.json").read_text())["store"] == status["store"]


def test_a_seal_that_is_asked_for_has_all_that_was_committed(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        assert broker.seal() == 0
        for number in range(20):
            broker.publish("/in/fruit.apple", str(number))
        assert broker.seal() == 40
        assert broker.seal() == 40
        assert lake_events(tmp_path / "lake", 1, 40) == list(range(1, 41))


def test_so_many_events_are_sealed_before_their_time(tmp_path: Path) -> None:
    pace = Pace(seal_seconds=3_600, seal_events=10, look_seconds=0.05)
    with LakeBroker(tmp_path, pace=pace) as broker:
        for number in range(5):
            broker.publish("/in/fruit.apple", str(number))
        eventually(lambda: broker.get("/v1/lake")["sealed"] == 10, "sealed")


def test_a_log_grows_and_is_sealed_at_once_without_a_gap(tmp_path: Path) -> None:
    with LakeBroker(tmp_path, pace=Pace(seal_seconds=0.0, look_seconds=0.01)) as broker:
        stop = threading.Event()

        def publish() -> None:
            number = 0
            while not stop.is_set():
                broker.publish("/in/fruit.apple", str(number))
                number += 1

        threads = [threading.Thread(target=publish) for _ in range(3)]
        for thread in threads:
            thread.start()
        seen: set[int] = set()

        def several() -> bool:
            seen.add(broker.get("/v1/lake")["sealed"])
            return len(seen) > 5

        eventually(several, "several seals")
        stop.set()
        for thread in threads:
            thread.join()
        sealed = broker.seal()
        assert sealed == broker.get("/v1/lake")["head"]
        assert lake_events(tmp_path / "lake", 1, sealed) == list(range(1, sealed + 1))
        assert len(bodies(tmp_path / "lake")) * 2 == sealed


def test_a_broker_that_is_stopped_leaves_no_process_behind(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
        pid = broker.keeper.pid
        assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_a_lake_that_is_there_is_opened_and_mended_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
    newest = max((tmp_path / "lake" / "message_events" / "_delta_log").glob("*.json"))
    torn = newest.with_name(f"{int(newest.stem) + 1:020d}.json")
    torn.write_text('{"commitInfo":{"way')
    with LakeBroker(tmp_path) as broker:
        eventually(lambda: broker.call(lambda: broker.keeper._opened_by is not None), "opened")
        assert not torn.exists()
        assert broker.get("/v1/lake")["failure"] is None
    assert f"lake: {torn} is torn: taken back" in caplog.text


def test_the_store_hears_of_what_a_broker_that_died_had_sealed(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
        saved = tmp_path / "saved.db"
        shutil.copy(tmp_path / "waypost.db", saved)
    # The lake has more than the store knows to be sealed.
    store = opened(tmp_path / "waypost.db")
    many(store, 100)
    head = store.bounds()[1]
    store.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "waypost.db", copy / "waypost.db")
    shutil.copytree(tmp_path / "lake", copy / "lake")
    with LakeBroker(tmp_path) as broker:
        assert broker.seal() == head
    shutil.rmtree(copy / "lake")
    shutil.copytree(tmp_path / "lake", copy / "lake")
    with LakeBroker(copy) as broker:
        eventually(lambda: broker.get("/v1/lake")["sealed"] == head, "told")
        assert broker.get("/v1/lake")["failure"] is None


# ── failing ─────────────────────────────────────────────────────────────────────────────────────


def test_a_child_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        for number in range(3):
            broker.publish("/in/fruit.apple", str(number))
            sealed = broker.seal()
            pid = broker.keeper.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            eventually(partial(is_replaced, broker.keeper, pid), "another")
        eventually(lambda: broker.get("/v1/lake")["failure"] is None, "in order")
        assert broker.get("/v1/lake")["sealing"]["failures"] == 3
        assert lake_events(tmp_path / "lake", 1, sealed) == list(range(1, sealed + 1))


def test_a_lake_that_cannot_be_used_does_not_hinder_the_broker(tmp_path: Path) -> None:
    label = tmp_path / "lake" / "lake.json"
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
    ours = label.read_text()
    label.write_text(ours.replace('"store": "', '"store": "another'))
    with LakeBroker(tmp_path, pace=SOON) as broker:
        failure = eventually(lambda: broker.get("/v1/lake")["failure"], "failed")
        assert "lake of another store" in failure
        broker.publish("/in/fruit.apple")
        ready = broker.get("/health/ready")
        assert (ready["status"], ready["lake"]["failure"]) == ("ready", failure)
        assert ready["lake"]["lag"] == 2
        metrics = broker.ask("GET", "/metrics").body.decode()
        assert "waypost_lake_failing 1.0" in metrics
        assert "waypost_lake_lag_events 2.0" in metrics
        refused = broker.patient("POST", "/v1/lake/seal")
        assert (refused.status, refused.code) == (503, "LAKE_UNAVAILABLE")
        assert "another store" in refused.json()["detail"]
        # What the store still has is read without it.
        assert len(broker.events("/log")) == 4
        assert broker.arrow("/log").num_rows == 4
        assert len(broker.events("/log?payload=1")) == 4
        label.write_text(ours)
        assert broker.seal() == 4
        assert broker.get("/v1/lake")["failure"] is None


def test_an_older_copy_of_the_store_does_not_write_over_a_newer_lake(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
    shutil.copytree(tmp_path, tmp_path / "old")
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
    with LakeBroker(tmp_path / "old", lake=tmp_path / "lake") as broker:
        failure = eventually(lambda: broker.get("/v1/lake")["failure"], "failed")
        assert "the store's log only to 2: was an older copy of the store restored?" in failure
        for _ in range(2):  # as far as the lake goes, and further
            broker.publish("/in/fruit.pear")
            refused = broker.patient("POST", "/v1/lake/seal")
            assert (refused.status, "another event at 4" in refused.json()["detail"]) == (503, True)
    assert lake_events(tmp_path / "lake", 1, 4) == [1, 2, 3, 4]


# ── erasing, maintaining ────────────────────────────────────────────────────────────────────────


def test_an_erased_payload_goes_from_the_store_and_from_the_lake(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        sealed = broker.publish("/in/fruit.apple", "secret")
        kept = broker.publish("/in/fruit.apple", "kept")
        broker.seal()
        unsealed = broker.publish("/in/fruit.apple", "secret too")
        for id in (sealed, unsealed):
            answer = broker.ask("DELETE", f"/v1/messages/{id}/payload")
            assert (answer.status, answer.json()) == (202, {"id": id, "erased": True})
            assert broker.ask("GET", f"/v1/messages/{id}/payload").status == 410
        lines = {
            line["messageId"]: line for line in broker.events("/log?payload=1") if line["toState"] == "L"
        }
        assert [lines[id]["body"] for id in (sealed, kept, unsealed)] == [None, "kept", None]
        broker.seal()
        eventually(lambda: broker.get("/v1/lake")["sealing"]["erasures"] == 0, "erased")
        assert bodies(tmp_path / "lake") == {sealed: None, kept: b"kept", unsealed: None}


def test_a_message_that_the_store_has_forgotten_is_erased_in_the_lake(tmp_path: Path) -> None:
    clock = MovableClock()
    with LakeBroker(tmp_path, store={"clock": clock}) as broker:
        ids = [
            broker.publish("/in/fruit.apple", "secret"),
            broker.publish("/in/fruit.apple", "s", x_message_id="own"),
        ]
        for _ in ids:
            broker.confirm("fruit", broker.ask("GET", "/queue/fruit").headers["waypost-receipt"])
        broker.seal()
        clock.move(30 * DAY)
        forget(broker)
        forget(broker)
        for id in ids:
            assert broker.ask("GET", f"/v1/messages/{id}").status == 404
            assert bodies(tmp_path / "lake")[id] is not None
            answer = broker.patient("DELETE", f"/v1/messages/{id}/payload")
            assert (answer.status, answer.json()) == (202, {"id": id, "erased": True})
        eventually(lambda: set(bodies(tmp_path / "lake").values()) == {None}, "erased")
        assert broker.patient("DELETE", "/v1/messages/never-there/payload").status == 404


def test_maintenance_puts_small_files_together_and_forgets_what_is_too_old(tmp_path: Path) -> None:
    with LakeBroker(tmp_path, keep_us=3_600 * SECOND) as broker:
        for number in range(5):
            broker.publish("/in/fruit.apple", str(number))
            broker.seal()
        table = tmp_path / "lake" / "message_events"
        assert len(delta.files(table, 1, 10)) == 5
        answer = broker.patient("POST", "/v1/lake/maintain")
        assert (answer.status, answer.json()["forgotten"]) == (200, 0)
        assert len(delta.files(table, 1, 10)) == 1
        assert lake_events(tmp_path / "lake", 1, 10) == list(range(1, 11))


def test_maintenance_comes_by_itself_when_it_is_due(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
    pace = Pace(seal_seconds=3_600, look_seconds=0.05, maintain_seconds=0.5)
    stamp = tmp_path / "lake" / ".maintained"
    with LakeBroker(tmp_path, pace=pace):
        eventually(stamp.exists, "maintained")


def test_what_is_older_than_the_lake_keeps_is_gone_for_good(tmp_path: Path) -> None:
    # The store's clock stands in the past, the lake's maintenance knows the real time.
    clock = MovableClock(1_700_000_000 * SECOND)
    with LakeBroker(tmp_path, keep_us=3_600 * SECOND, store={"clock": clock}) as broker:
        for number in range(3):
            broker.publish("/in/fruit.apple", str(number))
        broker.seal()
        clock.move(30 * DAY)
        forget(broker)
        assert broker.get("/v1/lake")["oldest"] == 1
        assert broker.patient("POST", "/v1/lake/maintain").json()["forgotten"] == 6
        answer = broker.ask("GET", "/log?from=1")
        assert (answer.status, answer.code) == (410, "LOG_TRIMMED")
        assert answer.headers["waypost-oldest"] == "7"


def test_every_kind_of_event_comes_back_from_the_lake_as_it_went_in(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    of_every_kind(store)
    store.close()
    with LakeBroker(tmp_path, pace=WHEN_ASKED) as broker:
        before: list[dict[str, Any]] = broker.events("/log?payload=1")
        whole = broker.arrow("/log")
        head = broker.seal()
        assert broker.events("/log?payload=1") == before
        assert broker.arrow("/log") == whole
        assert len(before) == head


def test_the_child_holds_the_lakes_lock_while_it_lives(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
        with (
            pytest.raises(LakeUnusable, match=f"process {broker.keeper.pid}"),
            writing(Lake(tmp_path / "lake"), SEALER),
        ):
            pass
    with writing(Lake(tmp_path / "lake"), SEALER):
        pass


def test_a_lake_that_was_put_back_from_a_copy_is_sealed_again_from_there(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
        shutil.copytree(tmp_path / "lake", tmp_path / "copy")
        broker.publish("/in/fruit.apple")
        assert broker.seal() == 4
    shutil.rmtree(tmp_path / "lake")
    (tmp_path / "copy").rename(tmp_path / "lake")
    with LakeBroker(tmp_path) as broker:
        eventually(lambda: broker.get("/v1/lake")["sealed"] == 2, "known")
        assert broker.get("/v1/lake")["lag"] == 2
        assert broker.seal() == 4
        assert lake_events(tmp_path / "lake", 1, 4) == [1, 2, 3, 4]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        miss("a small disk is a tmpfs, and mounting one needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={8 << 20}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        miss(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_sealing_and_nothing_else(tmp_path: Path, small_disk: Path) -> None:
    with LakeBroker(tmp_path, lake=small_disk / "lake") as broker:
        broker.publish("/in/fruit.apple", "first")
        assert broker.seal() == 2
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(os.urandom(1 << 16))
        large = os.urandom(1 << 20)
        for _ in range(3):
            broker.publish("/in/fruit.apple", large)
        refused = broker.patient("POST", "/v1/lake/seal")
        assert (refused.status, refused.code) == (503, "LAKE_UNAVAILABLE")
        assert "no room" in refused.json()["detail"]
        assert broker.get("/v1/lake")["lag"] == 6
        assert broker.ask("GET", "/queue/fruit").body == b"first"
        filler.unlink()
        assert broker.seal() == 9
        assert broker.get("/v1/lake")["failure"] is None
        assert list(bodies(small_disk / "lake").values()) == [b"first", large, large, large]


def test_a_reader_of_a_damaged_file_does_not_keep_others_from_sealing(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        for _ in range(2):
            broker.publish("/in/fruit.apple")
            broker.seal()
        (file,) = delta.files(tmp_path / "lake" / "message_events", 1, 2)
        file.path.unlink()
        for _ in range(5):
            refused = broker.patient("GET", "/log", accept=ARROW)
            assert (refused.status, refused.code) == (503, "LAKE_UNAVAILABLE")
        assert file.name in broker.get("/v1/lake")["failure"]
        assert broker.keeper._hold_until <= broker.loop.time()
        broker.publish("/in/fruit.apple")
        assert broker.seal() == 6
        assert broker.get("/v1/lake")["sealing"]["failures"] == 5
