"""Uploads and batches under /v1: how a job of many tasks publishes its rows all or none, and once.

POST /v1/uploads  Arrow ─▶ upload, rows, hash          each task, as often as it likes: kept, and seen by nobody
PUT /v1/batches/{query}/{batch}                        the driver, when every task is done: from here on they enter
GET /v1/batches/{query}/{batch}                        how many are in
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec

from waypost.batches import HASH_BYTES, MOST_UPLOADS, Packing
from waypost.broker import Broker
from waypost.commands import AcceptBatch, Batch
from waypost.errors import (
    BatchConflict,
    BatchNotFound,
    Busy,
    DiskLow,
    NotOffered,
    RequestInvalid,
    UploadNotFound,
)
from waypost.http.answering import WRONG, answer_json
from waypost.http.given import check_query, whole
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, JSON, NAME, ref
from waypost.http.wire import Request
from waypost.instants import instant_text
from waypost.names import check_name
from waypost.store import Feature
from waypost.wire import TooManyMessages, read_json

UPLOAD_BYTES = 8 << 20
UPLOAD_ROWS = 100_000
_LARGEST = 10**18 - 1
#: what a request of Arrow rows is answered where one of them is wrong
ROW_WRONG = Failure(
    422, "TOPIC_INVALID", "and other words that name what is wrong with a row, with its number"
)

_EXTRA = "pip install 'waypost[lake]' where the broker runs"
_HINT = '{"uploads":["…"],"rows":3,"hash":"…"}'


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    uploads: list[str]
    rows: int
    hash: str


_ID = re.compile("[0-9a-f]{32}")
_given = msgspec.json.Decoder(_Given)


def is_arrow(request: Request) -> bool:
    return request.head.headers.get("content-type", "").partition(";")[0].strip().lower() == ARROW


def check_encoding(request: Request) -> None:
    encoding = request.head.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestInvalid(f"a body in {encoding[:60]!r}", "send it as it is", "ENCODING_NOT_TAKEN")


def arrow_rows() -> Any:
    """The module that reads them: with an extra only, and imported in a thread, because that takes a while."""
    try:
        from waypost.http import arrow_rows
    except ImportError:
        raise NotOffered("this broker reads no Arrow", _EXTRA) from None
    return arrow_rows


def _pack(stream: bytes, first: int) -> Packing:
    packing: Packing = arrow_rows().pack_rows(stream, UPLOAD_ROWS, first)
    return packing


def _batch_json(batch: Batch) -> dict[str, Any]:
    return {
        "query": batch.query,
        "batch": batch.batch,
        "rows": batch.rows,
        "hash": batch.hash.hex(),
        "entered": batch.entered,
        "accepted": instant_text(batch.accepted_at),
        "ended": None if batch.ended_at is None else instant_text(batch.ended_at),
    }


def _hash(text: str) -> bytes:
    try:
        hash = bytes.fromhex(text)
    except ValueError:
        hash = b""
    if len(hash) != HASH_BYTES:
        raise RequestInvalid(
            f"not a hash: {text[:60]!r}", "32 hexadecimal digits: the sum of the uploads' modulo 2^128"
        )
    return hash


def rows(broker: Broker) -> list[Route]:
    store = broker.store

    async def upload(request: Request) -> None:
        check_query(request.head)
        if not is_arrow(request):
            raise RequestInvalid("an upload is an Arrow stream", f"Content-Type: {ARROW}", "TYPE_NOT_TAKEN")
        check_encoding(request)
        first = whole(request.head.query.get("first", "1"), "first", 1, _LARGEST)
        body = request.body
        kept = await broker.keep_upload(len(body), partial(_pack, body, first))
        answer_json(request, 201, {"upload": kept.id, "rows": kept.rows, "hash": kept.hash.hex()})

    def named(request: Request) -> tuple[str, int]:
        check_query(request.head)
        params = request.head.params
        return check_name(params["query"], "query"), whole(params["batch"], "batch", 0, _LARGEST)

    async def accept(request: Request) -> None:
        query, number = named(request)
        given: _Given = read_json(_given, request.body, _HINT)
        if len(given.uploads) > MOST_UPLOADS:
            raise RequestInvalid(
                f"{len(given.uploads)} uploads", f"a batch has at most {MOST_UPLOADS}", "UPLOADS_TOO_MANY"
            )
        for id in given.uploads:
            if not _ID.fullmatch(id):
                raise UploadNotFound(id)
        if not 0 <= given.rows <= _LARGEST:
            raise RequestInvalid(f"{given.rows} rows"[:80], "the sum of the uploads' rows")
        batch = await broker.accept_batch(
            AcceptBatch(
                query=query,
                batch=number,
                uploads=given.uploads,
                rows=given.rows,
                hash=_hash(given.hash),
            )
        )
        answer_json(request, 202 if batch.ended_at is None else 200, _batch_json(batch))

    async def show(request: Request) -> None:
        query, number = named(request)
        batch = await broker.look(store.batch, query, number)
        if batch is None:
            raise BatchNotFound(query, number)
        answer_json(request, 200, _batch_json(batch))

    one = {JSON: ref("Batch")}
    where = (
        Parameter("query", "path", "whose batch it is, such as the id of a streaming query", NAME),
        Parameter("batch", "path", "its number", COUNT),
    )
    return [
        Route(
            "POST",
            "/v1/uploads",
            guarded_task(upload),
            verb="publish",
            max_body=UPLOAD_BYTES,
            needs=Feature.ATOMIC,
            tag="batches",
            summary="Keep rows for a batch, seen by nobody until it is accepted",
            parameters=(
                Parameter(
                    "first",
                    "query",
                    "the number of the first row, for what is said of a wrong one",
                    {"type": "integer", "minimum": 1, "maximum": _LARGEST},
                ),
            ),
            request=Content(f"at most {UPLOAD_ROWS:,} rows, without compression", {ARROW: {}}),
            responses={201: Content("kept, on stable media, for an hour", {JSON: ref("Upload")})},
            failures=(
                WRONG,
                failure(TooManyMessages),
                ROW_WRONG,
                failure(DiskLow),
                failure(NotOffered, "without the extra `lake`"),
                failure(Busy),
            ),
        ),
        Route(
            "PUT",
            "/v1/batches/{query}/{batch}",
            guarded_task(accept),
            verb="publish",
            name_parameter="query",
            needs=Feature.ATOMIC,
            tag="batches",
            summary="Let the rows of uploads enter, in this order, all of them and once",
            parameters=where,
            request=Content(
                "what the uploads were answered; of rows and hash the sum", {JSON: ref("NewBatch")}
            ),
            responses={
                200: Content("known, and all rows are in", one),
                202: Content("accepted, now or before; the rows are entering", one),
            },
            failures=(WRONG, failure(UploadNotFound), failure(BatchConflict), failure(Busy)),
        ),
        Route(
            "GET",
            "/v1/batches/{query}/{batch}",
            guarded_task(show),
            verb="inspect",
            name_parameter="query",
            needs=Feature.ATOMIC,
            tag="batches",
            summary="How far a batch has come",
            parameters=where,
            responses={200: Content("", one)},
            failures=(WRONG, failure(BatchNotFound)),
        ),
    ]
