"""Columns: Arrow arrays of many rows, made from numpy's without a step of Python for each.

    ids        sequence, salt, moment ─▶ the 36 letters of each id, by table
    letters    state numbers          ─▶ one letter each
    spread     k values at k places   ─▶ n rows, null between: the bytes are shared, only the offsets are new
    bodies     sizes                  ─▶ batches; SHA-256 ─▶ which are what was published

Pure: knows no store. Only whoever exports imports it, with numpy and pyarrow from the `lake` extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..delivery import LETTERS
from ..message import SALT_MASK

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: the two hexadecimal digits of each byte, as one number that has them in its two bytes
_HEX: npt.NDArray[np.uint16] = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
_LETTER: npt.NDArray[np.uint8] = np.frombuffer(LETTERS.encode(), np.uint8)
ID_LENGTH = 36
#: of bodies in one batch, though always one message
BATCH_BYTES = 32 << 20
#: and so many messages at most
BATCH_ROWS = 50_000
#: the groups of an id: where each begins in its text, in its 32 digits, and how long it is
_GROUPS = ((0, 0, 8), (9, 8, 4), (14, 12, 4), (19, 16, 4), (24, 20, 12))


def id_letters(sequences: Ints, salts: Ints, created_at: Ints) -> npt.NDArray[np.uint8]:
    """`message.make_id` of each, one row of letters an id."""
    sequence, salt = sequences.astype(np.uint64), salts.astype(np.uint64)
    high = sequence >> np.uint64(22)
    words = np.empty((len(sequence), 2), ">u8")
    words[:, 0] = (
        (created_at // 1_000).astype(np.uint64) << np.uint64(16) | np.uint64(0x7000) | high >> np.uint64(14)
    )
    words[:, 1] = (
        np.uint64(0x8000 << 48)
        | (high & np.uint64(0x3FFF)) << np.uint64(48)
        | (sequence & np.uint64((1 << 22) - 1)) << np.uint64(26)
        | (salt & np.uint64(SALT_MASK))
    )
    digits = hex_letters(words.view(np.uint8).reshape(-1, 16))
    letters = np.full((len(sequence), ID_LENGTH), ord("-"), np.uint8)
    for there, here, length in _GROUPS:
        letters[:, there : there + length] = digits[:, here : here + length]
    return letters


def hex_letters(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two letters a byte."""
    return np.take(_HEX, rows).view(np.uint8)


def fixed_strings(letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    """One string a row, all of one length."""
    count, length = letters.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))
    )


def chosen_strings(letters: npt.NDArray[np.uint8], rows: Ints) -> pa.StringArray:
    """`fixed_strings` of some rows, in any order."""
    whole = np.ascontiguousarray(letters).view(f"V{letters.shape[1]}").ravel()
    return fixed_strings(whole[rows].view(np.uint8).reshape(len(rows), letters.shape[1]))


def state_letters(codes: npt.NDArray[Any], known: Bools | None = None) -> pa.StringArray:
    """One letter a row; null where `known` is not."""
    count = len(codes)
    if known is None:
        offsets = np.arange(count + 1, dtype=np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(_LETTER[codes]))
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(known, out=offsets[1:])
    letters = _LETTER[codes[known]]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters), bitmap(known))


def bitmap(known: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(known, bitorder="little"))


def numbers(values: npt.NDArray[Any], type: pa.DataType, known: Bools | None = None) -> pa.Array:
    """Of numpy's own type; null where `known` is not."""
    validity = None if known is None else bitmap(known)
    return pa.Array.from_buffers(type, len(values), [validity, pa.py_buffer(values)])


def arrow(values: npt.NDArray[Any] | pa.Array) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values)


def known_of(array: pa.Array) -> Bools:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def integers(array: pa.Array) -> Ints:
    """Nulls as 0."""
    if array.null_count:
        array = array.fill_null(0)
    return np.asarray(array.to_numpy())


class Spread:
    """k values at ascending places among n rows, null elsewhere."""

    def __init__(self, places: Ints, count: int) -> None:
        self._places, self._count = places, count
        marks = np.zeros(count + 1, np.int32)
        marks[places + 1] = 1
        #: how many values stand before each row
        self._before = np.cumsum(marks, dtype=np.int32)

    def _validity(self, values: pa.Array) -> pa.Buffer:
        known = np.zeros(self._count, np.bool_)
        known[self._places] = known_of(values) if values.null_count else True
        return bitmap(known)

    def _offsets(self, values: pa.Array) -> pa.Buffer:
        return pa.py_buffer(bounds_of(values)[self._before])

    def strings(self, values: pa.StringArray) -> pa.StringArray:
        if values.null_count == len(values):
            return pa.nulls(self._count, pa.string())
        return pa.StringArray.from_buffers(
            self._count, self._offsets(values), values.buffers()[2], self._validity(values)
        )

    def lists(self, values: pa.ListArray) -> pa.ListArray:
        if not len(values):
            return pa.nulls(self._count, values.type)
        return pa.ListArray.from_buffers(
            values.type,
            self._count,
            [self._validity(values), self._offsets(values)],
            children=[values.values],
        )

    def numbers(self, values: pa.Array, type: pa.DataType) -> pa.Array:
        if values.null_count == len(values):
            return pa.nulls(self._count, type)
        spread = np.zeros(self._count, np.int64)
        spread[self._places] = integers(values)
        return pa.Array.from_buffers(type, self._count, [self._validity(values), pa.py_buffer(spread)])


def message_ids(rows: dict[str, Any]) -> pa.StringArray:
    """Of rows of `messages`."""
    made = fixed_strings(id_letters(rows["sequence"], rows["salt"], rows["at"]))
    own = rows["own_id"]
    return made if own.null_count == len(own) else pc.coalesce(own, made)


def bounds_of(values: pa.Array) -> npt.NDArray[np.int32]:
    """Of texts, bytes or lists: where each begins, and where the last one ends."""
    bounds = np.frombuffer(values.buffers()[1] or bytes(4), np.int32)
    return bounds[values.offset : values.offset + len(values) + 1]


def bytes_of(values: pa.BinaryArray) -> memoryview:
    """All of them together."""
    bounds = bounds_of(values)
    return memoryview(values.buffers()[2] or b"")[bounds[0] : bounds[-1]]


def hashes(values: pa.BinaryArray) -> pa.StringArray:
    """32 bytes each, in hexadecimal."""
    return fixed_strings(hex_letters(np.frombuffer(bytes_of(values), np.uint8).reshape(-1, 32)))


def batches(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Where each batch of bodies of these sizes begins and ends."""
    upto, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(upto[start - 1]) if start else 0
        end = int(np.searchsorted(upto, before + BATCH_BYTES, side="right"))
        end = max(start + 1, min(end, start + BATCH_ROWS))
        yield start, end
        start = end


def fitting(bodies: pa.BinaryArray, hashes: pa.BinaryArray) -> Bools:
    """Which of them are there and have these SHA-256."""
    view, starts = memoryview(bodies.buffers()[2] or b""), bounds_of(bodies)
    found = [sha256(view[start:end]).digest() for start, end in pairwise(starts.tolist())]
    fits: Bools = (_digests(b"".join(found)) == _digests(bytes_of(hashes))).all(axis=1) & known_of(bodies)
    return fits


def _digests(joined: bytes | memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(joined, np.uint8).reshape(-1, 32)
