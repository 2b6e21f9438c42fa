"""Objects under /v1: what is agreed of a business type, such as when a message repeats the last one."""

from __future__ import annotations

from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Declared, DeclareObject, DeleteObject
from waypost.errors import Busy, ObjectNotFound
from waypost.http.answering import WRONG, answer_json
from waypost.http.given import check_query, named
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, NAME, ref
from waypost.http.wire import Request
from waypost.objects import parse_object
from waypost.store import Feature
from waypost.wire import object_info_json, read_json

_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_HINT = '{"unchanged":{"ignore":["$.exportedAt"],"window":"30d"}}'


def rows(broker: Broker) -> list[Route]:
    store = broker.store

    def form(name: str) -> dict[str, Any]:
        info = store.object(name)
        if info is None:
            raise ObjectNotFound(name)
        return object_info_json(info)

    def listing(request: Request) -> None:
        check_query(request.head)
        answer_json(request, 200, {"objects": [object_info_json(info) for info in store.objects()]})

    def show(request: Request) -> None:
        answer_json(request, 200, form(named(request.head, "object")))

    async def put(request: Request) -> None:
        name = named(request.head, "object")
        policy = parse_object(read_json(_anything, request.body or b"{}", _HINT))
        declared: Declared = await broker.ask(DeclareObject(name, policy))
        answer_json(request, 201 if declared.created else 200, await broker.look(form, name))

    async def delete(request: Request) -> None:
        name = named(request.head, "object")
        if not await broker.ask(DeleteObject(name)):
            raise ObjectNotFound(name)
        request.answer(204)

    def row(method: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        return Route(
            method,
            "/v1/objects/{name}",
            handler,
            verb=verb,
            name_parameter="name",
            needs=Feature.OBJECTS,
            tag="objects",
            summary=summary,
            parameters=(Parameter("name", "path", "the business type", NAME),),
            **more,
        )

    one = {JSON: ref("Object")}
    return [
        Route(
            "GET",
            "/v1/objects",
            reading(broker, listing),
            verb="inspect",
            needs=Feature.OBJECTS,
            tag="objects",
            summary="All objects of which something is agreed",
            responses={200: Content("by name", {JSON: ref("Objects")})},
        ),
        row(
            "GET",
            reading(broker, show),
            "What is agreed of an object, and how many of its messages were unchanged",
            "inspect",
            responses={200: Content("", one)},
            failures=(WRONG, failure(ObjectNotFound)),
        ),
        row(
            "PUT",
            guarded_task(put),
            "Say when its messages count as unchanged, and who routes them",
            "declare",
            request=Content("what is left out takes its default", {JSON: ref("ObjectPolicy")}),
            responses={200: Content("replaced", one), 201: Content("made", one)},
            failures=(WRONG, failure(Busy)),
        ),
        row(
            "DELETE",
            guarded_task(delete),
            "Back to the defaults: everything is delivered",
            "delete",
            responses={204: Content("forgotten, with its figures")},
            failures=(WRONG, failure(ObjectNotFound), failure(Busy)),
        ),
    ]
