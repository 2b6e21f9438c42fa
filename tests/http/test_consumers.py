"""Consumers over HTTP: registered to be counted or to be pushed to; their secrets stay secret."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from standardwebhooks import Webhook

from tests.http.brokers import BrokerInThread
from tests.http.harness import wait_until
from waypost.broker import Broker
from waypost.push import Pusher
from waypost.push.addresses import parse_allowed
from waypost.stores.memory import MemoryStore
from waypost.stores.sqlite import SqliteStore

SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{43}=")


class Receiver:
    """A web server that takes what is pushed to it."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []
        #: answers only while this is set
        self.open = threading.Event()
        self.open.set()
        taken, open = self.taken, self.open

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
                open.wait(20)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


def push_here(broker: Broker) -> Pusher:
    """To this machine, too."""
    return Pusher(broker, parse_allowed(["127.0.0.0/8"]))


@pytest.fixture
def pushing() -> Iterator[BrokerInThread]:
    """A broker that may push to this machine."""
    with BrokerInThread(MemoryStore, push=push_here) as running:
        running.ask("PUT", "/fruit")
        yield running


def register(broker: BrokerInThread, name: str, **consumer: Any) -> dict[str, Any]:
    answer = broker.ask("PUT", f"/v1/consumers/{name}", json.dumps(consumer))
    assert answer.status in (200, 201), answer
    return dict(answer.json())


# ── those that pull ─────────────────────────────────────────────────────────────────────────────


