"""A request's head: the bytes before the first empty line, and the strict reading of them.

    POST /in/fruit.apple?key=7 HTTP/1.1\\r\\n      -> method, target, path, query, route, params
    Host: localhost:8080\\r\\n                     -> headers, and from them: content_length, keep_alive, …
    Content-Length: 256

Two kinds of refusal. What makes it doubtful where the request ends (line ends, lengths, codings, control
bytes) is raised by `Heads.read`, and the connection cannot go on. What only means that this request is not
served (no such path, foreign Host, repeated parameter) stands in `Head.refusal`, and the connection can.

Clients repeat themselves: the same head, byte by byte, thousands of times. So heads are kept (`Heads.known`),
by exactly the bytes that this strict reader accepted, and a repeated head costs one look-up. A head is
admitted when it is seen the second time: one that is never sent again would only push out the useful
ones. A head with an Idempotency-Key is the head without that line, which is known, and a key. For other heads that differ in a
line or two the single lines are kept in the same way.

The reader is hand-written rather than httptools (llhttp). Once the whole head lies in one buffer, two
expressions say all of the grammar, and what llhttp lets through had to be checked anyway: a missing or
repeated Host, folded lines, non-ASCII targets, and which status each offence has. The tests hold the two
against each other: whatever is accepted here, llhttp reads the same way.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from waypost.http.limits import Limits
from waypost.http.problem import Problem
from waypost.http.routes import Route, Routes
from waypost.http.site import Site

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])" % _TOKEN)
#: Does not begin with a blank (folding), holds no control byte but TAB.
_FIELD = re.compile(rb"(%b):([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
#: An Idempotency-Key as clients write it; in any other form it is a line like the others.
_KEY_LINE = re.compile(rb"\r\n[Ii]dempotency-[Kk]ey: ([\x21-\x7e]+)(?=\r\n|\Z)")
_KEY = "idempotency-key"
_VERSION = re.compile(rb"HTTP/[0-9]+(?:\.[0-9]+)?")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_NOT_A_METHOD = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_ABSOLUTE = re.compile(r"https?://([^/?]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: Repeated, these would contradict each other; all other repeated headers are one list.
_ONCE = frozenset(
    {"host", "content-length", "content-type", "authorization", "origin", "expect", "idempotency-key"}
)

#: A head, or a line of one, larger than this is not kept.
KEPT_BYTES = 2048
#: No more than so many of each are kept: when full, all are dropped.
KEPT_HEADS = 4096


@dataclass(slots=True, eq=False)
class Head:
    """What a request's head says. Shared between all requests with the same head: read it, never change it.

    Only `parsed` is free: the route's handler keeps there what it made of path, query and headers, so that it
    interprets a repeated head once. What depends on more than the head (a clock, a policy) does not belong
    there.
    """

    method: str
    #: As it was sent.
    target: str
    #: Of the target, still percent-encoded.
    path: str
    #: The row of the table; for HEAD that of GET. When `refusal` is set it may be one without a handler of
    #: use.
    route: Route
    #: Path parameters, percent-decoded.
    params: dict[str, str]
    #: Query parameters, decoded; "" for one without a value.
    query: dict[str, str]
    #: By lower-case name. Lines of the same name are joined by ", ".
    headers: dict[str, str]
    #: Bytes of body; 0 without one, None when chunked.
    content_length: int | None
    #: May the connection be used again after this request?
    keep_alive: bool
    #: The client waits for "100 Continue" before it sends the body.
    expect_continue: bool
    #: HTTP/1.1 (else 1.0).
    modern: bool
    #: Why this request is not served, decided by the head alone.
    refusal: Problem | None
    #: Largest body that is taken.
    max_body: int
    #: An answer needs no finishing touch for this head: 1.1, kept alive, and not HEAD.
    plain: bool
    #: Nothing stands between this head and its handler but `content_length` bytes.
    simple: bool
    #: For the handler.
    parsed: Any = None
    #: The same head without its Idempotency-Key, for heads that differ in nothing else.
    alike: "Head | None" = None


def _unserved(request: Any) -> NoReturn:
    raise Problem(404, "NOT_FOUND")


#: The row of a head that found none.
UNROUTED = Route("", "", _unserved)
#: Stands for a head that could not be read, so that its refusal is answered like any other request, in its
#: turn.
UNREADABLE = Head("", "", "", UNROUTED, {}, {}, {}, 0, False, False, True, None, 0, False, False)


@dataclass(slots=True, eq=False)
class _Aim:
    """What a request line says."""

    method: str
    target: str
    modern: bool
    path: str = ""
    authority: str | None = None
    route: Route = UNROUTED
    params: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    refusal: Problem | None = None


class Heads:
    """Reads heads for one table of routes, and knows those it read before."""

    def __init__(self, routes: Routes, site: Site, limits: Limits) -> None:
        self.routes = routes
        self.site = site
        self.limits = limits
        #: Only for reading by others; the same dict for the server's whole life.
        self.known: dict[bytes, Head] = {}
        self._seen: set[int] = set()
        self._aims: dict[bytes, _Aim] = {}
        self._fields: dict[bytes, tuple[str, str]] = {}

    def read(self, raw: bytes) -> Head:
        """The head in these bytes, without the empty line. Raises Problem when framing is in doubt."""
        key = _KEY_LINE.search(raw)
        head = None if key is None else self._read_keyed(raw, key)
        return head or self._read(raw)

    def _read_keyed(self, raw: bytes, key: re.Match[bytes]) -> Head | None:
        """A head by what all say that differ from it in their key alone; None: it needs more care."""
        rest = raw[: key.start()] + raw[key.end() :]
        alike = self.known.get(rest) or self._read(rest)
        if (
            not alike.simple
            or not alike.route.cacheable
            or _KEY in alike.headers
            or raw.count(b"\r\n") > self.limits.headers
            or len(raw) - raw.find(b"\r\n") - 2 > self.limits.header_bytes
        ):
            return None
        return Head(
            alike.method,
            alike.target,
            alike.path,
            alike.route,
            alike.params,
            alike.query,
            {**alike.headers, _KEY: key[1].decode()},
            alike.content_length,
            alike.keep_alive,
            alike.expect_continue,
            alike.modern,
            None,
            alike.max_body,
            alike.plain,
            alike.simple,
            alike=alike,
        )

    def _read(self, raw: bytes) -> Head:
        line, *lines = raw.split(b"\r\n")
        aim = self._aims.get(line) or self._read_line(line)
        headers = self._read_fields(lines, len(raw) - len(line) - 2)
        modern = aim.modern
        length = _body_length(headers, modern)
        host = headers.get("host")
        if host is None and modern:
            raise Problem(400, "NO_HOST", "No Host", "an HTTP/1.1 request needs a Host header", "add it")
        keep_alive = modern
        if "connection" in headers:
            tokens = [token.strip() for token in headers["connection"].lower().split(",")]
            keep_alive = "close" not in tokens and (modern or "keep-alive" in tokens)
        hosts = [name for name in (host, aim.authority) if name is not None]
        expect = headers.get("expect") if modern else None
        refusal = self.site.check(hosts, headers.get("origin")) or _refuse_expectation(expect) or aim.refusal
        route = aim.route
        max_body = self.limits.body if route.max_body is None else route.max_body
        plain = modern and keep_alive and aim.method != "HEAD"
        simple = plain and expect is None and refusal is None and length is not None and length <= max_body
        head = Head(
            aim.method,
            aim.target,
            aim.path,
            route,
            aim.params,
            aim.query,
            headers,
            length,
            keep_alive,
            expect is not None and length != 0,
            modern,
            refusal,
            max_body,
            plain,
            simple,
        )
        if simple and route.cacheable and len(raw) <= KEPT_BYTES:
            self._admit(raw, head)
        return head

    def unfinished(self, buffer: bytearray, start: int) -> Problem | None:
        """What is already wrong with a head whose end has not come; bytes before `start` were seen before."""
        line_bytes = self.limits.request_line
        if _BARE_LINE_END.search(buffer, max(0, start - 1)):
            return _bad_line_end()
        if start == 0 and _NOT_A_METHOD.match(buffer):
            return _bad_request_line()
        if len(buffer) >= line_bytes + 2 and buffer.find(b"\r\n", 0, line_bytes + 2) < 0:
            return _line_too_long(line_bytes)
        # together with the line's own end and what may have come of the empty line
        if len(buffer) > line_bytes + 2 + self.limits.header_bytes + 3:
            return _headers_too_large(self.limits.header_bytes)
        return None

    def _admit(self, raw: bytes, head: Head) -> None:
        fingerprint = hash(raw)
        if fingerprint in self._seen:
            if len(self.known) >= KEPT_HEADS:
                self.known.clear()
            self.known[raw] = head
        else:
            if len(self._seen) >= KEPT_HEADS:
                self._seen.clear()
            self._seen.add(fingerprint)

    def _read_line(self, line: bytes) -> _Aim:
        if len(line) > self.limits.request_line:
            raise _line_too_long(self.limits.request_line)
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise _what_is_wrong_with_line(line)
        if parts[3] != b"1" or parts[4] not in b"01":
            raise _bad_version(f"HTTP/{parts[3].decode()}.{parts[4].decode()}")
        aim = _Aim(parts[1].decode(), parts[2].decode(), parts[4] == b"1")
        try:
            self._place(aim)
        except Problem as refusal:
            aim.refusal = refusal
        if aim.route.cacheable and aim.refusal is None and len(line) <= KEPT_BYTES:
            if len(self._aims) >= KEPT_HEADS:
                self._aims.clear()
            self._aims[line] = aim
        return aim

    def _place(self, aim: _Aim) -> None:
        """Find what the target names. Raises Problem for a request that is well framed but not served."""
        path = aim.target
        if not path.startswith("/"):
            absolute = _ABSOLUTE.fullmatch(path)
            if absolute is not None:
                aim.authority = absolute[1]
                path = absolute[2] if absolute[2].startswith("/") else "/" + absolute[2]
            elif path == "*" and aim.method == "OPTIONS":
                aim.route = self.routes.everything()
                return
            else:
                raise Problem(400, "BAD_TARGET", "Bad target", f"{path!r} is not a path", "begin it with '/'")
        if "#" in path:
            raise Problem(400, "BAD_TARGET", "Bad target", "a request has no '#' part", "write it as %23")
        path, _, query = path.partition("?")
        aim.path = path
        segments = path[1:].split("/")
        if "%" in path:
            segments = [_decoded(segment) for segment in segments]
        aim.route, aim.params = self.routes.match(aim.method, segments)
        if query:
            aim.query = _read_query(query)

    def _read_fields(self, lines: list[bytes], size: int) -> dict[str, str]:
        if size > self.limits.header_bytes:
            raise _headers_too_large(self.limits.header_bytes)
        if len(lines) > self.limits.headers:
            detail = f"{len(lines)} headers, {self.limits.headers} are taken"
            raise Problem(431, "TOO_MANY_HEADERS", detail=detail, hint="send fewer headers")
        headers: dict[str, str] = {}
        known = self._fields
        for line in lines:
            name, value = known.get(line) or self._read_field(line)
            if name in headers:
                if name in _ONCE:
                    detail = f"{name} stands there twice"
                    raise Problem(400, "REPEATED_HEADER", "Repeated header", detail, "send it once")
                value = f"{headers[name]}, {value}"
            headers[name] = value
        return headers

    def _read_field(self, line: bytes) -> tuple[str, str]:
        parts = _FIELD.fullmatch(line)
        if parts is None:
            raise _what_is_wrong_with_field(line)
        try:
            found = parts[1].decode().lower(), parts[2].decode().strip(" \t")
        except UnicodeDecodeError:
            detail = "a header's value is not UTF-8"
            raise Problem(400, "BAD_HEADER", "Bad header", detail, "send text as UTF-8") from None
        if len(line) <= KEPT_BYTES:
            if len(self._fields) >= KEPT_HEADS:
                self._fields.clear()
            self._fields[line] = found
        return found


def _body_length(headers: dict[str, str], modern: bool) -> int | None:
    """How long the body is: None when chunked. What two readers could read differently is refused."""
    codings = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if codings is not None:
        if length is not None:
            raise _bad_length("both Content-Length and Transfer-Encoding")
        if not modern:
            raise _bad_length("Transfer-Encoding in HTTP/1.0")
        codings = codings.lower()
        if codings == "chunked":
            return None
        if [coding.strip() for coding in codings.split(",")].count("chunked") > 1:
            raise _bad_length("chunked twice")
        raise Problem(
            501,
            "UNKNOWN_TRANSFER_CODING",
            detail=f"Transfer-Encoding: {codings}",
            hint="only chunked is known",
        )
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise _bad_length(f"Content-Length: {length}")
    return int(length)


def _refuse_expectation(expect: str | None) -> Problem | None:
    if expect is None or expect.lower() == "100-continue":
        return None
    return Problem(417, "UNKNOWN_EXPECTATION", detail=f"Expect: {expect}", hint="only 100-continue is known")


def _read_query(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in query.split("&"):
        if not piece:
            continue
        name, _, value = piece.partition("=")
        if "%" in piece or "+" in piece:
            name = _decoded(name.replace("+", " "))
            value = _decoded(value.replace("+", " "))
        if name in found:
            raise Problem(
                400,
                "REPEATED_PARAMETER",
                "Repeated parameter",
                f"{name!r} stands there twice",
                "send each parameter once",
            )
        found[name] = value
    return found


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    if _BAD_PERCENT.search(text) is None:
        try:
            return unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            pass
    raise Problem(
        400, "BAD_PERCENT_ENCODING", "Bad target", f"{text!r}", "percent-encode the text's UTF-8 bytes"
    )


def _line_too_long(limit: int) -> Problem:
    hint = "move parameters into headers or body"
    return Problem(414, "REQUEST_LINE_TOO_LONG", detail=f"over {limit} bytes", hint=hint)


def _headers_too_large(limit: int) -> Problem:
    return Problem(431, "HEADERS_TOO_LARGE", detail=f"over {limit} bytes", hint="send smaller headers")


def _bad_line_end() -> Problem:
    return Problem(400, "BAD_LINE_END", "Bad request", "a CR or LF stands alone", "end each line with CRLF")


def _bad_request_line() -> Problem:
    return Problem(
        400, "BAD_REQUEST_LINE", "Bad request", "not 'METHOD target HTTP/1.1'", "speak HTTP/1.1 here"
    )


def _bad_version(version: str) -> Problem:
    return Problem(505, "UNKNOWN_VERSION", detail=f"{version} is not spoken here", hint="use HTTP/1.1")


def _bad_length(what: str) -> Problem:
    return Problem(
        400, "BAD_LENGTH", "Bad request", what, "send one Content-Length, or Transfer-Encoding: chunked"
    )


def _what_is_wrong_with_line(line: bytes) -> Problem:
    if _BARE_LINE_END.search(line + b"\r\n"):
        return _bad_line_end()
    if _NOT_A_METHOD.match(line):
        return _bad_request_line()
    version = line.rpartition(b" ")[2]
    if line.count(b" ") == 2 and _VERSION.fullmatch(version):
        if _LINE.fullmatch(line.removesuffix(version) + b"HTTP/1.1"):
            return _bad_version(version.decode())
        return Problem(
            400,
            "BAD_TARGET",
            "Bad target",
            "bytes that are not printable ASCII",
            "percent-encode the text's UTF-8 bytes",
        )
    return _bad_request_line()


def _what_is_wrong_with_field(line: bytes) -> Problem:
    if b"\r" in line or b"\n" in line:
        return _bad_line_end()
    if line[:1] in (b" ", b"\t"):
        detail = "a header goes on in a second line"
        return Problem(400, "FOLDED_HEADER", "Bad header", detail, "write it in one line")
    hint = "no blank before ':', no control bytes in the value"
    return Problem(400, "BAD_HEADER", "Bad header", "not 'Name: printable text'", hint)
