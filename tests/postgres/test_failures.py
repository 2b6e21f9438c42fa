"""Connections that break, servers that restart, groups that stand in each other's way: retried, or a clear 503; nothing twice."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from scripts.postgres_server import Server, programs
from tests.conftest import miss
from tests.postgres.fixtures import database
from tests.postgres.proxy import Cut, Proxy
from tests.postgres.server import Databases
from waypost.commands import Confirm, Fetch, Published
from waypost.delivery import S
from waypost.errors import StoreUnavailable
from waypost.stores.postgres import PostgresStore
from waypost.stores.postgres import lane as lane_module
from waypost.testing import audit
from waypost.testing.hand import publish

__all__ = ["database"]


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    made = Proxy(int(psycopg.conninfo.conninfo_to_dict(database)["port"] or 5432))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be stopped and killed."""
    found = programs()
    if found is None:
        miss("PostgreSQL's programs are not on this machine")
    assert found is not None
    made = Server(found)
    yield made
    made.remove()


def through(proxy: Proxy, url: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{parts['user']}@127.0.0.1:{proxy.port}/{parts['dbname']}"


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_done_twice(
    database: str, proxy: Proxy, cut: Cut
) -> None:
    store = PostgresStore(through(proxy, database))
    store.apply([publish("a.x", body=b"before")])
    proxy.cut = cut
    (published,) = store.apply([publish("a.x", body=b"in doubt")]).results
    assert proxy.cuts == 1
    assert isinstance(published, Published)
    info = store.queue("a")
    assert info is not None
    assert sum(info.states.values()) == 2
    assert store.body(published.id) == b"in doubt"
    proxy.cut = cut
    (fetched,) = store.apply([Fetch(queue="a", n=2, consumer="ann")]).results
    assert [message.attempt for message in fetched] == [1, 1]
    proxy.cut = cut
    (settled,) = store.apply([Confirm(queue="a", receipts=[one.receipt for one in fetched])]).results
    assert [one.state for one in settled] == [S, S]
    assert proxy.cuts == 3
    audit(store)
    store.close()


def test_a_group_that_its_server_is_still_at_work_on_is_not_done_twice(database: str) -> None:
    """The connection breaks while somebody keeps the server from going on; it has COMMIT before itself already."""
    store = PostgresStore(database)
    store.apply([publish("a.x")])
    store.lane._others_at = time.monotonic()  # alone, it would wait for nobody
    results: list[object] = []
    with psycopg.connect(database) as holder:
        holder.execute("select 1 from counts for update")
        command = publish("a.x", body=b"once")
        thread = threading.Thread(target=lambda: results.extend(store.apply([command]).results))
        thread.start()
        _until_somebody_waits(database)
        assert store.lane.connection is not None
        with socket.socket(fileno=os.dup(store.lane.connection.fileno())) as broken:
            broken.shutdown(socket.SHUT_RDWR)
        _until_somebody_waits(database, 2)
        holder.rollback()
    thread.join(20)
    (published,) = results
    assert isinstance(published, Published)
    assert store.body(published.id) == b"once"
    info = store.queue("a")
    assert info is not None
    assert sum(info.states.values()) == 2
    audit(store)
    store.close()


def test_a_deadlock_is_run_again(database: str) -> None:
    store = PostgresStore(database)
    (published,) = store.apply([publish("a.x")]).results
    info = store.message(published.id)
    assert info is not None
    (fetched,) = store.apply([Fetch(queue="a", consumer="ann")]).results
    # Somebody holds the log's head and then wants the message: the other way round.
    with psycopg.connect(database) as rival:
        rival.execute("select 1 from log_head for update")
        results: list[object] = []
        confirm = Confirm(queue="a", receipts=[fetched[0].receipt])
        thread = threading.Thread(target=lambda: results.extend(store.apply([confirm]).results))
        thread.start()
        _until_somebody_waits(database)
        try:
            rival.execute("select 1 from messages where sequence = %s for update", (info.sequence,))
        except psycopg.errors.DeadlockDetected:
            rival.rollback()
        else:
            rival.commit()
        thread.join(20)
    (settled,) = results
    assert [one.state for one in settled] == [S]  # type: ignore[attr-defined]
    audit(store)
    store.close()


def _until_somebody_waits(url: str, waiting: int = 1) -> None:
    deadline = time.monotonic() + 10
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                " and datname = current_database()"
            ).fetchone()
            if row is not None and row[0] >= waiting:
                return
            time.sleep(0.01)
    raise AssertionError("nobody waits")


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_what_was_acknowledged_survives_the_server_under_load(server: Server, how: str) -> None:
    url = Databases(server.url).new()
    store = PostgresStore(url)
    acknowledged: list[str] = []
    refused = 0
    stop = threading.Event()

    def produce() -> None:
        nonlocal refused
        number = 0
        while not stop.is_set():
            commands = [publish("a.x", body=f"{number}-{n}".encode()) for n in range(5)]
            number += 1
            for command, result in zip(commands, store.apply(commands).results, strict=True):
                if isinstance(result, Published):
                    acknowledged.append(command.body.decode())  # type: ignore[union-attr]
                else:
                    assert isinstance(result, StoreUnavailable)
                    refused += 1

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(2):
        count = len(acknowledged)
        while len(acknowledged) < count + 50:
            time.sleep(0.01)
        if how == "kill":
            server.kill()
        else:
            server.stop()
        server.start()
    count = len(acknowledged)
    while len(acknowledged) < count + 50:
        time.sleep(0.01)
    stop.set()
    thread.join(30)
    bodies: list[str] = []
    while fetched := store.apply([Fetch(queue="a", n=1_000, consumer="ann")]).results[0]:
        bodies += [message.body.decode() for message in fetched]
    assert set(acknowledged) <= set(bodies), "lost"
    assert len(bodies) == len(set(bodies)), "published twice"
    audit(store)
    store.close()


def test_without_a_server_callers_hear_503_and_the_broker_recovers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "PATIENCE_SECONDS", 0.3)
    url = Databases(server.url).new()
    store = PostgresStore(url)
    store.apply([publish("a.x")])
    server.stop()
    began = time.monotonic()
    (refused,) = store.apply([publish("a.x")]).results
    assert isinstance(refused, StoreUnavailable)
    assert (refused.status, refused.retry_after) == (503, 5)
    assert time.monotonic() - began < 5
    with pytest.raises(StoreUnavailable):
        store.queue("a")
    server.start()
    info = store.queue("a")
    assert info is not None
    assert sum(info.states.values()) == 1, "what was refused was not stored"
    (published,) = store.apply([publish("a.x")]).results
    assert isinstance(published, Published)
    info = store.queue("a")
    assert info is not None
    assert sum(info.states.values()) == 2
    store.close()


def test_a_body_that_does_not_fit_its_checksum_goes_to_the_dead_letters(database: str) -> None:
    store = PostgresStore(database)
    store.apply([publish("a.x", body=b"damaged"), publish("a.x", body=b"whole")])
    with psycopg.connect(database) as connection:
        connection.execute("update payloads set body = 'x' where sequence = 1")
    (fetched,) = store.apply([Fetch(queue="a", n=2)]).results
    assert [message.body for message in fetched] == [b"whole"]
    audit(store)
    store.close()
