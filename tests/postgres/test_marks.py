"""A consumer's mark passes what it may not have, once; and nothing that it may have is ever behind it, whichever broker made it so."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.postgres.fixtures import database
from waypost.commands import Confirm, Publish, Release
from waypost.delivery import Outcome, State
from waypost.routing import Route
from waypost.stores.postgres import PostgresStore, marks, recent
from waypost.testing import Hand, MovableClock
from waypost.testing.hand import publish

__all__ = ["database"]

PASSED = 600
ASKED = 10


class Two(NamedTuple):
    """Two brokers on one database."""

    here: Hand
    there: Hand
    url: str


@pytest.fixture
def two(database: str) -> Iterator[Two]:
    clock = MovableClock()
    hands = [Hand(PostgresStore(database, clock=clock), clock) for _ in range(2)]
    yield Two(hands[0], hands[1], database)
    for hand in hands:
        hand.store.close()


def entries_read(hand: Hand, url: str) -> int:
    """Of the index of what is ready, by anybody since the database was made."""
    assert isinstance(hand.store, PostgresStore)
    connection = hand.store.lane.connection
    assert connection is not None
    connection.execute("select pg_stat_force_next_flush()")
    connection.commit()
    with psycopg.connect(url) as other:
        found = other.execute(
            "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'deliveries_ready'"
        ).fetchone()
    assert found is not None
    return int(found[0])


def lowerings(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "select destination, turn, sequence from lowerings order by 1, 2"
        ).fetchall()


# ── what it saves ───────────────────────────────────────────────────────────────────────────────


def have_had_one_slot(hand: Hand) -> None:
    hand.declare("a", complete=2)
    hand.publish_many(*_many())
    hand.do(Confirm(queue="a", receipts=_receipts(hand)))


def have_refused(hand: Hand) -> None:
    hand.declare("a")
    hand.publish_many(*_many())
    hand.do(Confirm(queue="a", receipts=_receipts(hand), outcome=Outcome.NOT_INTERESTED))


def named_for_another(hand: Hand) -> None:
    hand.declare("a", complete="all")
    hand.register("bob", queue="a")
    hand.publish_many(*_many())


def _receipts(hand: Hand) -> list[str]:
    return [got.receipt for got in hand.fetch("a", "ann", n=PASSED)]


def _many() -> list[Publish]:
    return [publish("a.x") for _ in range(PASSED)]


@pytest.mark.parametrize("passed", [have_had_one_slot, have_refused, named_for_another])
def test_what_a_consumer_may_not_have_is_passed_once(two: Two, passed: Callable[[Hand], None]) -> None:
    passed(two.here)
    assert two.here.fetch("a", "ann") == []
    before = entries_read(two.here, two.url)
    for _ in range(ASKED):
        assert two.here.fetch("a", "ann") == []
    # Without a mark: ASKED * PASSED, or more. The first page is everybody's in a queue for anybody.
    assert entries_read(two.here, two.url) - before < PASSED
    assert len(two.there.fetch("a", "bob", n=PASSED)) == PASSED


# ── what lowers it ──────────────────────────────────────────────────────────────────────────────

Opening = Callable[[Hand], Any]


def out(hand: Hand, **policy: Any) -> list[Any]:
    """Both slots of a message are with others."""
    hand.declare("a", complete=2, retries=5, **policy)
    hand.publish("a.x", body=b"wanted")
    return [hand.one("a", "bob"), hand.one("a", "cem")]


def a_retry_at_once(hand: Hand) -> Opening:
    receipts = out(hand)
    return lambda there: there.confirm(receipts[0], Outcome.RETRY, delay_us=0)


def a_retry_that_is_due(hand: Hand) -> Opening:
    receipts = out(hand)
    hand.confirm(receipts[0], Outcome.RETRY, delay_us=5_000_000)
    return lambda there: there.wait(6)


def a_lease_that_is_over(hand: Hand) -> Opening:
    out(hand)

    def over(there: Hand) -> None:
        there.wait(11)
        there.wait(60)

    return over


def a_release(hand: Hand) -> Opening:
    receipts = out(hand)
    return lambda there: there.do(Release([receipts[1].receipt]))


def a_refusal_by_another(hand: Hand) -> Opening:
    receipts = out(hand)
    return lambda there: there.confirm(receipts[0], Outcome.NOT_INTERESTED)


def a_delay_that_is_over(hand: Hand) -> Opening:
    hand.declare("a", complete=2)
    hand.publish("a.x", body=b"wanted", delay_us=5_000_000)
    return lambda there: there.wait(6)


def a_late_decision(hand: Hand) -> Opening:
    hand.declare("a", complete=2)
    held = hand.publish("b.x", body=b"wanted", hold=True)
    return lambda there: there.decide(held.id, route=Route(queues=("a",)))


def a_redriven_dead_letter(hand: Hand) -> Opening:
    hand.declare("a", complete=2)
    dead = hand.publish("a.x", body=b"wanted")
    for consumer in ("bob", "cem"):
        hand.confirm(hand.one("a", consumer), Outcome.INVALID)
    return lambda there: there.redrive(id=dead.id)


def another_order(hand: Hand) -> Opening:
    hand.declare("a", order="key")
    hand.publish("a.x", key="k")
    hand.publish("a.x", key="k", body=b"wanted")
    hand.one("a", "bob")
    return lambda there: there.declare("a", order="fifo")


@pytest.mark.parametrize(
    "prepared",
    [
        a_retry_at_once,
        a_retry_that_is_due,
        a_lease_that_is_over,
        a_release,
        a_refusal_by_another,
        a_delay_that_is_over,
        a_late_decision,
        a_redriven_dead_letter,
        another_order,
    ],
)
def test_what_another_broker_opens_behind_a_mark_is_found(
    two: Two, prepared: Callable[[Hand], Opening]
) -> None:
    opening = prepared(two.here)
    two.here.publish("a.x", body=b"younger")
    (younger,) = two.here.fetch("a", "ann", n=2)
    assert younger.body == b"younger"
    two.here.confirm(younger)
    assert two.here.fetch("a", "ann") == []
    opening(two.there)
    assert [got.body for got in two.here.fetch("a", "ann", n=2)] == [b"wanted"]


def test_priorities_have_marks_of_their_own(two: Two) -> None:
    have_had_one_slot(two.here)
    assert two.here.fetch("a", "ann") == []
    for priority in (9, 5, 0, 5):
        two.there.publish("a.x", body=str(priority).encode(), priority=priority)
    assert [got.body for got in two.here.fetch("a", "ann", n=9)] == [b"0", b"5", b"5", b"9"]


def test_what_another_transaction_holds_is_not_behind_the_mark(two: Two) -> None:
    two.here.declare("a", complete=2)
    two.here.publish("a.x")
    with psycopg.connect(two.url) as holder:
        holder.execute("select 1 from deliveries for update")
        assert two.here.fetch("a", "ann") == []
        holder.rollback()
    assert len(two.here.fetch("a", "ann")) == 1


def test_what_is_opened_while_a_look_is_made_is_found_by_the_next(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is as of the head that its group began with, and not of what was committed since."""
    receipts = out(two.here)
    first = marks.Marks.first

    def after_the_other(self: marks.Marks, *given: Any) -> list[tuple[int, int]]:
        found = first(self, *given)
        monkeypatch.setattr(marks.Marks, "first", first)
        two.there.confirm(receipts[0], Outcome.RETRY, delay_us=0)
        return found

    monkeypatch.setattr(marks.Marks, "first", after_the_other)
    monkeypatch.setattr(recent, "ALONE_AFTER_SECONDS", 3_600.0)
    two.there.publish("b.x")
    two.here.publish("b.x")  # it learns that it is not alone: else it would look again at once
    assert two.here.fetch("a", "ann") == []
    assert len(two.here.fetch("a", "ann")) == 1


