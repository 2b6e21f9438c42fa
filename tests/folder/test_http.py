"""A folder behind HTTP: MQ-Core's six endpoints byte for byte, and 501 for what it cannot do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.folder.conftest import files
from waypost.stores.folder import FolderStore
from waypost.testing.running import running_broker


class Client:
    """Bytes as they go over the wire."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers]
        writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        answer = await reader.read()
        writer.close()
        return answer

    async def status(self, method: str, path: str, body: bytes = b"") -> int:
        return int((await self.ask(method, path, body)).split()[1])


@asynccontextmanager
async def served(root: Path) -> AsyncIterator[Client]:
    async with running_broker(FolderStore(root, ballast_bytes=4096)) as serving:
        yield Client(serving.port)


def without_connection(answer: bytes) -> bytes:
    return answer.replace(b"Connection: close\r\n", b"")


def test_the_six_endpoints_answer_as_mq_core_does(root: Path) -> None:
    async def run() -> None:
        async with served(root) as client:
            assert await client.status("GET", "/orders") == 404
            assert await client.status("POST", "/orders/messages", b"lost?") == 404
            assert await client.status("GET", "/orders/messages") == 204
            created = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
            assert without_connection(await client.ask("PUT", "/orders", b"ignored")) == created
            assert without_connection(await client.ask("PUT", "/orders")) == created
            assert without_connection(await client.ask("GET", "/orders")) == (
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            )
            body = bytes(range(256))
            published = without_connection(await client.ask("POST", "/orders/messages", body))
            id = published.split(b"X-Message-Id: ")[1].split(b"\r\n")[0].decode()
            assert published == (
                b"HTTP/1.1 201 Created\r\nX-Message-Id: %b\r\nContent-Length: 0\r\n\r\n" % id.encode()
            )
            assert files(root) == {f"queues/orders/{id}": body}
            fetched = await client.ask("GET", "/orders/messages")
            head, _, bytes_back = fetched.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"X-Message-Id: {id}".encode() in head
            assert bytes_back == body
            assert await client.status("GET", "/orders/messages") == 204
            assert await client.status("DELETE", f"/orders/messages/{id}") == 202
            assert await client.status("DELETE", f"/orders/messages/{id}") == 202
            assert await client.status("DELETE", "/orders/messages/never-there") == 202
            await client.ask("POST", "/orders/messages", b"one more")
            assert await client.status("DELETE", "/orders") == 200
            assert await client.status("GET", "/orders") == 404
            assert await client.status("DELETE", "/orders") == 200

    asyncio.run(run())


def test_a_deleted_queue_leaves_no_file_wherever_its_messages_were(root: Path) -> None:
    async def run() -> None:
        async with served(root) as client:
            await client.ask("PUT", "/q")
            for _ in range(3):
                await client.ask("POST", "/q/messages", b"x")
            await client.ask("POST", "/q/messages?delay=60", b"later")
            await client.ask("GET", "/q/messages")
            await client.ask("DELETE", "/q")
            for _ in range(200):
                if not files(root) and not (root / "queues" / "q").exists():
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(files(root))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/channel/c", b""),
        ("POST", "/channel/c/confirm", b'{"receipts":["x"]}'),
        ("GET", "/v1/channels", b""),
        ("PUT", "/v1/channels/c", b'{"topics":["a.*"]}'),
        ("GET", "/v1/objects", b""),
        ("PUT", "/v1/objects/o", b'{"unchanged":{}}'),
        ("GET", "/v1/consumers", b""),
        ("PUT", "/v1/consumers/c", b'{"queue":"a"}'),
        ("POST", "/v1/messages", b'{"topics":["a.b"],"body":"x"}'),
        ("DELETE", "/v1/messages/x/payload", b""),
        ("GET", "/v1/tables/messages", b""),
        ("GET", "/v1/queues/a?at=10:00", b""),
        ("PUT", "/v1/queues/a", b'{"complete":2}'),
        ("PUT", "/v1/queues/a", b'{"dead":"graves"}'),
        ("POST", "/in/a.x?topics=b.y", b"x"),
    ],
)
def test_what_the_store_cannot_do_is_501_with_a_hint(root: Path, method: str, path: str, body: bytes) -> None:
    async def run() -> None:
        async with served(root) as client:
            await client.ask("PUT", "/a")
            answer = await client.ask(method, path, body)
            assert answer.startswith(b"HTTP/1.1 501 "), answer
            problem = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert (problem["status"], problem["code"]) == (501, "NOT_OFFERED")
            assert problem["hint"]

    asyncio.run(run())


def test_what_it_can_do_goes_over_http(root: Path) -> None:
    async def run() -> None:
        async with served(root) as client:
            assert await client.status("POST", "/in/orders.created", b"by topic") == 201
            answer = await client.ask("GET", "/queue/orders?n=1&consumer=ann")
            (message,) = json.loads(answer.partition(b"\r\n\r\n")[2])["messages"]
            assert (message["body"], message["topics"]) == ("by topic", ["orders.created"])
            receipts = json.dumps({"receipts": [message["receipt"]], "lease": 60}).encode()
            assert b'"until"' in await client.ask("POST", "/queue/orders/extend", receipts)
            invalid = json.dumps({"receipts": [message["receipt"]], "outcome": "invalid"}).encode()
            assert b'"state":"I"' in await client.ask("POST", "/queue/orders/confirm", invalid)
            assert await client.status("GET", "/v1/messages?filter=state%3DI") == 200
            assert await client.status("POST", "/v1/redrive", b'{"filter":"queue=orders"}') == 202
            answer = await client.ask("GET", "/queue/orders?wait=5&consumer=bob")
            assert answer.endswith(b"\r\n\r\nby topic")
            for path in ("/log", "/v1/stats", "/v1/queues", "/v1/spectators", "/health/ready"):
                assert await client.status("GET", path) == 200, path
            metrics = (await client.ask("GET", "/metrics")).decode()
            for line in (
                'waypost_folder_races_lost_total{step="open"} 0.0',
                'waypost_folder_races_lost_total{step="rename"} 0.0',
                "waypost_folder_naps_total 0.0",
            ):
                assert line in metrics

    asyncio.run(run())


def test_a_full_disk_is_mq_cores_503(root: Path) -> None:
    async def run() -> None:
        store = FolderStore(root, ballast_bytes=4096, disk_mark_bytes=1 << 62)
        async with running_broker(store) as serving:
            client = Client(serving.port)
            await client.ask("PUT", "/a")
            answer = await client.ask("POST", "/a/messages", b"x")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 10\r\n" in answer

    asyncio.run(run())
