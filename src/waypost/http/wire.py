"""One connection: bytes in, requests out, answers back in the order of the requests.

      data_received                       handler(request)                      transport.write
    ----------------> head? body? -------> Request -------> … answer, now or later -------> in turn
       known head: one look-up               |
       else: Heads.read, Chunks              '-- on_gone: the client left before its answer was written

The common case, one whole request with a known head in one piece of data, runs straight from `data_received`
into the handler: no task, no future, no copy but that of the body. Everything else goes through
`Connection._advance`, one step at a time: a head, then its body, then the next head.

Rules
* Several requests may be in flight; a later one's answer waits for the earlier ones'. Above `Limits.pipeline`
  of them, or while the client does not take its answers, nothing more is read.
* A refusal that leaves the end of the request in doubt, or comes before a body that is not going to be read,
  is the last answer: then our side is closed, and what the client still sends is read and thrown away for a
  while, because closing at once would reset the connection and destroy the answer on its way.
* Other refusals (404, 405, 401, …) leave the connection as it is; the request's body is skipped, not kept.
* The client closing its side (EOF) looks the same whether it left or only has no more to ask. So requests
  that have an `on_gone` are given up then; the others are still answered.
* A handler's answer is never an exception for its caller: to a lost connection it goes nowhere, a second one
  is logged.

A single request's answer is written as it comes; with several in flight, those of one loop turn in one write.
This file knows no product route, no broker and no clock but the server's coarse `now`.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec

from waypost.http.chunks import Chunks, too_large
from waypost.http.head import UNREADABLE, Head, Heads
from waypost.http.limits import Limits
from waypost.http.problem import MEDIA_TYPE, Problem

log = logging.getLogger("waypost.http")

Headers = Iterable[tuple[str, str]]

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS = frozenset({204, 304})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Stats:
    """What has happened so far, as plain numbers; all but `open` only grow."""

    __slots__ = ("answers", "bytes_in", "bytes_out", "connections", "open", "refused", "timeouts")

    def __init__(self) -> None:
        #: Answers by the first digit of their status: `answers[2]` is the number of 2xx.
        self.answers = [0] * 6
        self.bytes_in = 0
        self.bytes_out = 0
        #: Connections taken, those of them still there, those turned away, those closed for being slow or
        #: idle.
        self.connections = 0
        self.open = 0
        self.refused = 0
        self.timeouts = 0


class Host(Protocol):
    """What a connection needs of its server."""

    limits: Limits
    heads: Heads
    stats: Stats
    #: The loop's clock as of the last sweep.
    now: float
    #: Bytes of requests that are not whole yet, of all connections.
    arriving: int
    draining: bool
    authorize: Callable[[Head], Problem | None] | None
    access: Callable[["Request", int], None] | None

    def opened(self, connection: "Connection") -> bool:
        """A connection was made; False: there are too many."""

    def closed(self, connection: "Connection") -> None: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], done: Callable[[asyncio.Task[None]], None]) -> None:
        """Run a coroutine as a task that is not forgotten."""


def render(status: int, body: bytes = b"", content_type: str | None = None, headers: Headers = ()) -> bytes:
    """A whole response as bytes, for `Request.send`. Raises ValueError for a header that would break it."""
    parts = [_head_of(status, content_type, headers)]
    if status not in _BODILESS:
        parts.append(b"Content-Length: %d\r\n\r\n" % len(body))
        parts.append(body)
    else:
        parts.append(b"\r\n")
    return b"".join(parts)


class Request(msgspec.Struct, eq=False, weakref=False):
    """One request on one connection, and the handle for its answer.

    Answer it exactly once, from the loop's thread, now or later: `answer`, `send`, `refuse` or `stream`. None
    of these raises because of the client; check `gone` where an answer that arrives nowhere must be undone.
    A Struct because there is one for every request, and it is made in a third of the time.
    """

    _connection: "Connection"
    head: Head
    body: bytes
    #: when it was read, monotonic; only where an access log asks
    began: float = 0.0
    _answer: bytes | None = None
    _stream: "Stream | None" = None
    _on_gone: Callable[[], object] | None = None
    _abandoned: bool = False
    _closes: bool = False

    @property
    def gone(self) -> bool:
        """The client has closed its side, or the connection is lost: an answer would probably not be read."""
        return self._connection.gone

    @property
    def draining(self) -> bool:
        """The server is about to stop: do not begin to wait."""
        return self._connection.server.draining

    @property
    def answered(self) -> bool:
        return self._answer is not None or self._stream is not None

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call back, once, if the client goes away before the answer was handed to the transport; one at a time.

        Also after `answer` was called, while the answer still waits behind those of earlier requests; so
        whoever leased something for this request can leave the callback in place. Registering one says: if
        the client closes its side, give this request up. If it has gone already, the callback comes in the
        next loop turn.
        """
        connection = self._connection
        if connection.gone:
            self._abandoned = True
            connection.loop.call_soon(callback)
            connection.flush_soon()
        else:
            self._on_gone = callback

    def send(self, response: bytes) -> None:
        """Answer with a whole response, as `render` makes it: with Content-Length, without Connection.

        The cheapest way to answer. HEAD, HTTP/1.0 and a closing connection are seen to here.
        """
        if self._answer is not None or self._stream is not None:
            log.error("%s %s was answered twice", self.head.method, self.head.route.pattern)
            return
        self._answer = response
        connection = self._connection
        if connection.access is not None:
            connection.access(self, int(response[9:12]))
        requests = connection.requests
        if connection.fresh and self.head.plain and len(requests) == 1 and requests[0] is self:
            requests.clear()
            self._on_gone = None
            stats = connection.stats
            stats.answers[response[9] - 48] += 1
            stats.bytes_out += len(response)
            connection.transport.write(response)
        else:
            connection.flush_soon()

    def answer(
        self, status: int, body: bytes = b"", content_type: str | None = None, headers: Headers = ()
    ) -> None:
        try:
            response = render(status, body, content_type, headers)
        except (ValueError, KeyError):
            log.exception("%s %s: an answer that cannot be sent", self.head.method, self.head.route.pattern)
            self.fail()
        else:
            self.send(response)

    def refuse(self, problem: Problem) -> None:
        """Answer with a problem, in the form that the route answers them."""
        if self.head.route.errors == "bare":
            self.answer(problem.status, headers=problem.headers)
        else:
            self.answer(problem.status, problem.body(), MEDIA_TYPE, problem.headers)

    def fail(self) -> None:
        """Something unexpected went wrong: 500 and close. A stream that has begun is cut off."""
        if self._stream is not None:
            self._connection.cut_off()
        elif self._answer is None:
            self._closes = True
            self._connection.fresh = False  # the short way does not close
            self.refuse(_internal_error())

    def stream(self, status: int, headers: Headers = (), content_type: str | None = None) -> "Stream":
        """Answer with a body of unknown length: chunked, or up to the connection's end for HTTP/1.0."""
        if self.answered:
            raise RuntimeError("this request is answered")
        if self._connection.access is not None:
            self._connection.access(self, status)
        self._stream = Stream(self, status, _head_of(status, content_type, headers))
        return self._stream

    def _leave(self) -> None:
        """The client is gone before the answer was written."""
        self._abandoned = True
        if self._stream is not None:
            self._stream.wake()
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("%s %s: on_gone failed", self.head.method, self.head.route.pattern)

    def _done(self, task: asyncio.Task[None]) -> None:
        """The task of an async handler has ended."""
        if task.cancelled():
            self.fail()
            return
        error = task.exception()
        if isinstance(error, Problem) and not self.answered:
            self.refuse(error)
        elif error is not None:
            if not (self.gone and isinstance(error, ConnectionError)):
                _log_failure(self, error)
            self.fail()
        elif not self.answered or (self._stream is not None and not self._stream.ended):
            log.error("%s %s ended without an answer", self.head.method, self.head.route.pattern)
            self.fail()


