"""Payloads: bodies of a range of messages as columns, as they were published.

Small ones come from the file, large ones from theirs. Each is held against its checksum: what is not what was published is left out,
so that nobody takes it for the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from ...arrow import PAYLOADS
from ..columns import arrow, batches, fitting, hashes, message_ids
from .bodies import folder_of
from .scan import File, Rows

#: offsets whose sizes are looked at together
WINDOW = 500_000


def payloads(file: File, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    for first in range(max(lo, 1), hi + 1, WINDOW):
        last = min(hi, first + WINDOW - 1)
        sizes = file.rows(
            f"select sequence, size from messages where sequence between {first} and {last} order by sequence",
            WINDOW,
        )
        for start, end in batches(sizes["size"]):
            yield _batch(file, int(sizes["sequence"][start]), int(sizes["sequence"][end - 1]), end - start)


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
    fits = fitting(bodies, hashes)
    if fits.all():
        return bodies
    chosen: list[bytes | None] = bodies.to_pylist()
    for row in np.flatnonzero(~fits).tolist():
        name = names[row].as_py()
        whole = _read(folder / name) if name else None
        chosen[row] = whole if whole is not None and sha256(whole).digest() == hashes[row].as_py() else None
    return pa.array(chosen, pa.binary())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # reaped or erased meanwhile