def test_a_group_of_a_broker_that_lowers_nothing_ends_all_marks(two: Two) -> None:
    """One of the version before opens a row, tells nobody, and is gone for long when somebody looks."""
    out(two.here)
    assert two.here.fetch("a", "ann") == []
    with psycopg.connect(two.url) as old:
        old.execute(
            "insert into brokers (id, last_group, seen_at) values ('old', 1, now() - interval '1 hour')"
        )
        old.execute("update deliveries set state = %s, due_at = null where slot = 1", (int(State.R),))
        old.execute("update log_head set turn = turn + 1")
    assert len(two.here.fetch("a", "ann")) == 1


def test_marks_are_used_while_a_broker_of_the_version_before_does_nothing(two: Two) -> None:
    with psycopg.connect(two.url) as old:
        old.execute("insert into brokers (id, last_group) values ('old', 1)")
    test_what_a_consumer_may_not_have_is_passed_once(two, have_had_one_slot)


# ── lowerings ───────────────────────────────────────────────────────────────────────────────────


def test_messages_that_come_and_go_lower_nothing(two: Two) -> None:
    for complete in (1, 2):
        two.here.declare("a", complete=complete)
        begun = lowerings(two.url)
        two.here.publish("a.x")
        for consumer in ("ann", "bob")[:complete]:
            two.here.confirm(two.here.one("a", consumer))
        assert lowerings(two.url) == begun


def test_old_lowerings_become_one(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = out(two.here)
    assert two.here.fetch("a", "ann") == []
    for _ in range(3):
        two.there.confirm(receipts[0], Outcome.RETRY, delay_us=0)
        receipts[0] = two.there.one("a", "bob")
    two.there.confirm(receipts[0], Outcome.RETRY, delay_us=0)
    *_, (place, turn, _) = before = lowerings(two.url)
    assert len(before) > 3
    monkeypatch.setattr(marks, "KEPT_TURNS", -1)
    two.there.reap()
    assert lowerings(two.url) == [(place, turn, min(sequence for *_, sequence in before))]
    assert len(two.here.fetch("a", "ann")) == 1


SLOT = (State.F, False, 0, None, None, None, 1, 1, "ann", None, 0, "", 7)


def slot(**changed: Any) -> tuple[Any, ...]:
    """A `slot_row`: ann has it."""
    at = {"state": 0, "named": 5, "consumer": 8, "refused": 11}
    row = list(SLOT)
    for name, value in changed.items():
        row[at[name]] = value
    return tuple(row)


@pytest.mark.parametrize(
    ("was", "row", "freed"),
    [
        (slot(), slot(state=State.S), False),
        (slot(), slot(state=State.R), False),
        (slot(state=State.R), slot(consumer="bob"), True),
        (slot(), slot(state=State.N, refused=",ann,"), False),
        (slot(), slot(state=State.C), True),
        (slot(), None, True),
        (None, slot(), False),
        (
            slot(state=State.Q, consumer=None, named="bob"),
            slot(state=State.C, consumer=None, named="bob"),
            True,
        ),
        (slot(state=State.Q, consumer=None, named="bob"), slot(state=State.Q, consumer=None), True),
        (slot(refused=",bob,"), slot(), True),
    ],
)
def test_a_slot_frees_another_when_its_consumer_may_have_that_now(
    was: tuple[Any, ...] | None, row: tuple[Any, ...] | None, freed: bool
) -> None:
    assert marks.frees(was, row) is freed
