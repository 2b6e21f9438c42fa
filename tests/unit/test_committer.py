"""The committer: groups, their order, their bounds, their two gears, and silence after a broken store."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import current_thread, main_thread
from typing import Any

import pytest

from waypost.commands import (
    Command,
    Confirm,
    DeclareQueue,
    Extend,
    Fetch,
    Publish,
    PublishMany,
    Release,
    Tick,
    Work,
)
from waypost.committer import SLOW_SYNC_SECONDS, Committer, arrange
from waypost.errors import Busy, StoreBroken
from waypost.message import Envelope
from waypost.store import Applied, Store
from waypost.stores.memory import MemoryStore


def message(number: int = 0) -> Publish:
    return Publish(envelope=Envelope(topics=("a.x",)), body=b"%d" % number)


class SlowStore(MemoryStore):
    """Says how long its syncs take, remembers its groups and their threads, and breaks when told to."""

    def __init__(self, sync_seconds: float = 0.0, threaded: bool = False) -> None:
        super().__init__()
        self.sync_seconds, self.threaded = sync_seconds, threaded
        self.groups: list[list[Command]] = []
        self.in_loop: list[bool] = []
        self.breaks: Exception | None = None

    def apply(self, commands: Sequence[Command]) -> Applied:
        self.groups.append(list(commands))
        self.in_loop.append(current_thread() is main_thread())
        if self.breaks is not None:
            raise self.breaks
        return super().apply(commands)


class Bench:
    """A committer with its answers, in the order they came."""

    def __init__(self, store: Store, **limits: int) -> None:
        self.applied: list[Applied] = []
        self.broken: list[StoreBroken] = []
        self.answers: list[tuple[Any, Any]] = []
        self.committer = Committer(
            store, on_applied=self.applied.append, on_broken=self.broken.append, **limits
        )

    def submit(self, name: Any, command: Command, size: int = 0) -> None:
        self.committer.submit(command, lambda result: self.answers.append((name, result)), size)

    async def settle(self) -> None:
        await asyncio.wait_for(self.committer.flush(), 10)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def entries(*commands: Command) -> list[tuple[Command, Callable[[Any], None], int]]:
    return [(command, lambda result: None, 0) for command in commands]


def test_a_group_settles_then_publishes_then_fetches_and_keeps_the_order_within_each() -> None:
    fetch, confirm, release = Fetch(queue="a"), Confirm(queue="a", receipts=[]), Release([])
    one, many, two = message(1), PublishMany([]), message(2)
    extend = Extend(queue="a", receipts=[])
    arranged = arrange(entries(fetch, one, release, many, confirm, two, extend))
    assert [entry[0] for entry in arranged] == [release, confirm, extend, one, many, two, fetch]


def test_nothing_moves_past_a_command_that_keeps_its_place() -> None:
    fetch, one, confirm, two = Fetch(queue="a"), message(1), Confirm(queue="a", receipts=[]), message(2)
    declare, tick = DeclareQueue("a"), Tick()
    arranged = arrange(entries(fetch, one, declare, tick, fetch, two, confirm))
    assert [entry[0] for entry in arranged] == [one, fetch, declare, tick, confirm, two, fetch]


def test_a_group_of_one_kind_is_left_alone() -> None:
    group = entries(message(1), message(2), message(3))
    assert arrange(group) == group


def test_what_waits_together_commits_together_and_each_is_answered_once_with_its_own() -> None:
    async def test() -> None:
        store = SlowStore()
        bench = Bench(store)
        for number in range(50):
            bench.submit(number, message(number))
        bench.submit("fetch", Fetch(queue="a", n=50))
        bench.submit("nowhere", Fetch(queue="nowhere"))
        await bench.settle()
        assert len(store.groups) == 1
        assert [name for name, _ in bench.answers] == [*range(50), "fetch", "nowhere"]
        answers = dict(bench.answers)
        assert [got.body for got in answers["fetch"]] == [b"%d" % number for number in range(50)]
        assert [got.id for got in answers["fetch"]] == [answers[number].id for number in range(50)]
        assert answers["nowhere"].code == "QUEUE_NOT_FOUND"
        assert len(bench.applied) == 1
        assert (bench.committer.groups, bench.committer.commands) == (1, 52)

    run(test)


def test_answers_that_submit_again_join_the_next_group() -> None:
    async def test() -> None:
        store = SlowStore()
        bench = Bench(store)
        for number in range(5):
            then = partial(bench.submit, number, Fetch(queue="a"))
            bench.committer.submit(message(number), lambda result, then=then: then())  # type: ignore[misc]
        await bench.settle()
        assert [len(group) for group in store.groups] == [5, 5]
        assert len(bench.answers) == 5

    run(test)


def test_large_groups_are_cut_by_number_and_by_bytes() -> None:
    async def test() -> None:
        store = SlowStore()
        bench = Bench(store, group_commands=4, group_bytes=100)
        for number in range(10):
            bench.submit(number, message(number))
        await bench.settle()
        for number, size in enumerate((60, 30, 60, 500, 10)):
            bench.submit(number, message(number), size)
        await bench.settle()
        assert [len(group) for group in store.groups] == [4, 4, 2, 2, 1, 1, 1]
        assert len(bench.answers) == 15
        assert bench.committer.depth == 0

    run(test)


@pytest.mark.parametrize(
    ("limits", "size", "taken"), [({"max_waiting": 3}, 0, 3), ({"max_waiting_bytes": 100}, 40, 2)]
)
def test_past_its_bound_the_queue_says_busy_at_once_and_recovers(
    limits: dict[str, int], size: int, taken: int
) -> None:
    async def test() -> None:
        store = SlowStore()
        bench = Bench(store, **limits)
        for number in range(5):
            bench.submit(number, message(number), size)
        refused = bench.answers[:]
        assert [name for name, _ in refused] == list(range(taken, 5)), "answered before anything is committed"
        assert all(isinstance(answer, Busy) and answer.retry_after for _, answer in refused)
        assert bench.committer.refused == 5 - taken
        await bench.settle()
        assert [name for name, _ in bench.answers[5 - taken :]] == list(range(taken))
        bench.submit("later", message(), size)
        await bench.settle()
        assert bench.answers[-1][0] == "later"
        assert not isinstance(bench.answers[-1][1], Busy)

    run(test)


def test_quick_syncs_run_in_the_loop_and_slow_ones_in_a_thread_until_they_are_quick_again() -> None:
    async def test() -> None:
        store = SlowStore()
        bench = Bench(store)

        async def turn(sync_seconds: float, times: int) -> None:
            store.sync_seconds = sync_seconds
            for _ in range(times):
                bench.submit("turn", message())
                await bench.settle()

        await turn(0.0001, 5)
        assert bench.committer.gear == "loop"
        await turn(100 * SLOW_SYNC_SECONDS, 5)
        assert bench.committer.gear == "loop", "a few that hang change nothing"
        await turn(10 * SLOW_SYNC_SECONDS, 60)
        assert bench.committer.gear == "thread"
        await turn(0.75 * SLOW_SYNC_SECONDS, 60)
        assert bench.committer.gear == "thread", "in between it stays where it is"
        await turn(0.0001, 60)
        assert bench.committer.gear == "loop"
        assert store.in_loop[0] is True
        assert False in store.in_loop
        assert store.in_loop[-1] is True
        assert len(bench.answers) == 190
        bench.committer.close()

    run(test)


def test_a_sync_that_brings_much_may_take_longer() -> None:
    async def test() -> None:
        bench = Bench(SlowStore(1.5 * SLOW_SYNC_SECONDS))
        for size, gear in ((4 << 20, "loop"), (0, "thread")):
            for _ in range(60):
                bench.submit("turn", message(), size)
                await bench.settle()
            assert bench.committer.gear == gear, size
        bench.committer.close()

    run(test)


def test_a_store_that_must_not_run_in_the_loop_never_does() -> None:
    async def test() -> None:
        store = SlowStore(threaded=True)
        bench = Bench(store)
        for number in range(20):
            bench.submit(number, message(number))
            await asyncio.sleep(0)
        await bench.settle()
        assert not any(store.in_loop)
        assert sum(len(group) for group in store.groups) == 20
        assert [name for name, _ in bench.answers] == list(range(20))
        bench.committer.close()

    run(test)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("error", [StoreBroken("no sync"), RuntimeError("a bug")])
def test_after_a_broken_store_nothing_is_answered_any_more(threaded: bool, error: Exception) -> None:
    async def test() -> None:
        store = SlowStore(threaded=threaded)
        bench = Bench(store)
        bench.submit("before", message())
        await bench.settle()
        store.breaks = error
        bench.submit("during", message())
        bench.submit("during", Fetch(queue="a"))
        await bench.settle()
        store.breaks = None
        bench.submit("after", message())
        await bench.settle()
        for _ in range(10):
            await asyncio.sleep(0)
        assert [name for name, _ in bench.answers] == ["before"]
        assert len(store.groups) == 2, "and nothing is tried any more"
        (broken,) = bench.broken
        assert isinstance(broken, StoreBroken)
        assert broken is error or broken.__cause__ is error
        bench.committer.close()

    run(test)


def test_one_answer_that_fails_does_not_keep_the_others_from_theirs() -> None:
    async def test() -> None:
        bench = Bench(SlowStore())

        def fails(result: Any) -> None:
            raise ConnectionError("gone")

        bench.submit("first", message())
        bench.committer.submit(message(), fails)
        bench.submit("last", Work())
        await bench.settle()
        assert [name for name, _ in bench.answers] == ["first", "last"]
        assert len(bench.applied) == 1

    run(test)
