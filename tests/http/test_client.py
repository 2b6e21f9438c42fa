"""The client against a real broker, with a bad line between them where that matters."""

import asyncio
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread
from waypost import (
    BlockingClient,
    Busy,
    Client,
    IdempotencyConflict,
    IdTaken,
    Invalid,
    Message,
    MessageNotFound,
    NewMessage,
    NotInterested,
    QueueFull,
    QueueNotFound,
    Refused,
    RequestInvalid,
    Retry,
    Unreachable,
)
from waypost.client.forms import Extended, Settled
from waypost.stores.memory import MemoryStore
from waypost.testing.running import running_broker

pytestmark = pytest.mark.timeout(60)

_BUSY = b'{"status":503,"code":"BUSY","title":"Busy","detail":"full","hint":""}'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BUSY),
    _BUSY,
)


class BadLine:
    """A line to the broker that loses answers, or answers itself, as the test wants."""

    def __init__(self, port: int) -> None:
        self._broker_port = port
        #: so many answers are thrown away, and their connection with them
        self.lose = 0
        #: given instead of asking the broker
        self.instead: list[bytes] = []
        #: requests that reached the broker
        self.asked = 0
        self._open: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._open.add(task)
        try:
            while request := await whole_request(reader):
                if self.instead:
                    writer.write(self.instead.pop(0))
                elif not await self._ask(request, writer):
                    return
        except OSError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _ask(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the answer was given; one that streams goes on until either side ends it."""
        self.asked += 1
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        try:
            to_broker.write(request)
            while answer := await from_broker.read(1 << 20):
                if self.lose:
                    self.lose -= 1
                    return False
                writer.write(answer)
                await writer.drain()
                if b"\r\n\r\n" in answer and b"chunked" not in answer:
                    break
            return True
        finally:
            to_broker.close()

    def cut(self) -> None:
        for task in self._open:
            assert task is not None
            task.cancel()


async def whole_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = re.search(rb"content-length: (\d+)", head.lower())
    return head + await reader.readexactly(int(length[1]) if length else 0)


@asynccontextmanager
async def bad_line(port: int) -> AsyncIterator[tuple[BadLine, str]]:
    line = BadLine(port)
    async with await asyncio.start_server(line.serve, "127.0.0.1", 0) as server:
        yield line, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        line.cut()


def with_broker(test: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with running_broker() as serving, Client(serving.url, **settings) as client:
            await test(client)

    asyncio.run(run())


async def journey(client: Client, id: str) -> str:
    return "".join(event["toState"] for event in (await client.message(id))["journey"])


async def states(client: Client, queue: str, letters: str) -> list[int]:
    """How many deliveries are in each of these states."""
    counts = (await client.queue(queue))["figures"]["states"]
    return [counts[letter] for letter in letters]


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - what is awaited happens in the broker
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ── publish, fetch, confirm ─────────────────────────────────────────────────────────────────────


def test_a_message_comes_back_as_it_was_published() -> None:
    async def test(client: Client) -> None:
        published = await client.publish(
            "fruit.apple/pie ü",
            "Grüße",
            object="order",
            topics=["fruit.pear"],
            key="k ü,1",
            priority=0,
            meta={"Trace": "1"},
        )
        assert published.state == "Q"
        (message,) = await client.fetch("order", 10, consumer="crm")
        assert message.id == published.id
        assert message.topics == ("fruit.apple/pie ü", "fruit.pear")
        assert (message.object, message.key, message.attempt) == ("order", "k ü,1", 1)
        assert (message.text(), message.mime_type) == ("Grüße", "text/plain; charset=utf-8")
        assert message.meta == {"trace": "1"}
        (settled,) = await client.confirm("order", [message.receipt], consumer="crm")
        assert (settled.id, settled.state, settled.stale) == (published.id, "S", False)
        assert await client.fetch("order") == []
        assert await client.payload(published.id) == "Grüße".encode()

    with_broker(test, producer="shop")


def test_any_bytes_survive_and_json_is_json() -> None:
    async def test(client: Client) -> None:
        every_byte = bytes(range(256))
        await client.publish("a.b", every_byte)
        await client.publish_many([NewMessage(topics=["a.b"], body=every_byte)])
        await client.publish("a.b", {"n": [1, None]})
        one, two, three = await client.fetch("a", 3)
        assert one.body == two.body == every_byte
        assert (three.json(), three.mime_type) == ({"n": [1, None]}, "application/json")

    with_broker(test)


def test_many_are_published_all_or_none() -> None:
    async def test(client: Client) -> None:
        assert await client.publish_many([]) == []
        with pytest.raises(RequestInvalid, match="message 2"):
            await client.publish_many([{"topics": ["a.b"], "body": "1"}, {"topics": ["*"], "body": "2"}])
        assert await client.bounds() == (1, 0)
        results = await client.publish_many(NewMessage(queue="q", body=str(n)) for n in range(3))
        assert [message.id for message in await client.fetch("q", 9)] == [result.id for result in results]

    with_broker(test)


def test_a_stream_of_messages_goes_out_in_batches() -> None:
    async def test(client: Client) -> None:
        messages = [NewMessage(queue="q", body=str(n)) for n in range(25)]
        assert [len(results) async for results in client.publish_stream(messages, 10)] == [10, 10, 5]
        assert [message.text() for message in await client.fetch("q", 100)] == [str(n) for n in range(25)]

    with_broker(test)


def test_a_stale_receipt_is_reported_and_a_lease_can_be_extended() -> None:
    async def test(client: Client) -> None:
        await client.publish("a.b", "x")
        (message,) = await client.fetch("a", lease=60)
        (extended,) = await client.extend("a", [message.receipt], lease=120)
        assert not extended.stale
        assert extended.until is not None
        assert (await client.confirm("a", ["1-0123456789abcdef"]))[0].stale
        (settled,) = await client.confirm("a", [message.receipt], "invalid", reason="no")
        assert settled.state == "I"
        assert [found["reason"] async for found in client.search("queue=a state=EI")] == ["no"]

    with_broker(test)


def test_dead_letters_are_redriven_and_waiting_ones_cancelled_and_purged() -> None:
    async def test(client: Client) -> None:
        published = await client.publish("a.b", "x")
        (message,) = await client.fetch("a")
        await client.confirm("a", [message.receipt], "invalid")
        dry = await client.redrive("queue=a", dry_run=True)
        assert (dry.id, dry.matched) == (None, 1)
        assert (await client.job_done(await client.redrive("queue=a")))["done"] == 1
        assert (await client.job_done(await client.cancel("queue=a")))["done"] == 1
        assert await journey(client, published.id) == "LQFIQC"
        await client.publish("a.b", "y")
        assert (await client.job_done(await client.purge("a")))["done"] == 1
        assert (await client.queue("a"))["figures"]["states"]["C"] == 2

    with_broker(test)


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────


def test_refusals_are_raised_as_what_they_are() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(QueueNotFound):
            await client.fetch("nowhere")
        with pytest.raises(MessageNotFound):
            await client.message("nothing")
        with pytest.raises(RequestInvalid) as invalid:
            await client.publish("Fruit", "x")
        assert invalid.value.code == "TOPIC_INVALID"
        await client.publish("a.b", "x", id="mine", idempotency_key="k")
        with pytest.raises(IdTaken):
            await client.publish("a.b", "y", id="mine")
        with pytest.raises(IdempotencyConflict):
            await client.publish("a.b", "y", idempotency_key="k")
        await client.declare("full", {"maxMessages": 1})
        await client.publish("full.x", "x")
        with pytest.raises(QueueFull) as full:
            await client.publish("full.x", "y")
        assert full.value.retry_after == 10

    with_broker(test, patience=1.0)


def test_a_publish_whose_answer_was_lost_is_repeated_and_is_one_message() -> None:
    async def run() -> None:
        async with running_broker() as serving, bad_line(serving.port) as (line, url), Client(url) as client:
            line.lose = 2
            published = await client.publish("a.b", "once")
            assert line.asked == 3
            line.lose = 1
            many = await client.publish_many([{"topics": ["a.b"], "body": "twice"}] * 2)
            assert line.asked == 5
            ids = [message.id for message in await client.fetch("a", 100)]
            assert ids == [published.id, *(result.id for result in many)]

    asyncio.run(run())


def test_a_confirm_whose_answer_was_lost_is_repeated_with_the_same_result() -> None:
    async def run() -> None:
        async with running_broker() as serving, bad_line(serving.port) as (line, url), Client(url) as client:
            await client.publish("a.b", "x")
            (message,) = await client.fetch("a")
            line.lose = 1
            (settled,) = await client.confirm("a", [message.receipt])
            assert (settled.id, settled.state) == (message.id, "S")

    asyncio.run(run())


def test_what_a_repeat_could_do_twice_is_not_repeated() -> None:
    async def run() -> None:
        async with running_broker() as serving, bad_line(serving.port) as (line, url), Client(url) as client:
            await client.publish("a.b", "x")
            line.lose, line.asked = 1, 0
            with pytest.raises(Unreachable) as lost:
                await client.cancel("queue=a")
            assert lost.value.perhaps_done
            assert line.asked == 1

    asyncio.run(run())


def test_a_busy_broker_is_asked_again_when_it_said_so() -> None:
    async def run() -> None:
        async with running_broker() as serving, bad_line(serving.port) as (line, url), Client(url) as client:
            line.instead = [BUSY, BUSY]
            assert (await client.publish("a.b", "x")).state == "Q"
        async with bad_line(1) as (line, url), Client(url, patience=0) as client:
            line.instead = [BUSY]
            with pytest.raises(Busy):
                await client.publish("a.b", "x")

    asyncio.run(run())


def test_a_broker_that_is_not_there_is_waited_for_as_long_as_patience_lasts() -> None:
    async def run() -> None:
        port = free_port()
        async with Client(f"http://127.0.0.1:{port}", patience=0.3) as client:
            with pytest.raises(Unreachable, match="connection refused") as nobody:
                await client.publish("a.b", "x")
            assert not nobody.value.perhaps_done
        async with Client(f"http://127.0.0.1:{port}", patience=30) as client:
            publishing = asyncio.create_task(client.publish("a.b", "x"))
            await asyncio.sleep(0)
            async with running_broker(port=port):
                assert (await publishing).state == "Q"

    asyncio.run(run())


def test_a_server_that_is_no_broker_is_called_so() -> None:
    async def run() -> None:
        async with bad_line(1) as (line, url), Client(url, patience=0) as client:
            line.instead = [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"] * 2
            with pytest.raises(Refused, match="not as Waypost answers"):
                await client.queues()
            with pytest.raises(Refused, match="not as Waypost answers"):
                await client.publish("a.b", "x")

    asyncio.run(run())


def test_a_broker_that_never_answers_is_given_up() -> None:
    async def run() -> None:
        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            finally:
                writer.close()

        async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
            url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
            async with Client(url, timeout=0.2, patience=0) as client:
                with pytest.raises(Unreachable, match="too long"):
                    await client.stats()

    asyncio.run(run())


# ── the log ─────────────────────────────────────────────────────────────────────────────────────


def test_a_followed_log_gives_every_event_once_over_broken_connections() -> None:
    async def run() -> None:
        async with running_broker() as serving, bad_line(serving.port) as (line, url), Client(url) as client:
            await client.publish_many([{"queue": "q", "body": "x"}] * 3)
            offsets = []
            async with aclosing(client.log(follow=True)) as events:
                async for event in events:
                    offsets.append(event["offset"])
                    if len(offsets) in (4, 8):
                        line.cut()
                        await client.publish_many([{"queue": "q", "body": "x"}] * 2)
                    if len(offsets) == 14:
                        break
            assert offsets == list(range(1, 15))

    asyncio.run(run())


def test_the_log_is_read_in_part_by_topic_and_by_queue() -> None:
    async def test(client: Client) -> None:
        await client.publish("a.x", "1")
        await client.publish("b.y", "2")
        assert [event["offset"] async for event in client.log(2, 2)] == [2, 3]
        assert [event["topics"] async for event in client.log(topic="b.*")] == [["b.y"]]
        assert [event["toState"] async for event in client.log(queue="a")] == ["Q"]
        assert await client.bounds() == (1, 4)

    with_broker(test)


# ── workers ─────────────────────────────────────────────────────────────────────────────────────


class Counting(Client):
    """Remembers what its workers asked."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.confirms: list[int] = []
        self.extends = 0
        self.sixth_extend = asyncio.Event()

    async def confirm(
        self, queue: str | None = None, receipts: Any = (), *args: Any, **more: Any
    ) -> list[Settled]:
        self.confirms.append(len(receipts))
        return await super().confirm(queue, receipts, *args, **more)

    async def extend(self, queue: str | None = None, receipts: Any = (), **more: Any) -> list[Extended]:
        extended = await super().extend(queue, receipts, **more)
        self.extends += 1
        if self.extends == 6:
            self.sixth_extend.set()
        return extended


def with_worker(test: Callable[[Counting, asyncio.Event], Awaitable[None]]) -> None:
    """The test registers workers, sets the event to start them, and stops the client when it is through."""

    async def run() -> None:
        async with running_broker() as serving, Counting(serving.url) as client:
            start = asyncio.Event()
            testing = asyncio.create_task(asyncio.wait_for(test(client, start), 30))
            starting = asyncio.create_task(start.wait())
            await asyncio.wait([testing, starting], return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            working = asyncio.create_task(client.work())
            try:
                await testing
            finally:
                client.stop()
                await working

    asyncio.run(run())


def test_a_worker_handles_everything_with_bounded_concurrency_and_confirms_many_at_once() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        seen: set[str] = set()
        running = most = 0
        done = asyncio.Event()

        @client.worker("q", concurrency=8)
        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            seen.add(message.id)
            if len(seen) == 300:
                done.set()

        published = await client.publish_many([{"queue": "q", "body": "x"}] * 300)
        start.set()
        await done.wait()
        assert seen == {result.id for result in published}
        assert 1 < most <= 8

        async def settled() -> bool:
            return await states(client, "q", "S") == [300]

        await until(settled)
        assert sum(client.confirms) == 300
        assert len(client.confirms) < 150

    with_worker(test)


def test_what_a_handler_raises_is_what_is_confirmed() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        await client.declare("q", {"retries": 1, "backoff": {"base": 0, "cap": 0}})

        @client.worker("q", concurrency=4, consumer="crm")
        async def handle(message: Message) -> None:
            match message.text():
                case "invalid":
                    raise Invalid("no number")
                case "retry":
                    if message.attempt == 1:
                        raise Retry("crm is away", delay=0)
                case "uninterested":
                    raise NotInterested
                case "broken":
                    raise KeyError("price")

        words = ["fine", "invalid", "retry", "uninterested", "broken"]
        published = await client.publish_many({"queue": "q", "body": word} for word in words)
        ids = dict(zip(words, (result.id for result in published), strict=True))
        start.set()
        wanted = {
            "fine": "LQFSX",
            "invalid": "LQFI",
            "retry": "LQFRFSX",
            "uninterested": "LQFNQ",
            "broken": "LQFRFE",
        }

        async def all_through() -> bool:
            return {word: await journey(client, id) for word, id in ids.items()} == wanted

        await until(all_through)
        reasons = {found["messageId"]: found["reason"] async for found in client.search("queue=q state=EI")}
        assert reasons == {ids["invalid"]: "no number", ids["broken"]: "KeyError: 'price'"}

    logging.getLogger("waypost.worker").setLevel(logging.CRITICAL)
    try:
        with_worker(test)
    finally:
        logging.getLogger("waypost.worker").setLevel(logging.NOTSET)


def test_a_heartbeat_keeps_the_lease_however_long_the_handler_takes() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        beaten = asyncio.Event()

        @client.worker("q", lease=0.6)
        async def handle(message: Message) -> None:
            await client.sixth_extend.wait()  # twice as long as the lease
            beaten.set()

        published = await client.publish("q.x", "slow")
        start.set()
        await beaten.wait()

        async def settled() -> bool:
            return await journey(client, published.id) == "LQFSX"

        await until(settled)

    with_worker(test)


def test_stopping_finishes_and_confirms_all_that_is_held_and_fetches_no_more() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        first, go_on = asyncio.Event(), asyncio.Event()

        @client.worker("q", concurrency=1, ahead=2)
        async def handle(message: Message) -> None:
            first.set()
            await go_on.wait()

        await client.publish_many([{"queue": "q", "body": "x"}] * 5)
        start.set()
        await first.wait()
        client.stop()
        go_on.set()

        async def three_are_through() -> bool:
            return await states(client, "q", "SQF") == [3, 2, 0]

        await until(three_are_through)

    with_worker(test)


def test_what_has_not_ended_after_the_grace_is_handed_back() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        first = asyncio.Event()

        @client.worker("q", concurrency=1, ahead=1, grace=0.05)
        async def handle(message: Message) -> None:
            first.set()
            await asyncio.Event().wait()

        published = await client.publish_many([{"queue": "q", "body": "x"}] * 2)
        start.set()
        await first.wait()
        client.stop()

        async def both_are_back() -> bool:
            return [await journey(client, result.id) for result in published] == ["LQFR", "LQFR"]

        await until(both_are_back)
        assert (await client.message(published[0].id))["journey"][-1]["reason"] == "worker stopped"

    with_worker(test)


def test_a_plain_function_runs_in_threads() -> None:
    async def test(client: Counting, start: asyncio.Event) -> None:
        both = threading.Barrier(2, timeout=20)

        @client.worker("q", concurrency=2)
        def handle(message: Message) -> None:
            both.wait()

        await client.publish_many([{"queue": "q", "body": "x"}] * 2)
        start.set()

        async def settled() -> bool:
            return await states(client, "q", "S") == [2]

        await until(settled)

    with_worker(test)


def test_a_worker_waits_for_a_broker_and_for_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        port = free_port()
        handled = asyncio.Event()
        async with Client(f"http://127.0.0.1:{port}", patience=0) as client:

            @client.worker("q")
            async def handle(message: Message) -> None:
                handled.set()

            working = asyncio.create_task(client.work())

            async def told(what: str) -> bool:
                return what in caplog.text

            await until(lambda: told("connection refused"))
            async with running_broker(port=port), Client(client.url) as producer:
                await asyncio.sleep(0)
                await producer.publish("other.x", "x")
                await producer.publish("q.x", "x")
                await asyncio.wait_for(handled.wait(), 20)
                client.stop()
                await working

    asyncio.run(run())


def test_a_worker_that_can_never_fetch_ends_with_the_reason() -> None:
    async def test(client: Client) -> None:
        client.worker("Not A Name")(lambda message: None)
        with pytest.raises(RequestInvalid):
            await client.work()

    with_broker(test)


# ── the blocking face ───────────────────────────────────────────────────────────────────────────


def test_the_blocking_client_does_the_same_from_any_thread() -> None:
    with BrokerInThread(MemoryStore) as broker, BlockingClient(f"http://127.0.0.1:{broker.port}") as client:
        threads = [threading.Thread(target=client.publish, args=("a.b", str(n))) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.publish_many([NewMessage(topics=["a.b"], body="last")])
        messages = client.fetch("a", 100, wait=1)
        assert {message.text() for message in messages} == {"last", *map(str, range(8))}
        assert all(settled.state == "S" for settled in client.confirm("a", [m.receipt for m in messages]))
        events = list(client.log())
        assert [event["offset"] for event in events] == list(range(1, client.bounds()[1] + 1))
        assert client.search("queue=a state=E") == []
        assert client.message(messages[0].id)["state"] == "X"
        assert client.payload(messages[0].id) == messages[0].body
        with pytest.raises(QueueNotFound):
            client.fetch("nowhere")


def test_the_blocking_client_publishes_any_number_and_reads_the_log_of_one_queue_or_topic() -> None:
    with BrokerInThread(MemoryStore) as broker, BlockingClient(f"http://127.0.0.1:{broker.port}") as client:
        rows = (NewMessage(topics=["fruit.apple"], body=str(n)) for n in range(5))
        assert [len(batch) for batch in client.publish_stream(rows, batch=2)] == [2, 2, 1]
        client.publish("meat.beef", "x")
        assert [event["queue"] for event in client.log(queue="meat")] == ["meat"]
        assert [event["toState"] for event in client.log(topic="fruit.*")] == ["L"] * 5
        # Whoever has enough of a followed log goes, and the client still closes.
        assert next(client.log(follow=True))["offset"] == 1
