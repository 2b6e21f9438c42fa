"""Messages under /v1: many at once, one with all that happened to it, and search."""

from __future__ import annotations

from functools import partial
from typing import Any

from waypost.broker import Broker
from waypost.commands import ErasePayload, Publish, PublishMany
from waypost.errors import (
    Busy,
    LakeUnavailable,
    MessageNotFound,
    NotOffered,
    PayloadReaped,
    Refused,
    StillLogged,
)
from waypost.filters import parse_filter
from waypost.http.answering import WRONG, answer_json
from waypost.http.batches import ROW_WRONG, arrow_rows, check_encoding, is_arrow
from waypost.http.given import check_query, flag, whole
from waypost.http.lake import Lake
from waypost.http.payload import read_payload
from waypost.http.publishing import FAILURES
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded, guarded_task, refuse
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, FLAG, ID, JSON, NDJSON, lines, ref
from waypost.http.wire import Request
from waypost.names import check_own_id
from waypost.store import Feature
from waypost.wire import (
    MOST_MESSAGES,
    TooManyMessages,
    body_json,
    delivery_json,
    message_document,
    published_json,
    read_messages,
)

MANY_BYTES = 16 << 20
MOST_FOUND = 1_000
_FURTHEST = 10**18 - 1

_ID = Parameter("id", "path", "the message's id", ID)


def _id(request: Request) -> str:
    check_query(request.head)
    return check_own_id(request.head.params["id"])


def _answer_many(request: Request, results: Any) -> None:
    if isinstance(results, Refused):
        refuse(request, results)
    else:
        request.answer(201, f'{{"results":[{",".join(map(published_json, results))}]}}'.encode(), JSON)


def _read_rows(stream: bytes) -> list[Publish]:
    messages: list[Publish] = arrow_rows().read_rows(stream, MOST_MESSAGES)
    return messages


def rows(broker: Broker, lake: Lake | None) -> list[Route]:
    store = broker.store

    def publish_many(request: Request) -> None:
        check_query(request.head)
        check_encoding(request)
        broker.publish_many(PublishMany(read_messages(request.body)), partial(_answer_many, request))

    async def publish_rows(request: Request) -> None:
        check_query(request.head)
        check_encoding(request)
        messages = await broker.read_rows(len(request.body), partial(_read_rows, request.body))
        _answer_many(request, await broker.ask(PublishMany(messages)))

    def publish(request: Request) -> Any:
        return guarded_task(publish_rows)(request) if is_arrow(request) else guarded(publish_many)(request)

    async def show(request: Request) -> None:
        id = _id(request)
        info = await broker.look(store.message, id)
        if info is None:
            raise MessageNotFound(id)
        document = message_document(info)
        if flag(request.head.query.get("payload"), "payload"):
            try:
                document |= body_json(await read_payload(broker, id))
            except PayloadReaped:
                document["body"] = None
        answer_json(request, 200, document)

    async def payload(request: Request) -> None:
        id = _id(request)
        body = await read_payload(broker, id)
        info = await broker.look(store.message, id)
        if info is None:
            raise MessageNotFound(id)
        envelope = info.envelope
        headers = [("X-Message-Id", id)]
        if envelope.encoding is not None:
            headers.append(("Content-Encoding", envelope.encoding))
        request.answer(200, body, envelope.mime_type or "application/octet-stream", headers)

    async def erase(request: Request) -> None:
        id = _id(request)
        try:
            await broker.ask(ErasePayload(id))
        except MessageNotFound:
            # The store forgets a message after a while; the lake may still have its body.
            sequence = None if lake is None or lake.folder is None else await lake.find(id)
            if sequence is None:
                raise
            await broker.ask(ErasePayload(id, sequence))
        answer_json(request, 202, {"id": id, "erased": True})

    def search(request: Request) -> None:
        check_query(request.head)
        query = request.head.query
        found, following = store.find(
            parse_filter(query.get("filter", ""), broker.clock()),
            whole(query.get("after", "0"), "after", 0, _FURTHEST),
            whole(query.get("limit", "100"), "limit", 1, MOST_FOUND),
        )
        answer_json(request, 200, {"deliveries": [delivery_json(one) for one in found], "next": following})

    with_payload = Parameter("payload", "query", "with the body", FLAG)
    return [
        Route(
            "POST",
            "/v1/messages",
            publish,
            verb="publish",
            max_body=MANY_BYTES,
            cacheable=True,
            needs=Feature.ATOMIC,
            tag="messages",
            summary="Publish up to 10,000 messages, all or none",
            request=Content(
                "a message in JSON a line, or a row of an Arrow stream",
                {NDJSON: lines("NewMessage") | {"minItems": 1, "maxItems": MOST_MESSAGES}, ARROW: {}},
            ),
            responses={
                201: Content("stored, in the order of the lines or rows", {JSON: ref("PublishedMany")})
            },
            failures=(
                WRONG,
                failure(TooManyMessages),
                ROW_WRONG,
                *FAILURES,
                failure(Busy),
                failure(NotOffered, "Arrow, without the extra `lake`"),
            ),
        ),
        Route(
            "GET",
            "/v1/messages",
            reading(broker, search),
            verb="inspect",
            tag="messages",
            summary="Search deliveries",
            parameters=(
                Parameter("filter", "query", "such as: queue=orders state=E since=10:00"),
                Parameter(
                    "limit", "query", "how many", {"type": "integer", "minimum": 1, "maximum": MOST_FOUND}
                ),
                Parameter("after", "query", "`next` of the page before", COUNT),
            ),
            responses={200: Content("a page of deliveries in log order", {JSON: ref("Deliveries")})},
            failures=(WRONG,),
        ),
        Route(
            "GET",
            "/v1/messages/{id}",
            guarded_task(show),
            verb="inspect",
            tag="messages",
            summary="A message with all that happened to it",
            parameters=(_ID, with_payload),
            responses={200: Content("its document and journey", {JSON: ref("Message")})},
            failures=(WRONG, failure(MessageNotFound)),
        ),
        Route(
            "GET",
            "/v1/messages/{id}/payload",
            guarded_task(payload),
            verb="inspect",
            tag="messages",
            summary="A message's body as it was sent",
            parameters=(_ID,),
            responses={200: Content("the body with its type", {"*/*": {}}, {"X-Message-Id": "its id"})},
            failures=(WRONG, failure(MessageNotFound), failure(PayloadReaped)),
        ),
        Route(
            "DELETE",
            "/v1/messages/{id}/payload",
            guarded_task(erase),
            verb="delete",
            needs=Feature.ERASING,
            tag="messages",
            summary="Erase a message's body, in the store at once and in the lake soon",
            parameters=(_ID,),
            responses={
                202: Content(
                    "gone from the store; from the lake within a minute", {JSON: ref("PayloadErased")}
                )
            },
            failures=(
                WRONG,
                failure(MessageNotFound),
                failure(StillLogged),
                failure(Busy),
                failure(LakeUnavailable),
            ),
        ),
    ]
