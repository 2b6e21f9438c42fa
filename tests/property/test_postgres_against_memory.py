"""Two brokers on one PostgreSQL beside the memory store: groups go to the one or the other, and nothing tells which. With restarts, and crashes
that end their connections wherever they are."""

import os
from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import settings

from tests.postgres.fixtures import databases
from waypost.commands import Command
from waypost.message import Entropy
from waypost.store import Applied
from waypost.stores.postgres import PostgresStore
from waypost.testing.clock import MovableClock
from waypost.testing.model import PROFILE, QUICK, machine


class TwoBrokers(PostgresStore):
    """Its groups go now through this broker, now through another one."""

    def __init__(self, url: str, clock: MovableClock, entropy: Entropy) -> None:
        super().__init__(url, clock=clock, entropy=entropy)
        self._other = PostgresStore(url, clock=clock, entropy=entropy)
        self._groups = 0

    def apply(self, commands: Sequence[Command]) -> Applied:
        self._groups += 1
        return super().apply(commands) if self._groups % 5 < 3 else self._other.apply(commands)

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        super().use_lake(on, holds)
        self._other.use_lake(on, holds)

    def close(self) -> None:
        self._other.close()
        super().close()


class Database:
    """A crash ends every connection from the server's side: nothing is closed by the store."""

    def __init__(self) -> None:
        self.url = databases().new()

    def open(self, clock: MovableClock, entropy: Entropy) -> PostgresStore:
        return TwoBrokers(self.url, clock, entropy)

    def crash(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )

    def remove(self) -> None:
        databases().give_back(self.url)


#: a step costs some round trips here: fewer walks
FEW = PROFILE if os.environ.get("WAYPOST_PROVE") else settings(QUICK, max_examples=6, stateful_step_count=40)

TestPostgresAgainstMemory = machine(Database, FEW).TestCase
TestPostgresAgainstMemory.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(0 if os.environ.get("WAYPOST_PROVE") else 300)
]
