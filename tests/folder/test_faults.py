"""A fault of ours while a group is decided: it is undone, and only the command that fails alone is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.folder.conftest import Open, files, folder_of
from waypost.commands import Command, Confirm, DeclareQueue, Fetch, Publish, Published
from waypost.delivery import S
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
