"""MQ-Core's six endpoints, with its bare status codes.

    PUT GET DELETE /{queue}      POST GET /{queue}/messages      DELETE /{queue}/messages/{id}

An unmodified MQ-Core client works here. Where the original lost messages we follow its document instead: a
publish to a queue that does not exist is 404, and what cannot be stored is 503 with Retry-After.
"""

from __future__ import annotations

from typing import Any

from waypost.broker import Broker
from waypost.commands import DeclareQueue, DeleteQueue, Fetch, Remove
from waypost.errors import QueueNotFound, Refused
from waypost.http.fetching import Plan, fetcher
from waypost.http.given import check_query
from waypost.http.head import Head
from waypost.http.publishing import PARAMETERS, answer_bare, publisher
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded, refuse
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import NAME
from waypost.http.wire import Request
from waypost.names import check_short_queue

_QUEUE = Parameter("queue", "path", "a queue whose name is not a reserved word", NAME)
_BAD_NAME = Failure(400, "NAME_INVALID", "not a name, or a reserved word")
_NOT_NOW = Failure(503, "BUSY", "could not be stored; Retry-After says when to try again")


def rows(broker: Broker) -> list[Route]:
    def queue_of(head: Head) -> str:
        check_query(head)
        return check_short_queue(head.params["queue"])

    def show(request: Request) -> None:
        if broker.store.ready(queue_of(request.head)) is None:
            raise QueueNotFound(request.head.params["queue"])
        request.answer(200)

    def create(request: Request) -> None:
        answer_when_done(request, DeclareQueue(queue_of(request.head)), 201)

    def delete(request: Request) -> None:
        answer_when_done(request, DeleteQueue(queue_of(request.head)), 200)

    def remove(request: Request) -> None:
        answer_when_done(request, Remove(queue_of(request.head), request.head.params["id"]), 202)

    def answer_when_done(request: Request, command: DeclareQueue | DeleteQueue | Remove, status: int) -> None:
        def done(result: Any) -> None:
            # What is to go and is not there has gone.
            if isinstance(result, Refused) and not isinstance(result, QueueNotFound):
                refuse(request, result)
            else:
                request.answer(status)

        broker.submit(command, done)

    def check(head: Head) -> None:
        queue_of(head)

    def plan_fetch(head: Head) -> Plan:
        return Plan(Fetch(queue=queue_of(head)), lenient=True)

    def row(method: str, pattern: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        return Route(
            method,
            pattern,
            handler,
            verb=verb,
            name_parameter="queue",
            errors="bare",
            tag="MQ-Core",
            summary=summary,
            **more,
        )

    return [
        row(
            "GET",
            "/{queue}",
            reading(broker, show),
            "Does the queue exist?",
            "inspect",
            parameters=(_QUEUE,),
            responses={200: Content("it exists")},
            failures=(_BAD_NAME, failure(QueueNotFound)),
        ),
        row(
            "PUT",
            "/{queue}",
            guarded(create),
            "Make a queue; the body is ignored",
            "declare",
            parameters=(_QUEUE,),
            responses={201: Content("it exists now, or did already")},
            failures=(_BAD_NAME, _NOT_NOW),
        ),
        row(
            "DELETE",
            "/{queue}",
            guarded(delete),
            "Delete a queue and all its messages",
            "delete",
            parameters=(_QUEUE,),
            responses={200: Content("it does not exist any more")},
            failures=(_BAD_NAME, _NOT_NOW),
        ),
        row(
            "POST",
            "/{queue}/messages",
            publisher(broker, answer_bare, check),
            "Publish a message",
            "publish",
            cacheable=True,
            parameters=(_QUEUE, *PARAMETERS),
            request=Content("the message, any bytes", {"application/octet-stream": {}}),
            responses={201: Content("stored", headers={"X-Message-Id": "its id"})},
            failures=(_BAD_NAME, failure(QueueNotFound), _NOT_NOW),
        ),
        row(
            "GET",
            "/{queue}/messages",
            fetcher(broker, plan_fetch),
            "Fetch a message",
            "fetch",
            cacheable=True,
            head=False,
            parameters=(_QUEUE,),
            responses={
                200: Content("the message as it was sent", {"*/*": {}}, {"X-Message-Id": "its id"}),
                204: Content("nothing there, or no such queue"),
            },
            failures=(_BAD_NAME, _NOT_NOW),
        ),
        row(
            "DELETE",
            "/{queue}/messages/{id}",
            guarded(remove),
            "Remove a message, fetched or not",
            "confirm",
            parameters=(_QUEUE, Parameter("id", "path", "as publish and fetch gave it")),
            responses={202: Content("it is gone, or was never there")},
            failures=(_BAD_NAME, _NOT_NOW),
        ),
    ]
