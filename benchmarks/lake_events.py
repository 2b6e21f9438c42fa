"""Events by the million, made in a moment: the Arrow table a broker's log would be, without a broker.

    table = events(5_000_000)          # schema EVENTS; offsets 1 … n, dense
    for part in slices(table, 500_000): ...

Each message follows one of a few scripts (most are fetched and confirmed; some are retried, given up, repeat the last one,
go to two queues or to a channel too). Messages begin one after the other and their steps interleave, so that a message's events
lie close together in the log, as they do in life. The same seed gives the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from waypost.arrow import EVENTS, MOMENT
from waypost.delivery import LETTERS, STATES

QUEUES = ("orders", "customers", "invoices", "stock", "mail", "audit")
CHANNEL = "mirror"
WORKERS = 24
PRODUCERS = ("erp", "shop", "crm")
START_US = 1_800_000_000_000_000
NONE = -1


@dataclass(frozen=True)
class Step:
    """One transition; `after`: mean milliseconds since the message's step before it, 0: in the same commit."""

    place: int  #: NONE the message's own, 0 its queue, 1 its second queue, 2 the channel
    path: str
    after: float
    attempt: int = 0
    reason: str | None = None


_OWN = (Step(NONE, ".L", 0), Step(0, "LQ", 0))
#: (weight, steps); a path is from and to, `.` for none
SCRIPTS: tuple[tuple[float, tuple[Step, ...]], ...] = (
    (0.78, (*_OWN, Step(0, "QF", 40, 1), Step(0, "FS", 25, 1), Step(NONE, "LX", 0))),
    (0.08, (Step(NONE, ".L", 0), Step(NONE, "LU", 0))),
    (
        0.05,
        (
            *_OWN,
            Step(0, "QF", 40, 1),
            Step(0, "FR", 900, 1, "lease-over"),
            Step(0, "RF", 700, 2),
            Step(0, "FS", 60, 2),
            Step(NONE, "LX", 0),
        ),
    ),
    (
        0.05,
        (
            *_OWN,
            Step(1, "LQ", 0),
            Step(2, "LQ", 0),
            Step(0, "QF", 30, 1),
            Step(2, "QF", 10, 1),
            Step(0, "FS", 20, 1),
            Step(1, "QF", 15, 1),
            Step(2, "FS", 15, 1),
            Step(1, "FS", 20, 1),
            Step(NONE, "LX", 0),
        ),
    ),
    (
        0.01,
        (
            *_OWN,
            Step(0, "QF", 40, 1),
            Step(0, "FR", 300, 1, "cannot reach the warehouse"),
            Step(0, "RF", 900, 2),
            Step(0, "FE", 300, 2, "cannot reach the warehouse"),
        ),
    ),
    (0.01, (*_OWN, Step(0, "QF", 40, 1), Step(0, "FN", 5, 1, "not-interested"), Step(0, "NQ", 0, 1))),
    (0.01, (*_OWN, Step(0, "QF", 40, 1), Step(0, "FI", 5, 1, "no such article"))),
    (0.01, (*_OWN, Step(0, "QC", 500, 0, "purged"))),
)


def events(count: int, *, seed: int = 1, per_second: int = 20_000) -> pa.Table:
    """Exactly `count` events; messages at the end are in the middle of their way."""
    draw = np.random.default_rng(seed)
    weights = np.array([weight for weight, _ in SCRIPTS])
    mean = sum(weight * len(steps) for weight, steps in SCRIPTS)
    messages = int(count / mean * 1.02) + 200
    script = draw.choice(len(SCRIPTS), messages, p=weights / weights.sum())
    begins = START_US + np.cumsum(draw.exponential(1e6 * mean / per_second, messages)).astype(np.int64)
    queue = draw.integers(0, len(QUEUES), messages)
    parts = [
        _of_script(number, np.flatnonzero(script == number), begins, draw) for number in range(len(SCRIPTS))
    ]
    column = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((column["step"], column["message"], column["at"]))[:count]
    column = {name: values[order] for name, values in column.items()}
    return _table(column, begins, queue, draw)


