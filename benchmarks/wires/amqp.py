"""RabbitMQ over AMQP 0-9-1: a quorum queue, publisher confirms, manual acks.

The cycle comes in two forms: `RabbitMq` asks for each message (basic.get), in turn, as all others here;
`RabbitMqConsumer` has them pushed ahead of its asking (basic.consume, prefetch of one batch), which
spares a round trip and is what RabbitMQ advises. An ack has no answer in AMQP, so in both confirming
costs RabbitMQ no round trip: that is in its favour.
"""

from __future__ import annotations

import struct

from benchmarks.loader import Refused, Script, Tick
from benchmarks.wires import BATCH, BODY

METHOD, HEADER, CONTENT = 1, 2, 3
CONNECTION_OPEN_OK, TUNE, START = (10, 41), (10, 30), (10, 10)
CHANNEL_OPEN_OK, SELECT_OK = (20, 11), (85, 11)
DECLARE_OK, DELETE_OK, QOS_OK, CONSUME_OK = (50, 11), (50, 41), (60, 11), (60, 21)
DELIVER, GET_OK, ACK = (60, 60), (60, 71), (60, 80)
CLOSED_OR_NACKED = ((10, 50), (20, 40), (60, 120))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, klass: int, number: int, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", klass, number) + arguments)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def publication(queue: str) -> bytes:
    """Publish one persistent message through the default exchange."""
    return (
        method(1, 60, 40, b"\0\0" + short("") + short(queue) + b"\0")
        + frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, len(BODY), 0x1000, 2))
        + frame(CONTENT, 1, BODY)
    )


class RabbitMq:
    def __init__(self) -> None:
        self.unread = b""
        self.confirmed = 0  #: the highest publish the broker has confirmed
        self.settled: set[int] = set()  #: confirmed out of order, above that
        self.arriving = 0  #: tag of the message whose content is still to come
        self.deliveries: list[int] = []  #: tags of whole messages not yet taken

    def _read(self, data: bytes) -> list[tuple[int, int]]:
        """Takes whole frames; notes confirms and messages, gives back the other methods."""
        data = self.unread + data
        methods, at = [], 0
        while len(data) - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if len(data) - at < size + 8:
                break
            if kind == METHOD:
                called = struct.unpack_from(">HH", data, at + 7)
                if called == ACK:
                    self._note_confirm(*struct.unpack_from(">Q?", data, at + 11))
                elif called == DELIVER:
                    (self.arriving,) = struct.unpack_from(">Q", data, at + 12 + data[at + 11])
                elif called == GET_OK:
                    (self.arriving,) = struct.unpack_from(">Q", data, at + 11)
                else:
                    if called in CLOSED_OR_NACKED:
                        raise Refused(data[at : at + 8 + size].decode(errors="replace"))
                    methods.append(called)
            elif kind == CONTENT:
                self.deliveries.append(self.arriving)
            at += size + 8
        self.unread = data[at:]
        return methods

    def _note_confirm(self, tag: int, multiple: bool) -> None:
        if multiple:
            self.confirmed = max(self.confirmed, tag)
        else:
            self.settled.add(tag)
        while self.confirmed + 1 in self.settled:
            self.confirmed += 1
            self.settled.remove(self.confirmed)

    def _call(self, asked: bytes, answer: tuple[int, int]) -> Script:
        data = yield asked
        while answer not in self._read(data):
            data = yield b""

    def hello(self) -> Script:
        yield from self._call(b"AMQP\0\0\x09\x01", START)
        credentials = long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        yield from self._call(method(0, 10, 11, credentials), TUNE)
        tune_ok = method(0, 10, 31, struct.pack(">HIH", 16, 131072, 0))
        opened = method(0, 10, 40, short("/") + b"\0\0")
        yield from self._call(tune_ok + opened, CONNECTION_OPEN_OK)
        yield from self._call(method(1, 20, 10, b"\0"), CHANNEL_OPEN_OK)
        yield from self._call(method(1, 85, 10, b"\0"), SELECT_OK)

    def prepare(self, queue: str) -> Script:
        arguments = long(short("x-queue-type") + b"S" + long(b"quorum"))
        declare = b"\0\0" + short(queue) + b"\2" + arguments  # durable
        yield from self._call(method(1, 50, 10, declare), DECLARE_OK)

    def remove(self, queue: str) -> Script:
        yield from self._call(method(1, 50, 40, b"\0\0" + short(queue) + b"\0"), DELETE_OK)

    def publish(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, 1)

    def batch(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, BATCH)

    def cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, 1)

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, BATCH)

    def _publish(self, queue: str, tick: Tick, count: int) -> Script:
        publish = publication(queue) * count
        published = 0
        while tick():
            published += count
            self._read((yield publish))
            while self.confirmed < published:
                self._read((yield b""))

    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        publish = publication(queue) * count
        get = method(1, 60, 70, b"\0\0" + short(queue) + b"\0")
        published, ack = 0, b""
        while tick():
            published += count
            self._read((yield ack + publish))
            while self.confirmed < published:
                self._read((yield b""))
            empty = len(self._read((yield get * count)))
            while len(self.deliveries) < count:
                # a message confirmed a moment ago may not be there to get yet: ask again
                empty = len(self._read((yield get * empty)))
            ack = self._ack(count)

    def _ack(self, count: int) -> bytes:
        """Acks up to and including the last tag. It has no answer, so it goes out with what comes next."""
        last = self.deliveries[count - 1]
        del self.deliveries[:count]
        return method(1, 60, 80, struct.pack(">Q?", last, True))


class RabbitMqConsumer(RabbitMq):
    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        yield from self._call(method(1, 60, 10, struct.pack(">IHB", 0, count, 0)), QOS_OK)
        consume = b"\0\0" + short(queue) + short("") + b"\0" + long(b"")
        yield from self._call(method(1, 60, 20, consume), CONSUME_OK)
        publish = publication(queue) * count
        published, ack = 0, b""
        while tick():
            published += count
            self._read((yield ack + publish))
            while self.confirmed < published or len(self.deliveries) < count:
                self._read((yield b""))
            ack = self._ack(count)
