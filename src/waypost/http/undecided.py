"""What waits in L for Spark, as a stream: lines of JSON or Arrow, in the order of the log.

    store ──a page──▶ thread: large bodies are read, rows written ──▶ the reader, at its pace

Which objects are Spark's is looked up once for an answer, so whoever decides all of it in its order lets no message be overtaken,
whatever happens to the policies meanwhile. A page holds few MiB, an answer `MOST_BYTES` and then as much as its last message has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from waypost.broker import Broker
from waypost.commands import Staged
from waypost.errors import NotOffered, PayloadDamaged, PayloadReaped
from waypost.instants import instant_text
from waypost.store import Store, Undecided
from waypost.wire import body_json

if TYPE_CHECKING:
    import pyarrow as pa

#: bytes of bodies that one answer brings, and one page
MOST_BYTES = 32 << 20
PAGE_BYTES = 2 << 20
#: messages of the first page and of the longest
FIRST_PAGE, LONGEST_PAGE = 100, 1_000

_encode_lines = msgspec.json.Encoder().encode_lines


class Row(NamedTuple):
    message: Undecided
    #: paths that its content's hash leaves out; None where it is not compared
    ignore: tuple[str, ...] | None
    #: None: it cannot be read, and this is why
    body: bytes | None
    failure: str | None


class Write(Protocol):
    """How rows look in the answer; made and called in threads."""

    def __call__(self, rows: list[Row]) -> bytes: ...

    def end(self) -> bytes: ...


async def undecided(
    broker: Broker, after: int, n: int, writer: Callable[[], Write]
) -> AsyncGenerator[bytes, None]:
    """All that is answered."""
    store = broker.store
    sparks = await broker.look(store.sparks)
    write = await asyncio.to_thread(writer)
    yield write([])
    left, page, held = n, min(n, FIRST_PAGE), 0
    while left and sparks and held < MOST_BYTES:
        waiting = await broker.look(partial(store.undecided, after, min(page, left), only=sparks))
        if not waiting:
            break
        ignored = await broker.look(_ignored, store, waiting)
        for part in parts_of(waiting, PAGE_BYTES):
            yield await asyncio.to_thread(_write, store, part, ignored, write)
            held += sum(message.size for message in part)
            left -= len(part)
            after = part[-1].sequence
            if held >= MOST_BYTES:
                break
        sizes = sum(message.size for message in waiting if not isinstance(message.body, Staged))
        page = max(FIRST_PAGE, min(LONGEST_PAGE, PAGE_BYTES * len(waiting) // (sizes or 1)))
    yield write.end()


def parts_of(waiting: list[Undecided], most_bytes: int) -> Iterator[list[Undecided]]:
    """In order, each with few bytes or with one message."""
    part: list[Undecided] = []
    held = 0
    for message in waiting:
        if part and held + message.size > most_bytes:
            yield part
            part, held = [], 0
        part.append(message)
        held += message.size
    if part:
        yield part


def _ignored(store: Store, waiting: list[Undecided]) -> dict[str, tuple[str, ...]]:
    """By object, where contents are compared."""
    found: dict[str, tuple[str, ...]] = {}
    for name in {str(message.envelope.object) for message in waiting}:
        info = store.object(name)
        if info is not None and info.policy.unchanged is not None:
            found[name] = info.policy.unchanged.ignore
    return found


def _write(
    store: Store, waiting: list[Undecided], ignored: dict[str, tuple[str, ...]], write: Write
) -> bytes:
    rows = []
    for message in waiting:
        said, body, failure = message.envelope, message.body, None
        whole: bytes | None = None
        try:
            whole = store.unstage(body) if isinstance(body, Staged) else body
        except (PayloadDamaged, PayloadReaped) as error:
            failure = str(error)
        ignore = None if said.key is None else ignored.get(str(said.object))
        rows.append(Row(message, ignore, whole, failure))
    return write(rows)


class JsonLines:
    def __call__(self, rows: list[Row]) -> bytes:
        return _encode_lines([_form(row) for row in rows]) if rows else b""

    def end(self) -> bytes:
        return b""


def _form(row: Row) -> dict[str, Any]:
    message, said = row.message, row.message.envelope
    form: dict[str, Any] = {
        "sequence": message.sequence,
        "id": message.id,
        "created": instant_text(message.created_at),
        "topics": said.topics,
        "object": said.object,
        "key": said.key,
        "mimeType": said.mime_type,
        "producer": said.producer,
        "size": message.size,
        "timestamp": None if said.timestamp is None else instant_text(said.timestamp),
        "sent": None if said.sent is None else instant_text(said.sent),
        "encoding": said.encoding,
        "meta": dict(said.meta),
        "ignore": row.ignore,
    }
    return form | ({"body": None, "failure": row.failure} if row.body is None else body_json(row.body))


class ArrowStream:
    """Piece by piece. pyarrow is imported when the first one is wanted, and not in the loop."""

    def __init__(self) -> None:
        if find_spec("pyarrow") is None:
            raise NotOffered(
                "Arrow streams", "pip install 'waypost[lake]', or read newline JSON: leave Accept out"
            )
        import pyarrow as pa

        from waypost.arrow import UNDECIDED

        self._pa, self._schema = pa, UNDECIDED
        self._file = BytesIO()
        self._stream = pa.ipc.new_stream(self._file, UNDECIDED)

    def __call__(self, rows: list[Row]) -> bytes:
        if rows:
            self._stream.write_batch(self._batch(rows))
        return self._taken()

    def end(self) -> bytes:
        self._stream.close()
        return self._taken()

    def _taken(self) -> bytes:
        written = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return written

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        messages = [row.message for row in rows]
        said = [message.envelope for message in messages]
        columns = {
            "sequence": [message.sequence for message in messages],
            "message_id": [message.id for message in messages],
            "at": [message.created_at for message in messages],
            "size": [message.size for message in messages],
            "meta": [msgspec.json.encode(dict(one.meta)).decode() for one in said],
            "ignore": [row.ignore for row in rows],
            "body": [row.body for row in rows],
            "failure": [row.failure for row in rows],
        }
        for name in ("topics", "object", "key", "mime_type", "producer", "timestamp", "sent", "encoding"):
            columns[name] = [getattr(one, name) for one in said]
        arrays = [self._pa.array(columns[field.name], field.type) for field in self._schema]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)
