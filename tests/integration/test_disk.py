"""Disks that fill up and disks that fail: what is refused, what goes on, and when the process ends.

The small disk is a tmpfs, so its tests need root; a sync fails because strace says so.
"""

import contextlib
import http.client
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prove.child import Child, serve_command
from tests.conftest import miss

PATIENCE = 20.0
MIB = 1 << 20
#: room for the log, the ballast and the mark below which nothing new is taken
DISK_BYTES = 384 * MIB


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body: bytes = b"") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, response.read())
    finally:
        connection.close()


def publish(port: int, body: bytes = b"apples") -> Answer:
    return ask(port, "POST", "/in/orders.created", body)


def fetch_and_confirm(port: int, n: int) -> int:
    """How many were fetched, all of them confirmed."""
    answer = ask(port, "GET", f"/queue/orders?n={n}")
    if answer.status == 204:
        return 0
    receipts = [message["receipt"] for message in answer.json()["messages"]]
    settled = ask(port, "POST", "/queue/orders/confirm", json.dumps({"receipts": receipts}).encode())
    assert [result["state"] for result in settled.json()["results"]] == ["S"] * len(receipts)
    return len(receipts)


class SmallDisk(NamedTuple):
    folder: Path

    @property
    def free_bytes(self) -> int:
        space = os.statvfs(self.folder)
        return space.f_bavail * space.f_frsize

    @property
    def filler(self) -> Path:
        return self.folder / "filler"

    def fill_up_to(self, free_bytes: int) -> None:
        """As others would, until so much is free."""
        fd = os.open(self.filler, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.free_bytes - free_bytes)
        finally:
            os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        miss("a small disk is a tmpfs, and mounting one needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        miss(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    started: list[Child] = []

    def start(store: Path) -> Child:
        started.append(Child(serve_command(store), tmp_path / f"broker{len(started)}.log"))
        return started[-1]

    yield start
    for child in started:
        child.kill()


def test_near_a_full_disk_publishes_are_refused_while_fetch_and_confirm_go_on(
    small_disk: SmallDisk, serve: Any
) -> None:
    port = serve(small_disk.folder / "waypost.db").port()
    for _ in range(20):
        assert publish(port).status == 201

    small_disk.fill_up_to(100 * MIB)
    while (refused := publish(port)).status == 201:
        pass  # the free space is looked at several times a second, not for each message

    assert refused.status == 507
    assert refused.json()["code"] == "DISK_LOW"
    assert int(refused.headers["retry-after"]) > 0
    many = ask(port, "POST", "/v1/messages", b'{"topics":["orders.created"],"body":"pears"}\n')
    assert (many.status, "retry-after" in many.headers) == (507, True)
    short = ask(port, "POST", "/orders/messages", b"plums")
    assert (short.status, short.headers["retry-after"]) == (503, "10")
    assert fetch_and_confirm(port, 5) == 5

    small_disk.filler.unlink()
    while publish(port).status == 507:
        pass
    assert fetch_and_confirm(port, 1_000) >= 16


def test_on_a_disk_that_others_filled_to_the_last_block_everything_can_still_be_fetched_and_confirmed(
    small_disk: SmallDisk, serve: Any
) -> None:
    store = small_disk.folder / "waypost.db"
    child = serve(store)
    port = child.port()
    # More than the file's free pages hold, so that fetch and confirm make it grow.
    bulk = b"".join(b'{"topics":["bulk.created"],"body":"%025000d"}\n' % n for n in range(500))
    small = b"".join(b'{"topics":["orders.created"],"body":"%0400d"}\n' % n for n in range(5_000))
    for lines in (bulk, bulk, bulk, small, small):
        assert ask(port, "POST", "/v1/messages", lines).status == 201

    small_disk.fill_up_to(0)
    done = 0
    while done < 5_000 and (fetched := fetch_and_confirm(port, 10)):
        done += fetched
    assert child.process.poll() is None
    child.kill()
    child = serve(store)
    port = child.port()
    while fetched := fetch_and_confirm(port, 10):
        done += fetched

    assert done == 10_000
    assert publish(port).status == 507
    small_disk.filler.unlink()
    while publish(port).status == 507:
        pass
    assert child.stop() == 0


class Failing:
    """A process whose system calls fail from now on."""

    def __init__(self, pid: int, calls: str) -> None:
        inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
        self.strace = subprocess.Popen(
            ["strace", "-f", *inject, "-o", "/dev/null", "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.strace.stderr is not None
        said = self.strace.stderr.readline()
        if "attached" not in said:
            self.strace.kill()
            self.strace.communicate()
            miss(f"strace may not attach here: {said.strip()}")

    def end(self) -> None:
        self.strace.communicate(timeout=PATIENCE)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("calls", ["fsync,fdatasync", "pwrite64"])
@pytest.mark.parametrize("body", [b"apples", b"a" * 100_000], ids=["small", "large"])
def test_the_first_write_or_sync_that_fails_ends_the_process_and_nothing_is_answered_any_more(
    tmp_path: Path, serve: Any, calls: str, body: bytes
) -> None:
    store = tmp_path / "store" / "waypost.db"
    child = serve(store)
    port = child.port()
    acknowledged = {publish(port, b"kept %d" % n).headers["x-message-id"] for n in range(3)}

    failing = Failing(child.process.pid, calls)
    answers: list[Answer] = []

    def hopeful(n: int) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(
                publish(port, body + b"%d" % n) if n % 2 else ask(port, "GET", "/queue/orders?n=1")
            )

    clients = [threading.Thread(target=hopeful, args=(n,)) for n in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    status = child.process.wait(PATIENCE)
    failing.end()

    assert answers == []
    assert status > 0
    assert "the store failed, stopping at once" in child.said
    with pytest.raises(ConnectionRefusedError):
        publish(port)
    port = serve(store).port()
    # Q, or F where a fetch was stored and not answered: its lease decides.
    assert {ask(port, "GET", f"/v1/messages/{id}").json()["state"] for id in acknowledged} <= {"Q", "F"}
