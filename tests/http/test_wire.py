"""The wire: raw bytes to a real server, raw bytes back."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable

import httptools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.conftest import Desk, Started
from tests.http.harness import Answer, Running, Wire, wait_until
from waypost.http import Head, Limits, Problem
from waypost.http.head import KEPT_HEADS, Heads
from waypost.http.site import Site

pytestmark = pytest.mark.timeout(30)

HOST = b"Host: localhost\r\n"


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{lines}\r\n".encode()


def post(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method=method) + body


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = ()) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks)
    return get(path, "Transfer-Encoding: chunked", *headers, method="POST") + body + b"0\r\n\r\n"


def each_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


# --- answers ------------------------------------------------------------------------------------------------


def test_a_body_comes_back_with_its_length_and_type(served: Started) -> None:
    answer = served.ask(post("/echo", b"hello", "Content-Type: text/plain"))
    assert answer == Answer(200, {"content-type": "text/plain", "content-length": "5"}, b"hello")


def test_a_connection_is_used_again_and_again(served: Started) -> None:
    with served.wire() as wire:
        for number in range(50):
            assert wire.ask(post("/echo", b"%d" % number)).body == b"%d" % number
    assert served.server.stats.connections == 1


def test_a_handler_may_answer_later(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/later/a"))
        (request,) = served.desk.wait_for("a")
        served.call(request.answer, 201, b"at last", "text/plain")
        assert wire.answer().body == b"at last"


def test_a_coroutine_may_be_a_handler(served: Started) -> None:
    assert served.ask(get("/async/x")).body == b"x"


def test_head_has_the_headers_of_get_and_no_body(served: Started) -> None:
    with served.wire() as wire:
        whole = wire.ask(get("/seen/a/literal"))
        bare = wire.ask(get("/seen/a/literal", method="HEAD"))
        assert (bare.status, bare.headers, bare.body) == (200, whole.headers, b"")
        assert bare.headers["content-length"] == "7"
        assert wire.ask(get("/seen/a/literal")).body == b"literal"


def test_head_of_a_stream_has_no_body(served: Started) -> None:
    with served.wire() as wire:
        assert wire.ask(get("/stream/3", method="HEAD")).headers["x-kind"] == "stream"
        assert wire.ask(get("/async/x")).body == b"x"


def test_head_where_a_get_changes_something_is_not_allowed(served: Started) -> None:
    answer = served.ask(get("/poll/a", method="HEAD"))
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    assert served.desk.waiting == []


def test_no_content_has_no_length(served: Started) -> None:
    answer = served.ask(get("/nothing", method="DELETE"))
    assert (answer.status, answer.headers) == (204, {})


def test_a_problem_that_is_raised_is_answered(served: Started) -> None:
    with served.wire() as wire:
        for path in ("/problem", "/problem-task"):
            answer = wire.ask(get(path))
            assert answer.status == 409
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["retry-after"] == "7"
            assert answer.json() == {
                "status": 409,
                "code": "TAKEN",
                "title": "Taken",
                "detail": "it is",
                "hint": "take another",
            }


def test_a_bare_route_answers_a_problem_as_its_status_alone(served: Started) -> None:
    answer = served.ask(get("/bare"))
    assert answer == Answer(409, {"retry-after": "7", "content-length": "0"}, b"")
    too_large = served.ask(post("/bare", b"x" * 11))
    assert (too_large.status, too_large.body) == (413, b"")


@pytest.mark.parametrize("path", ["/boom", "/boom-task", "/silent", "/split"])
def test_a_handler_that_fails_answers_500_closes_and_is_logged(
    path: str, served: Started, caplog: pytest.LogCaptureFixture
) -> None:
    with served.wire() as wire:
        answer = wire.ask(get(path))
        assert (answer.status, answer.code, answer.headers["connection"]) == (500, "INTERNAL", "close")
        assert b"on purpose" not in answer.body
        assert wire.is_closed()
    assert path in caplog.text


def test_a_second_answer_is_logged_and_not_sent(served: Started, caplog: pytest.LogCaptureFixture) -> None:
    with served.wire() as wire:
        assert wire.ask(get("/twice")).body == b"first"
        assert wire.ask(post("/echo", b"next")).body == b"next"
    assert "answered twice" in caplog.text


def test_answers_connections_and_bytes_are_counted(served: Started) -> None:
    with served.wire() as wire:
        question = post("/echo", b"12345")
        wire.ask(question)
        wire.ask(get("/nowhere"))
        stats = served.server.stats
        assert stats.answers == [0, 0, 1, 0, 1, 0]
        assert stats.bytes_in == len(question) + len(get("/nowhere"))
        assert stats.bytes_out > 5
        assert (stats.connections, stats.open) == (1, 1)
    wait_until(lambda: stats.open == 0)


def test_small_packets_are_not_held_back(served: Started) -> None:
    with served.wire() as wire:
        wire.ask(get("/nowhere"))
        (connection,) = served.server._connections
        peer = connection.transport.get_extra_info("socket")
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- what the head says -------------------------------------------------------------------------------------


def test_a_head_is_understood(served: Started) -> None:
    answer = served.ask(
        get(
            "/seen/caf%C3%A9/a%2Fb+c?x=1&empty=&flag&space=a+b%20c&plus=%2B&&uml=%C3%BC",
            "X-Many: one",
            "X-Odd:\t two ",
            "x-many:three",
            "X-Text: grün",
        )
    )
    told = answer.json()
    assert told["path"] == "/seen/caf%C3%A9/a%2Fb+c"
    assert told["params"] == {"first": "café", "second": "a/b+c"}
    assert told["query"] == {
        "x": "1", "empty": "", "flag": "", "space": "a b c", "plus": "+", "uml": "ü"
    }  # fmt: skip
    assert told["headers"] == {"host": "localhost", "x-many": "one, three", "x-odd": "two", "x-text": "grün"}


def test_an_absolute_target_is_understood(served: Started) -> None:
    assert served.ask(get("http://localhost:99/seen/a/b?c=d")).json()["query"] == {"c": "d"}
    assert served.ask(get("HTTP://localhost")).status == 404
    assert served.ask(get("http://elsewhere/seen/a/b")).status == 421


def test_empty_lines_before_a_request_are_passed_over(served: Started) -> None:
    with served.wire() as wire:
        assert wire.ask(b"\r\n\r\n" + post("/echo", b"a")).body == b"a"
        wire.send_pieces(each_byte(b"\r\n" + post("/echo", b"b")))
        assert wire.answer().body == b"b"


def test_a_known_head_is_read_once_and_only_where_the_route_allows_it(served: Started) -> None:
    known = served.server.heads.known
    with served.wire() as wire:
        for _ in range(3):
            wire.ask(get("/seen/a/literal"))
        assert known == {}
        wire.ask(get("/seen/a/b"))
        assert known == {}, "one sight is not enough"
        wire.ask(get("/seen/a/b"))
        (head,) = known.values()
        wire.ask(get("/seen/a/b"))
        assert list(known.values()) == [head]


@pytest.mark.parametrize(
    "question",
    [
        get("/seen/a/b", "Connection: close"),
        get("/seen/a/b", method="HEAD"),
        get("/seen/a/b", "Connection: keep-alive", version="1.0"),
        get("/seen/a/b", "X-Large: " + "x" * 2048),
        get("/seen/a/b", "Host: elsewhere").replace(HOST, b""),
        get("/nowhere"),
        chunked("/echo", b"a"),
        post("/small", b"x" * 11),
        post("/echo", b"a", "Expect: 100-continue"),
    ],
)
def test_heads_that_need_care_are_not_kept(question: bytes, served: Started) -> None:
    for _ in range(3):
        served.ask(question)
    assert served.server.heads.known == {}


def test_kept_heads_are_bounded(served: Started) -> None:
    heads = served.server.heads

    def fill() -> int:
        for number in range(KEPT_HEADS + 10):
            raw = get(f"/seen/a/{number}")[:-4]
            heads.read(raw)
            heads.read(raw)
        return len(heads.known)

    assert served.call(fill) == 10
    assert max(len(heads._seen), len(heads._aims), len(heads._fields)) <= KEPT_HEADS


def test_heads_that_differ_in_their_idempotency_key_are_read_as_one_with_its_key(served: Started) -> None:
    heads = served.server.heads
    lines = [b"Host: localhost", b"Content-Length: 3", b"Accept: */*"]

    def read(place: int, line: bytes) -> Head:
        return heads.read(b"\r\n".join([b"POST /echo HTTP/1.1", *lines[:place], line, *lines[place:]]))

    written = (
        b"Idempotency-Key: k%d",
        b"idempotency-key: k%d",
        b"Idempotency-Key:\tk%d",
        b"IDEMPOTENCY-KEY: k%d",
    )
    number = 0
    for place in range(4):
        for line in written:
            number += 1
            head = read(place, line % number)
            wanted = {
                "host": "localhost",
                "content-length": "3",
                "accept": "*/*",
                "idempotency-key": f"k{number}",
            }
            assert (head.headers, head.content_length, head.simple) == (wanted, 3, True)
    (known,) = heads.known
    assert b"empotency" not in known, "what is kept is the head without its key"


@pytest.mark.parametrize(
    ("limits", "lines", "code"),
    [
        (Limits(), [b"Idempotency-Key: a", b"Idempotency-Key: b"], "REPEATED_HEADER"),
        (Limits(), [b"Idempotency-Key: a", b"IDEMPOTENCY-KEY: b"], "REPEATED_HEADER"),
        (Limits(headers=2), [b"Idempotency-Key: a", b"A: b"], "TOO_MANY_HEADERS"),
        (Limits(header_bytes=60), [b"Idempotency-Key: " + b"a" * 40], "HEADERS_TOO_LARGE"),
        (Limits(), [b"Idempotency-Key: a", b"A : b"], "BAD_HEADER"),
    ],
)
def test_an_idempotency_key_hides_nothing_that_is_wrong(
    limits: Limits, lines: list[bytes], code: str
) -> None:
    heads = Heads(Desk().routes(), Site("127.0.0.1"), limits)
    for _ in range(3):
        with pytest.raises(Problem) as wrong:
            heads.read(b"\r\n".join([b"GET /seen/a/b HTTP/1.1", b"Host: localhost", *lines]))
        assert wrong.value.code == code


def test_a_known_head_that_is_cut_short_is_not_taken_for_a_request(served: Started) -> None:
    # long enough for the head and one byte more to pass for a whole request without its empty line
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 54"
    assert len(head) == 56
    with served.wire() as wire:
        for _ in range(3):
            assert wire.ask(head + b"\r\n\r\n" + b"x" * 54).status == 200
        assert head in served.server.heads.known
        wire.send_pieces([head + b"0"])
        wire.send(b"\r\n\r\n" + b"y" * 540)
        assert wire.answer().body == b"y" * 540


# --- strictness ---------------------------------------------------------------------------------------------

#: Not readable as a request: answered, then closed.
BROKEN = {
    "no version": (b"GET /echo\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "two blanks": (b"GET  /echo HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "blank in target": (b"GET /ec ho HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "tab": (b"GET\t/echo HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "BAD_REQUEST_LINE"),
    "lower-case protocol": (b"GET /echo http/1.1\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "no method": (b" /echo HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_REQUEST_LINE"),
    "raw utf-8 target": ("GET /café HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 400, "BAD_TARGET"),
    "nul in target": (b"GET /a\0b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_TARGET"),
    "version 2.0": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "UNKNOWN_VERSION"),
    "version 1.2": (b"GET / HTTP/1.2\r\n" + HOST + b"\r\n", 505, "UNKNOWN_VERSION"),
    "version 3": (b"GET / HTTP/3\r\n" + HOST + b"\r\n", 505, "UNKNOWN_VERSION"),
    "version 0.9": (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505, "UNKNOWN_VERSION"),
    "long line": (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "REQUEST_LINE_TOO_LONG"),
    "endless line": (b"GET /" + b"a" * 9000, 414, "REQUEST_LINE_TOO_LONG"),
    "large headers": (get("/", "X: " + "a" * 32768), 431, "HEADERS_TOO_LARGE"),
    "endless headers": (get("/", "X: " + "a" * 50000)[:-4], 431, "HEADERS_TOO_LARGE"),
    "many headers": (get("/", *(f"X-{n}: 1" for n in range(100))), 431, "TOO_MANY_HEADERS"),
    "bare LF everywhere": (b"GET /echo HTTP/1.1\nHost: localhost\n\n", 400, "BAD_LINE_END"),
    "bare LF in a header": (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n" + HOST + b"\r\n", 400, "BAD_LINE_END"),
    "bare CR in a header": (b"GET / HTTP/1.1\r\nA: b\rC: d\r\n" + HOST + b"\r\n", 400, "BAD_LINE_END"),
    "bare CR in the line": (b"GET /\r HTTP/1.1\r\n" + HOST + b"\r\n", 400, "BAD_LINE_END"),
    "CR CR LF": (b"GET / HTTP/1.1\r\nA: b\r\r\n" + HOST + b"\r\n", 400, "BAD_LINE_END"),
    "folded": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", 400, "FOLDED_HEADER"),
    "folded at once": (b"GET / HTTP/1.1\r\n A: b\r\n" + HOST + b"\r\n", 400, "FOLDED_HEADER"),
    "blank before colon": (get("/", "A : b"), 400, "BAD_HEADER"),
    "no colon": (get("/", "A"), 400, "BAD_HEADER"),
    "no name": (get("/", ": b"), 400, "BAD_HEADER"),
    "odd name": (get("/", "A(b): c"), 400, "BAD_HEADER"),
    "nul in value": (get("/", "A: b\0c"), 400, "BAD_HEADER"),
    "control in value": (get("/", "A: b\x1bc"), 400, "BAD_HEADER"),
    "delete in value": (get("/", "A: b\x7fc"), 400, "BAD_HEADER"),
    "latin-1 value": (b"GET / HTTP/1.1\r\n" + HOST + b"A: gr\xfcn\r\n\r\n", 400, "BAD_HEADER"),
    "no host": (b"GET /echo HTTP/1.1\r\n\r\n", 400, "NO_HOST"),
    "two hosts": (get("/", "Host: localhost"), 400, "REPEATED_HEADER"),
    "two lengths": (get("/echo", "Content-Length: 1", "Content-Length: 1"), 400, "REPEATED_HEADER"),
    "length list": (get("/echo", "Content-Length: 1, 1"), 400, "BAD_LENGTH"),
    "signed length": (get("/echo", "Content-Length: +1"), 400, "BAD_LENGTH"),
    "negative length": (get("/echo", "Content-Length: -1"), 400, "BAD_LENGTH"),
    "empty length": (get("/echo", "Content-Length: "), 400, "BAD_LENGTH"),
    "hex length": (get("/echo", "Content-Length: 0x1"), 400, "BAD_LENGTH"),
    "arabic length": (get("/echo", "Content-Length: ١"), 400, "BAD_LENGTH"),
    "huge length": (get("/echo", "Content-Length: " + "9" * 30), 400, "BAD_LENGTH"),
    "both lengths": (
        get("/echo", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST"), 400, "BAD_LENGTH"
    ),
    "chunked in 1.0": (get("/echo", "Transfer-Encoding: chunked", version="1.0"), 400, "BAD_LENGTH"),
    "chunked twice": (get("/", "Transfer-Encoding: chunked, chunked"), 400, "BAD_LENGTH"),
    "chunked in two lines": (
        get("/", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400, "BAD_LENGTH"
    ),
    "gzip coding": (get("/", "Transfer-Encoding: gzip, chunked"), 501, "UNKNOWN_TRANSFER_CODING"),
    "identity coding": (get("/", "Transfer-Encoding: identity"), 501, "UNKNOWN_TRANSFER_CODING"),
    "coding last": (get("/", "Transfer-Encoding: chunked, gzip"), 501, "UNKNOWN_TRANSFER_CODING"),
    "empty coding": (get("/", "Transfer-Encoding: "), 501, "UNKNOWN_TRANSFER_CODING"),
}  # fmt: skip

CHUNKED = get("/echo", "Transfer-Encoding: chunked", method="POST")
BROKEN |= {
    f"chunk: {name}": (CHUNKED + body, 400, "BAD_CHUNK")
    for name, body in {
        "no size": b"\r\nabc\r\n0\r\n\r\n",
        "not hexadecimal": b"g\r\nabc\r\n0\r\n\r\n",
        "sign": b"+3\r\nabc\r\n0\r\n\r\n",
        "prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
        "blank": b" 3\r\nabc\r\n0\r\n\r\n",
        "blank after": b"3 \r\nabc\r\n0\r\n\r\n",
        "underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
        "huge": b"f" * 16 + b"\r\n",
        "LF after the size": b"3\nabc\r\n0\r\n\r\n",
        "LF after the data": b"3\r\nabc\n0\r\n\r\n",
        "too short": b"4\r\nabc\r\n0\r\n\r\n",
        "too long": b"2\r\nabc\r\n0\r\n\r\n",
        "long extension": b"3;" + b"x" * 300,
        "control in extension": b"3;\0\r\nabc\r\n0\r\n\r\n",
        "bad trailer": b"0\r\nno colon\r\n\r\n",
        "folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
        "many trailers": b"0\r\n" + b"A: bcdef\r\n" * 2000,
    }.items()
}

#: Readable, but not served: answered, and the connection goes on.
REFUSED = {
    "unknown path": (get("/nowhere"), 404, "NOT_FOUND"),
    "trailing slash": (get("/seen/a/"), 404, "NOT_FOUND"),
    "empty parameter": (get("/seen//b"), 404, "NOT_FOUND"),
    "too short": (get("/seen"), 404, "NOT_FOUND"),
    "wrong method": (get("/echo"), 405, "METHOD_NOT_ALLOWED"),
    "unknown method": (get("/echo", method="BREW"), 405, "METHOD_NOT_ALLOWED"),
    "lower-case method": (get("/seen/a/b", method="get"), 405, "METHOD_NOT_ALLOWED"),
    "asterisk": (get("*"), 400, "BAD_TARGET"),
    "authority": (get("localhost:80", method="CONNECT"), 400, "BAD_TARGET"),
    "no slash": (get("echo"), 400, "BAD_TARGET"),
    "fragment": (get("/seen/a/b#c"), 400, "BAD_TARGET"),
    "other scheme": (get("ftp://localhost/seen/a/b"), 400, "BAD_TARGET"),
    "half an escape": (get("/seen/a/b%4"), 400, "BAD_PERCENT_ENCODING"),
    "no escape": (get("/seen/a/b%zz"), 400, "BAD_PERCENT_ENCODING"),
    "escape of no text": (get("/seen/a/%ff"), 400, "BAD_PERCENT_ENCODING"),
    "bad escape in query": (get("/seen/a/b?c=%"), 400, "BAD_PERCENT_ENCODING"),
    "repeated parameter": (get("/seen/a/b?c=1&d=2&c=1"), 400, "REPEATED_PARAMETER"),
    "repeated, spelled otherwise": (get("/seen/a/b?c=1&%63=1"), 400, "REPEATED_PARAMETER"),
    "foreign host": (get("/seen/a/b").replace(b"localhost", b"evil.example"), 421, "WRONG_HOST"),
    "host of no sense": (get("/seen/a/b").replace(b"localhost", b"a b"), 400, "BAD_HOST"),
    "foreign origin": (get("/seen/a/b", "Origin: http://evil.example"), 403, "FOREIGN_ORIGIN"),
    "no origin": (get("/seen/a/b", "Origin: null"), 403, "FOREIGN_ORIGIN"),
    "other expectation": (get("/seen/a/b", "Expect: 200-ok"), 417, "UNKNOWN_EXPECTATION"),
    "unwanted body": (post("/nowhere", b"x" * 1000), 404, "NOT_FOUND"),
    "unwanted chunks": (chunked("/nowhere", b"x" * 1000, b"y"), 404, "NOT_FOUND"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_refused_and_the_connection_closed(case: str, served: Started) -> None:
    question, status, code = BROKEN[case]
    with served.wire() as wire:
        answer = wire.ask(question)
        assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
        assert wire.is_closed()
    assert served.desk.seen_bodies == []


@pytest.mark.parametrize("case", [name for name, (question, *_) in BROKEN.items() if len(question) < 500])
def test_what_cannot_be_read_is_refused_the_same_when_it_comes_byte_by_byte(
    case: str, served: Started
) -> None:
    question, status, code = BROKEN[case]
    with served.wire() as wire:
        wire.send_pieces(each_byte(question))
        answer = wire.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
        assert wire.is_closed()
    assert served.desk.seen_bodies == []


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_and_the_connection_goes_on(case: str, served: Started) -> None:
    question, status, code = REFUSED[case]
    with served.wire() as wire:
        for _ in range(2):
            answer = wire.ask(question)
            assert (answer.status, answer.code) == (status, code)
            assert answer.headers["content-type"] == "application/problem+json"
            assert set(answer.json()) == {"status", "code", "title", "detail", "hint"}
            assert answer.json()["status"] == status
            assert answer.json()["hint"]
        wire.send_pieces(each_byte(question))
        assert wire.answer().body == answer.body
        assert wire.ask(post("/echo", b"still there")).body == b"still there"


def test_the_largest_head_is_taken(served: Started) -> None:
    line = b"GET /seen/a/" + b"b" * (8192 - 21) + b" HTTP/1.1"
    assert len(line) == 8192
    headers = HOST + b"".join(b"X-%d: 1\r\n" % n for n in range(98))
    headers += b"X: " + b"a" * (32768 - len(headers) - 3)
    question = line + b"\r\n" + headers + b"\r\n\r\n"
    with served.wire() as wire:
        assert wire.ask(question).status == 200
        wire.send_pieces([question[:8193], question[8193:8194], question[8194:-2], question[-2:]])
        assert wire.answer().status == 200


def test_allow_names_what_is_allowed(served: Started) -> None:
    assert served.ask(get("/echo")).headers["allow"] == "OPTIONS, POST, PUT"
    options = served.ask(get("/seen/a/b", method="OPTIONS"))
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    everything = served.ask(get("*", method="OPTIONS"))
    assert (everything.status, everything.headers["allow"]) == (204, "DELETE, GET, OPTIONS, POST, PUT")
    assert served.ask(get("/nowhere", method="OPTIONS")).status == 404


# --- bodies -------------------------------------------------------------------------------------------------


def test_a_chunked_body_is_joined(served: Started) -> None:
    question = CHUNKED + b'5;note=x\r\nhello\r\n00006 ;a="b"\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n'
    with served.wire() as wire:
        assert wire.ask(question).body == b"hello world"
        wire.send_pieces(each_byte(question))
        assert wire.answer().body == b"hello world"


def test_a_large_body_arrives_whole(served: Started) -> None:
    body = bytes(range(256)) * 65536
    assert len(body) == 16 * 1024 * 1024
    with served.wire() as wire:
        wire.send(post("/later/large", body))
        (request,) = served.desk.wait_for("large")
        assert request.body == body
        served.call(request.answer, 200)
        assert wire.answer().status == 200
        chunks = [body[i : i + 100_000] for i in range(0, len(body), 100_000)]
        wire.send(chunked("/later/large", *chunks))
        wait_until(lambda: len(served.desk.waiting) == 2)
        assert served.desk.waiting[1].body == body


def test_a_body_over_the_limit_is_refused_before_it_is_read(served: Started) -> None:
    with served.wire() as wire:
        answer = wire.ask(get("/echo", f"Content-Length: {16 * 1024 * 1024 + 1}", method="POST"))
        assert (answer.status, answer.code, answer.headers["connection"]) == (413, "BODY_TOO_LARGE", "close")
        assert wire.is_closed()


def test_the_refusal_of_a_large_body_reaches_a_client_that_goes_on_sending(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/echo", f"Content-Length: {32 * 1024 * 1024}", method="POST"))
        for _ in range(32):
            wire.send(b"x" * 1024 * 1024)
        assert wire.answer().status == 413
        assert wire.is_closed()


@pytest.mark.parametrize("framing", ["Content-Length: 6000", "Transfer-Encoding: chunked"])
def test_bodies_that_arrive_together_have_a_limit_too(start: Callable[..., Started], framing: str) -> None:
    served = start(limits=Limits(arriving=10_000, connections=10))
    begin = get("/echo", framing, method="POST") + (b"1770\r\n" if "chunked" in framing else b"")
    with served.wire() as one, served.wire() as two:
        one.send(begin + b"x" * 5_500)
        wait_until(lambda: served.server.arriving >= 5_500)
        two.send(begin + b"x" * 5_500)
        answer = two.answer()
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "BUSY", "1")
        assert two.is_closed()
        # What is small goes on, and so does the one that was there first.
        assert served.ask(post("/echo", b"y" * 900)).body == b"y" * 900
        one.send(b"x" * 500 + (b"\r\n0\r\n\r\n" if "chunked" in framing else b""))
        assert one.answer().body == b"x" * 6_000
    wait_until(lambda: served.server.arriving == 0)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_counted_any_more(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/echo", "Content-Length: 6000", method="POST") + b"x" * 5_500)
        wait_until(lambda: served.server.arriving >= 5_500)
    wait_until(lambda: served.server.arriving == 0)


def test_a_route_has_its_own_limit(served: Started) -> None:
    assert served.ask(post("/small", b"x" * 10)).status == 200
    for _ in range(3):
        assert served.ask(post("/small", b"x" * 11)).status == 413
    assert served.ask(chunked("/small", b"x" * 9, b"x")).status == 200
    assert served.ask(chunked("/small", b"x" * 9, b"xx")).status == 413


def test_chunks_that_add_up_to_too_much_are_refused_before_they_are_read(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/small", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n6\r\n")
        answer = wire.answer()
        assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")
        assert wire.is_closed()


def test_a_client_that_asks_first_is_told_to_go_on(served: Started) -> None:
    question = post("/echo", b"hello", "Expect: 100-continue")
    with served.wire() as wire:
        wire.send(question[:-5])
        assert wire.answer().status == 100
        wire.send(b"hello")
        assert wire.answer().body == b"hello"
        # the body is already there: nothing to say
        assert wire.ask(question).body == b"hello"
        assert wire.ask(post("/echo", b"", "Expect: 100-continue")).body == b""


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (get("/small", "Content-Length: 11", "Expect: 100-continue", method="POST"), 413),
        (get("/nowhere", "Content-Length: 11", "Expect: 100-continue", method="POST"), 404),
        (get("/echo", "Content-Length: 11", "Expect: 42", method="POST"), 417),
    ],
)
def test_a_client_that_asks_first_is_refused_without_its_body(
    question: bytes, status: int, served: Started
) -> None:
    with served.wire() as wire:
        assert wire.ask(question).status == status
        assert wire.is_closed()


def test_go_on_is_said_after_the_answers_before_it(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/later/a") + post("/echo", b"hello", "Expect: 100-continue")[:-5])
        (request,) = served.desk.wait_for("a")
        served.call(request.answer, 200, b"a")
        assert wire.answer().body == b"a"
        assert wire.answer().status == 100
        wire.send(b"hello")
        assert wire.answer().body == b"hello"


def test_who_may_not_ask_is_refused_before_the_body(start: Callable[..., Started]) -> None:
    asked: list[str] = []

    def authorize(head: Head) -> Problem | None:
        asked.append(head.route.pattern)
        if head.headers.get("authorization") == "Bearer good":
            return None
        return Problem(401, "NO_TOKEN", hint="send one", headers=[("WWW-Authenticate", "Bearer")])

    served = start(authorize=authorize)
    with served.wire() as wire:
        wire.send(get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST"))
        assert wire.answer().status == 401
        assert wire.is_closed()
    with served.wire() as wire:
        for _ in range(3):
            answer = wire.ask(post("/echo", b"hello"))
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        for _ in range(3):
            assert wire.ask(post("/echo", b"hello", "Authorization: Bearer good")).body == b"hello"
        wire.ask(get("/nowhere"))
    assert asked == ["/echo"] * 7
    assert served.desk.seen_bodies == [b"hello"] * 3


def test_an_authorisation_that_fails_lets_nobody_in(
    start: Callable[..., Started], caplog: pytest.LogCaptureFixture
) -> None:
    def authorize(head: Head) -> Problem | None:
        raise RuntimeError("on purpose")

    served = start(authorize=authorize)
    with served.wire() as wire:
        for _ in range(3):
            assert wire.ask(post("/echo", b"hello")).code == "INTERNAL"
        wire.send_pieces(each_byte(post("/echo", b"hello")))
        assert wire.answer().status == 500
    assert served.desk.seen_bodies == []
    assert "authorize failed" in caplog.text


# --- whose server this is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8080", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8080", "localhost:"]
)
def test_a_server_on_loopback_answers_to_loopback(host: str, served: Started) -> None:
    question = get("/seen/a/b").replace(b"localhost", host.encode())
    assert served.ask(question).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "128.0.0.1", ""]
)
def test_a_server_on_loopback_answers_to_nothing_else(host: str, served: Started) -> None:
    question = get("/seen/a/b").replace(b"localhost", host.encode())
    assert served.ask(question).code == "WRONG_HOST"


def test_a_server_answers_to_the_names_it_was_given(start: Callable[..., Started]) -> None:
    served = start(names=("Broker.example",))
    question = get("/seen/a/b").replace(b"localhost", b"broker.example:8080")
    assert served.ask(question).status == 200
    assert served.ask(get("/seen/a/b", "Origin: https://broker.example")).status == 200


@pytest.mark.parametrize(
    ("bound", "names", "host", "taken"),
    [
        ("0.0.0.0", (), "anything.example", True),
        ("10.1.2.3", (), "anything.example", True),
        ("10.1.2.3", ("a.example",), "A.example:80", True),
        ("10.1.2.3", ("a.example",), "10.1.2.3:80", True),
        ("10.1.2.3", ("a.example",), "b.example", False),
        ("10.1.2.3", ("a.example",), "localhost", False),
        ("fd00::1", ("a.example",), "[fd00::1]:80", True),
        ("localhost", (), "127.0.0.1", True),
        ("::1", (), "b.example", False),
    ],
)
def test_which_hosts_a_site_answers_to(bound: str, names: tuple[str, ...], host: str, taken: bool) -> None:
    assert (Site(bound, names).check([host], None) is None) is taken


@pytest.mark.parametrize(
    ("origin", "host", "ours"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("HTTP://LocalHost:8080", "localhost:8080", True),
        ("http://localhost", "localhost", True),
        ("http://localhost", "localhost:80", True),
        ("https://localhost", "localhost:443", True),
        ("http://localhost:3000", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("file://localhost", "localhost", False),
        ("null", "localhost", False),
        ("", "localhost", False),
    ],
)
def test_which_origins_are_ours(origin: str, host: str, ours: bool) -> None:
    assert (Site("127.0.0.1").check([host], origin) is None) is ours


# --- closing ------------------------------------------------------------------------------------------------


def test_connection_close_is_honoured(served: Started) -> None:
    with served.wire() as wire:
        wire.send(post("/echo", b"a", "Connection: Foo, Close") + post("/echo", b"b"))
        answer = wire.answer()
        assert (answer.body, answer.headers["connection"]) == (b"a", "close")
        assert wire.is_closed()
    assert served.desk.seen_bodies == [b"a"]


def test_http_1_0_is_closed_unless_it_asks_otherwise(served: Started) -> None:
    with served.wire() as wire:
        kept = get("/seen/a/b", "Connection: keep-alive", version="1.0")
        assert wire.ask(kept).headers["connection"] == "keep-alive"
        assert wire.ask(get("/seen/a/b", version="1.0")).headers["connection"] == "close"
        assert wire.is_closed()
    assert served.ask(b"GET /seen/a/literal HTTP/1.0\r\n\r\n").body == b"literal"


def test_a_client_that_has_no_more_to_ask_is_still_answered(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/later/a") + post("/echo", b"b"))
        (request,) = served.desk.wait_for("a")
        wire.half_close()
        wait_until(lambda: request.gone)
        served.call(request.answer, 200, b"a")
        assert wire.answer().body == b"a"
        assert wire.answer().body == b"b"
        assert wire.is_closed()


def test_a_request_that_ends_too_early_is_not_begun(served: Started) -> None:
    with served.wire() as wire:
        wire.send(post("/echo", b"hello")[:-1])
        wire.half_close()
        assert wire.is_closed()
    assert served.desk.seen_bodies == []


# --- several in flight --------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_requests(served: Started) -> None:
    with served.wire() as wire:
        wire.send(
            b"".join(
                [
                    get("/later/a"),
                    post("/echo", b"b"),
                    get("/stream/2"),
                    get("/later/c"),
                    get("/async/d"),
                    get("/nowhere"),
                    chunked("/echo", b"e", b"f"),
                    get("/seen/x/literal", method="HEAD"),
                    get("/later/g"),
                ]
            )
        )
        wait_until(lambda: len(served.desk.waiting) == 4)
        a, c, d, g = sorted(served.desk.waiting, key=lambda request: request.head.params["name"])
        wait_until(lambda: d.answered)
        served.call(g.answer, 200, b"g")
        served.call(c.answer, 200, b"c")
        served.call(a.answer, 200, b"a")
        assert [wire.answer().body for _ in range(5)] == [b"a", b"b", b"piece 0\npiece 1\n", b"c", b"d"]
        assert wire.answer().status == 404
        assert wire.answer().body == b"ef"
        assert wire.answer("HEAD").headers["content-length"] == "7"
        assert wire.answer().body == b"g"


def test_a_refusal_waits_for_its_turn_and_ends_the_connection(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/later/a") + b"nonsense\r\n\r\n" + post("/echo", b"never"))
        (request,) = served.desk.wait_for("a")
        served.call(request.answer, 200, b"a")
        assert wire.answer().body == b"a"
        assert wire.answer().status == 400
        assert wire.is_closed()
    assert served.desk.seen_bodies == []


def test_reading_pauses_above_the_bound_and_goes_on_below_it(start: Callable[..., Started]) -> None:
    served = start(limits=Limits(pipeline=4))
    with served.wire() as wire:
        names = [f"n{number}" for number in range(10)]
        wire.send(b"".join(get(f"/later/{name}") for name in names))
        served.desk.wait_for(*names[:4])
        # sent one by one they take the short way, which has the same bound
        for first, answered in enumerate(names):
            request = served.desk.wait_for(*names[: min(10, 4 + first)])[first]
            served.call(request.answer, 200, answered.encode())
            assert wire.answer().body == answered.encode()
        for name in names:
            wire.send(get(f"/later/more-{name}"))
        wait_until(lambda: len(served.desk.waiting) == 14)
        assert served.ask(post("/echo", b"others are served")).status == 200
        assert len(served.desk.waiting) == 14


def test_many_quick_requests_in_one_piece_are_all_answered(start: Callable[..., Started]) -> None:
    served = start(limits=Limits(pipeline=4))
    with served.wire() as wire:
        wire.send(b"".join(post("/echo", b"%d" % number) for number in range(500)))
        assert [wire.answer().body for _ in range(500)] == [b"%d" % number for number in range(500)]


def test_a_client_that_does_not_read_is_not_read_from(served: Started) -> None:
    question = post("/echo", b"x" * 200_000)
    with served.wire() as wire:
        wire.ask(post("/echo", b""))
        (connection,) = served.server._connections
        wire.socket.setblocking(False)
        sent = 0

        def full() -> bool:
            nonlocal sent
            try:
                sent += wire.socket.send(question[sent % len(question) :])
            except BlockingIOError:
                return connection._blocked
            return False

        wait_until(full)
        assert served.call(connection.transport.get_write_buffer_size) < 3 * len(question)
        wire.socket.settimeout(10)
        for _ in range(sent // len(question)):
            assert len(wire.answer().body) == 200_000


def test_one_request_on_a_fresh_connection_is_one_piece_of_work(served: Started) -> None:
    with served.wire() as wire:
        for _ in range(2):
            wire.ask(post("/echo", b"hello"))
        (connection,) = served.server._connections
        wait_until(lambda: connection.fresh)
        wire.send_pieces([post("/echo", b"hello")[:-1]])
        wait_until(lambda: not connection.fresh)
        wire.send(b"o")
        wire.answer()
        wait_until(lambda: connection.fresh)


QUESTIONS = [
    post("/echo", b"hello"),
    post("/echo", b"x" * 3000, "Content-Type: text/plain"),
    post("/echo", b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
    chunked("/echo", b"hello ", b"world", b"!" * 300),
    get("/seen/a/b?c=d"),
    get("/seen/a/literal"),
    get("/stream/3"),
    get("/async/name"),
    get("/nowhere"),
    post("/nowhere", b"unwanted"),
    chunked("/nowhere", b"unwanted", b"chunks"),
    get("/problem"),
    get("/nothing", method="DELETE"),
    b"\r\n" + post("/echo", b"after an empty line"),
]


@given(questions=st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=8), data=st.data())
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_same_bytes_have_the_same_answers_wherever_they_are_split(
    split_server: Running, questions: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(questions)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = []
    for question in questions:
        with split_server.wire() as wire:
            expected.append(wire.ask(question))
    with split_server.wire() as wire:
        wire.send_pieces(pieces)
        assert [wire.answer() for _ in questions] == expected


@pytest.fixture(scope="module")
def split_server() -> object:
    with Running(Desk().routes()) as running:
        yield running


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_request_byte_by_byte_has_the_answer_of_the_whole(question: bytes, served: Started) -> None:
    if len(question) > 1000:
        question = post("/echo", b"x" * 500, "Content-Type: text/plain")
    with served.wire() as wire:
        whole = wire.ask(question)
        wire.send_pieces(each_byte(question))
        assert wire.answer() == whole


# --- gone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [Wire.close, Wire.reset, Wire.half_close])
def test_a_client_that_leaves_while_it_waits_is_noticed(
    leave: Callable[[Wire], None], served: Started
) -> None:
    with served.wire() as wire:
        wire.send(get("/poll/a"))
        (request,) = served.desk.wait_for("a")
        assert served.desk.gone == []
        leave(wire)
        wait_until(lambda: served.desk.gone == ["a"])
        assert request.gone
        served.call(request.answer, 200, b"into the void")
        wait_until(lambda: served.server.stats.open == 0)
    assert served.desk.gone == ["a"]
    assert served.server.stats.answers[2] == 0


def test_an_answer_that_waits_behind_another_when_the_client_leaves_was_not_written(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/later/a") + get("/poll/b"))
        _, poll = served.desk.wait_for("a", "b")
        served.call(poll.answer, 200, b"held")
        assert served.desk.gone == []
        wire.reset()
        wait_until(lambda: served.desk.gone == ["b"])


def test_answers_behind_one_that_was_given_up_are_not_sent_in_its_place(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/poll/a") + get("/later/b"))
        _, later = served.desk.wait_for("a", "b")
        wire.half_close()
        wait_until(lambda: served.desk.gone == ["a"])
        served.call(later.answer, 200, b"b")
        assert wire.rest() == b""


def test_a_client_that_leaves_after_its_answer_was_written_changes_nothing(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/poll/a"))
        (request,) = served.desk.wait_for("a")
        served.call(request.answer, 200, b"a")
        assert wire.answer().body == b"a"
    wait_until(lambda: served.server.stats.open == 0)
    assert served.desk.gone == []


def test_asking_to_be_told_of_a_client_that_has_left_already_is_told_at_once(served: Started) -> None:
    told: list[str] = []
    with served.wire() as wire:
        wire.send(get("/later/a"))
        (request,) = served.desk.wait_for("a")
        wire.close()
        wait_until(lambda: request.gone)
        served.call(request.on_gone, lambda: told.append("a"))
        wait_until(lambda: told == ["a"])


def test_a_failing_callback_does_not_keep_the_others_from_being_called(
    served: Started, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    with served.wire() as wire:
        wire.send(get("/later/a") + get("/poll/b"))
        first, _ = served.desk.wait_for("a", "b")
        served.call(first.on_gone, fail)
    wait_until(lambda: served.desk.gone == ["b"])
    assert "on_gone failed" in caplog.text


# --- streams ------------------------------------------------------------------------------------------------


def test_a_stream_is_chunked(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/stream/2"))
        assert b"Transfer-Encoding: chunked" in wire.head()
        assert [wire.chunk() for _ in range(3)] == [b"piece 0\n", b"piece 1\n", b""]
        assert wire.ask(post("/echo", b"next")).body == b"next"
        assert wire.ask(get("/stream/0")).body == b""


def test_a_stream_for_http_1_0_ends_with_the_connection(served: Started) -> None:
    with served.wire() as wire:
        answer = wire.ask(get("/stream/2", "Connection: keep-alive", version="1.0"))
        assert answer.headers == {"content-type": "text/plain", "x-kind": "stream", "connection": "close"}
        assert answer.body == b"piece 0\npiece 1\n"


def test_a_stream_that_breaks_has_no_end(served: Started, caplog: pytest.LogCaptureFixture) -> None:
    with served.wire() as wire:
        wire.send(get("/torn"))
        wire.head()
        assert wire.chunk() == b"half"
        with contextlib.suppress(ConnectionResetError):
            assert wire.rest() == b""
    assert "torn on purpose" in caplog.text


def test_a_stream_waits_for_its_reader_and_ends_when_it_leaves(
    served: Started, caplog: pytest.LogCaptureFixture
) -> None:
    with served.wire() as wire:
        wire.send(get("/flood"))
        stats = served.server.stats
        wait_until(lambda: stats.bytes_out > 0)
        (connection,) = served.server._connections
        wait_until(lambda: connection._stuck)
        written = stats.bytes_out
        served.ask(post("/echo", b""))
        assert stats.bytes_out - written < 1000
        read = 0
        while read < written + 1_000_000:
            read += len(wire.socket.recv(1_000_000))
        assert stats.bytes_out > written
    wait_until(lambda: not served.server._tasks)
    assert served.desk.gone == ["flood"]
    assert caplog.records == []


def test_a_stream_to_a_fast_reader_leaves_others_their_turn(served: Started) -> None:
    with served.wire() as wire:
        wire.send(get("/flood"))
        enough = threading.Event()

        def read() -> None:
            while not enough.is_set():
                wire.socket.recv(1_000_000)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(20):
                assert served.ask(post("/echo", b"%d" % number)).body == b"%d" % number
        finally:
            enough.set()
            reader.join()


# --- slow, idle, too many -----------------------------------------------------------------------------------


def test_a_head_that_does_not_end_is_given_up(hasty: Started) -> None:
    with hasty.wire() as wire:
        question = get("/seen/a/b")
        for byte in each_byte(question[:-1]):
            # more keeps coming, and does not help
            now = hasty.server.now
            try:
                wire.send(byte)
            except OSError:
                break
            if hasty.server.stats.timeouts:
                break
            wait_until(lambda now=now: hasty.server.now > now)  # type: ignore[misc]
        answer = wire.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (408, "TOO_SLOW", "close")
        assert wire.is_closed()


def test_a_body_that_stands_still_is_given_up(hasty: Started) -> None:
    with hasty.wire() as wire:
        answer = wire.ask(post("/echo", b"hello")[:-1])
        assert (answer.status, answer.code) == (408, "TOO_SLOW")
        assert wire.is_closed()
    assert hasty.desk.seen_bodies == []


def test_a_body_that_comes_slowly_is_taken(hasty: Started) -> None:
    with hasty.wire() as wire:
        begun = hasty.server.now
        wire.send(get("/echo", "Content-Length: 1000", method="POST"))
        sent = 0
        while hasty.server.now - begun < 2 * hasty.limits.body_seconds:
            now = hasty.server.now
            wire.send(b"x")
            sent += 1
            wait_until(lambda now=now: hasty.server.now > now)  # type: ignore[misc]
        wire.send(b"x" * (1000 - sent))
        assert wire.answer().body == b"x" * 1000


def test_a_connection_that_asks_nothing_is_closed_without_a_word(hasty: Started) -> None:
    with hasty.wire() as silent, hasty.wire() as wire:
        wire.ask(post("/echo", b"a"))
        assert silent.is_closed()
        assert wire.is_closed()
    assert hasty.server.stats.timeouts == 2


def test_a_request_that_waits_for_its_answer_is_not_idle(hasty: Started) -> None:
    with hasty.wire() as wire:
        wire.send(get("/later/a"))
        (request,) = hasty.desk.wait_for("a")
        begun = hasty.server.now
        wait_until(lambda: hasty.server.now - begun > 2 * hasty.limits.idle_seconds)
        hasty.call(request.answer, 200, b"a")
        assert wire.answer().body == b"a"
        assert wire.ask(post("/echo", b"b")).body == b"b"


def test_a_client_that_never_reads_is_cut_off(hasty: Started) -> None:
    with hasty.wire() as wire:
        wire.send(get("/flood"))
        wait_until(lambda: hasty.desk.gone == ["flood"])
        wait_until(lambda: hasty.server.stats.open == 0)


def test_a_client_that_keeps_its_side_open_after_the_last_answer_is_cut_off(hasty: Started) -> None:
    with hasty.wire() as wire:
        assert wire.ask(get("/seen/a/b", "Connection: close")).status == 200
        wait_until(lambda: hasty.server.stats.open == 0)
        assert hasty.server.stats.timeouts == 0


def test_a_connection_too_many_is_turned_away(start: Callable[..., Started]) -> None:
    served = start(limits=Limits(connections=2))
    with served.wire() as first, served.wire() as second:
        first.ask(post("/echo", b""))
        second.ask(post("/echo", b""))
        with served.wire() as third:
            answer = third.answer()
            assert (answer.status, answer.code) == (503, "TOO_MANY_CONNECTIONS")
            assert answer.headers["retry-after"] == "1"
            assert third.is_closed()
        assert first.ask(post("/echo", b"still")).body == b"still"
        wait_until(lambda: served.server.stats.open == 2)
        second.close()
        wait_until(lambda: served.server.stats.open == 1)
        assert served.ask(post("/echo", b"room again")).status == 200
    assert (served.server.stats.connections, served.server.stats.refused) == (3, 1)


# --- drain --------------------------------------------------------------------------------------------------


def test_a_drain_closes_idle_connections_and_answers_what_is_in_flight(served: Started) -> None:
    with served.wire() as idle, served.wire() as busy, served.wire() as sending:
        idle.ask(post("/echo", b""))
        busy.send(get("/later/a") + get("/later/b"))
        a, b = served.desk.wait_for("a", "b")
        sending.send_pieces([post("/echo", b"hello")[:-2]])
        draining = served.drain()
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            served.wire()
        assert a.draining
        sending.send(b"lo")
        answer = sending.answer()
        assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
        sending.close()
        served.call(a.answer, 200, b"a")
        assert "connection" not in busy.answer().headers
        assert not draining.done()
        served.call(b.answer, 200, b"b")
        assert busy.answer().headers["connection"] == "close"
        assert busy.is_closed()
        busy.close()
        draining.wait()


def test_what_waits_is_told_of_the_drain(served: Started) -> None:
    def answer_all() -> None:
        for request in served.desk.waiting:
            request.answer(204)

    served.call(served.server.on_drain, answer_all)
    with served.wire() as wire:
        wire.send(get("/poll/a"))
        served.desk.wait_for("a")
        draining = served.drain()
        answer = wire.answer()
        assert (answer.status, answer.headers) == (204, {"connection": "close"})
        wire.close()
        draining.wait()
    assert served.desk.gone == []


def test_a_drain_ends_in_time_and_cuts_off_the_rest(
    served: Started, caplog: pytest.LogCaptureFixture
) -> None:
    with served.wire() as wire, served.wire() as streaming:
        wire.send(get("/poll/a"))
        served.desk.wait_for("a")
        streaming.send(get("/flood"))
        streaming.head()
        served.drain(0.05).wait()
        wait_until(lambda: served.server.stats.open == 0)
        assert sorted(served.desk.gone) == ["a", "flood"]
        assert wire.is_closed()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_server_also_runs_on_the_loop_of_the_standard_library(start: Callable[..., Started]) -> None:
    served = start(runner=asyncio.run)
    with served.wire() as wire:
        wire.send(
            post("/echo", b"a") + get("/async/b") + chunked("/echo", b"c") + get("/stream/1") + get("/poll/d")
        )
        assert [wire.answer().body for _ in range(4)] == [b"a", b"b", b"c", b"piece 0\n"]
        wire.half_close()
        wait_until(lambda: served.desk.gone == ["d"])


# --- the reader against llhttp ------------------------------------------------------------------------------


class Llhttp:
    """What httptools makes of a head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self.parser = httptools.HttpRequestParser(self)

    def on_headers_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()  # forgotten when the message is complete

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode().lower(), value.decode().strip(" \t")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text


