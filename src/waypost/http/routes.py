"""The one table of routes: what is served, how a path finds its row, and the OpenAPI document made from it.

    Route("POST", "/queue/{name}/confirm", confirm, verb="confirm", name_parameter="name", cacheable=True, …)

Each part of the product offers rows, `Routes(rows)` joins them. A path is walked segment by segment: a
literal segment wins over a parameter and is final (no turning back), a parameter takes any one non-empty
segment, percent-decoded *after* the split, so `%2F` may stand inside a parameter. A path that ends nowhere is
404, a method that its end does not have 405 with `Allow`; `OPTIONS` is answered from the table, `HEAD` is
served by GET's row unless that row says `head=False`.

This file knows neither sockets nor the broker.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from waypost.errors import NotOffered
from waypost.http.problem import MEDIA_TYPE, SCHEMA, Problem
from waypost.store import Feature

#: Takes a `wire.Request` (the type is not named here because the wire stands above the table).
#: A plain function returns None and sees to it that the request is answered, now or later by a callback.
#: An `async def` is run as a task and must have answered when it returns.
Handler = Callable[[Any], Any]

Schema = Mapping[str, object]

TEXT: Schema = {"type": "string"}

#: where a feature's name is not what people would call it
_FEATURES: dict[Feature | None, str] = {
    Feature.ATOMIC: "requests of many messages",
    Feature.ERASING: "way to erase a payload",
    Feature.TABLES: "tables of its own",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A documented parameter. Those of the path that a route does not describe are plain text."""

    name: str
    where: Literal["path", "query", "header"]
    description: str = ""
    schema: Schema = field(default_factory=lambda: TEXT)
    required: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What a request or an answer carries: by media type, the schema of its body (no types: no body)."""

    description: str = ""
    types: Mapping[str, Schema] = field(default_factory=dict)
    #: Names of headers that come with it, each with its description.
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """One problem that a route is known to answer."""

    status: int
    code: str
    description: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row of the table."""

    method: str
    pattern: str
    handler: Handler
    #: What authorisation asks for: the verb, and which path parameter names the thing it is done to.
    verb: str = ""
    name_parameter: str = ""
    #: Largest body in bytes; None: the server's limit.
    max_body: int | None = None
    #: May parsed heads be kept and shared? Not where the path carries an id: every request would be a new
    #: head.
    cacheable: bool = False
    #: "bare": a problem is answered as its status code and headers alone (MQ-Core).
    errors: Literal["problem", "bare"] = "problem"
    #: Does GET's row also serve HEAD? No where a GET changes something (a fetch).
    head: bool = True
    #: what the store must have for it: where it lacks that, the answer is 501
    needs: Feature | None = None
    summary: str = ""
    description: str = ""
    tag: str = ""
    parameters: tuple[Parameter, ...] = ()
    request: Content | None = None
    responses: Mapping[int, Content] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


class Routes:
    """The joined table."""

    def __init__(self, rows: Iterable[Route], lacks: frozenset[Feature] = frozenset()) -> None:
        """`lacks`: what the store cannot do."""
        self.rows: list[Route] = []
        self._root = _Node()
        for row in rows:
            self._add(_not_offered(row) if row.needs in lacks else row)

    def __iter__(self) -> Iterator[Route]:
        return iter(self.rows)

    def match(self, method: str, segments: list[str]) -> tuple[Route, dict[str, str]]:
        """The row and the path parameters for decoded segments. Raises Problem (404, 405)."""
        node = self._root
        values: list[str] = []
        for segment in segments:
            literal = node.literals.get(segment)
            if literal is not None:
                node = literal
            elif segment and node.any is not None:
                values.append(segment)
                node = node.any
            else:
                raise _not_found(segments)
        if not node.methods:
            raise _not_found(segments)
        params = dict(zip(node.parameters, values, strict=True))
        row = node.methods.get(method)
        if row is not None:
            return row, params
        get = node.methods.get("GET")
        if method == "HEAD" and get is not None and get.head:
            return get, params
        if method == "OPTIONS":
            return _options(
                get.pattern if get else next(iter(node.methods.values())).pattern, node.allow()
            ), params
        allow = ", ".join(node.allow())
        raise Problem(
            405,
            "METHOD_NOT_ALLOWED",
            detail=f"{method} is not served here",
            hint=f"use one of: {allow}",
            headers=[("Allow", allow)],
        )

    def everything(self) -> Route:
        """The answer to `OPTIONS *`: the methods of the whole table."""
        return _options("*", sorted({row.method for row in self.rows} | {"OPTIONS"}))

    def openapi(
        self, title: str, version: str, schemas: Mapping[str, Schema] | None = None
    ) -> dict[str, object]:
        """The OpenAPI 3.1 document; `schemas` are what rows refer to as `#/components/schemas/…`."""
        paths: dict[str, dict[str, object]] = {}
        for row in self.rows:
            paths.setdefault(row.pattern, {})[row.method.lower()] = _operation(row)
        return {
            "openapi": "3.1.0",
            "info": {"title": title, "version": version},
            "paths": paths,
            "components": {"schemas": {"Problem": SCHEMA, **(schemas or {})}},
        }

    def _add(self, row: Route) -> None:
        if not row.pattern.startswith("/"):
            raise ValueError(f"{row.pattern!r}: a pattern begins with '/'")
        node = self._root
        names: list[str] = []
        for segment in row.pattern.split("/")[1:]:
            if not segment.startswith("{"):
                node = node.literals.setdefault(segment, _Node())
                continue
            name = segment[1:-1]
            if not segment.endswith("}") or not name.isidentifier() or name in names:
                raise ValueError(f"{row.pattern!r}: {segment!r} is not a parameter of its own")
            names.append(name)
            node.any = node.any or _Node()
            node = node.any
        if not node.methods:
            node.parameters = names
        elif node.parameters != names:
            # OpenAPI knows no two paths that differ only in their parameters' names
            known = ", ".join(map(repr, node.parameters))
            raise ValueError(f"{row.pattern!r}: by another row this path's parameters are called {known}")
        if row.method in node.methods:
            raise ValueError(f"{row.method} {row.pattern} is in the table twice")
        if row.name_parameter and row.name_parameter not in names:
            raise ValueError(f"{row.pattern!r} has no parameter {row.name_parameter!r}")
        node.methods[row.method] = row
        self.rows.append(row)


