"""Connections, what is checked before the first answer, and the schema's version.

A database that does not sync its commits is refused: an answer would promise what a power cut takes back.
"""

from __future__ import annotations

import logging
import select
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from ...errors import StoreUnusable
from ..urls import masked, without_password
from .columns import Column, ColumnDumper
from .names import Db

log = logging.getLogger("waypost")

#: the schema that this code was written for; it serves SCHEMA - 1 as well
SCHEMA = 3
CONNECT_SECONDS = 5
#: a statement or a wait for a lock that takes longer is given up, and the group runs again
STATEMENT_MS = 15_000
#: a transaction whose broker hangs is ended by the server, so that others go on
IDLE_MS = 10_000
#: Plans that a group could get and must not: each is right for the small table that the statistics know and slow for the large one that
#: it has become. Everything a group reads has an index. Where a table is so small that it has none, the planner thinks it dear, and
#: must not compile it. And none is made anew for the values of one group: for a small one that takes longer than the group.
_PLANS = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
) | {"plan_cache_mode": "force_generic_plan"}
#: settings without which a commit that was answered can be lost
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")

Conn = Connection[tuple[Any, ...]]


def connect(url: str, *, autocommit: bool = False, name: str = "waypost") -> Conn:
    """Raises psycopg.Error."""
    options = f"-c statement_timeout={STATEMENT_MS} -c idle_in_transaction_session_timeout={IDLE_MS}"
    given = psycopg.conninfo.conninfo_to_dict(url)
    connection = Connection.connect(
        url,
        autocommit=autocommit,
        application_name=given.get("application_name") or name,
        connect_timeout=given.get("connect_timeout") or CONNECT_SECONDS,
        options=f"{given.get('options') or ''} {options}".strip(),
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    # One type for all whole numbers, so that a statement is prepared once and not for each size of them.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(Column, ColumnDumper)
    return connection


def connect_for_groups(url: str) -> Conn:
    """Raises psycopg.Error."""
    connection = connect(url)
    # By what the server has of them, as CockroachDB has not all.
    connection.execute(
        "select set_config(s.name, u.value, false) from pg_settings s"
        " join unnest(%s::text[], %s::text[]) as u (name, value) on u.name = s.name",
        (list(_PLANS), list(_PLANS.values())),
    )
    connection.commit()
    return connection


def begin_by_hand(connection: Conn) -> None:
    """The driver's own BEGIN waits for its answer, also where a pipeline waits for none."""
    connection.autocommit = True


def begin(connection: Conn) -> None:
    """A transaction, if there is none; with what follows in a pipeline."""
    if connection.info.transaction_status is TransactionStatus.IDLE:
        connection.execute("begin", prepare=False)


def check_unheard(connection: Conn) -> None:
    """Of one that nothing was asked of: the server has not ended it. Whoever sends all of a group at once could not tell later whether it
    was done. Raises psycopg.OperationalError."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise psycopg.OperationalError("the server ended the connection")


def one_line(error: BaseException) -> str:
    """What a driver says, without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def open_checked(url: str) -> Conn:
    """A connection to a database that may be served, its schema made if there was none. Raises StoreUnusable."""
    try:
        connection = connect_for_groups(url)
    except (psycopg.Error, ValueError) as error:
        raise StoreUnusable(without_password(f"cannot connect to {url}: {one_line(error)}", url)) from error
    try:
        db = connection.cursor()
        check_durable(db, url)
        version = schema_version(db)
        if version == 0:
            create(connection, url)
        else:
            check_schema(db, url)
        check_rights(db, url)
        connection.commit()
        return connection
    except StoreUnusable:
        connection.close()
        raise
    except psycopg.Error as error:
        connection.close()
        raise StoreUnusable(without_password(f"{url} cannot be served: {one_line(error)}", url)) from error


def check_durable(db: Db, url: str) -> None:
    for setting in _DURABLE:
        db.execute("select setting from pg_settings where name = %s", (setting,))
        row = db.fetchone()
        if row is not None and row[0] == "off":
            raise StoreUnusable(
                f"{masked(url)} has {setting} off: a commit that was answered could be lost; turn it on"
            )


def check_schema(db: Db, url: str) -> None:
    """One that this code can serve, and not a copy that was broken off."""
    version = schema_version(db)
    if version < SCHEMA - 1:
        raise StoreUnusable(f"{masked(url)} has schema {version}; run: waypost migrate --store {masked(url)}")
    if version > SCHEMA + 1:
        raise StoreUnusable(
            f"{masked(url)} has schema {version}, from a newer Waypost; this one knows up to {SCHEMA}"
        )
    if is_unfinished(db):
        raise StoreUnusable(f"{masked(url)} is a copy that was not finished: run `waypost copy` to it again")


def is_unfinished(db: Db) -> bool:
    db.execute("select to_regclass('copying') is not null")
    row = db.fetchone()
    return row is not None and bool(row[0])


def check_rights(db: Db, url: str) -> None:
    """Reading and writing its tables, before the first message comes."""
    db.execute("select count(*) from (select 1 from events limit 1) e")
    db.execute("update log_head set next = next where one = 0")
    tables = ["messages", "deliveries", "events", "brokers"]
    if schema_version(db) >= SCHEMA:
        tables.append("lowerings")
    for table in tables:
        db.execute("select has_table_privilege(%s, 'insert, update, delete')", (table,))
        row = db.fetchone()
        if row is not None and not row[0]:
            raise StoreUnusable(f"{masked(url)}: this user may not write to table {table}; grant it")


def schema_version(db: Db) -> int:
    """0: there is none."""
    db.execute("select to_regclass('migrations') is not null")
    row = db.fetchone()
    if row is None or not row[0]:
        return 0
    db.execute("select coalesce(max(number), 0) from migrations")
    row = db.fetchone()
    return 0 if row is None else int(row[0])


def create(connection: Conn, url: str) -> None:
    """`serve` on an empty database."""
    try:
        migrate_connection(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnusable(
            f"{masked(url)} is empty and this user may not create tables; run as one who may: waypost migrate"
        ) from error
    log.info("store: made the tables of schema %d", SCHEMA)


def migrate(url: str) -> tuple[int, int]:
    """(schema before, schema after). Raises StoreUnusable."""
    try:
        with connect(url) as connection:
            return migrate_connection(connection)
    except (psycopg.Error, ValueError) as error:
        raise StoreUnusable(without_password(f"cannot migrate {url}: {one_line(error)}", url)) from error


#: a table is a row, a name and a type: which of them is met first is chance
_MADE_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)


def migrate_connection(connection: Conn) -> tuple[int, int]:
    """Each step in a transaction of its own, one broker at a time: the others wait for the row that it is about to write. An empty
    database becomes whole or stays empty: whoever starts meanwhile, or after a kill, finds nothing that it must refuse."""
    db = connection.cursor()
    try:
        db.execute(
            "create table if not exists migrations (number integer primary key, at timestamptz not null default now())"
        )
        connection.commit()
    except _MADE_MEANWHILE:
        connection.rollback()  # `if not exists` does not wait for one that another makes at this moment
    before = version = schema_version(db)
    connection.commit()
    if version > SCHEMA:
        raise StoreUnusable(
            f"the database has schema {version}, from a newer Waypost; this one knows up to {SCHEMA}"
        )
    while version < SCHEMA:
        following = version + 1 if version else SCHEMA
        try:
            for number in range(version + 1, following + 1):
                _step(db, number)
            connection.commit()
            version = following
        except psycopg.errors.DeadlockDetected:
            connection.rollback()  # a broker that reaps was in the way
    return before, version


def _step(db: Db, number: int) -> None:
    db.execute("insert into migrations (number) values (%s) on conflict do nothing", (number,))
    if db.rowcount:
        db.execute(files(__package__).joinpath("migrations", f"{number:03}.sql").read_text().encode())
