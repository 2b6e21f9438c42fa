"""Uploads and batches: chunks in files, what is known of them in small rows.

A chunk goes the way of a large body: written and synced by a thread, before its row; a file that no row names goes at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ...batches import check_same, check_uploads
from ...commands import AcceptBatch, Batch, EnterRows, KeepUpload, Published, PublishMany, Staged, Upload
from ...errors import BatchNotFound
from .. import BATCH_KEPT_US, UPLOAD_KEPT_US
from .rows import Db
from .slots import Ledger

_UPLOAD = "id, rows, hash, size, kept_at, batch, position from uploads"
_BATCH = "query, batch, number, rows, hash, accepted_at, entered, ended_at from batches"
#: uploads that one look for what was left over brings
SWEPT_AT_ONCE = 100


class Batches:
    def __init__(
        self,
        db: Db,
        ledger: Ledger,
        publish_many: Callable[[PublishMany], list[Published]],
        drop_files: Callable[[Iterable[str]], None],
    ) -> None:
        """`drop_files`: names of files to be removed once the group is committed."""
        self._db, self._ledger, self._publish_many, self._drop_files = db, ledger, publish_many, drop_files

    def keep(self, command: KeepUpload) -> Upload:
        body = command.body
        assert isinstance(body, Staged)
        upload = Upload(
            id=command.id, rows=command.rows, hash=command.hash, size=body.size, kept_at=self._ledger.now
        )
        self._db.execute(
            "insert into uploads values (?, ?, ?, ?, ?, null, 0, ?)",
            (upload.id, upload.rows, upload.hash, upload.size, upload.kept_at, body.hash),
        )
        return upload

    def accept(self, command: AcceptBatch) -> Batch:
        known = batch_of(self._db, command.query, command.batch)
        if known is not None:
            return check_same(command, known)
        uploads = check_uploads(command, [_upload(self._db, id) for id in command.uploads])
        now = self._ledger.now
        number = (self._db.execute("select max(number) from batches").get or 0) + 1
        ended_at = None if command.rows else now
        self._db.execute(
            "insert into batches values (?, ?, ?, ?, ?, ?, 0, ?)",
            (number, command.query, command.batch, command.rows, command.hash, now, ended_at),
        )
        self._db.executemany(
            "update uploads set batch = ?, position = ? where id = ?",
            [(number, position, upload.id) for position, upload in enumerate(uploads)],
        )
        return Batch(
            query=command.query,
            batch=command.batch,
            number=number,
            rows=command.rows,
            hash=command.hash,
            accepted_at=now,
            ended_at=ended_at,
        )

    def enter(self, command: EnterRows) -> Batch:
        batch = batch_of(self._db, command.query, command.batch)
        if batch is None:
            raise BatchNotFound(command.query, command.batch)
        if batch.entered != command.after or batch.ended_at is not None:
            return batch
        self._publish_many(PublishMany(command.messages))
        entered = batch.entered + len(command.messages)
        ended_at = self._ledger.now if entered >= batch.rows else None
        self._db.execute(
            "update batches set entered = ?, ended_at = ? where number = ?", (entered, ended_at, batch.number)
        )
        if ended_at is not None:
            self._drop(upload.id for upload in uploads_of(self._db, batch.number))
        return msgspec.structs.replace(batch, entered=entered, ended_at=ended_at)

    def forget(self) -> bool:
        """What was kept for long enough; whether more is left."""
        now = self._ledger.now
        self._db.execute("delete from batches where ended_at <= ?", (now - BATCH_KEPT_US,))
        left = self._db.execute(
            "select id from uploads where batch is null and kept_at <= ? limit ?",
            (now - UPLOAD_KEPT_US, SWEPT_AT_ONCE),
        ).fetchall()
        self._drop(id for (id,) in left)
        return len(left) == SWEPT_AT_ONCE

    def _drop(self, ids: Iterable[str]) -> None:
        names = list(ids)
        self._db.executemany("delete from uploads where id = ?", [(name,) for name in names])
        self._drop_files(names)


def _upload(db: Db, id: str) -> Upload | None:
    row = db.execute(f"select {_UPLOAD} where id = ?", (id,)).get
    return None if row is None else _upload_of(row)


def uploads_of(db: Db, batch: int | None) -> list[Upload]:
    rows = db.execute(f"select {_UPLOAD} where batch is ? order by position", (batch,))
    return [_upload_of(row) for row in rows]


def batch_of(db: Db, query: str, batch: int) -> Batch | None:
    row = db.execute(f"select {_BATCH} where query = ? and batch = ?", (query, batch)).get
    return None if row is None else _batch_of(row)


def open_batches(db: Db) -> list[Batch]:
    return [_batch_of(row) for row in db.execute(f"select {_BATCH} where ended_at is null order by number")]


def all_batches(db: Db) -> list[Batch]:
    return [_batch_of(row) for row in db.execute(f"select {_BATCH} order by number")]


def _upload_of(row: tuple[str, int, bytes, int, int, int | None, int]) -> Upload:
    id, rows, hash, size, kept_at, batch, position = row
    return Upload(id=id, rows=rows, hash=hash, size=size, kept_at=kept_at, batch=batch, position=position)


def _batch_of(row: tuple[str, int, int, int, bytes, int, int, int | None]) -> Batch:
    query, batch, number, rows, hash, accepted_at, entered, ended_at = row
    return Batch(
        query=query,
        batch=batch,
        number=number,
        rows=rows,
        hash=hash,
        accepted_at=accepted_at,
        entered=entered,
        ended_at=ended_at,
    )
