"""Batches: many rows that enter together or not at all, though not at once.

    task ── rows ──▶ upload: kept, seen by nobody ──┐
    task ── rows ──▶ upload                         ├─▶ batch (query, number): accepted in one small step ─▶ its rows enter in slices
    task ── rows ──▶ upload ────────────────────────┘      again with the same content: nothing changes; with other content: refused

What a batch holds is told by the number of its rows and by their hash, a sum over the rows: so neither their order nor how they were divided
among tasks matters when a batch is written again.

An upload is kept as its messages, checked and packed in slices, so that whoever enters them neither checks them again nor needs
Arrow. This file knows no store and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from .commands import AcceptBatch, Batch, Publish, Upload
from .errors import BatchConflict, RequestInvalid, UploadNotFound
from .message import Envelope, payload_hash

#: what enters in one group
SLICE_ROWS = 1_000
SLICE_BYTES = 1 << 20
#: how many uploads a batch can have
MOST_UPLOADS = 10_000
#: of a row's hash and of their sum
HASH_BYTES = 16
_MODULUS = 1 << 8 * HASH_BYTES


#: (topics, object, mime type): what many rows say alike
_Kind = tuple[tuple[str, ...], str | None, str | None]


class _Row(msgspec.Struct, array_like=True, gc=False):
    """Fields are only ever added, at the end and with a default: chunks outlive an upgrade."""

    #: which of the slice's kinds
    kind: int
    key: str | None
    timestamp: int | None
    body: bytes
    hash: bytes
    delay_us: int
    ttl_us: int | None
    priority: int


class _Slice(msgspec.Struct, array_like=True, gc=False):
    kinds: list[_Kind]
    rows: list[_Row]


class _Packed(msgspec.Struct, array_like=True, gc=False):
    count: int
    slice: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_chunks = msgspec.msgpack.Decoder(list[_Packed])
_slices = msgspec.msgpack.Decoder(_Slice)


def sum_of(hashes: Iterable[bytes]) -> bytes:
    """One hash for all of them, in whatever order."""
    return (sum(map(int.from_bytes, hashes)) % _MODULUS).to_bytes(HASH_BYTES)


class Packing:
    """Messages on their way into a chunk, a slice at a time."""

    def __init__(self) -> None:
        self.rows = self._total = 0
        self._packed: list[_Packed] = []

    def add(self, messages: Sequence[Publish]) -> None:
        """At most SLICE_ROWS; their bodies are bytes. A row's hash is over all that it says, in a form that stays: a batch may be written again
        by a later Waypost."""
        rows: list[_Row] = []
        kinds: dict[_Kind, int] = {}
        held = total = number = 0
        last: _Kind | None = None
        said = b""
        for message in messages:
            body, envelope = message.body, message.envelope
            assert isinstance(body, bytes)
            if rows and held + len(body) > SLICE_BYTES:
                self._close(rows, kinds)
                rows, kinds, held, last = [], {}, 0, None
            kind = (envelope.topics, envelope.object, envelope.mime_type)
            if kind != last:
                last, said, number = kind, _encode(kind), kinds.setdefault(kind, len(kinds))
            key, timestamp, hash = envelope.key, envelope.timestamp, payload_hash(body)
            delay_us, ttl_us, priority = message.delay_us, message.ttl_us, message.priority
            terms = _encode((key, timestamp, hash, delay_us, ttl_us, priority))
            total += int.from_bytes(blake2b(said + terms, digest_size=HASH_BYTES).digest())
            rows.append(_Row(number, key, timestamp, body, hash, delay_us, ttl_us, priority))
            held += len(body)
        self._total += total
        if rows:
            self._close(rows, kinds)

    def _close(self, rows: list[_Row], kinds: dict[_Kind, int]) -> None:
        self._packed.append(_Packed(len(rows), msgspec.Raw(_encode(_Slice(list(kinds), rows)))))
        self.rows += len(rows)

    @property
    def hash(self) -> bytes:
        return (self._total % _MODULUS).to_bytes(HASH_BYTES)

    def chunk(self) -> bytes:
        return _encode(self._packed)


class Chunk:
    """An upload's messages, unpacked a slice at a time."""

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError for what was not packed here."""
        self._slices = _chunks.decode(packed)

    def messages(self, start: int) -> list[Publish]:
        """From that row on, counted from 0, to the end of its slice."""
        for packed in self._slices:
            if start < packed.count:
                return _unpacked(_slices.decode(packed.slice), start)
            start -= packed.count
        return []


def _unpacked(slice: _Slice, start: int) -> list[Publish]:
    kinds = slice.kinds
    #: shared by those that say nothing of their own
    alike = [Envelope(topics=topics, object=object, mime_type=mime) for topics, object, mime in kinds]
    messages: list[Publish] = []
    for row in slice.rows[start:]:
        envelope = alike[row.kind]
        if row.key is not None or row.timestamp is not None:
            envelope = Envelope(
                topics=envelope.topics,
                object=envelope.object,
                key=row.key,
                mime_type=envelope.mime_type,
                timestamp=row.timestamp,
            )
        messages.append(
            Publish(
                envelope=envelope,
                body=row.body,
                hash=row.hash,
                delay_us=row.delay_us,
                ttl_us=row.ttl_us,
                priority=row.priority,
            )
        )
    return messages


def check_same(command: AcceptBatch, known: Batch) -> Batch:
    """A batch that was accepted before: the same again, or BatchConflict."""
    if (known.rows, known.hash) != (command.rows, command.hash):
        raise BatchConflict(command.query, command.batch, known.rows, command.rows)
    return known


def check_uploads(command: AcceptBatch, found: Sequence[Upload | None]) -> list[Upload]:
    """What a new batch is made of: `found` for each that it names. Raises Refused."""
    if len(set(command.uploads)) < len(command.uploads):
        raise RequestInvalid("an upload stands in it twice", "name each upload once", "UPLOAD_TWICE")
    uploads: list[Upload] = []
    for id, upload in zip(command.uploads, found, strict=True):
        if upload is None or upload.batch is not None:
            raise UploadNotFound(id)
        uploads.append(upload)
    rows, hash = sum(upload.rows for upload in uploads), sum_of(upload.hash for upload in uploads)
    if (rows, hash) != (command.rows, command.hash):
        raise RequestInvalid(
            f"its uploads have {rows} rows with hash {hash.hex()}, not {command.rows} with {command.hash.hex()}",
            "rows and hash are the sums of what the uploads were answered, the hash modulo 2^128",
            "BATCH_SUM_WRONG",
        )
    return uploads
