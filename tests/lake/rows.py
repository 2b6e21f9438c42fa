"""Events and payloads made up for tests: quick, dense, and different from each other."""

from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pyarrow as pa

from waypost.arrow import EVENTS, MOMENT, PAYLOADS

#: 2025-01-01, in microseconds
START = 1_735_689_600_000_000
#: an L stands at every offset of this remainder by 3; its Q and its F follow
STEPS = ("L", "Q", "F")


def moment(offset: int | np.ndarray) -> int | np.ndarray:
    """A millisecond and a bit an event, so that moments have microseconds."""
    return START + offset * 1_001


def body(sequence: int, size: int = 40) -> bytes:
    return (b"body of %d " % sequence * size)[:size]


def events(lo: int, hi: int) -> pa.Table:
    offsets = np.arange(lo, hi + 1)
    step = (offsets - 1) % 3
    sequences = offsets - step
    logged = pa.array(step == 0)
    ids = pa.array([f"0190e4b2-7c1a-7000-8000-{sequence:012x}" for sequence in sequences.tolist()])
    columns = {
        "offset": pa.array(offsets),
        "at": pa.array(moment(offsets), pa.int64()).cast(MOMENT),
        "message_id": ids,
        "sequence": pa.array(sequences),
        "queue": _where(step != 0, "orders"),
        "slot": _where(step != 0, 0, pa.int32()),
        "from_state": pa.array(np.array([None, "L", "Q"], dtype=object)[step]),
        "to_state": pa.array(np.array(STEPS, dtype=object)[step]),
        "attempt": _where(step == 2, 1, pa.int32()),
        "consumer": _where(step == 2, "worker-1"),
        "duration_ms": _where(step == 2, 1, pa.int64()),
        "topics": pa.array(
            [["orders.created"] if at_l else None for at_l in logged.to_pylist()], EVENTS.field("topics").type
        ),
        "object": _where(step == 0, "order"),
        "hash": pa.array(
            [
                sha256(body(n)).hexdigest() if at_l else None
                for n, at_l in zip(sequences.tolist(), logged.to_pylist(), strict=True)
            ]
        ),
        "size": _where(step == 0, 40, pa.int64()),
        "to_code": pa.array(step, pa.int32()),
    }
    return pa.table(
        {field.name: columns.get(field.name, pa.nulls(len(offsets))).cast(field.type) for field in EVENTS},
        schema=EVENTS,
    )


def payloads(lo: int, hi: int, batch_rows: int = 1_000, size: int = 40) -> Iterator[pa.RecordBatch]:
    first = lo + (1 - lo) % 3
    for start in range(first, hi + 1, 3 * batch_rows):
        sequences = np.arange(start, min(start + 3 * batch_rows, hi + 1), 3)
        bodies = [body(sequence, size) for sequence in sequences.tolist()]
        columns = {
            "sequence": pa.array(sequences),
            "at": pa.array(moment(sequences), pa.int64()).cast(MOMENT),
            "message_id": pa.array([f"0190e4b2-7c1a-7000-8000-{n:012x}" for n in sequences.tolist()]),
            "priority": pa.array(np.full(len(sequences), 5), pa.int32()),
            "hash": pa.array([sha256(one).hexdigest() for one in bodies]),
            "size": pa.array([len(one) for one in bodies], pa.int64()),
            "body": pa.array(bodies, pa.binary()),
        }
        yield pa.RecordBatch.from_arrays(
            [columns.get(field.name, pa.nulls(len(sequences))).cast(field.type) for field in PAYLOADS],
            schema=PAYLOADS,
        )


class Source:
    """Where a sealer reads: a log of made-up events from `oldest` to its head."""

    def __init__(self, head: int, oldest: int = 1, body_bytes: int = 40) -> None:
        self.oldest, self._head, self._body_bytes = oldest, head, body_bytes
        #: of bodies that are no more
        self.erased: set[int] = set()
        self.batch_rows = 1_000

    def head(self) -> tuple[int, int, int | None, int]:
        return self.oldest, self._head, None, int(moment(self._head))

    def grow(self, by: int) -> None:
        self._head += by

    def events(self, lo: int, hi: int) -> pa.Table:
        return events(lo, hi)

    def payloads(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        for batch in payloads(lo, hi, self.batch_rows, self._body_bytes):
            yield without_bodies(batch, self.erased) if self.erased else batch


def without_bodies(batch: pa.RecordBatch, sequences: set[int]) -> pa.RecordBatch:
    bodies = [
        None if sequence in sequences else one
        for sequence, one in zip(batch["sequence"].to_pylist(), batch["body"].to_pylist(), strict=True)
    ]
    return batch.set_column(
        PAYLOADS.get_field_index("body"), PAYLOADS.field("body"), pa.array(bodies, pa.binary())
    )


def _where(condition: np.ndarray, value: object, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array([value if true else None for true in condition.tolist()], kind or pa.string())
