"""A broker as a process, on the embedded store, and the command line against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.commands import Broker, Done, Waypost, end, serve
from waypost.cli import run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = serve(tmp_path_factory.mktemp("broker"), "--push-allow", "127.0.0.0/8")
    try:
        yield started
        end(started)
    finally:
        started.process.kill()


@pytest.fixture
def waypost(broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Waypost:
    """Runs a command against the broker."""
    monkeypatch.setenv("WAYPOST_URL", broker.url)

    def command(*arguments: str) -> Done:
        capsys.readouterr()
        code = run(arguments)
        return Done(code, *capsys.readouterr())

    return command
