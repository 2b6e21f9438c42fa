"""A queue table in PostgreSQL, over the wire protocol v3 with prepared statements.

Each statement commits by itself: insert, `update … for update skip locked`, delete. A batch is one
statement over an array.
"""

from __future__ import annotations

import struct

from benchmarks.loader import Reading, Refused, Script, Tick
from benchmarks.wires import BATCH, BODY

READY = b"Z\0\0\0\5I"
BYTEA, INT8 = 17, 20
SYNC = b"S\0\0\0\4"


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", len(payload) + 4) + payload


def parse(name: bytes, sql: str) -> bytes:
    return frame(b"P", name + b"\0" + sql.encode() + b"\0\0\0") + SYNC


def execute(name: bytes, *values: bytes) -> bytes:
    """Bind and run a prepared statement; parameters and results are binary."""
    bound = b"".join(struct.pack(">I", len(value)) + value for value in values)
    bind = b"\0" + name + b"\0\0\1\0\1" + struct.pack(">H", len(values)) + bound + b"\0\1\0\1"
    return frame(b"B", bind) + frame(b"E", b"\0\0\0\0\0") + SYNC


def binary_array(kind: int, values: list[bytes]) -> bytes:
    items = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return struct.pack(">IIIII", 1, 0, kind, len(values), 1) + items


def ask(asked: bytes) -> Reading:
    data = yield asked
    while not data.endswith(READY):
        _refuse_errors(data)
        data += yield b""
    _refuse_errors(data)
    return data


def _refuse_errors(data: bytes) -> None:
    # an error stands first, or right after BindComplete
    if data[:1] == b"E" or data[:6] == b"2\0\0\0\4E":
        raise Refused(data[:300].decode(errors="replace"))


def ids(data: bytes) -> list[bytes]:
    """The first column of every row."""
    found, at = [], 0
    while at < len(data):
        if data[at] == 0x44:  # DataRow
            found.append(data[at + 11 : at + 19])
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return found


class Postgres:
    def hello(self) -> Script:
        start = struct.pack(">I", 196608) + b"user\0postgres\0database\0postgres\0\0"
        data = yield struct.pack(">I", len(start) + 4) + start
        while not data.endswith(READY):
            _refuse_errors(data)
            data += yield b""

    def prepare(self, queue: str) -> Script:
        yield from ask(
            frame(
                b"Q",
                f"""create table "{queue}" (id bigint generated always as identity primary key,
                        body bytea not null, fetched_until timestamptz);
                    create index on "{queue}" (id) where fetched_until is null;\0""".encode(),
            )
        )

    def remove(self, queue: str) -> Script:
        yield from ask(frame(b"Q", f'drop table "{queue}"\0'.encode()))

    def publish(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, 1)

    def batch(self, queue: str, tick: Tick) -> Script:
        return self._publish(queue, tick, BATCH)

    def cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, 1)

    def batch_cycle(self, queue: str, tick: Tick) -> Script:
        return self._cycle(queue, tick, BATCH)

    def _insert(self, queue: str, count: int) -> tuple[bytes, bytes]:
        """The statement and its execution."""
        if count == 1:
            return parse(b"i", f'insert into "{queue}" (body) values ($1)'), execute(b"i", BODY)
        sql = f'insert into "{queue}" (body) select unnest($1::bytea[])'
        return parse(b"i", sql), execute(b"i", binary_array(BYTEA, [BODY] * count))

    def _publish(self, queue: str, tick: Tick, count: int) -> Script:
        statement, insert = self._insert(queue, count)
        yield from ask(statement)
        while tick():
            yield from ask(insert)

    def _cycle(self, queue: str, tick: Tick, count: int) -> Script:
        statement, insert = self._insert(queue, count)
        yield from ask(statement)
        yield from ask(
            parse(
                b"f",
                f"""update "{queue}" set fetched_until = now() + interval '10 s' where id = any(array(
                        select id from "{queue}" where fetched_until is null
                        order by id for update skip locked limit $1)) returning id, body""",
            )
        )
        yield from ask(parse(b"d", f'delete from "{queue}" where id = any($1::bigint[])'))
        while tick():
            yield from ask(insert)
            left = count
            while left:
                reply = yield from ask(execute(b"f", struct.pack(">Q", left)))
                if fetched := ids(reply):
                    yield from ask(execute(b"d", binary_array(INT8, fetched)))
                    left -= len(fetched)
