"""beanstalkd's text protocol: put, reserve, delete. Batches are pipelined commands."""

from __future__ import annotations

from benchmarks.loader import Reading, Refused, Script, Tick
from benchmarks.wires import BATCH, BODY, nothing

PUT = b"put 5 0 60 %d\r\n%b\r\n" % (len(BODY), BODY)


def replies(asked: bytes, word: bytes, count: int, lines_each: int = 1) -> Reading:
    data = yield asked
    while not (data.endswith(b"\r\n") and data.count(b"\r\n") >= count * lines_each):
        data += yield b""
    if data.count(word) != count:
        raise Refused(data[:200].decode(errors="replace"))
    return data


class Beanstalkd:
    def hello(self) -> Script:
        return nothing()

    def prepare(self, queue: str) -> Script:
        return nothing()  # a tube is there once it is used

    def remove(self, queue: str) -> Script:
        return nothing()  # a tube is gone once it is empty, and there is no other way

    def publish(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, 1)

    def batch(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, BATCH)

    def cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, 1)

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, BATCH)

    def _publish(self, queue: str, tick: Tick, count: int) -> Script:
        put = PUT * count
        yield from replies(b"use %b\r\n" % queue.encode(), b"USING ", 1)
        while tick():
            yield from replies(put, b"INSERTED ", count)

    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        put, reserve = PUT * count, b"reserve\r\n" * count
        yield from replies(b"use %b\r\n" % queue.encode(), b"USING ", 1)
        yield from replies(b"watch %b\r\nignore default\r\n" % queue.encode(), b"WATCHING ", 2)
        while tick():
            yield from replies(put, b"INSERTED ", count)
            data = yield from replies(reserve, b"RESERVED ", count, lines_each=2)
            heads = data.split(b"\r\n")[:-1:2]
            delete = b"".join(b"delete %b\r\n" % head.split(b" ")[1] for head in heads)
            yield from replies(delete, b"DELETED\r\n", count)
