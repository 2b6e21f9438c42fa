"""Uploads and batches in their tables.

A chunk is written by a connection of its own, before anybody counts on it: no group waits while megabytes travel. The commands are rare and have
transactions of their own, so they write at once; whoever enters rows holds the batch's row until the rows are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from ...commands import Batch, Upload
from ...errors import StoreUnavailable, UploadNotFound
from .. import BATCH_KEPT_US, UPLOAD_KEPT_US
from .connecting import connect, one_line
from .names import Db

SWEPT_AT_ONCE = 100

_UPLOAD = "id, rows, hash, size, kept_at, batch, position from uploads where rows is not null"
_BATCH = "query, batch, number, rows, hash, accepted_at, entered, ended_at from batches"


def put_chunk(url: str, id: str, chunk: bytes, now: int) -> None:
    """Committed when it returns; from any thread."""
    try:
        with connect(url, name="waypost uploads") as connection:
            connection.execute(
                "insert into uploads (id, kept_at, size, position, chunk) values (%s, %s, %s, 0, %s)",
                (id, now, len(chunk), chunk),
            )
    except psycopg.Error as error:
        raise StoreUnavailable(one_line(error)) from error


def chunk_of(db: Db, id: str) -> bytes | None:
    db.execute("select chunk from uploads where id = %s", (id,))
    row = db.fetchone()
    return None if row is None else bytes(row[0])


def keep_upload(db: Db, upload: Upload) -> None:
    db.execute(
        "update uploads set rows = %s, hash = %s, kept_at = %s where id = %s",
        (upload.rows, upload.hash, upload.kept_at, upload.id),
    )
    if not db.rowcount:
        raise UploadNotFound(upload.id)


def uploads_named(db: Db, ids: Sequence[str]) -> list[Upload | None]:
    """One for each, and nobody else takes them meanwhile."""
    db.execute(f"select {_UPLOAD} and id = any(%s) order by id for update", (list(ids),))
    found = {row[0]: _upload(row) for row in db.fetchall()}
    return [found.get(id) for id in ids]


def uploads_of(db: Db, batch: int | None) -> list[Upload]:
    where, values = ("is null", ()) if batch is None else ("= %s", (batch,))
    db.execute(f"select {_UPLOAD} and batch {where} order by position", values)
    return [_upload(row) for row in db.fetchall()]


def batch_named(db: Db, query: str, batch: int, lock: bool = False) -> Batch | None:
    more = " for update" if lock else ""
    db.execute(f"select {_BATCH} where query = %s and batch = %s{more}", (query, batch))
    row = db.fetchone()
    return None if row is None else _batch(row)


def batches(db: Db, only_open: bool) -> list[Batch]:
    """By number."""
    db.execute(f"select {_BATCH}{' where ended_at is null' if only_open else ''} order by number")
    return [_batch(row) for row in db.fetchall()]


def newest_batch(db: Db) -> int:
    db.execute("select coalesce(max(number), 0) from batches")
    row = db.fetchone()
    assert row is not None
    return int(row[0])


def add_batch(db: Db, batch: Batch, uploads: Sequence[Upload]) -> None:
    db.execute(
        "insert into batches (number, query, batch, rows, hash, accepted_at, entered, ended_at)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s)",
        (
            batch.number,
            batch.query,
            batch.batch,
            batch.rows,
            batch.hash,
            batch.accepted_at,
            batch.entered,
            batch.ended_at,
        ),
    )
    for position, upload in enumerate(uploads):
        db.execute(
            "update uploads set batch = %s, position = %s where id = %s", (batch.number, position, upload.id)
        )


def move_batch(db: Db, batch: Batch) -> None:
    db.execute(
        "update batches set entered = %s, ended_at = %s where number = %s",
        (batch.entered, batch.ended_at, batch.number),
    )
    if batch.ended_at is not None:
        db.execute("delete from uploads where batch = %s", (batch.number,))


def forget(db: Db, now: int) -> bool:
    """What was kept for long enough; whether more is left."""
    db.execute("delete from batches where ended_at <= %s", (now - BATCH_KEPT_US,))
    db.execute(
        "delete from uploads where id in (select id from uploads where batch is null and kept_at <= %s limit %s)",
        (now - UPLOAD_KEPT_US, SWEPT_AT_ONCE),
    )
    return db.rowcount == SWEPT_AT_ONCE


def _upload(row: tuple[Any, ...]) -> Upload:
    id, rows, hash, size, kept_at, batch, position = row
    return Upload(
        id=id, rows=rows, hash=bytes(hash), size=size, kept_at=kept_at, batch=batch, position=position
    )


def _batch(row: tuple[Any, ...]) -> Batch:
    query, batch, number, rows, hash, accepted_at, entered, ended_at = row
    return Batch(
        query=query,
        batch=batch,
        number=number,
        rows=rows,
        hash=bytes(hash),
        accepted_at=accepted_at,
        entered=entered,
        ended_at=ended_at,
    )
