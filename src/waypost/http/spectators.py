"""Spectators under /v1: readers of the log that have a name, and how far each has read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Declared, DeleteSpectator, SetSpectator
from waypost.errors import Busy, SpectatorNotFound
from waypost.http.answering import WRONG, answer_json
from waypost.http.given import check_query, named
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, NAME, ref
from waypost.http.wire import Request
from waypost.wire import read_json, spectator_json


class _Position(msgspec.Struct, forbid_unknown_fields=True):
    offset: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


_position = msgspec.json.Decoder(_Position)


def rows(broker: Broker) -> list[Route]:
    store = broker.store

    def form(name: str) -> dict[str, Any]:
        info = store.spectator(name)
        if info is None:
            raise SpectatorNotFound(name)
        return spectator_json(info)

    def listing(request: Request) -> None:
        check_query(request.head)
        answer_json(request, 200, {"spectators": [spectator_json(info) for info in store.spectators()]})

    def show(request: Request) -> None:
        answer_json(request, 200, form(named(request.head, "spectator")))

    async def put(request: Request) -> None:
        name = named(request.head, "spectator")
        position: _Position = read_json(_position, request.body, '{"offset":0}')
        declared: Declared = await broker.ask(SetSpectator(name, position.offset))
        answer_json(request, 201 if declared.created else 200, await broker.look(form, name))

    async def delete(request: Request) -> None:
        name = named(request.head, "spectator")
        if not await broker.ask(DeleteSpectator(name)):
            raise SpectatorNotFound(name)
        request.answer(204)

    def row(method: str, handler: Any, summary: str, verb: str, **more: Any) -> Route:
        return Route(
            method,
            "/v1/spectators/{name}",
            handler,
            verb=verb,
            name_parameter="name",
            tag="log",
            summary=summary,
            parameters=(Parameter("name", "path", "the spectator", NAME),),
            **more,
        )

    one = {JSON: ref("Spectator")}
    return [
        Route(
            "GET",
            "/v1/spectators",
            reading(broker, listing),
            verb="inspect",
            tag="log",
            summary="All spectators and how far behind they are",
            responses={200: Content("by name", {JSON: ref("Spectators")})},
        ),
        row(
            "GET",
            reading(broker, show),
            "How far a spectator has read",
            "inspect",
            responses={200: Content("", one)},
            failures=(WRONG, failure(SpectatorNotFound)),
        ),
        row(
            "PUT",
            guarded_task(put),
            "Say how far a spectator has read: the last offset, 0 for none",
            "read",
            request=Content("", {JSON: ref("Position")}),
            responses={200: Content("moved", one), 201: Content("made", one)},
            failures=(WRONG, failure(Busy)),
        ),
        row(
            "DELETE",
            guarded_task(delete),
            "Forget a spectator: the log is not kept for it any more",
            "delete",
            responses={204: Content("forgotten")},
            failures=(WRONG, failure(SpectatorNotFound), failure(Busy)),
        ),
    ]
