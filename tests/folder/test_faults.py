"""A fault of ours while a group is decided is undone, and only the command that fails alone is told so; what a broker
leaves undone that is killed, another one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.folder.conftest import Open, files, folder_of
from waypost.commands import Command, Confirm, DeclareQueue, Fetch, Publish, Published, Release
from waypost.delivery import Outcome, S
from waypost.errors import Failed
from waypost.policy import Policy
from waypost.stores.folder.deciding import Decider, Group
from waypost.testing.hand import Hand, audit, publish


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Commands that raise, once everything else of them is done."""
    bad: list[Command] = []
    decide = Decider.decide

    def decided(self: Decider, group: Group, command: Command) -> Any:
        result = decide(self, group, command)
        if any(command is one for one in bad):
            raise ZeroDivisionError("on purpose")
        return result

    monkeypatch.setattr(Decider, "decide", decided)
    return bad


def test_a_command_that_fails_is_undone_and_its_neighbours_are_not(
    hand: Hand, root: Path, faulty: list[Command]
) -> None:
    first = hand.publish("a.x", body=b"first").id
    publishes = [publish("a.x", body=b"one"), publish("b.x", body=b"bad"), publish("c.x", body=b"two")]
    fetch = Fetch(queue="a", consumer="ann")
    faulty.append(publishes[1])
    one, bad, [got], two = hand.ask(publishes[0], publishes[1], fetch, publishes[2])
    assert isinstance(bad, Failed)
    assert "ZeroDivisionError: on purpose" in str(bad)
    assert (got.id, got.attempt) == (first, 1), "it was claimed once, gone back, and claimed again"
    assert files(root) == {
        f"delay/a:{first}": b"first",
        f"queues/a/{one.id}": b"one",
        f"queues/c/{two.id}": b"two",
    }
    assert hand.store.queue("b") is None
    assert list((root / "new").iterdir()) == []
    assert hand.confirm(got).state is S


def test_what_a_fetch_had_claimed_goes_back_when_it_fails(
    hand: Hand, root: Path, faulty: list[Command]
) -> None:
    ids = [hand.publish("a.x", body=body).id for body in (b"1", b"2")]
    fetch = Fetch(queue="a", n=2, consumer="ann")
    faulty.append(fetch)
    (failed,) = hand.ask(fetch)
    assert isinstance(failed, Failed)
    assert sorted(files(root)) == [f"queues/a/{id}" for id in ids]
    assert [got.attempt for got in hand.fetch("a", n=2)] == [1, 1]


def test_a_fault_forgets_nothing_that_was_committed(
    hand: Hand, open_hand: Open, faulty: list[Command]
) -> None:
    """Neither what this broker did nor what another one did, since the picture was kept and before."""
    other = open_hand()
    hand.declare("a")
    known = publish("a.x", body=b"1", idempotency_key="k")
    (published,) = hand.ask(known)
    folder_of(hand)._save()
    kept = other.publish("a.x", body=b"2").id
    got = other.one("a")
    bad = DeclareQueue("a", Policy(lease_us=1))
    faulty.append(bad)
    (failed,) = hand.ask(bad)
    assert isinstance(failed, Failed)
    assert hand.ask(known) == [published]
    assert hand.journey(published.id) == "LQF"
    assert hand.journey(kept) == "LQ"
    (settled,) = hand.do(Confirm(queue="a", receipts=[got.receipt]))
    assert settled.state is S
    assert hand.store.events(1, 99) == other.store.events(1, 99)
    audit(other.store)


def test_a_large_body_outlives_the_fault_of_its_neighbour(hand: Hand, faulty: list[Command]) -> None:
    body = b"x" * 100_000
    large: Publish = publish("a.x", body=body)
    large.body = hand.store.stage(body)
    bad = publish("a.x", body=b"bad")
    faulty.append(bad)
    failed, stored = hand.ask(bad, large)
    assert isinstance(failed, Failed)
    assert isinstance(stored, Published)
    assert hand.body(hand.one("a")) == body


# ── somebody else is killed between its sync and its renames ────────────────────────────────────


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


@pytest.fixture
def doomed(open_hand: Open, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Ends as soon as a group of its is synced."""
    hand = open_hand()

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(folder_of(hand), "_put_in_place", kill)
    return hand


def test_what_a_killed_broker_logged_and_did_not_move_another_one_hands_out(
    hand: Hand, root: Path, doomed: Hand
) -> None:
    hand.declare("a")
    first = publish("a.x", body=b"1", idempotency_key="k")
    with pytest.raises(Killed):
        doomed.ask(first, publish("a.x", body=b"2"))
    (known,) = hand.ask(first)
    assert hand.store.ready("a") == 2
    hand.tick()
    hand.reap()
    got = hand.fetch("a", n=9)
    assert [hand.body(one) for one in got] == [b"1", b"2"]
    assert got[0].id == known.id
    assert list((root / "new").iterdir()) == []


def test_what_a_killed_broker_had_settled_and_did_not_move_is_where_it_belongs(
    hand: Hand, root: Path, doomed: Hand
) -> None:
    hand.declare("a", retries=0)
    done, dead, back = (hand.publish("a.x", body=body).id for body in (b"1", b"2", b"3"))
    receipts = [one.receipt for one in hand.fetch("a", n=3)]
    with pytest.raises(Killed):
        doomed.ask(
            Confirm(queue="a", receipts=receipts[:1]),
            Confirm(queue="a", receipts=receipts[1:2], outcome=Outcome.INVALID),
            Release(receipts[2:]),
        )
    assert hand.store.ready("a") == 1
    assert {name: body for name, body in files(root).items() if name != f"remove/a:{done}"} == {
        f"dead/a:{dead}": b"2",
        f"queues/a/{back}": b"3",
    }
    assert hand.one("a").id == back
