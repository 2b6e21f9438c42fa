"""One broker's groups beside each other: the next one decides while the last one is written, and the log has them in their order."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.postgres.fixtures import database
from waypost.broker import Broker
from waypost.commands import Confirm, DeclareQueue, Fetch, Fetched, Published
from waypost.policy import Policy
from waypost.stores.postgres import PostgresStore, writing
from waypost.stores.postgres.group import GroupRows
from waypost.testing import audit
from waypost.testing.hand import publish

__all__ = ["database"]


@pytest.fixture
def store(database: str) -> Iterator[PostgresStore]:
    opened = PostgresStore(database, lanes=2)
    yield opened
    opened.close()


class Held:
    """The first group that has the last lock is not written before it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.placed, self.go_on, self.others = threading.Event(), threading.Event(), threading.Event()
        write, prepare = writing.write, GroupRows.prepare

        def wait(*given: Any) -> None:
            if not self.placed.is_set():
                self.placed.set()
                assert self.go_on.wait(20)
            write(*given)

        def prepared(*given: Any) -> None:
            prepare(*given)
            if self.placed.is_set():
                self.others.set()

        monkeypatch.setattr("waypost.stores.postgres.lane.write", wait)
        monkeypatch.setattr(GroupRows, "prepare", prepared)


@pytest.fixture
def held(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Held:
    store.apply([DeclareQueue(name="a", policy=Policy())])
    return Held(monkeypatch)


def beside(store: PostgresStore, held: Held, *groups: list[Any]) -> list[list[Any]]:
    """The results of groups, of which the second decides while the first waits to be written."""
    with ThreadPoolExecutor(len(groups)) as threads:
        running: list[Future[Any]] = [threads.submit(store.apply, groups[0])]
        assert held.placed.wait(10)
        running += [threads.submit(store.apply, group) for group in groups[1:]]
        assert held.others.wait(10)
        assert not any(one.done() for one in running)
        held.go_on.set()
        return [one.result(20).results for one in running]


def test_the_next_group_decides_while_the_last_one_is_written_and_is_logged_after_it(
    store: PostgresStore, held: Held
) -> None:
    first = [publish("a.x", body=b"%d" % number) for number in range(3)]
    second = [publish("a.x", body=b"%d" % number) for number in range(3, 5)]
    results = beside(store, held, first, second)
    ids = [one.id for group in results for one in group]
    fetched: list[Fetched] = store.apply([Fetch(queue="a", n=9)]).results[0]
    assert [(one.id, one.body) for one in fetched] == [(id, b"%d" % number) for number, id in enumerate(ids)]
    oldest, head = store.bounds()
    assert [event.offset for event in store.events(oldest, head)] == list(range(1, head + 1))
    audit(store)


def test_what_repeats_a_key_that_is_being_written_is_the_same_message(
    store: PostgresStore, held: Held
) -> None:
    twice = publish("a.x", body=b"once", idempotency_key="k")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.apply, [twice])
        assert held.placed.wait(10)
        second = threads.submit(store.apply, [twice])
        time.sleep(0.2)  # it waits for the first one's lock
        held.go_on.set()
        assert first.result(20).results == second.result(20).results
    assert len(store.apply([Fetch(queue="a", n=9)]).results[0]) == 1


def test_a_group_that_must_run_again_is_still_logged_before_the_one_behind_it(
    store: PostgresStore, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's connection breaks when it has its place, while the second one waits for it with its locks."""
    write = writing.write
    broken: list[int] = []

    def breaks(rows: GroupRows, *given: Any) -> None:
        if not broken:
            broken.append(1)
            held.placed.set()
            assert held.go_on.wait(20)
            rows.db.connection.close()
        write(rows, *given)

    monkeypatch.setattr("waypost.stores.postgres.lane.write", breaks)
    first, second = beside(
        store, held, [publish("a.x", body=b"1", key="k")], [publish("a.x", body=b"2", key="j")]
    )
    assert broken
    logged = [event.message_id for event in store.events(*store.bounds()) if event.from_state is None]
    assert logged == [first[0].id, second[0].id]
    audit(store)


def test_each_message_is_fetched_once_by_groups_beside_each_other(store: PostgresStore, held: Held) -> None:
    held.placed.set()
    store.apply([publish("a.x", body=b"%d" % number) for number in range(6)])
    held.placed.clear()
    held.others.clear()
    results = beside(store, held, [Fetch(queue="a", n=4)], [Fetch(queue="a", n=4)])
    bodies = [[one.body for one in group[0]] for group in results]
    assert bodies == [[b"0", b"1", b"2", b"3"], [b"4", b"5"]]
    receipts = [one.receipt for group in results for one in group[0]]
    settled = store.apply([Confirm(queue="a", receipts=receipts)]).results[0]
    assert len(settled) == 6
    audit(store)


def test_whoever_waits_is_served_by_a_message_that_was_being_written(
    store: PostgresStore, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fetch finds nothing, beside the group that publishes; then it waits, and hears of it."""

    monkeypatch.setattr(store, "listen", lambda heard: None)  # which would tell it a moment later

    async def test() -> None:
        broker = Broker(store, on_broken=lambda broken: None)
        came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        published: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broker.publish(publish("a.x", body=b"late"), published.set_result)
        await asyncio.to_thread(held.placed.wait, 10)
        broker.fetch(Fetch(queue="a"), came.set_result, wait_us=15_000_000)
        await asyncio.to_thread(held.others.wait, 10)
        held.go_on.set()
        (fetched,) = await asyncio.wait_for(came, 10)
        assert isinstance(await published, Published)
        assert fetched.body == b"late"
        await broker.close()

    asyncio.run(test())
