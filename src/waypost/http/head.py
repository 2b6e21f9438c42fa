"""A request's head: the bytes before the first empty line, and the strict reading of them.

    POST /in/fruit.apple?key=7 HTTP/1.1\\r\\n      -> method, target, path, query, route, params
    Host: localhost:8080\\r\\n                     -> headers, and from them: content_length, keep_alive, …
    Content-Length: 256

Two kinds of refusal. What makes it doubtful where the request ends (line ends, lengths, codings, control bytes) is
raised by `Heads.read`, and the connection cannot go on. What only means that this request is not served (no such path,
foreign Host, repeated parameter) stands in `Head.refusal`, and the connection can.

Clients repeat themselves: the same head, byte by byte, thousands of times. So heads are kept (`Heads.known`), by exactly
the bytes that this strict reader accepted, and a repeated head costs one look-up. A head is admitted when it is seen the
second time: one that carries an idempotency key would only push out the useful ones.

The reader is hand-written rather than httptools (llhttp). Once the whole head lies in one buffer, two expressions say
all of the grammar, and what llhttp lets through had to be checked anyway: a missing or repeated Host, any order of
Content-Length and other lengths' spelling, methods and versions with their own status. The tests hold the two
against each other: whatever is accepted here, llhttp reads the same way.
"""

