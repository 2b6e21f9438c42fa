"""`waypost lake` as a person runs it, and brokers that are killed together with the process that seals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import WAYPOST, Broker, Done, Waypost, end, environment, outside, serve
from waypost.lake import delta, reading
from waypost.lake.owner import Lake

PATIENCE = 60.0


def ask(broker: Broker, method: str, target: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(broker.url + target, body, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def status(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(broker, "GET", "/v1/lake"))
    return found


def log_of(broker: Broker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(broker, "GET", "/log?payload=1").splitlines()]


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """A zombie has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def test_a_lake_is_sealed_shown_verified_and_maintained(waypost: Waypost, broker: Broker) -> None:
    folder = str(Path(status(broker)["lake"]))
    assert folder.endswith("/waypost-data/lake")
    assert f"info lake: {folder}, kept for ever" in _second_line(broker)
    for number in range(3):
        assert waypost("publish", "fruit.apple", str(number)).code == 0
    sealed = waypost("lake", "seal")
    assert (sealed.code, sealed.out) == (0, "sealed up to offset 6, 6 of them now\n")
    assert waypost("lake", "seal", "--json").json == {"sealed": 6}

    shown = waypost("lake", "status")
    assert "sealed up to  6, nothing behind" in shown.out
    assert folder in shown.out
    assert waypost("lake", "status", "--json").json["sealed"] == 6

    verified = waypost("lake", "verify", "--lake", folder)
    assert verified.code == 0
    assert "nothing wrong: 6 events, offsets 1 to 6, 3 payloads" in verified.out
    assert waypost("lake", "verify", "--json").json["findings"] == []

    waypost("publish", "fruit.pear", "x")
    waypost("lake", "seal")
    assert waypost("lake", "maintain").out.startswith("4 files put together into 2, ")
    assert waypost("lake", "maintain", "--json").json["compacted"] == 0
    assert "lake.sealed" in waypost("stats").out


