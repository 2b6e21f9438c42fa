"""Routes and topics as columns: '3:2,5:1' becomes a row for each slot. Those of most messages are alike, so each text is taken apart once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...arrow import TOPICS
from ..columns import Bools, Ints
from .rows import LATER, unpack_route


def topic_lists(texts: pa.StringArray) -> pa.ListArray:
    """From `messages.topics`."""
    encoded = texts.dictionary_encode()
    parted = pa.array([text.split(",") if text else [] for text in encoded.dictionary.to_pylist()], TOPICS)
    return parted.take(encoded.indices)


class Routes:
    """Routes written as text (`rows.py`), with a row for each slot of each."""

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
