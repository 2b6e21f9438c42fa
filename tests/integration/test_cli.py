"""The command line as a person uses it: real processes, a real broker, and what is read on the screen."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import apsw
import pytest

from tests.integration.commands import (
    WAYPOST,
    Broker,
    Done,
    Waypost,
    all_of,
    end,
    environment,
    messages,
    outside,
    serve,
)
from waypost import BlockingClient
from waypost.cli import run
from waypost.http.service import BROKEN_EXIT
from waypost.version import __version__

pytestmark = pytest.mark.timeout(90)


# ── a message ───────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_published_fetched_confirmed_and_its_journey_shown(waypost: Waypost) -> None:
    published = waypost("publish", "orders.created", '{"number": 17}', "--key", "17", "--meta", "trace=1").out
    id = published.split()[0]
    assert "Q queued" in published

    fetched = waypost("fetch", "orders", "--consumer", "crm").out
    assert id in fetched
    assert '{"number": 17}' in fetched
    receipt = re.search(r"^receipt (\S+)", fetched, re.MULTILINE)
    assert receipt is not None

    assert waypost("confirm", "orders", receipt[1]).out.split() == [id, "S", "success"]
    shown = waypost("message", id).out
    assert "orders.created" in shown
    assert "application/json" in shown
    assert "trace=1" in shown
    assert re.findall(r" ([LQFSX]) (?:logged|queued|fetched|success|completed)", shown) == ["X", *"LQFSX"]
    assert "crm" in shown
    assert waypost("message", id, "--body").out == '{"number": 17}'
    assert waypost("message", id, "--json").json["state"] == "X"


def test_json_is_for_programs(waypost: Waypost) -> None:
    published = waypost("publish", "json.created", "text", "--json").json
    assert published["state"] == "Q"
    (message,) = messages(waypost, "json")
    assert (message["id"], message["body"]) == (published["id"], "text")
    confirmed = waypost("confirm", "json", message["receipt"], "--outcome", "invalid", "--json").json
    assert confirmed == {"results": [{"receipt": message["receipt"], "id": published["id"], "state": "I"}]}
    assert waypost("queues", "json", "--json").json["figures"]["states"]["I"] == 1
    assert "json" in [queue["name"] for queue in waypost("queues", "--json").json["queues"]]
    assert waypost("stats", "--json").json["version"] == __version__


def test_a_body_comes_from_stdin_too(broker: Broker, waypost: Waypost) -> None:
    for arguments in (("stdin.a",), ("stdin.a", "-"), ("stdin.a", "--body", "-")):
        assert outside("publish", *arguments, "--url", broker.url, stdin="from a pipe\n").code == 0
    assert [message["body"] for message in messages(waypost, "stdin")] == ["from a pipe\n"] * 3


def test_a_message_fetched_with_confirm_is_settled(waypost: Waypost) -> None:
    waypost("publish", "settle.x", "a")
    assert "a" in waypost("fetch", "settle", "--confirm").out
    assert waypost("queues", "settle", "--json").json["figures"]["states"]["S"] == 1


def test_nothing_to_fetch_is_no_error(waypost: Waypost) -> None:
    waypost("publish", "empty.x", "a")
    waypost("fetch", "empty")
    assert waypost("fetch", "empty") == (0, "", "")


def test_text_of_others_cannot_take_over_the_terminal(waypost: Waypost) -> None:
    waypost("publish", "evil.x", "\x1b[2Jboo [red]x[/red]")
    shown = waypost("fetch", "evil").out
    assert "\x1b[2J" not in shown
    assert "[red]x[/red]" in shown


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_published_in_batches(waypost: Waypost, tmp_path: Path) -> None:
    file = tmp_path / "x.ndjson"
    lines = [{"topics": ["files.x"], "key": str(n), "body": {"n": n}} for n in range(25)]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert waypost("publish", "--file", str(file), "--batch", "10").out.startswith("25 messages published")
    assert [json.loads(message["body"])["n"] for message in messages(waypost, "files")] == list(range(25))


def test_with_a_topic_every_line_is_a_body(waypost: Waypost, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes("eins\nzwei ü\r\n".encode() + b"\xff\n")
    counted = waypost("publish", "lines.x", "--file", str(file), "--priority", "1", "--json").json
    assert (counted["published"], counted["unchanged"]) == (3, 0)
    bodies = [message.get("body") or message["bodyBase64"] for message in messages(waypost, "lines")]
    assert bodies == ["eins", "zwei ü", "/w=="]


def test_a_file_published_once_is_not_published_again(waypost: Waypost, tmp_path: Path) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text('{"topics":["once.x"],"body":"same"}\n' * 3)
    for _ in range(2):
        assert waypost("publish", "--file", str(file), "--once").code == 0
    assert waypost("queues", "once", "--json").json["figures"]["ready"] == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"topics', "line 3: not JSON"),
        ("17", "line 3: a message is a JSON object"),
        ('{"topics":["*"],"body":"x"}', "in the batch from line 3: message 1: not a topic"),
        ('{"tpics":["a"],"body":"x"}', "unknown field `tpics`"),
    ],
)
def test_a_wrong_line_is_named_with_what_was_published_before(
    waypost: Waypost, tmp_path: Path, wrong: str, says: str
) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text('{"topics":["wrong.x"],"body":"x"}\n' * 2 + wrong + "\n")
    done = waypost("publish", "--file", str(file), "--batch", "2")
    assert done.code == 1
    assert says in done.line
    assert "messages before it were published" in done.line


# ── looking after it ────────────────────────────────────────────────────────────────────────────


def dead_letter(waypost: Waypost, queue: str, reason: str) -> str:
    waypost("publish", f"{queue}.x", "x")
    (message,) = messages(waypost, queue)
    waypost("confirm", queue, message["receipt"], "--outcome", "invalid", "--reason", reason)
    return str(message["id"])


def test_dead_letters_are_listed_redriven_and_cancelled(waypost: Waypost) -> None:
    id = dead_letter(waypost, "sick", "no number")
    listed = waypost("dead", "sick").out
    assert id in listed
    assert "no number" in listed
    assert json.loads(waypost("dead", "sick", "--json").out)["reason"] == "no number"

    midnight = "queue=sick state=I since=00:00"
    assert waypost("redrive", "--filter", midnight, "--dry-run").out == "1 would be redriven: 1 in I\n"
    dry = waypost("redrive", *midnight.split(), "--dry-run", "--json").json
    assert dry == {"job": None, "matched": 1, "states": {"I": 1}}
    assert waypost("redrive", "sick").out == "1 redriven\n"
    assert waypost("dead", "sick").out == ""
    assert waypost("cancel", "--filter", f"id={id}").out == "1 cancelled\n"


def test_a_purge_asks_and_empties_a_queue(waypost: Waypost, broker: Broker) -> None:
    waypost("publish", "purged.x", "x")
    asked = outside("purge", "purged", "--url", broker.url)
    assert asked.code == 2
    assert "--yes" in asked.line
    assert waypost("purge", "purged", "--dry-run").out == "1 would be purged: 1 in Q\n"
    assert waypost("purge", "purged", "--yes", "--json").json["done"] == 1


def test_queues_and_stats_are_tables(waypost: Waypost) -> None:
    waypost("publish", "tables.x", "x")
    assert re.search(r"^tables +1 +0 +0 +0 +0 +1 B", waypost("queues").out, re.MULTILINE)
    assert "retries" in waypost("queues", "tables").out
    assert re.search(r"^log.head +[\d,]+", waypost("stats").out, re.MULTILINE)


def test_a_queue_is_made_changed_field_by_field_and_deleted(waypost: Waypost, broker: Broker) -> None:
    made = waypost("queue", "tuned", "--set", "retries=5", "--set", "keep=1h", "--json").json
    assert (made["retries"], made["keep"], made["paused"]) == (5, "1h", False)
    assert re.search(r"^paused +yes", waypost("queue", "tuned", "--set", "paused=true").out, re.MULTILINE)
    changed = waypost("queue", "tuned", "--json").json
    assert changed == {**made, "paused": True}

    asked = outside("queue", "tuned", "--delete", "--url", broker.url)
    assert (asked.code, "say --yes" in asked.line) == (2, True)
    assert waypost("queue", "tuned", "--delete", "--yes").code == 0
    assert waypost("queue", "tuned").code == 1


def test_the_log_is_shown_from_an_offset_and_by_queue(waypost: Waypost) -> None:
    waypost("publish", "tails.x", "x", "--key", "k1")
    assert re.search(
        r"L → Q queued +tails", waypost("tail", "--no-follow", "-n", "1", "--queue", "tails").out
    )
    events = [
        json.loads(line)
        for line in waypost("tail", "-F", "--queue", "tails", "--from", "1", "--json").out.splitlines()
    ]
    assert [event["toState"] for event in events] == ["Q"]
    assert "key k1" in waypost("tail", "-F", "--from", "1", "--topic", "tails.*").out


def test_an_event_is_one_line_cut_at_a_terminals_edge_and_whole_in_a_pipe(
    broker: Broker, waypost: Waypost
) -> None:
    dead_letter(waypost, "wide", "first line\nsecond line " + "x" * 300)
    piped = waypost("tail", "-F", "-n", "3", "--queue", "wide").out.splitlines()
    assert re.search(r"first line second line x{300}$", piped[-1])

    terminal, its_end = os.openpty()
    shown = subprocess.run(
        [*WAYPOST, "tail", "-F", "-n", "3", "--queue", "wide", "--url", broker.url],
        env=environment(COLUMNS="100", TERM="xterm", NO_COLOR="1"),
        stdin=subprocess.DEVNULL,
        stdout=its_end,
        timeout=30,
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", all_of(terminal).decode()).splitlines()
    os.close(its_end)
    os.close(terminal)
    assert shown.returncode == 0
    assert len(lines) == len(piped)
    assert len(lines[-1]) == 100
    assert lines[-1].endswith("…")


def test_a_followed_log_shows_events_as_they_come_until_it_is_interrupted(
    broker: Broker, waypost: Waypost
) -> None:
    tail = subprocess.Popen(
        [*WAYPOST, "tail", "-n", "1", "--json", "--url", broker.url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout is not None
    try:
        waypost("publish", "before.x", "x")
        first = json.loads(tail.stdout.readline())
        waypost("publish", "follow.x", "x")
        offsets = [first["offset"]]
        for line in tail.stdout:
            event = json.loads(line)
            offsets.append(event["offset"])
            if event["queue"] == "follow":
                break
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        tail.send_signal(signal.SIGINT)
        err = tail.communicate(timeout=20)[1]
        assert (tail.returncode, err) == (130, "")
    finally:
        tail.kill()
        tail.communicate()


def test_a_reader_that_has_enough_ends_the_command_quietly(broker: Broker, waypost: Waypost) -> None:
    for _ in range(3):
        waypost("publish", "pipes.x", "x")
    command = " ".join([*WAYPOST, "tail", "-F", "-n", "4", "--url", broker.url])
    piped = subprocess.run(
        ["sh", "-c", f"{command} | head -1"], env=environment(), capture_output=True, text=True
    )
    assert piped.stdout.count("\n") == 1
    assert piped.stderr == ""


def test_a_small_load_is_measured_and_leaves_nothing_behind(waypost: Waypost) -> None:
    measured = waypost("bench", "--seconds", "0.2", "--clients", "2", "--json").json
    assert [part["part"] for part in measured["parts"]] == ["publish", "publish, fetch, confirm"]
    assert all(part["messages"] > 0 and 0 < part["p50Ms"] <= part["p99Ms"] for part in measured["parts"])
    assert not [
        queue for queue in waypost("queues", "--json").json["queues"] if queue["name"].startswith("bench-")
    ]


# ── what goes wrong is one line ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["publish", "Bad Topic", "x"], 1, "not a topic: 'Bad Topic'; what stands before the first dot"),
        (["fetch", "nowhere"], 1, "no queue 'nowhere'; waypost queues lists them"),
        (["message", "nothing"], 1, "no message 'nothing'"),
        (["confirm", "nowhere", "1-0123456789abcdef"], 1, "no queue 'nowhere'"),
        (["redrive", "--filter", "queue=x sinze=1"], 1, "unknown term 'sinze'"),
        (["tail", "-F", "--from", "999999999"], 1, "leave --from out to wait for what comes next"),
        (["fetch", "orders", "--lease", "0"], 1, "a lease is between 1 ms and 12 h; for example --lease 30"),
        (
            ["confirm", "orders", "1-0123456789abcdef", "--outcome", "foo"],
            2,
            "'--outcome': 'foo' is not one of",
        ),
        (["publish", "fruit/apple", "x"], 2, "what stands before the '/' goes into --object"),
        (["publish", "--file", "/none.ndjson"], 1, "/none.ndjson: No such file or directory"),
        (["redrive", "nowhere"], 1, "no queue 'nowhere'; waypost queues lists them"),
        (["cancel", "nowhere", "--dry-run"], 1, "no queue 'nowhere'; waypost queues lists them"),
        (["purge", "nowhere", "--yes"], 1, "no queue 'nowhere'; waypost queues lists them"),
        (["queue", "nowhere"], 1, "no queue 'nowhere'; waypost queues lists them"),
        (["queue", "nowhere", "--delete", "--yes"], 1, "no queue 'nowhere'"),
        (["queue", "orders", "--set", "retries"], 2, "--set wants FIELD=VALUE, not 'retries'"),
        (["queue", "orders", "--set", "retries=99"], 2, "from 1 to 9, not 99; for example --set 'retries=3'"),
        (
            ["queue", "orders", "--set", "retrys=9"],
            2,
            "unknown policy field 'retrys'; known: lease, retries,",
        ),
        (["queue", "orders", "--set", "retries=9", "--delete"], 2, "--set or --delete, not both"),
        (["redrive"], 2, "name a QUEUE or a FILTER"),
        (["publish"], 2, "a TOPIC, or --file"),
        (["publish", "a.b", "x", "--priority", "11"], 2, "--priority"),
        (["publish", "a.b", "x", "--meta", "novalue"], 2, "NAME=VALUE"),
        (["publish", "a.b", "x", "--body", "y"], 2, "one body, not two"),
        (["queues", "--url", "ftp://x"], 2, "not a broker's address: 'ftp://x'; such as http://"),
        (["queues", "--url", "foo:bar"], 2, "not a broker's address: 'foo:bar'; such as http://"),
        (["queues", "--url", "http://[x"], 2, "not a broker's address"),
        (["message"], 2, "see: waypost message --help"),
        (["fetch"], 2, "fetch from where? Say a QUEUE, or --channel NAME"),
        (["nonsense"], 2, "nonsense"),
        (["serve", "--prot", "1"], 2, "--prot"),
        (["serve", "--port", "x"], 2, "--port should be a number"),
        (["serve", "--log", "xml"], 2, "--log should be text or json"),
        (["serve", "--store", "redis:///x"], 1, "no store is called 'redis'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    waypost: Waypost, arguments: list[str], code: int, says: str
) -> None:
    done = waypost(*arguments)
    assert done.code == code
    assert says in done.line


def test_a_stale_receipt_is_an_error_of_the_command(waypost: Waypost) -> None:
    waypost("publish", "stale.x", "x")
    done = waypost("confirm", "stale", "1-0123456789abcdef")
    assert done.code == 1
    assert "stale" in done.line


def test_a_queue_that_counts_consumers_asks_for_the_option(broker: Broker, waypost: Waypost) -> None:
    with BlockingClient(broker.url) as client:
        client.declare("counted", {"complete": 2})
    done = waypost("fetch", "counted")
    assert done.code == 1
    assert done.line.endswith("; say who you are: --consumer NAME\n")


def test_where_no_broker_is_the_way_to_one_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = outside("queues", WAYPOST_URL=url)
    assert done.code == 1
    assert done.line == (
        f"waypost: no broker answers at {url} (connection refused); start one with: waypost serve\n"
    )


def test_the_version_is_told_and_the_help_lists_every_command() -> None:
    assert outside("--version").out == f"waypost {__version__}\n"
    listed = outside().out
    commands = (
        "serve|publish|fetch|confirm|tail|message|queues|queue|channels|channel|objects|object|consumers|consumer"
        "|spectators|spectator|search|dead|redrive|replay|cancel|purge|stats|bench|config"
    )
    for command in commands.split("|"):
        assert re.search(rf"^\W*{command} ", listed, re.MULTILINE), command
    for group in ("Messages", "Queues and channels", "Watch and find", "Act on many", "The broker"):
        assert f"─ {group} ─" in listed
    assert "--store" in outside("serve", "--help").out


def test_helps_name_arguments_in_capitals_and_options_without_the_types_of_python() -> None:
    usages = {
        command: outside(command, "--help").out
        for command in ("publish", "fetch", "confirm", "queues", "dead")
    }
    assert "[TOPIC] [BODY]" in usages["publish"]
    assert "{QUEUE} [RECEIPT]..." in usages["confirm"]
    for shown in (outside("--help").out, *usages.values()):
        assert not re.search(r"<bool>|\[\[|\.\.\.\}", shown)


# ── settings ────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_shown_with_where_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waypost.toml").write_text('store = "memory:///"\nport = 7000\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAYPOST_PORT", "9000")
    monkeypatch.setenv("WAYPOST_PROT", "1")
    monkeypatch.delenv("WAYPOST_URL", raising=False)
    assert run(["config", "--json"]) == 0
    out, err = capsys.readouterr()
    settings = json.loads(out)
    assert settings["port"] == {"value": 9000, "from": "WAYPOST_PORT"}
    assert settings["store"] == {"value": "memory:///", "from": "waypost.toml"}
    assert settings["host"] == {"value": "127.0.0.1", "from": "default"}
    assert "WAYPOST_PROT" in err
    assert run(["config"]) == 0
    assert re.search(r"^port +9000 +WAYPOST_PORT", capsys.readouterr().out, re.MULTILINE)


# ── serve ───────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_says_where_it_is_and_what_its_answers_are_worth_and_ends_when_asked(tmp_path: Path) -> None:
    started = serve(tmp_path)
    assert f"waypost {__version__} ready on {started.url}" in started.ready
    assert str(tmp_path / "waypost-data" / "waypost.db") in started.ready
    assert "committed and synced to disk" in started.ready
    assert "stopping" in end(started)


def test_log_lines_are_json_when_asked_and_settings_come_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "waypost.toml").write_text('store = "memory:///"\nlog = "json"\n')
    started = serve(tmp_path)
    ready = json.loads(started.ready)
    assert ready["level"] == "info"
    assert "nothing survives this process" in ready["message"]
    assert json.loads(end(started).splitlines()[-1])["logger"] == "waypost"


def test_every_request_is_a_log_line_when_asked(tmp_path: Path) -> None:
    started = serve(tmp_path, "--access-log", "--store", "memory:///")
    assert outside("publish", "a.b", "x", "--key", "k", "--url", started.url).code == 0
    request = urllib.request.Request(f"{started.url}/queue/a", headers={"X-Request-Id": "r-17"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    lines = end(started)
    assert re.search(r" info POST /in/a\.b\?key=k 201 \d+\.\d ms, request [0-9a-f]{16}\n", lines)
    assert re.search(r" info GET /queue/a 200 \d+\.\d ms, request r-17\n", lines)


def refused(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [*WAYPOST, "serve", *options],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    return Done(done.returncode, done.stdout, done.stderr).line


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}: address already in use" in refused(
            tmp_path, "--port", str(port)
        )


def test_a_store_that_is_served_already_is_not_served_twice(tmp_path: Path) -> None:
    started = serve(tmp_path)
    try:
        assert f"served already, by process {started.process.pid}" in refused(tmp_path, "--port", "0")
    finally:
        end(started)


def test_a_newer_store_another_programs_file_and_a_wrong_place_are_refused(tmp_path: Path) -> None:
    serve_and_end = serve(tmp_path, "--store", "sqlite:///newer.db")
    end(serve_and_end)
    with apsw.Connection(str(tmp_path / "newer.db")) as newer:
        newer.execute("pragma user_version = 99")
    newer.close()
    assert "schema version 99" in refused(tmp_path, "--store", "sqlite:///newer.db")
    (tmp_path / "text.db").write_text("hello " * 1_000)
    assert "text.db" in refused(tmp_path, "--store", "sqlite:///text.db")
    assert "text.db" in refused(tmp_path, "--store", "sqlite:///text.db/waypost.db")


def test_a_second_signal_ends_a_drain_at_once(tmp_path: Path) -> None:
    started = serve(tmp_path)
    with socket.create_connection(("127.0.0.1", started.port)) as slow:
        slow.sendall(b"POST /in/a.b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")
        asked = outside("stats", "--url", started.url, "--json").json  # the half request is there by now
        assert asked["http"]["open"] >= 1
        started.process.send_signal(signal.SIGTERM)
        assert started.process.stderr is not None
        assert "lake:" in started.process.stderr.readline()
        assert "stopping" in started.process.stderr.readline()
        stopping_at = time.monotonic()
        time.sleep(0.6)  # what comes within half a second is the same wish, told to a process group
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(20) == 1
        assert time.monotonic() - stopping_at < 8
    started.process.stderr.close()


def test_a_broken_store_ends_the_process_with_one_line() -> None:
    program = (
        "from waypost.cli.serving import broken; from waypost.errors import StoreBroken;"
        "import atexit; atexit.register(print, 'too late'); broken(StoreBroken('disk I/O error'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (BROKEN_EXIT, "")
    assert BROKEN_EXIT == 1
    assert done.stderr == "waypost: the store failed, stopping at once: disk I/O error\n"


def test_serve_starts_without_the_heavy_parts(tmp_path: Path) -> None:
    program = (
        "import sys; from waypost.cli import run; code = run(['serve', '--port', '0', '--store', 'sqlite:///']);"
        "import waypost.http.service, waypost.stores.sqlite;"
        "print(code, sorted({'typer', 'rich', 'aiohttp', 'pydantic', 'waypost.client'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "1 []\n"


def test_a_command_that_asks_starts_without_a_large_client() -> None:
    program = (
        "import sys; from waypost.cli import run; code = run(['stats', '--url', 'http://127.0.0.1:9']);"
        "print(code, 'waypost.client' in sys.modules, sorted({'aiohttp', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout == "1 True []\n"
