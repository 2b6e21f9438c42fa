"""Plain messages as columns: the rows of a kind's model, with what is each one's own in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...message import Envelope, id_maker
from .columns import NULL, Column, cell, cells, whole
from .group import slot_row
from .names import Db
from .plain import Kind, Plain
from .rows import DELIVERIES, EVENTS, MESSAGES, PAYLOADS, Written, delivery_row, event_row, message_row
from .statements import insert_columns, names_of, types_of

Encode = Callable[[Envelope], str]


def renumber(plain: Plain, written: Written) -> None:
    """Their numbers are final now."""
    for kind in plain:
        before = kind.ids
        if written.delta:
            kind.sequences = [sequence + written.delta for sequence in kind.sequences]
        if written.delta or written.at != kind.model.message.created_at:
            kind.ids = list(map(id_maker(written.at), kind.sequences, kind.salts))
            written.rename_all(before, kind.ids)


def insert_plain(db: Db, plain: Plain, encode: Encode, written: Written) -> None:
    kinds = list(plain)
    if not kinds:
        return
    tables = {table: _Table(table) for table in (MESSAGES, PAYLOADS, DELIVERIES, EVENTS)}
    for kind in kinds:
        _add(tables, kind, encode, written)
    for name, table in tables.items():
        insert_columns(db, name, table.columns())


class _Table:
    """Rows of one statement, column by column: how many, and their cells. None: nulls."""

    def __init__(self, table: str) -> None:
        self._names, self._types = names_of(table), types_of(table)
        self._parts: list[list[tuple[int, bytes | None]]] = [[] for _ in self._names]
        self._count = 0

    def add(self, times: int, model: Sequence[tuple[Any, ...]], own: Mapping[str, bytes]) -> None:
        """The model's rows so many times; `own`: the columns in which each has its own."""
        count = times * len(model)
        self._count += count
        for parts, name, kind, *values in zip(self._parts, self._names, self._types, *model, strict=True):
            if name in own:
                parts.append((count, own[name]))
            elif all(value is None for value in values):
                parts.append((count, None))
            else:
                parts.append((count, b"".join([cell(kind, value) for value in values]) * times))

    def columns(self) -> list[Column]:
        return [
            whole(kind, self._count, _joined(parts))
            for kind, parts in zip(self._types, self._parts, strict=True)
        ]


def _joined(parts: list[tuple[int, bytes | None]]) -> bytes | None:
    if len(parts) == 1:
        return parts[0][1]
    if all(cells is None for _, cells in parts):
        return None
    return b"".join([NULL * count if cells is None else cells for count, cells in parts])


def _add(tables: Mapping[str, _Table], kind: Kind, encode: Encode, written: Written) -> None:
    model, commands, times = kind.model, kind.commands, len(kind.commands)
    sequences = cells("bigint", kind.sequences)
    envelopes = [command.envelope for command in commands]
    texts = [encode(envelope) for envelope in envelopes]
    hashes, sizes = [command.hash for command in commands], [command.size for command in commands]
    keys = cells("text", [envelope.key for envelope in envelopes])
    tables[MESSAGES].add(
        times,
        [message_row(model.message, "", False, written)],
        {
            "sequence": sequences,
            "salt": cells("integer", kind.salts),
            "envelope": cells("text", texts),
            "object": cells("text", [envelope.object for envelope in envelopes]),
            "key": keys,
            "hash": cells("bytea", hashes),
            "size": cells("bigint", sizes),
        },
    )
    bodies = cells("bytea", [command.body for command in commands])
    tables[PAYLOADS].add(times, [(0, b"")], {"sequence": sequences, "body": bodies})
    for slot in model.slots:
        row = delivery_row(slot, slot_row(slot), written)
        tables[DELIVERIES].add(times, [row], {"sequence": sequences, "key": keys})
    after = kind.step - 1
    tables[EVENTS].add(
        times,
        [event_row(event, place, None, written) for event, place in model.events],
        {
            '"offset"': cells("bigint", [s + i for s in kind.sequences for i in range(kind.step)]),
            "message_id": cells("text", [id for id in kind.ids for _ in range(kind.step)]),
            "sequence": cells("bigint", [s for s in kind.sequences for _ in range(kind.step)]),
            "envelope": cells("text", texts, after),
            "hash": cells("bytea", hashes, after),
            "size": cells("bigint", sizes, after),
        },
    )
