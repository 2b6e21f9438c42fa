"""Plain messages as columns: what each says of itself goes to the server once, and every row of theirs is made from it there.

pack        before the last lock: all that does not hang on numbers
renumber    with it
insert      unnest(sequences, ids, hashes …) ─┬─▶ messages    what they have in common stands in the statement,
                                              ├─▶ deliveries  as the rows of the kind's model have it
                                              └─▶ events
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...message import Envelope, id_maker
from .columns import column, scalar
from .group import slot_row
from .plain import Kind, Plain
from .rows import DELIVERIES, EVENTS, MESSAGES, PAYLOADS, Written, delivery_row, event_row, message_row
from .statements import Together, insert_columns, parts_of

#: what each says of itself, by name and type
_OWN = {
    "sequence": "bigint",
    "id": "text",
    "salt": "integer",
    "envelope": "text",
    "object": "text",
    "key": "text",
    "hash": "bytea",
    "size": "bigint",
}
_SOURCE = (
    f"select * from unnest({', '.join(f'%b::{kind}[]' for kind in _OWN.values())}) as u ({', '.join(_OWN)})"
)
_LOGGED = {'"offset"': "sequence", "message_id": "id"} | {
    name: name for name in ("sequence", "envelope", "hash", "size")
}


def pack(plain: Plain, encode: Callable[[Envelope], str]) -> None:
    for kind in plain:
        commands = kind.commands
        envelopes = [command.envelope for command in commands]
        said: dict[str, list[Any]] = {
            "salt": kind.salts,
            "envelope": [encode(envelope) for envelope in envelopes],
            "object": [envelope.object for envelope in envelopes],
            "key": [envelope.key for envelope in envelopes],
            "hash": [command.hash for command in commands],
            "size": [command.size for command in commands],
        }
        kind.packed = {name: column(_OWN[name], values) for name, values in said.items()}
        kind.packed["body"] = column("bytea", [command.body for command in commands])


def renumber(plain: Plain, written: Written) -> None:
    """Their numbers are final now."""
    for kind in plain:
        before = kind.ids
        if written.delta:
            kind.sequences = [sequence + written.delta for sequence in kind.sequences]
        if written.delta or written.at != kind.model.message.created_at:
            kind.ids = list(map(id_maker(written.at), kind.sequences, kind.salts))
            written.rename_all(before, kind.ids)


def insert_plain(db: Together, plain: Plain, written: Written) -> None:
    for kind in plain:
        _insert(db, kind, written)


def _insert(db: Together, kind: Kind, written: Written) -> None:
    model = kind.model
    sequences = column("bigint", kind.sequences)
    packed = kind.packed | {"sequence": sequences, "id": column("text", kind.ids)}
    source = db.execute(_SOURCE, [packed[name] for name in _OWN])
    insert_columns(db, PAYLOADS, [sequences, packed["body"]])
    row = message_row(model.message, "", False, written)
    _insert_like(db, MESSAGES, row, source, {name: name for name in _OWN if name != "id"})
    for slot in model.slots:
        row = delivery_row(slot, slot_row(slot), written)
        _insert_like(db, DELIVERIES, row, source, {"sequence": "sequence", "key": "key"})
    for after, (event, place) in enumerate(model.events):
        row = event_row(event, place, None, written)
        own = {'"offset"': f"sequence + {after}", "message_id": "id", "sequence": "sequence"}
        _insert_like(db, EVENTS, row, source, own if after else _LOGGED)


def _insert_like(db: Together, table: str, row: tuple[Any, ...], source: str, own: Mapping[str, str]) -> None:
    """A row like this one for each of the source's, but for the columns that are each one's own."""
    name, names, types = parts_of(table)
    chosen = [own.get(column) or f"%b::{kind}" for column, kind in zip(names, types, strict=True)]
    db.execute(
        f"insert into {name} ({', '.join(names)}) select {', '.join(chosen)} from {source}",
        [
            scalar(kind, value)
            for column, kind, value in zip(names, types, row, strict=True)
            if column not in own
        ],
    )
