"""A lake that several brokers share: one of them seals, whichever lives; all of them read it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.http.brokers import BrokerInThread
from tests.integration.commands import outside
from tests.lake.brokers import SOON, WHEN_ASKED, LakeBroker, eventually
from tests.lake.test_sealing import quick
from tests.lake.traffic import many, of_every_kind
from tests.postgres.dying import hand_over
from tests.postgres.fixtures import database
from tests.postgres.test_serving import Process
from waypost.arrow import EVENTS
from waypost.commands import ErasePayload, Reap, Seal
from waypost.errors import LakeUnusable
from waypost.lake import desk, reading
from waypost.lake.keeper import Keeper, Pace
from waypost.lake.owner import Lake, claim
from waypost.lake.verifying import Verification
from waypost.store import Task
from waypost.stores.exporting import open_export
from waypost.stores.postgres import PostgresStore
from waypost.testing import MovableClock

__all__ = ["database", "quick"]

DAY = 86_400.0


class PostgresLakeBroker(LakeBroker):
    """In a thread; `lake` None: it was not told where the lake is."""

    def __init__(self, url: str, lake: Path | None, *, pace: Pace = WHEN_ASKED, **store: Any) -> None:
        if lake is not None:
            self.lake_folder = lake
        BrokerInThread.__init__(
            self,
            lambda: PostgresStore(url, **store),
            lake=lambda broker: Keeper(broker, lake, pace=pace),
        )

    @property
    def seals(self) -> bool:
        return bool(self.store.owns(Task.SEAL))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def owner_and_other(
    exits: ExitStack, url: str, lake: Path, **options: Any
) -> tuple[PostgresLakeBroker, PostgresLakeBroker]:
    first = exits.enter_context(PostgresLakeBroker(url, lake, **options))
    eventually(lambda: first.seals, "the first broker's lease")
    return first, exits.enter_context(PostgresLakeBroker(url, lake, **options))


def feed(url: str, *work: Callable[[PostgresStore], None], **store: Any) -> None:
    """Through a store of its own: a broker's is its committer's alone."""
    with closing(PostgresStore(url, **store)) as feeder:
        for do in work:
            do(feeder)


def forget(broker: PostgresLakeBroker, sealed: int) -> None:
    """All that may be forgotten, once the broker has seen how far the lake goes."""
    eventually(lambda: broker.keeper.sealed == sealed, "the lake's end")
    while broker.await_(broker.serving.broker.ask(Reap())):
        pass


def whole(lake: Path) -> pa.Table:
    stands = reading.standing(Lake(lake))
    return pa.Table.from_batches(reading.events(Lake(lake), stands.oldest, stands.sealed or 0), EVENTS)


def check(url: str, lake: Path) -> None:
    """All of it is there, each once, as the store has it; bodies too."""
    export = open_export(url)
    try:
        head = export.head()
        assert list(Verification(Lake(lake), export).findings()) == []
        assert whole(lake) == export.events(head.oldest, head.head)
    finally:
        export.close()


# ── who seals ───────────────────────────────────────────────────────────────────────────────────


def test_one_broker_seals_and_every_broker_reads_without_a_seam(
    database: str, lake: Path, exits: ExitStack
) -> None:
    clock = MovableClock()
    owner, other = owner_and_other(exits, database, lake, clock=clock)
    feed(database, of_every_kind, lambda store: many(store, 200), clock=clock)
    before = other.events("/log?from=1")
    assert other.seal() == len(before)  # it passes that on
    assert (owner.seals, other.seals) == (True, False)
    assert [one.get("/v1/lake")["sealing"]["here"] for one in (owner, other)] == [True, False]
    check(database, lake)
    refused = other.patient("POST", "/v1/lake/maintain")
    assert (refused.status, refused.json()["code"]) == (503, "LAKE_UNAVAILABLE")
    assert owner.patient("POST", "/v1/lake/maintain").status == 200
    # The store lets go of them, at either broker's bidding, and no reader sees that.
    clock.move(40 * DAY)
    other.publish("/in/orders.late")
    for broker in (other, owner):
        forget(broker, len(before))
    assert owner.store.bounds()[0] > 100
    for broker in (owner, other):
        assert broker.events("/log?from=1")[: len(before)] == before
        told = broker.arrow("/log?from=1")
        assert told["offset"].to_pylist() == list(range(1, len(before) + 3))
        assert broker.get("/v1/lake")["oldest"] == 1
        assert broker.patient("GET", "/log?from=1&n=40&payload=1").status == 200
        assert broker.arrow("/v1/tables/messages").num_rows > 0


def test_what_is_erased_at_one_broker_is_erased_by_the_one_that_seals(
    database: str, lake: Path, exits: ExitStack
) -> None:
    owner, other = owner_and_other(exits, database, lake)
    id = other.publish("/in/orders.made", "secret")
    other.seal()
    other.await_(other.serving.broker.ask(ErasePayload(id)))
    eventually(lambda: not owner.store.erasures(), "the erasure")
    (batch,) = reading.payloads(Lake(lake), 1, 9, ["body", "size"])
    assert batch.to_pylist() == [{"body": None, "size": 6}]


def test_a_broker_that_stops_hands_the_lake_over_at_once(database: str, lake: Path, exits: ExitStack) -> None:
    other = exits.enter_context(PostgresLakeBroker(database, lake, pace=SOON))
    eventually(lambda: other.seals, "a lease")
    with PostgresLakeBroker(database, lake, pace=SOON) as following:
        assert not following.seals
        feed(database, lambda store: many(store, 20))
        eventually(lambda: following.keeper.sealed == 100, "sealing")
    exits.close()
    with PostgresLakeBroker(database, lake, pace=SOON) as last:
        eventually(lambda: last.seals, "the lease that was given up")
        feed(database, lambda store: many(store, 20))
        eventually(lambda: last.keeper.sealed == 200, "sealing")
    check(database, lake)


def test_a_broker_without_the_lake_reaps_nothing_while_another_has_one(
    database: str, lake: Path, exits: ExitStack
) -> None:
    without = exits.enter_context(PostgresLakeBroker(database, None))
    eventually(lambda: without.store.owns(Task.REAPING), "its lease")
    assert not without.seals
    keeping = exits.enter_context(PostgresLakeBroker(database, lake))
    eventually(lambda: keeping.seals, "the sealer's lease")
    eventually(lambda: keeping.store.owns(Task.REAPING), "reaping to change hands")
    assert not without.store.owns(Task.REAPING)
    assert not without.seals
    assert without.get("/v1/lake")["lake"] is None


# ── fencing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def sealed_by_hand(database: str, lake: Path) -> Iterator[Callable[[str], desk.OpenLake]]:
    """Opens the lake to write, for one broker or another."""
    feed(database, lambda store: many(store, 30))
    exports = desk.Exports()
    exports.begin(database)

    def open(broker: str) -> desk.OpenLake:
        hand_over(database, broker)
        with exports.one() as export:
            fence = desk.Fence(exports, broker)
            return desk.OpenLake.open(Lake(lake), export.id, None, export, fence, lock=False)

    yield open
    for export in exports._idle:
        export.close()


def test_one_that_lost_its_lease_commits_nothing_and_leaves_nothing(
    database: str, lake: Path, sealed_by_hand: Callable[[str], desk.OpenLake]
) -> None:
    export = open_export(database)
    old = sealed_by_hand("old")
    old.seal(export, 50, lambda upto: None)
    new = sealed_by_hand("new")
    files = sorted(lake.rglob("*.*"))
    for work in (
        lambda: old.seal(export, 100, lambda upto: None),
        lambda: old.erase([1]),
        lambda: old.maintain(),
        lambda: old.tidy(),
    ):
        with pytest.raises(LakeUnusable, match="another broker writes to the lake now"):
            work()
    assert sorted(lake.rglob("*.*")) == files
    new.seal(export, 150, lambda upto: None)
    export.close()
    check(database, lake)


def test_one_that_hung_right_before_its_commit_is_refused_by_delta(
    database: str, lake: Path, sealed_by_hand: Callable[[str], desk.OpenLake]
) -> None:
    export = open_export(database)
    old = sealed_by_hand("old")
    old.seal(export, 50, lambda upto: None)
    fence, hung = old._fence, list[str]()

    def hang(point: str) -> None:
        fence(point)
        if point.endswith("committing") and not hung:
            hung.append(point)
            sealed_by_hand("new").seal(export, 150, lambda upto: None)

    old._fence = hang
    with pytest.raises(LakeUnusable, match="somebody else writes to this table"):
        old.seal(export, 100, lambda upto: None)
    assert hung == ["payloads committing"]
    export.close()
    check(database, lake)


def test_sealed_only_rises(database: str) -> None:
    first, second = PostgresStore(database), PostgresStore(database)
    for store in (first, second):
        store.use_lake(True)
    many(first, 10)
    second.apply([Seal(40)])
    first.apply([Seal(20)])
    assert (first.sealed(), second.sealed()) == (40, 40)
    for store in (first, second):
        store.close()


# ── killed ──────────────────────────────────────────────────────────────────────────────────────


def test_a_sealer_that_dies_at_any_step_is_followed_by_another(database: str, quick: Path) -> None:
    feed(database, of_every_kind, lambda store: many(store, 8))
    died = subprocess.run(
        [sys.executable, "-m", "tests.postgres.dying", database, str(quick)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert died.returncode == 0, died.stderr
    points = json.loads(died.stdout)
    assert {point.partition(" ")[2] for point in points} == {
        "made",
        "written",
        "file synced",
        "committing",
        "committed",
        "entry synced",
    }
    assert len(points) >= 20
    for step in range(1, len(points) + 2):
        check(database, quick / str(step))


def sealing_now(processes: list[Process]) -> list[Process]:
    return [one for one in processes if one.json("/v1/lake")["sealing"]["here"]]


def until_it_goes_on(process: Process) -> None:
    come = process.json("/v1/lake")["sealed"]
    eventually(lambda: process.json("/v1/lake")["sealed"] > come, "sealing")


@pytest.mark.timeout(200)
def test_the_broker_that_seals_is_killed_again_and_again(database: str, lake: Path, exits: ExitStack) -> None:
    """SIGKILL in the middle of sealing, under load; each time another takes over when the lease has ended."""

    def start() -> Process:
        process = Process(database, "--lake", str(lake))
        exits.callback(process.stop)
        return process

    living = [start(), start()]
    stopped = threading.Event()

    def at_all(path: str, body: bytes) -> None:
        """Again and again, at every broker that lives."""
        while not stopped.is_set():
            for one in list(living):
                with suppress(OSError):  # it is struck now
                    one.ask(path, body, "POST")

    threads = [
        threading.Thread(target=at_all, args=given)
        for given in (("/in/orders.made", b"body" * 50), ("/v1/lake/seal", b""))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            (doomed,) = eventually(lambda: sealing_now(living), "a broker that seals")
            until_it_goes_on(doomed)
            living.remove(doomed)
            doomed.kill()
            living.append(start())
    finally:
        stopped.set()
        for thread in threads:
            thread.join(90)
    eventually(lambda: sealing_now(living), "a broker that takes over")
    for one in living:
        status, answer = one.ask("/v1/lake/seal", b"", "POST")
        assert status == 200, answer
    check(database, lake)
    logs = [one.ask("/log?from=1")[1] for one in living]
    assert logs[0] == logs[1]
    offsets = [json.loads(line)["offset"] for line in logs[0].splitlines()]
    assert offsets == list(range(1, len(offsets) + 1))
    assert len(offsets) > 20


# ── at the start, and what is shown ─────────────────────────────────────────────────────────────


def test_the_lake_of_another_store_is_refused(database: str, lake: Path) -> None:
    claim(Lake(lake), "another", sealed=None)
    done = outside("serve", "--port", "0", "--store", database, "--lake", str(lake))
    assert done.code != 0
    assert "is the lake of another store" in done.line


def test_without_a_folder_the_lake_is_off_and_arrow_works(database: str) -> None:
    process = Process(database)
    try:
        assert process.json("/v1/lake")["lake"] is None
        assert process.ask("/in/orders.made", b"x")[0] == 201
        status, answer = process.ask("/v1/tables/deliveries")
        assert status == 200
        assert pa.ipc.open_stream(answer).read_all()["queue"].to_pylist() == ["orders"]
    finally:
        process.stop()


def test_a_password_is_nowhere_to_be_seen(database: str, lake: Path) -> None:
    secret = "s3cr3t-w0rd"
    url = database.replace("postgres@", f"postgres:{secret}@")
    process = Process(url, "--lake", str(lake))
    try:
        process.ask("/in/orders.made", b"x")
        eventually(lambda: process.json("/v1/lake")["sealing"]["here"], "a lease")
        assert process.ask("/v1/lake/seal", b"", "POST")[0] == 200
        shown = process.ask("/v1/lake")[1] + process.ask("/health/ready")[1] + process.ask("/v1/stats")[1]
        child = process.json("/v1/lake")["sealing"]["process"]
        shown += Path(f"/proc/{child}/cmdline").read_bytes()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("alter table deliveries rename to hidden")
            try:
                shown += process.ask("/v1/tables/deliveries")[1] + process.ask("/v1/lake")[1]
            finally:
                connection.execute("alter table hidden rename to deliveries")
        assert b"cannot read postgresql://postgres@" in shown
        assert secret.encode() not in shown
    finally:
        said = process.stop()
    assert secret not in said
