"""Messages of the lake that a filter selects, in the order of the log, with all it takes to publish them again.

    a window of offsets ──▶ L rows that fit: id, object, key, topic, since, until
                        ──▶ every event of those messages, wherever it lies ──▶ where each one's deliveries ended: queue, channel, state
                        ──▶ chunks of them with their bodies

Files and row groups are passed over by their statistics; memory is bounded by a window's events without bodies, and a chunk's bodies. Every window and
every chunk reads the newest version of the tables, so that a replay may take longer than removed files are kept.

A filter selects deliveries. A message without any has its own state instead: L before it is decided where it goes, U unchanged, X when it went
nowhere. What was unchanged is selected only by `state=U`. Who consumed what is not looked at: `consumer` is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..delivery import STATES, L, State, U, X, message_state
from ..errors import RequestInvalid
from ..filters import Filter
from ..message import parse_id
from .delta import DataFile
from .owner import SEALER, Lake
from .reading import MOST, Rows

#: offsets looked at together
WINDOW = 1 << 19
#: messages, and bytes of their bodies, handed out together
CHUNK = 5_000
CHUNK_BYTES = 32 << 20

Numbers = npt.NDArray[np.int64]

_LOGGED = (
    "offset",
    "at",
    "message_id",
    "sequence",
    "from_state",
    "to_code",
    "topics",
    "object",
    "key",
    "mime_type",
    "producer",
    "size",
    "timestamp",
    "sent",
)
_LIVED = ("sequence", "offset", "queue", "channel", "slot", "to_code", "destination_code")
_BODIES = ("sequence", "encoding", "meta", "traceparent", "priority", "body")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Span:
    """What a selection looks through: fixed when it begins."""

    lo: int
    hi: int


class Selection:
    """`after`: only messages logged beyond this offset. `own`: ids that begin so are what the replay itself has published."""

    def __init__(self, lake: Lake, filter: Filter, after: int = 0, own: str | None = None) -> None:
        if filter.consumer is not None:
            raise RequestInvalid(
                "a lake is not searched by consumer",
                "id, object, key, topic, queue, channel, state, since and until are known; a broker's own replay knows consumer too",
                "FILTER_INVALID",
            )
        self._lake, self._filter, self._own = lake, filter, own
        self.span = self._span(after)
        #: how many were passed over because they were unchanged
        self.unchanged = 0

    def _span(self, after: int) -> Span:
        """By what the tables' logs say of their files; no row is read."""
        rows = Rows(self._lake.events, "offset")
        payloads = Rows(self._lake.payloads, "sequence")
        sealed = min(table.transaction_version(SEALER) or 0 for table in (rows.table, payloads.table))
        lo, hi = after + 1, sealed
        if self._filter.id is not None and (parsed := parse_id(self._filter.id)) is not None:
            lo, hi = max(lo, parsed.sequence), min(hi, parsed.sequence)
        inside = [file for file in rows.files if self._may_hold(file)]
        if not inside:
            return Span(1, 0)
        lo = max(lo, min(-MOST if file.low is None else file.low for file in inside), 1)
        return Span(lo, min(hi, max(MOST if file.high is None else file.high for file in inside)))

    def _may_hold(self, file: DataFile) -> bool:
        since, until = self._filter.since_at, self._filter.until_at
        return (since is None or file.last_at is None or _us(file.last_at) >= since) and (
            until is None or file.first_at is None or _us(file.first_at) < until
        )

    # --- windows --------------------------------------------------------------------------------------------------

    def windows(self) -> Iterator[tuple[int, pa.Table]]:
        """(how far it has come, the messages selected up to there: their L rows with `state` and `queue`, the first that they went to)."""
        lo, hi = self.span.lo, self.span.hi
        while lo <= hi:
            last = min(hi, lo + WINDOW - 1)
            logged = self._logged(lo, last)
            if logged.num_rows:
                logged = self._lived(logged)
            yield last, logged
            lo = last + 1

    def _logged(self, lo: int, hi: int) -> pa.Table:
        rows = Rows(self._lake.events, "offset", _LOGGED)
        found = [batch.filter(self._fits(batch)) for _, batch in rows.between(lo, hi)]
        return pa.Table.from_batches(found, rows.schema).sort_by("offset")

    def _fits(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """What is asked of the message itself; an L that is not its first is that of a routing tried again."""
        filter = self._filter
        fits = pc.and_(pc.equal(batch["to_code"], int(L)), pc.is_null(batch["from_state"]))
        wanted = {"message_id": filter.id, "object": filter.object, "key": filter.key}
        for name, value in wanted.items():
            if value is not None:
                fits = pc.and_(fits, pc.fill_null(pc.equal(batch[name], value), False))
        moments = batch["at"].cast(pa.int64())
        if filter.since_at is not None:
            fits = pc.and_(fits, pc.greater_equal(moments, filter.since_at))
        if filter.until_at is not None:
            fits = pc.and_(fits, pc.less(moments, filter.until_at))
        if filter.topic is not None:
            fits = pc.and_(fits, _has_topic(batch["topics"], filter.topic))
        if self._own is not None:
            fits = pc.and_(fits, pc.invert(pc.starts_with(batch["message_id"], self._own)))
        return fits

    def _lived(self, logged: pa.Table) -> pa.Table:
        """With what became of them, as far as the lake goes, and without those that the filter does not select for it."""
        sequences = _numbers(logged["sequence"])
        slots, own = self._slots(sequences)
        places = np.searchsorted(sequences, _numbers(slots["sequence"]))
        states = _message_states(len(sequences), places, slots, own)
        chosen = np.zeros(len(sequences), bool)
        chosen[places[_as_bools(self._selects(slots))]] = True
        if self._filter.queue is None and self._filter.channel is None:
            alone = np.ones(len(sequences), bool)
            alone[places] = False
            unchanged = alone & (states == int(U))
            if self._filter.states is None:
                self.unchanged += int(unchanged.sum())
                chosen |= alone & ~unchanged
            else:
                chosen |= alone & np.isin(states, [int(state) for state in self._filter.states])
        letters = pa.array([State(code).name for code in states.tolist()], pa.string())
        return (
            logged.append_column("state", letters)
            .append_column("queue", _first_queues(len(sequences), places, slots))
            .filter(pa.array(chosen))
        )

    def _slots(self, sequences: Numbers) -> tuple[pa.Table, Numbers]:
        """Where each delivery of these messages rests, by sequence and in the order in which they began; and, by place of the message, the code of
        its last event that is no delivery's."""
        rows = Rows(self._lake.events, "sequence", _LIVED)
        known = pa.array(sequences)
        found = [
            batch.filter(pc.is_in(batch["sequence"], known))
            for _, batch in rows.between(int(sequences[0]), int(sequences[-1]))
        ]
        events = pa.Table.from_batches(found, rows.schema).sort_by("offset")
        is_own = pc.is_null(events["destination_code"])
        own = np.full(len(sequences), int(L), np.int64)
        mine = events.filter(is_own)
        own[np.searchsorted(sequences, _numbers(mine["sequence"]))] = _numbers(mine["to_code"])
        theirs = events.filter(pc.invert(is_own)).append_column(
            "order", pa.array(np.arange(events.num_rows - mine.num_rows))
        )
        by_slot = ["sequence", "destination_code", "slot"]
        ends = theirs.group_by(by_slot, use_threads=False).aggregate([("order", "min"), ("order", "max")])
        slots = theirs.take(ends["order_max"]).append_column("began", ends["order_min"])
        # A slot that went back to L no longer exists.
        slots = slots.filter(pc.not_equal(slots["to_code"], int(L)))
        return slots.sort_by([("sequence", "ascending"), ("began", "ascending")]), own

    def _selects(self, slots: pa.Table) -> pa.ChunkedArray:
        filter = self._filter
        fits = pc.is_valid(slots["sequence"])
        for name, value in (("queue", filter.queue), ("channel", filter.channel)):
            if value is not None:
                fits = pc.and_(fits, pc.fill_null(pc.equal(slots[name], value), False))
        if filter.states is not None:
            codes = pa.array([int(state) for state in filter.states], pa.int32())
            fits = pc.and_(fits, pc.is_in(slots["to_code"], codes))
        return fits

    # --- bodies ---------------------------------------------------------------------------------------------------

    def chunks(self, selected: pa.Table) -> Iterator[pa.Table]:
        """The messages of a window with what the table of payloads has of them: `body` is null where it was erased or reaped."""
        sizes = np.cumsum(_numbers(pc.fill_null(selected["size"], 0)))
        start = 0
        while start < selected.num_rows:
            before = int(sizes[start - 1]) if start else 0
            fitting = int(np.searchsorted(sizes, before + CHUNK_BYTES, side="right"))
            end = min(max(fitting, start + 1), start + CHUNK)
            yield self._with_bodies(selected.slice(start, end - start))
            start = end

    def _with_bodies(self, messages: pa.Table) -> pa.Table:
        sequences = _numbers(messages["sequence"])
        rows = Rows(self._lake.payloads, "sequence", _BODIES)
        known = pa.array(sequences)
        found = [
            batch.filter(pc.is_in(batch["sequence"], known))
            for _, batch in rows.between(int(sequences[0]), int(sequences[-1]))
        ]
        bodies = pa.Table.from_batches(found, rows.schema).sort_by("sequence")
        places = pc.index_in(known, value_set=bodies["sequence"].combine_chunks())
        for name in _BODIES[1:]:
            messages = messages.append_column(name, bodies[name].take(places))
        return messages


def _has_topic(topics: pa.ListArray, pattern: str) -> pa.BooleanArray:
    flat, parents = pc.list_flatten(topics), pc.list_parent_indices(topics)
    matches = pc.starts_with(flat, pattern[:-1]) if pattern.endswith("*") else pc.equal(flat, pattern)
    found = np.zeros(len(topics), bool)
    found[parents.filter(matches).to_numpy()] = True
    return pa.array(found)


def _message_states(count: int, places: Numbers, slots: pa.Table, own: Numbers) -> Numbers:
    """Of each message: from its queue slots, as a set of bits, or else its own."""
    in_queue = _as_bools(pc.is_valid(slots["queue"]))
    bits = np.zeros(count, np.int64)
    np.bitwise_or.at(bits, places[in_queue], np.left_shift(1, _numbers(slots["to_code"])[in_queue]))
    states = np.where(own == int(L), own, np.where(own == int(U), int(U), int(X)))
    # Slots in channels alone do not make a state; it was routed all the same.
    routed = np.zeros(count, bool)
    routed[places] = True
    states[routed & (states == int(L))] = int(X)
    for found in np.unique(bits[bits > 0]).tolist():
        states[bits == found] = _state_of(found)
    return states


@lru_cache(4_096)
def _state_of(bits: int) -> int:
    return int(message_state(state for state in STATES.values() if bits >> int(state) & 1))


def _first_queues(count: int, places: Numbers, slots: pa.Table) -> pa.Array:
    """The name of the queue that each message went to first; null where it went to none."""
    queues = pc.is_valid(slots["queue"])
    names = slots["queue"].filter(queues).combine_chunks()
    held, first = np.unique(places[_as_bools(queues)], return_index=True)
    indexes = np.full(count, -1, np.int64)
    indexes[held] = first
    return names.take(pa.array(indexes, mask=indexes < 0))


def _numbers(column: pa.ChunkedArray) -> Numbers:
    found: Numbers = column.cast(pa.int64()).to_numpy()
    return found


def _as_bools(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.to_numpy()
    return found


def _us(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
