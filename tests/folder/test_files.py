"""A message's file: its bytes, its name, its way through the folders."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.folder.conftest import Open, crashed, files, folder_of
from waypost.commands import Kick, Publish, Release, Remove
from waypost.delivery import E, Outcome, Q, S
from waypost.errors import IdTaken, NotOffered
from waypost.instants import SECOND
from waypost.message import Envelope, payload_hash
from waypost.testing.hand import Hand


def unlinked(root: Path) -> bool:
    """Whether the reaper has nothing left to do, soon."""
    deadline = time.monotonic() + 10
    while list((root / "remove").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not list((root / "remove").iterdir())


def test_a_file_holds_exactly_the_bodys_bytes_under_its_queue_and_id(hand: Hand, root: Path) -> None:
    body = bytes(range(256))
    id = hand.publish("a.x", body=body).id
    assert files(root) == {f"queues/a/{id}": body}


def test_a_fetched_file_waits_in_delay_until_the_end_of_its_lease(hand: Hand, root: Path) -> None:
    id = hand.publish("a.x", body=b"one").id
    got = hand.one("a", lease_us=30 * SECOND)
    assert files(root) == {f"delay/a:{id}": b"one"}
    moment = (root / "delay" / f"a:{id}").stat().st_mtime_ns // 1_000
    assert moment == got.until_at == hand.clock.now + 30 * SECOND
    hand.wait(30)
    assert files(root) == {f"queues/a/{id}": b"one"}


def test_a_file_is_written_once_moved_and_unlinked_once(hand: Hand, root: Path) -> None:
    id = hand.publish("a.x", body=b"one").id
    inode = (root / "queues" / "a" / id).stat().st_ino
    written = (root / "queues" / "a" / id).stat().st_ctime_ns
    for _ in range(2):
        hand.one("a")
        assert (root / "delay" / f"a:{id}").stat().st_ino == inode
        hand.wait(10)
        assert (root / "queues" / "a" / id).stat().st_ino == inode
    assert written
    hand.confirm(hand.one("a"))
    assert unlinked(root)
    assert files(root) == {}


@pytest.mark.parametrize("end", ["confirm", "remove", "kick", "ttl", "delete"])
def test_what_is_done_leaves_nothing_behind(hand: Hand, root: Path, end: str) -> None:
    id = hand.publish("a.x", ttl_us=5 * SECOND).id
    match end:
        case "confirm":
            hand.confirm(hand.one("a"))
        case "remove":
            hand.do(Remove("a", id))
        case "kick":
            hand.do(Kick([hand.one("a").receipt]))
        case "ttl":
            hand.wait(5)
        case "delete":
            hand.delete("a")
            assert not (root / "queues" / "a").exists()
    assert unlinked(root)
    assert files(root) == {}


def test_a_delayed_message_waits_in_delay(hand: Hand, root: Path) -> None:
    id = hand.publish("a.x", delay_us=5 * SECOND).id
    assert files(root) == {f"delay/a:{id}": b"body"}
    hand.wait(5)
    assert files(root) == {f"queues/a/{id}": b"body"}


def test_a_dead_letter_lies_in_dead_counts_its_attempts_and_comes_back(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    hand.declare("a", retries=1)
    id = hand.publish("a.x", body=b"poor thing").id
    for attempt in (1, 2):
        got = hand.one("a")
        assert got.attempt == attempt
        hand.confirm(got, Outcome.RETRY, delay_us=0, reason="cannot")
    assert files(root) == {f"dead/a:{id}": b"poor thing"}
    again = open_hand(crashed(root))
    (dead,) = again.found(states=frozenset({E}))
    assert (dead.message_id, dead.attempt, dead.reason) == (id, 2, "cannot")
    again.redrive()
    got = again.one("a")
    assert (got.id, got.attempt, again.body(got)) == (id, 3, b"poor thing")


def test_a_large_body_is_a_file_like_any_other(hand: Hand, root: Path) -> None:
    body = os.urandom(hand.store.inline_bytes + 1)
    command = Publish(envelope=Envelope(), body=hand.store.stage(body), hash=payload_hash(body), queue="a")
    id = hand.do(command).id
    assert files(root) == {f"queues/a/{id}": body}
    got = hand.one("a")
    assert hand.body(got) == body
    hand.confirm(got)
    assert unlinked(root)


def test_without_peers_messages_come_in_the_order_they_came_in(hand: Hand) -> None:
    ids = [hand.publish("a.x").id for _ in range(50)]
    got = [hand.one("a") for _ in range(20)]
    hand.do(Release([got[3].receipt]))
    assert [one.id for one in got] == ids[:20]
    assert hand.one("a").id == ids[3]
    assert hand.one("a").id == ids[20]


def test_with_peers_one_of_the_next_few_is_taken_and_none_twice(root: Path, open_hand: Open) -> None:
    hand = open_hand(peers=3)
    ids = [hand.publish("a.x").id for _ in range(40)]
    got = [hand.one("a").id for _ in range(40)]
    assert sorted(got) == sorted(ids)
    assert got != ids
    for turn, id in enumerate(got):
        assert ids.index(id) <= turn + 3
    races = hand.store.races
    assert races is not None
    assert races.naps >= 1, "the last ones had little to choose from"


def test_a_race_that_is_lost_is_counted_and_the_next_message_is_taken(hand: Hand, root: Path) -> None:
    first, second = hand.publish("a.x").id, hand.publish("a.x", body=b"2").id
    (root / "queues" / "a" / first).unlink()
    assert hand.one("a").id == second
    races = hand.store.races
    assert races is not None
    assert (races.lost_opens, races.lost_renames) == (1, 0)
    hand.reap()
    assert hand.deliveries(first)[0].reason == "recovered", "nobody has it any more, and that is said"


def test_what_somebody_took_and_put_back_is_found_again(hand: Hand, root: Path) -> None:
    id = hand.publish("a.x").id
    aside = root.with_name("aside")
    os.rename(root / "queues" / "a" / id, aside)
    assert hand.fetch("a") == []
    os.rename(aside, root / "queues" / "a" / id)
    hand.reap()
    assert hand.one("a").id == id


def test_a_file_whose_bytes_were_changed_becomes_a_dead_letter(hand: Hand, root: Path) -> None:
    id = hand.publish("a.x").id
    (root / "queues" / "a" / id).write_bytes(b"BODY")
    assert hand.fetch("a") == []
    assert (hand.state(id), hand.deliveries(id)[0].reason) == (E, "payload-damaged")


def test_what_this_store_lacks_is_refused_with_a_hint_and_nothing_is_stored(hand: Hand, root: Path) -> None:
    for refused in (
        lambda: hand.publish("a.x", "b.x"),
        lambda: hand.publish("a.x", hold=True),
        lambda: hand.declare("a", complete=2),
        lambda: hand.declare("a", dead="graves"),
        lambda: hand.channel("c", "a.*"),
        lambda: hand.publish_many(),
        lambda: hand.erase("m"),
    ):
        with pytest.raises(NotOffered) as said:
            refused()
        assert "sqlite" in said.value.hint
    assert files(root) == {}
    assert list((root / "new").iterdir()) == []
    assert hand.store.bounds() == (1, 0)


def test_an_own_id_that_a_strange_file_has_is_taken(hand: Hand, root: Path) -> None:
    hand.declare("a")
    (root / "queues" / "a" / "mine").write_bytes(b"a stranger's")
    with pytest.raises(IdTaken):
        hand.publish("a.x", id="mine")
    assert files(root) == {"queues/a/mine": b"a stranger's"}


# ── dropped by others ───────────────────────────────────────────────────────────────────────────


def drop(root: Path, name: str, body: bytes = b"dropped") -> Path:
    aside = root.with_name("on-its-way")
    aside.write_bytes(body)
    path = root / "new" / name
    os.rename(aside, path)
    return path


def test_a_file_dropped_into_new_by_rename_is_published(hand: Hand, root: Path) -> None:
    hand.declare("a")
    drop(root, "a:from-a-shell", b"hello")
    assert folder_of(hand).dropped()
    hand.tick()
    assert files(root) == {"queues/a/from-a-shell": b"hello"}
    got = hand.one("a")
    assert (got.id, hand.body(got)) == ("from-a-shell", b"hello")
    hand.confirm(got)
    assert hand.journey("from-a-shell") == "LQFSX"
    message = hand.store.message("from-a-shell")
    assert message is not None
    assert (message.hash, message.size) == (payload_hash(b"hello"), 5)


def test_a_file_dropped_for_a_queue_that_comes_later_waits_for_it(hand: Hand, root: Path) -> None:
    drop(root, "late:one")
    hand.tick()
    assert files(root) == {"new/late:one": b"dropped"}
    assert not folder_of(hand).dropped(), "it was looked at, and nothing has changed"
    hand.declare("late")
    assert folder_of(hand).dropped()
    hand.tick()
    assert hand.one("late").id == "one"


def test_what_is_no_message_stays_where_it_is(
    hand: Hand, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hand.declare("a")
    outside = root.with_name("secret")
    outside.write_bytes(b"secret")
    (root / "new" / "a:link").symlink_to(outside)
    os.link(outside, root / "new" / "a:hard")
    os.mkfifo(root / "new" / "a:pipe")
    (root / "new" / "a:folder").mkdir()
    (root / "new" / "-:up").write_bytes(b"")
    (root / "new" / "a:..").write_bytes(b"")
    (root / "new" / "A:upper").write_bytes(b"")
    (root / "new" / "a:Upper").write_bytes(b"")
    (root / "new" / "a:ümlaut").write_bytes(b"")
    (root / "new" / "no-colon").write_bytes(b"")
    (root / "new" / f"a:{'x' * 51}").write_bytes(b"")
    os.close(os.open(os.fsencode(root / "new") + b"/a:\xff\xfe", os.O_CREAT | os.O_WRONLY))
    names = sorted(os.listdir(os.fsencode(root / "new")))
    for _ in range(2):
        hand.tick()
    assert sorted(os.listdir(os.fsencode(root / "new"))) == names
    assert hand.store.bounds() == (1, 0)
    assert outside.read_bytes() == b"secret"
    said = [record.getMessage() for record in caplog.records if "stays where it is" in record.getMessage()]
    assert len(said) == len(names), "one line each, once"


def test_a_dropped_file_with_the_id_of_another_message_stays(hand: Hand, root: Path) -> None:
    hand.publish("a.x", id="same", body=b"first")
    drop(root, "a:same", b"second")
    hand.tick()
    assert files(root) == {"new/a:same": b"second", "queues/a/same": b"first"}
    assert hand.store.bounds() == (1, 2)


def test_names_of_every_length_that_is_allowed_fit_into_a_file_name(hand: Hand, root: Path) -> None:
    queue, id = "q" * 200, "i" * 50
    hand.publish(queue=queue, id=id)
    got = hand.one(queue)
    assert files(root) == {f"delay/{queue}:{id}": b"body"}
    hand.confirm(got, queue=queue)
    assert hand.state(id) is S


def test_a_body_that_is_refused_leaves_no_file(hand: Hand, root: Path) -> None:
    first = hand.publish("a.x", id="m", idempotency_key="k")
    assert hand.publish("a.x", id="m", idempotency_key="k") == first
    with pytest.raises(IdTaken):
        hand.publish("a.x", id="m", body=b"other")
    assert list((root / "new").iterdir()) == []
    assert hand.state("m") is Q