LINES = [
    *(b"A: b", b"A:b", b"A : b", b"a: \t b ", b"No colon", b": no name", b" folded", b"\tfolded", b""),
    *(b"Content-Length: 3", b"Content-Length:0", b"Content-Length: +3", b"Content-Length: 3, 3"),
    *(b"Content-Length : 3", b"Transfer-Encoding: chunked", b"Transfer-Encoding: xchunked"),
    *(b"Transfer-Encoding: chunked, identity", b"Connection: close", b"Connection: keep-alive"),
    *(b"Host: localhost", b"Expect: 100-continue", b"Upgrade: h2c", b"B: \x00", b"B: \x7f", b"B: \xc3\xbc"),
    *(b"B: \xfc", b"B: x\ry", b"B: x\ny", b"B\x00: c", b"B(: c"),
    *(b"Idempotency-Key: a", b"idempotency-key: b", b"Idempotency-Key:c", b"Idempotency-Key: d e"),
]


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    target=st.sampled_from(
        ["/echo", "/seen/a/b?c=%20", "*", "http://localhost/echo", "/ö", "/a b", "echo", ""]
    ),
    version=st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", ""]),
    lines=st.lists(st.sampled_from(LINES), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_what_is_accepted_means_the_same_to_llhttp(
    method: str, target: str, version: str, lines: list[bytes]
) -> None:
    raw = b"\r\n".join([f"{method} {target} {version}".encode(), b"Host: localhost", *lines])
    end = raw.find(b"\r\n\r\n")
    raw = raw if end < 0 else raw[:end]
    try:
        head = Heads(Desk().routes(), Site("127.0.0.1"), Limits()).read(raw)
    except Problem:
        return
    if head.refusal is not None and head.refusal.code == "BAD_TARGET":
        return
    other = Llhttp()
    parser = other.parser
    with contextlib.suppress(httptools.HttpParserUpgrade):
        parser.feed_data(raw + b"\r\n\r\n")
    assert parser.get_method().decode() == head.method
    assert parser.get_http_version() == ("1.1" if head.modern else "1.0")
    assert other.url.decode() == head.target
    assert other.headers == head.headers
    if "close" in head.headers.get("connection", ""):
        assert not head.keep_alive  # also where llhttp lets a second word win
    else:
        assert other.keep_alive == head.keep_alive
