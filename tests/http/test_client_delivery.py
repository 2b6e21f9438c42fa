"""The client's channels, objects, consumers, spectators, and work on many, against a real broker."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from datetime import UTC, datetime

import pytest

from tests.http.brokers import BrokerInThread
from waypost import (
    BlockingClient,
    ChannelNotFound,
    Client,
    ConsumerNotFound,
    LogTrimmed,
    Message,
    ObjectNotFound,
    QueueNotFound,
    RequestInvalid,
    Retry,
    SpectatorNotFound,
)
from waypost.stores.memory import MemoryStore
from waypost.testing.running import running_broker

pytestmark = pytest.mark.timeout(60)


def with_broker(test: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running_broker() as serving, Client(serving.url) as client:
            await test(client)

    asyncio.run(run())


# ── channels ────────────────────────────────────────────────────────────────────────────────────


def test_a_channel_is_fetched_extended_and_confirmed_beside_the_queue() -> None:
    async def test(client: Client) -> None:
        await client.declare_channel("crm", ["fruit.*"], {"lease": 60})
        published = await client.publish("fruit.apple", "x")
        (message,) = await client.fetch(channel="crm", consumer="crm")
        assert (message.id, message.queue, message.channel) == (published.id, None, "crm")
        (extended,) = await client.extend(channel="crm", receipts=[message.receipt], lease=90)
        assert not extended.stale
        (settled,) = await client.confirm(channel="crm", receipts=[message.receipt])
        assert settled.state == "S"
        (queued,) = await client.fetch("fruit")
        assert (queued.queue, queued.channel) == ("fruit", None)
        assert (await client.confirm("fruit", [message.receipt]))[0].stale

    with_broker(test)


def test_a_channel_begins_at_an_offset_or_a_moment_and_is_looked_at_changed_and_deleted() -> None:
    async def test(client: Client) -> None:
        ids = [(await client.publish("fruit.apple", str(n))).id for n in range(3)]
        second = [event async for event in client.log(topic="fruit.*")][1]
        await client.declare_channel("late", ["fruit.*"], start=second["offset"])
        at = datetime.fromisoformat(second["at"]).astimezone()
        await client.declare_channel("later", ["fruit.*"], start=at)
        for name in ("late", "later"):
            fetched = await client.fetch(channel=name, n=10, wait=5)
            assert ids[1:] == [message.id for message in fetched][-2:], name
        changed = await client.declare_channel("late", ["fruit.pear"], {"paused": True})
        assert (changed["topics"], changed["paused"]) == (["fruit.pear"], True)
        assert [channel["name"] for channel in await client.channels()] == ["late", "later"]
        await client.delete_channel("late")
        with pytest.raises(ChannelNotFound):
            await client.channel("late")

    with_broker(test)


def test_a_queue_or_a_channel_is_named_and_never_both_or_none() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(RequestInvalid, match="one of them"):
            await client.fetch()
        with pytest.raises(RequestInvalid, match="one of them"):
            await client.confirm("q", ["1-0123456789abcdef"], channel="c")
        with pytest.raises(RequestInvalid, match="one of them"):
            client.worker()

    with_broker(test)


def test_a_worker_of_a_channel_waits_for_it_and_handles_every_message_of_its_topics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(client: Client) -> None:
        seen: list[tuple[str, int]] = []
        done = asyncio.Event()

        @client.worker(channel="crm", concurrency=2, consumer="crm")
        async def handle(message: Message) -> None:
            seen.append((message.text(), message.attempt))
            if message.text() == "1" and message.attempt == 1:
                raise Retry("not yet", delay=0)
            if len(seen) == 4:
                done.set()

        working = asyncio.create_task(client.work())
        async with asyncio.timeout(20):
            while "no channel 'crm'; trying on" not in caplog.text:  # noqa: ASYNC110 - it is told there only
                await asyncio.sleep(0.01)
        await client.declare_channel("crm", ["fruit.*"])
        for number in range(3):
            await client.publish("fruit.apple", str(number))
        await client.publish("wood.oak", "not for it")
        await asyncio.wait_for(done.wait(), 30)
        client.stop()
        await working
        assert sorted(seen) == [("0", 1), ("1", 1), ("1", 2), ("2", 1)]
        assert (await client.channel("crm"))["figures"]["states"]["S"] == 3

    with_broker(test)


# ── objects, consumers ──────────────────────────────────────────────────────────────────────────


def test_an_unchanged_message_tells_its_original_and_force_delivers_it() -> None:
    async def test(client: Client) -> None:
        agreed = await client.declare_object("customer", {"unchanged": {"ignore": ["$.at"], "window": "1d"}})
        assert agreed["unchanged"] == {"ignore": ["$.at"], "window": "1d"}
        first = await client.publish("crm.changed", {"name": "Ada", "at": 1}, object="customer", key="1")
        again = await client.publish("crm.changed", {"at": 2, "name": "Ada"}, object="customer", key="1")
        assert (again.state, again.same_as) == ("U", first.id)
        forced = await client.publish(
            "crm.changed", {"name": "Ada", "at": 3}, object="customer", key="1", force=True
        )
        assert (forced.state, forced.same_as) == ("Q", None)
        assert [found["name"] for found in await client.objects()] == ["customer"]
        await client.delete_object("customer")
        with pytest.raises(ObjectNotFound):
            await client.object("customer")

    with_broker(test)


def test_every_registered_consumer_must_confirm_where_the_policy_says_all() -> None:
    async def test(client: Client) -> None:
        await client.declare("contracts", {"complete": "all"})
        for name in ("buyer", "seller"):
            await client.declare_consumer(name, {"queue": "contracts"})
        assert [found["name"] for found in await client.consumers()] == ["buyer", "seller"]
        published = await client.publish("contracts.new", "sign")
        (message,) = await client.fetch("contracts", consumer="buyer")
        await client.confirm("contracts", [message.receipt], consumer="buyer")
        missing = (await client.message(published.id))["missing"]
        assert [one["consumer"] for one in missing] == ["seller"]
        await client.delete_consumer("buyer")
        with pytest.raises(ConsumerNotFound):
            await client.consumer("buyer")

    with_broker(test)


# ── the log ─────────────────────────────────────────────────────────────────────────────────────


def test_the_log_is_read_from_a_moment_and_by_channel() -> None:
    async def test(client: Client) -> None:
        await client.declare_channel("crm", ["a.*"])
        await client.publish("a.x", "1")
        events = [event async for event in client.log()]
        assert [event["toState"] for event in events] == ["L", "Q", "Q"]
        assert [event["offset"] async for event in client.log(channel="crm")] == [3]
        assert [event["offset"] async for event in client.log(events[0]["at"])] == [1, 2, 3]
        assert [event async for event in client.log(datetime(2100, 1, 1, tzinfo=UTC))] == []

    with_broker(test)


def test_a_spectator_goes_on_where_it_stopped_and_its_lag_is_seen() -> None:
    async def test(client: Client) -> None:
        await client.publish_many([{"queue": "q", "body": "x"}] * 3)
        async with aclosing(client.spectate("audit")) as events:
            read = [(await anext(events))["offset"] for _ in range(4)]
        assert read == [1, 2, 3, 4]
        # The fourth was in hand when the reader left, so it counts as not read.
        assert await client.spectator("audit") | {"at": None} == {
            "name": "audit",
            "offset": 3,
            "lag": 3,
            "at": None,
        }
        assert [event["offset"] async for event in client.spectate("audit", follow=False)] == [4, 5, 6]
        assert [found["lag"] for found in await client.spectators()] == [0]
        assert (await client.set_spectator("audit", 2))["lag"] == 4
        await client.delete_spectator("audit")
        with pytest.raises(SpectatorNotFound):
            await client.spectator("audit")

    with_broker(test)


# ── work on many, and as of ─────────────────────────────────────────────────────────────────────


def test_dead_letters_are_redriven_to_one_consumer_at_a_pace_and_successes_replayed() -> None:
    async def test(client: Client) -> None:
        for _ in range(2):
            await client.publish("a.b", "x")
        for message in await client.fetch("a", 2, consumer="billing"):
            await client.confirm("a", [message.receipt], "invalid")
        dry = await client.redrive("queue=a consumer=billing", dry_run=True)
        assert (dry.id, dry.matched, dry.states) == (None, 2, {"I": 2})
        job = await client.redrive("queue=a consumer=billing", rate=1_000, consumer="billing")
        assert job.id is not None
        steps = [step async for step in client.job_steps(job.id, every=0.01)]
        assert (steps[-1]["done"], steps[-1]["consumer"], steps[-1]["ended"] is None) == (2, "billing", False)
        assert await client.fetch("a", 2, consumer="other") == []
        receipts = [message.receipt for message in await client.fetch("a", 2, consumer="billing")]
        await client.confirm("a", receipts)
        assert (await client.job_done(await client.redrive("queue=a")))["done"] == 0
        assert (await client.job_done(await client.replay("queue=a state=S")))["done"] == 2
        assert (await client.job_done(await client.cancel("queue=a", rate=1_000)))["done"] == 2

    with_broker(test)


def test_a_channel_is_purged() -> None:
    async def test(client: Client) -> None:
        await client.declare_channel("crm", ["a.*"])
        await client.publish("a.b", "x")
        assert (await client.job_done(await client.purge(channel="crm")))["done"] == 1
        assert len(await client.fetch("a")) == 1

    with_broker(test)


def test_a_queue_is_seen_as_it_was() -> None:
    async def test(client: Client) -> None:
        await client.declare_channel("crm", ["a.*"])
        await client.publish("a.b", "x")
        moment = [event async for event in client.log()][-1]["at"]
        for queue, channel in (("a", None), (None, "crm")):
            (message,) = await client.fetch(queue, channel=channel, consumer="crm")
            await client.confirm(queue, [message.receipt], channel=channel)
        for was in (await client.queue("a", at=moment), await client.channel("crm", at=moment)):
            assert (was["figures"]["depth"], was["figures"]["states"]["Q"]) == (1, 1)
        now = await client.queue("a", at=datetime.now(UTC))
        assert (now["figures"]["depth"], now["figures"]["states"]["S"]) == (0, 1)
        with pytest.raises((QueueNotFound, LogTrimmed)):
            await client.queue("a", at="2020-01-01")

    with_broker(test)


def test_the_blocking_client_has_all_of_it() -> None:
    with BrokerInThread(MemoryStore) as broker, BlockingClient(f"http://127.0.0.1:{broker.port}") as client:
        client.declare_channel("crm", ["a.*"])
        client.declare_object("a", {"unchanged": {}})
        client.declare("a")
        client.declare_consumer("billing", {"queue": "a"})
        first = client.publish("a.b", "x", key="1")
        assert client.publish("a.b", "x", key="1").same_as == first.id
        (message,) = client.fetch(channel="crm", consumer="crm")
        assert client.confirm(channel="crm", receipts=[message.receipt])[0].state == "S"
        assert client.job_done(client.replay("channel=crm"))["done"] == 1
        with closing(client.spectate("audit")) as reading:
            assert [next(reading)["offset"], next(reading)["offset"]] == [1, 2]
        assert client.spectator("audit")["offset"] == 1
        assert next(client.log(channel="crm"))["channel"] == "crm"
        assert client.channel("crm")["topics"] == ["a.*"]
        names = [name for name in vars(Client) if not name.startswith("_")]
        assert sorted(set(names) - set(dir(client))) == ["job_steps", "run", "stop", "url", "work", "worker"]
