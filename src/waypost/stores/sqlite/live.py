"""Live: messages and deliveries of a range as columns, as the store has them at this moment.

What `Reader` says of one message, done for all at once. A delivery that was routed and never touched has no row of its own: its
message's route says that it is there, in Q. A message's state follows from those of its queue slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...arrow import DELIVERIES, MESSAGES
from ...delivery import L, Q, State, U, X, message_state
from ..columns import Ints, arrow, hashes, known_of, message_ids, numbers, state_letters
from .events import ROUTE
from .routes import Routes, topic_lists
from .scan import File, Names

#: of `messages`, those that are columns of MESSAGES as they are
_SAME = ("object", "key", "mime_type", "timestamp", "sent", "size", "priority", "expires_at")


class Live:
    """The messages lo … hi, by sequence, and their deliveries."""

    def __init__(self, file: File, names: Names, lo: int, hi: int) -> None:
        self._file, self._names = file, names
        most = hi - lo + 1
        with file.snapshot():
            self._messages = file.rows(
                f"select sequence, at, salt, own_id, {ROUTE}, same_as, topics, hash, ifnull(producer, 0) as producer,"
                f" {', '.join(_SAME)} from messages where sequence between {lo} and {hi} order by sequence",
                most,
                texts=("own_id", "routes", "topics", "object", "key", "mime_type"),
                blobs=("same_as", "hash"),
            )
            count = file.rows(
                f"select count(*) as n from deliveries where sequence between {lo} and {hi}", 1
            )["n"][0]
            self._known = file.rows(
                "select sequence, destination, slot, state, attempt, ifnull(consumer, 0) as consumer, reason, since_at,"
                " due_at, ifnull(named, 0) as named"
                f" from deliveries where sequence between {lo} and {hi} and destination > 0",
                int(count),
                texts=("reason",),
            )
        self._place()

    def _place(self) -> None:
        """Each delivery's message, destination and slot: those with a row, and after them those without."""
        known, sequence, route = self._known, self._messages["sequence"], self._messages["route"]
        plain, texts = np.flatnonzero(route > 0), np.flatnonzero(route < 0)
        routes = Routes(self._messages["routes"].take(pa.array(texts)))
        routed = np.concatenate(
            (
                np.stack((plain, route[plain], np.zeros_like(plain)), axis=1),
                np.stack((texts[routes.row], routes.destination, routes.slot), axis=1),
            )
        )
        row = np.searchsorted(sequence, known["sequence"])
        touched = np.stack((row, known["destination"], known["slot"]), axis=1)
        wide = np.concatenate((routed, touched)).max(axis=0, initial=0) + 1
        untouched = routed[~np.isin(_keys(routed, wide), _keys(touched, wide))]
        every = np.concatenate((touched, untouched))
        self._untouched_at = self._messages["at"][untouched[:, 0]]
        self._names.know(every[:, 1], known["consumer"], known["named"], self._messages["producer"])
        #: in the order of sequence, destination and slot
        self._order = np.argsort(_keys(every, wide), kind="stable")
        self._row, self._destination, self._slot = (
            np.ascontiguousarray(part) for part in every[self._order].T
        )
        self._state = self._touched("state", int(Q))

    def _touched(self, name: str, otherwise: int | Ints) -> Ints:
        """A column of `deliveries`, with what stands for it where there is no row."""
        known = self._known[name]
        filled = np.empty(len(self._order), np.int64)
        filled[: len(known)] = known
        filled[len(known) :] = otherwise
        return filled[self._order]

    # ── deliveries ──────────────────────────────────────────────────────────────────────────

    def deliveries(self, columns: Sequence[str]) -> pa.RecordBatch:
        schema = pa.schema([DELIVERIES.field(name) for name in columns])
        return pa.record_batch([self._delivery_column(name) for name in columns], schema=schema)

    def _delivery_column(self, name: str) -> pa.Array:
        type, messages = DELIVERIES.field(name).type, self._messages
        match name:
            case "sequence" | "at":
                return numbers(messages[name][self._row], type)
            case "message_id":
                return message_ids(messages).take(pa.array(self._row))
            case "queue" | "channel":
                names = self._names.queues if name == "queue" else self._names.channels
                return names.take(pa.array(self._destination))
            case "slot":
                return numbers(self._slot.astype(np.int32), type)
            case "state":
                return state_letters(self._state)
            case "attempt":
                return numbers(self._touched(name, 0).astype(np.int32), type)
            case "consumer" | "named":
                return self._names.parties.take(pa.array(self._touched(name, 0)))
            case "changed_at":
                return numbers(self._touched("since_at", self._untouched_at), type)
            case "destination_code":
                return numbers(self._destination.astype(np.int32), type)
        known = arrow(self._known[name])
        missing = pa.nulls(len(self._untouched_at), known.type)
        return pa.concat_arrays([known, missing]).take(pa.array(self._order)).cast(type)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def messages(self, columns: Sequence[str]) -> pa.RecordBatch:
        schema = pa.schema([MESSAGES.field(name) for name in columns])
        return pa.record_batch([self._message_column(name) for name in columns], schema=schema)

    def _message_column(self, name: str) -> pa.Array:
        type, rows = MESSAGES.field(name).type, self._messages
        match name:
            case "message_id":
                return message_ids(rows)
            case "state":
                return state_letters(self._states())
            case "topics":
                return topic_lists(rows["topics"])
            case "producer":
                return self._names.parties.take(pa.array(rows["producer"]))
            case "hash":
                return hashes(rows["hash"])
            case "same_as":
                return rows["same_as"].cast(pa.string())
        return arrow(rows[name]).cast(type)

    def _states(self) -> Ints:
        present = np.zeros(len(self._messages["sequence"]), np.int64)
        in_queue = self._names.is_queue[self._destination]
        for state in State:
            there = np.zeros(len(present), np.bool_)
            there[self._row[in_queue & (self._state == state)]] = True
            present |= there.astype(np.int64) << state
        found, index = np.unique(present, return_inverse=True)
        of_present = np.array(
            [message_state(s for s in State if mask >> s & 1) if mask else 0 for mask in found.tolist()],
            np.int64,  # also where there are none
        )
        states: Ints = of_present[index]
        none, route = states == 0, self._messages["route"]
        states[none] = np.where(known_of(self._messages["same_as"]), U, np.where(route == 0, L, X))[none]
        return states


def _keys(places: Ints, wide: Ints) -> Ints:
    """Of (message, destination, slot), in whose order they are."""
    keys: Ints = (places[:, 0] * wide[1] + places[:, 1]) * wide[2] + places[:, 2]
    return keys
