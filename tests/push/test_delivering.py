"""Messages on their way to a receiver, and what each of its answers does."""

import asyncio
import gzip
from email.utils import formatdate
from pathlib import Path
from time import monotonic, time

import msgspec
import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from tests.push.harness import QUICK, SECRET, Got, Receiver, in_a_loop, pushing, seconds, speaking
from waypost.commands import DeclareChannel, DeclareQueue, Tick
from waypost.delivery import LETTERS
from waypost.http.consumers import make_secret
from waypost.policy import Policy
from waypost.push import endpoint
from waypost.push.answers import LONGEST_REASON
from waypost.push.breaker import Position
from waypost.push.sending import ANSWER_BYTES
from waypost.store import Store
from waypost.stores.sqlite import SqliteStore
from waypost.testing import MovableClock


@in_a_loop
async def test_a_message_arrives_as_it_was_published(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        receiver.answering = lambda got: web.Response(status=202)
        id = await bench.publish(
            b'{"total": "1 \xe2\x82\xac"}',
            topics=("orders.made", "orders.größer"),
            object="orders",
            key="ä 1",
            mime_type="application/json; charset=utf-8",
            meta=(("trace", "a b"),),
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        (got,) = await receiver.came(1)
        assert got.path == "/hook"
        assert got.body == b'{"total": "1 \xe2\x82\xac"}'
        said = got.headers
        assert said["content-type"] == "application/json; charset=utf-8"
        assert "content-encoding" not in said
        assert (said["webhook-id"], said["x-message-id"]) == (id, id)
        assert abs(int(said["webhook-timestamp"]) - time()) < 5
        assert said["waypost-topics"] == "orders.made,orders.gr%C3%B6%C3%9Fer"
        assert said["waypost-object"] == "orders"
        assert said["waypost-key"] == "%C3%A4%201"
        assert said["waypost-attempt"] == "1"
        assert said["waypost-consumer"] == "billing"
        assert said["waypost-meta-trace"] == "a b"
        assert said["traceparent"].startswith("00-0af7")
        await bench.ended(id)
        assert bench.journey(id) == "QFS"
        info = bench.store.message(id)
        assert info is not None
        assert info.deliveries[0].consumer == "billing"

        bare = await bench.publish(b"", topics=("orders.made",))
        await bench.ended(bare)
        assert "content-type" not in receiver.got[1].headers
        assert receiver.got[1].body == b""


@in_a_loop
async def test_an_encoded_body_stays_encoded(folder: Path) -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def take(request: web.BaseRequest) -> web.Response:
        seen.append(
            ({name.lower(): value for name, value in request.headers.items()}, await request.content.read())
        )
        return web.Response()

    runner = web.ServerRunner(web.Server(take, auto_decompress=False))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with pushing(folder) as bench:
        await bench.register("billing", f"http://127.0.0.1:{runner.addresses[0][1]}/")
        body = gzip.compress(b"x" * 1_000)
        await bench.ended(await bench.publish(body, encoding="gzip", mime_type="text/plain"))
    ((headers, got),) = seen
    assert got == body
    assert (headers["content-encoding"], headers["content-type"]) == ("gzip", "text/plain")
    await runner.cleanup()


@in_a_loop
async def test_a_large_body_is_signed_and_sent_whole(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        await bench.ended(await bench.publish(b"0123456789abcdef" * (300 << 10)))
        assert receiver.got[0].body == b"0123456789abcdef" * (300 << 10)


@in_a_loop
async def test_while_a_secret_is_replaced_both_verify(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        new = make_secret()
        await bench.register("billing", receiver.url, secrets=(new, SECRET))
        await bench.ended(await bench.publish(b"{}"))
        (got,) = receiver.got
        Webhook(new).verify(got.body, got.headers)
        receiver.secret = new
        await bench.register("billing", receiver.url, secrets=(new,))
        await bench.ended(await bench.publish(b"{}"))
        assert len(receiver.got[1].headers["webhook-signature"].split(" ")) == 1


def confirms(word: str, status: int = 200, **headers: str) -> web.Response:
    return web.Response(status=status, headers={"Waypost-Confirm": word} | headers)


@in_a_loop
async def test_a_receiver_can_call_a_message_invalid(folder: Path) -> None:
    async with (
        Receiver(
            lambda got: web.Response(status=422, text="no total", headers={"Waypost-Confirm": "invalid"})
        ) as receiver,
        pushing(folder) as bench,
    ):
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.ended(id, "I")
        assert bench.reasons(id)[-1] == "422: no total"
        assert len(receiver.got) == 1


@in_a_loop
async def test_a_message_that_does_not_interest_one_goes_to_another_and_never_back(folder: Path) -> None:
    async with (
        Receiver(lambda got: confirms("not-interested")) as receiver,
        Receiver() as other,
        pushing(folder) as bench,
    ):
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.until(lambda: bench.journey(id) == "QFNQ")
        await bench.register("shipping", other.url)
        await bench.ended(id)
        assert (len(receiver.got), len(other.got)) == (1, 1)


@in_a_loop
async def test_a_receiver_can_ask_for_a_retry_and_say_when(folder: Path) -> None:
    answers = iter([confirms("retry"), confirms("retry", 500, **{"Retry-After": "1"}), web.Response()])
    async with Receiver(lambda got: next(answers)) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.ended(id)
        assert bench.journey(id) == "QFRFRFS"
        assert [got.attempt for got in receiver.got] == [1, 2, 3]
        assert receiver.got[2].at - receiver.got[1].at >= 1.0
        assert bench.figures("billing").breaker is Position.CLOSED


@pytest.mark.parametrize(("word", "remark"), [("success", None), ("ok", "200: unknown Waypost-Confirm: ok")])
def test_what_was_handled_is_not_sent_again_for_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, word: str, remark: str | None
) -> None:
    @in_a_loop
    async def test(folder: Path) -> None:
        said = {"Waypost-Confirm": word}
        async with Receiver(lambda got: web.Response(headers=said)) as receiver, pushing(folder) as bench:
            await bench.register("billing", receiver.url)
            ids = [await bench.publish() for _ in range(3)]
            await bench.ended(ids)
            assert [bench.journey(id) for id in ids] == ["QFS"] * 3
            assert (bench.figures("billing").failed, bench.figures("billing").last_error) == (0, remark)

    test(tmp_path)
    assert caplog.text.count("unknown Waypost-Confirm") == (0 if remark is None else 1)


@in_a_loop
async def test_what_is_refused_again_and_again_is_given_up(folder: Path) -> None:
    async with (
        Receiver(lambda got: web.Response(status=404, text="no\tsuch\r\nhook " * 100)) as receiver,
        pushing(folder) as bench,
    ):
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.ended(id, "E")
        assert bench.journey(id) == "QFRFRFRFE"
        reason = bench.reasons(id)[-1] or ""
        assert reason.startswith("404: no such hook no such")
        assert len(reason) <= 200
        figures = bench.figures("billing")
        assert (figures.sent, figures.succeeded, figures.failed) == (4, 0, 4)
        assert (figures.last_error or "").startswith("404")
        assert figures.last_success_at is None
        assert len(receiver.got) == 4


@in_a_loop
async def test_a_redirect_is_not_followed(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        receiver.answering = lambda got: web.Response(
            status=307, headers={"Location": receiver.url + "/elsewhere"}
        )
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.ended(id, "E")
        assert {got.path for got in receiver.got} == {"/hook"}
        assert bench.reasons(id)[-1] == "307: redirects are not followed"


def is_paused(store: Store) -> bool:
    info = store.consumer("billing")
    return info is not None and info.consumer.paused


@in_a_loop
async def test_410_pauses_the_consumer_for_good_and_keeps_the_message(folder: Path) -> None:
    async with Receiver(lambda got: web.Response(status=410)) as receiver:
        async with pushing(folder) as bench:
            await bench.register("billing", receiver.url, concurrency=3)
            ids = [await bench.publish() for _ in range(10)]
            await bench.until(lambda: bench.counts() == {"Q": 10} and bench.figures("billing").in_flight == 0)
            await bench.until(lambda: is_paused(bench.store), "the pause")
            assert len(receiver.got) <= 3
        # A restart changes nothing; declared again, it goes on.
        so_far = len(receiver.got)
        receiver.answering = lambda got: web.Response()
        async with pushing(folder) as bench:
            assert bench.figures("billing").in_flight == 0
            await bench.register("billing", receiver.url)
            await bench.ended(ids)
            assert len(receiver.got) == so_far + 10


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_holds_the_whole_endpoint_and_counts_nothing(tmp_path: Path, status: int) -> None:
    @in_a_loop
    async def test(folder: Path) -> None:
        async with Receiver() as receiver, pushing(folder) as bench:
            wait = "1" if status == 429 else formatdate(time() + 2, usegmt=True)
            answers = iter([web.Response(status=status, headers={"Retry-After": wait})])
            receiver.answering = lambda got: next(answers, None) or web.Response()
            await bench.register("billing", receiver.url)
            ids = [await bench.publish() for _ in range(5)]
            await bench.ended(ids)
            assert receiver.got[1].at - receiver.got[0].at >= 1.0
            assert bench.journey(ids[0]) == "QFQFS"
            assert len(receiver.got) == 6

    test(tmp_path)


@in_a_loop
async def test_a_success_is_one_whatever_its_retry_after_says(folder: Path) -> None:
    odd = {"Retry-After": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}
    async with Receiver(lambda got: web.Response(headers=odd)) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url)
        id = await bench.publish()
        await bench.ended(id)
        assert bench.journey(id) == "QFS"


@pytest.mark.parametrize("broken", ["judge", "Endpoint._learn"])
def test_a_fault_in_judging_an_answer_costs_an_attempt_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    @in_a_loop
    async def test(folder: Path) -> None:
        async with Receiver() as receiver, pushing(folder) as bench:
            await bench.queue(policy=msgspec.structs.replace(QUICK, retries=1))
            await bench.register("billing", receiver.url)
            with monkeypatch.context() as patched:
                patched.setattr(f"waypost.push.endpoint.{broken}", fault)
                id = await bench.publish()
                await bench.ended(id, "E")
                assert bench.journey(id) == "QFRFE"
                assert bench.reasons(id)[-1] == "a fault in Waypost: ZeroDivisionError"
                assert bench.figures("billing").last_error == "a fault in Waypost: ZeroDivisionError"
            await bench.ended(await bench.publish())
            began = monotonic()
            await bench.pusher.stop(10)
            assert monotonic() - began < 5, "it is known that nothing is under way"

    test(tmp_path)
    assert "a fault" in caplog.text


@in_a_loop
async def test_an_answer_that_does_not_come_in_time_is_a_failure(folder: Path) -> None:
    never = asyncio.Event()

    async def hang(got: Got) -> web.StreamResponse:
        if got.attempt == 1:
            await never.wait()
        return web.Response()

    async with Receiver(hang) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url, timeout_us=seconds(0.2))
        began = monotonic()
        id = await bench.publish()
        await bench.ended(id)
        assert bench.journey(id) == "QFRFS"
        assert bench.reasons(id)[2] == "no answer within 0.2 s"
        assert 0.2 <= monotonic() - began < 5


@in_a_loop
async def test_an_endless_answer_is_read_a_little_and_its_status_counts(folder: Path) -> None:
    cut = asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * ANSWER_BYTES)
        except ConnectionError:
            cut.set()
            raise

    runner = web.ServerRunner(web.Server(endless))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with pushing(folder) as bench:
        await bench.register("billing", f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await bench.ended(await bench.publish())
        await asyncio.wait_for(cut.wait(), 10)
    await runner.cleanup()


@in_a_loop
async def test_an_answer_whose_body_hangs_counts_by_its_status_when_the_time_is_over(folder: Path) -> None:
    async def drip(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.Event().wait()
        return response

    runner = web.ServerRunner(web.Server(drip), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with pushing(folder) as bench:
        await bench.register(
            "billing", f"http://127.0.0.1:{runner.addresses[0][1]}/", timeout_us=seconds(0.3)
        )
        id = await bench.publish()
        await bench.ended(id)
        assert bench.journey(id) == "QFS"
    await runner.cleanup()


@in_a_loop
async def test_a_receiver_that_breaks_off_or_talks_nonsense_is_tried_again(folder: Path) -> None:
    async with speaking(b"", b"SSH-2.0-OpenSSH\r\n") as url, pushing(folder) as bench:
        await bench.register("billing", url)
        id = await bench.publish(b"")
        await bench.ended(id)
        assert bench.journey(id) == "QFRFRFS"


@pytest.mark.parametrize(
    ("spoken", "said"),
    [
        (b"HTTP/1.1 400 Bad\r\nWaypost-Confirm: \xff\xfe\r\nContent-Length: 0\r\n\r\n", "\ufffd"),
        (b"HTTP/1.1 400 Bad\r\nWaypost-Confirm: " + b"\xe9" * 7_000 + b"\r\n\r\n", "\ufffd" * 40),
        (b"HTTP/1.1 400 Bad\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n", "400"),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 6\r\n\r\n\xff\x00\x1b[2J", "400: \ufffd [2J"),
        (b"HTTP/1.1 4\xff0 Bad\r\n\r\n", "no answer"),
        (b"HTTP/1.1 400 Bad\r\n\xff\x1b\r\n\r\n", "no answer"),
    ],
    ids=["confirm", "long confirm", "retry-after", "body", "status", "header"],
)
def test_whatever_bytes_a_receiver_says_its_delivery_ends_and_can_be_read(
    tmp_path: Path, spoken: bytes, said: str
) -> None:
    @in_a_loop
    async def test(folder: Path) -> None:
        async with speaking(spoken) as url, pushing(folder) as bench:
            await bench.queue(policy=Policy(retries=0))
            await bench.register("billing", url)
            id = await bench.publish(b"")
            await bench.ended(id, "E")
            reason, error = bench.reasons(id)[-1], bench.figures("billing").last_error
            assert reason is not None
            assert reason == error
            assert said in reason
            assert reason.isprintable()
            assert len(reason) <= LONGEST_REASON

    test(tmp_path)


@in_a_loop
async def test_at_most_so_many_requests_run_at_a_time(folder: Path) -> None:
    async def slowly(got: Got) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return web.Response()

    async with Receiver(slowly) as receiver, pushing(folder) as bench:
        ids = [await bench.publish() for _ in range(40)]
        await bench.register("billing", receiver.url, concurrency=3)
        await bench.ended(ids)
        assert receiver.most == 3
        assert len(receiver.got) == 40


@in_a_loop
async def test_a_rate_is_kept(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        ids = [await bench.publish() for _ in range(30)]
        await bench.register("billing", receiver.url, concurrency=50, rate=20.0)
        await bench.ended(ids)
        assert receiver.got[-1].at - receiver.got[0].at >= 28 / 20 * 0.95


@in_a_loop
async def test_a_request_may_take_longer_than_the_lease(folder: Path) -> None:
    was, endpoint.SHORTEST_LEASE_US = endpoint.SHORTEST_LEASE_US, seconds(0.2)
    try:

        async def slowly(got: Got) -> web.StreamResponse:
            await asyncio.sleep(1.0)
            return web.Response()

        async with Receiver(slowly) as receiver, pushing(folder) as bench:
            await bench.broker.ask(DeclareQueue("orders", Policy(lease_us=seconds(0.2))))
            await bench.register("billing", receiver.url)
            id = await bench.publish()
            await bench.ended(id)
            assert bench.journey(id) == "QFS"
            assert len(receiver.got) == 1
    finally:
        endpoint.SHORTEST_LEASE_US = was


@in_a_loop
async def test_a_message_whose_lease_was_lost_is_not_sent_twice_at_a_time(folder: Path) -> None:
    release = asyncio.Event()

    async def wait(got: Got) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    clock = MovableClock()
    store = SqliteStore(folder / "waypost.db", clock=clock)
    async with Receiver(wait) as receiver, pushing(folder, store=store) as bench:
        await bench.register("billing", receiver.url, concurrency=2)
        id = await bench.publish()
        await receiver.came(1)
        clock.move(60)
        await bench.broker.ask(Tick())
        await bench.until(lambda: bench.journey(id) == "QFRF")
        release.set()
        await bench.ended(id)
        assert bench.journey(id) == "QFRFS"
        assert len(receiver.got) == 1


@in_a_loop
async def test_in_a_kicking_queue_a_message_is_sent_once_whatever_comes_back(folder: Path) -> None:
    async with Receiver(lambda got: web.Response(status=500)) as receiver, pushing(folder) as bench:
        await bench.queue(policy=Policy(kick=True))
        await bench.register("billing", receiver.url)
        ids = [await bench.publish() for _ in range(3)]
        await bench.ended(ids, "K")
        await receiver.came(3)
        assert sorted(got.id for got in receiver.got) == sorted(ids)
        assert [bench.journey(id) for id in ids] == ["QFK"] * 3


@in_a_loop
async def test_a_consumer_may_ask_for_at_most_once_itself(folder: Path) -> None:
    async with Receiver(lambda got: web.Response(status=500)) as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url, kick=True)
        id = await bench.publish()
        await receiver.came(1)
        await bench.until(lambda: bench.figures("billing").failed == 1)
        info = bench.store.message(id)
        assert info is not None
        assert "".join(LETTERS[event.to_state] for event in info.journey) == "LQFKX"
        assert bench.reasons(id) == [None] * 3
        assert len(receiver.got) == 1


@in_a_loop
async def test_only_messages_of_its_topics_are_pushed(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url, topics=("orders.made", "orders.paid.*"))
        wanted = [
            await bench.publish(topics=("orders.made",)),
            await bench.publish(topics=("orders.paid.cash",)),
        ]
        other = await bench.publish(topics=("orders.lost",))
        await bench.ended(wanted)
        assert bench.journey(other) == "Q"
        assert sorted(got.id for got in receiver.got) == sorted(wanted)


@in_a_loop
async def test_a_channel_is_pushed_like_a_queue(folder: Path) -> None:
    answers = iter([confirms("retry"), web.Response(), confirms("not-interested")])
    async with Receiver(lambda got: next(answers)) as receiver, pushing(folder) as bench:
        await bench.broker.ask(DeclareChannel(name="audit", topics=("orders.*",), policy=QUICK))
        await bench.register("auditor", receiver.url, queue=None, channel="audit")
        await bench.publish(topics=("orders.made",))
        await receiver.came(2)
        await bench.publish(topics=("orders.paid",))
        await receiver.came(3)

        def states() -> dict[str, int]:
            info = bench.store.channel("audit")
            assert info is not None
            return {state.name: count for state, count in info.states.items() if count}

        await bench.until(lambda: states() == {"S": 1, "N": 1})
        assert bench.counts() == {"Q": 2}, "the queue is another matter"


@in_a_loop
async def test_a_receiver_cannot_make_waypost_remember_a_cookie(folder: Path) -> None:
    async with (
        Receiver(lambda got: web.Response(headers={"Set-Cookie": "a=b"})) as receiver,
        pushing(folder) as bench,
    ):
        await bench.register("billing", receiver.url)
        for _ in range(2):
            await bench.ended(await bench.publish())
        assert "cookie" not in receiver.got[1].headers
