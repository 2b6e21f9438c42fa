"""A database that must not be served is refused in one line; an empty one is made ready."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from threading import Barrier

import psycopg
import pytest

from scripts.postgres_server import Server, programs
from tests.conftest import miss
from tests.postgres.fixtures import database, databases
from tests.postgres.server import Databases
from waypost.delivery import Outcome
from waypost.errors import StoreUnusable
from waypost.stores.opening import described, open_store
from waypost.stores.postgres import connecting
from waypost.stores.postgres.connecting import SCHEMA, migrate
from waypost.stores.postgres.names import Db
from waypost.testing import Hand, MovableClock
from waypost.testing.hand import publish

__all__ = ["database"]


def refusal(url: str) -> str:
    with pytest.raises(StoreUnusable) as refused:
        open_store(url)
    line = str(refused.value)
    assert "\n" not in line
    return line


def waypost(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "waypost", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )


def test_an_empty_database_is_made_ready_by_itself() -> None:
    store = open_store(databases().empty())
    assert store.bounds() == (1, 0)
    store.close()


def test_migrate_makes_the_tables_once() -> None:
    url = databases().empty()
    assert migrate(url) == (0, SCHEMA)
    assert migrate(url) == (SCHEMA, SCHEMA)


def test_a_start_that_ends_while_it_makes_the_tables_leaves_the_database_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = databases().empty()
    step = connecting._step

    def last_one_fails(db: Db, number: int) -> None:
        if number == SCHEMA:
            raise KeyboardInterrupt
        step(db, number)

    monkeypatch.setattr(connecting, "_step", last_one_fails)
    with pytest.raises(KeyboardInterrupt):
        migrate(url)
    monkeypatch.undo()
    with psycopg.connect(url) as connection:
        assert connecting.schema_version(connection.cursor()) == 0
    open_store(url).close()


def test_migrate_says_what_it_did() -> None:
    url = databases().empty()
    made = waypost("migrate", "--store", url)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.rstrip().endswith(f"schema {SCHEMA}, made")
    assert waypost("migrate", "--store", url).stdout.rstrip().endswith(f"schema {SCHEMA}, up to date")


def test_many_that_start_on_an_empty_database_do_not_get_in_each_others_way() -> None:
    """Ten times eight at once: what they meet of each other's half-made tables is chance."""
    with ThreadPoolExecutor(8) as brokers:
        for _ in range(10):
            url = databases().empty()
            at_once = Barrier(8)

            def start(url: str = url, at_once: Barrier = at_once) -> tuple[int, int]:
                at_once.wait(20)
                return migrate(url)

            migrated = [future.result(60) for future in [brokers.submit(start) for _ in range(8)]]
            assert {after for _, after in migrated} == {SCHEMA}


def test_a_database_of_a_newer_version_is_refused_and_left_alone(database: str) -> None:
    store = open_store(database)
    store.apply([publish("a.x")])
    store.close()
    with psycopg.connect(database) as connection:
        connection.execute("insert into migrations (number) values (%s)", (SCHEMA + 2,))
    try:
        assert "newer Waypost" in refusal(database)
        with pytest.raises(StoreUnusable, match="newer Waypost"):
            migrate(database)
    finally:
        with psycopg.connect(database) as connection:
            connection.execute("delete from migrations where number = %s", (SCHEMA + 2,))
    store = open_store(database)
    assert store.bounds() == (1, 2)
    store.close()


def with_schema(version: int) -> str:
    url = databases().empty()
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table migrations (number integer primary key, at timestamptz not null default now())"
        )
        for number in range(1, version + 1):
            step = files("waypost.stores.postgres").joinpath("migrations", f"{number:03}.sql").read_text()
            connection.execute(step.encode())
            connection.execute("insert into migrations (number) values (%s)", (number,))
    return url


def test_a_database_of_the_last_version_is_served_and_has_marks_once_it_is_migrated() -> None:
    url = with_schema(SCHEMA - 1)
    clock = MovableClock()
    hand = Hand(open_store(url), clock)
    try:
        hand.declare("a", complete=2, retries=5)
        hand.publish("a.x")
        first = hand.one("a", "ann")
        assert hand.fetch("a", "ann") == []
        hand.reap()
        assert migrate(url) == (SCHEMA - 1, SCHEMA)
        assert hand.fetch("a", "ann") == []
        hand.confirm(first, Outcome.RETRY, delay_us=0)
        assert hand.one("a", "ann").id == first.id
        with psycopg.connect(url) as connection:
            assert connection.execute("select lowers from brokers").fetchall() == [(True,)]
            assert connection.execute("select sequence from lowerings").fetchall() == [(1,)]
    finally:
        hand.store.close()


def test_a_database_of_the_version_before_that_is_to_be_migrated_first() -> None:
    url = with_schema(SCHEMA - 2)
    assert "run: waypost migrate" in refusal(url)
    assert migrate(url) == (SCHEMA - 2, SCHEMA)
    open_store(url).close()


def test_a_wrong_url_is_one_line() -> None:
    assert "cannot connect" in refusal("postgresql://127.0.0.1:1/nowhere")
    assert "cannot connect" in refusal("postgresql://user@127.0.0.1:notaport/x")
    assert "cannot connect" in refusal("postgresql://no-such-host.invalid/x")
    for odd in ("me:s3cret@[::1/x", "me:s3cret@127.0.0.1:5432:1/x", "me:s3cret@127.0.0.1/x?nonsense=1"):
        line = refusal(f"postgresql://{odd}")
        assert "cannot connect" in line
        assert "s3cret" not in line


def test_serve_refuses_in_one_line_and_never_says_the_password() -> None:
    failed = waypost("serve", "--port", "0", "--store", "postgresql://me:s3cret@127.0.0.1:1/nowhere")
    assert failed.returncode == 1
    assert len(failed.stderr.strip().splitlines()) == 1
    assert "s3cret" not in failed.stderr + failed.stdout
    assert "s3cret" not in described("postgresql://me:s3cret@127.0.0.1:1/nowhere?password=s3cret")


def test_the_settings_do_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYPOST_STORE", "postgresql://me:s3cret@127.0.0.1/waypost")
    for more in ([], ["--json"]):
        shown = waypost("config", *more)
        assert shown.returncode == 0
        assert "s3cret" not in shown.stdout + shown.stderr
        assert "me@127.0.0.1" in shown.stdout


def test_a_user_without_rights_is_refused() -> None:
    url = databases().empty()
    name = "waypost_nobody"
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("select 1 from pg_roles where rolname = %s", (name,)).fetchone() is None:
            connection.execute(f"create role {name} login".encode())
    parts = psycopg.conninfo.conninfo_to_dict(url)
    theirs = f"postgresql://{name}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    assert "may not create" in refusal(theirs)
    migrate(url)
    line = refusal(theirs)
    assert "permission denied" in line or "may not" in line


@pytest.fixture(scope="module")
def careless() -> Iterator[Server]:
    found = programs()
    if found is None:
        miss("PostgreSQL's programs are not on this machine")
    assert found is not None
    made = Server(found)
    yield made
    made.remove()


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_may_lose_commits_is_refused(careless: Server, setting: str) -> None:
    url = Databases(careless.url).new()
    open_store(url).close()
    careless.stop()
    careless.start(f"{setting}=off")
    try:
        assert f"{setting} off" in refusal(url)
    finally:
        careless.stop()
        careless.start()


def test_without_the_driver_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waypost.stores.opening.find_spec", lambda name: None)
    assert "waypost[postgres]" in refusal("postgresql://127.0.0.1/waypost")