class _Node:
    """One place in the tree of paths."""

    __slots__ = ("any", "literals", "methods", "parameters")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.any: _Node | None = None
        #: the names of the parameters on the way here
        self.parameters: list[str] = []
        self.methods: dict[str, Route] = {}

    def allow(self) -> list[str]:
        get = self.methods.get("GET")
        return sorted({*self.methods, "OPTIONS"} | ({"HEAD"} if get is not None and get.head else set()))


def _not_found(segments: list[str]) -> Problem:
    return Problem(
        404,
        "NOT_FOUND",
        detail=f"nothing is served at /{'/'.join(segments)}",
        hint="GET /v1/openapi.json lists the paths",
    )


def _not_offered(row: Route) -> Route:
    """The same row, which can only say that this store does not have it."""
    refused = NotOffered(
        f"this broker's store has no {_FEATURES.get(row.needs, row.needs)}",
        "serve another store, such as --store sqlite:////var/lib/waypost/waypost.db",
    )
    problem = Problem(refused.status, refused.code, refused.title, refused.detail, refused.hint)

    def answer(request: Any) -> None:
        request.refuse(problem)

    failures = (*row.failures, Failure(refused.status, refused.code, refused.detail))
    return replace(row, handler=answer, failures=failures)


def _options(pattern: str, allow: list[str]) -> Route:
    def answer(request: Any) -> None:
        request.answer(204, headers=[("Allow", ", ".join(allow))])

    return Route("OPTIONS", pattern, answer)


def _operation(row: Route) -> dict[str, object]:
    described = {p.name for p in row.parameters if p.where == "path"}
    in_path = [s[1:-1] for s in row.pattern.split("/") if s.startswith("{")]
    parameters = [Parameter(name, "path") for name in in_path if name not in described]
    operation: dict[str, object] = {
        "operationId": "_".join(
            [row.method.lower(), *(s.strip("{}") for s in row.pattern.split("/")[1:] if s)]
        ),
        "summary": row.summary,
        "parameters": [_parameter(p) for p in (*parameters, *row.parameters)],
        "responses": _responses(row),
    }
    if row.description:
        operation["description"] = row.description
    if row.tag:
        operation["tags"] = [row.tag]
    if row.request is not None:
        operation["requestBody"] = {"description": row.request.description, "content": _media(row.request)}
    if row.verb:
        operation["x-waypost-verb"] = row.verb
    return operation


def _parameter(parameter: Parameter) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required or parameter.where == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _media(content: Content) -> dict[str, object]:
    return {media_type: {"schema": schema} for media_type, schema in content.types.items()}


def _responses(row: Route) -> dict[str, object]:
    responses: dict[str, object] = {}
    for status, content in sorted(row.responses.items()):
        response: dict[str, object] = {"description": content.description}
        if content.types:
            response["content"] = _media(content)
        if content.headers:
            response["headers"] = {
                name: {"description": text, "schema": TEXT} for name, text in content.headers.items()
            }
        responses[str(status)] = response
    problem: dict[str, object] = {}
    if row.errors == "problem":
        problem["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for failure in row.failures:
        line = f"{failure.code}: {failure.description}" if failure.description else failure.code
        known = responses.get(str(failure.status))
        if isinstance(known, dict):
            known["description"] = f"{known['description']}\n{line}".strip()
            known.setdefault("content", {}).update(problem.get("content", {}))
        else:
            responses[str(failure.status)] = {"description": line, **problem}
    responses["default"] = {"description": "refused, or failed", **problem}
    return responses