def _second_line(broker: Broker) -> str:
    assert broker.process.stderr is not None
    return broker.process.stderr.readline()


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder in which a broker ran and sealed; none runs now."""
    started = serve(tmp_path)
    try:
        for number in range(20):
            ask(started, "POST", "/in/fruit.apple", str(number).encode())
        ask(started, "POST", "/v1/lake/seal")
        end(started)
    finally:
        started.process.kill()
    return tmp_path


def inside(folder: Path, *arguments: str) -> Done:
    """Run in that folder, where no broker answers."""
    done = subprocess.run(
        [*WAYPOST, *arguments],
        cwd=folder,
        env=environment(WAYPOST_URL="http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_lake_is_verified_without_a_broker_and_held_against_its_store(left: Path) -> None:
    verified = inside(left, "lake", "verify", "--json")
    assert (verified.code, verified.err) == (0, "")
    assert (verified.json["events"], verified.json["compared"], verified.json["findings"]) == (40, 40, [])
    assert verified.json["lake"] == str(left / "waypost-data" / "lake")


def test_damage_is_named_and_the_exit_code_says_so(left: Path) -> None:
    lake = Lake(left / "waypost-data" / "lake")
    (file,) = delta.files(lake.events, 1, 40)
    file.path.unlink()
    found = inside(left, "lake", "verify")
    assert found.code == 1
    assert f"message_events: {file.name} is missing, and with it 40 rows from 1 to 40" in found.out
    assert found.err == ""
    named = inside(left, "lake", "verify", "--lake", str(left / "nowhere"))
    assert (named.code, "there is no folder" in named.line) == (1, True)


def test_where_there_is_no_lake_one_line_says_so(tmp_path: Path) -> None:
    assert "no broker answers" in inside(tmp_path, "lake", "verify").line
    started = serve(tmp_path, "--lake", "off")
    try:
        assert "info lake: off, as told" in _second_line(started)
        for command in ("seal", "maintain", "verify"):
            done = outside("lake", command, WAYPOST_URL=started.url)
            assert (done.code, "has no lake" in done.line) == (1, True)
        assert "lake   off" in outside("lake", "status", WAYPOST_URL=started.url).out
        end(started)
    finally:
        started.process.kill()


def test_a_start_with_a_lake_that_is_not_ones_own_is_refused(
    left: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    refused = outside(
        "serve",
        "--port",
        "0",
        "--store",
        f"sqlite:///{other}/waypost.db",
        "--lake",
        str(left / "waypost-data" / "lake"),
    )
    assert (refused.code, "is the lake of another store" in refused.line) == (1, True)
    refused = outside(
        "serve",
        "--port",
        "0",
        "--store",
        f"sqlite:///{left}/waypost-data/waypost.db",
        "--lake",
        str(other / "lake"),
    )
    assert (refused.code, "which has sealed up to offset 40" in refused.line) == (1, True)
    assert not (other / "lake").exists()


def test_settings_of_the_lake_are_shown_and_checked(tmp_path: Path) -> None:
    shown = outside("config", "--json", WAYPOST_LAKE=str(tmp_path), WAYPOST_LAKE_KEEP="90d").json
    assert shown["lake"] == {"value": str(tmp_path), "from": "WAYPOST_LAKE"}
    assert shown["lake-keep"] == {"value": "90d", "from": "WAYPOST_LAKE_KEEP"}
    refused = outside("serve", "--lake-keep", "soon")
    assert (refused.code, "--lake-keep should be a span of time such as 90d" in refused.line) == (2, True)


# ── kills ───────────────────────────────────────────────────────────────────────────────────────


class Load:
    """Publishes, and asks for seals, until its broker is gone."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.acknowledged: set[str] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(work,))
            for work in (self._publish, self._publish, self._seal)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, urllib.error.URLError, ConnectionError, EOFError):
            while True:
                work()

    def _publish(self) -> None:
        answer = json.loads(ask(self._broker, "POST", "/in/fruit.apple", os.urandom(50).hex().encode()))
        self.acknowledged.add(answer["id"])

    def _seal(self) -> None:
        ask(self._broker, "POST", "/v1/lake/seal")


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Broker]:
    broker = serve(folder)
    try:
        yield broker
    finally:
        broker.process.kill()
        broker.process.communicate()


def killed_under_load(folder: Path, kill_the_child: bool) -> set[str]:
    """What was acknowledged until then."""
    with started(folder) as broker:
        before = status(broker)["sealed"]
        with Load(broker) as load:
            eventually(lambda: status(broker)["sealed"] > before + 20, "sealing")
            child = status(broker)["sealing"]["process"]
            if kill_the_child:
                os.kill(child, signal.SIGKILL)
            broker.process.kill()
        eventually(lambda: is_gone(child), "the child's end")
        return load.acknowledged


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_when_broker_and_sealer_are_killed_under_load(tmp_path: Path) -> None:
    acknowledged = killed_under_load(tmp_path, True) | killed_under_load(tmp_path, False)
    with started(tmp_path) as broker:
        sealed = json.loads(ask(broker, "POST", "/v1/lake/seal"))["sealed"]
        events = log_of(broker)
        assert [event["offset"] for event in events] == list(range(1, sealed + 1))
        logged = [event["messageId"] for event in events if event["toState"] == "L"]
        assert len(logged) == len(set(logged))
        assert acknowledged <= set(logged)
        assert len(acknowledged) > 20
        assert status(broker)["failure"] is None
    lake = Lake(tmp_path / "waypost-data" / "lake")
    offsets = [
        n for batch in reading.events(lake, 1, sealed, ["offset"]) for n in batch["offset"].to_pylist()
    ]
    assert offsets == list(range(1, sealed + 1))
    verified = inside(tmp_path, "lake", "verify", "--json")
    assert (verified.json["findings"], verified.json["payloads"]) == ([], len(logged))
