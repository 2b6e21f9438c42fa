"""Whatever is sent: an answer that says what is wrong and what to do, never a 5xx, and nothing is lost."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.http.brokers import BrokerInThread
from tests.http.harness import Answer
from waypost.stores.memory import MemoryStore


def is_a_problem(answer: Answer) -> bool:
    if answer.headers.get("content-type") != "application/problem+json":
        return False
    form = answer.json()
    return form["status"] == answer.status and all(form[part] for part in ("code", "title", "hint"))


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/in/fruit", 405),
        ("PUT", "/in/fruit", 405),
        ("POST", "/queue/fruit", 405),
        ("HEAD", "/queue/fruit", 405),
        ("DELETE", "/log", 405),
        ("POST", "/v1/queues/fruit", 405),
        ("PATCH", "/v1/queues/fruit", 405),
        ("DELETE", "/v1/messages/x", 405),
        ("POST", "/health/live", 405),
        ("POST", "/in", 404),
        ("POST", "/in/", 404),
        ("POST", "/in/a/b/c", 404),
        ("POST", "/in//b", 404),
        ("POST", "/in/%ff", 400),
        ("POST", "/in/%zz", 400),
        ("GET", "/queue/fruit?n=1&n=2", 400),
        ("GET", "/v1/stats?x=1", 400),
        ("GET", "/health/live?x=1", 400),
        ("GET", "/metrics?x=1", 400),
        ("GET", "/v1/openapi.json?x=1", 400),
        ("GET", "/v1/queues?x=1", 400),
        ("GET", "/v1/queues/UPPER", 400),
        ("GET", "/v1/channels?x=1", 400),
        ("GET", "/v1/objects?x=1", 400),
        ("GET", "/v1/consumers?x=1", 400),
        ("GET", "/v1/spectators?x=1", 400),
        ("GET", "/v1/channels/UPPER", 400),
        ("GET", "/v1/objects/UPPER", 400),
        ("GET", "/v1/consumers/UPPER", 400),
        ("GET", "/v1/spectators/UPPER", 400),
        ("GET", "/v1/channels/x?when=now", 400),
        ("POST", "/v1/channels/x", 405),
        ("POST", "/v1/objects/x", 405),
        ("POST", "/v1/consumers/x", 405),
        ("POST", "/v1/spectators/x", 405),
        ("PUT", "/v1/redrive", 405),
        ("GET", "/v1/replay", 405),
        ("HEAD", "/channel/fruit", 405),
        ("POST", "/channel/fruit", 405),
        ("GET", "/channel", 404),
        ("GET", "/channel/", 404),
        ("GET", "/v1/messages?limit=0", 400),
        ("GET", "/v1/messages?limit=1001", 400),
        ("GET", "/v1/messages?after=x", 400),
        ("GET", "/v1/messages?filter=nonsense", 400),
        ("GET", "/v1/messages?filter=state%3D", 400),
        ("GET", "/v1/messages/x?payload=perhaps", 404),
    ],
)
def test_paths_verbs_and_parameters(
    memory_broker: BrokerInThread, method: str, target: str, status: int
) -> None:
    answer = memory_broker.ask(method, target)
    assert answer.status == status
    assert method == "HEAD" or is_a_problem(answer)


@pytest.mark.parametrize(
    "policy",
    [
        "null",
        "[]",
        "7",
        "{",
        '{"lease": }',
        '{"lease": "soon"}',
        '{"lease": 0}',
        '{"lease": 1e300}',
        '{"lease": ' + "9" * 400 + "}",
        '{"lease": "' + "9" * 400 + '"}',
        '{"lease": true}',
        '{"lease": null}',
        '{"leese": 10}',
        '{"retries": 0}',
        '{"retries": 10}',
        '{"retries": 1.5}',
        '{"complete": "some"}',
        '{"complete": 101}',
        '{"complete": {}}',
        '{"order": []}',
        '{"kick": 1}',
        '{"maxMessages": 0}',
        '{"maxMessages": 99999999999999999999}',
        '{"keep": -1}',
        '{"backoff": {"base": 10, "cap": 1}}',
        '{"backoff": {"bass": 10}}',
        '{"backoff": 1}',
        '{"dead": "UPPER"}',
        '{"dead": "\\ud800"}',
        '{"paused": "yes"}',
        '{"x":' * 5_000,
        "[" * 200_000,
    ],
)
def test_policies_that_are_none(memory_broker: BrokerInThread, policy: str) -> None:
    answer = memory_broker.ask("PUT", "/v1/queues/fruit", policy)
    assert answer.status == 400
    assert is_a_problem(answer)
    assert memory_broker.get("/v1/queues") == {"queues": []}


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"body":"\xff"}',
        b'{"body":"\\ud800"}',
        b'{"body":1}',
        b'{"body":"","topics":"fruit"}',
        b'{"body":"","topics":[1]}',
        b'{"body":"","topics":[null]}',
        b'{"body":"","key":1}',
        b'{"body":"","key":"\\u0000"}',
        b'{"body":"","object":"UPPER"}',
        b'{"body":"","queue":""}',
        b'{"body":"","priority":"1"}',
        b'{"body":"","priority":1e400}',
        b'{"body":"","priority":99999999999999999999999}',
        b'{"body":"","delay":[]}',
        b'{"body":"","ttl":-5}',
        b'{"body":"","timestamp":5}',
        b'{"body":"","id":""}',
        b'{"body":"","idempotencyKey":"\\n"}',
        b'{"body":"","mimeType":"a\\r\\nX-Evil: 1"}',
        b'{"body":"","encoding":"a\\r\\nX-Evil: 1"}',
        b'{"body":"","meta":{"a b":"x"}}',
        b'{"body":"","meta":{"A":"x","a":"y"}}',
        b'{"body":"","meta":[]}',
        b'{"body":"","force":"yes"}',
        b'{"meta":' + b'{"a":' * 50_000,
    ],
)
def test_lines_that_are_no_message(memory_broker: BrokerInThread, body: bytes) -> None:
    answer = memory_broker.ask("POST", "/v1/messages", body)
    assert answer.status == 400
    assert is_a_problem(answer)
    assert memory_broker.events() == []


def test_text_that_would_break_a_header_is_encoded_when_it_comes_back(broker: BrokerInThread) -> None:
    line = {"topics": ["fruit.ä b"], "key": " k\u2028\u00a0", "meta": {"note": "a\r\nX-Evil: 1"}, "body": ""}
    assert broker.ask("POST", "/v1/messages", json.dumps(line)).status == 201
    answer = broker.ask("GET", "/queue/fruit")
    assert "x-evil" not in answer.headers
    assert answer.headers["waypost-topics"] == "fruit.%C3%A4%20b"
    assert answer.headers["waypost-key"] == "%20k%E2%80%A8%C2%A0"
    assert answer.headers["waypost-meta-note"] == "a%0D%0AX-Evil:%201"


#: what may come in a segment or a value, as percent-encoded as it has to be
_wild = st.binary(max_size=12).map(lambda raw: "".join(f"%{byte:02X}" for byte in raw))
_tame = st.sampled_from(["fruit", "fruit.apple", "1", "0", "x", "-1", "5m", "*", "", "fruit.*", "Q", "true"])
_text = _wild | _tame
_paths = st.sampled_from(
    [
        "/{}",
        "/{}/messages",
        "/{}/messages/{}",
        "/in/{}",
        "/in/{}/{}",
        "/queue/{}",
        "/queue/{}/confirm",
        "/queue/{}/extend",
        "/log",
        "/log/{}",
        "/v1/messages",
        "/v1/messages/{}",
        "/v1/messages/{}/payload",
        "/v1/queues",
        "/v1/queues/{}",
        "/v1/queues/{}/purge",
        "/channel/{}",
        "/channel/{}/confirm",
        "/channel/{}/extend",
        "/v1/channels",
        "/v1/channels/{}",
        "/v1/channels/{}/purge",
        "/v1/objects/{}",
        "/v1/consumers/{}",
        "/v1/spectators/{}",
        "/v1/redrive",
        "/v1/replay",
        "/v1/cancel",
        "/v1/jobs/{}",
    ]
)
_names = st.sampled_from(
    [
        *("n", "lease", "topic", "topics", "key", "delay", "ttl", "priority", "from", "ts", "queue"),
        *("payload", "channel", "spectator", "at", "filter", "after", "limit", "force", "consumer"),
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("receipts", "receipt", "outcome", "lease", "filter", "body", "topics", "retries", "x"),
                    *("from", "unchanged", "ignore", "window", "route", "queue", "channel", "url", "secret"),
                    *("offset", "rate", "consumer", "dryRun", "timeout", "complete"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
_bodies = st.binary(max_size=40) | _json.map(lambda value: json.dumps(value).encode())


def test_whatever_comes_is_answered_below_500() -> None:
    with BrokerInThread(MemoryStore) as broker:

        @settings(
            max_examples=500,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD"]),
            _paths,
            st.lists(_text, min_size=2, max_size=2),
            st.dictionaries(_names, _text, max_size=3),
            _bodies,
        )
        def sent(method: str, path: str, parts: list[str], query: dict[str, str], body: bytes) -> None:
            target = path.format(*parts) + "?" + "&".join(f"{name}={value}" for name, value in query.items())
            answer = broker.ask(method, target, body)
            assert answer.status < 500 or answer.json()["code"] == "NOT_OFFERED", (method, target, answer)

        sent()
        events = broker.events()
        assert [event["offset"] for event in events] == list(range(1, len(events) + 1))
