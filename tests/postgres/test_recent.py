"""What a broker's last groups left behind is relied on while nobody else writes, and never when somebody did."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable

from tests.postgres.beside import Both, both
from tests.postgres.fixtures import database
from tests.postgres.test_two_brokers import apply_in_thread, held_before_its_last_lock
from waypost.commands import (
    Command,
    Confirm,
    DeclareChannel,
    DeclareQueue,
    Extend,
    Fetch,
    Published,
    Release,
    Remove,
    Tick,
    Work,
)
from waypost.delivery import Outcome as O
from waypost.delivery import S, X
from waypost.destinations import Kind
from waypost.errors import QueueNotFound
from waypost.instants import SECOND
from waypost.policy import Policy
from waypost.stores.postgres import PostgresStore, recent
from waypost.stores.postgres.group import GroupRows
from waypost.stores.postgres.lane import Lane
from waypost.testing import audit
from waypost.testing.hand import publish

__all__ = ["both", "database"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ALONE_AFTER_SECONDS", 0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What groups read of the database."""
    noted: list[str] = []

    def note(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def noting(*given: Any) -> Any:
            noted.append(name)
            return method(*given)

        monkeypatch.setattr(owner, name, noting)

    note(Lane, "_begin")
    for name in ("_take_ready", "_take_in", "_take_fetchings", "_take_bodies"):
        note(GroupRows, name)
    return noted


@pytest.fixture
def brokers(database: str) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Ours has just written, a queue `a` exists, and the other one knows it."""
    ours, theirs = PostgresStore(database), PostgresStore(database)
    theirs.apply([DeclareQueue("a"), DeclareQueue("b")])
    theirs.apply([Fetch(queue="a")])
    ours.apply([publish("b.x")])
    ours.apply([Fetch(queue="b"), Fetch(queue="a")])
    yield ours, theirs
    audit(ours)
    ours.close()
    theirs.close()


def bodies(results: list[Any]) -> list[bytes]:
    return [one.body for fetched in results if isinstance(fetched, list) for one in fetched]


def receipts(results: list[Any]) -> list[str]:
    return [one.receipt for fetched in results if isinstance(fetched, list) for one in fetched]


# ── as the model has it, and without reading ────────────────────────────────────────────────────


def test_a_cycle_reads_nothing(both: Both, reads: list[str]) -> None:
    both.ask(publish("a.x", body=b"0"))
    both.ask(Fetch(queue="a"), Fetch(queue="a"))
    assert both.ask(Fetch(queue="a")) == [[]]
    reads.clear()
    for turn in range(1, 6):
        both.ask(publish("a.x", body=b"%d" % turn), publish("a.x", body=b"%d'" % turn))
        got = both.ask(Fetch(queue="a", consumer="ann"), Fetch(queue="a"))
        assert bodies(got) == [b"%d" % turn, b"%d'" % turn]
        settled = both.ask(Confirm(queue="a", receipts=receipts(got)))
        assert [one.state for one in settled[0]] == [S, S]
        assert both.ask(Fetch(queue="a")) == [[]]
    assert reads == []


def test_what_waits_is_looked_for_ahead_and_its_end_is_known(
    both: Both, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waypost.stores.postgres.recent.LOOK_AHEAD", 4)
    monkeypatch.setattr(recent, "MOST_READY", 6)
    both.ask(*(publish("a.x", body=b"%d" % n, priority=n % 3) for n in range(12)))
    taken = []
    for turn in range(8):
        taken += bodies(
            both.ask(publish("a.x", body=b"+%d" % turn, priority=turn % 4), Fetch(queue="a", n=3))
        )
    assert len(taken) == len(set(taken)) == 20
    assert reads.count("_take_ready") < 8


def test_what_lies_behind_what_is_known_keeps_its_turn(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waypost.stores.postgres.recent.LOOK_AHEAD", 4)
    both.ask(*(publish("a.x", body=b"%d" % n) for n in range(9)))
    both.ask(Fetch(queue="a"))
    both.ask(publish("a.x", body=b"last", idempotency_key="last"))
    got = [body for _ in range(9) for body in bodies(both.ask(Fetch(queue="a")))]
    assert got == [*(b"%d" % n for n in range(1, 9)), b"last"]


def test_retries_leases_releases_and_removals(both: Both) -> None:
    both.ask(DeclareQueue("a", Policy(retries=2, lease_us=10 * SECOND)))
    both.ask(DeclareChannel(name="c", topics=("a.*",), policy=Policy()))
    published = both.ask(*(publish("a.x", body=b"%d" % n) for n in range(6)))
    held = receipts(both.ask(Fetch(queue="a", n=4, consumer="ann"), Fetch(queue="c", kind=Kind.CHANNEL, n=2)))
    both.ask(Confirm(queue="a", receipts=held[:1], outcome=O.RETRY, delay_us=0), Release(held[1:2]))
    both.ask(
        Extend(queue="a", receipts=held[2:3], lease_us=60 * SECOND), Fetch(queue="a", n=2, consumer="bob")
    )
    both.ask(Remove(queue="a", id=published[3].id), Confirm(queue="a", receipts=held[:3]))
    both.ask(Confirm(queue="c", kind=Kind.CHANNEL, receipts=held[4:], outcome=O.NOT_INTERESTED))
    both.clock.now += 20 * SECOND
    both.ask(Tick())
    both.ask(Fetch(queue="a", n=9))
    both.ask(Confirm(queue="a", receipts=held), Fetch(queue="c", kind=Kind.CHANNEL, n=9))


def test_what_is_kept_has_a_bound(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST_MESSAGES", 5)
    monkeypatch.setattr(recent, "MOST_BYTES", 300)
    both.ask(publish("a.x"))
    lane = both.store.lane
    for turn in range(12):
        both.ask(*(publish("a.x", body=b"%d" % n * 40) for n in range(turn % 4)), Fetch(queue="a"))
        assert len(lane._recent._messages) + len(lane._recent._plain) <= 5
        assert lane._recent._bytes == sum(map(len, lane._recent._bodies.values())) + sum(
            kind.commands[n].size for kind, n in lane._recent._plain.values()
        )


def test_a_group_that_cannot_leave_anything_is_committed_once(
    both: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both.ask(publish("a.x"))

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(GroupRows, "leave", fails)
    both.ask(publish("a.x"), publish("a.x"))
    both.ask(Fetch(queue="a"), publish("a.x"))
    assert "a bug" in caplog.text


# ── another broker was there ────────────────────────────────────────────────────────────────────


def test_what_another_broker_published_is_found_at_once(brokers: tuple[PostgresStore, PostgresStore]) -> None:
    ours, theirs = brokers
    assert ours.apply([Fetch(queue="a")]).results == [[]]
    theirs.apply([publish("a.x", body=b"theirs")])
    assert bodies(ours.apply([Fetch(queue="a")]).results) == [b"theirs"]


def test_what_another_broker_fetched_is_not_handed_out_again(
    brokers: tuple[PostgresStore, PostgresStore],
) -> None:
    ours, theirs = brokers
    ours.apply([publish("a.x", body=b"1"), publish("a.x", body=b"2")])
    assert bodies(theirs.apply([Fetch(queue="a")]).results) == [b"1"]
    assert bodies(ours.apply([Fetch(queue="a"), Fetch(queue="a")]).results) == [b"2"]


def test_what_another_broker_settled_stays_as_it_is(brokers: tuple[PostgresStore, PostgresStore]) -> None:
    ours, theirs = brokers
    ours.apply([publish("a.x", body=b"1"), publish("a.x", body=b"2")])
    held = receipts(ours.apply([Fetch(queue="a", n=2)]).results)
    theirs.apply([Confirm(queue="a", receipts=held[:1], outcome=O.INVALID), Release(held[1:])])
    stale, gone = ours.apply([Confirm(queue="a", receipts=held)]).results[0]
    assert (stale.state, gone.state) == (None, None)
    assert bodies(ours.apply([Fetch(queue="a", n=2)]).results) == [b"2"]


def test_a_lease_that_another_broker_ended_is_not_extended(
    brokers: tuple[PostgresStore, PostgresStore],
) -> None:
    """Such a group has no events, whose numbers would be taken."""
    ours, theirs = brokers
    (published,) = ours.apply([publish("a.x")]).results
    held = receipts(ours.apply([Fetch(queue="a")]).results)
    theirs.apply([Confirm(queue="a", receipts=held)])
    (extended,) = ours.apply([Extend(queue="a", receipts=held, lease_us=60 * SECOND)]).results[0]
    assert extended.until_at is None
    found = ours.message(published.id)
    assert found is not None
    assert [delivery.state for delivery in found.deliveries] == [S]


def test_what_another_broker_gave_back_is_fetched_in_its_turn(
    brokers: tuple[PostgresStore, PostgresStore],
) -> None:
    ours, theirs = brokers
    ours.apply([publish("a.x", body=b"1"), publish("a.x", body=b"2")])
    held = receipts(theirs.apply([Fetch(queue="a")]).results)
    assert bodies(ours.apply([Fetch(queue="a")]).results) == [b"2"]
    ours.apply([publish("a.x", body=b"3")])
    theirs.apply([Release(held)])
    assert bodies(ours.apply([Fetch(queue="a", n=5)]).results) == [b"1", b"3"]


def test_a_queue_that_another_broker_made_is_there_at_once(database: str) -> None:
    """Also for a group that nothing but names bears on, and that writes nothing when it finds none."""
    ours, theirs = PostgresStore(database), PostgresStore(database)
    ours.apply([publish("b.x")])
    (refused,) = ours.apply([publish(queue="a", create=False)]).results
    assert isinstance(refused, QueueNotFound)
    theirs.apply([DeclareQueue("a")])
    (published,) = ours.apply([publish(queue="a", create=False)]).results
    assert isinstance(published, Published)
    ours.close()
    theirs.close()


def test_nobody_waits_in_a_circle_with_one_who_holds_locks(
    brokers: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other broker has locked rows and wants the head; ours has the head and wants those rows."""
    ours, theirs = brokers
    ours.apply([publish("a.x", body=b"%d" % n) for n in range(4)])
    ours.apply([Fetch(queue="b")])
    ended: list[type[BaseException] | None] = []
    roll_back = Lane._roll_back

    def noted(lane: Lane) -> None:
        ended.append(sys.exc_info()[0])
        roll_back(lane)

    monkeypatch.setattr(Lane, "_roll_back", noted)
    stopped, go_on = held_before_its_last_lock(theirs, monkeypatch)
    thread, their_results = apply_in_thread(theirs, Fetch(queue="a", n=2))
    assert stopped.wait(10)
    timer = threading.Timer(0.5, go_on.set)
    timer.start()
    our_results = ours.apply([Fetch(queue="a", n=2)]).results
    thread.join(20)
    timer.join()
    assert sorted(bodies([*our_results, *their_results])) == [b"0", b"1", b"2", b"3"]
    assert LockNotAvailable in ended
    assert DeadlockDetected not in ended


def while_they_are_in_the_middle_of(
    theirs: PostgresStore,
    command: Command,
    ours: PostgresStore,
    ask: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, Any]:
    """Theirs has decided, and holds what it holds; ours knows of nobody. What each was answered: ours first."""
    stopped, go_on = held_before_its_last_lock(theirs, monkeypatch)
    thread, their_results = apply_in_thread(theirs, command)
    assert stopped.wait(10)
    timer = threading.Timer(0.3, go_on.set)
    timer.start()
    (our_result,) = ours.apply([ask]).results
    thread.join(20)
    timer.join()
    return our_result, their_results[0]


def test_one_idempotency_key_is_one_message_though_another_broker_is_in_the_middle_of_it(
    brokers: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = brokers
    command = publish("a.x", idempotency_key="once")
    mine, other = while_they_are_in_the_middle_of(theirs, command, ours, command, monkeypatch)
    assert mine.id == other.id


def test_a_message_is_completed_once_though_another_broker_is_in_the_middle_of_it(
    brokers: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = brokers
    (published,) = ours.apply([publish("a.x", "b.x")]).results
    (at_a,) = receipts(ours.apply([Fetch(queue="a")]).results)
    (at_b,) = receipts(ours.apply([Fetch(queue="b")]).results)
    mine, other = while_they_are_in_the_middle_of(
        theirs,
        Confirm(queue="a", receipts=[at_a]),
        ours,
        Confirm(queue="b", receipts=[at_b]),
        monkeypatch,
    )
    assert [one.state for one in (*mine, *other)] == [S, S]
    found = ours.message(published.id)
    assert found is not None
    assert [event.to_state for event in found.journey].count(X) == 1


def test_no_consumer_gets_two_slots_though_another_broker_is_in_the_middle_of_it(
    brokers: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = brokers
    ours.apply([DeclareQueue("two", Policy(complete=2))])
    ours.apply([publish(queue="two")])
    ours.apply([Fetch(queue="nowhere")])
    fetch = Fetch(queue="two", consumer="ann")
    mine, other = while_they_are_in_the_middle_of(theirs, fetch, ours, fetch, monkeypatch)
    assert len([*mine, *other]) == 1


def test_what_does_not_fit_what_is_remembered_is_looked_at_again(
    brokers: tuple[PostgresStore, PostgresStore],
) -> None:
    """A message in a queue that another broker has made since."""
    ours, theirs = brokers
    theirs.apply([DeclareQueue("new")])
    (published,) = theirs.apply([publish(queue="new")]).results
    assert ours.apply([Remove(queue="new", id=published.id)]).results == [True]


def test_a_channel_that_another_broker_has_filled_does_not_disturb_a_fetch(
    brokers: tuple[PostgresStore, PostgresStore],
) -> None:
    ours, theirs = brokers
    ours.apply([publish("a.x", body=b"%d" % n) for n in range(4)])
    ours.apply([Fetch(queue="a")])
    theirs.apply([DeclareChannel(name="c", topics=("a.*",), policy=Policy(), start=1)])
    while theirs.apply([Work()]).results == [True]:
        pass
    assert bodies(ours.apply([Fetch(queue="a")]).results) == [b"1"]
    assert len(bodies(ours.apply([Fetch(queue="c", kind=Kind.CHANNEL, n=9)]).results)) == 4


def test_after_a_migration_nothing_is_remembered_of_other_destinations(both: Both, database: str) -> None:
    """It raises the version of the names, and no turn."""
    both.ask(publish("a.x"), publish("a.x"))
    held = receipts(both.ask(Fetch(queue="a")))
    with psycopg.connect(database) as connection:
        connection.execute("update log_head set version = version + 1")
    both.ask(Extend(queue="a", receipts=["1-0000000000000000"]))  # the names are read anew
    both.ask(Confirm(queue="a", receipts=held), Fetch(queue="a"))


def test_after_somebody_was_there_it_locks_for_a_while(
    brokers: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = brokers
    monkeypatch.setattr(recent, "ALONE_AFTER_SECONDS", 3_600.0)
    alone: list[bool] = []
    prepare = GroupRows.prepare

    def noted(rows: GroupRows, *given: Any) -> None:
        alone.append(rows.alone)
        prepare(rows, *given)

    monkeypatch.setattr(GroupRows, "prepare", noted)

    def for_long_nobody_was_there() -> None:
        ours.lane._others_at -= 7_200

    for_long_nobody_was_there()
    ours.apply([Fetch(queue="a")])
    theirs.apply([publish("a.x"), publish("a.x")])
    alone.clear()
    ours.apply([Fetch(queue="a")])
    ours.apply([Fetch(queue="a")])
    assert alone == [True, False, False], "it ran again, and then knew"
    for_long_nobody_was_there()
    theirs.apply([publish("a.x")])
    ours.lane._forget()
    for_long_nobody_was_there()
    ours.apply([publish("a.x")])
    ours.apply([publish("a.x")])
    assert alone[3:] == [False, False, False], "a turn that was not its own says so too"
