"""Redis Streams over RESP: XADD, XREADGROUP, XACK with XDEL in the same write.

XDEL because a confirmed message is gone from every other system too; without MULTI, which would only
add work: both commands arrive in one read and are synced by the same `appendfsync always`.
"""

from __future__ import annotations

from benchmarks.loader import Reading, Refused, Script, Tick
from benchmarks.wires import BATCH, BODY, nothing

WHOLE_BODY = BODY + b"\r\n"


def strings(*parts: bytes) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def command(*parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(encoded) + strings(*encoded)


def lines(asked: bytes, first: bytes, count: int) -> Reading:
    """`count` lines, of which the first begins as given."""
    data = yield asked
    while not (data.endswith(b"\r\n") and data.count(b"\r\n") >= count):
        _refuse_errors(data)
        data += yield b""
    _refuse_errors(data)
    if not data.startswith(first):
        raise Refused(data[:200].decode(errors="replace"))
    return data


def all_there(data: bytes) -> bool:
    """Of what XREADGROUP answers: as many bodies as it announces."""
    return data.endswith(WHOLE_BODY) and data.count(BODY) == int(data.split(b"\r\n", 5)[4][1:])


def _refuse_errors(data: bytes) -> None:
    if data[:1] == b"-" or b"\r\n-" in data:
        raise Refused(data[:200].decode(errors="replace"))


class Redis:
    def hello(self) -> Script:
        return nothing()

    def prepare(self, queue: str) -> Script:
        yield from lines(command("XGROUP", "CREATE", queue, "workers", "$", "MKSTREAM"), b"+OK", 1)

    def remove(self, queue: str) -> Script:
        yield from lines(command("DEL", queue), b":1", 1)

    def publish(self, queue: str, tick: Tick) -> Script:
        add = command("XADD", queue, "*", "b", BODY)
        while tick():
            yield from lines(add, b"$", 2)

    def cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, 1)

    def batch(self, queue: str, tick: Tick) -> Script:
        add = command("XADD", queue, "*", "b", BODY) * BATCH
        while tick():
            yield from lines(add, b"$", 2 * BATCH)

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, BATCH)

    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        add = command("XADD", queue, "*", "b", BODY) * count
        name = queue.encode()
        fetch = command("XREADGROUP", "GROUP", "workers", "w", "COUNT", str(count), "STREAMS", queue, ">")
        ack, delete = strings(b"XACK", name, b"workers"), strings(b"XDEL", name)
        while tick():
            yield from lines(add, b"$", 2 * count)
            left = count
            while left > 0:
                # *1 *2 $n queue *count, then each message as *2 $n id *2 $1 b $256 body: 8 lines
                data = yield fetch
                while not all_there(data):
                    _refuse_errors(data)
                    data = (yield fetch) if data == b"*-1\r\n" else data + (yield b"")
                ids = data.split(b"\r\n")[7::8]
                n, encoded = len(ids), strings(*ids)
                confirm = b"*%d\r\n%b%b*%d\r\n%b%b" % (n + 3, ack, encoded, n + 2, delete, encoded)
                yield from lines(confirm, b":%d\r\n:%d\r\n" % (n, n), 2)
                left -= n
