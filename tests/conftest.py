"""What every test shares: how a missing server is treated.

    @pytest.mark.needs("strace")      the names are those of scripts/test_servers.py

Without its server a test skips with the reason at home and fails under CI=true, where nothing may be missing
silently. The run ends with the commands that install what was missing.

Files of tests lie in memory where there is room (`--basetemp=DIR` puts them elsewhere): syncs take most of their time, and no test here cuts the
power. Those of the folder store lie on the disk.

`make test` runs two tests at a time, in two processes that are handed one test after the other; those that take longest begin first. All tests of
Spark go to one of them, so that there is one session.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.test_servers import SERVERS, table

#: what is longest comes first
FIRST = ("spark", "integration")
#: a file system in memory, and what must be free there
QUICK, QUICK_BYTES = "/dev/shm", 8 << 30
_ABSENT = "is not on this machine"
_MADE = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.basetemp is not None:
        return
    if os.access(QUICK, os.W_OK) and shutil.disk_usage(QUICK).free >= QUICK_BYTES:
        config.option.basetemp = config.stash[_MADE] = tempfile.mkdtemp(prefix="waypost-tests-", dir=QUICK)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (made := config.stash.get(_MADE, None)) is not None:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="waypost-") as folder:
        yield Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(_folder(item)) if _folder(item) in FIRST else len(FIRST))


def _folder(item: pytest.Item) -> str:
    tests = Path(__file__).parent
    return item.path.relative_to(tests).parts[0] if tests in item.path.parents else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class SparkTogether(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return SparkTogether(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for server in (SERVERS[name] for name in marker.args):
            if server.missing():
                miss(f"{server.name} {_ABSENT}: {server.install_command()}")


def miss(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        str(report.longrepr)
        for kind in ("skipped", "failed", "error")
        for report in terminalreporter.stats.get(kind, [])
    ]
    missed = [server for server in SERVERS.values() if any(f"{server.name} {_ABSENT}" in why for why in told)]
    if missed:
        terminalreporter.section("servers that were missing, and how to get them")
        for line in table(missed):
            terminalreporter.line(line)
