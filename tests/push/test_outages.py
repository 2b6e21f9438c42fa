"""Endpoints that are down, messages that nobody can digest, endpoints that take over, brokers that stop."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from tests.push.harness import SECRET, Got, Receiver, in_a_loop, pushing, seconds
from waypost.commands import Command, DeclareConsumer, Fetch, Kick
from waypost.policy import Policy
from waypost.push.breaker import Position
from waypost.push.endpoint import Endpoint, Held
from waypost.store import Applied, Event
from waypost.stores.sqlite import SqliteStore


def fails(got: Got) -> web.Response:
    return web.Response(status=500)


@in_a_loop
async def test_an_outage_pauses_sending_and_no_message_is_given_up(folder: Path) -> None:
    async with Receiver(fails) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url, concurrency=4)
        ids = [await bench.publish() for _ in range(30)]
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        await bench.until(lambda: bench.figures("billing").in_flight == 0)
        sent = len(receiver.got)
        assert sent <= 5 + 3, "five in a row, and what was under way with the last of them"
        # In several pauses one probe each goes out, and none of them counts.
        await bench.until(lambda: len(receiver.got) == sent + 3)
        assert "E" not in bench.counts()
        assert receiver.got[-1].at - receiver.got[-2].at >= 0.15, "a pause lies between two probes"
        receiver.answering = lambda got: web.Response()
        await bench.ended(ids)
        assert bench.figures("billing").breaker is Position.CLOSED
        assert sum(bench.journey(id).count("R") for id in ids) == 5, "those that opened the breaker"


@in_a_loop
async def test_an_endpoint_that_cannot_be_reached_costs_no_attempts(folder: Path) -> None:
    receiver = await Receiver().start()
    await receiver.stop()
    async with pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        assert bench.figures("billing").last_error == "no connection: connection refused"
        await bench.until(lambda: bench.figures("billing").failed >= 7)
        await receiver.start()
        await bench.ended(id)
        assert set(bench.journey(id)) == {"Q", "F", "S"}
        await receiver.stop()


@in_a_loop
async def test_poison_alone_goes_to_the_dead_letters_and_opens_nothing(folder: Path) -> None:
    opened = []

    def answer(got: Got) -> web.Response:
        return web.Response(status=500 if got.body == b"poison" else 200)

    async with Receiver(answer) as receiver, pushing(folder) as bench:
        poison, fine = [], []
        for _ in range(12):
            fine.append(await bench.publish(b"fine"))
            poison.append(await bench.publish(b"poison"))
        fine.append(await bench.publish(b"fine"))
        await bench.register("billing", receiver.url)

        def watched() -> bool:
            opened.append(bench.figures("billing").breaker is not Position.CLOSED)
            return bench.counts() == {"S": len(fine), "E": len(poison)}

        await bench.until(watched)
        assert {bench.journey(id) for id in poison} == {"QFRFRFRFE"}
        assert {bench.journey(id) for id in fine} == {"QFS"}
        assert not any(opened)


@in_a_loop
async def test_even_poison_that_looks_like_an_outage_is_told_from_one(folder: Path) -> None:
    async with (
        Receiver(lambda got: web.Response(status=500 if got.body == b"poison" else 200)) as receiver,
        pushing(folder) as bench,
    ):
        poison = [await bench.publish(b"poison") for _ in range(6)]
        fine = [await bench.publish(b"fine")]
        await bench.register("billing", receiver.url, concurrency=2)
        await bench.ended(fine)
        await bench.ended(poison, "E")


@in_a_loop
async def test_poison_at_the_front_does_not_keep_an_endpoint_down_that_is_up_again(folder: Path) -> None:
    up = False

    def answer(got: Got) -> web.Response:
        return web.Response(status=200 if up and got.body == b"fine" else 500)

    async with Receiver(answer) as receiver, pushing(folder) as bench:
        poison = [await bench.publish(b"poison") for _ in range(3)]
        fine = [await bench.publish(b"fine") for _ in range(10)]
        await bench.register("billing", receiver.url)
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        up = True
        await bench.ended(fine)
        await bench.ended(poison, "E")


@in_a_loop
async def test_the_next_endpoint_gets_a_message_only_when_the_last_has_failed(folder: Path) -> None:
    """One of two endpoints refuses everything: the other gets it next, and the first never twice in a row."""
    running: dict[str, int] = {}

    async def take(got: Got, status: int) -> web.StreamResponse:
        running[got.id] = running.get(got.id, 0) + 1
        assert running[got.id] == 1, "one at a time"
        await asyncio.sleep(0.005)
        running[got.id] -= 1
        return web.Response(status=status)

    async with (
        Receiver(lambda got: take(got, 400)) as broken,
        Receiver(lambda got: take(got, 200)) as sound,
        pushing(folder) as bench,
    ):
        await bench.register("aaa", broken.url, concurrency=2)
        await bench.register("bbb", sound.url, concurrency=30)
        ids = [await bench.publish() for _ in range(30)]
        await bench.ended(ids)
        assert broken.got, "both were asked"
        assert len({got.id for got in broken.got}) == len(broken.got), (
            "and the broken one once for each message"
        )
        assert len(sound.got) == 30


@in_a_loop
async def test_a_message_nobody_takes_goes_round_until_it_is_given_up(folder: Path) -> None:
    order: list[str] = []

    def refuse(name: str) -> web.Response:
        order.append(name)
        return web.Response(status=400)

    async with (
        Receiver(lambda got: refuse("a")) as first,
        Receiver(lambda got: refuse("b")) as second,
        Receiver(lambda got: refuse("c")) as third,
        pushing(folder) as bench,
    ):
        await bench.queue(policy=Policy(retries=5, backoff_base_us=1_000, backoff_cap_us=2_000))
        for name, receiver in (("a", first), ("b", second), ("c", third)):
            await bench.register(name, receiver.url)
        id = await bench.publish()
        await bench.ended(id, "E")
        assert len(order) == 6
        assert sorted(order[:3]) == sorted(order[3:]) == ["a", "b", "c"]


@in_a_loop
async def test_a_failed_message_stays_with_its_endpoint_when_no_other_may_have_it(folder: Path) -> None:
    async with (
        Receiver(lambda got: web.Response(status=400)) as broken,
        Receiver() as other,
        pushing(folder) as bench,
    ):
        await bench.register("aaa", broken.url)
        await bench.register("bbb", other.url, topics=("orders.other",))
        await bench.register("ccc", other.url, paused=True)
        id = await bench.publish()
        await bench.ended(id, "E")
        assert len(broken.got) == 4
        assert other.got == []


@in_a_loop
async def test_a_hanging_endpoint_does_not_slow_the_others(folder: Path) -> None:
    never = asyncio.Event()

    async def answer(got: Got) -> web.StreamResponse:
        if got.headers["waypost-consumer"] == "c0":
            await never.wait()
        return web.Response()

    async with Receiver(answer) as receiver, pushing(folder) as bench:
        for n in range(20):
            await bench.queue(f"q{n}")
            await bench.register(f"c{n}", receiver.url, queue=f"q{n}", concurrency=5, timeout_us=seconds(30))
        hanging = [await bench.publish(queue="q0") for _ in range(10)]
        ids = [await bench.publish(queue=f"q{n}") for n in range(1, 20) for _ in range(10)]
        await bench.ended(ids)
        assert bench.figures("c0").in_flight == 5
        assert "".join(sorted(bench.journey(id) for id in hanging)) == "Q" * 5 + "QF" * 5


@in_a_loop
async def test_a_consumer_that_is_paused_changed_or_deleted_stops_cleanly(folder: Path) -> None:
    go_on = asyncio.Event()

    async def wait(got: Got) -> web.StreamResponse:
        await go_on.wait()
        return web.Response()

    async with Receiver(wait) as receiver, Receiver() as new, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        under_way, waiting = await bench.publish(), await bench.publish()
        await receiver.came(1)
        await bench.register("billing", receiver.url, paused=True)
        go_on.set()
        await bench.ended(under_way)
        assert bench.journey(waiting) == "Q"
        await bench.register("billing", new.url)
        await bench.ended(waiting)
        assert (len(receiver.got), len(new.got)) == (1, 1)

        go_on.clear()
        await bench.register("billing", receiver.url)
        last = await bench.publish()
        await receiver.came(2)
        await bench.forget("billing")
        assert bench.pusher.figures("billing") is None
        left = await bench.publish()
        go_on.set()
        await bench.ended(last)
        assert bench.journey(left) == "Q"


@in_a_loop
async def test_a_queue_that_is_not_there_yet_is_waited_for(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.queue("later")
        await bench.register("billing", receiver.url, queue="later")
        await bench.ended(await bench.publish(queue="later"))


@in_a_loop
async def test_a_stop_lets_what_is_under_way_end_and_gives_the_rest_back(folder: Path) -> None:
    async def answer(got: Got) -> web.StreamResponse:
        await asyncio.sleep(0.2 if got.body == b"slow" else 600)
        return web.Response()

    async with Receiver(answer) as receiver:
        async with pushing(folder) as bench:
            await bench.register("billing", receiver.url, concurrency=2, timeout_us=seconds(60))
            slow, hanging, waiting = [await bench.publish(body) for body in (b"slow", b"hanging", b"waiting")]
            await receiver.came(2)
            bench.broker.drain()
            began = monotonic()
            await bench.pusher.stop(0.5)
            assert monotonic() - began < 3
            assert bench.journey(slow) == "QFS"
            assert bench.journey(waiting) == "Q"
            await bench.until(lambda: bench.journey(hanging) == "QFQ")
        receiver.answering = lambda got: web.Response()
        async with pushing(folder) as bench:
            await bench.ended([hanging, waiting])
            assert [got.attempt for got in receiver.got if got.id == hanging] == [1, 2]


class GatedStore(SqliteStore):
    """Commits in a thread, and there waits with commands of one kind until it is let go on."""

    threaded = True

    def __init__(self, folder: Path, kind: type[Command] | None = None) -> None:
        super().__init__(folder / "waypost.db")
        self.kind = kind
        self.reached, self.opened = threading.Event(), threading.Event()

    def apply(self, commands: Sequence[Command]) -> Applied:
        if any(type(command) is self.kind for command in commands):
            self.reached.set()
            assert self.opened.wait(20)
        return super().apply(commands)


@pytest.mark.parametrize("kicks", ["queue", "consumer", "none"])
def test_a_fetch_that_returns_during_a_stop_is_sent_if_it_was_kicked_and_else_goes_back(
    tmp_path: Path, kicks: str
) -> None:
    @in_a_loop
    async def test(folder: Path) -> None:
        async with Receiver() as receiver:
            store = GatedStore(folder, Fetch)
            async with pushing(folder, store) as bench:
                await bench.queue(policy=Policy(kick=kicks == "queue"))
                await bench.register("billing", receiver.url, kick=kicks == "consumer")
                id = await bench.publish()
                await asyncio.to_thread(store.reached.wait, 20)
                stopping = asyncio.create_task(bench.pusher.stop(10))
                await asyncio.sleep(0)  # until it waits for what is under way
                assert not stopping.done()
                store.opened.set()
                await stopping
                assert bench.journey(id) == ("QFK" if kicks == "queue" else "QFQ")
                assert len(receiver.got) == (1 if kicks == "queue" else 0)
            async with pushing(folder) as bench:
                await bench.ended(id, "KS")
                await receiver.came(1)
                assert bench.journey(id) == {"queue": "QFK", "consumer": "QFQFK", "none": "QFQFS"}[kicks]
            assert len(receiver.got) == 1

    test(tmp_path)


def test_what_is_not_yet_kicked_when_its_endpoint_stops_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Endpoint._take

    def take_and_stop(self: Endpoint, fetched: list[Held]) -> None:
        take(self, fetched)
        self.stop()

    @in_a_loop
    async def test(folder: Path) -> None:
        async with Receiver() as receiver, pushing(folder) as bench:
            monkeypatch.setattr(Endpoint, "_take", take_and_stop)
            id = await bench.publish()
            await bench.register("billing", receiver.url, kick=True)
            await bench.until(lambda: bench.journey(id) == "QFQ")
            assert receiver.got == []

    test(tmp_path)


@in_a_loop
async def test_what_is_kicked_is_never_sent_later_when_its_broker_stops_before_it_was_sent(
    folder: Path,
) -> None:
    async with Receiver() as receiver:
        store = GatedStore(folder, Kick)
        async with pushing(folder, store) as bench:
            await bench.register("billing", receiver.url, kick=True)
            id = await bench.publish()
            await asyncio.to_thread(store.reached.wait, 20)
            stopping = asyncio.create_task(bench.pusher.stop(0.1))
            endpoint = bench.pusher._endpoints["billing"]
            await bench.until(lambda: not endpoint._tasks, "the cancelling")
            store.opened.set()
            await stopping
        async with pushing(folder) as bench:
            assert bench.journey(id) == "QFK"
            await bench.ended(await bench.publish(b"next"), "K")
            await receiver.came(1)
        assert [got.body for got in receiver.got] == [b"next"]


@in_a_loop
async def test_410_does_not_undo_a_declaration_that_is_just_being_committed(folder: Path) -> None:
    go = asyncio.Event()

    async def answer(got: Got) -> web.StreamResponse:
        await go.wait()
        return web.Response(status=410 if got.attempt == 1 else 200)

    store = GatedStore(folder)
    async with Receiver(answer) as receiver, pushing(folder, store) as bench:
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await receiver.came(1)
        store.kind = DeclareConsumer
        declaring = asyncio.create_task(bench.register("billing", receiver.url, concurrency=7))
        await asyncio.to_thread(store.reached.wait, 20)
        go.set()
        await bench.until(lambda: bench.figures("billing").failed == 1)
        store.opened.set()
        await declaring
        await bench.ended(id)
        info = store.consumer("billing")
        assert info is not None
        assert (info.consumer.concurrency, info.consumer.paused) == (7, False)


@in_a_loop
async def test_410_to_a_request_of_before_does_not_pause_who_was_declared_again(folder: Path) -> None:
    go = asyncio.Event()

    async def answer(got: Got) -> web.StreamResponse:
        await go.wait()
        return web.Response(status=410 if got.attempt == 1 else 200)

    async with Receiver(answer) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await receiver.came(1)
        await bench.register("billing", receiver.url)
        go.set()
        await bench.ended(id)
        assert bench.journey(id) == "QFQFS"


LOADING = """
import asyncio, sys, threading
from pathlib import Path
from waypost.broker import Broker
from waypost.commands import DeclareConsumer, DeclareQueue
from waypost.consumers import Consumer
from waypost.policy import Policy
from waypost.push import Pusher
from waypost.stores.memory import MemoryStore

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp":
            print(threading.current_thread() is threading.main_thread())

