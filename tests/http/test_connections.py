"""The client's connections, against servers that answer as the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from waypost.client.connections import BrokenOff, Connections, NotConnected
from waypost.errors import RequestInvalid

pytestmark = pytest.mark.timeout(30)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Gives its answers one after the other, each a list of pieces; None closes the connection."""

    def __init__(self, answers: list[Sequence[bytes | None]]) -> None:
        self._answers = answers
        self.requests: list[bytes] = []
        #: by which connection each came
        self.by: list[int] = []
        self.connections = 0
        #: between two pieces
        self.pause = 0.0
        self.hold = asyncio.Event()
        self.hold.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                self.by.append(number)
                await self.hold.wait()
                for piece in self._answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(self.pause)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(
    *answers: Sequence[bytes | None], most: int = 10
) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(list(answers))
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        connections = Connections(f"http://ann:s%C3%BC%3A@127.0.0.1:{port}/base", most)
        try:
            yield server, connections
        finally:
            await connections.close()


async def ask(
    connections: Connections, body: bytes | None = None, headers: Mapping[str, str] = {}
) -> tuple[int, bytes]:
    method = "GET" if body is None else "POST"
    async with connections.exchange(method, "/x?y=1", headers, body, None) as response:
        return response.status, await response.read()


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([OK], (200, b"ok")),
        ([bytes([byte]) for byte in OK], (200, b"ok")),
        ([CHUNKED], (200, b"abcdefg")),
        ([bytes([byte]) for byte in CHUNKED], (200, b"abcdefg")),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b"")),
        (
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK],
            (200, b"ok"),
        ),
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"], (503, b"")),
    ],
)
def test_an_answer_is_read_whole_however_it_comes_and_its_connection_serves_the_next(
    pieces: list[bytes | None], expected: tuple[int, bytes]
) -> None:
    async def test() -> None:
        async with served(pieces, [OK]) as (server, connections):
            assert await ask(connections) == expected
            assert await ask(connections) == (200, b"ok")
            assert server.connections == 1

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"the end", None],  # no length: it ends with the connection
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nuntil the end"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\nuntil the end"],
        # What follows an answer unasked must never be taken for the next one's.
        [b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nuntil the end" + OK.replace(b"ok", b"no")],
    ],
)
def test_a_connection_that_cannot_go_on_is_not_used_again(pieces: list[bytes | None]) -> None:
    async def test() -> None:
        async with served(pieces, [OK]) as (server, connections):
            assert await ask(connections) == (200, b"until the end")
            assert await ask(connections) == (200, b"ok")
            assert server.by == [1, 2]

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        [None],
        [OK[:-1], None],
        [OK[:20], None],
        [CHUNKED[:-2], None],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ],
)
def test_half_an_answer_is_none(pieces: list[bytes | None]) -> None:
    async def test() -> None:
        async with served(pieces, [OK]) as (server, connections):
            with pytest.raises((BrokenOff, ConnectionError)):
                await ask(connections)
            assert await ask(connections) == (200, b"ok")
            assert server.by == [1, 2]

    run(test)


def test_an_answer_that_is_not_read_to_its_end_takes_its_connection_with_it() -> None:
    async def test() -> None:
        async with served([OK[:-1]], [OK]) as (server, connections):
            async with connections.exchange("GET", "/", {}, None, None) as response:
                assert response.status == 200
            assert await ask(connections) == (200, b"ok")
            assert server.by == [1, 2]

    run(test)


def test_a_connection_that_the_server_closed_meanwhile_is_passed_over() -> None:
    async def test() -> None:
        async with served([OK, None], [OK]) as (server, connections):
            assert await ask(connections) == (200, b"ok")
            await asyncio.sleep(0.05)
            assert await ask(connections) == (200, b"ok")
            assert server.by == [1, 2]

    run(test)


def test_what_a_server_says_unasked_is_not_the_next_answer() -> None:
    """Proxies tell of a connection that was idle for too long, and close it."""

    async def test() -> None:
        late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        for end in ([], [None]):
            async with served([OK, b"", late, *end], [OK]) as (server, connections):
                server.pause = 0.02
                assert await ask(connections) == (200, b"ok")
                await asyncio.sleep(0.15)
                assert await ask(connections) == (200, b"ok")
                assert server.by == [1, 2]

    run(test)


def test_a_request_says_what_it_must_and_nothing_that_could_be_taken_for_more() -> None:
    async def test() -> None:
        async with served([OK], [OK], [OK]) as (server, connections):
            await ask(connections, headers={"Waypost-Key": "grün"})
            await ask(connections, b"abc")
            await ask(connections, b"")
            get, post, empty = server.requests
            assert get.startswith(b"GET /base/x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nAuthorization: Basic YW5uOnPDvDo=\r\n" in get  # ann:sü:
            assert b"\r\nWaypost-Key: gr\xc3\xbcn\r\n" in get
            assert b"Content-Length" not in get
            assert b"\r\nContent-Length: 3\r\n" in post
            assert b"\r\nContent-Length: 0\r\n" in empty
            for bad in ("a\r\nX: y", "a\nb", "a\0"):
                with pytest.raises(RequestInvalid, match="control character in X-Message-Id"):
                    await ask(connections, headers={"X-Message-Id": bad})
            assert len(server.requests) == 3

    run(test)


def test_who_comes_when_all_connections_are_in_use_waits() -> None:
    async def test() -> None:
        async with served(*[[OK]] * 6, most=2) as (server, connections):
            server.hold.clear()
            asked = [asyncio.create_task(ask(connections)) for _ in range(6)]
            await asyncio.sleep(0.05)
            assert len(server.requests) == 2
            server.hold.set()
            assert await asyncio.gather(*asked) == [(200, b"ok")] * 6
            assert server.connections == 2

    run(test)


def test_one_that_is_given_up_makes_room_and_is_not_used_again() -> None:
    async def test() -> None:
        async with served([OK], [OK], most=1) as (server, connections):
            server.hold.clear()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(connections), 0.05)
            server.hold.set()
            assert await ask(connections) == (200, b"ok")
            assert server.by == [1, 2]

    run(test)


def test_silence_ends_a_stream() -> None:
    async def test() -> None:
        async with served([CHUNKED[:-7]]) as (_, connections):
            with pytest.raises(TimeoutError):
                async with connections.exchange("GET", "/", {}, None, 0.05) as response:
                    await response.read()

    run(test)


def test_nobody_there() -> None:
    async def test() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
        for url, words in ((f"http://127.0.0.1:{port}", "refused"), ("http://no.such.invalid", "")):
            with pytest.raises(NotConnected, match=words or None):
                await ask(Connections(url, 1))

    run(test)
