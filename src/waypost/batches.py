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


class _Row(msgspec.Struct, array_like=True, gc=False):
    #: which of the slice's envelopes
    envelope: int
    body: bytes
    hash: bytes
    delay_us: int
    ttl_us: int | None
    priority: int


class _Slice(msgspec.Struct, array_like=True, gc=False):
    rows: list[_Row]
    #: those that are said several times stand here once
    envelopes: list[Envelope]


class _Packed(msgspec.Struct, array_like=True, gc=False):
    count: int
    slice: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_chunks = msgspec.msgpack.Decoder(list[_Packed])
_slices = msgspec.msgpack.Decoder(_Slice)


def sum_of(hashes: Iterable[bytes]) -> bytes:
    """One hash for all of them, in whatever order."""
    return (sum(map(int.from_bytes, hashes)) % _MODULUS).to_bytes(HASH_BYTES)


def _said(envelope: Envelope) -> bytes:
    """What a row can say, and in a form that stays: a batch may be written again by a later Waypost."""
    return _encoder.encode(
        (envelope.topics, envelope.object, envelope.key, envelope.mime_type, envelope.timestamp)
    )


class Packing:
    """Messages on their way into a chunk, a slice at a time."""

    def __init__(self) -> None:
        self.rows = self._total = 0
        self._packed: list[_Packed] = []

    def add(self, messages: Sequence[Publish]) -> None:
        """At most SLICE_ROWS; their bodies are bytes."""
        rows: list[_Row] = []
        envelopes: dict[Envelope, int] = {}
        held = total = 0
        encode, said_before = _encoder.encode, b""
        last: Envelope | None = None
        number = 0
        for message in messages:
            body, envelope = message.body, message.envelope
            assert isinstance(body, bytes)
            if rows and held + len(body) > SLICE_BYTES:
                self._close(rows, envelopes)
                rows, envelopes, held, last = [], {}, 0, None
            if envelope is not last:
                last, said_before = envelope, _said(envelope)
                number = envelopes.setdefault(envelope, len(envelopes))
            row = _Row(number, body, payload_hash(body), message.delay_us, message.ttl_us, message.priority)
            terms = encode((row.hash, row.delay_us, row.ttl_us, row.priority))
            total += int.from_bytes(blake2b(said_before + terms, digest_size=HASH_BYTES).digest())
            rows.append(row)
            held += len(body)
        self._total += total
        if rows:
            self._close(rows, envelopes)

    def _close(self, rows: list[_Row], envelopes: dict[Envelope, int]) -> None:
        self._packed.append(_Packed(len(rows), msgspec.Raw(_encoder.encode(_Slice(rows, list(envelopes))))))
        self.rows += len(rows)

    @property
    def hash(self) -> bytes:
        return (self._total % _MODULUS).to_bytes(HASH_BYTES)

    def chunk(self) -> bytes:
        return _encoder.encode(self._packed)


class Chunk:
    """An upload's messages, unpacked a slice at a time."""

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError for what was not packed here."""
        self._slices = _chunks.decode(packed)

    def messages(self, start: int) -> list[Publish]:
        """From that row on, counted from 0, to the end of its slice."""
        for packed in self._slices:
            if start < packed.count:
                slice = _slices.decode(packed.slice)
                envelopes = slice.envelopes
                return [
                    Publish(
                        envelope=envelopes[row.envelope],
                        body=row.body,
                        hash=row.hash,
                        delay_us=row.delay_us,
                        ttl_us=row.ttl_us,
                        priority=row.priority,
                    )
                    for row in slice.rows[start:]
                ]
            start -= packed.count
        return []


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
