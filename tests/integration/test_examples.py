"""The programs in examples/ do what they say, against a broker that is a process."""

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from tests.integration.commands import ROOT, Broker, Waypost, end, environment, serve
from waypost import BlockingClient, Message, QueueNotFound

pytestmark = pytest.mark.timeout(90)


def loaded(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def example(name: str, broker: Broker, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Running until the test is through; then it ends when asked."""
    program = subprocess.Popen(
        [sys.executable, ROOT / "examples" / f"{name}.py", *arguments],
        env=environment(WAYPOST_URL=broker.url),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=20)
        assert program.returncode == 0
    finally:
        program.kill()
        program.communicate()


def produce(broker: Broker, count: int) -> None:
    program = [sys.executable, str(ROOT / "examples/producer.py"), str(count)]
    done = subprocess.run(
        program, env=environment(WAYPOST_URL=broker.url), capture_output=True, text=True, check=True
    )
    assert done.stdout.count("is message") == count


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(program: subprocess.Popen[str]) -> Iterator[str]:
    assert program.stdout is not None
    return iter(program.stdout)


def test_the_worker_bills_what_the_producer_sends_and_stops_cleanly(broker: Broker, waypost: Waypost) -> None:
    produce(broker, 20)
    with example("worker", broker) as worker:
        assert "billed order" in next(lines(worker))
    states = waypost("queues", "orders", "--json").json["figures"]["states"]
    assert states["S"] >= 1
    assert states["F"] == 0


def test_the_receiver_gets_every_order_by_signed_requests_and_says_what_becomes_of_it(tmp_path: Path) -> None:
    broker = serve(tmp_path, "--push-allow", "127.0.0.0/8")
    try:
        with BlockingClient(broker.url) as client, example("receiver", broker) as receiver:
            assert "orders are posted to" in next(lines(receiver))
            produce(broker, 20)

            def all_ended() -> bool:
                return bool(client.queue("orders")["figures"]["depth"] == 0)

            until(all_ended)
            states = client.queue("orders")["figures"]["states"]
            assert states["S"] + states["I"] == 20
            again = [event for event in client.log(queue="orders") if event["toState"] == "R"]
            assert all(event["reason"].startswith("503") for event in again)
            assert client.consumer("receiver")["figures"]["succeeded"] == states["S"]
        with BlockingClient(broker.url) as client:
            assert client.consumers() == []  # it has said good-bye
    finally:
        end(broker)


def test_the_receiver_believes_what_the_package_signs_and_nothing_else() -> None:
    receiver = loaded("receiver")
    now = time.time()
    body = b'{"number": 1}'
    at = int(now)

    def headers(secret: str, seconds: int = 0) -> dict[str, str]:
        moment = datetime.fromtimestamp(at + seconds, UTC)
        return {
            "webhook-id": "m1",
            "webhook-timestamp": str(at + seconds),
            "webhook-signature": Webhook(secret).sign("m1", moment, body.decode()),
        }

    good = headers(receiver.SECRET)
    assert receiver.verified(receiver.SECRET, good, body, now)
    two = {**good, "webhook-signature": "v1,AAAA " + good["webhook-signature"]}
    assert receiver.verified(receiver.SECRET, two, body, now)
    assert not receiver.verified(receiver.SECRET, good, body + b" ", now)
    assert not receiver.verified(receiver.SECRET, {**good, "webhook-id": "m2"}, body, now)
    assert not receiver.verified(receiver.SECRET, headers("whsec_" + "A" * 32), body, now)
    assert not receiver.verified(receiver.SECRET, headers(receiver.SECRET, -3_600), body, now)
    assert not receiver.verified(receiver.SECRET, {}, body, now)


@pytest.fixture
def routed(tmp_path: Path) -> Iterator[Broker]:
    broker = serve(
        ROOT / "examples", "--router", "router:route", "--store", f"sqlite:///{tmp_path}/waypost.db"
    )
    try:
        yield broker
    finally:
        end(broker)


def test_the_router_sends_large_orders_to_two_people_and_does_not_wait_for_the_logger(routed: Broker) -> None:
    assert "routed by router:route" in routed.ready
    with BlockingClient(routed.url) as client:
        client.declare("approvals")
        for name in ("approver-ada", "approver-eve", "clerk"):
            client.declare_consumer(name, {"queue": "approvals", "topics": ["order.*"]})
        large = client.publish("order.new", {"total": 20_000})
        assert large.state == "L"
        for name in ("approver-ada", "approver-eve"):
            (order,) = fetched(client, "approvals", name)
            assert order.id == large.id
        missing = client.message(large.id)["missing"]
        assert [one["consumer"] for one in missing] == ["approver-ada", "approver-eve"]
        assert client.fetch("approvals", consumer="clerk") == []

        small = client.publish("order.new", {"total": 20})
        (order,) = fetched(client, "order", "clerk")
        assert order.id == small.id

        client.publish("log.line", "rain")
        (line,) = fetched(client, "log", "clogger")
        assert client.message(line.id)["state"] == "X"  # nobody had to confirm

        double = client.publish("audit.a", "x", topics=["audit.b"])
        for who in ("one", "two"):
            (part,) = fetched(client, "audit", who)
            assert part.id == double.id


def test_what_the_router_cannot_read_is_a_dead_letter_with_the_traceback_and_is_routed_again(
    routed: Broker,
) -> None:
    with BlockingClient(routed.url) as client:
        id = client.publish("order.new", "no JSON").id

        def dead() -> list[dict[str, Any]]:
            return client.search(f"id={id} state=E")

        until(lambda: len(dead()) == 1)
        (delivery,) = dead()
        assert delivery["queue"] == "default"
        assert "JSONDecodeError" in delivery["reason"]
        assert "router.py" in delivery["reason"]
        client.job_done(client.redrive(f"id={id}"))

        def failures() -> int:
            return sum(event["toState"] == "E" for event in client.message(id)["journey"])

        until(lambda: failures() == 2)


def fetched(client: BlockingClient, queue: str, consumer: str | None = None) -> list[Message]:
    """What comes into a queue that perhaps is not there yet."""
    deadline = time.monotonic() + 20
    while True:
        try:
            found = client.fetch(queue, wait=5, consumer=consumer)
        except QueueNotFound:
            found = []
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)
