"""Waypost over HTTP/1.1, keep-alive."""

from __future__ import annotations

import json
import re

from benchmarks.loader import Reading, Refused, Script, Tick
from benchmarks.wires import BATCH, BODY, nothing

RECEIPT = re.compile(rb'"receipt":\s*"([^"]+)"')


def request(method: str, path: str, body: bytes = b"", kind: str = "text/plain") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if method != "GET":
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def whole(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = data.find(b"ength: ", 0, end)  # Content-Length, in any of its spellings
    size = int(data[at + 7 : data.find(b"\r", at)]) if at >= 0 else 0
    return len(data) >= end + 4 + size


def ask(asked: bytes, *wanted: bytes) -> Reading:
    data = yield asked
    while not whole(data):
        data += yield b""
    if data[9:12] not in wanted:
        raise Refused(data[:400].decode(errors="replace"))
    return data


def header(name: bytes, data: bytes) -> bytes:
    at = data.find(name + b": ") + len(name) + 2
    return data[at : data.find(b"\r\n", at)]


def ready() -> Script:
    yield from ask(request("GET", "/health/ready"), b"200")


class Waypost:
    def hello(self) -> Script:
        return nothing()

    def prepare(self, queue: str) -> Script:
        yield from ask(request("PUT", f"/v1/queues/{queue}", b"{}", "application/json"), b"200", b"201")

    def remove(self, queue: str) -> Script:
        return nothing()  # a deleted queue is purged in slices, which would disturb the next measurement

    def publish(self, queue: str, tick: Tick) -> Script:
        publish = request("POST", f"/in/{queue}/{queue}.made", BODY)
        while tick():
            yield from ask(publish, b"201")

    def cycle(self, queue: str, tick: Tick) -> Script:
        publish = request("POST", f"/in/{queue}/{queue}.made", BODY)
        fetch = request("GET", f"/queue/{queue}")
        while tick():
            yield from ask(publish, b"201")
            reply = yield from ask(fetch, b"200", b"204")
            while reply[9:12] == b"204":
                reply = yield from ask(fetch, b"200", b"204")
            yield from self.confirm(queue, [header(b"Waypost-Receipt", reply)])

    def batch(self, queue: str, tick: Tick) -> Script:
        publish = self._many(queue)
        while tick():
            yield from ask(publish, b"201")

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        publish = self._many(queue)
        while tick():
            yield from ask(publish, b"201")
            receipts: list[bytes] = []
            while len(receipts) < BATCH:
                fetch = request("GET", f"/queue/{queue}?n={BATCH - len(receipts)}")
                reply = yield from ask(fetch, b"200", b"204")
                receipts += RECEIPT.findall(reply)
            yield from self.confirm(queue, receipts)

    def _many(self, queue: str) -> bytes:
        message = {
            "object": queue, "topics": [f"{queue}.made"], "mimeType": "text/plain", "body": BODY.decode()
        }  # fmt: skip
        lines = (json.dumps(message) + "\n").encode() * BATCH
        return request("POST", "/v1/messages", lines, "application/x-ndjson")

    def confirm(self, queue: str, receipts: list[bytes]) -> Script:
        body = b'{"receipts":["' + b'","'.join(receipts) + b'"],"outcome":"success"}'
        reply = yield from ask(request("POST", f"/queue/{queue}/confirm", body, "application/json"), b"200")
        if b'"stale"' in reply:
            raise Refused("a receipt was stale")