async def main() -> None:
    broker = Broker(MemoryStore(), on_broken=print)
    pusher = Pusher(broker)
    pusher.start()
    assert "aiohttp" not in sys.modules
    sys.meta_path.insert(0, Watch())
    await broker.ask(DeclareQueue("orders", Policy()))
    for name in ("a", "b"):
        await broker.ask(DeclareConsumer(name, Consumer(url="http://192.0.2.1/", queue="orders")))
        pusher.changed(name)
    while set(pusher.all_figures()) != {"a", "b"}:
        await asyncio.sleep(0.01)
    await pusher.stop()
    await broker.close()

asyncio.run(main())
"""


def test_aiohttp_is_loaded_for_the_first_consumer_and_not_in_the_loop() -> None:
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.push.harness import pushing, run

async def main() -> None:
    async with pushing(Path(sys.argv[1])) as bench:
        await bench.register("billing", sys.argv[2], concurrency=8, secrets=(sys.argv[3],))
        for n in range(400):
            print(await bench.publish(b"%d" % n), flush=True)
        await asyncio.Event().wait()

run(main())
"""


@in_a_loop
async def test_a_broker_that_is_killed_loses_no_delivery(folder: Path) -> None:
    async with Receiver() as receiver:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, str(folder), receiver.url, SECRET),
            stdout=subprocess.PIPE,
            env=environment,
        )
        try:
            await receiver.came(60)
        finally:
            child.kill()
            said, _ = await child.communicate()
        # What was acknowledged, and whole lines only.
        ids = said.decode().rpartition("\n")[0].split()
        assert ids
        async with pushing(folder) as bench:
            await bench.ended(ids)
            everything: list[Event] = bench.store.events(1, bench.store.bounds()[1])
            logged = {event.message_id for event in everything}
            await bench.until(lambda: set(bench.counts()) == {"S"})
            assert logged == {got.id for got in receiver.got}, "each at least once"


@in_a_loop
async def test_confirms_wait_for_a_broker_that_is_busy(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        busy = bench.broker.committer
        answered = asyncio.Event()

        async def fill(got: Got) -> web.StreamResponse:
            busy._max_waiting = 0  # as full as it can be
            answered.set()
            return web.Response()

        receiver.answering = fill
        id = await bench.publish()
        await answered.wait()
        await bench.until(lambda: bench.figures("billing").succeeded == 1)
        assert bench.journey(id) == "QF"
        busy._max_waiting = 10_000
        await bench.ended(id)
        assert len(receiver.got) == 1
