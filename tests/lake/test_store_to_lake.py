"""A real store's log, sealed: the lake says what the store says, and goes on saying it when the store has forgotten."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, settings

from waypost.arrow import EVENTS
from waypost.commands import Erased, ErasePayload, Publish, Seal
from waypost.delivery import Outcome
from waypost.lake import maintaining, reading, sealing
from waypost.lake.owner import Lake, claim
from waypost.lake.verifying import Verification
from waypost.message import Entropy, parse_id
from waypost.stores.sqlite import SqliteStore
from waypost.stores.sqlite.export import Export
from waypost.testing.clock import MovableClock
from waypost.testing.hand import Hand, publish
from waypost.testing.model import QUICK, machine

DAY_SECONDS = 86_400


@contextmanager
def store_at(path: Path, clock: MovableClock) -> Iterator[Hand]:
    """With a lake; closed before its file is read by another library."""
    store = SqliteStore(path, clock=clock, ballast_bytes=4096, pregrown_bytes=0)
    store.use_lake(True)
    try:
        yield Hand(store, clock)
    finally:
        store.close()


@contextmanager
def exporting(path: Path) -> Iterator[Export]:
    export = Export(path)
    try:
        yield export
    finally:
        export.close()


def seal(path: Path, lake: Lake, range_events: int = sealing.RANGE_EVENTS) -> int:
    with exporting(path) as export:
        upto = sealing.seal_upto(export, lake, range_events=range_events).upto
        assert list(Verification(lake, export).findings()) == []
    return upto


def everything(lake: Lake) -> pa.Table:
    stands = reading.standing(lake)
    return pa.Table.from_batches(reading.events(lake, stands.oldest, stands.sealed or 0), EVENTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "waypost.db"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    claim(lake, "a store", sealed=None)
    return lake


def messages(n: int, size: int) -> list[Publish]:
    return [publish("a.x", "b.y", body=(b"%d " % i) * size, object="a", key=str(i)) for i in range(n)]


def test_what_the_store_forgets_stays_in_the_lake(path: Path, lake: Lake) -> None:
    clock = MovableClock()
    with store_at(path, clock) as hand:
        hand.ask(*messages(300, 10))
        for got in hand.fetch("a", "ann", n=300):
            hand.confirm(got)
        hand.confirm(hand.one("b"), Outcome.INVALID, queue="b", reason="not mine")
    with exporting(path) as export:
        whole = export.events(1, export.head().head)
    sealed = seal(path, lake, range_events=500)
    assert everything(lake) == whole

    with store_at(path, clock) as hand:
        hand.do(Seal(sealed))
        for got in hand.fetch("b", n=1_000):
            hand.confirm(got, queue="b")
        clock.move(30 * DAY_SECONDS)
        hand.reap()
        hand.publish("a.x", body=b"the last")
    head = seal(path, lake)
    with exporting(path) as export:
        assert export.head().oldest > sealed // 2
    assert everything(lake).slice(0, sealed) == whole
    assert seal(path, lake) == head
    bodies = pa.Table.from_batches(reading.payloads(lake, 1, head, ["sequence", "body"])).to_pylist()
    assert [row["body"] for row in bodies] == [*((b"%d " % i) * 10 for i in range(300)), b"the last"]


def test_a_payload_erased_in_the_store_is_erased_in_the_lake_wherever_it_was(path: Path, lake: Lake) -> None:
    clock = MovableClock()
    with store_at(path, clock) as hand:
        large = hand.publish("a.x", body=b"secret" * 50_000)
        sealed_one = hand.publish("a.x", body=b"secret and sealed")
    upto = seal(path, lake)
    with store_at(path, clock) as hand:
        hand.do(Seal(upto))
        later = hand.publish("a.x", body=b"secret and not sealed yet")
        for erased in (large, sealed_one, later):
            hand.do(ErasePayload(erased.id))
        wanted = hand.store.erasures()
    done = maintaining.erase(lake, wanted)
    assert done == [sequence_of(large.id), sequence_of(sealed_one.id)]
    seal(path, lake)
    assert maintaining.erase(lake, wanted) == wanted
    with store_at(path, clock) as hand:
        hand.do(Erased(wanted))
        assert hand.store.erasures() == []
    found = reading.payloads_of(lake, wanted, ["sequence", "body", "size"]).to_pylist()
    assert [(row["body"], row["size"]) for row in found] == [(None, 300_000), (None, 17), (None, 25)]


def sequence_of(id: str) -> int:
    parsed = parse_id(id)
    assert parsed is not None
    return parsed.sequence


class Walked:
    """The home of a walk, whose log is sealed at its end, in small pieces."""

    def __init__(self) -> None:
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="waypost-lake-", dir=quick))
        self.lives = 1

    @property
    def path(self) -> Path:
        return self.root / str(self.lives) / "waypost.db"

    def open(self, clock: MovableClock, entropy: Entropy) -> SqliteStore:
        return SqliteStore(self.path, clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0)

    def crash(self) -> None:
        before = self.path.parent
        self.lives += 1
        shutil.copytree(before, self.path.parent)

    def remove(self) -> None:
        lake = Lake(self.root / "lake")
        claim(lake, "a store", sealed=None)
        try:
            with exporting(self.path) as export:
                oldest, head, *_ = export.head()
                sealing.seal_upto(export, lake, range_events=max(1, head // 3))
                maintaining.maintain(lake)
                assert list(Verification(lake, export).findings()) == []
                assert everything(lake) == export.events(oldest, head)
        finally:
            shutil.rmtree(self.root)


#: no shrinking: what a walk left tells more than the shortest one
TestWhateverAWalkLeavesIsSealed = machine(
    Walked, settings(QUICK, max_examples=8, phases=[Phase.generate])
).TestCase
