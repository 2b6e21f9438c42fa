"""A message: payload bytes and what the producer said of it; frozen, stored once.

Its `sequence` is the offset of its L event in the log; everything a store keeps of a message hangs on that
integer. People and programs see an id instead, a UUIDv7 that carries the sequence in clear:

    0190e4b2-7c1a - 7 000 - 8 000 - 00 4d2a 91c3f7
    milliseconds     ^      ^  sequence ^  ^ salt: 26 random bits that the row keeps
                  version  variant  (12 + 14 + 22 bits)

so an id finds its row without an index of ids, ids sort in log order, and one that was guessed does
not fit the row it points to. A receipt, the token of one fetch, is built the same way: the offset of its F event
and 64 random bits kept with the fetch.

This file knows no store and no clock.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Callable
from functools import lru_cache

import msgspec

_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{12})")
_RECEIPT = re.compile(r"([1-9a-f][0-9a-f]{0,14})-([0-9a-f]{16})")

_SALT_BITS = 26
#: of the sequence, those that stand in the last twelve digits
_LOW_BITS = 22
_LOW_MASK = (1 << _LOW_BITS) - 1
#: the part of 64 random bits that an id has room for
SALT_MASK = (1 << _SALT_BITS) - 1


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the producer said of the payload. Equal requests share one envelope."""

    topics: tuple[str, ...] = ()
    object: str | None = None
    #: with `object`, names one business thing
    key: str | None = None
    mime_type: str | None = None
    #: when the data arose at the producer
    timestamp: int | None = None
    #: when the producer began to send
    sent: int | None = None
    producer: str | None = None
    #: Content-Encoding, kept and given back, never undone
    encoding: str | None = None
    #: the Waypost-Meta-* headers, as (name, value) pairs in lower case
    meta: tuple[tuple[str, str], ...] = ()
    traceparent: str | None = None

    def of(self, object: str) -> Envelope:
        """The same with this object."""
        return msgspec.structs.replace(self, object=object)


class MessageId(msgspec.Struct, frozen=True, gc=False):
    """An id taken apart: which row it points to, and what that row must hold for it to be the right one."""

    sequence: int
    salt: int
    created_ms: int


def make_id(sequence: int, salt: int, created_at: int) -> str:
    # All but the last twelve digits is the same for the messages of one millisecond, and every answer has an id.
    low = (sequence & _LOW_MASK) << _SALT_BITS | salt & SALT_MASK
    return _first_part(created_at // 1_000, sequence >> _LOW_BITS) + "%012x" % low  # noqa: UP031


def id_maker(created_at: int) -> Callable[[int, int], str]:
    """`make_id` for the messages of one moment, in the order of their sequences, and with salts of the right size."""
    #: the first part, and the sequences from `low` on, before `high`, that it stands for
    start, low, high = "", 0, 0

    def make(sequence: int, salt: int) -> str:
        nonlocal start, low, high
        if sequence >= high:
            low = sequence & ~_LOW_MASK
            start, high = _first_part(created_at // 1_000, sequence >> _LOW_BITS), low + _LOW_MASK + 1
        return start + ((sequence - low) << _SALT_BITS | salt).to_bytes(6, "big").hex()

    return make


@lru_cache(4_096)
def _first_part(ms: int, high: int) -> str:
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{high >> 14:03x}-{0x8000 | high & 0x3FFF:04x}-"


def parse_id(text: str) -> MessageId | None:
    """None for what cannot be an id of ours: then it is a producer's own."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    high, low, a, b, c = match.groups()
    bits = int(a, 16) << 62 | (int(b, 16) & 0x3FFF) << 48 | int(c, 16)
    return MessageId(bits >> _SALT_BITS, bits & SALT_MASK, int(high, 16) << 16 | int(low, 16))


def make_receipt(offset: int, salt: int) -> str:
    return "%x-%016x" % (offset, salt)  # noqa: UP031


def parse_receipt(text: str) -> tuple[int, int] | None:
    """(offset of the F event, salt), or None for what cannot be a receipt."""
    match = _RECEIPT.fullmatch(text)
    if match is None:
        return None
    offset, salt = match.groups()
    return int(offset, 16), int(salt, 16)


def payload_hash(body: bytes) -> bytes:
    """SHA-256 of the raw body: checksum, idempotency, own ids."""
    return hashlib.sha256(body).digest()


#: gives 64 random bits a call
Entropy = Callable[[], int]


def system_entropy(words: int = 512) -> Entropy:
    """The kernel's randomness, fetched many words at a time."""
    pool = array("Q")

    def draw() -> int:
        if not pool:
            pool.frombytes(os.urandom(8 * words))
        return pool.pop()

    return draw
