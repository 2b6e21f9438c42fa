"""Databases for the tests, each with one of its own: on a server that is reachable, or on one that is started for them.

WAYPOST_TEST_POSTGRES=postgresql://…      is used as it is; its user must be allowed to create databases
scripts/postgres_server.py                else
"""

from __future__ import annotations

import os
from itertools import count

import psycopg

from waypost.stores.postgres.connecting import migrate

VARIABLE = "WAYPOST_TEST_POSTGRES"
#: names databases, on whichever server
SERIAL = count(1)


class Databases:
    """Databases on a server, each with Waypost's tables. One that a test is done with is swept for the next: quicker than a new one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names: list[str] = []
        self._swept: list[str] = []

    def new(self) -> str:
        if self._swept:
            return self._swept.pop()
        url = self.empty()
        migrate(url)
        return url

    def empty(self) -> str:
        name = f"waypost_{os.getpid()}_{next(SERIAL)}"
        self._do(f"create database {name}")
        self._names.append(name)
        head, _, tail = self.url.partition("?")
        return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{tail}" if tail else "")

    def give_back(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            for table in SWEPT:
                connection.execute(f"delete from {table}".encode())
            connection.execute(
                "update log_head set next = 1, at = 0, oldest = 1, sealed = null, turn = turn + 1, version = version + 1,"
                " undecided = 0, snapshot_at = 0, snapshot_next = 1"
            )
        self._swept.append(url)

    def remove(self) -> None:
        for name in self._names:
            self._do(f"drop database if exists {name} with (force)")

    def _do(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


SWEPT = [
    "destinations",
    "counts",
    "objects",
    "unchanged",
    "consumers",
    "spectators",
    "messages",
    "payloads",
    "deliveries",
    "fetches",
    "events",
    "parties",
    "idempotency",
    "contents",
    "latest",
    "jobs",
    "uploads",
    "batches",
    "erasures",
    "snapshots",
    "brokers",
    "lowerings",
    "owned",
]
