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
from waypost.stores.postgres import PostgresStore, lane, recent
from waypost.stores.postgres.group import Keeping
from waypost.testing.clock import MovableClock
from waypost.testing.model import PROFILE, QUICK, machine


class Repeated:
    """Entropy that a group which runs again gets once more: the model has run it once."""

    def __init__(self, draw: Entropy) -> None:
        self._draw = draw
        self._drawn: list[int] = []
        self._at = 0

    def __call__(self) -> int:
        if self._at == len(self._drawn):
            self._drawn.append(self._draw())
        self._at += 1
        return self._drawn[self._at - 1]

    def follow(self, lane: lane.Lane) -> None:
        transact = lane._transact
        before: Sequence[Command] | None = None

        def noted(commands: Sequence[Command], keeping: Keeping) -> Applied:
            nonlocal before
            if commands is not before:
                del self._drawn[: self._at]
            before, self._at = commands, 0
            return transact(commands, keeping)

        lane._transact = noted  # type: ignore[method-assign]


class TwoBrokers(PostgresStore):
    """Its groups go now through this broker, now through another one. Each relies on being alone as soon as it may, and learns every few
    groups that it is not."""

    def __init__(self, url: str, clock: MovableClock, entropy: Entropy) -> None:
        repeated = Repeated(entropy)
        super().__init__(url, clock=clock, entropy=repeated)
        self._other = PostgresStore(url, clock=clock, entropy=repeated)
        for store in (self, self._other):
            repeated.follow(store.lane)
        self._groups = 0

    def apply(self, commands: Sequence[Command]) -> Applied:
        self._groups += 1
        others = self._groups % 17 in (3, 5, 6, 9, 10)
        return self._other.apply(commands) if others else super().apply(commands)

    def use_lake(self, on: bool, holds: int | None = None) -> None:
        super().use_lake(on, holds)
        self._other.use_lake(on, holds)

    def close(self) -> None:
        self._other.close()
        super().close()


ALONE_AFTER_SECONDS = recent.ALONE_AFTER_SECONDS


class Database:
    """A crash ends every connection from the server's side: nothing is closed by the store."""

    def __init__(self) -> None:
        self.url = databases().new()

    def open(self, clock: MovableClock, entropy: Entropy) -> PostgresStore:
        recent.ALONE_AFTER_SECONDS = 0.0
        return TwoBrokers(self.url, clock, entropy)

    def crash(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )

    def remove(self) -> None:
        recent.ALONE_AFTER_SECONDS = ALONE_AFTER_SECONDS
        databases().give_back(self.url)


#: a step costs some round trips here: fewer walks
FEW = PROFILE if os.environ.get("WAYPOST_PROVE") else settings(QUICK, max_examples=6, stateful_step_count=40)

TestPostgresAgainstMemory = machine(Database, FEW).TestCase
TestPostgresAgainstMemory.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(0 if os.environ.get("WAYPOST_PROVE") else 300)
]
