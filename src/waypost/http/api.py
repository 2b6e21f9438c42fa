"""Waypost's own API under /v1: many messages at once, queues and policies, search, redrive, cancel, jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Declared, DeclareQueue, DeleteQueue, Job, JobKind, PublishMany
from waypost.errors import (
    Busy,
    JobNotFound,
    MessageNotFound,
    NotOffered,
    PayloadReaped,
    QueueNotFound,
    Refused,
    RequestInvalid,
)
from waypost.filters import Filter, parse_filter
from waypost.http.given import check_query, flag, whole
from waypost.http.payload import read_payload
from waypost.http.publishing import FAILURES
from waypost.http.refusals import failure, guarded, guarded_task, refuse
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, FLAG, ID, JSON, NAME, NDJSON, lines, ref
from waypost.http.wire import Request
from waypost.names import check_name, check_own_id
from waypost.policy import Policy, parse_policy
from waypost.wire import (
    MOST_MESSAGES,
    TooManyMessages,
    body_json,
    delivery_json,
    job_json,
    message_document,
    published_json,
    queue_json,
    read_json,
    read_messages,
)

MANY_BYTES = 16 << 20
MOST_FOUND = 1_000
_FURTHEST = 10**18 - 1

_encode = msgspec.json.Encoder().encode
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_QUEUE = Parameter("name", "path", "the queue", NAME)
_ID = Parameter("id", "path", "the message's id", ID)
_WRONG = Failure(400, "REQUEST_INVALID", "and other words that name what is malformed")


class _Selection(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    filter: str
    dry_run: bool = False
    rate: Any = None
    consumer: Any = None


_selection = msgspec.json.Decoder(_Selection)
_SELECTION_HINT = '{"filter":"queue=orders state=E since=10:00","dryRun":true}'


def policy_of(body: bytes) -> Policy:
    """What a PUT says. Nothing at all is the default policy."""
    policy = parse_policy(read_json(_anything, body, '{"lease":10,"retries":3}') if body.strip() else {})
    if policy.complete == "all":
        raise NotOffered("complete: all", "say how many: any, per_topic or a number")
    if policy.latest_only:
        raise NotOffered("latestOnly: true", "leave it out")
    return policy


def selection_of(body: bytes, now: int) -> tuple[Filter, bool]:
    """(the filter, whether it is a dry run)."""
    if not body.strip():
        raise RequestInvalid("an empty body, where a filter is expected", _SELECTION_HINT, "JSON_INVALID")
    given: _Selection = read_json(_selection, body, _SELECTION_HINT)
    for name in ("rate", "consumer"):
        if getattr(given, name) is not None:
            raise NotOffered(f"{name} in redrive and cancel", f"leave {name} out")
    if not given.filter.strip():
        raise RequestInvalid("an empty filter", "state=E means every dead letter", "FILTER_INVALID")
    return parse_filter(given.filter, now), given.dry_run


def _name(request: Request) -> str:
    check_query(request.head)
    return check_name(request.head.params["name"])


def _id(request: Request) -> str:
    check_query(request.head)
    return check_own_id(request.head.params["id"])


def _json(request: Request, status: int, form: object) -> None:
    request.answer(status, _encode(form), JSON)


def rows(broker: Broker) -> list[Route]:
    return [*_message_rows(broker), *_queue_rows(broker), *_job_rows(broker)]


# ── messages ────────────────────────────────────────────────────────────────────────────────────


def _answer_many(request: Request, results: Any) -> None:
    if isinstance(results, Refused):
        refuse(request, results)
    else:
        request.answer(201, f'{{"results":[{",".join(map(published_json, results))}]}}'.encode(), JSON)


def _message_rows(broker: Broker) -> list[Route]:
    store = broker.store

    def publish_many(request: Request) -> None:
        head = request.head
        check_query(head)
        if head.headers.get("content-type", "").partition(";")[0].strip().lower() == ARROW:
            raise NotOffered("messages as an Arrow stream", f"send newline JSON, {NDJSON}")
        encoding = head.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise RequestInvalid(f"a body in {encoding[:60]!r}", "send it as it is", "ENCODING_NOT_TAKEN")
        broker.publish_many(PublishMany(read_messages(request.body)), partial(_answer_many, request))

    async def show(request: Request) -> None:
        id = _id(request)
        info = store.message(id)
        if info is None:
            raise MessageNotFound(id)
        document = message_document(info)
        if flag(request.head.query.get("payload"), "payload"):
            try:
                document |= body_json(await read_payload(store, id))
            except PayloadReaped:
                document["body"] = None
        _json(request, 200, document)

    async def payload(request: Request) -> None:
        id = _id(request)
        body = await read_payload(store, id)
        info = store.message(id)
        if info is None:
            raise MessageNotFound(id)
        envelope = info.envelope
        headers = [("X-Message-Id", id)]
        if envelope.encoding is not None:
            headers.append(("Content-Encoding", envelope.encoding))
        request.answer(200, body, envelope.mime_type or "application/octet-stream", headers)

    def search(request: Request) -> None:
        check_query(request.head)
        query = request.head.query
        found, following = store.find(
            parse_filter(query.get("filter", ""), broker.clock()),
            whole(query.get("after", "0"), "after", 0, _FURTHEST),
            whole(query.get("limit", "100"), "limit", 1, MOST_FOUND),
        )
        _json(request, 200, {"deliveries": [delivery_json(one) for one in found], "next": following})

    with_payload = Parameter("payload", "query", "with the body", FLAG)
    return [
        Route(
            "POST",
            "/v1/messages",
            guarded(publish_many),
            verb="publish",
            max_body=MANY_BYTES,
            cacheable=True,
            tag="messages",
            summary="Publish up to 10,000 messages, all or none",
            request=Content(
                "a message in JSON a line",
                {NDJSON: lines("NewMessage") | {"minItems": 1, "maxItems": MOST_MESSAGES}},
            ),
            responses={201: Content("stored, in the order of the lines", {JSON: ref("PublishedMany")})},
            failures=(
                _WRONG,
                failure(TooManyMessages),
                *FAILURES,
                failure(Busy),
                failure(NotOffered, "Arrow"),
            ),
        ),
        Route(
            "GET",
            "/v1/messages",
            guarded(search),
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
            failures=(_WRONG,),
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
            failures=(_WRONG, failure(MessageNotFound)),
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
            failures=(_WRONG, failure(MessageNotFound), failure(PayloadReaped)),
        ),
    ]


# ── queues ──────────────────────────────────────────────────────────────────────────────────────


def _accepted(request: Request, job: Job) -> None:
    _json(request, 202, {"job": job.id, "matched": job.matched})


def _queue_rows(broker: Broker) -> list[Route]:
    store = broker.store

    def info(name: str) -> dict[str, Any]:
        queue = store.queue(name)
        if queue is None:
            raise QueueNotFound(name)
        return queue_json(queue)

    def listing(request: Request) -> None:
        check_query(request.head)
        _json(request, 200, {"queues": [queue_json(queue) for queue in store.queues()]})

    def show(request: Request) -> None:
        _json(request, 200, info(_name(request)))

    async def put(request: Request) -> None:
        name = _name(request)
        declared: Declared = await broker.ask(DeclareQueue(name, policy_of(request.body)))
        _json(request, 201 if declared.created else 200, info(name))

    async def delete(request: Request) -> None:
        _accepted(request, await broker.ask(DeleteQueue(_name(request))))

    async def purge(request: Request) -> None:
        name = _name(request)
        if request.body.strip() not in (b"", b"{}"):
            raise RequestInvalid("a purge takes no body", "POST /v1/cancel takes a filter")
        info(name)
        job, _ = await broker.start_job(JobKind.PURGE, Filter(queue=name))
        assert job is not None
        _accepted(request, job)

    def row(method: str, pattern: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        return Route(
            method,
            pattern,
            handler,
            verb=verb,
            name_parameter="name",
            tag="queues",
            summary=summary,
            parameters=(_QUEUE,),
            **more,
        )

    queue, accepted = {JSON: ref("Queue")}, {JSON: ref("Accepted")}
    return [
        Route(
            "GET",
            "/v1/queues",
            guarded(listing),
            verb="inspect",
            tag="queues",
            summary="All queues with their policies and figures",
            responses={200: Content("by name", {JSON: ref("Queues")})},
        ),
        row(
            "GET",
            "/v1/queues/{name}",
            guarded(show),
            "A queue's policy and figures",
            "inspect",
            responses={200: Content("", queue)},
            failures=(_WRONG, failure(QueueNotFound)),
        ),
        row(
            "PUT",
            "/v1/queues/{name}",
            guarded_task(put),
            "Make a queue, or replace its policy",
            "declare",
            request=Content("what is left out takes its default", {JSON: ref("Policy")}),
            responses={200: Content("replaced", queue), 201: Content("made", queue)},
            failures=(_WRONG, failure(NotOffered, "complete: all, latestOnly"), failure(Busy)),
        ),
        row(
            "DELETE",
            "/v1/queues/{name}",
            guarded_task(delete),
            "Delete a queue; what waits in it is cancelled",
            "delete",
            responses={202: Content("the name is free; a job cancels what was in it", accepted)},
            failures=(_WRONG, failure(QueueNotFound), failure(Busy)),
        ),
        row(
            "POST",
            "/v1/queues/{name}/purge",
            guarded_task(purge),
            "Cancel everything that waits in a queue",
            "delete",
            responses={202: Content("a job does it", accepted)},
            failures=(_WRONG, failure(QueueNotFound), failure(Busy)),
        ),
    ]


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────


def _job_rows(broker: Broker) -> list[Route]:
    async def start(request: Request, kind: JobKind) -> None:
        check_query(request.head)
        filter, dry_run = selection_of(request.body, broker.clock())
        if filter.queue is not None and broker.store.ready(filter.queue) is None:
            raise QueueNotFound(filter.queue)
        job, matched = await broker.start_job(kind, filter, dry_run=dry_run)
        if job is None:
            _json(request, 200, {"matched": matched})
        else:
            _accepted(request, job)

    def show(request: Request) -> None:
        check_query(request.head)
        id = request.head.params["id"]
        job = broker.store.job(id)
        if job is None:
            raise JobNotFound(id)
        _json(request, 200, job_json(job))

    def row(kind: JobKind, summary: str) -> Route:
        async def handle(request: Request) -> None:
            await start(request, kind)

        return Route(
            "POST",
            f"/v1/{kind.value}",
            guarded_task(handle),
            verb=kind.value,
            tag="operations",
            summary=summary,
            request=Content("which deliveries", {JSON: ref("Selection")}),
            responses={
                200: Content("how many match, with dryRun", {JSON: ref("Matched")}),
                202: Content("a job does it", {JSON: ref("Accepted")}),
            },
            failures=(
                _WRONG,
                failure(QueueNotFound, "the filter names one that does not exist"),
                failure(NotOffered, "rate, consumer"),
                failure(Busy),
            ),
        )

    return [
        row(JobKind.REDRIVE, "Queue ended deliveries again; dead letters if the filter names no state"),
        row(JobKind.CANCEL, "Take waiting deliveries out"),
        Route(
            "GET",
            "/v1/jobs/{id}",
            guarded(show),
            verb="inspect",
            tag="operations",
            summary="How far a redrive, cancel or purge has come",
            parameters=(Parameter("id", "path", "as redrive, cancel, purge and delete answered it"),),
            responses={200: Content("", {JSON: ref("Job")})},
            failures=(failure(JobNotFound),),
        ),
    ]
