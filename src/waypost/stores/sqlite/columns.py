"""Columns: Arrow arrays of many rows, made from numpy's without a step of Python for each.

    ids        sequence, salt, moment ─▶ the 36 letters of each id, by table
    letters    state numbers          ─▶ one letter each
    routes     '3:2,5:1'              ─▶ a row for each slot
    spread     k values at k places   ─▶ n rows, null between: the bytes are shared, only the offsets are new

Pure: knows no file. Only whoever exports imports it, with numpy and pyarrow from the `lake` extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow import TOPICS
from ...delivery import LETTERS
from ...message import SALT_MASK
from .rows import LATER, unpack_route

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: the two hexadecimal digits of each byte, as one number that has them in its two bytes
_HEX: npt.NDArray[np.uint16] = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
_LETTER: npt.NDArray[np.uint8] = np.frombuffer(LETTERS.encode(), np.uint8)
ID_LENGTH = 36
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


def topic_lists(texts: pa.StringArray) -> pa.ListArray:
    """From `messages.topics`; those of most messages are few and alike, so each is taken apart once."""
    encoded = texts.dictionary_encode()
    parted = pa.array([text.split(",") if text else [] for text in encoded.dictionary.to_pylist()], TOPICS)
    return parted.take(encoded.indices)


class Routes:
    """Routes written as text (`rows.py`), with a row for each slot of each. Those of most messages are alike, so each is taken
    apart once."""

    def __init__(self, texts: pa.StringArray) -> None:
        encoded = texts.dictionary_encode()
        self._texts, self._codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        self._slots = [unpack_route(text) for text in self._texts]
        lengths = np.array([len(places) for places in self._slots], np.int64)
        starts = (np.cumsum(lengths) - lengths)[self._codes]
        #: how many slots each has
        self.count: Ints = lengths[self._codes]
        #: of each slot: which route it belongs to, and its number there
        self.row: Ints = np.repeat(np.arange(len(texts)), self.count)
        self.number: Ints = np.arange(len(self.row)) - np.repeat(
            np.cumsum(self.count) - self.count, self.count
        )
        flat = np.array([place for places in self._slots for place in places], np.int64).reshape(-1, 2)
        self.destination, self.slot = flat[starts[self.row] + self.number].T

    def completed(self, is_queue: Bools) -> Ints:
        """Those that go to no queue: their messages end with their L."""
        alone = [
            text != LATER and not any(is_queue[destination] for destination, _ in places)
            for text, places in zip(self._texts, self._slots, strict=True)
        ]
        return np.flatnonzero(np.array(alone, np.bool_)[self._codes])


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
