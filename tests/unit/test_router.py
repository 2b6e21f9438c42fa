"""The router: in order, in a thread of its own, and never the end of a message."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from waypost.broker import Broker
from waypost.canonical import content_hash
from waypost.commands import (
    Decide,
    DeclareChannel,
    DeclareConsumer,
    DeclareObject,
    DeclareQueue,
    Fetch,
    JobKind,
    Publish,
    PublishMany,
)
from waypost.consumers import Consumer
from waypost.delivery import E, L, Q, State, U
from waypost.errors import Failed, RouterUnusable, StoreBroken
from waypost.filters import Filter
from waypost.message import Envelope
from waypost.objects import ObjectPolicy, Unchanged
from waypost.router import RouteFunction, Router, _Worker, load_router
from waypost.routing import Interested, Routable, Route
from waypost.store import Store
from waypost.stores.memory import MemoryStore
from waypost.stores.sqlite import SqliteStore


def message(topic: str = "a.x", body: bytes = b"body", key: str | None = None, **given: Any) -> Publish:
    return Publish(envelope=Envelope(topics=(topic,), key=key), body=body, **given)


@asynccontextmanager
async def broker_with(
    route: RouteFunction | None, store: Store | None = None, seconds: float = 60.0
) -> AsyncIterator[Broker]:
    broken: list[StoreBroken] = []
    broker = Broker(
        store or MemoryStore(),
        on_broken=broken.append,
        reap_every_seconds=3_600,
        route=route,
        route_seconds=seconds,
    )
    try:
        yield broker
    finally:
        await broker.close()
    assert broken == []


async def state(broker: Broker, id: str, *wanted: State) -> State:
    """As soon as it is one of those."""
    while True:
        head = broker.store.bounds()[1]
        info = broker.store.message(id)
        assert info is not None
        if info.state in wanted:
            return info.state
        await broker.grown(head, 1.0)


def where(broker: Broker, id: str) -> list[str | None]:
    info = broker.store.message(id)
    assert info is not None
    return [delivery.queue for delivery in info.deliveries]


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def by_topic(message: Routable, consumers: Sequence[Interested]) -> Route:
    return Route(queues=(message.topics[0].partition(".")[2],))


def test_a_publish_answers_l_and_the_function_says_where_it_goes() -> None:
    async def test() -> None:
        async with broker_with(by_topic) as broker:
            published = await broker.ask(message("a.there"))
            assert published.state is L
            assert await state(broker, published.id, Q) is Q
            assert where(broker, published.id) == ["there"]
            (one, two) = await broker.ask(PublishMany([message("a.x"), message("a.y", queue="named")]))
            assert (one.state, two.state) == (L, Q), "who names the queue has routed it"
            await state(broker, one.id, Q)
            assert where(broker, one.id) == ["x"]

    run(test)


def test_the_function_sees_the_message_and_the_consumers_that_are_interested() -> None:
    seen: list[tuple[Routable, list[str]]] = []

    def look(message: Routable, consumers: Sequence[Interested]) -> Route:
        seen.append((message, [consumer.name for consumer in consumers]))
        return Route(consumers=("ann",))

    async def test() -> None:
        async with broker_with(look) as broker:
            for queue in ("a", "b"):
                await broker.ask(DeclareQueue(queue))
            await broker.ask(DeclareChannel(name="c", topics=("a.*",)))
            await broker.ask(DeclareChannel(name="d", topics=("b.*",)))
            for name, consumer in {
                "ann": Consumer(queue="a"),
                "bob": Consumer(queue="b"),
                "cem": Consumer(queue="b", topics=("a.*",)),
                "dan": Consumer(channel="c"),
                "eve": Consumer(channel="d"),
            }.items():
                await broker.ask(DeclareConsumer(name, consumer))
            published = await broker.ask(message("a.x", b"hello", key="k"))
            await state(broker, published.id, Q)
            ((given, names),) = seen
            assert (given.id, given.topics, given.object, given.key) == (published.id, ("a.x",), "a", "k")
            assert (given.body, given.size) == (b"hello", 5)
            assert names == ["ann", "cem", "dan"]
            assert await broker.ask(Fetch(queue="a", consumer="bob")) == []
            assert len(await broker.ask(Fetch(queue="a", consumer="ann"))) == 1

    run(test)


def test_what_goes_wrong_is_a_dead_letter_with_the_traceback_and_can_be_routed_again() -> None:
    broken = True

    def unsure(message: Routable, consumers: Sequence[Interested]) -> Any:
        if not broken:
            return Route()
        if message.body == b"nonsense":
            return {"queue": "x"}
        raise ValueError("no idea")

    async def test() -> None:
        nonlocal broken
        async with broker_with(unsure) as broker:
            raised, nonsense = await broker.ask(PublishMany([message("a.x"), message("a.x", b"nonsense")]))
            for published, words in ((raised, "ValueError: no idea"), (nonsense, "is not a Route")):
                await state(broker, published.id, E)
                info = broker.store.message(published.id)
                assert info is not None
                (delivery,) = info.deliveries
                assert delivery.queue == "default"
                assert delivery.reason is not None
                assert words in delivery.reason
                assert "Traceback" in delivery.reason
            broken = False
            await broker.start_job(JobKind.REDRIVE, Filter())
            for published in (raised, nonsense):
                await state(broker, published.id, Q)
                assert where(broker, published.id) == ["a"]

    run(test)


def test_what_no_store_can_write_is_a_dead_letter_too() -> None:
    def route(message: Routable, consumers: Sequence[Interested]) -> Route:
        raise ValueError("half a character: \ud800")

    async def main() -> None:
        async with broker_with(route) as broker:
            published = await broker.ask(message())
            assert await state(broker, published.id, E) is E
            found = broker.store.message(published.id)
            assert found is not None
            assert "half a character: \\ud800" in str(found.deliveries[0].reason)
            assert str(found.deliveries[0].reason).encode()

    asyncio.run(main())


def test_a_decision_that_the_store_refuses_ends_with_the_dead_letters() -> None:
    async def main() -> None:
        decided: list[Decide] = []

        def submit(decision: Decide, done: Callable[[Any], None]) -> None:
            decided.append(decision)
            done(Failed("no") if decision.failure is None else None)

        router = Router(MemoryStore(), submit, lambda *_: Route())
        router._decided([(1, Decide(id="m", route=Route()))], [])
        assert decided[0].failure is None
        assert decided[1:] == [Decide(id="m", failure="not routed: no")]

    asyncio.run(main())


def test_what_was_sparks_is_not_overtaken_when_it_becomes_ours() -> None:
    """The router looks while the policy has changed and nobody has told it yet, as when a group commits in a thread."""

    async def main() -> None:
        submitted: asyncio.Queue[str] = asyncio.Queue()
        store = MemoryStore()
        store.apply([DeclareObject("a", ObjectPolicy(route="spark"))])
        early = store.apply([message(), message("b.x", hold=True)]).results
        router = Router(store, lambda decide, done: submitted.put_nowait(decide.id))
        router.wake(1)
        assert await submitted.get() == early[1].id, "the other one is Spark's"
        late = store.apply([message()]).results[0]
        store.apply([DeclareObject("a", ObjectPolicy())])
        router._busy = False
        router.wake(4)
        assert [await submitted.get() for _ in range(3)] == [early[0].id, early[1].id, late.id]
        router.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_waits_for_spark_is_not_read_by_the_router() -> None:
    async def main() -> None:
        store = MemoryStore()
        store.apply([DeclareObject("a", ObjectPolicy(route="spark")), *(message() for _ in range(300))])
        read: list[int] = []
        undecided = store.undecided

        def counted(after: int, limit: int, **chosen: Any) -> Any:
            found = undecided(after, limit, **chosen)
            read.append(len(found))
            return found

        store.undecided = counted  # type: ignore[method-assign]
        async with broker_with(None, store) as broker:
            await broker.ask(message("b.x"))
            assert broker.store.stats().undecided == 300
        assert max(read) <= 1

    run(main)


def test_messages_are_decided_in_the_order_of_the_log() -> None:
    seen: list[bytes] = []

    def note(message: Routable, consumers: Sequence[Interested]) -> Route:
        seen.append(message.body)
        return Route()

    async def test() -> None:
        async with broker_with(note) as broker:
            bodies = [str(number).encode() for number in range(250)]
            last = None
            for start in range(0, 250, 50):
                answers = await broker.ask(
                    PublishMany([message(body=body) for body in bodies[start : start + 50]])
                )
                last = answers[-1].id
            assert last is not None
            await state(broker, last, Q)
            assert seen == bodies
            fetched = await broker.ask(Fetch(queue="a", n=1_000))
            assert [one.body for one in fetched] == bodies

    run(test)


def test_a_function_that_hangs_fails_its_message_and_stalls_nobody() -> None:
    let_go = threading.Event()

    def hang(message: Routable, consumers: Sequence[Interested]) -> Route:
        if message.body == b"slow":
            let_go.wait(50)
        return Route()

    async def test() -> None:
        async with broker_with(hang, seconds=0.2) as broker:
            answers = await broker.ask(PublishMany([message(body=b) for b in (b"1", b"slow", b"2", b"slow")]))
            direct = await broker.ask(message(queue="other"))
            assert direct.state is Q, "the broker goes on meanwhile"
            first, slow, second, also = (published.id for published in answers)
            assert await state(broker, slow, E) is E
            assert await state(broker, also, E) is E
            assert [await state(broker, id, Q) for id in (first, second)] == [Q, Q]
            info = broker.store.message(slow)
            assert info is not None
            assert "within 0.2 s" in str(info.deliveries[0].reason)
            let_go.set()
            later = await broker.ask(message(body=b"3"))
            assert await state(broker, later.id, Q) is Q
            assert await state(broker, slow, E) is E, "an answer that comes too late changes nothing"

    run(test)


def test_an_answer_that_comes_at_its_deadline_counts() -> None:
    async def main() -> None:
        submitted: list[Decide] = []
        router = Router(MemoryStore(), lambda decide, done: submitted.append(decide), lambda *_: Route())
        worker = _Worker(None, MemoryStore(), lambda _: None)
        # As it is between the thread's last decision and the loop's hearing of it.
        worker.batch, worker.decisions, worker.began_at = [None], [(1, Decide(id="m"))], 0.0  # type: ignore[list-item]
        router._worker, router._busy = worker, True
        router._look()
        assert submitted == [Decide(id="m")]
        assert getattr(router, "_worker") is None  # noqa: B009 - mypy takes it for the one set above
        await asyncio.to_thread(worker.join, 5)
        assert not worker.is_alive()

    asyncio.run(main())


def test_what_waits_in_l_at_the_start_is_routed(tmp_path: Path) -> None:
    path = tmp_path / "waypost.db"

    def open_file() -> SqliteStore:
        return SqliteStore(path, ballast_bytes=4096, pregrown_bytes=0)

    async def test() -> None:
        store = open_file()
        ids = [store.apply([message(hash=b"h", hold=True, body=bytes([n]))]).results[0].id for n in range(3)]
        store.close()
        async with broker_with(by_topic, open_file()) as broker:
            for id in ids:
                await state(broker, id, Q)
                assert where(broker, id) == ["x"]

    run(test)


def test_without_a_function_what_is_left_in_l_goes_where_its_topics_say() -> None:
    async def test() -> None:
        store = MemoryStore()
        (held,) = store.apply([message(hash=b"h", hold=True)]).results
        async with broker_with(None, store) as broker:
            await state(broker, held.id, Q)
            assert where(broker, held.id) == ["a"]
            assert (await broker.ask(message())).state is Q

    run(test)


def test_an_object_that_spark_routes_is_left_to_it_until_its_policy_says_inline() -> None:
    async def test() -> None:
        async with broker_with(by_topic) as broker:
            await broker.ask(DeclareObject("a", ObjectPolicy(route="spark")))
            for_spark = await broker.ask(message("a.x"))
            other = await broker.ask(message("b.y"))
            await state(broker, other.id, Q)
            assert await state(broker, for_spark.id, L) is L
            await broker.ask(DeclareObject("a", ObjectPolicy()))
            await state(broker, for_spark.id, Q)
            assert where(broker, for_spark.id) == ["x"]

    run(test)


def test_unchanged_is_decided_with_the_route_and_in_order() -> None:
    async def test() -> None:
        async with broker_with(by_topic) as broker:
            await broker.ask(DeclareObject("a", ObjectPolicy(unchanged=Unchanged(ignore=("$.at",)))))
            bodies = [b'{"n":1,"at":1}', b'{"at":2,"n":1}', b'{"n":2,"at":3}']
            answers = await broker.ask(PublishMany([message("a.x", body, key="k") for body in bodies]))
            states = [await state(broker, published.id, Q, U) for published in answers]
            assert states == [Q, U, Q]

    run(test)


@pytest.mark.parametrize("spec", ["", "json", "json:", ":route"])
def test_a_router_that_is_not_named_is_refused(spec: str) -> None:
    with pytest.raises(RouterUnusable, match="module:function"):
        load_router(spec)


def test_a_router_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "breaks_at_import.py").write_text("1 / 0\n")
    for spec, words in {
        "no_such_module_here:route": "no module 'no_such_module_here'",
        "json:route": "'route' is missing in json",
        "json:__name__": "'__name__' cannot be called",
        "breaks_at_import:route": "ZeroDivisionError",
    }.items():
        with pytest.raises(RouterUnusable, match=words):
            load_router(spec)


def test_a_router_is_loaded_by_its_name() -> None:
    assert load_router("waypost.canonical:content_hash") is content_hash  # type: ignore[comparison-overlap]


def test_the_example_routes_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    route = load_router("router:route")

    async def test() -> None:
        async with broker_with(route) as broker:
            await broker.ask(DeclareQueue("approvals"))
            for name in ("approver-1", "approver-2", "clerk"):
                consumer = Consumer(queue="approvals", topics=("order.*",))
                await broker.ask(DeclareConsumer(name, consumer))
            large = await broker.ask(message("order.new", b'{"total": 20000}'))
            small = await broker.ask(message("order.new", b'{"total": 1}'))
            line = await broker.ask(message("log.line"))
            damaged = await broker.ask(message("order.new", b"no json"))
            for published in (large, small, line):
                await state(broker, published.id, Q)
            assert await state(broker, damaged.id, E) is E
            assert where(broker, large.id) == ["approvals", "approvals"]
            assert where(broker, small.id) == ["order"]
            info = broker.store.message(line.id)
            assert info is not None
            assert [(one.queue, one.named) for one in info.deliveries] == [("log", "clogger")]

    run(test)
