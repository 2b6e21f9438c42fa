"""Payloads: bodies of a range of messages as columns, as they were published.

Small ones come from the file, large ones from theirs. Each is held against its checksum: what is not what was published is left out,
so that nobody takes it for the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...arrow import PAYLOADS
from .bodies import folder_of
from .columns import Ints, arrow, bounds_of, bytes_of, hashes, known_of, message_ids
from .scan import File, Rows

#: of bodies in one batch, though always one message
BATCH_BYTES = 32 << 20
#: and so many messages at most
BATCH_ROWS = 50_000
#: offsets whose sizes are looked at together
WINDOW = 500_000


def payloads(file: File, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    for first in range(max(lo, 1), hi + 1, WINDOW):
        last = min(hi, first + WINDOW - 1)
        sizes = file.rows(
            f"select sequence, size from messages where sequence between {first} and {last} order by sequence",
            WINDOW,
        )
        for start, end in _batches(sizes["size"]):
            yield _batch(file, int(sizes["sequence"][start]), int(sizes["sequence"][end - 1]), end - start)


def _batches(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Where each batch begins and ends."""
    upto, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(upto[start - 1]) if start else 0
        end = int(np.searchsorted(upto, before + BATCH_BYTES, side="right"))
        end = max(start + 1, min(end, start + BATCH_ROWS))
        yield start, end
        start = end


def _batch(file: File, first: int, last: int, most: int) -> pa.RecordBatch:
    rows = file.rows(
        "select sequence, at, salt, own_id, mime_type, encoding, meta, traceparent, priority, hash, size,"
        " iif(typeof(body) = 'text', body, '') as name, iif(typeof(body) = 'blob', body, null) as body"
        f" from messages where sequence between {first} and {last} order by sequence",
        most,
        texts=("own_id", "mime_type", "encoding", "meta", "traceparent", "name"),
        blobs=("hash", "body"),
    )
    columns = {
        "message_id": message_ids(rows),
        "meta": _objects(rows["meta"]),
        "hash": hashes(rows["hash"]),
        "body": _bodies(folder_of(file.path), rows),
    }
    for name in PAYLOADS.names:
        if name not in columns:
            columns[name] = arrow(rows[name]).cast(PAYLOADS.field(name).type)
    return pa.record_batch([columns[name] for name in PAYLOADS.names], schema=PAYLOADS)


def _objects(metas: pa.StringArray) -> pa.StringArray:
    """As JSON shows them, {"name": "value"}; the file has pairs."""
    if metas.null_count == len(metas):
        return metas
    pairs = msgspec.json.decode
    return pa.array(
        [
            None if text is None else msgspec.json.encode(dict(pairs(text))).decode()
            for text in metas.to_pylist()
        ],
        pa.string(),
    )


def _bodies(folder: Path, rows: Rows) -> pa.BinaryArray:
    """Those that fit their checksums; most often that is all of them, as they were read."""
    bodies, names, hashes = rows["body"], rows["name"], rows["hash"]
    view, starts = memoryview(bodies.buffers()[2] or b""), bounds_of(bodies)
    found = [sha256(view[start:end]).digest() for start, end in pairwise(starts.tolist())]
    fits = (_digests(b"".join(found)) == _digests(bytes_of(hashes))).all(axis=1) & known_of(bodies)
    if fits.all():
        return bodies
    chosen: list[bytes | None] = bodies.to_pylist()
    for row in np.flatnonzero(~fits).tolist():
        name = names[row].as_py()
        whole = _read(folder / name) if name else None
        chosen[row] = whole if whole is not None and sha256(whole).digest() == hashes[row].as_py() else None
    return pa.array(chosen, pa.binary())


def _digests(joined: bytes | memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(joined, np.uint8).reshape(-1, 32)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # reaped or erased meanwhile
