"""The table of routes: how a path finds its row, and the document made from it."""

from typing import Any

import pytest
import schemathesis
from schemathesis.core.result import Err

from waypost.http import Content, Failure, Parameter, Problem, Route, Routes

pytestmark = pytest.mark.timeout(30)


def handler(request: Any) -> None:
    request.answer(204)


TABLE = Routes(
    [
        Route("PUT", "/{queue}", handler),
        Route("GET", "/{queue}", handler),
        Route("POST", "/{queue}/messages", handler),
        Route("DELETE", "/{queue}/messages/{id}", handler),
        Route("GET", "/queue/{name}", handler, head=False),
        Route("POST", "/queue/{name}/confirm", handler, verb="confirm", name_parameter="name"),
        Route("POST", "/in/{topic}", handler),
        Route("POST", "/in/{object}/{topic}", handler),
        Route("GET", "/", handler),
        Route("GET", "/log", handler),
    ]
)


def found(method: str, path: str) -> tuple[str, dict[str, str]]:
    route, params = TABLE.match(method, path[1:].split("/"))
    return route.pattern, params


def refused(method: str, path: str) -> Problem:
    with pytest.raises(Problem) as caught:
        TABLE.match(method, path[1:].split("/"))
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/bills", "/{queue}", {"queue": "bills"}),
        ("HEAD", "/bills", "/{queue}", {"queue": "bills"}),
        ("POST", "/bills/messages", "/{queue}/messages", {"queue": "bills"}),
        ("DELETE", "/bills/messages/7", "/{queue}/messages/{id}", {"queue": "bills", "id": "7"}),
        ("GET", "/queue/bills", "/queue/{name}", {"name": "bills"}),
        ("GET", "/queue/messages", "/queue/{name}", {"name": "messages"}),
        ("POST", "/queue/bills/confirm", "/queue/{name}/confirm", {"name": "bills"}),
        ("POST", "/in/a", "/in/{topic}", {"topic": "a"}),
        ("POST", "/in/a/b", "/in/{object}/{topic}", {"object": "a", "topic": "b"}),
        ("GET", "/log", "/log", {}),
    ],
)
def test_a_path_finds_its_row(method: str, path: str, pattern: str, params: dict[str, str]) -> None:
    assert found(method, path) == (pattern, params)


@pytest.mark.parametrize(
    "path", ["/bills/", "/bills/other", "//messages", "/queue/", "/queue", "/in", "/log/x"]
)
def test_a_path_that_ends_nowhere_is_not_found(path: str) -> None:
    problem = refused("GET", path)
    assert (problem.status, problem.code) == (404, "NOT_FOUND")


def test_a_literal_is_final() -> None:
    # /log is a row of its own: PUT /{queue} does not serve it
    assert refused("PUT", "/log").status == 405


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/bills", "GET, HEAD, OPTIONS, PUT"),
        ("HEAD", "/queue/bills", "GET, OPTIONS"),
        ("GET", "/queue/bills/confirm", "OPTIONS, POST"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_told_which_it_has(method: str, path: str, allow: str) -> None:
    problem = refused(method, path)
    assert (problem.status, problem.headers) == (405, (("Allow", allow),))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([Route("GET", "x", handler)], "begins with"),
        ([Route("GET", "/x", handler), Route("GET", "/x", handler)], "twice"),
        ([Route("GET", "/{a}/{a}", handler)], "of its own"),
        ([Route("GET", "/{a", handler)], "of its own"),
        ([Route("GET", "/{a}", handler), Route("PUT", "/{b}", handler)], "called 'a'"),
        ([Route("GET", "/{a}", handler, name_parameter="b")], "no parameter 'b'"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(rows: list[Route], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Routes(rows)


def test_every_row_is_in_the_document() -> None:
    document: Any = TABLE.openapi("Waypost", "1.0")
    assert document["openapi"] == "3.1.0"
    assert document["info"] == {"title": "Waypost", "version": "1.0"}
    listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert listed == {(row.method, row.pattern) for row in TABLE}
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)


def test_a_row_documents_its_parameters_bodies_and_failures() -> None:
    outcome = {"type": "object", "properties": {"outcome": {"type": "string"}}}
    routes = Routes(
        [
            Route(
                "POST",
                "/queue/{name}/confirm",
                handler,
                verb="confirm",
                summary="Settle what was fetched",
                description="A stale receipt is reported.",
                tag="queues",
                parameters=(
                    Parameter("consumer", "query", "who confirms"),
                    Parameter("name", "path", "the queue"),
                ),
                request=Content("what became of it", {"application/json": outcome}),
                responses={
                    200: Content("settled", {"application/json": {"$ref": "#/components/schemas/Results"}}),
                    204: Content("nothing to settle", headers={"X-Left": "how many are left"}),
                },
                failures=(
                    Failure(404, "QUEUE_NOT_FOUND", "no such queue"),
                    Failure(404, "CONSUMER_NOT_FOUND"),
                    Failure(204, "NOTHING"),
                ),
            ),
            Route("GET", "/{queue}", handler, errors="bare", failures=(Failure(404, "QUEUE_NOT_FOUND"),)),
        ]
    )
    document: Any = routes.openapi("Waypost", "1.0", {"Results": {"type": "object"}})
    confirm = document["paths"]["/queue/{name}/confirm"]["post"]
    assert (confirm["summary"], confirm["tags"]) == ("Settle what was fetched", ["queues"])
    assert confirm["description"] == "A stale receipt is reported."
    assert [(p["name"], p["in"], p["required"]) for p in confirm["parameters"]] == [
        ("consumer", "query", False),
        ("name", "path", True),
    ]
    assert confirm["requestBody"]["content"]["application/json"]["schema"] == outcome
    responses = confirm["responses"]
    assert responses["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Results"
    }
    assert responses["204"]["headers"]["X-Left"]["description"] == "how many are left"
    assert responses["404"]["description"] == "QUEUE_NOT_FOUND: no such queue\nCONSUMER_NOT_FOUND"
    assert set(responses["404"]["content"]) == {"application/problem+json"}
    assert "content" not in document["paths"]["/{queue}"]["get"]["responses"]["404"]
    assert set(document["components"]["schemas"]) == {"Problem", "Results"}


def test_the_document_can_be_read_by_a_tool_of_the_field() -> None:
    schema = schemathesis.openapi.from_dict(TABLE.openapi("Waypost", "1.0"))
    results = list(schema.get_all_operations())
    assert [result for result in results if isinstance(result, Err)] == []
    assert len(results) == len(TABLE.rows)


def test_a_problem_says_its_status_in_words_unless_told_otherwise() -> None:
    problem = Problem(404, "QUEUE_NOT_FOUND", detail="no queue 'bills'", hint="PUT /bills")
    assert problem.title == "Not Found"
    assert str(problem) == "404 QUEUE_NOT_FOUND: no queue 'bills'"
    assert Problem(404, "QUEUE_NOT_FOUND", "Queue not found").title == "Queue not found"