def _of_script(
    number: int, messages: np.ndarray, begins: np.ndarray, draw: np.random.Generator
) -> dict[str, np.ndarray]:
    steps = SCRIPTS[number][1]
    shape = (len(messages), len(steps))
    gaps = np.stack(
        [
            draw.exponential(step.after * 1_000, len(messages)) if step.after else np.zeros(len(messages))
            for step in steps
        ],
        axis=1,
    ).astype(np.int64)
    at = begins[messages][:, None] + np.cumsum(gaps, axis=1)
    since = np.empty(shape, np.int64)
    last: dict[int, int] = {}
    for column, step in enumerate(steps):
        before = last.get(step.place)
        since[:, column] = at[:, 0] if before is None or step.place == NONE else at[:, before]
        last[step.place] = column
    worker = draw.integers(0, WORKERS, len(messages))

    def each(values: list[int]) -> np.ndarray:
        return np.broadcast_to(np.array(values, np.int64), shape).ravel()

    return {
        "message": np.repeat(messages, len(steps)),
        "step": each(list(range(len(steps)))),
        "at": at.ravel(),
        "duration": ((at - since) // 1_000).ravel(),
        "place": each([step.place for step in steps]),
        "from": each([STATES[step.path[0]] if step.path[0] != "." else 0 for step in steps]),
        "to": each([STATES[step.path[1]] for step in steps]),
        "attempt": each([step.attempt for step in steps]),
        "reason": each([_REASONS.index(step.reason) for step in steps]),
        "worker": (worker[:, None] + each([step.attempt for step in steps]).reshape(shape)).ravel() % WORKERS,
    }


_REASONS: list[str | None] = [
    None,
    *dict.fromkeys(s.reason for _, steps in SCRIPTS for s in steps if s.reason),
]


def _table(
    column: dict[str, np.ndarray], begins: np.ndarray, queue: np.ndarray, draw: np.random.Generator
) -> pa.Table:
    count = len(column["at"])
    offset = np.arange(1, count + 1, dtype=np.int64)
    message = column["message"]
    is_l = column["from"] == 0
    sequence_of = np.zeros(len(begins), np.int64)
    sequence_of[message[is_l]] = offset[is_l]
    own = column["place"] == NONE
    in_channel = column["place"] == 2
    second = column["place"] == 1
    place = np.where(second, (queue[message] + 1) % len(QUEUES), queue[message])
    has_worker = np.isin(column["from"], [STATES["F"]]) | (column["to"] == STATES["F"])
    worker = column["worker"]
    ids = _ids(begins, sequence_of, draw)
    logged = np.flatnonzero(is_l)
    keys = pa.array(np.char.add("k-", draw.integers(0, 200_000, len(begins)).astype(str)))
    hashes = _hex(draw.bytes(32 * len(begins)), 64)
    topics = pa.array([f"{name}.changed" for name in QUEUES])
    first_topic = pa.DictionaryArray.from_arrays(pa.array(queue[message[is_l]]), topics).cast(pa.string())
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate(([0], np.cumsum(is_l))).astype(np.int32)), first_topic, mask=pa.array(~is_l)
    )
    letters = pa.array(list(LETTERS))
    values: dict[str, pa.Array] = {
        "offset": pa.array(offset),
        "at": pa.array(column["at"], MOMENT),
        "message_id": ids.take(pa.array(message)),
        "sequence": pa.array(sequence_of[message]),
        "queue": _named(QUEUES, place, own | in_channel),
        "channel": _named((CHANNEL,), np.zeros(count, np.int64), ~in_channel),
        "slot": pa.array(np.zeros(count, np.int32), mask=own),
        "from_state": letters.take(pa.array(column["from"], mask=is_l)),
        "to_state": letters.take(pa.array(column["to"])),
        "attempt": pa.array(column["attempt"].astype(np.int32), mask=own),
        "consumer": _named([f"worker-{n:02d}" for n in range(WORKERS)], worker, ~has_worker),
        "reason": pa.array(_REASONS, pa.string()).take(pa.array(column["reason"])),
        "duration_ms": pa.array(column["duration"], mask=is_l),
        "topics": lists.cast(EVENTS.field("topics").type),
        "object": _named([name.rstrip("s") for name in QUEUES], queue[message], ~is_l),
        "key": keys.take(pa.array(message, mask=~is_l)),
        "mime_type": _named(("application/json",), np.zeros(count, np.int64), ~is_l),
        "producer": _named(PRODUCERS, message % len(PRODUCERS), ~is_l),
        "hash": hashes.take(pa.array(message, mask=~is_l)),
        "size": pa.array(200 + message % 800, mask=~is_l),
        "same_as": ids.take(pa.array(np.maximum(message - 1, 0), mask=column["to"] != STATES["U"])),
        "from_code": pa.array(column["from"].astype(np.int32), mask=is_l),
        "to_code": pa.array(column["to"].astype(np.int32)),
        "destination_code": pa.array(
            np.where(in_channel, len(QUEUES) + 1, place + 1).astype(np.int32), mask=own
        ),
        "consumer_code": pa.array((worker + 10).astype(np.int32), mask=~has_worker),
    }
    assert len(logged) <= len(begins)
    return pa.table(
        [values[f.name].cast(f.type) if f.name in values else pa.nulls(count, f.type) for f in EVENTS],
        schema=EVENTS,
    )


def _named(names: tuple[str, ...] | list[str], number: np.ndarray, without: np.ndarray) -> pa.Array:
    return pa.array(list(names)).take(pa.array(number, mask=without))


def _ids(begins: np.ndarray, sequence: np.ndarray, draw: np.random.Generator) -> pa.Array:
    """Shaped as ours are: the moment, the sequence, some chance."""
    raw = np.empty((len(begins), 16), np.uint8)
    raw[:, :6] = (begins // 1_000).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    raw[:, 6:14] = sequence.astype(">u8").view(np.uint8).reshape(-1, 8)
    raw[:, 14:] = np.frombuffer(draw.bytes(2 * len(begins)), np.uint8).reshape(-1, 2)
    digits = np.frombuffer(_hex(raw.tobytes(), 32).buffers()[2], np.uint8)[: 32 * len(begins)].reshape(-1, 32)
    text = np.full((len(begins), 36), ord("-"), np.uint8)
    for to, start, end in ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32)):
        text[:, to : to + end - start] = digits[:, start:end]
    return _strings(text)


def _hex(raw: bytes, width: int) -> pa.Array:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    octets = np.frombuffer(raw, np.uint8)
    return _strings(np.stack([digits[octets >> 4], digits[octets & 15]], axis=1).reshape(-1, width))


def _strings(text: np.ndarray) -> pa.Array:
    count, width = text.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(text)))


def slices(table: pa.Table, size: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size)
