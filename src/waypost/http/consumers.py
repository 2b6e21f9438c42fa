"""Consumers under /v1: who is registered on a queue or channel, and how pushing to it goes.

    PUT /v1/consumers/billing   {"queue": "orders", "url": "https://…"}   ──▶ 201, with a secret if none was given
                                {"queue": "orders"}                       one that pulls, and is counted

A secret is shown once, in the answer to the PUT that made it, and never again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from waypost.broker import Broker
from waypost.commands import DeclareConsumer, Declared, DeleteConsumer
from waypost.consumers import SECRET_PREFIX, Consumer, parse_consumer
from waypost.errors import (
    Busy,
    ChannelNotFound,
    ConsumerNotFound,
    NotOffered,
    QueueNotFound,
    RequestInvalid,
)
from waypost.http.answering import WRONG, answer_json
from waypost.http.given import check_query, named
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, NAME, ref
from waypost.http.wire import Request
from waypost.instants import instant_text
from waypost.names import ANONYMOUS
from waypost.store import ConsumerInfo, Feature
from waypost.wire import consumer_info_json, read_json

SECRET_BYTES = 32

_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_HINT = '{"queue":"orders","url":"https://example.com/hook"}'


class PushFigures(Protocol):
    """Of one consumer that is pushed to, since this process began."""

    @property
    def sent(self) -> int: ...
    @property
    def succeeded(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def breaker(self) -> str: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_at(self) -> int | None: ...
    @property
    def last_success_at(self) -> int | None: ...


class Pushing(Protocol):
    """What pushes; another edge, so only its shape is known here."""

    def check(self, consumer: Consumer) -> None:
        """Raises RequestInvalid for a url that would never be called."""

    def start(self) -> None: ...

    def changed(self, name: str) -> None:
        """A consumer was declared or deleted."""

    def figures(self, name: str) -> PushFigures | None: ...

    def all_figures(self) -> Mapping[str, PushFigures]: ...

    async def stop(self, seconds: float) -> None:
        """What is under way may end within that time; the rest goes back."""


def push_figures_json(figures: PushFigures) -> dict[str, Any]:
    return {
        "sent": figures.sent,
        "succeeded": figures.succeeded,
        "failed": figures.failed,
        "inFlight": figures.in_flight,
        "breaker": str(figures.breaker),
        "lastError": figures.last_error,
        "lastErrorAt": None if figures.last_error_at is None else instant_text(figures.last_error_at),
        "lastSuccess": None if figures.last_success_at is None else instant_text(figures.last_success_at),
    }


def make_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()


def rows(broker: Broker, push: Pushing | None) -> list[Route]:
    store = broker.store

    def form(info: ConsumerInfo) -> dict[str, Any]:
        figures = None if push is None else push.figures(info.name)
        return consumer_info_json(info) | {"figures": None if figures is None else push_figures_json(figures)}

    def known(name: str) -> ConsumerInfo:
        info = store.consumer(name)
        if info is None:
            raise ConsumerNotFound(name)
        return info

    def listing(request: Request) -> None:
        check_query(request.head)
        answer_json(request, 200, {"consumers": [form(info) for info in store.consumers()]})

    def show(request: Request) -> None:
        answer_json(request, 200, form(known(named(request.head, "consumer"))))

    def check_push(consumer: Consumer) -> None:
        if consumer.url is not None:
            if push is None:
                raise NotOffered("pushing to a url", "leave url out: the consumer fetches")
            push.check(consumer)

    async def put(request: Request) -> None:
        name = named(request.head, "consumer")
        if name == ANONYMOUS:
            raise RequestInvalid(
                f"{ANONYMOUS!r} stands for all who give no name", "choose another name", "NAME_RESERVED"
            )
        before = await broker.look(store.consumer, name)
        given = read_json(_anything, request.body or b"{}", _HINT)
        consumer = parse_consumer(given, None if before is None else before.consumer)
        check_push(consumer)
        made: dict[str, str] = {}
        if consumer.url is not None and not consumer.secrets:
            made["secret"] = make_secret()
            consumer = msgspec.structs.replace(consumer, secrets=(made["secret"],))
        declared: Declared = await broker.ask(DeclareConsumer(name, consumer))
        tell(name)
        answer_json(request, 201 if declared.created else 200, form(await broker.look(known, name)) | made)

    async def delete(request: Request) -> None:
        name = named(request.head, "consumer")
        if not await broker.ask(DeleteConsumer(name)):
            raise ConsumerNotFound(name)
        tell(name)
        request.answer(204)

    def tell(name: str) -> None:
        if push is not None:
            push.changed(name)

    def row(method: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        return Route(
            method,
            "/v1/consumers/{name}",
            handler,
            verb=verb,
            name_parameter="name",
            needs=Feature.CONSUMERS,
            tag="consumers",
            summary=summary,
            parameters=(Parameter("name", "path", "the consumer", NAME),),
            **more,
        )

    one = {JSON: ref("Consumer")}
    return [
        Route(
            "GET",
            "/v1/consumers",
            reading(broker, listing),
            verb="inspect",
            needs=Feature.CONSUMERS,
            tag="consumers",
            summary="All registered consumers, and how pushing to them goes",
            responses={200: Content("by name", {JSON: ref("Consumers")})},
        ),
        row(
            "GET",
            reading(broker, show),
            "A registered consumer, without its secrets",
            "inspect",
            responses={200: Content("", one)},
            failures=(WRONG, failure(ConsumerNotFound)),
        ),
        row(
            "PUT",
            guarded_task(put),
            "Register a consumer of a queue or channel; with a url, messages are pushed to it",
            "declare",
            request=Content("what is left out takes its default", {JSON: ref("NewConsumer")}),
            responses={
                200: Content("replaced", one),
                201: Content("registered; with its secret, if that was made here", one),
            },
            failures=(
                WRONG,
                failure(QueueNotFound),
                failure(ChannelNotFound),
                failure(Busy),
                failure(NotOffered, "a url, where nothing is pushed"),
            ),
        ),
        row(
            "DELETE",
            guarded_task(delete),
            "Nothing is pushed to it any more; slots that are named for it stay",
            "delete",
            responses={204: Content("forgotten")},
            failures=(WRONG, failure(ConsumerNotFound), failure(Busy)),
        ),
    ]
