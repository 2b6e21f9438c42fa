"""Two stores on one database: each sees what the other did, and neither does it again."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.postgres.fixtures import database
from waypost.broker import Broker
from waypost.commands import (
    Confirm,
    DeclareQueue,
    DeleteQueue,
    Fetch,
    Fetched,
    Publish,
    Published,
)
from waypost.delivery import F, L, Q, S, State, X
from waypost.destinations import Kind
from waypost.errors import QueueNotFound
from waypost.filters import Filter
from waypost.policy import Policy
from waypost.store import Task
from waypost.stores.postgres import PostgresStore, writing
from waypost.stores.postgres.group import GroupRows
from waypost.testing import audit
from waypost.testing.hand import publish

__all__ = ["database"]

Open = Callable[[], PostgresStore]


@pytest.fixture
def open_store(database: str) -> Iterator[Open]:
    opened: list[PostgresStore] = []

    def open_store() -> PostgresStore:
        opened.append(PostgresStore(database))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def held_before_its_last_lock(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """The store's next group stops when it has decided, and goes on when it is told to. (it stops, it may go on)"""
    stopped, go_on = threading.Event(), threading.Event()
    last_lock = writing._last_lock
    mine = store.broker
    store.lane._others_at = time.monotonic()  # one that knows of no others asks for all at once

    def wait(rows: GroupRows) -> object:
        if threading.current_thread().name == mine:
            stopped.set()
            assert go_on.wait(20)
        return last_lock(rows)

    monkeypatch.setattr(writing, "_last_lock", wait)
    return stopped, go_on


def held_when_it_has_begun(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """The store's next group stops when it has read the head. (it stops, it may go on)"""
    stopped, go_on = threading.Event(), threading.Event()
    prepare = GroupRows.prepare
    mine = store.broker

    def wait(rows: GroupRows, *given: Any) -> None:
        if threading.current_thread().name == mine:
            stopped.set()
            assert go_on.wait(20)
        prepare(rows, *given)

    monkeypatch.setattr(GroupRows, "prepare", wait)
    return stopped, go_on


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in a thread or on a server
            await asyncio.sleep(0.01)


def apply_in_thread(store: PostgresStore, *commands: object) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.extend(store.apply(list(commands)).results),  # type: ignore[arg-type]
        name=store.broker,
    )
    thread.start()
    return thread, results


