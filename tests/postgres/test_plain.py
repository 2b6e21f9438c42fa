"""Plain messages, kept as columns, are in the end what they would have been as objects: the memory store says what that is."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.postgres.beside import Both, both
from tests.postgres.fixtures import database
from waypost.commands import (
    Act,
    Chosen,
    Decide,
    DeclareChannel,
    DeclareConsumer,
    DeclareQueue,
    Fetch,
    JobKind,
    PublishMany,
)
from waypost.consumers import Consumer
from waypost.delivery import E, L, Q
from waypost.destinations import Kind
from waypost.instants import SECOND
from waypost.policy import Policy
from waypost.store import Heard
from waypost.stores.postgres import PostgresStore, plain
from waypost.stores.postgres.columns import column, scalar
from waypost.stores.postgres.connecting import connect_for_groups
from waypost.stores.postgres.group import MOST_KINDS
from waypost.testing import audit
from waypost.testing.clock import MovableClock
from waypost.testing.hand import publish

__all__ = ["both", "database"]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were taken out, each time that some were."""
    taken: list[int] = []
    take_out = plain.Kind.take_out

    def noted(kind: plain.Kind) -> list[plain.Whole]:
        whole = take_out(kind)
        taken.append(len(whole))
        return whole

    monkeypatch.setattr(plain.Kind, "take_out", noted)
    return taken


def test_messages_of_many_sizes_keys_and_options(both: Both, kinds: list[int]) -> None:
    both.ask(publish("a.x"), publish("b.x"))
    both.ask(
        *(publish("a.x", body=b"x" * size, key=key) for size, key in enumerate("klmü")),
        *(publish("a.x", body=b"same", mime_type="text/plain", meta=(("colour", "röt"),)) for _ in range(3)),
        publish("a.x", "b.x", object="order", priority=0),
        *(publish(queue="a", ttl_us=9 * SECOND, body=bytes([n])) for n in range(3)),
        publish(queue="a", delay_us=5 * SECOND),
        publish("a.x", force=True),
        publish("new.x"),
        publish("a.x", id="mine"),
        publish("a.x", idempotency_key="once"),
    )
    assert kinds == []
    both.clock.now += 60 * SECOND
    both.ask(publish("a.x"), Fetch(queue="a", n=100))


def test_slots_named_and_in_channels(both: Both) -> None:
    both.ask(DeclareQueue(name="a", policy=Policy(complete="per_topic", ttl_us=60 * SECOND)))
    both.ask(DeclareChannel(name="c", topics=("a.*",), policy=Policy(complete="all")))
    for name in ("ann", "bob"):
        both.ask(DeclareConsumer(name, Consumer(channel="c")))
    both.ask(*(publish("a.x", "a.y", body=bytes([n])) for n in range(5)))
    both.ask(publish("a.z"), Fetch(queue="c", kind=Kind.CHANNEL, consumer="bob", n=9))


def test_one_without_a_queue_is_completed_at_once(both: Both) -> None:
    both.ask(DeclareChannel(name="c", topics=("a.*",)), DeclareQueue(name="q"))
    both.ask(publish("a.x", object="q"), publish("a.x"), publish(queue="q"))


def test_a_fetch_of_the_same_group_comes_to_them_in_their_turn(both: Both, kinds: list[int]) -> None:
    both.ask(publish("a.x", body=b"first"))
    group = [publish("a.x", body=b"later"), publish("a.x", body=b"urgent", priority=0)]
    (_, _, got) = both.ask(*group, Fetch(queue="a"))
    assert [fetched.body for fetched in got] == [b"urgent"]
    assert kinds == [1]  # the urgent one; nobody came to the other
    (_, _, got, nothing) = both.ask(*group, Fetch(queue="a", n=9), Fetch(queue="a"))
    assert [fetched.body for fetched in got] == [b"urgent", b"first", b"later", b"later"]
    assert nothing == []
    both.ask(Fetch(queue="a"), publish("a.x"), Fetch(queue="a"), publish("a.x"))


def test_those_of_many_kinds_share_the_statements_of_all_others(both: Both, kinds: list[int]) -> None:
    queues = [f"q{number}" for number in range(MOST_KINDS + 3)]
    both.ask(*(DeclareQueue(name=queue) for queue in queues))
    both.ask(*(publish(queue=queue) for queue in queues for _ in range(2)), publish(queue=queues[0]))
    assert kinds == [2, 2, 2]


def test_those_of_very_many_kinds_and_of_many_slots(both: Both, kinds: list[int]) -> None:
    both.ask(DeclareQueue(name="a", policy=Policy(complete=plain.SLOTS + 1)), DeclareQueue(name="b"))
    both.ask(publish(queue="a"), publish(queue="b"), publish(queue="a"))
    assert kinds == []
    both.ask(*(publish(queue="b", ttl_us=SECOND * (n + 1)) for n in range(plain.KINDS + 5)))
    assert kinds == [1] * (plain.KINDS - MOST_KINDS)


def test_among_requests_of_many(both: Both) -> None:
    both.ask(publish("a.x"))
    both.ask(publish("a.x"), PublishMany([publish("a.x"), publish("a.y", id="own")]), publish("a.x"))