def test_a_consumer_that_pulls_is_given_back(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/fruit")
    made = broker.ask("PUT", "/v1/consumers/billing", '{"queue":"fruit","topics":["fruit.*"]}')
    assert made.status == 201
    form = broker.get("/v1/consumers/billing")
    assert form == made.json()
    created = form.pop("created")
    assert created.endswith("Z")
    assert form == {
        "name": "billing",
        "url": None,
        "queue": "fruit",
        "channel": None,
        "topics": ["fruit.*"],
        "secrets": 0,
        "concurrency": 1,
        "rate": None,
        "timeout": 10,
        "kick": False,
        "paused": False,
        "figures": None,
    }
    replaced = broker.ask("PUT", "/v1/consumers/billing", '{"queue":"fruit"}')
    assert (replaced.status, replaced.json()["topics"], replaced.json()["created"]) == (200, [], created)
    assert [one["name"] for one in broker.get("/v1/consumers")["consumers"]] == ["billing"]


def test_all_who_are_registered_must_confirm(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/queues/fruit", '{"complete":"all"}')
    register(broker, "billing", queue="fruit")
    register(broker, "shipping", queue="fruit")
    register(broker, "meat-only", queue="fruit", topics=["meat.*"])
    id = broker.publish("/in/fruit.apple")
    missing = broker.get(f"/v1/messages/{id}")["missing"]
    assert missing == [
        {"queue": "fruit", "slot": 0, "consumer": "billing"},
        {"queue": "fruit", "slot": 1, "consumer": "shipping"},
    ]
    assert broker.ask("GET", "/queue/fruit").code == "CONSUMER_REQUIRED"
    assert broker.ask("GET", "/queue/fruit?consumer=stranger").status == 204
    receipt = broker.ask("GET", "/queue/fruit?consumer=billing").headers["waypost-receipt"]
    assert broker.ask("GET", "/queue/fruit?consumer=billing").status == 204
    broker.confirm("fruit", receipt)
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["confirmedCount"], document["topicCount"]) == ("Q", 1, 1)
    assert [one["consumer"] for one in document["missing"]] == ["shipping"]
    receipt = broker.ask("GET", "/queue/fruit?consumer=shipping").headers["waypost-receipt"]
    broker.confirm("fruit", receipt)
    document = broker.get(f"/v1/messages/{id}")
    assert (document["state"], document["missing"], document["confirmedCount"]) == ("X", [], 2)
    assert [one["consumerId"] for one in document["consumed"]] == ["billing", "shipping"]


def test_a_deleted_consumer_is_gone(broker: BrokerInThread) -> None:
    broker.ask("PUT", "/v1/channels/audit", '{"topics":["*"]}')
    assert register(broker, "billing", channel="audit")["channel"] == "audit"
    assert broker.ask("DELETE", "/v1/consumers/billing").status == 204
    for answer in (broker.ask("DELETE", "/v1/consumers/billing"), broker.ask("GET", "/v1/consumers/billing")):
        assert (answer.status, answer.code) == (404, "CONSUMER_NOT_FOUND")
    assert broker.get("/v1/consumers") == {"consumers": []}


def test_a_consumer_of_what_is_not_there_is_refused(broker: BrokerInThread) -> None:
    for body, code in [('{"queue":"no"}', "QUEUE_NOT_FOUND"), ('{"channel":"no"}', "CHANNEL_NOT_FOUND")]:
        answer = broker.ask("PUT", "/v1/consumers/billing", body)
        assert (answer.status, answer.code) == (404, code)
    assert broker.get("/v1/consumers") == {"consumers": []}


def test_where_nothing_is_pushed_a_url_is_501(memory_broker: BrokerInThread) -> None:
    memory_broker.ask("PUT", "/fruit")
    answer = memory_broker.ask(
        "PUT", "/v1/consumers/billing", '{"queue":"fruit","url":"https://example.com"}'
    )
    assert (answer.status, answer.code) == (501, "NOT_OFFERED")
    assert memory_broker.get("/v1/consumers") == {"consumers": []}


# ── those that are pushed to ────────────────────────────────────────────────────────────────────


def test_what_is_published_is_pushed_and_signed_with_the_secret_that_was_shown_once(
    pushing: BrokerInThread, receiver: Receiver
) -> None:
    made = register(pushing, "billing", queue="fruit", url=receiver.url)
    assert SECRET.fullmatch(made["secret"])
    assert made["secrets"] == 1
    id = pushing.publish("/in/fruit.apple", '{"a":1}', content_type="application/json")
    wait_until(lambda: pushing.get(f"/v1/messages/{id}")["state"] == "X", "confirmed")
    ((headers, body),) = receiver.taken
    assert Webhook(made["secret"]).verify(body, headers) == {"a": 1}
    form = pushing.get("/v1/consumers/billing")
    assert "secret" not in form
    assert made["secret"] not in pushing.ask("GET", "/v1/consumers").body.decode()
    assert (form["figures"]["sent"], form["figures"]["succeeded"], form["figures"]["breaker"]) == (
        1,
        1,
        "closed",
    )
    assert form["figures"]["lastSuccess"].endswith("Z")
    assert pushing.get(f"/v1/messages/{id}")["consumed"][0]["consumerId"] == "billing"


def test_a_secret_stays_until_another_is_given_and_then_both_count(
    pushing: BrokerInThread, receiver: Receiver
) -> None:
    first = register(pushing, "billing", queue="fruit", url=receiver.url)["secret"]
    again = register(pushing, "billing", queue="fruit", url=receiver.url, concurrency=2)
    assert ("secret" in again, again["secrets"]) == (False, 1)
    second = "whsec_" + "A" * 43 + "="
    rotated = register(pushing, "billing", queue="fruit", url=receiver.url, secret=second)
    assert ("secret" in rotated, rotated["secrets"]) == (False, 2)
    pushing.publish("/in/fruit.apple", '{"a":1}')
    wait_until(lambda: receiver.taken, "pushed")
    headers, body = receiver.taken[0]
    for secret in (first, second):
        assert Webhook(secret).verify(body, headers) == {"a": 1}


def test_a_channel_is_pushed_to_its_subscriber(pushing: BrokerInThread, receiver: Receiver) -> None:
    pushing.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"]}')
    register(pushing, "auditor", channel="audit", url=receiver.url)
    pushing.publish("/in/fruit.apple", "x")
    wait_until(lambda: pushing.get("/v1/channels/audit")["figures"]["states"]["S"] == 1, "confirmed")
    assert [body for _, body in receiver.taken] == [b"x"]


def test_a_deleted_consumer_is_not_pushed_to_any_more(pushing: BrokerInThread, receiver: Receiver) -> None:
    register(pushing, "billing", queue="fruit", url=receiver.url)
    assert pushing.ask("DELETE", "/v1/consumers/billing").status == 204
    id = pushing.publish("/in/fruit.apple")
    assert pushing.ask("GET", "/queue/fruit").headers["x-message-id"] == id
    assert receiver.taken == []


def test_a_consumer_is_pushed_to_after_a_restart_too(receiver: Receiver, tmp_path: Path) -> None:
    def open_store() -> SqliteStore:
        return SqliteStore(tmp_path / "waypost.db", ballast_bytes=4096, pregrown_bytes=0)

    with BrokerInThread(open_store, push=push_here) as first:
        first.ask("PUT", "/fruit")
        secret = register(first, "billing", queue="fruit", url=receiver.url, paused=True)["secret"]
        id = first.publish("/in/fruit.apple", '{"a":1}')
    with BrokerInThread(open_store, push=push_here) as second:
        assert receiver.taken == []
        register(second, "billing", queue="fruit", url=receiver.url)
        wait_until(lambda: second.get(f"/v1/messages/{id}")["state"] == "X", "confirmed")
    with BrokerInThread(open_store, push=push_here) as third:
        id = third.publish("/in/fruit.apple", '{"a":2}')
        wait_until(lambda: third.get(f"/v1/messages/{id}")["state"] == "X", "confirmed")
    for (headers, body), content in zip(receiver.taken, ({"a": 1}, {"a": 2}), strict=True):
        assert Webhook(secret).verify(body, headers) == content


def test_what_is_under_way_when_the_broker_stops_is_confirmed_before_it_ends(
    receiver: Receiver, tmp_path: Path
) -> None:
    def open_store() -> SqliteStore:
        return SqliteStore(tmp_path / "waypost.db", ballast_bytes=4096, pregrown_bytes=0)

    receiver.open.clear()
    with BrokerInThread(open_store, push=push_here) as broker:
        broker.ask("PUT", "/fruit")
        register(broker, "billing", queue="fruit", url=receiver.url)
        id = broker.publish("/in/fruit.apple")
        wait_until(lambda: receiver.taken, "under way")
        broker.call(lambda: broker.loop.call_later(0.1, receiver.open.set))
    with BrokerInThread(open_store) as broker:
        assert broker.journey(id) == "LQFSX"


def test_pushing_shows_in_stats_and_metrics(pushing: BrokerInThread, receiver: Receiver) -> None:
    register(pushing, "billing", queue="fruit", url=receiver.url)
    pushing.publish("/in/fruit.apple")
    wait_until(lambda: pushing.get("/v1/queues/fruit")["figures"]["states"]["S"] == 1, "confirmed")
    assert pushing.get("/v1/stats")["push"]["billing"]["succeeded"] == 1
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(pushing.ask("GET", "/metrics").body.decode())
        for sample in family.samples
    }
    assert samples["waypost_push_requests_total", "billing", "success"] == 1
    assert samples["waypost_push_requests_total", "billing", "failure"] == 0
    assert samples["waypost_push_breaker_open", "billing"] == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "CONSUMER_INVALID"),
        ("[]", "CONSUMER_INVALID"),
        ("{", "JSON_INVALID"),
        ("{}", "CONSUMER_INVALID"),
        ('{"queue":"fruit","channel":"audit"}', "CONSUMER_INVALID"),
        ('{"queue":"UPPER"}', "NAME_INVALID"),
        ('{"queue":1}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","uri":"http://x"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","url":"ftp://example.com"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","url":"http://"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","url":"http://[::1"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","url":"http://u:p@example.com/"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","url":"http://10.0.0.1/"}', "ADDRESS_REFUSED"),
        ('{"queue":"fruit","url":"http://169.254.169.254/latest"}', "ADDRESS_REFUSED"),
        ('{"queue":"fruit","secret":"hush"}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","secret":[]}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","concurrency":0}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","rate":0}', "RATE_INVALID"),
        ('{"queue":"fruit","timeout":0}', "CONSUMER_INVALID"),
        ('{"queue":"fruit","timeout":"soon"}', "SPAN_INVALID"),
        ('{"queue":"fruit","topics":["fruit*"]}', "TOPIC_INVALID"),
        ('{"queue":"fruit","kick":"yes"}', "CONSUMER_INVALID"),
    ],
)
def test_a_malformed_consumer_is_refused(pushing: BrokerInThread, body: str, code: str) -> None:
    answer = pushing.ask("PUT", "/v1/consumers/billing", body)
    assert (answer.status, answer.code) == (400, code)
    assert answer.json()["hint"]
    assert pushing.get("/v1/consumers") == {"consumers": []}


def test_those_without_a_name_cannot_be_registered(memory_broker: BrokerInThread) -> None:
    memory_broker.ask("PUT", "/fruit")
    answer = memory_broker.ask("PUT", "/v1/consumers/anonymous", '{"queue":"fruit"}')
    assert (answer.status, answer.code) == (400, "NAME_RESERVED")