def test_no_reader_skips_an_event_while_a_transaction_is_held_open(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = open_store(), open_store()
    quick.apply(
        [publish("a.x", body=b"first"), publish("b.x")]
    )  # the queues are there: nothing makes it run again
    stopped, go_on = held_before_its_last_lock(slow, monkeypatch)
    thread, results = apply_in_thread(slow, publish("a.x", body=b"slow"), Fetch(queue="a", n=2))
    assert stopped.wait(10)
    # What was decided first commits last; readers meanwhile see a log without gaps that only grows at its end.
    read: list[tuple[int, str]] = []

    def read_on() -> None:
        head = quick.bounds()[1]
        events = quick.events(len(read) + 1, head)
        assert [event.offset for event in events] == list(range(len(read) + 1, head + 1))
        read.extend((event.offset, event.message_id) for event in events)

    for number in range(10):
        quick.apply([publish("b.x", body=str(number).encode())])
        read_on()
    go_on.set()
    thread.join(20)
    read_on()
    log = quick.events(1, quick.bounds()[1])
    assert read == [(event.offset, event.message_id) for event in log], "a reader was overtaken"
    published, fetched = results
    assert isinstance(published, Published)
    assert isinstance(fetched, list)
    assert [one.body for one in fetched] == [b"first", b"slow"]
    # Its numbers are those of its place in the log, in ids and receipts too.
    info = slow.message(published.id)
    assert info is not None
    assert info.sequence == log[-4].offset
    assert fetched[1].id == published.id
    settled = quick.apply([Confirm(queue="a", receipts=[one.receipt for one in fetched])]).results[0]
    assert [one.state for one in settled] == [S, S]
    audit(quick)


def test_two_brokers_never_hand_out_the_same_slot(open_store: Open) -> None:
    one, other = open_store(), open_store()
    one.apply([publish("a.x", body=str(n).encode()) for n in range(300)])
    taken: dict[str, list[str]] = {one.broker: [], other.broker: []}

    def work(store: PostgresStore) -> None:
        empty = 0
        while empty < 3:
            (fetched,) = store.apply([Fetch(queue="a", n=7, consumer=store.broker)]).results
            empty = 0 if fetched else empty + 1
            taken[store.broker] += [message.id for message in fetched]
            store.apply([Confirm(queue="a", receipts=[message.receipt for message in fetched])])

    threads = [threading.Thread(target=work, args=(store,)) for store in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ids = [id for mine in taken.values() for id in mine]
    assert len(ids) == len(set(ids)) == 300
    info = one.queue("a")
    assert info is not None
    assert info.states == {S: 300}
    audit(one)


def test_a_message_of_two_queues_is_completed_once_when_two_brokers_confirm_at_a_time(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_store(), open_store()
    (published,) = one.apply([publish("a.x", "b.x")]).results
    confirms = []
    for queue in ("a", "b"):
        (fetched,) = one.apply([Fetch(queue=queue, consumer="ann")]).results
        confirms.append(Confirm(queue=queue, receipts=[fetched[0].receipt]))
    stopped, go_on = held_before_its_last_lock(one, monkeypatch)
    first, _ = apply_in_thread(one, confirms[0])
    assert stopped.wait(10)
    second, _ = apply_in_thread(other, confirms[1])
    time.sleep(0.2)
    assert second.is_alive(), "it waits for the other's confirm of the same message"
    go_on.set()
    first.join(20)
    second.join(20)
    info = one.message(published.id)
    assert info is not None
    assert info.state is X
    assert [event.to_state for event in info.journey].count(X) == 1


def test_no_consumer_gets_two_slots_of_a_message_from_two_brokers(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_store(), open_store()
    one.apply([DeclareQueue("a", Policy(complete=2))])
    one.apply([publish("a.x")])
    stopped, go_on = held_before_its_last_lock(one, monkeypatch)
    thread, results = apply_in_thread(one, Fetch(queue="a", consumer="ann"))
    assert stopped.wait(10)
    assert other.apply([Fetch(queue="a", consumer="ann")]).results == [[]]
    go_on.set()
    thread.join(20)
    (fetched,) = results
    assert isinstance(fetched, list)
    assert len(fetched) == 1
    assert other.apply([Fetch(queue="a", consumer="ann")]).results == [[]]
    (theirs,) = other.apply([Fetch(queue="a", consumer="bob")]).results
    assert len(theirs) == 1


def test_an_idempotency_key_at_two_brokers_is_one_message(open_store: Open) -> None:
    stores = [open_store(), open_store()]
    results: list[Published] = []
    again: list[Publish] = [publish("a.x", idempotency_key="k", producer="p") for _ in stores]
    threads = [
        threading.Thread(target=lambda s=store, p=command: results.extend(s.apply([p]).results))
        for store, command in zip(stores, again, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 2
    assert results[0].id == results[1].id
    info = stores[0].queue("a")
    assert info is not None
    assert info.states == {Q: 1}


def test_a_key_is_never_out_twice_though_two_brokers_fetch(open_store: Open) -> None:
    one, other = open_store(), open_store()
    one.apply([DeclareQueue("a", Policy(order="key"))])
    one.apply([publish("a.x", key=f"k{n % 5}", body=str(n).encode()) for n in range(60)])
    lock = threading.Lock()
    out: set[str] = set()
    order: dict[str, list[int]] = {}

    def work(store: PostgresStore) -> None:
        empty = 0
        while empty < 20:
            (fetched,) = store.apply([Fetch(queue="a", n=2, consumer=store.broker)]).results
            empty = 0 if fetched else empty + 1
            for message in fetched:
                key = message.envelope.key
                with lock:
                    assert key not in out
                    out.add(key)
                    order.setdefault(key, []).append(int(message.body))
            with lock:
                out.difference_update(message.envelope.key for message in fetched)
            store.apply([Confirm(queue="a", receipts=[message.receipt for message in fetched])])

    threads = [threading.Thread(target=work, args=(store,)) for store in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(map(len, order.values())) == 60
    assert all(numbers == sorted(numbers) for numbers in order.values())
    audit(one)


def test_a_policy_changed_by_the_other_is_seen_at_once(open_store: Open) -> None:
    one, other = open_store(), open_store()
    other.apply([publish("a.x")])
    one.apply([DeclareQueue("a", Policy(paused=True))])
    assert other.apply([Fetch(queue="a")]).results == [[]]
    one.apply([DeleteQueue("a")])
    (refused,) = other.apply([Fetch(queue="a")]).results
    assert isinstance(refused, QueueNotFound)


def test_a_group_that_decided_with_an_old_policy_runs_again(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = open_store(), open_store()
    quick.apply([DeclareQueue("a", Policy())])
    stopped, go_on = held_before_its_last_lock(slow, monkeypatch)
    thread, results = apply_in_thread(slow, publish("a.x"))
    assert stopped.wait(10)
    quick.apply([DeclareQueue("a", Policy(complete=3))])
    go_on.set()
    thread.join(20)
    (published,) = results
    assert isinstance(published, Published)
    info = quick.message(published.id)
    assert info is not None
    assert len(info.deliveries) == 3


def test_a_waiter_hears_of_what_another_broker_published_within_100_ms(open_store: Open) -> None:
    here, there = open_store(), open_store()
    there.apply([DeclareQueue("a", Policy())])

    async def wait_for_it() -> tuple[list[Fetched], float]:
        broker = Broker(here, on_broken=lambda broken: None)
        answer: asyncio.Future[list[Fetched]] = asyncio.get_running_loop().create_future()
        broker.fetch(Fetch(queue="a", consumer="ann"), answer.set_result, 10_000_000)
        await until(lambda: bool(broker._parked))
        await asyncio.sleep(0.3)  # it has been waiting for a while
        await asyncio.to_thread(there.apply, [publish("a.x", body=b"news")])
        began = time.monotonic()
        fetched = await asyncio.wait_for(answer, 5)
        took = time.monotonic() - began
        await broker.close()
        return fetched, took

    fetched, took = asyncio.run(wait_for_it())
    assert [message.body for message in fetched] == [b"news"]
    assert took < 0.1


def test_nothing_is_asked_while_nobody_waits(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    looks: list[float] = []
    watch = store._watch
    monkeypatch.setattr(watch, "_look", lambda db: looks.append(time.monotonic()))
    store.listen(lambda heard: None)
    time.sleep(0.4)
    assert looks == []
    store.awaited(True)
    time.sleep(0.4)
    assert 3 <= len(looks) <= 12
    store.awaited(False)
    time.sleep(0.1)
    before = len(looks)
    time.sleep(0.3)
    assert len(looks) == before


def test_a_lease_given_by_one_broker_is_ended_by_the_one_whose_task_it_is(open_store: Open) -> None:
    owner, other = open_store(), open_store()

    async def lease_ends() -> State:
        first = Broker(owner, on_broken=lambda broken: None)
        await until(lambda: owner.owns(Task.EXPIRY))
        second = Broker(other, on_broken=lambda broken: None)
        (published,) = await asyncio.to_thread(lambda: other.apply([publish("a.x")]).results)
        await second.ask(Fetch(queue="a", consumer="ann", lease_us=300_000))
        assert not other.owns(Task.EXPIRY)

        def state() -> State:
            info = other.message(published.id)
            assert info is not None
            return info.deliveries[0].state

        await until(lambda: state() is not F)
        ended = state()
        await second.close()
        await first.close()
        return ended

    assert asyncio.run(lease_ends()) is State.R


def test_the_tasks_of_a_broker_that_is_gone_are_taken_over(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waypost.stores.postgres.watching.LEASE_SECONDS", 1.5)
    gone, heir = open_store(), open_store()
    gone.listen(lambda heard: None)
    while not gone.owns(Task.JOBS):
        time.sleep(0.01)
    heir.listen(lambda heard: None)
    time.sleep(0.2)
    assert not heir.owns(Task.JOBS)
    # Killed: it says nothing, and renews nothing.
    monkeypatch.setattr(gone._watch, "_claim", lambda db: None)
    deadline = time.monotonic() + 10
    while not heir.owns(Task.JOBS):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not gone.owns(Task.JOBS)


def test_counters_agree_with_what_is_there(open_store: Open, database: str) -> None:
    one, other = open_store(), open_store()
    for round in range(5):
        for store in (one, other):
            store.apply([publish("a.x", "b.y", body=str(round).encode())])
            (fetched,) = store.apply([Fetch(queue="a", consumer="ann")]).results
            store.apply([Confirm(queue="a", receipts=[message.receipt for message in fetched])])
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "select p.name, d.state, count(*) from deliveries d join destinations p on p.number = d.destination"
            " group by p.name, d.state"
        ).fetchall()
    for name in ("a", "b"):
        info = one.queue(name)
        assert info is not None
        assert info.states == {State(state): count for place, state, count in rows if place == name}
        assert one.ready(name, Kind.QUEUE) == info.states.get(Q, 0)


# ── somebody commits between the moment a group begins and the moment it reads ─────────────────────


def overtaken_by(monkeypatch: pytest.MonkeyPatch, store: PostgresStore, other: Callable[[], object]) -> None:
    """The store's next group has read the log's head when `other` does its work, once."""
    done: list[object] = []
    prepare = GroupRows.prepare

    def prepared(self: GroupRows, *given: Any) -> None:
        if not done and self.db.connection is store.lane.connection:
            done.append(other())
        prepare(self, *given)

    monkeypatch.setattr(GroupRows, "prepare", prepared)


def test_a_delivery_entered_its_state_when_the_log_says_so(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that commits after another one has that one's moment at the least, in its events and its rows."""
    slow, quick = open_store(), open_store()
    quick.apply([publish("a.x"), publish("b.x")])
    stopped, go_on = held_before_its_last_lock(slow, monkeypatch)
    thread, _ = apply_in_thread(slow, publish("a.x"), Fetch(queue="a"))
    assert stopped.wait(10)
    time.sleep(0.01)
    quick.apply([publish("b.x")])
    go_on.set()
    thread.join(20)
    last = {(event.sequence, event.queue): event.at for event in quick.events(1, quick.bounds()[1])}
    found, _ = quick.find(Filter(), 0, 10)
    assert {(one.sequence, one.queue): one.changed_at for one in found} == {
        place: at for place, at in last.items() if place[1] is not None
    }


def test_a_message_that_came_after_a_group_began_keeps_its_number(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is one of those that the group counts on with, until it knows its own."""
    one, two = open_store(), open_store()
    one.apply([publish("a.x", body=b"first")])
    overtaken_by(
        monkeypatch, one, lambda: two.apply([publish("a.x", body=b"second"), publish("a.x", body=b"third")])
    )
    (fetched,) = one.apply([Fetch(queue="a", n=5, consumer="ann")]).results
    fetched += one.apply([Fetch(queue="a", n=5, consumer="ann")]).results[0]
    assert [message.body for message in fetched] == [b"first", b"second", b"third"]
    (settled,) = two.apply([Confirm(queue="a", receipts=[message.receipt for message in fetched])]).results
    assert [done.state for done in settled] == [S, S, S]
    audit(one)


@pytest.mark.parametrize("policy", [Policy(), Policy(order="key")])
def test_what_others_publish_while_a_group_begins_is_fetched_once_and_confirmed(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    slow, quick = open_store(), open_store()
    quick.apply([DeclareQueue(name="a", policy=policy)])
    stopped, go_on = held_when_it_has_begun(slow, monkeypatch)
    thread, results = apply_in_thread(slow, publish("a.x", key="k", body=b"slow"), Fetch(queue="a", n=9))
    assert stopped.wait(10)
    quick.apply([publish("a.x", key="k", body=str(number).encode()) for number in range(3)])
    go_on.set()
    thread.join(20)
    fetched = results[1]
    assert isinstance(fetched, list)
    bodies: list[bytes] = []
    while fetched:
        bodies += [one.body for one in fetched]
        settled = quick.apply([Confirm(queue="a", receipts=[one.receipt for one in fetched])]).results[0]
        assert [one.state for one in settled] == [S] * len(fetched)
        fetched = quick.apply([Fetch(queue="a", n=9)]).results[0]
    assert sorted(bodies) == [b"0", b"1", b"2", b"slow"]
    audit(quick)


def test_what_another_put_in_l_is_not_overtaken_by_what_was_routed_meanwhile(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = open_store(), open_store()
    quick.apply([publish("a.x", object="a")])
    stopped, go_on = held_before_its_last_lock(slow, monkeypatch)
    thread, results = apply_in_thread(slow, publish("a.x", object="a", body=b"second"))
    assert stopped.wait(10)
    first = quick.apply([publish("a.x", object="a", body=b"first", hold=True)]).results[0]
    go_on.set()
    thread.join(20)
    assert [first.state, *(one.state for one in results if isinstance(one, Published))] == [L, L]
    assert [one.id for one in quick.undecided(0, 9)] == [
        first.id,
        *(one.id for one in results if isinstance(one, Published)),
    ]