def test_a_broker_that_reads_nothing_first_counts_on_from_where_others_are(database: str) -> None:
    ours, theirs = PostgresStore(database), PostgresStore(database)
    ours.apply([publish("a.x")])
    for turn in range(3):
        theirs.apply([publish("a.x", body=b"theirs")] * 3)
        results = ours.apply([publish("a.x", body=b"ours %d" % turn)] * 2).results
        assert [ours.body(published.id) for published in results] == [b"ours %d" % turn] * 2
    theirs.apply([DeclareChannel(name="c", topics=("a.*",))])
    (published,) = ours.apply([publish("a.x")]).results
    found = ours.message(published.id)
    assert found is not None
    assert [delivery.channel for delivery in found.deliveries] == [None, "c"]
    audit(ours)
    ours.close()
    theirs.close()


def test_a_channel_of_another_broker_starts_where_it_says(database: str) -> None:
    """Also when the names were read by a group that wrote nothing, so that they are newer than the last one that did."""
    ours, theirs = PostgresStore(database), PostgresStore(database)
    ours.apply([publish("a.x")])
    theirs.apply([publish("b.x")] * 20)
    theirs.apply([DeclareChannel(name="c", topics=("a.*",))])
    ours.apply([Fetch(queue="nowhere")])
    (published,) = ours.apply([publish("a.x")]).results
    found = ours.message(published.id)
    assert found is not None
    assert [delivery.channel for delivery in found.deliveries] == [None, "c"]
    ours.close()
    theirs.close()


def test_nor_does_it_overtake_what_another_redrove_into_L(database: str) -> None:
    ours, theirs = PostgresStore(database), PostgresStore(database)
    (held,) = theirs.apply([publish("a.x", hold=True)]).results
    theirs.apply([Decide(id=held.id, failure="no such route")])
    ours.apply([publish("b.x")])
    theirs.apply([Act(kind=JobKind.REDRIVE, chosen=[Chosen(held.id)], states=frozenset({E}))])
    assert [one.id for one in theirs.undecided(0, 5)] == [held.id]
    (published,) = ours.apply([publish("a.x")]).results
    assert published.state is L
    ours.close()
    theirs.close()


def test_nor_does_it_overtake_what_another_put_in_L(database: str) -> None:
    ours, theirs = PostgresStore(database), PostgresStore(database)
    ours.apply([publish("a.x")])
    theirs.apply([publish("a.x", hold=True)])
    (published,) = ours.apply([publish("a.x")]).results
    assert published.state is L
    (published,) = ours.apply([publish("b.x")]).results
    assert published.state is Q
    ours.close()
    theirs.close()


def test_what_is_due_is_known_without_asking(database: str) -> None:
    clock = MovableClock()
    heard: list[Heard] = []
    store = PostgresStore(database, clock=clock)
    now = clock.now
    assert store.apply([publish("a.x")]).due_at is None
    store.listen(heard.append)
    assert store.apply([publish("a.x", delay_us=9 * SECOND)]).due_at == now + 9 * SECOND
    assert store.apply([publish("a.x", ttl_us=5 * SECOND)]).due_at == now + 5 * SECOND
    assert store.apply([publish("a.x")]).due_at == now + 5 * SECOND
    fetched = store.apply([Fetch(queue="a", lease_us=2 * SECOND)])
    assert (fetched.due_at, fetched.ready) == (now + 2 * SECOND, {"a": 2})
    store.close()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [1, -(1 << 63), (1 << 63) - 1]),
        ("bigint", [7, None, 7]),
        ("bigint", [None, None]),
        ("smallint", [3, 3, 3]),
        ("integer", [0, 1 << 30]),
        ("boolean", [True, False, True]),
        ("float8", [0.5, -1e300]),
        ("text", ["abcd", "efgh"]),
        ("text", ["äöü", "abc"]),
        ("text", ["", ""]),
        ("text", ["", None, "x"]),
        ("text", ["x" * 200, "y" * 200]),
        ("bytea", [b"\0" * 32, b"\xff" * 32]),
        ("bytea", [b"", b"a", b"ab"]),
    ],
)
def test_columns_arrive_as_they_were(database: str, kind: str, values: list[Any]) -> None:
    with connect_for_groups(database) as connection:
        ask: Callable[..., psycopg.Cursor[Any]] = connection.execute
        arrived = ask(f"select * from unnest(%b::{kind}[]) u", (column(kind, values),)).fetchall()
        expected = values if any(value is not None for value in values) else []
        assert [value for (value,) in arrived] == expected
        for value in values:
            assert ask(f"select %b::{kind}", (scalar(kind, value),)).fetchone() == (value,)


def test_a_nul_in_texts_of_one_size_is_shown_as_what_cannot_be_shown(database: str) -> None:
    with connect_for_groups(database) as connection:
        packed = column("text", ["a\0c", "abc"])
        arrived = connection.execute("select * from unnest(%b::text[]) u", (packed,)).fetchall()
    assert arrived == [("a\N{REPLACEMENT CHARACTER}c",), ("abc",)]