import re
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from waypost.http.problem import Problem
from waypost.http.routes import Route, Routes
from waypost.http.site import Site

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])" % _TOKEN)
#: All header lines at once. No line may begin with a blank (folding), hold a control byte but TAB, or end in less than CRLF.
_HEADERS = re.compile(rb"(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*" % _TOKEN)
_VERSION = re.compile(rb"HTTP/[0-9]+(?:\.[0-9]+)?")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_NOT_A_METHOD = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_ABSOLUTE = re.compile(r"https?://([^/?]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: Repeated, these would contradict each other; all other repeated headers are one list.
_ONCE = frozenset({"host", "content-length", "content-type", "authorization", "origin", "expect", "idempotency-key"})

#: A head larger than this is not kept, and no more than so many are: when full, all are dropped.
KEPT_BYTES = 2048
KEPT_HEADS = 4096


@dataclass(slots=True, eq=False)
class Head:
    """What a request's head says. Shared between all requests with the same head: read it, never change it.

    Only `parsed` is free: the route's handler keeps there what it made of path, query and headers, so that
    it interprets a repeated head once. What depends on more than the head (a clock, a policy) does not belong there.
    """

    method: str
    #: As it was sent.
    target: str
    #: Of the target, still percent-encoded.
    path: str
    #: The row of the table; for HEAD that of GET. When `refusal` is set it may be one without a handler of use.
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
    refusal: Problem | None = None
    #: An answer needs no finishing touch for this head: 1.1, kept alive, and not HEAD.
    plain: bool = False
    #: For the handler.
    parsed: Any = None


def _unserved(request: Any) -> NoReturn:
    raise Problem(404, "NOT_FOUND")


#: The row of a head that found none.
UNROUTED = Route("", "", _unserved)
#: Stands for a head that could not be read, so that its refusal is answered like any other request, in its turn.
UNREADABLE = Head("", "", "", UNROUTED, {}, {}, {}, 0, False, False, True)


class Heads:
    """Reads heads for one table of routes, and knows those it read before."""

    def __init__(
        self, routes: Routes, site: Site, line_bytes: int = 8192, header_bytes: int = 32768, headers: int = 100
    ) -> None:
        self.routes = routes
        self.site = site
        self.line_bytes = line_bytes
        self.header_bytes = header_bytes
        self.headers = headers
        #: Only for reading by others; the same dict for the server's whole life.
        self.known: dict[bytes, Head] = {}
        self._seen: set[int] = set()

    def read(self, raw: bytes) -> Head:
        """The head in these bytes (without the empty line that ended it). Raises Problem when framing is in doubt."""
        head = self._read(raw)
        if head.plain and head.refusal is None and head.route.cacheable and len(raw) <= KEPT_BYTES:
            self._admit(raw, head)
        return head

    def unfinished(self, buffer: bytearray, start: int) -> Problem | None:
        """What is already wrong with a head whose end has not arrived; bytes before `start` were looked at before."""
        if _BARE_LINE_END.search(buffer, max(0, start - 1)):
            return _bad_line_end()
        if start == 0 and _NOT_A_METHOD.match(buffer):
            return _bad_request_line()
        if len(buffer) > self.line_bytes and buffer.find(b"\r\n", 0, self.line_bytes + 2) < 0:
            return self._line_too_long()
        if len(buffer) > self.line_bytes + self.header_bytes:
            return self._headers_too_large()
        return None

    def _admit(self, raw: bytes, head: Head) -> None:
        if head.content_length is None or head.expect_continue:
            return
        fingerprint = hash(raw)
        if fingerprint not in self._seen:
            if len(self._seen) >= 2 * KEPT_HEADS:
                self._seen.clear()
            self._seen.add(fingerprint)
            return
        if len(self.known) >= KEPT_HEADS:
            self.known.clear()
        self.known[raw] = head

    def _read(self, raw: bytes) -> Head:
        line, _, block = raw.partition(b"\r\n")
        if len(line) > self.line_bytes:
            raise self._line_too_long()
        if len(block) > self.header_bytes:
            raise self._headers_too_large()
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise _what_is_wrong_with_line(line)
        if parts[3] != b"1" or parts[4] not in b"01":
            raise _bad_version(f"HTTP/{parts[3].decode()}.{parts[4].decode()}")
        if block and _HEADERS.fullmatch(block + b"\r\n") is None:
            raise _what_is_wrong_with_headers(block)
        modern = parts[4] == b"1"
        headers = self._fields(block)
        length = _body_length(headers, modern)
        if modern and "host" not in headers:
            raise Problem(400, "NO_HOST", "No Host", "an HTTP/1.1 request needs a Host header", "add it")
        tokens = [t.strip() for t in headers["connection"].lower().split(",")] if "connection" in headers else ()
        keep_alive = "close" not in tokens and (modern or "keep-alive" in tokens)
        method, target = parts[1].decode(), parts[2].decode()
        head = Head(method, target, target, UNROUTED, {}, {}, headers, length, keep_alive, False, modern)
        head.plain = modern and keep_alive and method != "HEAD"
        try:
            self._place(head)
        except Problem as refusal:
            head.refusal = refusal
        return head

    def _fields(self, block: bytes) -> dict[str, str]:
        headers: dict[str, str] = {}
        if not block:
            return headers
        try:
            lines = block.decode().split("\r\n")
        except UnicodeDecodeError:
            raise Problem(
                400, "BAD_HEADER", "Bad header", "a header's value is not UTF-8", "send text as UTF-8"
            ) from None
        if len(lines) > self.headers:
            raise Problem(
                431,
                "TOO_MANY_HEADERS",
                detail=f"{len(lines)} headers, {self.headers} are taken",
                hint="send fewer headers",
            )
        for line in lines:
            name, _, value = line.partition(":")
            name = name.lower()
            value = value.strip(" \t")
            if name in headers:
                if name in _ONCE:
                    raise Problem(
                        400, "REPEATED_HEADER", "Repeated header", f"{name} stands there twice", "send it once"
                    )
                value = f"{headers[name]}, {value}"
            headers[name] = value
        return headers

    def _place(self, head: Head) -> None:
        """Fill in what the target says. Raises Problem for a request that is well framed but not served."""
        headers = head.headers
        hosts = [headers["host"]] if "host" in headers else []
        path = head.target
        if not path.startswith("/"):
            absolute = _ABSOLUTE.fullmatch(path)
            if absolute is not None:
                hosts.append(absolute[1])
                path = absolute[2] if absolute[2].startswith("/") else "/" + absolute[2]
            elif path != "*" or head.method != "OPTIONS":
                raise Problem(400, "BAD_TARGET", "Bad target", f"{path!r} is not a path", "begin it with '/'")
        refusal = self.site.check(hosts, headers.get("origin"))
        if refusal is not None:
            raise refusal
        if "expect" in headers and head.modern:
            if headers["expect"].lower() != "100-continue":
                raise Problem(
                    417, "UNKNOWN_EXPECTATION", detail=f"Expect: {headers['expect']}", hint="only 100-continue is known"
                )
            head.expect_continue = head.content_length != 0
        if path == "*":
            head.route = self.routes.everything()
            return
        path, _, query = path.partition("?")
        head.path = path
        segments = path[1:].split("/")
        if "%" in path:
            segments = [_decoded(segment) for segment in segments]
        if "#" in head.target:
            raise Problem(400, "BAD_TARGET", "Bad target", "a request has no '#' part", "write it as %23")
        head.route, head.params = self.routes.match(head.method, segments)
        if query:
            head.query = _read_query(query)

    def _line_too_long(self) -> Problem:
        return Problem(
            414, "REQUEST_LINE_TOO_LONG", detail=f"over {self.line_bytes} bytes", hint="move parameters into headers or body"
        )

    def _headers_too_large(self) -> Problem:
        return Problem(431, "HEADERS_TOO_LARGE", detail=f"over {self.header_bytes} bytes", hint="send smaller headers")


def _body_length(headers: dict[str, str], modern: bool) -> int | None:
    """How long the body is: None when chunked. Everything that two readers could read differently is refused."""
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
            501, "UNKNOWN_TRANSFER_CODING", detail=f"Transfer-Encoding: {codings}", hint="only chunked is known"
        )
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise _bad_length(f"Content-Length: {length}")
    return int(length)


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
                400, "REPEATED_PARAMETER", "Repeated parameter", f"{name!r} stands there twice", "send each parameter once"
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
    raise Problem(400, "BAD_PERCENT_ENCODING", "Bad target", f"{text!r}", "percent-encode the text's UTF-8 bytes")


