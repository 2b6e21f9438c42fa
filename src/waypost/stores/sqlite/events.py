"""Events: a range of the log as columns.

    messages │ fetches │ steps ──▶ each row takes the places of its offsets ──▶ EVENTS

What `rows.py` says of one row, done for all at once. Offsets are dense, so an event's place is its offset less the first:
nothing is sorted, and an event that is missing is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow import EVENTS
from ...delivery import F, L, Q, U, X
from ...errors import LogBroken
from ..columns import (
    Ints,
    Spread,
    arrow,
    chosen_strings,
    fixed_strings,
    hashes,
    id_letters,
    integers,
    known_of,
    numbers,
    state_letters,
)
from .routes import Routes, topic_lists
from .scan import File, Names, Rows

#: `messages.route` as two columns: the one queue, 0 where there is no route, -1 where the text has it
ROUTE = (
    "case typeof(route) when 'integer' then route when 'null' then 0 else -1 end as route,"
    " iif(typeof(route) = 'text', route, '') as routes"
)
#: which parts of an event a column is made of; those that are not here come from the message's row alone
_PARTS = {
    "at": ("at",),
    "message_id": ("message",),
    "sequence": ("sequence",),
    "queue": ("destination",),
    "channel": ("destination",),
    "slot": ("slot", "destination"),
    "from_state": ("from",),
    "attempt": ("attempt", "destination"),
    "consumer": ("consumer",),
    "reason": ("reason",),
    "duration_ms": ("duration", "from", "message"),
    "same_as": ("message",),
    "from_code": ("from",),
    "destination_code": ("destination",),
    "consumer_code": ("consumer",),
}
_OF_L = ("topics", "object", "key", "mime_type", "producer", "hash", "size", "timestamp", "sent")
_WIDE = ("at", "sequence", "duration", "message")
_NONE: Ints = np.zeros(0, np.int64)


class Events:
    """The events lo … hi, each of them once; raises LogBroken where one is missing."""

    def __init__(self, file: File, names: Names, lo: int, hi: int, columns: Iterable[str]) -> None:
        self._file, self._names, self._lo, self._hi = file, names, lo, hi
        self._columns = tuple(columns)
        self._count = hi - lo + 1
        parts = {part for column in self._columns for part in _PARTS.get(column, ())}
        #: a place for each event; 0 where it has no such thing
        self._parts: dict[str, npt.NDArray[Any]] = {
            part: np.zeros(self._count, np.int64 if part in _WIDE else np.int32) for part in parts | {"to"}
        }
        self._filled = 0
        self._unchanged: list[Ints] = []
        self._messages, self._fetches, self._steps = (
            self._read_messages(),
            self._read_fetches(),
            self._read_steps(),
        )
        self._older = self._read_older()
        self._place_messages()
        self._place_fetches()
        self._place_steps()
        if self._filled != self._count or not self._parts["to"].all():
            raise LogBroken(f"not every event of {lo} … {hi} is there")

    # ── rows ────────────────────────────────────────────────────────────────────────────────

    def _read_messages(self) -> Rows:
        """From the row before, which may hold events from lo on."""
        names = [*self._of_message(), ROUTE, *(name for name in _OF_L if name in self._columns)]
        return self._file.rows(
            f"select {', '.join(names)} from messages where sequence between"
            f" (select ifnull(max(sequence), {self._lo}) from messages where sequence <= {self._lo}) and {self._hi}"
            " order by sequence",
            self._count + 1,
            texts=("own_id", "routes", "topics", "object", "key", "mime_type"),
            blobs=("same_as", "hash"),
        )

    def _of_message(self) -> list[str]:
        """What an event needs of its message, wherever that is."""
        return ["sequence", "at", "same_as", *(("salt", "own_id") if "message_id" in self._columns else ())]

    def _read_fetches(self) -> Rows:
        names = self._of_row('from_state as "from"')
        return self._file.rows(
            f'select {names} from fetches where "offset" between {self._lo} and {self._hi} order by "offset"',
            self._count,
        )

    def _read_steps(self) -> Rows:
        names = self._of_row("path, reason" if "reason" in self._parts else "path")
        return self._file.rows(
            f'select {names} from steps where {self._among_steps()} order by "offset"',
            self._count + 1,
            texts=("reason",),
        )

    def _of_row(self, more: str) -> str:
        names = ['"offset"', "sequence", "at", more]
        names += [name for name in ("destination", "slot", "attempt") if name in self._parts]
        if "duration" in self._parts:
            names.append("duration_ms as duration")
        if "consumer" in self._parts:
            names.append("ifnull(consumer, 0) as consumer")
        return ", ".join(names)

    def _among_steps(self) -> str:
        first = f'(select ifnull(max("offset"), {self._lo}) from steps where "offset" <= {self._lo})'
        return f'"offset" between {first} and {self._hi}'

    def _read_older(self) -> Rows:
        """Messages from before the range to which something happened in it."""
        logged = self._messages["sequence"]
        first = int(logged[0]) if len(logged) else self._hi + 1
        names = self._of_message()
        if not any(bool((rows["sequence"] < first).any()) for rows in (self._fetches, self._steps)):
            return {name: values[:0] for name, values in self._messages.items() if name in names}
        return self._file.rows(
            f"select {', '.join(names)} from messages where sequence in"
            f' (select sequence from fetches where "offset" between {self._lo} and {self._hi} and sequence < {first}'
            f" union select sequence from steps where {self._among_steps()} and sequence < {first}) order by sequence",
            2 * self._count,
            texts=("own_id",),
            blobs=("same_as",),
        )

    # ── places ──────────────────────────────────────────────────────────────────────────────

    def _place(self, offsets: Ints, **parts: Any) -> Ints:
        """Gives ascending offsets their parts, each a value or one for each; the places of those in the range."""
        start, end = (int(index) for index in np.searchsorted(offsets, (self._lo, self._hi + 1)))
        places = offsets[start:end] - self._lo
        self._filled += len(places)
        for part, values in parts.items():
            if part in self._parts:
                self._parts[part][places] = values[start:end] if isinstance(values, np.ndarray) else values
        return places

    def _place_messages(self) -> None:
        rows = self._messages
        sequence, at, route = rows["sequence"], rows["at"], rows["route"]
        message = np.arange(len(sequence)) + len(self._older["sequence"])
        own: Rows = {"at": at, "sequence": sequence, "message": message}
        self._logged = self._place(sequence, to=int(L), **own)
        later: Rows = own | {"from": int(L)}
        plain = route > 0
        if plain.all():
            self._place(sequence + 1, to=int(Q), destination=route, **later)
            return
        self._place(sequence[plain] + 1, to=int(Q), destination=route[plain], **_those(later, plain))
        repeats = (route == 0) & known_of(rows["same_as"])
        self._unchanged.append(self._place(sequence[repeats] + 1, to=int(U), **_those(later, repeats)))
        texts = np.flatnonzero(route < 0)
        if len(texts):
            self._place_texts(Routes(rows["routes"].take(pa.array(texts))), _those(later, texts))

    def _place_texts(self, routes: Routes, later: Rows) -> None:
        """Messages of several slots, of none, or of channels alone."""
        self._names.know(routes.destination)
        sequence, row = later["sequence"], routes.row
        self._place(
            sequence[row] + 1 + routes.number,
            to=int(Q),
            destination=routes.destination,
            slot=routes.slot,
            **_those(later, row),
        )
        ended = routes.completed(self._names.is_queue)
        self._place((sequence + 1 + routes.count)[ended], to=int(X), **_those(later, ended))

    def _place_fetches(self) -> None:
        rows = self._fetches
        if len(rows["offset"]):
            rows["message"] = self._message(rows["sequence"])
            self._place(rows.pop("offset"), to=int(F), **rows)

    def _place_steps(self) -> None:
        """The first transition of each, then the second of those that have one …"""
        rows = self._steps
        if not len(rows["offset"]):
            return
        path = rows.pop("path")
        rows["message"] = self._message(rows["sequence"])
        if "reason" in rows:
            self._reasons = rows["reason"]
            known = self._reasons.null_count < len(path)
            rows["reason"] = np.arange(1, len(path) + 1) if known else 0
        number = 0
        while len(path):
            rows["from"], rows["to"] = path & 31, path >> 5 & 31
            own = (rows["to"] == X) | (rows["to"] == U)
            self._place_transitions(number, _those(rows, ~own))
            self._place_own(number, _those(rows, own))
            number, path = number + 1, path >> 5
            more = path > 31
            path, rows = path[more], _those(rows, more)

    def _place_transitions(self, number: int, rows: Rows) -> None:
        if number:
            rows["duration"] = 0
        self._place(rows.pop("offset") + number, **rows)

    def _place_own(self, number: int, rows: Rows) -> None:
        """X and U are the message's: from its L on, at no queue."""
        offsets, to = rows["offset"] + number, rows["to"]
        own = {name: rows[name] for name in ("at", "sequence", "message", "to")} | {"from": int(L)}
        if "duration" in self._parts:
            own["duration"] = (rows["at"] - self._both("at")[rows["message"]]) // 1_000
        self._place(offsets, **own)
        unchanged = offsets[to == U] - self._lo
        self._unchanged.append(unchanged[(unchanged >= 0) & (unchanged < self._count)])

    # ── their messages ──────────────────────────────────────────────────────────────────────

    def _both(self, name: str) -> Any:
        """Of the older messages and then those of the range."""
        older, here = self._older[name], self._messages[name]
        if isinstance(here, np.ndarray):
            return np.concatenate((older, here))
        return pa.concat_arrays([older, here])

    def _message(self, sequences: Ints) -> Ints:
        """Which of both each is."""
        every = self._both("sequence")
        found = np.minimum(np.searchsorted(every, sequences), len(every) - 1)
        if not len(every) or (every[found] != sequences).any():
            raise LogBroken(f"messages are missing of which {self._lo} … {self._hi} tell")
        return found

    # ── columns ─────────────────────────────────────────────────────────────────────────────

    def table(self) -> pa.Table:
        schema = pa.schema([EVENTS.field(name) for name in self._columns])
        return pa.table([self._column(name) for name in self._columns], schema=schema)

    def _column(self, name: str) -> pa.Array:
        type, parts = EVENTS.field(name).type, self._parts
        match name:
            case "offset":
                return pa.array(np.arange(self._lo, self._hi + 1))
            case "at" | "sequence":
                return numbers(parts[name], type)
            case "message_id":
                return self._ids()
            case "queue" | "channel" | "consumer":
                return self._named(name)
            case "slot" | "attempt":
                return numbers(parts[name], type, parts["destination"] > 0)
            case "from_state":
                return state_letters(parts["from"], parts["from"] > 0)
            case "to_state":
                return state_letters(parts["to"])
            case "reason":
                return self._reason()
            case "duration_ms":
                return numbers(parts["duration"], type, parts["from"] > 0)
            case "same_as":
                return self._same_as()
            case "to_code":
                return numbers(parts["to"], type)
            case "from_code" | "destination_code" | "consumer_code":
                codes = parts[name.removesuffix("_code")]
                return numbers(codes, type, codes > 0)
        return self._of_l(name)

    def _ids(self) -> pa.StringArray:
        message = self._parts["message"]
        letters = id_letters(self._both("sequence"), self._both("salt"), self._both("at"))
        own = self._both("own_id")
        if own.null_count == len(own):
            return chosen_strings(letters, message)
        return pc.coalesce(own, fixed_strings(letters)).take(pa.array(message))

    def _named(self, column: str) -> pa.StringArray:
        parts, names = self._parts, self._names
        if column == "consumer":
            names.know(_NONE, parts["consumer"])
            return names.parties.take(pa.array(parts["consumer"]))
        names.know(parts["destination"])
        return (names.queues if column == "queue" else names.channels).take(pa.array(parts["destination"]))

    def _reason(self) -> pa.StringArray:
        rows = self._parts["reason"]
        if not rows.any():
            return pa.nulls(self._count, pa.string())
        return self._reasons.take(pa.array(rows - 1, mask=rows == 0))

    def _same_as(self) -> pa.StringArray:
        places = np.sort(np.concatenate(self._unchanged)) if self._unchanged else _NONE
        if not len(places):
            return pa.nulls(self._count, pa.string())
        repeated = self._both("same_as").take(pa.array(self._parts["message"][places])).cast(pa.string())
        return Spread(places, self._count).strings(repeated)

    def _of_l(self, name: str) -> pa.Array:
        rows = self._messages
        # The first may have its L before the range.
        values = rows[name][len(rows["sequence"]) - len(self._logged) :]
        spread = self._spread()
        match name:
            case "topics":
                return spread.lists(topic_lists(values))
            case "producer":
                codes = integers(arrow(values))
                self._names.know(_NONE, codes)
                return spread.strings(self._names.parties.take(pa.array(codes)))
            case "hash":
                return spread.strings(hashes(values))
            case "size" | "timestamp" | "sent":
                return spread.numbers(arrow(values), EVENTS.field(name).type)
        return spread.strings(values)

    def _spread(self) -> Spread:
        if not hasattr(self, "_spreading"):
            self._spreading = Spread(self._logged, self._count)
        return self._spreading


def _those(rows: Rows, chosen: npt.NDArray[Any]) -> Rows:
    """Some of them, by mask or index."""
    if chosen.dtype == np.bool_ and chosen.all():
        return dict(rows)
    return {
        name: values[chosen] if isinstance(values, np.ndarray) else values for name, values in rows.items()
    }
