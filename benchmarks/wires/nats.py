"""NATS JetStream: publish acknowledged to an inbox, pull consumer, acknowledgements that are answered.

The stream is a work queue in files: what is acknowledged is gone, as everywhere else here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator

from benchmarks.loader import Refused, Script, Tick
from benchmarks.wires import BATCH, BODY

#: Nanoseconds a pull waits for a message before it is answered empty.
PULL_EXPIRES = 10_000_000_000


def publication(subject: str, reply_to: str, payload: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply_to.encode(), len(payload), payload)


def messages(asked: bytes, count: int) -> Generator[bytes, bytes, list[tuple[bytes, bytes]]]:
    """`count` messages, each as (reply subject or b"", payload)."""
    data = yield asked
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while True:
        while (eol := data.find(b"\r\n", at)) >= 0:
            head = data[at:eol].split(b" ")
            if head[0] == b"PING":  # comes every two minutes; a connection here does not live that long
                at = eol + 2
                continue
            if head[0] != b"MSG":
                raise Refused(data[at : at + 200].decode(errors="replace"))
            size = int(head[-1])
            if len(data) < eol + 4 + size:
                break
            payload = data[eol + 2 : eol + 2 + size]
            if payload[:9] == b'{"error":' or b'"error":{' in payload:
                raise Refused(payload.decode(errors="replace"))
            found.append((head[3] if len(head) == 5 else b"", payload))
            at = eol + 4 + size
        if len(found) == count and at == len(data):
            return found
        data += yield b""


class Nats:
    def __init__(self) -> None:
        self.inbox = ""

    def hello(self) -> Script:
        data = yield b""
        while not data.endswith(b"\r\n"):
            data += yield b""
        self.inbox = f"_INBOX.{os.urandom(8).hex()}"
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        greeting = f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox} 1\r\nPING\r\n"
        data = yield greeting.encode()
        while not data.endswith(b"PONG\r\n"):
            data += yield b""

    def _api(self, subject: str, question: object) -> Script:
        yield from messages(publication(f"$JS.API.{subject}", self.inbox, json.dumps(question).encode()), 1)

    def prepare(self, queue: str) -> Script:
        yield from self._api(
            f"STREAM.CREATE.{queue}",
            {
                "name": queue, "subjects": [queue], "storage": "file", "retention": "workqueue",
                "num_replicas": 1,
            },
        )  # fmt: skip
        consumer = {
            "durable_name": "workers", "ack_policy": "explicit", "max_ack_pending": 100_000,
            "max_waiting": 10_000,
        }  # fmt: skip
        yield from self._api(
            f"CONSUMER.DURABLE.CREATE.{queue}.workers", {"stream_name": queue, "config": consumer}
        )

    def remove(self, queue: str) -> Script:
        yield from self._api(f"STREAM.DELETE.{queue}", {})

    def publish(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, 1)

    def batch(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, BATCH)

    def cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, 1)

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, BATCH)

    def _publish(self, queue: str, tick: Tick, count: int) -> Script:
        publish = publication(queue, self.inbox, BODY) * count
        while tick():
            yield from messages(publish, count)

    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        inbox = self.inbox
        publish = publication(queue, inbox, BODY) * count
        pull = json.dumps({"batch": count, "expires": PULL_EXPIRES}).encode()
        fetch = publication(f"$JS.API.CONSUMER.MSG.NEXT.{queue}.workers", inbox, pull)
        while tick():
            yield from messages(publish, count)
            fetched = yield from messages(fetch, count)
            confirm = b"".join(publication(reply.decode(), inbox, b"+ACK") for reply, _ in fetched)
            yield from messages(confirm, count)
