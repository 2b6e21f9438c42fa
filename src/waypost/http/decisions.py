"""Routing by Spark, over HTTP: what waits in L for it, and the decisions it hands back.

    GET /v1/undecided?n=10000        POST /v1/decisions   {"id":"…","content":"e3b0…","route":{"queues":["vip"]}}

Decisions are applied in the order given. One for a message that is further on changes nothing, so a repeat, a second job or
one that was killed in between does no harm; what is wrong with one is said in its place and is its own affair.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import Decide, Decided
from waypost.delivery import LETTERS
from waypost.errors import Busy, NotOffered, Refused, RequestInvalid
from waypost.http.answering import WRONG, answer_json
from waypost.http.given import check_query, whole
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, JSON, NDJSON, lines, ref
from waypost.http.undecided import ArrowStream, JsonLines, undecided
from waypost.http.wire import Request
from waypost.names import check_own_id
from waypost.routing import Option, check_route
from waypost.routing import Route as Chosen
from waypost.store import Feature
from waypost.wire import TooManyMessages, json_wrong

MOST = 10_000
#: of a content's hash, in hexadecimal digits
HASH_DIGITS = 64
_FURTHEST = 10**18 - 1
_HINT = '{"id":"…","content":"64 hexadecimal digits","route":{"option":"once","consumers":[],"queues":[]}} on one line'


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    content: str | None = None
    route: dict[str, Any] | None = None
    failure: str | None = None


_lines = msgspec.json.Decoder(_Line)


def read_decisions(body: bytes) -> list[_Line]:
    """Raises RequestInvalid that names the line."""
    try:
        found = _lines.decode_lines(body)
    except (ValueError, RecursionError):
        raise _first_wrong(body) from None
    if len(found) > MOST:
        raise TooManyMessages(f"{len(found)} decisions in one request", f"send at most {MOST} at once")
    return found


def _first_wrong(body: bytes) -> RequestInvalid:
    for number, line in enumerate(body.split(b"\n"), 1):
        wrong = json_wrong(_lines.decode, line) if line.strip() else None
        if wrong is not None:
            return RequestInvalid(f"line {number}: {wrong}", _HINT, "JSON_INVALID")
    return RequestInvalid("a decision goes over several lines", _HINT, "JSON_INVALID")


def decision_of(line: _Line) -> Decide:
    """Raises RequestInvalid."""
    id = check_own_id(line.id)
    if line.failure is not None:
        # What no store can write came as half a character.
        return Decide(id=id, failure=line.failure.encode("utf-8", "backslashreplace").decode())
    content = line.content or ""
    try:
        hash = bytes.fromhex(content)
    except ValueError:
        hash = b""
    if content and (len(content) != HASH_DIGITS or len(hash) * 2 != HASH_DIGITS):
        raise RequestInvalid(
            f"content is not {HASH_DIGITS} hexadecimal digits: {content[:80]!r}",
            "SHA-256 of the canonical content; leave it out and the broker computes it",
        )
    return Decide(id=id, content=hash, route=None if line.route is None else _route(line.route))


def _route(given: dict[str, Any]) -> Chosen:
    unknown = sorted(set(given) - {"option", "consumers", "queues"})
    if unknown:
        raise RequestInvalid(f"a route has no {unknown[0][:60]!r}", _HINT, "ROUTE_INVALID")
    names = {what: given.get(what) or () for what in ("consumers", "queues")}
    for what, chosen in names.items():
        if not isinstance(chosen, list | tuple):
            raise RequestInvalid(f"{what} is a list of names", _HINT, "ROUTE_INVALID")
    return check_route(Chosen(option=given.get("option", Option.ONCE), **names))


def _result(id: str, result: Decided | Refused) -> dict[str, Any]:
    if isinstance(result, Refused):
        return {"id": id, "error": {"code": result.code, "detail": result.detail, "hint": result.hint}}
    form: dict[str, Any] = {"id": id, "state": LETTERS[result.state], "applied": result.applied}
    if result.same_as is not None:
        form["sameAs"] = result.same_as
    return form


def rows(broker: Broker) -> list[Route]:
    async def listing(request: Request) -> None:
        head = request.head
        check_query(head)
        after = whole(head.query.get("after", "0"), "after", 0, _FURTHEST)
        n = whole(head.query.get("n", "1000"), "n", 1, MOST)
        arrow = ARROW in head.headers.get("accept", "")
        content_type = ARROW if arrow else NDJSON
        if head.method == "HEAD":
            request.answer(200, b"", content_type)
            return
        async with aclosing(undecided(broker, after, n, ArrowStream if arrow else JsonLines)) as pieces:
            first = await anext(pieces)
            stream = request.stream(200, content_type=content_type)
            await stream.write(first)
            async for piece in pieces:
                await stream.write(piece)
            await stream.end()

    async def decide(request: Request) -> None:
        check_query(request.head)
        given = read_decisions(request.body)
        results: list[Decided | Refused | None] = [None] * len(given)
        decisions: list[Decide] = []
        places: list[int] = []
        for number, line in enumerate(given):
            try:
                decisions.append(decision_of(line))
                places.append(number)
            except RequestInvalid as refused:
                results[number] = refused
        for number, result in zip(places, await broker.decide(decisions), strict=True):
            results[number] = result
        answered = [_result(line.id, result) for line, result in zip(given, results, strict=True) if result]
        answer_json(request, 200, {"results": answered})

    common: dict[str, Any] = {"verb": "route", "needs": Feature.OBJECTS, "tag": "routing"}
    return [
        Route(
            "GET",
            "/v1/undecided",
            guarded_task(listing),
            summary="What waits in L for Spark, with its payloads",
            parameters=(
                Parameter("after", "query", "only sequences above this one; else from the lowest on", COUNT),
                Parameter(
                    "n",
                    "query",
                    "at most so many (1000)",
                    {"type": "integer", "minimum": 1, "maximum": MOST},
                ),
            ),
            responses={
                200: Content(
                    "in the order of sequence: a line of JSON each, or an Arrow stream where Accept asks for one",
                    {NDJSON: lines("Undecided"), ARROW: {}},
                )
            },
            failures=(WRONG, failure(NotOffered, "Arrow without the lake extra")),
            **common,
        ),
        Route(
            "POST",
            "/v1/decisions",
            guarded_task(decide),
            summary="Where messages in L go, in the order given",
            request=Content(f"a line each, at most {MOST}", {NDJSON: lines("Decision")}),
            responses={200: Content("one for each line", {JSON: ref("Decided")})},
            failures=(
                WRONG,
                failure(TooManyMessages),
                failure(Busy, "some at the beginning may be decided; send all of it again"),
            ),
            **common,
        ),
    ]
