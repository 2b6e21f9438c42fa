"""The SQLite store's files: what is refused, what is mended, and what an older file becomes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from waypost.broker import Broker
from waypost.commands import (
    Confirm,
    Decide,
    DeclareChannel,
    DeclareQueue,
    ErasePayload,
    Fetch,
    Fetched,
    Publish,
    Reap,
    Seal,
    SetSpectator,
    Staged,
    Work,
)
from waypost.delivery import State
from waypost.destinations import Kind
from waypost.errors import DiskLow, Failed, PayloadDamaged, PayloadReaped, StoreBroken, StoreUnusable
from waypost.message import Envelope, payload_hash
from waypost.store import Applied
from waypost.stores.disk import Disk, ballast
from waypost.stores.sqlite import SqliteStore, files
from waypost.stores.sqlite.checkpoints import Checkpoints
from waypost.testing import Hand, MovableClock
from waypost.testing.batches import accept, bodies, enter, keep, messages_of

#: made by the first release: three messages in queue `a`, of which the first is confirmed and the second fetched, and
#: one with a large body in queue `b`
VERSION_1 = Path(__file__).parent / "files" / "v1"
#: made by the second: the same, with a channel `c` where one of them was refused as invalid, a message with an id of its own, one that
#: stopped at L, and a spectator
VERSION_2 = Path(__file__).parent / "files" / "v2"
#: made by the third: three messages in queue `a`, of which the first is confirmed and the second fetched, one with a large body in queue `b`,
#: and a lake that holds the first three events
VERSION_3 = Path(__file__).parent / "files" / "v3"


def publish(body: bytes = b"body", topic: str = "a.x") -> Publish:
    return Publish(envelope=Envelope(topics=(topic,)), body=body, hash=payload_hash(body))


def opened(path: Path, **options: object) -> SqliteStore:
    return SqliteStore(path, **{"pregrown_bytes": 0, "ballast_bytes": 4096} | options)  # type: ignore[arg-type]


def only(applied: Applied) -> Any:
    (result,) = applied.results
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "waypost.db"


def test_a_second_process_is_told_who_serves_the_file(path: Path) -> None:
    store = opened(path)
    try:
        with pytest.raises(StoreUnusable, match=f"served already, by process {os.getpid()}"):
            opened(path)
    finally:
        store.close()
    opened(path).close()


def test_closing_twice_is_closing_once(path: Path) -> None:
    store = opened(path)
    store.close()
    store.close()


def test_a_file_of_a_newer_waypost_is_refused(path: Path) -> None:
    opened(path).close()
    db = apsw.Connection(str(path))
    db.execute("pragma user_version = 99")
    db.close()
    with pytest.raises(StoreUnusable, match="schema version 99, this Waypost knows 4"):
        opened(path)


def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    db = apsw.Connection(str(path))
    db.execute("create table theirs (x)")
    db.close()
    with pytest.raises(StoreUnusable, match="another program's database"):
        opened(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all, but long enough to be taken for one" * 100)
    with pytest.raises(StoreUnusable, match="not a SQLite file"):
        opened(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnusable, match="cannot make the folder"):
        opened(tmp_path / "file" / "sub" / "waypost.db")


def test_an_older_file_is_copied_and_then_migrated(path: Path) -> None:
    store = opened(path)
    store.apply([publish()])
    store.close()
    store = opened(path, migrations={files.VERSION: "create table added (x); insert into added values (1)"})
    assert store.queue("a") is not None
    store.close()
    db = apsw.Connection(str(path))
    assert (db.pragma("user_version"), db.execute("select x from added").get) == (files.VERSION + 1, 1)
    db.close()
    (copy,) = path.parent.glob(f"waypost.db.v{files.VERSION}-*")
    db = apsw.Connection(str(copy))
    assert (db.pragma("user_version"), db.execute("select count(*) from messages").get) == (files.VERSION, 1)
    db.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    opened(path).close()
    with pytest.raises(apsw.SQLError):
        opened(path, migrations={files.VERSION: "create table added (x); this is not SQL"})
    store = opened(path)
    assert store.apply([publish()]).results[0].state is State.Q
    store.close()


def test_a_file_of_version_1_is_served_with_all_it_holds(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "v1")
    store = opened(tmp_path / "v1" / "waypost.db")
    try:
        queue = store.queue("a")
        assert queue is not None
        assert queue.states == {State.S: 1, State.F: 1, State.Q: 1}
        assert [event.offset for event in store.events(1, store.bounds()[1])] == list(
            range(1, store.bounds()[1] + 1)
        )
        (large,) = only(store.apply([Fetch(queue="b")]))
        assert isinstance(large.body, Staged)
        assert store.unstage(large.body) == b"large" * 20_000
        (waiting,) = only(store.apply([Fetch(queue="a")]))
        assert waiting.body == b"third"
        (settled,) = only(store.apply([Confirm(queue="a", receipts=[waiting.receipt])]))
        assert settled.state is State.S
    finally:
        store.close()
    (copy,) = (tmp_path / "v1").glob("waypost.db.v1-*")
    assert {oct(file.stat().st_mode & 0o777) for file in (copy, tmp_path / "v1" / "waypost.db")} == {"0o600"}
    assert apsw.Connection(str(copy)).pragma("user_version") == 1


def test_a_file_of_version_2_is_served_with_all_it_holds(tmp_path: Path) -> None:
    shutil.copytree(VERSION_2, tmp_path / "v2")
    store = opened(tmp_path / "v2" / "waypost.db")
    try:
        store.use_lake(True)
        queue, channel = store.queue("a"), store.channel("c")
        assert queue is not None
        assert channel is not None
        assert queue.states == {State.S: 1, State.F: 1, State.Q: 1}
        assert channel.states == {State.I: 1, State.Q: 2}
        assert (store.sealed(), store.erasures(), len(store.id())) == (0, [], 32)
        assert [spectator.name for spectator in store.spectators()] == ["audit"]
        assert [event.offset for event in store.events(1, 18)] == list(range(1, 19))
        (undecided,) = store.undecided(0, 9)
        assert undecided.body == b"held"
        assert only(store.apply([ErasePayload("own-1")])) is True
        message = store.message("own-1")
        assert message is not None
        assert [delivery.state for delivery in message.deliveries] == [State.C, State.C]
        assert store.erasures() == [message.sequence]
        (large,) = only(store.apply([Fetch(queue="b")]))
        assert store.unstage(large.body) == b"large" * 20_000
    finally:
        store.close()
    (copy,) = (tmp_path / "v2").glob("waypost.db.v2-*")
    assert apsw.Connection(str(copy)).pragma("user_version") == 2


def test_a_file_of_version_3_is_served_with_all_it_holds_and_takes_uploads(tmp_path: Path) -> None:
    shutil.copytree(VERSION_3, tmp_path / "v3")
    clock = MovableClock()
    store = opened(tmp_path / "v3" / "waypost.db", clock=clock)
    try:
        store.use_lake(True)
        queue = store.queue("a")
        assert queue is not None
        assert queue.states == {State.S: 1, State.F: 1, State.Q: 1}
        assert store.sealed() == 3
        (large,) = only(store.apply([Fetch(queue="b")]))
        assert store.unstage(large.body) == b"large" * 20_000
        hand = Hand(store, clock)
        batch = accept(hand, keep(hand, publish(b"row")))
        enter(hand, batch, *messages_of(hand, batch))
        assert bodies(hand) == [b"3", b"row"]
    finally:
        store.close()
    (copy,) = (tmp_path / "v3").glob("waypost.db.v3-*")
    assert apsw.Connection(str(copy)).pragma("user_version") == 3


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2, VERSION_3])
def test_an_older_file_has_afterwards_all_that_a_new_one_has(tmp_path: Path, version: Path) -> None:
    shutil.copytree(version, tmp_path / "old")
    migrated, fresh = opened(tmp_path / "old" / "waypost.db"), opened(tmp_path / "new" / "waypost.db")
    try:
        declared = only(migrated.apply([DeclareChannel(name="new", topics=("a.*",), start=1)]))
        assert declared.job is not None
        while only(migrated.apply([Work()])):
            pass
        heard = only(migrated.apply([Fetch(queue="new", kind=Kind.CHANNEL, n=9)]))
        assert len(heard) == 3
        assert migrated.depths(Kind.QUEUE, "a", migrated.clock()) is not None
    finally:
        migrated.close()
        fresh.close()
    tables: list[dict[str, Any]] = []
    for name in ("old", "new"):
        db = apsw.Connection(str(tmp_path / name / "waypost.db"))
        names = [row[0] for row in db.execute("select name from sqlite_schema where name not like 'sqlite%'")]
        tables.append({table: db.execute(f"pragma table_info({table})").fetchall() for table in names})
        db.close()
    assert tables[0] == tables[1]


def test_the_files_of_uploads_go_with_their_rows_and_strangers_at_the_start(path: Path) -> None:
    clock = MovableClock()
    hand = Hand(opened(path, clock=clock), clock)
    folder = path.with_name(path.name + ".bodies")
    batch = accept(hand, keep(hand, publish(b"row")))
    left = keep(hand, publish(b"left"))
    hand.store.stage_chunk("f" * 32, b"a crash came before its row")
    assert len(list(folder.iterdir())) == 3
    hand.store.close()
    hand.store = opened(path, clock=clock)
    assert len(list(folder.iterdir())) == 2
    enter(hand, batch, *messages_of(hand, batch))
    assert [file.name for file in folder.iterdir()] == [left.id]
    clock.move(3_600)
    hand.reap()
    assert list(folder.iterdir()) == []
    hand.store.close()


def test_a_damaged_chunk_is_never_taken_for_rows(path: Path) -> None:
    clock = MovableClock()
    hand = Hand(opened(path, clock=clock), clock)
    batch = accept(hand, keep(hand, publish(b"row")))
    (file,) = path.with_name(path.name + ".bodies").iterdir()
    file.write_bytes(file.read_bytes().replace(b"row", b"r0w"))
    with pytest.raises(PayloadDamaged):
        messages_of(hand, batch)
    hand.store.close()


def test_a_file_that_is_too_large_does_not_wait_for_its_spectators(path: Path) -> None:
    clock = MovableClock()
    store = opened(path, clock=clock, held_bytes=1)
    store.apply([publish(), SetSpectator("lake", 0)])
    clock.move(8 * 86_400)
    store.apply([Reap()])
    oldest, head = store.bounds()
    store.close()
    assert oldest == head + 1


def test_a_damaged_payload_is_never_handed_out(path: Path) -> None:
    store = opened(path)
    first = only(store.apply([publish(b"first")])).id
    store.apply([publish(b"second")])
    store.close()
    db = apsw.Connection(str(path))
    db.execute("update messages set body = 'f1rst' || x'' where sequence = 1")
    db.execute("update messages set body = cast(body as blob) where sequence = 1")
    db.close()
    store = opened(path)
    try:
        with pytest.raises(PayloadDamaged):
            store.body(first)
        fetched = only(store.apply([Fetch(queue="a", n=5)]))
        assert [message.body for message in fetched] == [b"second"]
        queue = store.queue("a")
        assert queue is not None
        assert queue.states == {State.E: 1, State.F: 1}
        info = store.message(first)
        assert info is not None
        assert info.deliveries[0].reason == "payload-damaged"
    finally:
        store.close()


def test_a_body_that_no_message_names_is_removed_at_the_next_start(path: Path) -> None:
    store = opened(path)
    kept = store.stage(b"x" * 100_000)
    store.stage(b"y" * 100_000)
    command = publish()
    command.body, command.hash = kept, payload_hash(b"x" * 100_000)
    store.apply([command])
    store.close()
    assert len(list(path.with_name("waypost.db.bodies").iterdir())) == 2
    store = opened(path)
    assert isinstance(kept, Staged)
    assert [body.name for body in path.with_name("waypost.db.bodies").iterdir()] == [kept.place]
    store.close()


def test_two_stores_may_share_a_folder(tmp_path: Path) -> None:
    one = opened(tmp_path / "one.db")
    body = one.stage(b"x" * 100_000)
    one.apply([Publish(envelope=Envelope(topics=("a.x",)), body=body, hash=payload_hash(b"x" * 100_000))])
    other = opened(tmp_path / "other.db")
    other.close()
    (fetched,) = only(one.apply([Fetch(queue="a")]))
    assert one.unstage(fetched.body) == b"x" * 100_000
    one.close()


@pytest.mark.parametrize("harm", ["other bytes", "no file"])
def test_a_large_body_that_is_damaged_becomes_a_dead_letter(path: Path, harm: str) -> None:
    async def test() -> None:
        store = opened(path)
        broker = Broker(store, on_broken=lambda error: pytest.fail(str(error)))
        topics = Envelope(topics=("a.x",))
        await broker.ask(Publish(envelope=topics, body=b"x" * 100_000))
        await broker.ask(Publish(envelope=topics, body=b"y" * 100_000))
        (first,) = [f for f in path.with_name("waypost.db.bodies").iterdir() if f.read_bytes()[:1] == b"x"]
        if harm == "no file":
            first.unlink()
        else:
            first.write_bytes(b"z" * 100_000)
        fetched: asyncio.Future[list[Fetched]] = asyncio.get_running_loop().create_future()
        broker.fetch(Fetch(queue="a", n=2), fetched.set_result)
        assert [message.body for message in await fetched] == [b"y" * 100_000]
        await broker.committer.flush()
        queue = store.queue("a")
        assert queue is not None
        assert queue.states == {State.I: 1, State.F: 1}
        await broker.close()

    asyncio.run(test())


def test_a_start_that_was_killed_does_not_stop_the_next(path: Path) -> None:
    opened(path).close()
    db = apsw.Connection(str(path))
    db.execute("create table pregrown (filling)")
    db.close()
    opened(path, pregrown_bytes=1 << 20).close()


def test_a_checkpoint_on_a_full_disk_gives_up_the_ballast_and_breaks_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def wal_checkpoint(self, **_: object) -> None:
            raise apsw.FullError("full")

    store = opened(path)
    assert ballast(path).exists()
    store._checkpoints._checkpoint(Full())  # type: ignore[arg-type]
    assert not ballast(path).exists()
    assert only(store.apply([publish()])).state is State.Q
    store.close()


def test_one_command_that_fails_leaves_its_neighbours_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    try:

        def fails(*of_a_delayed_message: object) -> None:
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr(store._publishing, "_route", fails)
        bad = publish(b"bad one")
        bad.delay_us = 1
        results = store.apply([publish(b"one"), bad, publish(b"two")]).results
        assert isinstance(results[1], Failed)
        fetched = only(store.apply([Fetch(queue="a", n=5)]))
        assert [message.body for message in fetched] == [b"one", b"two"]
    finally:
        store.close()


def test_after_a_failed_commit_nothing_is_acknowledged(path: Path) -> None:
    store = opened(path)
    store.apply([publish()])
    store._db.set_commit_hook(lambda: True)  # turns COMMIT into an error
    with pytest.raises(StoreBroken):
        store.apply([publish(), publish()])
    store._db.set_commit_hook(None)
    store.close()
    store = opened(path)
    assert store.bounds() == (1, 2)
    store.close()


def test_a_failure_after_the_commit_never_runs_the_group_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)

    def fails(*_: object) -> None:
        raise OSError("cannot")

    monkeypatch.setattr(store._bodies, "remove", fails)
    with pytest.raises(StoreBroken):
        store.apply([publish(), publish()])
    assert store.bounds() == (1, 4)
    monkeypatch.undo()
    store.close()


def test_a_store_closes_in_the_middle_of_a_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()

    def held(self: Checkpoints, connection: apsw.Connection) -> None:
        inside.set()
        assert go.wait(10)

    monkeypatch.setattr(Checkpoints, "_checkpoint", held)
    store = opened(path)
    store._checkpoints.after_commit(store._db, 1_000_000)
    assert inside.wait(10)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.1)  # by now it has asked the thread to stop
    go.set()
    closing.join(10)
    assert not closing.is_alive()


def test_publishes_are_refused_below_the_mark_and_the_ballast_comes_and_goes(path: Path) -> None:
    path.parent.mkdir()
    disk = Disk(path, mark_bytes=1 << 62)
    refusal = disk.refusal()
    assert isinstance(refusal, DiskLow)
    assert not path.with_name("waypost.db.ballast").exists()
    disk = Disk(path, mark_bytes=4096, ballast_bytes=8192)
    assert disk.refusal() is None
    assert path.with_name("waypost.db.ballast").stat().st_blocks * 512 >= 8192
    disk.give_up()
    assert not path.with_name("waypost.db.ballast").exists()


def test_a_reader_that_holds_the_log_is_named_when_the_start_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    store.apply([DeclareQueue("a"), publish()])
    code = (
        "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.execute('begin; select * from head').fetchall();"
        " print('reading', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        store.apply([publish()])
        store.close()
        monkeypatch.setattr(files, "CHECKPOINT_SECONDS", 0.2)
        with pytest.raises(StoreUnusable, match=f"process {reader.pid}"):
            opened(path)
        # One that lets go in time holds up nothing.
        monkeypatch.setattr(files, "CHECKPOINT_SECONDS", 60)
        monkeypatch.setattr("waypost.stores.sqlite.files.time.sleep", lambda seconds: reader.communicate(""))
        opened(path).close()
    finally:
        reader.kill()
        reader.wait()


def test_only_the_brokers_user_can_read_a_new_store(path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = opened(path)
        store.apply([publish()])
        modes = {
            file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir() if file.is_file()
        }
        store.close()
    finally:
        os.umask(before)
    assert len(modes) >= 3
    assert set(modes.values()) == {"0o600"}


def test_a_reaping_that_is_rolled_back_removes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovableClock()
    store = opened(path, clock=clock)
    staged = store.stage(b"large" * 20_000)
    large = publish(topic="a.x")
    large.body, large.hash = staged, payload_hash(b"large" * 20_000)
    published = only(store.apply([large]))
    (fetched,) = only(store.apply([Fetch(queue="a")]))
    store.apply([Confirm(queue="a", receipts=[fetched.receipt])])
    clock.now += 30 * 86_400 * 1_000_000
    with monkeypatch.context() as patched:

        def fails(*_: object) -> None:
            raise ZeroDivisionError("a fault after the reaping")

        patched.setattr(store, "_save_counts", fails)
        assert isinstance(only(store.apply([Reap()])), Failed)
    store.apply([publish(topic="b.x")])
    body = store.body(published.id)
    assert isinstance(body, Staged)
    assert store.unstage(body) == b"large" * 20_000
    store.close()


@pytest.mark.parametrize("size", [10, 1_000, 5_000, 60_000], ids="{} bytes".format)
@pytest.mark.parametrize("held", [False, True], ids=["routed at once", "routed later"])
def test_an_erased_payload_is_nowhere_in_the_file(path: Path, size: int, held: bool) -> None:
    """Also not where it lay before it was routed, which may be elsewhere."""
    secret = b"SECRET" * (size // 6 + 1)
    store = opened(path)
    for _ in range(3):
        store.apply([publish(b"other" * 50)])
    command = publish(secret, topic="b.x")
    command.hold = held
    id = only(store.apply([command])).id
    for _ in range(3):
        store.apply([publish(b"other" * 50)])
    if held:
        store.apply([Decide(id=id)])
    store.close()
    assert b"SECRET" in path.read_bytes()
    store = opened(path)
    assert only(store.apply([ErasePayload(id)])) is True
    store.close()
    assert b"SECRET" not in path.read_bytes()
    assert b"other" in path.read_bytes()


def test_a_large_body_is_removed_when_it_is_erased(path: Path) -> None:
    store = opened(path)
    command = publish(topic="a.x")
    command.body, command.hash = store.stage(b"large" * 20_000), payload_hash(b"large" * 20_000)
    id = only(store.apply([command])).id
    (file,) = (path.parent / "waypost.db.bodies").iterdir()
    body = store.body(id)
    assert only(store.apply([ErasePayload(id)])) is True
    assert not file.exists()
    assert isinstance(body, Staged)
    with pytest.raises(PayloadReaped):
        store.unstage(body)
    assert only(store.apply([Fetch(queue="a")])) == []
    store.close()


def test_an_erasure_that_is_rolled_back_removes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    store.use_lake(True)
    command = publish(topic="a.x")
    command.body, command.hash = store.stage(b"large" * 20_000), payload_hash(b"large" * 20_000)
    id = only(store.apply([command])).id

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(store._ledger, "take", fail)
        assert isinstance(only(store.apply([ErasePayload(id)])), Failed)
    assert store.erasures() == []
    (fetched,) = only(store.apply([Fetch(queue="a")]))
    assert store.unstage(fetched.body) == b"large" * 20_000
    store.close()


def test_a_seal_that_is_rolled_back_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    store.use_lake(True)
    store.apply([publish(), Seal(1)])
    with monkeypatch.context() as patched:
        patched.setattr(store, "_save_counts", lambda: 1 / 0)
        assert isinstance(only(store.apply([Seal(2)])), Failed)
    assert store.sealed() == 1
    store.close()
