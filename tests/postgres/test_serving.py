"""Whole brokers on one database, as processes: what they acknowledge outlives them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.postgres.fixtures import database

__all__ = ["database"]


class Process:
    """`waypost serve`."""

    def __init__(self, store: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "waypost", "serve", "--port", "0", *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "WAYPOST_STORE": store},
        )
        assert self.process.stderr is not None
        line = ""
        for line in self.process.stderr:
            if " ready on " in line:
                break
        self.url = line.partition(" ready on ")[2].partition(";")[0]
        assert self.url, "it did not start"

    def ask(self, path: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "text/plain"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    def json(self, path: str) -> Any:
        status, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def kill(self) -> None:
        self.process.kill()
        self._close()

    def stop(self) -> str:
        """What it has said."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._close()

    def _close(self) -> str:
        assert self.process.stderr is not None
        if self.process.stderr.closed:
            return ""
        said = self.process.communicate(timeout=20)[1]
        return said or ""


@pytest.fixture
def brokers(database: str) -> Iterator[list[Process]]:
    started = [Process(database), Process(database)]
    yield started
    for broker in started:
        broker.stop()


def test_what_a_killed_broker_acknowledged_is_delivered_by_another(
    brokers: list[Process], database: str
) -> None:
    acknowledged: list[str] = []

    def produce(broker: Process, name: str) -> None:
        for number in range(10_000):
            body = f"{name}-{number}"
            try:
                status, _ = broker.ask("/in/orders.created", body.encode())
            except OSError:
                return
            if status == 201:
                acknowledged.append(body)

    doomed, other = brokers
    threads = [threading.Thread(target=produce, args=(doomed, name)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while len(acknowledged) < 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    doomed.kill()
    for thread in threads:
        thread.join(30)
    assert len(acknowledged) >= 30
    bodies: list[str] = []
    while True:
        status, answer = other.ask("/queue/orders?n=100&consumer=ann")
        if status == 204:
            break
        messages = json.loads(answer)["messages"]
        bodies += [message["body"] for message in messages]
        receipts = json.dumps({"receipts": [message["receipt"] for message in messages]})
        assert other.ask("/queue/orders/confirm", receipts.encode())[0] == 200
    assert set(acknowledged) <= set(bodies), "lost"
    assert len(bodies) == len(set(bodies)), "twice"


def test_every_view_of_one_broker_shows_what_the_other_did(brokers: list[Process]) -> None:
    here, there = brokers
    assert here.ask("/v1/channels/c", b'{"topics":["orders.*"]}', "PUT")[0] == 201
    assert here.ask("/v1/objects/orders", b'{"unchanged":{}}', "PUT")[0] == 201
    status, answer = here.ask("/in/orders.created?key=1", b'{"n":1}')
    assert status == 201
    id = json.loads(answer)["id"]
    status, answer = there.ask("/in/orders.created?key=1", b'{"n":1}')
    assert json.loads(answer)["state"] == "U"
    assert [queue["name"] for queue in there.json("/v1/queues")["queues"]] == ["orders"]
    assert there.json("/v1/channels/c")["figures"]["depth"] == 1
    assert there.json("/v1/objects/orders")["unchanged"] == {"ignore": [], "window": "30d"}
    assert there.json(f"/v1/messages/{id}")["state"] == "Q"
    assert there.ask(f"/v1/messages/{id}/payload") == (200, b'{"n":1}')
    assert len(there.json("/v1/messages?filter=queue%3Dorders")["deliveries"]) == 1
    lines = there.ask("/log?from=1")[1].splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(1, 6))
    assert there.json("/v1/stats")["log"]["head"] == 5
    assert b"waypost_log_head 5.0" in there.ask("/metrics")[1]
    assert there.ask("/v1/spectators/audit", b'{"offset":2}', "PUT")[0] == 201
    assert here.json("/v1/spectators/audit")["lag"] == 3
    status, answer = there.ask("/v1/redrive", b'{"filter":"queue=nowhere"}')
    assert (status, json.loads(answer)["code"]) == (404, "QUEUE_NOT_FOUND")
    assert there.ask("/v1/jobs/7")[0] == 404


def test_a_long_poll_at_one_broker_is_answered_by_a_publish_at_the_other(brokers: list[Process]) -> None:
    here, there = brokers
    assert here.ask("/v1/queues/orders", b"{}", "PUT")[0] == 201
    answers: list[tuple[int, bytes]] = []
    thread = threading.Thread(target=lambda: answers.append(there.ask("/queue/orders?n=1&wait=20")))
    thread.start()
    time.sleep(0.5)
    assert here.ask("/in/orders.created", b"news")[0] == 201
    began = time.monotonic()
    thread.join(20)
    assert answers[0][0] == 200
    assert json.loads(answers[0][1])["messages"][0]["body"] == "news"
    assert time.monotonic() - began < 5
