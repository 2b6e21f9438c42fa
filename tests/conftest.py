"""What every test shares: how a missing server is treated.

    @pytest.mark.needs("strace")      the names are those of scripts/test_servers.py

Without its server a test skips with the reason at home and fails under CI=true, where nothing may be missing
silently. The run ends with the commands that install what was missing.
"""

import os

import pytest

from scripts.test_servers import SERVERS, Server, table

MISSED = pytest.StashKey[dict[str, Server]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MISSED] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for server in (SERVERS[name] for name in marker.args):
            if server.missing():
                item.config.stash[MISSED][server.name] = server
                miss(f"{server.name} is not on this machine: {server.install_command()}")


def miss(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    missed = config.stash[MISSED]
    if missed:
        terminalreporter.section("servers that were missing, and how to get them")
        for line in table(list(missed.values())):
            terminalreporter.line(line)