def _bad_line_end() -> Problem:
    return Problem(400, "BAD_LINE_END", "Bad request", "a CR or LF stands alone", "end each line with CRLF")


def _bad_request_line() -> Problem:
    return Problem(400, "BAD_REQUEST_LINE", "Bad request", "not 'METHOD target HTTP/1.1'", "speak HTTP/1.1 here")


def _bad_version(version: str) -> Problem:
    return Problem(505, "UNKNOWN_VERSION", detail=f"{version} is not spoken here", hint="use HTTP/1.1")


def _bad_length(what: str) -> Problem:
    return Problem(400, "BAD_LENGTH", "Bad request", what, "send one Content-Length, or Transfer-Encoding: chunked")


def _what_is_wrong_with_line(line: bytes) -> Problem:
    if _BARE_LINE_END.search(line + b"\r\n"):
        return _bad_line_end()
    version = line.rpartition(b" ")[2]
    if line.count(b" ") == 2 and _VERSION.fullmatch(version):
        if _LINE.fullmatch(line.removesuffix(version) + b"HTTP/1.1"):
            return _bad_version(version.decode())
        return Problem(
            400, "BAD_TARGET", "Bad target", "bytes that are not printable ASCII", "percent-encode the text's UTF-8 bytes"
        )
    return _bad_request_line()


def _what_is_wrong_with_headers(block: bytes) -> Problem:
    if _BARE_LINE_END.search(block + b"\r\n"):
        return _bad_line_end()
    for line in block.split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            return Problem(400, "FOLDED_HEADER", "Bad header", "a header goes on in a second line", "write it in one line")
        if _HEADERS.fullmatch(line + b"\r\n") is None:
            break
    return Problem(
        400, "BAD_HEADER", "Bad header", "not 'Name: printable text'", "no blank before ':', no control bytes in the value"
    )
