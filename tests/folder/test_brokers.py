"""Several processes on one tree: brokers under load, a mover and a reaper of their own, and those that are killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.folder.conftest import files
from tests.integration.commands import WAYPOST, Broker, end, environment, outside, serve

BODIES = 60


def ask(
    broker: Broker, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path, root: Path) -> Iterator[Start]:
    started: list[Broker] = []

    def start(*options: str) -> Broker:
        broker = serve(tmp_path, "--store", f"folder:///{root}", "--lake", "off", *options)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        if broker.process.poll() is None:
            broker.process.kill()
        broker.process.communicate()


def soon(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def log_of(broker: Broker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(broker, "GET", "/log?from=1")[1].splitlines()]


@pytest.mark.timeout(110)
def test_three_brokers_on_one_tree_lose_nothing_and_hand_nothing_out_twice(start: Start, root: Path) -> None:
    brokers = [start("--peers", "2"), start("--peers", "2"), start("--peers", "2")]
    ask(brokers[0], "PUT", "/q")
    acknowledged: dict[str, bytes] = {}
    taken: list[tuple[str, bytes]] = []
    wrong: list[str] = []

    def produce(number: int) -> None:
        for n in range(BODIES):
            body = f"{number}/{n}".encode()
            status, _, headers = ask(brokers[(number + n) % 3], "POST", "/q/messages", body)
            if status == 201:
                acknowledged[headers["X-Message-Id"]] = body
            else:
                wrong.append(f"publish: {status}")

    def consume(number: int) -> None:
        idle = 0
        while idle < 3:
            status, body, headers = ask(brokers[number % 3], "GET", "/queue/q?wait=1&lease=60")
            idle = idle + 1 if status == 204 else 0
            if status == 200:
                taken.append((headers["X-Message-Id"], body))
                receipt = json.dumps({"receipt": headers["Waypost-Receipt"]}).encode()
                # Another broker than the one that handed it out.
                answer = ask(brokers[(number + 1) % 3], "POST", "/queue/q/confirm", receipt)
                if answer[0] != 200 or b'"state":"S"' not in answer[1]:
                    wrong.append(f"confirm: {answer}")

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    threads += [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(acknowledged) == 4 * BODIES
    assert dict(taken) == acknowledged, "all of it, as it was sent"
    assert len(taken) == len(acknowledged), "and each of them once"
    logs = [log_of(broker) for broker in brokers]
    assert logs[0] == logs[1] == logs[2]
    assert [event["offset"] for event in logs[0]] == list(range(1, 5 * len(acknowledged) + 1))
    assert soon(lambda: not files(root))
    for broker in brokers:
        end(broker)


def test_what_one_broker_takes_in_the_other_hands_out_at_once(start: Start) -> None:
    one, two = start(), start()
    ask(one, "PUT", "/q")
    assert soon(lambda: ask(two, "GET", "/q")[0] == 200)
    answers: list[tuple[int, bytes, dict[str, str]]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(two, "GET", "/queue/q?wait=20")))
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    ask(one, "POST", "/q/messages", b"hello")
    waiting.join()
    assert answers[0][:2] == (200, b"hello")
    assert time.monotonic() - began < 10, "it heard of it, and did not wait to the end"


def test_the_lease_of_a_killed_broker_ends_at_another(start: Start, root: Path) -> None:
    one, two = start(), start()
    ask(one, "PUT", "/q")
    ask(one, "POST", "/q/messages", b"hello")
    assert ask(one, "GET", "/queue/q?lease=1")[0] == 200
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    assert soon(lambda: ask(two, "GET", "/queue/q")[0] == 200)
    states = "".join(event["toState"] for event in log_of(two))
    assert states == "LQFRF"
    end(two)


def test_mover_and_reaper_run_alone(start: Start, root: Path) -> None:
    broker = start("--no-mover", "--no-reaper")
    ask(broker, "PUT", "/q")
    for body in (b"done", b"again"):
        ask(broker, "POST", "/q/messages", body)
    done = ask(broker, "GET", "/q/messages")[2]["X-Message-Id"]
    ask(broker, "DELETE", f"/q/messages/{done}")
    assert ask(broker, "GET", "/queue/q?lease=0.2")[1] == b"again"
    (root.parent / "aside").write_bytes(b"dropped")
    os.rename(root.parent / "aside", root / "new" / "q:dropped")
    time.sleep(0.8)
    assert sorted(files(root)) == sorted(
        ["new/q:dropped", f"remove/q:{done}", next(name for name in files(root) if name.startswith("delay/"))]
    )
    url = f"folder:///{root}"
    daemons = [
        subprocess.Popen(
            [*WAYPOST, name, "--store", url], env=environment(), stderr=subprocess.PIPE, text=True
        )
        for name in ("mover", "reaper")
    ]
    try:
        assert soon(lambda: len([name for name in files(root) if name.startswith("queues/q/")]) == 2)
        assert soon(lambda: not list((root / "remove").iterdir()))
        bodies = {ask(broker, "GET", "/queue/q?wait=5")[1] for _ in range(2)}
        assert bodies == {b"again", b"dropped"}
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
    for daemon in daemons:
        said = daemon.communicate(timeout=20)[1]
        assert daemon.returncode == 0, said
        assert "ready" in said
    end(broker)


@pytest.mark.parametrize("daemon", ["mover", "reaper"])
def test_a_daemon_without_a_folder_says_so_in_one_line(daemon: str) -> None:
    done = outside(daemon, "--store", "sqlite:////tmp/waypost.db")
    assert "folder:////srv/mq" in done.line


@pytest.mark.needs("strace")
def test_a_broker_whose_sync_fails_answers_nothing_and_ends(tmp_path: Path, root: Path) -> None:
    """The original ignored what its syncs returned."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO:when=3+"]
    process = subprocess.Popen(
        [*command, *WAYPOST, "serve", "--port", "0", "--store", f"folder:///{root}", "--lake", "off"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stderr is not None
    ready = process.stderr.readline()
    port = int(ready.split("127.0.0.1:")[1].split(";")[0])
    broker = Broker(process, "", port, ready)
    published = 0
    try:
        for _ in range(10):
            ask(broker, "PUT", "/q")
            published += ask(broker, "POST", "/q/messages", b"x")[0] == 201
    except (http.client.HTTPException, OSError):
        pass
    try:
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 1
    assert "the store failed, stopping at once" in said
    assert published <= 2


@pytest.mark.needs("strace")
def test_a_publish_is_synced_body_first_and_then_the_log_before_it_is_answered(
    tmp_path: Path, root: Path
) -> None:
    """The original never synced a folder."""
    trace = tmp_path / "trace"
    code = (
        "from waypost.stores.folder import FolderStore; from waypost.testing.hand import publish; import os;"
        f"s = FolderStore({str(root)!r}, sync_each=True, ballast_bytes=4096); os.write(1, b'begin');"
        "s.apply([publish('a.x'), publish('a.y')]); os.write(1, b'answer'); s.close()"
    )
    calls = "trace=write,pwrite64,fsync,fdatasync,renameat,renameat2,rename"
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(trace), "-e", calls, WAYPOST[0], "-c", code],
        check=True,
        capture_output=True,
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = trace.read_text().split("begin")[1].split("answer")[0].splitlines()
    steps = [
        step
        for line in lines
        for step, mark in (
            ("body", "/new/."),
            ("folder", "/new>)"),
            ("log", "/log>)"),
            ("moved", "rename"),
        )
        if (("sync(" in line) if step != "moved" else True) and mark in line
    ]
    assert steps == ["body", "body", "folder", "log", "moved", "moved"]
