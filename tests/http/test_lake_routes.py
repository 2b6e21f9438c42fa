"""The lake's routes, and a log that goes on from the lake where the store has let go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.brokers import BrokerInThread, request
from tests.lake.brokers import LakeBroker
from tests.lake.test_keeper import DAY, forget
from tests.lake.traffic import of_every_kind, opened
from waypost.instants import SECOND, instant_text
from waypost.lake.keeper import Keeper
from waypost.store import Store
from waypost.stores.memory import MemoryStore
from waypost.testing import MovableClock

START = 1_750_000_000 * SECOND


class Halved:
    """A broker whose store has let go of the older half of its log, and what the log was before."""

    def __init__(self, broker: LakeBroker, clock: MovableClock) -> None:
        self.broker = broker
        self.ids = [line["messageId"] for line in broker.events("/log?topic=*")]
        self.before = broker.events("/log")
        self.with_bodies = broker.events("/log?payload=1")
        broker.seal()
        clock.move(8 * DAY)
        for number in range(10):
            broker.publish("/in/fruit.apple", str(number))
        self.since = broker.store.bounds()[1] - 20
        broker.seal()
        for number in range(5):
            broker.publish("/in/veg.carrot", str(number))
        forget(broker)
        self.oldest, self.head = broker.store.bounds()


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halved]:
    folder = tmp_path_factory.mktemp("halved")
    clock = MovableClock(START)
    store = opened(folder / "waypost.db", clock=clock)
    of_every_kind(store)
    store.close()
    with LakeBroker(folder, store={"clock": clock}) as broker:
        yield Halved(broker, clock)


def test_the_store_has_let_go_and_the_log_has_not(halved: Halved) -> None:
    assert halved.oldest == len(halved.before) + 1
    answer = halved.broker.ask("GET", "/log?n=0")
    assert (answer.headers["waypost-oldest"], answer.headers["waypost-head"]) == ("1", str(halved.head))
    events = halved.broker.events("/log")
    assert [event["offset"] for event in events] == list(range(1, halved.head + 1))
    assert events[: len(halved.before)] == halved.before


def test_bodies_come_from_the_lake_too(halved: Halved) -> None:
    assert halved.broker.events("/log?payload=1&from=1")[: len(halved.with_bodies)] == halved.with_bodies
    found = [line["body"] for line in halved.broker.events("/log?payload=1&topic=veg.*") if "body" in line]
    assert found == [str(number) for number in range(5)]


@pytest.mark.parametrize("chosen", ["queue=fruit", "channel=crm", "topic=fruit.*", "topic=customer.changed"])
def test_a_choice_is_one_over_lake_and_store(halved: Halved, chosen: str) -> None:
    everything = {line["offset"]: line for line in halved.broker.events("/log")}
    found = halved.broker.events(f"/log?{chosen}")
    assert found
    assert all(everything[line["offset"]] == line for line in found)
    name, _, value = chosen.partition("=")
    if name != "topic":
        assert [line["offset"] for line in found] == [
            o for o, line in everything.items() if line[name] == value
        ]
    for n in (1, 3, len(found), len(found) + 1):
        assert halved.broker.events(f"/log?{chosen}&n={n}") == found[:n]


def test_n_and_until_count_over_the_seam(halved: Halved) -> None:
    start = halved.oldest - 3
    assert [e["offset"] for e in halved.broker.events(f"/log?from={start}&n=5")] == list(
        range(start, start + 5)
    )
    assert [e["offset"] for e in halved.broker.events(f"/log?from={start}&until={start + 3}")] == list(
        range(start, start + 4)
    )
    assert [e["offset"] for e in halved.broker.events(f"/log?from={start}&n=2")] == [start, start + 1]


def test_a_moment_before_the_stores_first_is_found_in_the_lake(halved: Halved) -> None:
    def first(at: int) -> Any:
        return halved.broker.events(f"/log?ts={instant_text(at)}&n=1")[0]["offset"]

    assert first(START - SECOND) == 1
    assert first(START) == 1
    assert first(START + SECOND) == halved.oldest
    assert first(START + round(8 * DAY) * SECOND) == halved.oldest


def test_a_spectator_that_stands_in_the_lake_reads_on_from_there(halved: Halved) -> None:
    assert halved.broker.ask("PUT", "/v1/spectators/audit", '{"offset":2}').status in (200, 201)
    assert halved.broker.events("/log?spectator=audit&n=1")[0]["offset"] == 3


def test_a_follower_goes_from_the_lake_to_the_store_to_what_comes(halved: Halved) -> None:
    with halved.broker.wire() as wire:
        wire.send(request("GET", f"/log?from={halved.oldest - 2}&follow=1"))
        wire.head()
        seen: list[int] = []
        while len(seen) < halved.broker.store.bounds()[1] - halved.oldest + 3:
            seen += [json.loads(line)["offset"] for line in wire.chunk().splitlines() if line]
        halved.broker.publish("/in/veg.carrot", "new")
        seen += [json.loads(line)["offset"] for line in wire.chunk().splitlines()]
        assert seen == list(range(halved.oldest - 2, seen[-1] + 1))
        assert seen[-1] == halved.broker.store.bounds()[1]


def test_arrow_is_the_same_over_lake_and_store(halved: Halved) -> None:
    table = halved.broker.arrow("/log?columns=offset,message_id")
    lines = halved.broker.events("/log")
    assert table["offset"].to_pylist() == [line["offset"] for line in lines]
    assert table["message_id"].to_pylist() == [line["messageId"] for line in lines]


# ── without a lake ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["memory", "off"])
def lakeless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerInThread]:
    def store() -> Store:
        return MemoryStore() if request.param == "memory" else opened(tmp_path / "waypost.db")

    options = {} if request.param == "memory" else {"lake": lambda broker: Keeper(broker, None)}
    with BrokerInThread(store, **options) as broker:
        yield broker


def test_a_broker_without_a_lake_says_so(lakeless: BrokerInThread) -> None:
    lakeless.publish("/in/fruit.apple")
    status = lakeless.get("/v1/lake")
    assert (status["lake"], status["sealed"], status["failure"]) == (None, None, None)
    assert (status["oldest"], status["head"], status["lag"]) == (1, 2, 0)
    assert status["store"]
    assert lakeless.get("/v1/stats")["lake"] is None
    assert lakeless.get("/health/ready")["lake"] is None
    for action in ("seal", "maintain"):
        answer = lakeless.ask("POST", f"/v1/lake/{action}")
        assert (answer.status, answer.code) == (501, "NOT_OFFERED")
        assert "waypost[lake]" in answer.json()["hint"] or "--lake" in answer.json()["hint"]


def test_a_payload_is_erased_with_and_without_a_lake(broker: BrokerInThread) -> None:
    id = broker.publish("/in/fruit.apple", "secret")
    for _ in range(2):
        answer = broker.ask("DELETE", f"/v1/messages/{id}/payload")
        assert (answer.status, answer.json()) == (202, {"id": id, "erased": True})
    gone = broker.ask("GET", f"/v1/messages/{id}/payload")
    assert gone.status == 410
    assert broker.get(f"/v1/messages/{id}")["state"] == "C"
    assert broker.ask("GET", "/queue/fruit").status == 204
    missing = broker.ask("DELETE", "/v1/messages/nobody/payload")
    assert (missing.status, missing.code) == (404, "MESSAGE_NOT_FOUND")


def test_what_nobody_has_routed_yet_is_not_erased(open_store: Any) -> None:
    with BrokerInThread(open_store) as broker:
        broker.ask("PUT", "/v1/objects/fruit", '{"route":"spark"}')
        id = broker.publish("/in/fruit/fruit.apple", "secret")
        answer = broker.ask("DELETE", f"/v1/messages/{id}/payload")
        assert answer.status == 409
        assert answer.json()["hint"]


def test_stats_and_metrics_show_the_lake(tmp_path: Path) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.publish("/in/fruit.apple")
        broker.seal()
        shown = broker.get("/v1/stats")["lake"]
        assert (shown["path"], shown["sealed"], shown["lag"]) == (str(tmp_path / "lake"), 2, 0)
        metrics = broker.ask("GET", "/metrics").body.decode()
        for line in (
            "waypost_lake_sealed_offset 2.0",
            "waypost_lake_lag_events 0.0",
            "waypost_lake_failing 0.0",
            "waypost_lake_sealed_events_total 2.0",
            "waypost_lake_failures_total 0.0",
        ):
            assert line in metrics