class Stream:
    """The body of an answer, written piece by piece by one task.

    `write` returns when the client has room for more and raises ConnectionError when it is lost.
    A handler that waits for something else between two writes registers `request.on_gone` to be told.
    """

    def __init__(self, request: Request, status: int, head: bytes) -> None:
        self._request = request
        self._connection = request._connection
        self._status = status
        self._head: bytes | None = head
        self._silent = request.head.method == "HEAD" or status in _BODILESS
        self._chunked = request.head.modern and not self._silent
        self._turn: asyncio.Future[None] | None = None
        self.ended = False

    async def write(self, data: bytes) -> None:
        connection = await self._in_turn()
        if self._silent or not data:
            return
        if self._chunked:
            connection.put(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            connection.put(data)
        await connection.writable()

    async def end(self) -> None:
        connection = await self._in_turn()
        if self._chunked:
            connection.put(b"0\r\n\r\n")
        self.ended = True
        connection.ended(self._request)

    def wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _in_turn(self) -> "Connection":
        """Wait until all earlier answers are written; the first time, write the head."""
        request, connection = self._request, self._connection
        if self.ended:
            raise RuntimeError("this stream has ended")
        while not request._abandoned and not connection.lost and connection.requests[0] is not request:
            self._turn = connection.loop.create_future()
            await self._turn
        if request._abandoned or connection.lost:
            raise ConnectionResetError("the client is gone")
        if self._head is not None:
            framing = b"Transfer-Encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
            connection.put(connection.touched(request, self._head + framing, self._chunked or self._silent))
            connection.stats.answers[self._status // 100] += 1
            self._head = None
        return connection


class Connection(asyncio.Protocol):
    """One client. Made by the server for each connection."""

    __slots__ = (
        *("_advancing", "_blocked", "_body", "_buffer", "_closing", "_continue_due", "_flush_due"),
        *("_head", "_held", "_last", "_pending", "_refusal", "_scanned", "_since", "_stuck", "_writable"),
        *("access", "authorize", "fresh", "gone", "known", "loop", "lost", "pipeline", "requests"),
        *("server", "stats", "transport"),
    )

    transport: asyncio.Transport

    def __init__(self, server: Host, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.stats = server.stats
        self.access = server.access
        self.authorize = server.authorize
        self.pipeline = server.limits.pipeline
        self.known = server.heads.known
        #: In flight, oldest first.
        self.requests: deque[Request] = deque()
        #: Nothing buffered, half read, held back or about to close: the next data may take the short way.
        self.fresh = True
        self.gone = False
        self.lost = False
        self._since = server.now  #: when what is being waited for began
        self._pending = 0  #: bytes not taken by the client at the last sweep
        self._buffer = bytearray()
        self._held = 0  #: bytes of it counted in server.arriving
        self._scanned = 0  #: bytes of the buffer that hold no end of a head
        self._head: Head | None = None  #: of the request whose body is arriving
        self._body: Chunks | int = 0  #: its body: chunks, or the bytes still to skip
        self._refusal: Problem | None = None  #: its answer, if it is already refused
        self._continue_due = False
        self._advancing = False
        self._flush_due = False
        self._blocked = False  #: reading is paused
        self._stuck = False  #: the client does not take its answers
        self._writable: asyncio.Future[None] | None = None
        self._last = False  #: no further request is read
        self._closing = False  #: our side is closed

    # -- the transport calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it
        if not self.server.opened(self):
            detail, retry = "no connection is free", [("Retry-After", "1")]
            problem = Problem(
                503, "TOO_MANY_CONNECTIONS", detail=detail, hint="try again later", headers=retry
            )
            self._break_off(problem, UNREADABLE)

    def data_received(self, data: bytes) -> None:
        self.stats.bytes_in += len(data)
        if self.fresh:
            self._since = self.server.now
            end = data.find(b"\r\n\r\n")
            # `end` may be -1, and data[:-1] a known head
            if end > 0:
                raw = data[:end]
                head = self.known.get(raw) or self._read_simple(raw)
                if head is not None and len(data) == end + 4 + head.content_length:  # type: ignore[operator]
                    self._begin(
                        head, data[end + 4 :], None if self.authorize is None else self._authorize(head)
                    )
                    return
        elif self._last:
            return
        elif self._head is not None or not self._buffer:
            self._since = self.server.now
        self._buffer += data
        self._advance()

    def eof_received(self) -> bool:
        self.gone = True
        self.fresh = False
        if self._closing:
            return False
        self._stop_reading_requests()
        for request in list(self.requests):
            if request._on_gone is not None:
                request._leave()
        self.flush()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = self.lost = True
        self.fresh = False
        self._stop_reading_requests()
        self._give_up_requests()
        self._release_writer()
        self.server.closed(self)

    def pause_writing(self) -> None:
        self._stuck = True
        self._settle()

    def resume_writing(self) -> None:
        self._stuck = False
        self._release_writer()
        self.loop.call_soon(self._advance)

    # -- the server calls ------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close what has been standing still for too long."""
        if self.lost:
            return
        limits = self.server.limits
        pending = self.transport.get_write_buffer_size()
        waited = now - self._since
        if pending:
            if pending != self._pending:
                self._since = now
            elif waited > limits.body_seconds:
                self.stats.timeouts += 1
                self.transport.abort()
        elif self._closing:
            if waited > limits.linger_seconds:
                self.transport.abort()
        elif self._head is not None and not self._blocked:
            if waited > limits.body_seconds:
                self._time_out("the body", limits.body_seconds)
        elif self._buffer and not self._blocked:
            if waited > limits.head_seconds:
                self._time_out("the head", limits.head_seconds)
        elif self.requests:
            self._since = now
        elif waited > limits.idle_seconds:
            self.stats.timeouts += 1
            self._close()
        self._pending = pending

    def drain(self) -> None:
        """The server is stopping: close now if nothing is under way, else after the answers."""
        self.fresh = False
        if self._is_idle():
            self._close(linger=False)

    def cut_off(self) -> None:
        """End it without another byte."""
        if not self.lost:
            self.transport.abort()

    # -- requests and streams call ---------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what is ready and in turn; with several in flight a moment later, to join them."""
        if self._advancing or self._flush_due:
            return
        if len(self.requests) > 1:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Write what is ready and in turn."""
        self._flush_due = False
        if self.lost or self._closing:
            return
        requests = self.requests
        ready: list[bytes] = []
        last = False
        while requests and not last:
            request = requests[0]
            response = request._answer
            # answers behind an abandoned request would be taken for its own
            last = request._abandoned
            if response is None or last:
                break
            requests.popleft()
            self.stats.answers[response[9] - 48] += 1
            ready.append(self.touched(request, response, True))
            last = request._closes
        if ready:
            self.stats.bytes_out += sum(map(len, ready))
            self.transport.writelines(ready)
        if last:
            self._close()
        elif requests and requests[0]._stream is not None:
            requests[0]._stream.wake()
        self._after_answers()

    def put(self, data: bytes) -> None:
        self.stats.bytes_out += len(data)
        self.transport.write(data)

    def touched(self, request: Request, response: bytes, reusable: bool) -> bytes:
        """The response as this client needs it now; decides whether it is the connection's last."""
        head = request.head
        draining = self.server.draining
        if head.plain and not draining and not request._closes:
            return response
        others = any(r is not request for r in self.requests)
        stopping = draining and not others and self._head is None and not self._buffer
        request._closes = request._closes or not head.keep_alive or not reusable or stopping
        if request._closes:
            response = response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        elif not head.modern:
            response = response.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        if head.method == "HEAD":
            response = response[: response.index(b"\r\n\r\n") + 4]
        return response

    def ended(self, request: Request) -> None:
        """A stream, which is in turn, is complete."""
        self.requests.popleft()
        if request._closes or (self.server.draining and self._is_idle()):
            self._close()
        self.flush()

    async def writable(self) -> None:
        """Wait while the client does not take what was written; let others have their turn in any case.

        Without that turn a stream to a fast reader would keep the loop to itself, and one to a client that
        has left would never hear of it.
        """
        if self._stuck and not self.lost:
            self._writable = self.loop.create_future()
            await self._writable
        else:
            await asyncio.sleep(0)
        if self.lost:
            raise ConnectionResetError("the client is gone")

    # -- inside ----------------------------------------------------------------------------------------------

    def _read_simple(self, raw: bytes) -> Head | None:
        """A head that needs no care; any other is left to the long way, which reads it again."""
        try:
            head = self.server.heads.read(raw)
        except Problem:
            return None
        return head if head.simple else None

    def _authorize(self, head: Head) -> Problem | None:
        assert self.authorize is not None
        try:
            return self.authorize(head)
        except Exception:
            log.exception("%s %s: authorize failed", head.method, head.route.pattern)
            return _internal_error()

    def _begin(self, head: Head, body: bytes, refusal: Problem | None) -> None:
        """A request is whole: hand it to its handler."""
        request = Request(self, head, body)
        if self.access is not None:
            request.began = time.monotonic()
        requests = self.requests
        requests.append(request)
        if len(requests) >= self.pipeline:
            self._settle()
        if refusal is not None:
            request.refuse(refusal)
            return
        try:
            outcome = head.route.handler(request)
            if outcome is not None:
                self.server.spawn(outcome, request._done)
        except Problem as problem:
            request.refuse(problem)
        except Exception as error:
            _log_failure(request, error)
            request.fail()

    def _advance(self) -> None:
        """Take as many requests from the buffer as there are and may be."""
        if self._advancing or self.lost:
            return
        self._advancing = True
        self.fresh = False
        try:
            self._take_requests()
            self._weigh()
        except Problem as problem:
            self._break_off(problem, self._head or UNREADABLE)
        finally:
            self.flush()
            self._advancing = False
        self._settle()

    def _weigh(self) -> None:
        """Count what is held of requests that are not whole. Raises Problem when all connections together hold too much,
        and this one more than its share."""
        held = len(self._buffer) + (len(self._body.content) if isinstance(self._body, Chunks) else 0)
        server, limits = self.server, self.server.limits
        server.arriving += held - self._held
        self._held = held
        if server.arriving > limits.arriving and held > limits.arriving // limits.connections:
            detail, retry = "too many large bodies are arriving", [("Retry-After", "1")]
            raise Problem(503, "BUSY", detail=detail, hint="send it again later", headers=retry)

    def _take_requests(self) -> None:
        while self._may_go_on():
            if not (self._step_head() if self._head is None else self._step_body(self._head)):
                return
            if len(self.requests) >= self.pipeline:
                self.flush()

    def _may_go_on(self) -> bool:
        return not self._last and not self._stuck and len(self.requests) < self.pipeline

    def _settle(self) -> None:
        """Match reading and the short way to the state we are in."""
        if self.lost or self.transport.is_closing():
            return
        may_go_on = self._may_go_on()
        self.fresh = may_go_on and not (
            self._buffer
            or self._head is not None
            or self._advancing
            or self._continue_due
            or self.server.draining
        )
        # a connection that reads no more requests still reads, to throw away and to notice its end
        blocked = not may_go_on and not self._last
        if blocked != self._blocked:
            self._blocked = blocked
            if blocked:
                self.transport.pause_reading()
            else:
                self._since = self.server.now
                self.transport.resume_reading()

    def _step_head(self) -> bool:
        """Read the next head, if it is all there. Raises Problem when it cannot be read."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # RFC 9112, 2.2: empty lines before a request are passed over
            del buffer[:2]
        if not buffer or buffer == b"\r":
            return False
        heads = self.server.heads
        end = buffer.find(b"\r\n\r\n", self._scanned)
        if end < 0:
            problem = heads.unfinished(buffer, self._scanned)
            if problem is not None:
                raise problem
            self._scanned = max(0, len(buffer) - 3)
            return False
        raw = bytes(buffer[:end])
        del buffer[: end + 4]
        self._scanned = 0
        head = self.known.get(raw) or heads.read(raw)
        self._expect_body(head)
        return True

    def _expect_body(self, head: Head) -> None:
        """A head is read and its body comes next. Raises Problem when the body will not be read."""
        self._head = head
        refusal = head.refusal
        if refusal is None and self.authorize is not None:
            refusal = self._authorize(head)
        length = head.content_length
        limit = head.max_body
        # a client that waits for our word will perhaps not send the body it announced
        if refusal is not None and length != 0 and "expect" in head.headers:
            raise refusal
        if length is not None and length > limit:
            raise refusal or too_large(limit)
        self._refusal = refusal
        if length is None:
            self._body = Chunks(limit, keep=refusal is None)
        else:
            self._body = 0 if refusal is None else length
        if head.expect_continue and not self._buffer:
            self._continue_due = True
            self._after_answers()

    def _step_body(self, head: Head) -> bool:
        """Take the body, if it is all there. Raises Problem when it cannot be read."""
        buffer = self._buffer
        if isinstance(self._body, Chunks):
            if not self._body.take(buffer):
                return False
            body = bytes(self._body.content)
        elif self._refusal is not None:
            skipped = min(self._body, len(buffer))
            del buffer[:skipped]
            self._body -= skipped
            if self._body:
                return False
            body = b""
        else:
            length = head.content_length or 0
            if len(buffer) < length:
                return False
            body = bytes(buffer) if len(buffer) == length else bytes(memoryview(buffer)[:length])
            del buffer[:length]
        refusal = self._refusal
        self._forget_body()
        self._since = self.server.now
        if not head.keep_alive:
            self._stop_reading_requests()
        self._begin(head, body, refusal)
        return True

    def _after_answers(self) -> None:
        """Nothing is in turn to be written: do what waited for that."""
        if self.lost or self._closing:
            return
        if not self.requests:
            if self.gone:
                self._close()
                return
            if self._continue_due:
                self._continue_due = False
                self.put(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._advancing and (self._blocked or self._buffer):
            # not from here: we may be in the middle of somebody's loop over answers
            self.loop.call_soon(self._advance)

    def _break_off(self, problem: Problem, head: Head) -> None:
        """Refuse what cannot be read, in its turn, and read no more requests."""
        self._stop_reading_requests()
        request = Request(self, head, b"")
        request._closes = True
        self.requests.append(request)
        request.refuse(problem)

    def _time_out(self, what: str, seconds: float) -> None:
        self.stats.timeouts += 1
        detail = f"{what} did not arrive within {seconds:g} s"
        problem = Problem(408, "TOO_SLOW", detail=detail, hint="send it again, faster")
        self._break_off(problem, self._head or UNREADABLE)

    def _is_idle(self) -> bool:
        return not self.requests and self._head is None and not self._buffer

    def _forget_body(self) -> None:
        self._head = None
        self._body = 0
        self._refusal = None
        self._continue_due = False

    def _stop_reading_requests(self) -> None:
        self._last = True
        self.fresh = False
        self._buffer.clear()
        self._forget_body()
        self._weigh()
        if self._blocked and not self.lost:
            self._settle()

    def _give_up_requests(self) -> None:
        left = list(self.requests)
        self.requests.clear()
        for request in left:
            request._leave()

    def _release_writer(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _close(self, linger: bool = True) -> None:
        """Close our side after what is written; the other when the client closes it, or after a while."""
        if self._closing or self.lost:
            return
        self._closing = True
        self._stop_reading_requests()
        self._give_up_requests()
        self._since = self.server.now
        if linger and not self.gone:
            self.transport.write_eof()
        else:
            self.transport.close()


def _head_of(status: int, content_type: str | None, headers: Headers) -> bytes:
    """Status line and headers, without the framing and the empty line."""
    lines = [] if content_type is None else [f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    for line in lines:
        if _CONTROL.search(line):
            raise ValueError(f"a control character in {line!r}")
    return _STATUS_LINES[status] + "".join(f"{line}\r\n" for line in lines).encode()


def _internal_error() -> Problem:
    return Problem(500, "INTERNAL", "Internal error", "something went wrong", "see the server's log")


def _log_failure(request: Request, error: BaseException) -> None:
    head = request.head
    log.error(
        "%s %s failed", head.method, head.route.pattern, exc_info=(type(error), error, error.__traceback__)
    )
