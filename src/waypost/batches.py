"""Batches: many rows that enter together or not at all, though not at once.

    task ── rows ──▶ upload: kept, seen by nobody ──┐
    task ── rows ──▶ upload                         ├─▶ batch (query, number): accepted in one small step ─▶ its rows enter in slices
    task ── rows ──▶ upload ────────────────────────┘      again with the same content: nothing changes; with other content: refused

What a batch holds is told by the number of its rows and by their hash, a sum over the rows: so neither their order nor how they were divided
among tasks matters when a batch is written again.

An upload is kept as its rows, checked and packed in slices, so that whoever enters them neither checks them again nor needs
Arrow. This file knows no store and no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import TypeVar

import msgspec

from .commands import AcceptBatch, Batch, Publish, Upload
from .errors import BatchConflict, RequestInvalid, UploadNotFound
from .message import Envelope

#: what enters in one group
SLICE_ROWS = 2_000
SLICE_BYTES = 1 << 20
#: how many uploads a batch can have
MOST_UPLOADS = 10_000
#: of a row's hash and of their sum
HASH_BYTES = 16
_MODULUS = 1 << 8 * HASH_BYTES


T = TypeVar("T")

#: what a message is that says nothing else
PLAIN = Publish(envelope=Envelope(topics=()), body=b"")
#: (topics, object, mime type): what many rows say alike
Kind = tuple[tuple[str, ...], str | None, str | None]


class Rows(msgspec.Struct, array_like=True, gc=False):
    """Messages in columns; None stands for a column in which no row says anything.

    Fields are only ever added, at the end and with a default: chunks outlive an upgrade.
    """

    kinds: list[Kind]
    #: which of the kinds each row is; None: all are the first
    kind: list[int] | None
    bodies: list[bytes]
    hashes: list[bytes]
    keys: list[str | None] | None = None
    timestamps: list[int | None] | None = None
    delays_us: list[int] | None = None
    ttls_us: list[int | None] | None = None
    priorities: list[int] | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    def sliced(self, start: int, end: int | None = None) -> Rows:
        def cut(column: list[T] | None) -> list[T] | None:
            return None if column is None else column[start:end]

        return Rows(
            self.kinds,
            cut(self.kind),
            self.bodies[start:end],
            self.hashes[start:end],
            cut(self.keys),
            cut(self.timestamps),
            cut(self.delays_us),
            cut(self.ttls_us),
            cut(self.priorities),
        )

    def messages(self) -> list[Publish]:
        #: shared by those that say nothing of their own
        alike = [
            Envelope(topics=topics, object=object, mime_type=mime) for topics, object, mime in self.kinds
        ]
        envelopes: Iterable[Envelope] = (
            repeat(alike[0]) if self.kind is None else map(alike.__getitem__, self.kind)
        )
        if self.keys is not None or self.timestamps is not None:
            envelopes = [
                Envelope(
                    topics=shared.topics,
                    object=shared.object,
                    key=key,
                    mime_type=shared.mime_type,
                    timestamp=at,
                )
                for shared, key, at in zip(
                    envelopes, self.keys or repeat(None), self.timestamps or repeat(None), strict=False
                )
            ]
        messages = [
            Publish(envelope=envelope, body=body, hash=hash)
            for envelope, body, hash in zip(envelopes, self.bodies, self.hashes, strict=False)
        ]
        for name, column in (
            ("delay_us", self.delays_us),
            ("ttl_us", self.ttls_us),
            ("priority", self.priorities),
        ):
            if column is not None:
                for message, value in zip(messages, column, strict=True):
                    setattr(message, name, value)
        return messages

    def total(self) -> int:
        """The sum of the rows' hashes; one is over all that a row says, in a form that stays: a batch may be written again by a later
        Waypost."""
        kinds = [_encode(kind) for kind in self.kinds]
        told: Iterable[bytes] = repeat(kinds[0]) if self.kind is None else map(kinds.__getitem__, self.kind)
        terms = zip(
            self.keys or repeat(None),
            self.timestamps or repeat(None),
            self.hashes,
            self.delays_us or repeat(PLAIN.delay_us),
            self.ttls_us or repeat(PLAIN.ttl_us),
            self.priorities or repeat(PLAIN.priority),
            strict=False,
        )
        hashes = [
            blake2b(kind + said, digest_size=HASH_BYTES).digest()
            for kind, said in zip(told, map(_encode, terms), strict=False)
        ]
        # Upper and lower halves apart: machine words are summed faster than long integers.
        words: tuple[int, ...] = struct.unpack(f">{2 * len(hashes)}Q", b"".join(hashes))
        return (sum(words[::2]) << 64) + sum(words[1::2])

    def pieces(self) -> Iterator[Rows]:
        """Of so many bytes as may enter at once."""
        held = start = 0
        for number, body in enumerate(self.bodies):
            held += len(body)
            if held > SLICE_BYTES and number > start:
                yield self.sliced(start, number)
                start, held = number, len(body)
        yield self.sliced(start) if start else self


class _Packed(msgspec.Struct, array_like=True, gc=False):
    count: int
    rows: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_chunks = msgspec.msgpack.Decoder(list[_Packed])
_rows = msgspec.msgpack.Decoder(Rows)


def sum_of(hashes: Iterable[bytes]) -> bytes:
    """One hash for all of them, in whatever order."""
    return (sum(map(int.from_bytes, hashes)) % _MODULUS).to_bytes(HASH_BYTES)


class Packing:
    """Rows on their way into a chunk, some at a time."""

    def __init__(self) -> None:
        self.rows = self._total = 0
        self._packed: list[_Packed] = []

    def add(self, rows: Rows) -> None:
        """At most SLICE_ROWS."""
        self._total += rows.total()
        self.rows += len(rows)
        for piece in rows.pieces():
            self._packed.append(_Packed(len(piece), msgspec.Raw(_encode(piece))))

    @property
    def hash(self) -> bytes:
        return (self._total % _MODULUS).to_bytes(HASH_BYTES)

    def chunk(self) -> bytes:
        return _encode(self._packed)


class Chunk:
    """An upload's messages, unpacked some at a time."""

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError for what was not packed here."""
        self._packed = _chunks.decode(packed)

    def messages(self, start: int) -> list[Publish]:
        """From that row on, counted from 0, to the end of what was packed together."""
        for packed in self._packed:
            if start < packed.count:
                rows = _rows.decode(packed.rows)
                return (rows.sliced(start) if start else rows).messages()
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
