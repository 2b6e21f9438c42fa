"""The wheel alone is Waypost: built here, installed into an empty environment, it serves messages."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from waypost.version import __version__

ROOT = Path(__file__).parents[2]

#: The first test that asks for it also builds the wheel and installs a dozen packages.
pytestmark = pytest.mark.timeout(400)

#: No proxy of the environment stands between the test and its own machine.
OPENER = build_opener(ProxyHandler({}))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


def ask(verb: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    request = Request(url, data=body, headers=dict(headers or {}), method=verb)
    try:
        with OPENER.open(request, timeout=20) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.headers, refusal.read())


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel and what it depends on; not even pip beside it."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "--quiet")
    run(*pip, "--constraint", ROOT / "constraints.txt", wheel)
    return venv / "bin"


@pytest.fixture
def served(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a broker that runs from the wheel, away from this repository; it must end well."""
    port = free_port()
    store = f"sqlite:///{tmp_path / 'data' / 'waypost.db'}"
    bare = {"PATH": os.defpath, "HOME": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        broker = subprocess.Popen(
            [installed / "waypost", "serve", "--store", store, "--port", str(port)],
            cwd=tmp_path,
            env=bare,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, broker, log)
        yield url
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=15) == 0, log.read_text("utf-8")
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.wait()


def wait_until_ready(url: str, broker: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + 30
    while True:
        assert broker.poll() is None, log.read_text("utf-8")
        try:
            if ask("GET", f"{url}/health/ready").status == 200:
                return
        except URLError:
            pass  # nobody listens yet
        assert time.monotonic() < give_up_at, log.read_text("utf-8")
        time.sleep(0.05)


def test_the_wheel_carries_the_package_with_its_sql_and_types_and_nothing_beside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shipped = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "waypost").rglob("*")
        if path.suffix in {".py", ".sql", ".typed"}
    }
    assert shipped <= names
    assert "waypost/py.typed" in names
    assert any(name.endswith(".sql") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "waypost",
        "pyspark_waypost",
        f"waypost-{__version__}.dist-info",
    }


def test_the_installed_command_tells_its_version(installed: Path) -> None:
    assert __version__ in run(installed / "waypost", "--version")


def test_the_installed_broker_takes_gives_and_settles_a_message(served: str) -> None:
    body = json.dumps({"id": 17, "name": "Ada"}).encode()

    published = ask(
        "POST", f"{served}/in/customer/customer.changed", body, {"Content-Type": "application/json"}
    )
    assert published.status == 201
    message = published.headers["X-Message-Id"]
    assert json.loads(published.body)["id"] == message

    fetched = ask("GET", f"{served}/queue/customer?wait=5&consumer=crm")
    assert (fetched.status, fetched.body) == (200, body)
    assert fetched.headers["X-Message-Id"] == message
    assert fetched.headers["Content-Type"] == "application/json"

    verdict = json.dumps({"receipts": [fetched.headers["Waypost-Receipt"]], "outcome": "success"}).encode()
    confirmed = ask("POST", f"{served}/queue/customer/confirm?consumer=crm", verdict)
    assert confirmed.status == 200
    (result,) = json.loads(confirmed.body)["results"]
    assert (result["id"], result["state"]) == (message, "S")

    assert ask("GET", f"{served}/queue/customer?consumer=crm").status == 204
    assert json.loads(ask("GET", f"{served}/v1/messages/{message}").body)["state"] == "X"


def test_without_the_lake_extra_the_broker_says_what_is_missing(served: str, tmp_path: Path) -> None:
    assert "info lake: off, because it needs: pip install 'waypost[lake]'" in (tmp_path / "log").read_text()
    status = json.loads(ask("GET", f"{served}/v1/lake").body)
    assert (status["lake"], status["failure"]) == (None, None)
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    for verb, path in (("GET", "/log"), ("GET", "/v1/tables/messages"), ("POST", "/v1/lake/seal")):
        refused = ask(verb, served + path, headers=arrow)
        assert refused.status == 501
        assert "pip install 'waypost[lake]'" in json.loads(refused.body)["hint"]
    for path in ("/v1/uploads", "/v1/messages"):
        refused = ask("POST", served + path, b"rows", {"Content-Type": arrow["Accept"]})
        assert refused.status == 501
        assert "pip install 'waypost[lake]'" in json.loads(refused.body)["hint"]
    assert not (tmp_path / "data" / "lake").exists()


def test_the_installed_package_needs_nothing_that_its_metadata_leaves_out(installed: Path) -> None:
    run(sys.executable, "-m", "pip", "--python", installed / "python", "check")
    assert shutil.which("pip", path=str(installed)) is None
    run(
        installed / "python",
        "-c",
        "import waypost, waypost.client, waypost.cli, waypost.http, waypost.stores",
    )
