"""waypost copy: the same store in another home; what does not fit, or is not finished, is said in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.postgres.fixtures import database, databases
from tests.stores.trace import live, trace
from waypost.commands import Confirm, DeclareChannel, DeclareQueue, Fetch, Fetched
from waypost.delivery import S
from waypost.errors import PayloadReaped, StoreUnusable
from waypost.filters import Filter
from waypost.instants import SECOND
from waypost.store import Feature, Store
from waypost.stores.copying import Copied, copy_store
from waypost.stores.folder import FolderStore
from waypost.stores.opening import open_store
from waypost.stores.postgres import PostgresStore
from waypost.stores.sqlite import SqliteStore
from waypost.testing.batches import accept, bodies, enter, keep, messages_of
from waypost.testing.clock import MovableClock, seeded_entropy
from waypost.testing.hand import Hand, audit, listing, publish

__all__ = ["database"]

GROUPS = 200


@pytest.fixture
def another() -> Iterator[str]:
    url = databases().new()
    yield url
    databases().give_back(url)


def sqlite(path: Path, **options: Any) -> SqliteStore:
    return SqliteStore(path, ballast_bytes=4096, pregrown_bytes=0, **options)


def url_of(path: Path, scheme: str = "sqlite") -> str:
    return f"{scheme}:///{path}"


def copied(origin: str, target: str, drop_bodies: bool = False) -> Copied:
    return copy_store(origin, target, lambda doing, done, total: None, drop_bodies)


def seen(store: Store, bodies: bool = True) -> dict[str, Any]:
    """Everything that a store shows, but for bodies where it keeps none."""
    oldest, head = store.bounds()
    deliveries = list(listing(store, Filter()))
    events = store.events(oldest, head)
    ids = sorted({event.message_id for event in events} | {one.message_id for one in deliveries})
    return {
        "id": store.id(),
        "bounds": (oldest, head),
        "events": events,
        "deliveries": deliveries,
        "messages": [store.message(id) for id in ids],
        "bodies": [_body(store, id) for id in ids] if bodies else None,
        "queues": store.queues(),
        "channels": store.channels(),
        "objects": store.objects(),
        "consumers": store.consumers(),
        "spectators": store.spectators(),
        "jobs": [store.job(str(number)) for number in range(1, 50)],
        "erasures": store.erasures(),
        "undecided": [(one.id, one.envelope) for one in store.undecided(0, 1_000)],
    }


def _body(store: Store, id: str) -> bytes | None:
    try:
        body = store.body(id)
    except PayloadReaped:
        return None
    return body if isinstance(body, bytes) else store.unstage(body)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for what, wanted in one.items():
        assert other[what] == wanted, what


#: so that a life loses its beginning
KEEP_US = 100 * SECOND


def opened(url: str, clock: MovableClock) -> Store:
    if url.startswith("postgresql"):
        return PostgresStore(url, clock=clock, entropy=seeded_entropy(7), log_keep_us=KEEP_US)
    path = Path(url.partition(":///")[2])
    if url.startswith("folder"):
        return FolderStore(
            path, clock=clock, entropy=seeded_entropy(7), ballast_bytes=4096, log_keep_us=KEEP_US
        )
    return sqlite(path, clock=clock, entropy=seeded_entropy(7), log_keep_us=KEEP_US)


def look(url: str, clock: MovableClock, bodies: bool = True) -> dict[str, Any]:
    store = opened(url, clock)
    try:
        audit(store)
        return seen(store, bodies)
    finally:
        store.close()


def goes_on(url: str, clock: MovableClock, steps: list[Any]) -> list[list[Any]]:
    store = opened(url, clock)
    try:
        return live(store, clock, steps)
    finally:
        store.close()


@pytest.mark.parametrize("seed", [1, 3])
def test_a_store_of_every_kind_goes_to_postgres_and_back(tmp_path: Path, database: str, seed: int) -> None:
    clock = MovableClock()
    first, last = url_of(tmp_path / "one.db"), url_of(tmp_path / "two.db")
    steps = trace(seed, GROUPS)
    half = len(steps) * 3 // 4
    goes_on(first, clock, steps[:half])
    before = look(first, clock)
    assert len(before["events"]) > 100
    result = copied(first, database)
    assert result.events == len(before["events"])
    same(before, look(database, clock))
    copied(database, last)
    same(before, look(last, clock))
    # And all of them live on alike: receipts, keys, leases and jobs are what they were.
    moment = clock.now
    answers = []
    for url in (first, last, database):
        clock.now = moment
        answers.append(goes_on(url, clock, steps[half:]))
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


@pytest.mark.parametrize("seed", [1, 3])
def test_a_store_that_fits_goes_to_a_folder_and_back(tmp_path: Path, seed: int) -> None:
    clock = MovableClock()
    first, folder = url_of(tmp_path / "one.db"), url_of(tmp_path / "mq", "folder")
    last = url_of(tmp_path / "two.db")
    steps = trace(seed, GROUPS, frozenset(Feature))
    half = len(steps) * 3 // 4
    goes_on(first, clock, steps[:half])
    before = look(first, clock, bodies=False)
    assert len(before["events"]) > 100
    with pytest.raises(StoreUnusable, match=r"keeps no bodies of what has ended, and there are \d+"):
        copied(first, folder)
    copied(first, folder, drop_bodies=True)
    same(before, look(folder, clock, bodies=False))
    copied(folder, last)
    same(before, look(last, clock, bodies=False))
    same(look(folder, clock), look(last, clock))
    store = FolderStore(tmp_path / "mq", clock=clock, entropy=seeded_entropy(7), ballast_bytes=4096)
    try:
        live(store, clock, steps[half:])
        audit(store)
    finally:
        store.close()


def test_a_receipt_counts_in_the_new_home(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    store = sqlite(one)
    store.apply([publish("a.x", body=b"kept")])
    (fetched,) = store.apply([Fetch(queue="a", consumer="ann")]).results[0]
    store.close()
    copied(url_of(one), url_of(two))
    store = sqlite(two)
    try:
        assert isinstance(fetched, Fetched)
        assert store.body(fetched.id) == b"kept"
        confirm = Confirm(queue="a", receipts=[fetched.receipt])
        assert store.apply([confirm]).results[0][0].state is S
    finally:
        store.close()


def test_batches_are_carried_with_the_rows_that_are_not_in_yet(tmp_path: Path, database: str) -> None:
    clock = MovableClock()
    hand = Hand(opened(url_of(tmp_path / "one.db"), clock), clock)
    done = accept(hand, keep(hand, publish("a.x", body=b"0")))
    enter(hand, done, *messages_of(hand, done))
    rows = [publish("a.x", key=str(number), body=b"%d" % number) for number in range(1, 4)]
    uploads = [keep(hand, *rows[:2]), keep(hand, *rows[2:])]
    half = accept(hand, *uploads, batch=1)
    half = enter(hand, half, *messages_of(hand, half)[:1])
    keep(hand, publish("a.x", body=b"of no batch"))
    hand.store.close()
    for url in (database, url_of(tmp_path / "two.db")):
        copied(url_of(tmp_path / "one.db") if url == database else database, url)
    hand.store = opened(url_of(tmp_path / "two.db"), clock)
    try:
        assert hand.store.open_batches() == [half]
        assert hand.store.uploads(None) == []
        enter(hand, half, *messages_of(hand, half))
        assert bodies(hand) == [b"0", b"1", b"2", b"3"]
        assert accept(hand, keep(hand, publish("a.x", body=b"0"))).ended_at == done.accepted_at
        assert accept(hand, *uploads, batch=1).entered == 3
    finally:
        hand.store.close()


def test_a_folder_takes_no_batches(tmp_path: Path) -> None:
    clock = MovableClock()
    hand = Hand(opened(url_of(tmp_path / "one.db"), clock), clock)
    accept(hand, keep(hand, publish("a.x")))
    hand.store.close()
    with pytest.raises(StoreUnusable, match="1 batches of many messages"):
        copied(url_of(tmp_path / "one.db"), url_of(tmp_path / "mq", "folder"))


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def some(tmp_path: Path) -> str:
    """A store with a little in it."""
    store = sqlite(tmp_path / "some.db")
    store.apply([DeclareQueue("a"), DeclareChannel(name="c", topics=("*",)), publish("a.x"), publish("a.y")])
    store.close()
    return url_of(tmp_path / "some.db")


def waypost(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "waypost", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def refused(*arguments: str) -> str:
    ended = waypost(*arguments)
    assert ended.returncode in (1, 2)
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def test_the_command_says_what_it_copied(tmp_path: Path, some: str) -> None:
    ended = waypost("copy", "--from", some, "--to", url_of(tmp_path / "new.db"))
    assert ended.returncode == 0, ended.stderr
    assert "2 messages, 4 deliveries, 6 events copied to" in ended.stdout
    assert "compared: the same" in ended.stdout


def test_what_cannot_be_copied_is_one_line(tmp_path: Path, some: str) -> None:
    new = url_of(tmp_path / "new.db")
    assert "there is no store at" in refused("copy", "--from", url_of(tmp_path / "none.db"), "--to", new)
    assert not (tmp_path / "none.db").exists()
    assert "are the same" in refused("copy", "--from", some, "--to", some)
    assert "no store is called 'mongo'" in refused("copy", "--from", some, "--to", "mongo://x/y")
    assert "keeps nothing" in refused("copy", "--from", "memory:///", "--to", new)
    assert "keeps nothing" in refused("copy", "--from", some, "--to", "memory:///")
    folder = url_of(tmp_path / "mq", "folder")
    line = refused("copy", "--from", some, "--to", folder)
    assert "the target cannot hold 1 channels, 2 messages with several deliveries" in line
    assert not (tmp_path / "new.db").exists()


def test_a_target_with_something_in_it_stays_as_it_is(tmp_path: Path, some: str, database: str) -> None:
    (tmp_path / "plain.txt").write_text("not a store")
    assert "not a" in refused("copy", "--from", some, "--to", url_of(tmp_path / "plain.txt"))
    assert (tmp_path / "plain.txt").read_text() == "not a store"
    other = sqlite(tmp_path / "other.db")
    other.apply([DeclareQueue("mine")])
    other.close()
    assert "is not empty" in refused("copy", "--from", some, "--to", url_of(tmp_path / "other.db"))
    there = PostgresStore(database)
    there.apply([DeclareQueue("mine")])
    there.close()
    assert "is not empty" in refused("copy", "--from", some, "--to", database)
    mq = FolderStore(tmp_path / "mq", ballast_bytes=4096)
    mq.apply([DeclareQueue("mine")])
    mq.close()
    fitting = sqlite(tmp_path / "fitting.db")
    fitting.close()
    line = refused(
        "copy", "--from", url_of(tmp_path / "fitting.db"), "--to", url_of(tmp_path / "mq", "folder")
    )
    assert "is not empty" in line


def test_a_store_that_is_served_is_not_copied(tmp_path: Path, some: str, database: str) -> None:
    new = url_of(tmp_path / "new.db")
    store = open_store(some)
    try:
        assert "is served already" in refused("copy", "--from", some, "--to", new)
    finally:
        store.close()
    there = PostgresStore(database)
    there.listen(lambda heard: None)
    try:
        _until_owned(there)
        assert "is served by a broker" in refused("copy", "--from", database, "--to", new)
    finally:
        there.close()
    mq = FolderStore(tmp_path / "mq", ballast_bytes=4096)
    try:
        line = refused("copy", "--from", url_of(tmp_path / "mq", "folder"), "--to", new)
        assert "is served by another process" in line
    finally:
        mq.close()


def _until_owned(store: PostgresStore) -> None:
    import time

    from waypost.store import Task

    deadline = time.monotonic() + 10
    while not store.owns(Task.EXPIRY):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "folder"])
@pytest.mark.parametrize("at", ["copying messages", "copying the log", "checking the log"])
def test_a_copy_that_was_killed_is_refused_and_can_be_begun_anew(
    tmp_path: Path, database: str, scheme: str, at: str
) -> None:
    clock = MovableClock()
    source = url_of(tmp_path / "one.db")
    goes_on(source, clock, trace(1, 40, frozenset(Feature)))
    before = look(source, clock, bodies=False)
    target = database if scheme == "postgresql" else url_of(tmp_path / "new", scheme)

    def killed(doing: str, done: int, total: int) -> None:
        if doing == at and done > total // 2:
            raise Killed

    with pytest.raises(Killed):
        copy_store(source, target, killed, True)
    with pytest.raises(StoreUnusable, match="a copy that was not finished"):
        open_store(target)
    with pytest.raises(StoreUnusable, match="a copy that was not finished"):
        copied(target, url_of(tmp_path / "further.db"))
    copied(source, target, drop_bodies=True)
    same(before, look(target, clock, bodies=False))


def test_a_difference_leaves_the_copy_unfinished(
    tmp_path: Path, some: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waypost.stores.sqlite.copying import Target

    take = Target.take_messages
    monkeypatch.setattr(Target, "take_messages", lambda self, some: take(self, some[:-1]))
    new = url_of(tmp_path / "new.db")
    with pytest.raises(StoreUnusable, match="the check failed, and the copy stays unfinished"):
        copied(some, new)
    with pytest.raises(StoreUnusable, match="a copy that was not finished"):
        open_store(new)
