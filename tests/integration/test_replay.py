"""waypost replay --from-lake: messages of a lake published again, through kills of the replay and of its target."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.commands import WAYPOST, Broker, Done, end, environment, serve
from tests.postgres.fixtures import database
from waypost import BlockingClient
from waypost.cli import replaying, run

__all__ = ["database"]

pytestmark = pytest.mark.timeout(180)

COUNT = 400


class Source:
    """A lake of which the broker is gone, and what was published to it."""

    def __init__(self, lake: Path, customers: list[dict[str, Any]]) -> None:
        self.lake, self.customers = lake, customers


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("source")
    broker = serve(folder)
    customers: list[dict[str, Any]] = [
        {
            "topics": ["customer.changed", "crm.news"],
            "key": str(number % 7),
            "body": json.dumps({"number": number}),
            "mimeType": "application/json",
            "producer": "erp",
            "timestamp": "2026-01-31T10:00:00.000001Z",
            "meta": {"n": str(number)},
            "priority": 5,
        }
        for number in range(COUNT)
    ]
    try:
        with BlockingClient(broker.url) as client:
            client.declare_object("customer", {"unchanged": {}})
            for start in range(0, COUNT, 100):
                client.publish_many(customers[start : start + 100])
                client.publish_many([{"topics": ["noise.made"], "bodyBase64": "/wA="} for _ in range(20)])
                client.seal_lake()
            client.publish_many([customers[-1]])  # unchanged
            client.publish_many([{"queue": "plain", "body": "to a queue of its own"}])
            erased = client.publish_many([{"topics": ["secret.made"], "body": "s"}])[0].id
            wire = client.client._transport
            client.wait_for(wire.ask("DELETE", f"/v1/messages/{erased}/payload", repeatable=True))
            done = client.fetch("customer", 10)
            client.confirm("customer", [message.receipt for message in done])
            client.seal_lake()
        end(broker)
    finally:
        broker.process.kill()
    return Source(folder / "waypost-data" / "lake", customers)


@pytest.fixture
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """On the embedded store, or on the one that a test asks for."""
    store = []
    if getattr(request, "param", "sqlite") == "postgres":
        store = ["--store", request.getfixturevalue("database")]
    started = serve(tmp_path, "--lake", "off", *store)
    try:
        yield started
        end(started)
    finally:
        started.process.kill()


@pytest.fixture
def replay(source: Source, target: Broker, capfd: Any) -> Any:
    def command(*arguments: str) -> Done:
        capfd.readouterr()
        code = run(["replay", *arguments, "--from-lake", str(source.lake), "--to", target.url])
        return Done(code, *capfd.readouterr())

    return command


def logged(client: BlockingClient) -> list[dict[str, Any]]:
    """L events, in order."""
    return [event for event in client.log() if event["fromState"] is None]


def bodies(client: BlockingClient, queue: str) -> list[str]:
    found: list[str] = []
    while got := client.fetch(queue, 1_000, lease=60):
        found += [message.text() for message in got]
    return found


@pytest.mark.parametrize("target", ["sqlite", "postgres"], indirect=True)
def test_it_counts_first_then_publishes_in_order_and_a_repeat_adds_nothing(
    source: Source, target: Broker, replay: Any
) -> None:
    said = replay("object=customer")
    assert said.code == 0, said
    assert said.out.startswith(f"{COUNT} messages would be replayed to {target.url}, as replay-")
    assert "by object: customer 400" in said.out
    assert "by state: Q 400" in said.out, "what is in crm still waits"
    assert "left out: 1 that were unchanged" in said.out
    assert "with --go does it" in said.out
    with BlockingClient(target.url) as client:
        assert client.bounds()[1] == 0, "a dry run sends nothing"
        assert client.spectators() == []
        document = replay("object=customer", "--go", "--json").json
        assert (document["messages"], document["dryRun"], document["after"]) == (COUNT, False, 0)
        events = logged(client)
        assert [(e["key"], e["topics"], e["producer"]) for e in events] == [
            (one["key"], one["topics"], "erp") for one in source.customers
        ]
        assert {e["timestamp"] for e in events} == {"2026-01-31T10:00:00.000001Z"}
        assert all(e["messageId"].startswith(document["replay"] + "-") for e in events)
        (spectator,) = client.spectators()
        assert (spectator["name"], spectator["offset"]) == (document["replay"], events[-1]["offset"])
        fetched = client.fetch("customer", 1_000, lease=60)
        assert [message.text() for message in fetched] == [one["body"] for one in source.customers]
        assert [message.meta for message in fetched] == [one["meta"] for one in source.customers]
        head = client.bounds()[1]
        again = replay("object=customer", "--go")
        assert again.out.startswith("0 messages replayed")
        assert client.bounds()[1] == head
        assert replay("object=customer", "--go", "--name", "twice", "--json").json["messages"] == COUNT


def test_states_queues_and_names_of_queues_are_kept(target: Broker, replay: Any) -> None:
    document = replay("queue=customer state=S", "--go", "--json").json
    assert (document["messages"], document["objects"]) == (10, {"customer": 10})
    assert replay("queue=plain", "--go", "--json").json["messages"] == 1
    with BlockingClient(target.url) as client:
        assert bodies(client, "plain") == ["to a queue of its own"]
        noise = replay("topic=noise.*", "--go", "--json").json
        assert noise["messages"] == 80
        assert client.fetch("noise")[0].body == b"\xff\x00"
        assert replay("object=customer state=U", "--go", "--json").json["messages"] == 1


def test_a_body_that_was_erased_is_named_and_not_passed_over_silently(replay: Any) -> None:
    for go in ((), ("--go",)):
        document = replay("object=secret", "--json", *go).json
        assert (document["messages"], len(document["withoutBody"])) == (0, 1)
    said = replay("object=secret").out
    assert "left out: 1 whose body was erased or reaped: 01" in said


def test_into_the_broker_of_the_lake_it_does_not_replay_itself(tmp_path: Path, capfd: Any) -> None:
    broker = serve(tmp_path)
    lake = str(tmp_path / "waypost-data" / "lake")
    try:
        with BlockingClient(broker.url) as client:
            client.publish_many([{"topics": ["a.x"], "body": str(n)} for n in range(5)])
            client.seal_lake()
            for more in (5, 0, 2, 0):
                capfd.readouterr()
                assert (
                    run(["replay", "object=a", "--from-lake", lake, "--to", broker.url, "--go", "--json"])
                    == 0
                )
                assert json.loads(capfd.readouterr().out)["messages"] == more
                if not more:
                    client.publish_many([{"topics": ["a.x"], "body": f"later {n}"} for n in range(2)])
                client.seal_lake()
        end(broker)
    finally:
        broker.process.kill()


def started(source: Source, target: Broker, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *WAYPOST,
            "replay",
            "object=customer",
            "--from-lake",
            str(source.lake),
            "--to",
            target.url,
            "--go",
            *more,
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def grown(client: BlockingClient, head: int) -> int:
    while (now := client.bounds()[1]) <= head:
        time.sleep(0.01)
    return now


def test_a_replay_that_is_killed_goes_on_and_doubles_nothing(
    source: Source, target: Broker, replay: Any
) -> None:
    with BlockingClient(target.url) as client:
        head = 0
        for _ in range(2):
            running = started(source, target, "--rate", "200")
            head = grown(client, grown(client, head))
            running.kill()
            running.communicate()
        assert 0 < len(logged(client)) < COUNT
        assert replay("object=customer", "--go").code == 0
        assert [event["key"] for event in logged(client)] == [one["key"] for one in source.customers]
        assert bodies(client, "customer") == [one["body"] for one in source.customers]


def test_a_target_that_goes_away_is_told_and_the_same_command_goes_on(
    source: Source, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.setattr(replaying, "PATIENCE_SECONDS", 0.3)
    first = serve(tmp_path, "--lake", "off")
    sent = replaying._publish

    monkeypatch.setattr(replaying, "SLICE", 50)
    slices: list[int] = []

    async def counting(client: Any, asked: Any, messages: Any) -> None:
        await sent(client, asked, messages)
        slices.append(len(messages))
        if len(slices) == 3:
            os.kill(first.process.pid, signal.SIGKILL)
            first.process.communicate()

    monkeypatch.setattr(replaying, "_publish", counting)
    arguments = ["replay", "object=customer", "--from-lake", str(source.lake), "--go", "--to"]
    assert run([*arguments, first.url]) == 1
    said = capfd.readouterr().err
    assert re.search(
        r"no broker answers at .*: 150 messages were replayed, and the same command goes on", said
    )
    assert said.count("\n") == 1
    second = serve(tmp_path, "--lake", "off")
    try:
        assert run([*arguments, second.url]) == 0
        with BlockingClient(second.url) as client:
            assert [event["key"] for event in logged(client)] == [one["key"] for one in source.customers]
        end(second)
    finally:
        second.process.kill()


@pytest.mark.parametrize("target", ["sqlite", "postgres"], indirect=True)
def test_what_was_sent_before_its_position_was_stored_is_found_in_the_targets_log(
    source: Source, target: Broker, replay: Any, monkeypatch: Any
) -> None:
    """As after a break of more than a day, when ids may be forgotten."""
    name = replay("object=customer", "--go", "--json").json["replay"]
    with BlockingClient(target.url) as client:
        offset = logged(client)[99]["offset"]
        client.set_spectator(name, offset)
        assert replay("object=customer", "--json").json["messages"] == COUNT - 100, "by its ids, within a day"
        monkeypatch.setattr(replaying, "IDS_KNOWN", timedelta(0))
        assert replay("object=customer", "--json").json["messages"] == 0
        client.set_spectator(name, 0)
        assert replay("object=customer", "--json").json["messages"] == 0
        head = client.bounds()[1]
        monkeypatch.undo()
        client.set_spectator(name, offset)
        assert replay("object=customer", "--go").code == 0
        assert client.bounds()[1] == head, "sent again under the same ids, it changed nothing"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["object=customer", "--from-lake", "/nowhere"], 1, "there is no folder /nowhere"),
        (["object=customer", "--from-lake", "EMPTY"], 1, "is no lake: it has no lake.json"),
        (["object=customer", "--from-lake", "TORN"], 1, "is no Delta table"),
        (["object=customer", "--from-lake", "LAKE", "--to", "http://127.0.0.1:9"], 1, "no broker answers"),
        (["consumer=ann", "--from-lake", "LAKE"], 1, "not searched by consumer"),
        (["colour=red", "--from-lake", "LAKE"], 2, "unknown term 'colour'"),
        (["--from-lake", "LAKE"], 2, "nothing is done to everything by accident"),
        (["object=customer", "--go"], 2, "belong to --from-lake"),
        (["object=customer", "--from-lake", "LAKE", "--go", "--dry-run"], 2, "--dry-run without --go"),
        (["object=customer", "--from-lake", "LAKE", "--consumer", "ann"], 2, "without --consumer"),
        (["object=customer", "--from-lake", "LAKE", "--name", "Up Per"], 2, "not a name for a replay"),
        (["object=customer", "--from-lake", "LAKE", "--rate", "0"], 2, "--rate"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    source: Source,
    target: Broker,
    tmp_path: Path,
    monkeypatch: Any,
    capfd: Any,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("WAYPOST_URL", target.url)
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "lake.json").write_text('{"format": 1, "store": "x"}')
    places = {"LAKE": str(source.lake), "EMPTY": str(tmp_path / "empty"), "TORN": str(tmp_path / "torn")}
    assert run(["replay", *(places.get(word, word) for word in arguments)]) == code
    said = capfd.readouterr().err
    assert said.startswith("waypost: ")
    assert said.count("\n") == 1
    assert says in said


def test_a_damaged_lake_is_one_line_and_nothing_is_sent_of_what_cannot_be_read(
    source: Source, target: Broker, tmp_path: Path, capfd: Any
) -> None:
    lake = tmp_path / "damaged"
    shutil.copytree(source.lake, lake)
    file = max((lake / "payloads").glob("*.parquet"), key=lambda found: found.stat().st_size)
    spoilt = bytearray(file.read_bytes())
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (body,) = (column for column in columns if column.path_in_schema == "body")
    spoilt[body.data_page_offset + body.total_compressed_size // 2] ^= 0xFF
    file.write_bytes(spoilt)
    assert run(["replay", "object=customer", "--from-lake", str(lake), "--to", target.url, "--go"]) == 1
    said = capfd.readouterr().err
    assert said.startswith(f"waypost: {file}")
    assert said.count("\n") == 1
