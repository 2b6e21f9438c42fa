"""Starting: after kills and power cuts, on trees that others touched, and on those that must not be served."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.folder.conftest import Open, crashed, files, folder_of
from tests.integration.commands import outside
from waypost.commands import Fetch
from waypost.delivery import E, F, Outcome
from waypost.errors import StoreUnusable
from waypost.instants import SECOND
from waypost.stores.folder import FolderStore
from waypost.stores.folder.log import HEADER_BYTES
from waypost.stores.folder.picture import Place
from waypost.stores.folder.tree import Tree
from waypost.testing.hand import Hand, audit, publish

DAY = 86_400.0


def move(root: Path, here: str, there: str) -> None:
    (root / there).parent.mkdir(exist_ok=True)
    os.rename(root / here, root / there)


# ── files follow the log ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("there", ["delay/a:{}", "remove/a:{}", "dead/a:{}"])
def test_what_can_be_fetched_goes_back_to_its_queue(
    hand: Hand, root: Path, open_hand: Open, there: str
) -> None:
    id = hand.publish("a.x").id
    copy = crashed(root)
    move(copy, f"queues/a/{id}", there.format(id))
    again = open_hand(copy)
    assert files(copy) == {f"queues/a/{id}": b"body"}
    assert again.one("a").attempt == 1, "a claim that was never logged was no fetch"


@pytest.mark.parametrize("there", ["queues/a/{}", "remove/a:{}", "dead/a:{}"])
def test_what_is_fetched_goes_back_to_delay(hand: Hand, root: Path, open_hand: Open, there: str) -> None:
    id = hand.publish("a.x").id
    got = hand.one("a")
    copy = crashed(root)
    move(copy, f"delay/a:{id}", there.format(id))
    again = open_hand(copy)
    assert files(copy) == {f"delay/a:{id}": b"body"}
    assert again.state(id) is F
    assert again.confirm(got).state is not None


@pytest.mark.parametrize("there", ["queues/a/{}", "delay/a:{}"])
def test_what_was_confirmed_is_never_seen_again(hand: Hand, root: Path, open_hand: Open, there: str) -> None:
    id = hand.publish("a.x").id
    hand.confirm(hand.one("a"))
    copy = crashed(root)
    (copy / there.format(id)).write_bytes(b"body")
    again = open_hand(copy, reaper=False)
    assert again.fetch("a") == []
    assert files(copy) == {f"remove/a:{id}": b"body"}


def test_a_body_that_a_power_cut_left_in_new_is_brought_to_its_queue(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    """The log is synced, the renames after it need not be."""
    waiting, fetched = hand.publish("a.x", body=b"1").id, hand.publish("a.x", body=b"2").id
    hand.one("a")
    hand.one("a")
    copy = crashed(root)
    picture = folder_of(hand)._picture
    for id, place in ((waiting, f"delay/a:{waiting}"), (fetched, f"delay/a:{fetched}")):
        move(copy, place, f"new/{picture.by_id[id].staged}")
    again = open_hand(copy)
    again.wait(10)
    assert {again.body(got) for got in again.fetch("a", n=9)} == {b"1", b"2"}
    assert list((copy / "new").iterdir()) == []


def test_files_that_the_log_does_not_know_are_taken_in(hand: Hand, root: Path, open_hand: Open) -> None:
    hand.declare("a")
    copy = crashed(root)
    (copy / "queues" / "a" / "one").write_bytes(b"1")
    (copy / "delay" / "a:two").write_bytes(b"2")
    (copy / "queues" / "made-by-hand").mkdir()
    again = open_hand(copy)
    assert {again.body(got) for got in again.fetch("a", n=9)} == {b"1", b"2"}
    message = again.store.message("one")
    assert message is not None
    assert [event.reason for event in message.journey[:2]] == ["recovered", "recovered"]
    assert again.store.ready("made-by-hand") == 0
    audit(again.store)


def test_a_message_whose_file_is_gone_ends_and_says_so(hand: Hand, root: Path, open_hand: Open) -> None:
    id = hand.publish("a.x").id
    copy = crashed(root)
    (copy / "queues" / "a" / id).unlink()
    again = open_hand(copy)
    assert again.journey(id) == "LQC"
    assert again.deliveries(id)[0].reason == "recovered"


def test_bodies_on_their_way_in_are_cleared_unless_somebody_else_serves(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    half, strange = ".0123456789abcdef-1", ".rsync.1234"
    for name in (half, strange):
        (root / "new" / name).write_bytes(b"half a bo")
    open_hand()
    assert (root / "new" / half).exists(), "it may be the other one's"
    again = crashed(root)
    open_hand(again)
    assert os.listdir(again / "new") == [strange]


def test_what_was_dropped_or_fetched_while_nobody_served_is_not_stranded(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    id = hand.publish("a.x").id
    hand.one("a")
    hand.store.close()
    (root / "new" / "a:dropped").write_bytes(b"d")
    hand.clock.move(3_600)
    again = open_hand()
    again.tick()
    assert sorted(got.id for got in again.fetch("a", n=9)) == sorted([id, "dropped"])
    hand.store = again.store


def test_a_log_that_was_moved_away_leaves_every_waiting_message(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    bodies = {hand.publish("a.x", body=str(n).encode()).id: str(n).encode() for n in range(5)}
    hand.one("a")
    copy = crashed(root)
    (copy / "log").unlink()
    again = open_hand(copy)
    assert {got.id: again.body(got) for got in again.fetch("a", n=9)} == bodies


# ── the log's end, and its past ─────────────────────────────────────────────────────────────────


def test_a_torn_end_of_the_log_is_cut_off_wherever_it_was_torn(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    for n in range(3):
        hand.publish("a.x", body=str(n).encode())
    log = (root / "log").read_bytes()
    hand.store.apply([publish("a.x", body=b"torn")])
    whole = (root / "log").read_bytes()
    torn = [len(log) + 1, len(log) + 20, len(log) + 60, len(whole) - 1]
    for number, length in enumerate(torn):
        copy = root.with_name(f"torn-{number}")
        shutil.copytree(root, copy)
        (copy / "log").write_bytes(whole[:length])
        again = open_hand(copy)
        assert [event.offset for event in again.store.events(1, 6)] == [1, 2, 3, 4, 5, 6]
        assert (copy / "log").read_bytes()[: len(log)] == log
        ids = [again.publish("a.x").id for _ in range(2)]
        assert len(again.fetch("a", n=9)) == 6, (
            "and the body whose record was torn, as a file that is not known"
        )
        assert len(set(ids)) == 2
        audit(again.store)


def test_zeros_at_the_end_of_the_log_are_cut_off(hand: Hand, root: Path, open_hand: Open) -> None:
    hand.publish("a.x")
    copy = crashed(root)
    with (copy / "log").open("ab") as log:
        log.write(bytes(5_000))
    assert open_hand(copy).store.bounds() == (1, 2)


def test_damage_with_whole_groups_behind_it_is_refused_and_nothing_is_cut(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    for _ in range(3):
        hand.publish("a.x")
    copy = crashed(root)
    damaged = bytearray((copy / "log").read_bytes())
    damaged[HEADER_BYTES + 60] ^= 1
    (copy / "log").write_bytes(damaged)
    with pytest.raises(StoreUnusable, match=r"damaged at byte 4096"):
        open_hand(copy)
    assert (copy / "log").read_bytes() == damaged


def test_a_start_reads_the_picture_and_only_what_came_after_it(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    ids = [hand.publish("a.x").id for _ in range(20)]
    got = hand.one("a")
    hand.store.close()
    second = open_hand()
    second.publish("a.x", body=b"later")
    copy = crashed(root)
    damaged = bytearray((copy / "log").read_bytes())
    damaged[HEADER_BYTES + 60] ^= 1  # in what the picture stands for
    (copy / "log").write_bytes(damaged)
    third = open_hand(copy)
    assert third.store.bounds() == (1, 43)
    assert third.confirm(got).state is not None
    assert [one.id for one in third.fetch("a", n=99)][:19] == ids[1:]
    hand.store = second.store


def test_a_damaged_picture_is_made_anew_from_the_log(hand: Hand, root: Path, open_hand: Open) -> None:
    hand.publish("a.x")
    hand.store.close()
    (root / "log.picture").write_bytes(b"junk, and more of it")
    hand.store = open_hand().store
    assert hand.store.ready("a") == 1


def test_what_was_kept_for_long_enough_is_given_back_to_the_file_system(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    waiting = hand.publish("a.x", body=b"waits for weeks").id
    for _ in range(30):
        hand.store.apply([publish("b.x") for _ in range(20)])
        for got in hand.fetch("b", n=20):
            hand.confirm(got, queue="b")
    before = (root / "log").stat()
    hand.clock.move(8 * DAY)
    fresh = hand.publish("b.x").id
    hand.reap()
    after = (root / "log").stat()
    assert hand.store.bounds()[0] > 3_000
    assert after.st_size >= before.st_size, "positions never change"
    assert after.st_blocks < before.st_blocks
    again = open_hand(crashed(root))
    assert again.store.bounds() == hand.store.bounds()
    assert again.one("a").id == waiting
    assert again.one("b").id == fresh


def test_a_trimmed_log_without_its_picture_is_refused_in_one_line(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    hand.publish("a.x")
    hand.clock.move(8 * DAY)
    hand.reap()
    copy = crashed(root)
    (copy / "log.picture").unlink()
    with pytest.raises(StoreUnusable, match=r"log\.picture is missing or damaged"):
        open_hand(copy)


# ── trees that must not be served ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("folder://mq", "lacks a slash"),
        ("folder:///", "names no folder"),
        ("folders:////srv/mq", "no store is called 'folders'"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, said: str) -> None:
    done = outside("serve", "--port", "0", "--store", url)
    assert (done.code, said in done.line) == (1, True)


@pytest.mark.parametrize("name", ["new", "queues", "delay", "remove", "dead", "log"])
@pytest.mark.parametrize("what", ["link", "other"])
def test_a_link_or_a_thing_of_another_kind_in_the_place_of_a_folder_is_refused(
    root: Path, name: str, what: str
) -> None:
    root.mkdir()
    elsewhere = root.with_name("elsewhere")
    elsewhere.mkdir()
    if what == "link":
        (root / name).symlink_to(elsewhere)
    elif name == "log":
        (root / name).mkdir()
    else:
        (root / name).write_bytes(b"")
    with pytest.raises(StoreUnusable, match=name):
        FolderStore(root)
    assert list(elsewhere.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(root: Path) -> None:
    root.write_bytes(b"precious")
    with pytest.raises(StoreUnusable, match="cannot be used"):
        FolderStore(root)
    assert root.read_bytes() == b"precious"


def test_a_log_that_is_something_else_is_refused_and_stays(root: Path) -> None:
    root.mkdir()
    (root / "log").write_bytes(b"my own notes\n" * 1_000)
    with pytest.raises(StoreUnusable, match="not a folder store's log"):
        FolderStore(root)
    assert (root / "log").read_bytes() == b"my own notes\n" * 1_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give rights up")
def test_a_folder_without_rights_is_one_line() -> None:
    nobody = "import os; os.setuid(65534); "
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        code = f"from waypost.stores.folder import FolderStore; {nobody} FolderStore({folder + '/mq'!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StoreUnusable" in done.stderr
    assert "cannot be used: permission denied" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("inside", ["delay", "queues/a"])
def test_a_mount_inside_the_tree_is_one_line(hand: Hand, root: Path, inside: str) -> None:
    id = hand.publish("a.x").id
    hand.store.close()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root / inside], capture_output=True)
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        done = outside("serve", "--port", "0", "--store", f"folder:///{root}")
    finally:
        subprocess.run(["umount", root / inside], check=True)
    assert "is another file system than" in done.line
    assert done.code == 1
    hand.store = FolderStore(root, clock=hand.clock)
    assert hand.one("a").id == id


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_read_only_file_system_is_one_line(hand: Hand, root: Path) -> None:
    hand.publish("a.x")
    hand.store.close()
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", root, root], capture_output=True)
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        done = outside("serve", "--port", "0", "--store", f"folder:///{root}")
    finally:
        subprocess.run(["umount", root], check=True)
    assert "read-only" in done.line
    hand.store = FolderStore(root, clock=hand.clock)


def test_a_routing_function_is_refused_at_start(root: Path) -> None:
    done = outside("serve", "--port", "0", "--store", f"folder:///{root}", "--router", "json:loads")
    assert "no routing function" in done.line


def test_a_name_never_leaves_the_tree(hand: Hand) -> None:
    tree = folder_of(hand)._tree
    for queue, id in (
        ("..", "x"),
        ("a/b", "x"),
        ("a", "../x"),
        ("a", "x\0"),
        ("a", ".."),
        ("", "x"),
        ("a", ""),
    ):
        for place in (Place.QUEUE, Place.DELAY):
            with pytest.raises(ValueError, match="not a"):
                tree.spot(place, queue, id)


def test_an_outcome_after_a_start_counts_as_before(hand: Hand, root: Path, open_hand: Open) -> None:
    hand.declare("a", retries=1)
    hand.publish("a.x")
    hand.confirm(hand.one("a", "ann"), Outcome.RETRY, delay_us=SECOND)
    again = open_hand(crashed(root))
    again.wait(1)
    (result,) = again.store.apply([Fetch(queue="a", consumer="bob")]).results
    assert again.confirm(result[0], Outcome.RETRY).state is not None
    assert len(again.found(states=frozenset({E}))) == 1


def test_what_another_one_reaps_while_a_broker_starts_is_no_fault(
    hand: Hand, root: Path, open_hand: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hand.publish("a.x").id
    hand.confirm(hand.one("a"))
    copy = crashed(root)
    (copy / "remove" / f"a:{id}").write_bytes(b"body")
    listed = Tree.listed

    def reaped_meanwhile(tree: Tree, folder: str) -> Any:
        found = listed(tree, folder)
        if folder == "remove":
            (copy / "remove" / f"a:{id}").unlink()
        return found

    monkeypatch.setattr(Tree, "listed", reaped_meanwhile)
    again = open_hand(copy)
    assert again.fetch("a") == []
    assert files(copy) == {}
