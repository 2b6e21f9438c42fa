"""Channels, objects, consumers, spectators, and acting on many, by the command line of a real broker."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import (
    WAYPOST,
    Broker,
    Waypost,
    all_of,
    end,
    environment,
    messages,
    outside,
    serve,
)
from waypost import BlockingClient
from waypost.client import Job

pytestmark = pytest.mark.timeout(90)


def published(waypost: Waypost, topic: str, *more: str) -> str:
    return str(waypost("publish", topic, "x", *more, "--json").json["id"])


def refuse(waypost: Waypost, queue: str, *more: str) -> None:
    """What is there becomes a dead letter."""
    for message in messages(waypost, queue, *more):
        waypost("confirm", queue, message["receipt"], "--outcome", "invalid", "--reason", "broken", *more)


def bodies(fetched: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in fetched]


# ── channels ────────────────────────────────────────────────────────────────────────────────────


def test_a_channel_is_made_gets_what_its_topics_choose_and_is_confirmed(waypost: Waypost) -> None:
    made = waypost("channel", "crm", "--topics", "fruit.*,wood", "--set", "lease=60").out
    assert re.search(r"^topics +fruit\.\*, wood", made, re.MULTILINE)
    ids = [published(waypost, topic) for topic in ("fruit.apple", "fruit.pear.green", "wood", "stone.grey")]
    fetched = messages(waypost, "--channel", "crm")
    assert [message["id"] for message in fetched] == ids[:3]
    receipts = [message["receipt"] for message in fetched]
    assert waypost("confirm", "--channel", "crm", *receipts).out.count("S success") == 3
    assert re.search(r"^crm +0 +0 +0 +3 +0 +0 B +fruit\.\*, wood", waypost("channels").out, re.MULTILINE)
    assert waypost("channels", "--json").json["channels"][0]["topics"] == ["fruit.*", "wood"]


def test_a_channel_can_begin_in_the_past_by_offset_and_by_time(waypost: Waypost) -> None:
    before = [published(waypost, "past.a"), published(waypost, "past.b")]
    for name, start in (("all", "1"), ("today", "00:00")):
        made = waypost("channel", name, "--topics", "past.*", "--from", start, "--json").json
        assert made["figures"]["ready"] == 2, name
        assert [message["id"] for message in messages(waypost, "--channel", name)] == before
    assert (
        waypost("channel", "new", "--topics", "past.*", "--from", "now", "--json").json["figures"]["ready"]
        == 0
    )


def test_a_channel_is_changed_in_what_is_said_and_keeps_the_rest(waypost: Waypost) -> None:
    waypost("channel", "kept", "--topics", "kept.a", "--set", "retries=5")
    waypost("channel", "kept", "--set", "paused=true")
    changed = waypost("channel", "kept", "--topics", "kept.b", "--json").json
    assert (changed["topics"], changed["retries"], changed["paused"]) == (["kept.b"], 5, True)
    published(waypost, "kept.b")
    assert messages(waypost, "--channel", "kept") == []
    waypost("channel", "kept", "--set", "paused=false")
    assert len(messages(waypost, "--channel", "kept")) == 1


def test_a_channel_is_purged_and_deleted(waypost: Waypost, broker: Broker) -> None:
    waypost("channel", "gone", "--topics", "gone.*")
    published(waypost, "gone.a")
    assert waypost("purge", "--channel", "gone", "--dry-run").out == "1 would be purged: 1 in Q\n"
    assert waypost("purge", "--channel", "gone", "--yes").out == "1 purged\n"
    asked = outside("channel", "gone", "--delete", "--url", broker.url)
    assert (asked.code, "say --yes" in asked.line) == (2, True)
    assert waypost("channel", "gone", "--delete", "--yes").code == 0
    assert "waypost channels lists them" in waypost("channel", "gone").line


# ── unchanged ───────────────────────────────────────────────────────────────────────────────────


def test_an_unchanged_message_says_what_it_is_the_same_as_unless_forced(waypost: Waypost) -> None:
    agreed = waypost("object", "customer", "--unchanged", "--ignore", "$.exportedAt", "--window", "1d").out
    assert re.search(r"^ignored +\$\.exportedAt", agreed, re.MULTILINE)

    def publish(body: str, *more: str) -> str:
        return waypost("publish", "customer.changed", body, "--key", "7", "--producer", "erp", *more).out

    first = publish('{"name": "Ada", "exportedAt": 1}').split()[0]
    same = publish('{"exportedAt": 2, "name": "Ada"}')
    assert "U unchanged" in same
    assert same.rstrip().endswith(f"same as {first}")
    assert "Q queued" in publish('{"name": "Ada", "exportedAt": 3}', "--force")
    assert "Q queued" in publish('{"name": "Eva", "exportedAt": 3}')
    assert re.search(r"^customer +1 +\$\.exportedAt +1d", waypost("objects").out, re.MULTILINE)
    assert re.search(r"^of erp +1 unchanged", waypost("object", "customer").out, re.MULTILINE)
    shown = waypost("message", same.split()[0]).out
    assert re.search(rf"^same as +{first}", shown, re.MULTILINE)


def test_what_is_agreed_of_an_object_is_changed_field_by_field_and_forgotten(waypost: Waypost) -> None:
    waypost("object", "part", "--ignore", "$.a", "--ignore", "$.b")
    changed = waypost("object", "part", "--window", "2h", "--json").json
    assert changed["unchanged"] == {"ignore": ["$.a", "$.b"], "window": "2h"}
    assert waypost("object", "part", "--no-unchanged", "--json").json["unchanged"] is None
    assert waypost("object", "part", "--delete").code == 0
    assert "waypost objects lists them" in waypost("object", "part").line


# ── who confirmed, who is missing ───────────────────────────────────────────────────────────────


def test_a_message_shows_who_confirmed_and_who_is_missing(waypost: Waypost) -> None:
    waypost("queue", "contracts", "--set", "complete=all")
    for name in ("buyer", "seller"):
        assert "it pulls" in waypost("consumer", name, "--queue", "contracts").out
    id = published(waypost, "contracts.new")
    assert re.search(r"^missing +buyer in contracts, seller in contracts", waypost("message", id).out, re.M)
    assert id in waypost("fetch", "contracts", "--consumer", "buyer", "--confirm").out
    shown = waypost("message", id).out
    assert re.search(r"^confirmed +buyer after ", shown, re.MULTILINE)
    assert re.search(r"^missing +seller in contracts *$", shown, re.MULTILINE)


def test_missing_confirmations_of_nobody_in_particular_are_counted(waypost: Waypost) -> None:
    waypost("queue", "twice", "--set", "complete=2")
    id = published(waypost, "twice.x")
    assert re.search(r"^missing +any 2 in twice", waypost("message", id).out, re.MULTILINE)


# ── consumers ───────────────────────────────────────────────────────────────────────────────────


class Hook:
    """A webhook on loopback that says yes, or what it is told."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.status = 200
        self.several = threading.Condition()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(hook.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                with hook.several:
                    hook.came.append(body)
                    hook.several.notify_all()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def wait_for(self, count: int) -> None:
        with self.several:
            assert self.several.wait_for(lambda: len(self.came) >= count, 20)


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


def test_a_webhook_is_registered_gets_messages_and_shows_its_figures(waypost: Waypost, hook: Hook) -> None:
    waypost("queue", "hooked", "--set", "keep=1h")
    made = waypost(
        "consumer", "billing", "--queue", "hooked", "--push", hook.url, "--set", "concurrency=2"
    ).out
    assert re.search(r"^secret +whsec_\S+ +\(shown this once\)", made, re.MULTILINE)
    assert re.search(r"^concurrency +2", made, re.MULTILINE)
    published(waypost, "hooked.x")
    hook.wait_for(1)
    shown = waypost("consumer", "billing").out
    assert "whsec_" not in shown
    assert re.search(r"^breaker +closed", shown, re.MULTILINE)
    assert re.search(rf"^billing +hooked +{re.escape(hook.url)} +closed +1 ", waypost("consumers").out, re.M)

    paused = waypost("consumer", "billing", "--set", "paused=true", "--json").json
    assert (paused["paused"], paused["concurrency"], paused["url"]) == (True, 2, hook.url)
    assert re.search(r"^billing .* paused ", waypost("consumers").out, re.MULTILINE)
    assert waypost("consumer", "billing", "--delete").code == 0
    assert "waypost consumers lists them" in waypost("consumer", "billing").line


def test_a_secret_comes_from_stdin_so_that_nobody_reads_it_in_the_list_of_processes(
    waypost: Waypost, broker: Broker
) -> None:
    waypost("queue", "quiet", "--set", "keep=1h")
    arguments = ("consumer", "quiet", "--queue", "quiet", "--push", "http://127.0.0.1:9/", "--secret", "-")
    good = "whsec_" + "A" * 32
    done = outside(*arguments, "--json", "--url", broker.url, stdin=good + "\n")
    assert (done.code, "secret" in done.json, done.json["secrets"]) == (0, False, 1)
    wrong = outside(*arguments, "--url", broker.url, stdin="guess\n")
    assert (wrong.code, "guess" in wrong.err) == (2, False)
    assert "a secret is whsec_" in wrong.line


# ── the log ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waypost: Waypost) -> Iterator[Waypost]:
    """Commands against a broker of the test's own: no lease that another test left behind ends in its log."""
    broker = serve(tmp_path)
    monkeypatch.setenv("WAYPOST_URL", broker.url)
    try:
        yield waypost
        end(broker)
    finally:
        broker.process.kill()


def test_a_spectator_goes_on_where_it_was(alone: Waypost) -> None:
    waypost = alone
    published(waypost, "seen.x")
    first = [
        json.loads(line) for line in waypost("tail", "-F", "--spectator", "audit", "--json").out.splitlines()
    ]
    assert [event["offset"] for event in first] == list(range(1, len(first) + 1))
    assert waypost("tail", "-F", "--spectator", "audit").out == ""
    published(waypost, "seen.y")
    assert re.search(rf"^audit +{len(first):,} +2 ", waypost("spectators").out, re.MULTILINE)
    assert waypost("tail", "-F", "--spectator", "audit").out.count("\n") == 2
    assert waypost("spectator", "audit", "--json").json["lag"] == 0
    assert waypost("spectator", "audit", "--offset", "1", "--json").json["offset"] == 1
    assert waypost("spectator", "audit", "--delete").code == 0
    assert "waypost spectators lists them" in waypost("spectator", "audit").line


def test_the_log_is_shown_by_channel_and_from_a_time(waypost: Waypost) -> None:
    waypost("channel", "watch", "--topics", "watch.*")
    published(waypost, "watch.x")
    assert re.search(
        r"L → Q queued +channel watch", waypost("tail", "-F", "--channel", "watch", "--from", "1").out
    )
    assert "watch.x" in waypost("tail", "-F", "--topic", "watch.*", "--from", "00:00").out
    assert waypost("tail", "-F", "--from", "2100-01-01").out == ""


# ── search and act ──────────────────────────────────────────────────────────────────────────────


def test_deliveries_are_found_by_terms_that_need_no_quotes(waypost: Waypost) -> None:
    waypost("channel", "finds", "--topics", "found.*")
    id = published(waypost, "found.a", "--object", "thing", "--key", "k 1")
    published(waypost, "found.b", "--object", "thing", "--key", "k 2")
    found = waypost("search", "object=thing", 'key="k 1"', "since=00:00").out
    assert found.count(id) == 3
    assert re.search(r" thing +Q queued", found)
    assert re.search(r" channel finds +Q queued", found)
    lines = waypost("search", "found", "topic=found.b", "--json").out.splitlines()
    assert [json.loads(line)["queue"] for line in lines] == ["found"]
    assert waypost("search", "channel=finds", "-n", "1", "--json").out.count("\n") == 1
    assert waypost("search", "until=2020-01-01") == (0, "", "")


def test_exactly_the_dead_letters_of_one_consumer_are_redriven_to_it(waypost: Waypost) -> None:
    for _ in range(2):
        published(waypost, "acted.x")
    for consumer in ("billing", "other"):
        (message,) = messages(waypost, "acted", "--consumer", consumer, n=1)
        waypost("confirm", "acted", message["receipt"], "--outcome", "invalid", "--consumer", consumer)
    chosen = ("queue=acted", "consumer=billing", "state=I", "since=00:00")
    assert waypost("redrive", *chosen, "--dry-run").out == "1 would be redriven: 1 in I\n"
    assert waypost("redrive", *chosen, "--consumer", "billing", "--rate", "100").out == "1 redriven\n"
    assert messages(waypost, "acted", "--consumer", "other") == []
    assert len(messages(waypost, "acted", "--consumer", "billing")) == 1


def test_what_was_confirmed_is_replayed_in_its_order(waypost: Waypost) -> None:
    ids = [published(waypost, "played.x") for _ in range(3)]
    waypost("fetch", "played", "-n", "3", "--confirm")
    assert waypost("replay", "played", "--dry-run", "--json").json["states"] == {"S": 3}
    assert waypost("replay", "played").out == "3 replayed\n"
    assert [message["id"] for message in messages(waypost, "played")] == ids


def test_a_slow_job_shows_how_far_it_is_at_a_terminal(waypost: Waypost, broker: Broker) -> None:
    for _ in range(3):
        published(waypost, "slow.x")
    refuse(waypost, "slow")
    terminal, its_end = os.openpty()
    done = subprocess.run(
        [*WAYPOST, "redrive", "slow", "--rate", "4", "--url", broker.url],
        env=environment(COLUMNS="100", TERM="xterm", NO_COLOR="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=its_end,
        text=True,
        timeout=30,
    )
    shown = all_of(terminal).decode()
    os.close(its_end)
    os.close(terminal)
    assert done.stdout == "3 redriven\n"
    assert "redrive" in shown
    assert "of 3 deliveries" in shown


def test_who_stops_watching_a_job_does_not_stop_it(waypost: Waypost, broker: Broker) -> None:
    for _ in range(3):
        published(waypost, "watched.x")
    refuse(waypost, "watched")
    terminal, its_end = os.openpty()
    redrive = subprocess.Popen(
        [*WAYPOST, "redrive", "watched", "--rate", "2", "--url", broker.url],
        env=environment(COLUMNS="100", TERM="xterm", NO_COLOR="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=its_end,
    )
    shown = ""
    while "of 3 deliveries" not in shown:
        shown += os.read(terminal, 65_536).decode()
    redrive.send_signal(signal.SIGINT)
    assert redrive.wait(20) == 130
    shown += all_of(terminal).decode()
    os.close(its_end)
    os.close(terminal)
    told = re.search(r"the broker goes on with it: GET /v1/jobs/(\S+)", shown)
    assert told is not None
    with BlockingClient(broker.url) as client:
        assert client.job_done(Job(told[1], 3))["done"] == 3


# ── as of ───────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_and_a_channel_are_shown_as_they_were(waypost: Waypost, broker: Broker) -> None:
    waypost("channel", "then", "--topics", "then.*")
    published(waypost, "then.x")
    with BlockingClient(broker.url) as client:
        moment = list(client.log(queue="then"))[-1]["at"]
    waypost("fetch", "then", "--confirm")
    assert re.search(r"^in Q queued +1", waypost("queue", "then", "--at", moment).out, re.MULTILINE)
    assert re.search(r"^in Q queued +1", waypost("channel", "then", "--at", moment).out, re.MULTILINE)
    later = waypost("queue", "then", "--at", "2100-01-01", "--json").json
    assert (later["figures"]["depth"], later["figures"]["states"]["S"]) == (0, 1)
    early = waypost("queue", "then", "--at", "2020-01-01")
    assert early.code == 1
    assert "then" in early.line


# ── what goes wrong is one line ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["channel", "nowhere"], 1, "no channel 'nowhere'; waypost channels lists them"),
        (
            ["channel", "nowhere", "--set", "retries=5"],
            2,
            "no channel 'nowhere'; --topics 'fruit.*' makes it",
        ),
        (["channel", "bad", "--topics", "#"], 2, "not a topic: '#'"),
        (["channel", "bad", "--topics", "a.*", "--from", "soon"], 2, "not an instant: 'soon'"),
        (["channel", "bad", "--topics", "a.*", "--delete"], 2, "--topics or --delete, not both"),
        (["channel", "bad", "--topics", "a.*", "--at", "10:00"], 2, "--topics or --at, not both"),
        (["queue", "bad", "--set", "lease=5", "--at", "10:00"], 2, "--set or --at, not both"),
        (["fetch", "--channel", "nowhere"], 1, "no channel 'nowhere'; waypost channels lists them"),
        (["fetch", "orders", "--channel", "x"], 2, "Say a QUEUE, or --channel NAME"),
        (["confirm", "orders"], 2, "confirm what?"),
        (["purge"], 2, "purge what? Say a QUEUE, or --channel NAME"),
        (["object", "nothing"], 1, "nothing is agreed of object 'nothing'; waypost objects lists them"),
        (["object", "bad", "--ignore", "exportedAt"], 2, "exportedAt"),
        (["object", "bad", "--window", "soon"], 2, "unchanged.window is not a span of time: 'soon'"),
        (["object", "bad", "--route", "luck"], 2, "route is inline or spark"),
        (["object", "bad", "--no-unchanged", "--window", "1d"], 2, "not with --no-unchanged"),
        (["object", "bad", "--unchanged", "--delete"], 2, "--delete goes alone"),
        (["consumer", "nobody"], 1, "no consumer 'nobody' is registered; waypost consumers lists them"),
        (["consumer", "bad", "--push", "http://127.0.0.1:9/"], 2, "a queue or a channel, one of them"),
        (["consumer", "bad", "--queue", "nowhere"], 1, "no queue 'nowhere'"),
        (["consumer", "bad", "--queue", "a", "--push", "http://10.0.0.1/"], 2, "10.0.0.1"),
        (["consumer", "bad", "--queue", "a", "--set", "rate=fast"], 2, "rate is a number a second"),
        (["spectator", "nobody"], 1, "no spectator 'nobody'; waypost spectators lists them"),
        (["tail", "--queue", "a", "--topic", "b"], 2, "--queue, --channel or --topic: one of them"),
        (["tail", "--spectator", "a", "--topic", "b"], 2, "--spectator goes alone"),
        (["tail", "-F", "--from", "soon"], 1, "not an instant: 'soon'"),
        (["search", "sinze=10:00"], 1, "unknown term 'sinze'"),
        (["replay"], 2, "name a QUEUE or a FILTER"),
        (["redrive", "state=E", "--rate", "0"], 1, "rate is a number a second"),
        (["cancel", "channel=nowhere"], 1, "no channel 'nowhere'"),
        (["queue", "orders", "--at", "soon"], 1, "not an instant: 'soon'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    waypost: Waypost, arguments: list[str], code: int, says: str
) -> None:
    done = waypost(*arguments)
    assert done.code == code, done
    assert says in done.line
