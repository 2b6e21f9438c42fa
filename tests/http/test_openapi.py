"""/v1/openapi.json tells the truth: requests made from it are answered as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http.brokers import BrokerInThread
from tests.lake.brokers import LakeBroker
from waypost.http.schemas import ARROW, NDJSON, SCHEMAS
from waypost.push import Pusher

#: generated requests for each operation, well-formed and malformed; each a request of its own
EXAMPLES = {GenerationMode.POSITIVE: 10, GenerationMode.NEGATIVE: 6}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: these keep an answer open on purpose
OPEN_ENDED = ("follow", "wait")

OPERATIONS = [
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /v1/stats",
    "GET /v1/openapi.json",
    "POST /in/{topic}",
    "POST /in/{object}/{topic}",
    "GET /queue/{name}",
    "POST /queue/{name}/confirm",
    "POST /queue/{name}/extend",
    "GET /channel/{name}",
    "POST /channel/{name}/confirm",
    "POST /channel/{name}/extend",
    "GET /log",
    "GET /log/{topic}",
    "POST /v1/messages",
    "POST /v1/uploads",
    "PUT /v1/batches/{query}/{batch}",
    "GET /v1/batches/{query}/{batch}",
    "GET /v1/messages",
    "GET /v1/messages/{id}",
    "GET /v1/messages/{id}/payload",
    "DELETE /v1/messages/{id}/payload",
    "GET /v1/lake",
    "POST /v1/lake/seal",
    "POST /v1/lake/maintain",
    "GET /v1/tables/{name}",
    "GET /v1/queues",
    "GET /v1/queues/{name}",
    "PUT /v1/queues/{name}",
    "DELETE /v1/queues/{name}",
    "POST /v1/queues/{name}/purge",
    "GET /v1/channels",
    "GET /v1/channels/{name}",
    "PUT /v1/channels/{name}",
    "DELETE /v1/channels/{name}",
    "POST /v1/channels/{name}/purge",
    "GET /v1/objects",
    "GET /v1/objects/{name}",
    "PUT /v1/objects/{name}",
    "DELETE /v1/objects/{name}",
    "GET /v1/undecided",
    "POST /v1/decisions",
    "GET /v1/consumers",
    "GET /v1/consumers/{name}",
    "PUT /v1/consumers/{name}",
    "DELETE /v1/consumers/{name}",
    "GET /v1/spectators",
    "GET /v1/spectators/{name}",
    "PUT /v1/spectators/{name}",
    "DELETE /v1/spectators/{name}",
    "POST /v1/redrive",
    "POST /v1/replay",
    "POST /v1/cancel",
    "GET /v1/jobs/{id}",
    "GET /{queue}",
    "PUT /{queue}",
    "DELETE /{queue}",
    "POST /{queue}/messages",
    "GET /{queue}/messages",
    "DELETE /{queue}/messages/{id}",
]


#: what the broker knows, so that not every request asks for nothing
KNOWN: dict[str, dict[str, Any]] = {
    "GET /queue/{name}": {"path_parameters": {"name": "fruit"}},
    "POST /queue/{name}/confirm": {"path_parameters": {"name": "fruit"}},
    "POST /queue/{name}/extend": {"path_parameters": {"name": "fruit"}},
    "GET /channel/{name}": {"path_parameters": {"name": "audit"}},
    "POST /channel/{name}/confirm": {"path_parameters": {"name": "audit"}},
    "POST /channel/{name}/extend": {"path_parameters": {"name": "audit"}},
    "GET /v1/channels/{name}": {"path_parameters": {"name": "audit"}},
    "POST /v1/channels/{name}/purge": {"path_parameters": {"name": "empty"}},
    "GET /v1/objects/{name}": {"path_parameters": {"name": "fruit"}},
    "GET /v1/consumers/{name}": {"path_parameters": {"name": "billing"}},
    "DELETE /v1/consumers/{name}": {"path_parameters": {"name": "leaving"}},
    "GET /v1/spectators/{name}": {"path_parameters": {"name": "auditor"}},
    "GET /v1/messages/{id}": {"path_parameters": {"id": "known-1"}},
    "GET /v1/messages/{id}/payload": {"path_parameters": {"id": "known-1"}},
    "DELETE /v1/messages/{id}/payload": {"path_parameters": {"id": "known-2"}},
    "GET /v1/queues/{name}": {"path_parameters": {"name": "fruit"}},
    "POST /v1/queues/{name}/purge": {"path_parameters": {"name": "empty"}},
    "POST /v1/redrive": {"body": {"filter": "state=E"}},
    "POST /v1/replay": {"body": {"filter": "object=fruit", "dryRun": True}},
    "POST /v1/cancel": {"body": {"filter": "queue=empty", "dryRun": True}},
    "GET /v1/batches/{query}/{batch}": {"path_parameters": {"query": "known", "batch": 0}},
    "GET /v1/jobs/{id}": {"path_parameters": {"id": "1"}},
    "GET /{queue}": {"path_parameters": {"queue": "fruit"}},
    "POST /{queue}/messages": {"path_parameters": {"queue": "fruit"}},
    "GET /{queue}/messages": {"path_parameters": {"queue": "fruit"}},
}
#: those with a query or a body that can be malformed
MALLEABLE = [
    "POST /in/{topic}",
    "POST /in/{object}/{topic}",
    "GET /queue/{name}",
    "POST /queue/{name}/confirm",
    "POST /queue/{name}/extend",
    "GET /log",
    "GET /log/{topic}",
    "POST /v1/messages",
    "POST /v1/uploads",
    "PUT /v1/batches/{query}/{batch}",
    "GET /v1/messages",
    "GET /v1/messages/{id}",
    "GET /v1/tables/{name}",
    "GET /channel/{name}",
    "POST /channel/{name}/confirm",
    "POST /channel/{name}/extend",
    "PUT /v1/queues/{name}",
    "GET /v1/queues/{name}",
    "PUT /v1/channels/{name}",
    "GET /v1/channels/{name}",
    "PUT /v1/objects/{name}",
    "GET /v1/undecided",
    "POST /v1/decisions",
    "PUT /v1/consumers/{name}",
    "PUT /v1/spectators/{name}",
    "POST /v1/redrive",
    "POST /v1/replay",
    "POST /v1/cancel",
    "POST /{queue}/messages",
]


@schemathesis.serializer(NDJSON)
def written_lines(context: Any, value: Any) -> bytes:
    items = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(item) for item in items).encode()


@schemathesis.deserializer(NDJSON)
def read_lines(context: Any, response: Any) -> list[Any]:
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.serializer(ARROW)
def written_rows(context: Any, value: Any) -> bytes:
    sink = pa.BufferOutputStream()
    rows = pa.table({"value": [json.dumps(value, default=str)], "object": ["fruit"]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


@schemathesis.deserializer(ARROW)
def read_rows(context: Any, response: Any) -> list[Any]:
    return list(pa.ipc.open_stream(response.content).read_all().to_pylist())


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerInThread]:
    with LakeBroker(tmp_path_factory.mktemp("described"), push=Pusher) as running:
        running.ask("PUT", "/v1/channels/audit", '{"topics":["fruit.*"]}')
        running.ask("PUT", "/v1/channels/empty", '{"topics":["nothing"]}')
        running.ask("PUT", "/v1/objects/fruit", '{"unchanged":{"ignore":["$.a"]}}')
        running.ask("PUT", "/v1/spectators/auditor", '{"offset":0}')
        for number in range(20):
            running.publish("/in/fruit.apple", str(number))
        for name in ("billing", "leaving"):
            running.ask("PUT", f"/v1/consumers/{name}", '{"queue":"fruit"}')
        running.publish("/in/fruit.apple", "{}", x_message_id="known-1")
        running.publish("/in/fruit.apple", "{}", x_message_id="known-2")
        running.ask("PUT", "/v1/objects/held", '{"route":"spark"}')
        running.publish("/in/held.back", "{}", waypost_key="k", waypost_meta_a="b")
        running.seal()
        nothing = {"uploads": [], "rows": 0, "hash": "0" * 32}
        running.ask("PUT", "/v1/batches/known/0", json.dumps(nothing))
        running.ask("PUT", "/empty")
        running.ask("POST", "/v1/queues/empty/purge")
        yield running


@pytest.fixture(scope="module")
def document(described: BrokerInThread) -> dict[str, Any]:
    answer: dict[str, Any] = described.get("/v1/openapi.json")
    return answer


def test_every_route_is_described(document: dict[str, Any]) -> None:
    described = [
        f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods
    ]
    assert sorted(described) == sorted(OPERATIONS)


def test_every_schema_is_there_and_used(document: dict[str, Any]) -> None:
    text = str(document)
    unused = {name for name in SCHEMAS if f"#/components/schemas/{name}'" not in text}
    assert unused == set()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_requests_as_described_are_answered_as_described(
    described: BrokerInThread, document: dict[str, Any], operation: str
) -> None:
    ask(described, document, operation, GenerationMode.POSITIVE)


@pytest.mark.parametrize("operation", MALLEABLE)
def test_malformed_requests_are_answered_as_described(
    described: BrokerInThread, document: dict[str, Any], operation: str
) -> None:
    ask(described, document, operation, GenerationMode.NEGATIVE)


def ask(broker: BrokerInThread, document: dict[str, Any], operation: str, mode: GenerationMode) -> None:
    method, path = operation.split(" ")
    known = KNOWN.get(operation, {}) if mode is GenerationMode.POSITIVE else {}
    described = schemathesis.openapi.from_dict(document)[path][method]
    with requests.Session() as session:

        @settings(
            max_examples=EXAMPLES[mode],
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(described.as_strategy(generation_mode=mode, **known))
        def asked(case: Any) -> None:
            for name in OPEN_ENDED:
                (case.query or {}).pop(name, None)
            case.call_and_validate(base_url=broker.serving.url, session=session, checks=CHECKS)

        asked()


def test_every_route_declares_the_verb_that_authorisation_asks_for(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("x-waypost-verb"), f"{method} {path}"
