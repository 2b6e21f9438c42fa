"""Export: ranges of the log, of payloads and of the store's rows as Arrow, for whoever seals or analyses.

Runs in another process than the broker's. A range is read in one go and must be bounded by whoever asks; nothing is held between two
calls. Numbers stand beside names: a destination's is its own, a consumer's is from the table `parties`, where each got one
with its first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from ...arrow import DELIVERIES, EVENTS, MESSAGES, PAYLOADS
from ...delivery import L, State, U, X, message_state
from ...errors import LogBroken, LogTrimmed
from ...store import Task
from ..columns import (
    Ints,
    arrow,
    batches,
    fitting,
    hashes,
    integers,
    known_of,
    message_ids,
    state_letters,
)
from .scan import LINE, Database, Envelopes, Lookup, Rows

#: of messages, deliveries and sizes of payloads, so many offsets are read at once
WINDOW = 200_000

#: columns of an event that are its envelope's
_SAID = ("topics", "object", "key", "mime_type", "producer", "timestamp", "sent")
#: column -> that of table `events` which it is made of, where it has another name
_MADE_OF = {
    **dict.fromkeys(("queue", "channel", "destination_code"), "destination"),
    **dict.fromkeys(_SAID, "envelope"),
    "from_code": "from_state",
    "to_code": "to_state",
    "consumer_code": "consumer",
}
#: of a message's queue slots: a bit for each state that one of them is in
_PRESENT = (
    "select d.sequence, bit_or(1::bigint << d.state) as present from deliveries d"
    " join destinations p on p.number = d.destination and p.kind = 1 where d.sequence {range} group by d.sequence"
)


class Head(NamedTuple):
    #: of the log in the store: the first and the last offset
    oldest: int
    head: int
    #: the last one that a lake holds, 0: none
    sealed: int
    #: the instant of the last one
    at: int


class Export:
    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._places = Lookup(
            self._database,
            "select number, case kind when 1 then name end as queue, case kind when 2 then name end as channel"
            " from destinations",
            "number",
        )
        self._parties = Lookup(self._database, "select name, number from parties", "name")

    def close(self) -> None:
        self._database.close()

    @property
    def id(self) -> str:
        """The store's own."""
        return str(self._database.table("select id from log_head")["id"][0])

    def head(self) -> Head:
        (row,) = self._database.table(
            "select oldest, next - 1 as head, coalesce(sealed, 0) as sealed, at from log_head"
        ).to_pylist()
        return Head(**row)

    def is_owner(self, task: Task, broker: str) -> bool:
        """Whether the task is that broker's at this moment, by the server's clock."""
        assert broker.isalnum()
        held = f"select 1 from owned where task = '{task}' and broker = '{broker}' and until > now()"
        return bool(self._database.table(held).num_rows)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def events(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Exactly the events lo … hi in their order, with the columns of EVENTS or those named. Raises LogTrimmed when lo is older
        than what is kept, LogBroken when one is missing."""
        head = self.head()
        if lo < head.oldest:
            raise LogTrimmed(head.oldest)
        if hi > head.head:
            raise LogBroken(f"the log ends at {head.head}, and {hi} was asked for")
        wanted = EVENTS.names if columns is None else columns
        read = {"offset": '"offset"'}
        for name in (_MADE_OF.get(name, name) for name in wanted):
            read[name] = LINE if name == "envelope" else f'"{name}"'
        rows = self._database.rows(
            f'select {", ".join(read.values())} from events where "offset" between {lo} and {hi} order by "offset"'
        )
        if not np.array_equal(rows["offset"], np.arange(lo, max(hi, lo - 1) + 1)):
            oldest = self.head().oldest
            if lo < oldest:
                raise LogTrimmed(oldest)  # meanwhile
            raise LogBroken(f"not every event of {lo} … {hi} is there")
        return pa.table(self._columns_of(rows, wanted, EVENTS), _those(EVENTS, wanted))

    # ── payloads ────────────────────────────────────────────────────────────────────────────

    def payloads(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """PAYLOADS of the messages lo … hi, by sequence, some 32 MiB at a time. A body that is gone, or not what was published,
        is null."""
        for first, last in _windows(lo, hi):
            sizes = self._database.rows(
                f"select sequence, size from messages where sequence between {first} and {last} order by sequence"
            )
            for start, end in batches(sizes["size"]):
                yield self._payloads(int(sizes["sequence"][start]), int(sizes["sequence"][end - 1]))

    def _payloads(self, first: int, last: int) -> pa.RecordBatch:
        rows = self._database.rows(
            f"select m.sequence, m.at, m.salt, m.own_id, m.{LINE}, m.priority, m.hash, m.size, p.body from messages m"
            f" left join payloads p on p.sequence = m.sequence where m.sequence between {first} and {last}"
            " order by m.sequence"
        )
        fits = fitting(rows["body"], rows["hash"])
        if not fits.all():
            rows["body"] = rows["body"].take(pa.array(np.arange(len(fits)), mask=~fits))
        return pa.record_batch(self._columns_of(rows, PAYLOADS.names, PAYLOADS), PAYLOADS)

    # ── the store's own rows ────────────────────────────────────────────────────────────────

    def messages(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """MESSAGES, or those of its columns that are named: the messages lo … hi, by sequence, as the store has them now."""
        wanted = MESSAGES.names if columns is None else columns
        for first, last in _windows(lo, min(hi, self.head().head)):
            between = f"between {first} and {last}"
            rows = self._database.rows(
                f"select m.sequence, m.at, m.salt, m.own_id, m.{LINE}, m.hash, m.size, m.priority, m.expires_at, m.same_as,"
                " m.routed, coalesce(s.present, 0) as present from messages m left join"
                f" ({_PRESENT.format(range=between)}) s on s.sequence = m.sequence where m.sequence {between}"
                " order by m.sequence"
            )
            rows["state"] = _states(rows)
            yield pa.record_batch(self._columns_of(rows, wanted, MESSAGES), _those(MESSAGES, wanted))

    def deliveries(self, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """DELIVERIES of the same messages."""
        wanted = DELIVERIES.names if columns is None else columns
        for first, last in _windows(lo, min(hi, self.head().head)):
            rows = self._database.rows(
                "select d.sequence, m.at, m.salt, m.own_id, d.destination, d.slot, d.state, d.attempt, d.consumer, d.reason,"
                " d.since_at as changed_at, d.due_at, d.named from deliveries d"
                f" join messages m on m.sequence = d.sequence where d.sequence between {first} and {last}"
                " order by d.sequence, d.destination, d.slot"
            )
            yield pa.record_batch(self._columns_of(rows, wanted, DELIVERIES), _those(DELIVERIES, wanted))

    # ── columns ─────────────────────────────────────────────────────────────────────────────

    def _columns_of(self, rows: Rows, wanted: Sequence[str], schema: pa.Schema) -> list[pa.Array]:
        envelopes = Envelopes(rows["envelope"]) if "envelope" in rows else None
        return [self._column(rows, envelopes, name).cast(schema.field(name).type) for name in wanted]

    def _column(self, rows: Rows, envelopes: Envelopes | None, name: str) -> pa.Array:
        match name:
            case "message_id" if name not in rows:
                return message_ids(rows)
            case "queue" | "channel":
                return self._places.of(arrow(rows["destination"]), name)
            case "destination_code":
                return arrow(rows["destination"])
            case "consumer_code":
                return self._parties.of(rows["consumer"], "number")
            case "from_state" | "to_state" | "state":
                codes = arrow(rows[name])
                return state_letters(integers(codes), known_of(codes))
            case "from_code" | "to_code":
                return arrow(rows[name.replace("code", "state")])
            case "hash":
                return _hashes(rows["hash"])
            case "meta":
                assert envelopes is not None
                return _metas(envelopes.column("meta"))
        if name in rows:
            return arrow(rows[name])
        assert envelopes is not None
        return envelopes.column(name)


def _those(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _windows(lo: int, hi: int) -> Iterator[tuple[int, int]]:
    for first in range(max(lo, 1), hi + 1, WINDOW):
        yield first, min(hi, first + WINDOW - 1)


def _hashes(values: pa.BinaryArray) -> pa.StringArray:
    """Of those that have one."""
    known = known_of(values)
    found = hashes(values.drop_null())
    return found if known.all() else found.take(pa.array(np.cumsum(known) - 1, mask=~known))


def _metas(pairs: pa.ListArray) -> pa.StringArray:
    """As JSON shows them, {"name": "value"}."""
    if not len(pairs.flatten()):
        return pa.nulls(len(pairs), pa.string())
    return pa.array(
        [msgspec.json.encode(dict(said)).decode() if said else None for said in pairs.to_pylist()]
    )


def _states(rows: Rows) -> Ints:
    """Those of messages, from their queue slots; of each set of states once."""
    found, index = np.unique(rows["present"], return_inverse=True)
    of_present = [message_state(s for s in State if mask >> s & 1) if mask else 0 for mask in found.tolist()]
    states: Ints = np.array(of_present, np.int64)[index]
    routed = np.asarray(rows["routed"].to_numpy(zero_copy_only=False))
    otherwise = np.where(~routed, L, np.where(known_of(rows["same_as"]), U, X))
    return np.where(states == 0, otherwise, states)
