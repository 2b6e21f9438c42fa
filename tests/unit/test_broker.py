"""The broker: long polls that cost nothing, first come first served, and an end that keeps nobody waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from waypost.broker import Broker, Waiter
from waypost.canonical import content_hash
from waypost.commands import (
    Command,
    Confirm,
    DeclareChannel,
    DeclareConsumer,
    DeclareObject,
    DeclareQueue,
    DeleteQueue,
    Fetch,
    JobKind,
    Publish,
    PublishMany,
    Reap,
    Staged,
    Tick,
    Work,
)
from waypost.consumers import Consumer
from waypost.delivery import C, E, I, Outcome, Q, U
from waypost.destinations import Kind
from waypost.errors import Busy, ChannelNotFound, DiskLow, QueueNotFound, StoreBroken
from waypost.filters import Filter
from waypost.instants import SECOND
from waypost.message import Envelope, payload_hash
from waypost.objects import ObjectPolicy, Unchanged
from waypost.policy import Policy
from waypost.store import Applied
from waypost.stores.memory import MemoryStore


def message(body: bytes = b"body", topic: str = "a.x", **given: Any) -> Publish:
    return Publish(envelope=Envelope(topics=(topic,)), body=body, **given)


class WatchedStore(MemoryStore):
    """Remembers its groups; may have a full disk; may keep large bodies elsewhere."""

    def __init__(self, inline_bytes: int = 1 << 62) -> None:
        super().__init__()
        self.groups: list[list[Command]] = []
        self.low: DiskLow | None = None
        self.inline_bytes = inline_bytes
        self.closed = False

    def apply(self, commands: Sequence[Command]) -> Applied:
        assert not self.closed
        self.groups.append(list(commands))
        return super().apply(commands)

    def refusal(self) -> Exception | None:
        return self.low

    def close(self) -> None:
        self.closed = True

    @property
    def fetches(self) -> int:
        return sum(isinstance(command, Fetch) for group in self.groups for command in group)


class Bench:
    def __init__(self, store: WatchedStore | None = None) -> None:
        self.store = store or WatchedStore()
        self.broken: list[StoreBroken] = []
        self.broker = Broker(self.store, on_broken=self.broken.append, reap_every_seconds=3_600)
        #: (who, what it got), in the order of the answers
        self.answers: list[tuple[str, Any]] = []
        self._answered = asyncio.Event()

    def fetch(self, who: str, n: int = 1, wait: float = 60, queue: str = "a", **given: Any) -> Waiter | None:
        def done(result: Any) -> None:
            self.answers.append((who, result))
            self._answered.set()

        command = Fetch(queue=queue, consumer=who, n=n, **given)
        return self.broker.fetch(command, done, round(wait * SECOND))

    async def settle(self) -> None:
        """Until the broker has nothing left to do at once."""
        quiet = 0
        while quiet < 3:
            await self.broker.committer.flush()
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.broker.committer.idle else 0

    async def answered(self, count: int) -> None:
        while len(self.answers) < count:
            self._answered.clear()
            await self._answered.wait()

    @property
    def served(self) -> list[str]:
        return [who for who, got in self.answers if got]


def on_a_bench(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """Runs it beside a broker, which must still be whole at the end."""

    def run() -> None:
        async def beside() -> None:
            bench = Bench()
            await bench.broker.ask(DeclareQueue("a"))
            await bench.settle()
            bench.store.groups.clear()
            await test(bench)
            await bench.broker.close()
            assert bench.broken == []
            assert bench.store.closed

        asyncio.run(asyncio.wait_for(beside(), 30))

    run.__name__ = test.__name__
    return run


@on_a_bench
async def test_an_empty_queue_costs_no_transaction(bench: Bench) -> None:
    bench.fetch("ann", wait=0)
    assert bench.answers == [("ann", [])]
    waiting = [bench.fetch(f"w{number}") for number in range(20)]
    await asyncio.sleep(0.05)
    assert bench.store.groups == []
    assert all(waiting)
    assert len(bench.answers) == 1


@on_a_bench
async def test_an_unknown_queue_is_told_at_once(bench: Bench) -> None:
    bench.fetch("ann", queue="nowhere")
    ((_, refusal),) = bench.answers
    assert isinstance(refusal, QueueNotFound)
    assert bench.store.groups == []


@on_a_bench
async def test_a_wait_ends_with_nothing_when_nothing_came(bench: Bench) -> None:
    bench.fetch("ann", wait=0.02)
    await bench.answered(1)
    assert bench.answers == [("ann", [])]
    assert bench.store.groups == []
    await bench.broker.ask(message())
    await bench.settle()
    assert len(bench.answers) == 1, "and is not answered twice"
    assert bench.store.ready("a") == 1


@on_a_bench
async def test_who_waits_longest_is_served_first(bench: Bench) -> None:
    for who in ("ann", "bob", "cem"):
        bench.fetch(who)
    for number in range(3):
        await bench.broker.ask(message(b"%d" % number))
        await bench.settle()
    assert [(who, got[0].body) for who, got in bench.answers] == [("ann", b"0"), ("bob", b"1"), ("cem", b"2")]


@on_a_bench
async def test_no_more_are_woken_than_became_ready(bench: Bench) -> None:
    for number in range(30):
        bench.fetch(f"w{number:02}")
    await bench.broker.ask(PublishMany([message(), message()]))
    await bench.settle()
    assert bench.served == ["w00", "w01"]
    assert bench.store.fetches == 2


@on_a_bench
async def test_one_that_asks_for_many_is_not_joined_by_those_for_whom_nothing_is_left(bench: Bench) -> None:
    bench.fetch("ann", n=10)
    bench.fetch("bob", n=10)
    await bench.broker.ask(PublishMany([message() for _ in range(5)]))
    await bench.settle()
    assert [(who, len(got)) for who, got in bench.answers] == [("ann", 5)]
    assert bench.store.fetches == 1


@on_a_bench
async def test_what_one_may_not_have_goes_to_the_next_in_line(bench: Bench) -> None:
    await bench.broker.ask(message())
    bench.fetch("ann")
    await bench.answered(1)
    receipts = [got.receipt for got in bench.answers[0][1]]
    await bench.settle()
    for who in ("ann", "ann", "bob", "cem"):
        bench.fetch(who)
    await bench.broker.ask(Confirm(queue="a", receipts=receipts, outcome=Outcome.NOT_INTERESTED))
    await bench.settle()
    assert bench.served == ["ann", "bob"]
    before = len(bench.store.groups)
    await asyncio.sleep(0.05)
    assert len(bench.store.groups) == before, "nobody tries in circles"
    await bench.broker.ask(message())
    await bench.settle()
    assert bench.served == ["ann", "bob", "ann"], "who was passed over keeps its place"


@on_a_bench
async def test_what_nobody_in_line_may_have_is_tried_once_by_each_and_left(bench: Bench) -> None:
    await bench.broker.ask(message())
    bench.fetch("ann")
    await bench.answered(1)
    (got,) = bench.answers[0][1]
    for _ in range(5):
        bench.fetch("ann")
    await bench.broker.ask(Confirm(queue="a", receipts=[got.receipt], outcome=Outcome.NOT_INTERESTED))
    await bench.settle()
    assert bench.store.fetches <= 1 + 2 * 5
    before = len(bench.store.groups)
    await asyncio.sleep(0.05)
    assert len(bench.store.groups) == before
    bench.fetch("bob")
    await bench.settle()
    assert bench.served == ["ann", "bob"]


@on_a_bench
async def test_each_queue_has_a_line_of_its_own(bench: Bench) -> None:
    await bench.broker.ask(DeclareQueue("b"))
    bench.fetch("ann", queue="a")
    bench.fetch("bob", queue="b")
    await bench.broker.ask(message(topic="b.x"))
    await bench.settle()
    assert bench.served == ["bob"]


@on_a_bench
async def test_who_gave_up_gets_nothing_and_keeps_nobody_waiting(bench: Bench) -> None:
    gone = bench.fetch("ann")
    bench.fetch("bob")
    assert gone is not None
    bench.broker.give_up(gone)
    await bench.broker.ask(message())
    await bench.settle()
    assert bench.served == ["bob"]
    assert [who for who, _ in bench.answers] == ["bob"]


@on_a_bench
async def test_what_was_fetched_for_somebody_who_is_gone_is_released_to_the_next(bench: Bench) -> None:
    await bench.broker.ask(message())
    gone = bench.fetch("ann")
    assert gone is not None
    bench.broker.give_up(gone)
    await bench.answered(1)
    (_, fetched) = bench.answers[0]
    assert len(fetched) == 1, "it was on its way already"
    bench.fetch("bob")
    bench.broker.release(fetched)
    await bench.settle()
    assert bench.served == ["ann", "bob"]
    assert bench.answers[1][1][0].attempt == 2


@on_a_bench
async def test_a_delay_and_a_lease_wake_who_waits_by_themselves(bench: Bench) -> None:
    bench.fetch("ann", lease_us=20_000)
    await bench.broker.ask(message(delay_us=20_000))
    await bench.answered(1)
    bench.fetch("bob")
    await bench.answered(2)
    assert bench.served == ["ann", "bob"]
    assert bench.answers[1][1][0].attempt == 2
    ticks = sum(isinstance(command, Tick) for group in bench.store.groups for command in group)
    assert ticks <= 6, "a timer a moment, no polling"


@on_a_bench
async def test_unpausing_a_queue_wakes_who_waits(bench: Bench) -> None:
    await bench.broker.ask(DeclareQueue("a", Policy(paused=True)))
    await bench.broker.ask(message())
    bench.fetch("ann")
    await bench.settle()
    assert bench.answers == []
    await bench.broker.ask(DeclareQueue("a", Policy()))
    await bench.settle()
    assert bench.served == ["ann"]


@on_a_bench
async def test_jobs_are_counted_dry_and_then_worked_off_by_themselves(bench: Bench) -> None:
    await bench.broker.ask(PublishMany([message() for _ in range(2_500)]))
    assert await bench.broker.count(JobKind.PURGE, Filter(queue="a")) == {Q: 2_500}
    assert bench.store.ready("a") == 2_500
    job = await bench.broker.start_job(JobKind.PURGE, Filter(queue="a"))
    assert job.matched == 2_500
    await bench.settle()
    ended = bench.store.job(job.id)
    assert ended is not None
    assert (ended.done, ended.ended_at is not None) == (2_500, True)
    slices = sum(isinstance(command, Work) for group in bench.store.groups for command in group)
    assert slices >= 3
    info = bench.store.queue("a")
    assert info is not None
    assert info.states == {C: 2_500}


@on_a_bench
async def test_what_a_deleted_queue_had_is_found_and_not_counted_for_a_job(bench: Bench) -> None:
    await bench.broker.ask(message())
    await bench.broker.ask(DeleteQueue("a"))
    await bench.settle()
    cancelled = Filter(states=frozenset({C}))
    assert [one.state for one in bench.store.find(cancelled, 0, 10)[0]] == [C]
    assert await bench.broker.count(JobKind.REDRIVE, cancelled) == {}
    job = await bench.broker.start_job(JobKind.REDRIVE, cancelled)
    await bench.settle()
    ended = bench.store.job(job.id)
    assert ended is not None
    assert (ended.matched, ended.done) == (0, 0)


@on_a_bench
async def test_a_redrive_takes_dead_letters_unless_it_is_told_otherwise(bench: Bench) -> None:
    await bench.broker.ask(PublishMany([message(), message()]))
    good, bad = await bench.broker.ask(Fetch(queue="a", n=2))
    await bench.broker.ask(Confirm(queue="a", receipts=[good.receipt]))
    await bench.broker.ask(Confirm(queue="a", receipts=[bad.receipt], outcome=Outcome.INVALID))
    assert await bench.broker.count(JobKind.REDRIVE, Filter()) == {I: 1}
    assert await bench.broker.count(JobKind.REDRIVE, Filter(states=frozenset({C, E}))) == {}
    await bench.broker.start_job(JobKind.REDRIVE, Filter())
    await bench.settle()
    assert bench.store.ready("a") == 1


@on_a_bench
async def test_near_a_full_disk_only_publishes_are_refused(bench: Bench) -> None:
    await bench.broker.ask(message())
    bench.store.low = DiskLow("12 MiB are free")
    for command in (message(), PublishMany([message()])):
        with pytest.raises(DiskLow):
            await bench.broker.ask(command)
    (got,) = await bench.broker.ask(Fetch(queue="a"))
    await bench.broker.ask(Confirm(queue="a", receipts=[got.receipt]))


@on_a_bench
async def test_the_broker_fills_in_the_hash_of_small_and_large_bodies(bench: Bench) -> None:
    for body in (b"small", b"x" * 100_000):
        published = await bench.broker.ask(message(body))
        known = bench.store.message(published.id)
        assert known is not None
        assert known.hash == payload_hash(body)


@on_a_bench
async def test_a_follower_hears_of_growth_and_not_of_anything_else(bench: Bench) -> None:
    head = bench.store.bounds()[1]
    assert await bench.broker.grown(head, 0.01) == head
    waiting = asyncio.create_task(bench.broker.grown(head, 30))
    await asyncio.sleep(0)
    await bench.broker.ask(Reap())
    await bench.settle()
    assert not waiting.done()
    await bench.broker.ask(message())
    assert await waiting == head + 2
    chunks = [chunk async for chunk in bench.broker.read(1, head + 2)]
    assert [event.offset for chunk in chunks for event in chunk] == list(range(1, head + 3))


@on_a_bench
async def test_a_drain_answers_who_waits_refuses_publishes_and_lets_the_rest_finish(bench: Bench) -> None:
    await bench.broker.ask(message())
    (got,) = await bench.broker.ask(Fetch(queue="a"))
    following = asyncio.create_task(bench.broker.grown(bench.store.bounds()[1], 30))
    for who in ("ann", "bob"):
        bench.fetch(who)
    await asyncio.sleep(0)
    bench.broker.drain()
    assert bench.answers == [("ann", []), ("bob", [])]
    assert bench.broker.stopping
    await asyncio.wait_for(following, 5)
    with pytest.raises(Busy):
        await bench.broker.ask(message())
    (settled,) = await bench.broker.ask(Confirm(queue="a", receipts=[got.receipt]))
    assert settled.state is not None
    bench.fetch("cem")
    await bench.settle()
    assert bench.answers[-1] == ("cem", []), "nobody is kept waiting any more"


@on_a_bench
async def test_a_long_poll_that_is_just_being_tried_when_the_drain_begins_is_answered(bench: Bench) -> None:
    await bench.broker.ask(message())
    bench.fetch("ann", topic="a.other")
    bench.broker.drain()
    await bench.settle()
    assert bench.answers == [("ann", [])]


def test_large_bodies_are_put_away_first_and_read_back_for_who_fetches() -> None:
    class Elsewhere(WatchedStore):
        """Keeps large bodies in a drawer of its own."""

        def __init__(self) -> None:
            super().__init__(inline_bytes=70_000)
            self.drawer: dict[str, bytes] = {}

        def stage(self, body: bytes) -> bytes | Staged:
            staged = Staged(len(body), f"{len(self.drawer)}")
            self.drawer[staged.place] = body
            return staged

        def unstage(self, body: Staged) -> bytes:
            return self.drawer[body.place]

        def apply(self, commands: Sequence[Command]) -> Applied:
            for command in commands:
                if isinstance(command, Publish) and isinstance(command.body, Staged):
                    command.body = b"@" + command.body.place.encode()
            applied = super().apply(commands)
            for result in applied.results:
                if isinstance(result, list):
                    result[:] = [self._pointed(fetched) for fetched in result]
            return applied

        def _pointed(self, fetched: Any) -> Any:
            if not fetched.body.startswith(b"@"):
                return fetched
            place = fetched.body[1:].decode()
            return type(fetched)(
                fetched.id,
                fetched.receipt,
                fetched.attempt,
                fetched.envelope,
                fetched.created_at,
                Staged(len(self.drawer[place]), place),
                fetched.until_at,
            )

    async def beside() -> None:
        store = Elsewhere()
        bench = Bench(store)
        bodies = [b"s" * 65_000, b"m" * 69_000, b"l" * 80_000]
        for body in bodies:
            await bench.broker.ask(message(body))
        assert list(store.drawer.values()) == [b"l" * 80_000]
        bench.fetch("ann", n=3)
        await bench.answered(1)
        assert [got.body for got in bench.answers[0][1]] == bodies
        unanswered: list[Any] = []
        bench.broker.publish(message(b"x" * 90_000), unanswered.append)
        await bench.broker.close()
        assert bench.broken == []
        assert len(unanswered) == 1, "what was on its way is committed and answered before the store closes"

    asyncio.run(asyncio.wait_for(beside(), 30))


# ── channels, named slots, contents, rates ──────────────────────────────────────────────────────


@on_a_bench
async def test_who_waits_at_a_channel_is_woken_by_what_comes_there(bench: Bench) -> None:
    await bench.broker.ask(DeclareChannel(name="a", topics=("a.*",)))
    bench.fetch("queue", queue="a")
    bench.fetch("channel", queue="a", kind=Kind.CHANNEL)
    await bench.broker.ask(message())
    await bench.answered(2)
    assert sorted(bench.served) == ["channel", "queue"]


@on_a_bench
async def test_fetching_from_an_unknown_channel_is_refused(bench: Bench) -> None:
    bench.fetch("ann", queue="a", kind=Kind.CHANNEL)
    ((_, refusal),) = bench.answers
    assert isinstance(refusal, ChannelNotFound)


@on_a_bench
async def test_a_slot_that_is_named_for_somebody_wakes_that_one(bench: Bench) -> None:
    await bench.broker.ask(DeclareQueue("a", Policy(complete="all")))
    for name in ("ann", "bob"):
        await bench.broker.ask(DeclareConsumer(name, Consumer(queue="a")))
    for who in ("cem", "bob", "ann"):
        bench.fetch(who)
    await bench.broker.ask(message())
    await bench.answered(2)
    assert sorted(bench.served) == ["ann", "bob"]


@on_a_bench
async def test_the_content_of_large_bodies_is_hashed_before_the_group(bench: Bench) -> None:
    unchanged = Unchanged(ignore=("$.at",))
    await bench.broker.ask(DeclareObject("a", ObjectPolicy(unchanged=unchanged)))
    filling = b"x" * 70_000
    states = []
    for number in (1, 2):
        body = b'{"at":%d,"filling":"%s"}' % (number, filling)
        command = Publish(envelope=Envelope(topics=("a.x",), key="k"), body=body)
        states.append((await bench.broker.ask(command)).state)
        assert command.content == content_hash(body, unchanged.ignore)
    assert states == [Q, U]


@on_a_bench
async def test_contents_of_many_small_bodies_are_hashed_before_the_group_too(bench: Bench) -> None:
    await bench.broker.ask(DeclareObject("a", ObjectPolicy(unchanged=Unchanged())))
    body = b'{"filling":"%s"}' % (b"x" * 1_000)
    many = [Publish(envelope=Envelope(topics=("a.x",), key=str(n)), body=body) for n in range(400)]
    await bench.broker.ask(PublishMany(many))
    assert {command.content for command in many} == {content_hash(body)}


@on_a_bench
async def test_a_job_keeps_to_its_rate_and_ends_by_itself(bench: Bench) -> None:
    await bench.broker.ask(PublishMany([message() for _ in range(6)]))
    began = asyncio.get_running_loop().time()
    job = await bench.broker.start_job(JobKind.CANCEL, Filter(queue="a"), rate=20)
    assert (job.matched, job.rate) == (6, 20)
    while (found := bench.store.job(job.id)) and found.ended_at is None:
        await bench.broker.grown(bench.store.bounds()[1], 0.1)
    assert found is not None
    assert found.done == 6
    assert asyncio.get_running_loop().time() - began >= 0.2, "two at a time, a tenth of a second apart"


@on_a_bench
async def test_a_redrive_for_one_consumer_is_for_that_one(bench: Bench) -> None:
    await bench.broker.ask(message())
    (got,) = await bench.broker.ask(Fetch(queue="a", consumer="ann"))
    await bench.broker.ask(Confirm(queue="a", receipts=[got.receipt], outcome=Outcome.INVALID))
    job = await bench.broker.start_job(JobKind.REDRIVE, Filter(consumer="ann"), consumer="ann")
    assert job.matched == 1
    await bench.settle()
    assert await bench.broker.ask(Fetch(queue="a", consumer="bob")) == []
    assert len(await bench.broker.ask(Fetch(queue="a", consumer="ann"))) == 1
