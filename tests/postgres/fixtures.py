"""The server and its databases, as fixtures; imported by the tests that need them."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from functools import cache

import pytest

from scripts.postgres_server import Server, programs
from tests.conftest import miss
from tests.postgres.server import VARIABLE, Databases


@cache
def databases() -> Databases:
    """Started once a run, for whoever asks first."""
    given = os.environ.get(VARIABLE)
    if given:
        made = Databases(given)
        atexit.register(made.remove)
        return made
    found = programs()
    if found is None:
        miss("PostgreSQL is not on this machine: apt-get install -y --no-install-recommends postgresql")
    assert found is not None
    server = Server(found)
    atexit.register(server.remove)
    return Databases(server.url)


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of a database with Waypost's tables and nothing in them."""
    url = databases().new()
    yield url
    databases().give_back(url)
