"""The PostgreSQL store beside the memory store, with restarts, and crashes that end its connections wherever they are."""

import os

import psycopg
import pytest
from hypothesis import settings

from tests.postgres.fixtures import databases
from waypost.message import Entropy
from waypost.stores.postgres import PostgresStore
from waypost.testing.clock import MovableClock
from waypost.testing.model import PROFILE, QUICK, machine


class Database:
    """A crash ends every connection from the server's side: nothing is closed by the store."""

    def __init__(self) -> None:
        self.url = databases().new()

    def open(self, clock: MovableClock, entropy: Entropy) -> PostgresStore:
        return PostgresStore(self.url, clock=clock, entropy=entropy)

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
TestPostgresAgainstMemory.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]
