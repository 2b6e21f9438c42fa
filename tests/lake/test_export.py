"""What another process reads of a store's file is what the store itself says, column by column."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
from hypothesis import Phase, settings

from waypost.arrow import DELIVERIES, EVENTS, MESSAGES, PAYLOADS
from waypost.commands import Staged
from waypost.delivery import LETTERS
from waypost.errors import PayloadReaped
from waypost.message import Entropy, make_id
from waypost.store import DeliveryInfo, Event, MessageInfo
from waypost.stores.sqlite import SqliteStore
from waypost.stores.sqlite.export import Export
from waypost.testing.clock import MovableClock
from waypost.testing.model import QUICK, machine


def opened(path: Path, **options: Any) -> SqliteStore:
    return SqliteStore(path, ballast_bytes=4096, pregrown_bytes=0, **options)


def event_row(event: Event) -> dict[str, Any]:
    """As EVENTS has it, without what only the file knows: the numbers of destinations and consumers."""
    envelope = event.envelope
    return {
        "offset": event.offset,
        "at": event.at,
        "message_id": event.message_id,
        "sequence": event.sequence,
        "queue": event.queue,
        "channel": event.channel,
        "slot": event.slot,
        "from_state": None if event.from_state is None else LETTERS[event.from_state],
        "to_state": LETTERS[event.to_state],
        "attempt": event.attempt,
        "consumer": event.consumer,
        "reason": event.reason,
        "duration_ms": event.duration_ms,
        "topics": None if envelope is None else list(envelope.topics),
        "object": None if envelope is None else envelope.object,
        "key": None if envelope is None else envelope.key,
        "mime_type": None if envelope is None else envelope.mime_type,
        "producer": None if envelope is None else envelope.producer,
        "hash": None if event.hash is None else event.hash.hex(),
        "size": event.size,
        "timestamp": None if envelope is None else envelope.timestamp,
        "sent": None if envelope is None else envelope.sent,
        "same_as": event.same_as,
        "from_code": None if event.from_state is None else int(event.from_state),
        "to_code": int(event.to_state),
    }


def message_row(message: MessageInfo) -> dict[str, Any]:
    envelope = message.envelope
    return {
        "sequence": message.sequence,
        "message_id": message.id,
        "state": LETTERS[message.state],
        "at": message.created_at,
        "topics": list(envelope.topics),
        "object": envelope.object,
        "key": envelope.key,
        "mime_type": envelope.mime_type,
        "producer": envelope.producer,
        "hash": message.hash.hex(),
        "size": message.size,
        "timestamp": envelope.timestamp,
        "sent": envelope.sent,
        "same_as": message.same_as,
        "priority": message.priority,
        "expires_at": message.expires_at,
    }


def delivery_row(delivery: DeliveryInfo) -> dict[str, Any]:
    return {
        "sequence": delivery.sequence,
        "message_id": delivery.message_id,
        "queue": delivery.queue,
        "channel": delivery.channel,
        "slot": delivery.slot,
        "state": LETTERS[delivery.state],
        "attempt": delivery.attempt,
        "consumer": delivery.consumer,
        "reason": delivery.reason,
        "at": delivery.created_at,
        "changed_at": delivery.changed_at,
        "due_at": delivery.due_at,
        "named": delivery.named,
    }


def payload_row(store: SqliteStore, message: MessageInfo) -> dict[str, Any]:
    try:
        body: bytes | Staged | None = store.body(message.id)
    except PayloadReaped:
        body = None
    return {
        "sequence": message.sequence,
        "message_id": message.id,
        "size": message.size,
        "hash": message.hash.hex(),
        "body": store.unstage(body) if isinstance(body, Staged) else body,
    }


def rows_of(table: pa.Table, names: list[str]) -> list[dict[str, Any]]:
    """Instants as whole microseconds."""
    table = table.select(names)
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def joined(batches: Any, schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    return table


def ids_in(path: Path) -> list[str]:
    """Also of those messages whose events have left the log."""
    db = apsw.Connection(str(path))
    rows = db.execute("select own_id, sequence, salt, at from messages order by sequence").fetchall()
    db.close()
    return [str(own_id or make_id(sequence, salt, at)) for own_id, sequence, salt, at in rows]  # type: ignore[arg-type]


class Telling:
    """What a store says of itself; the store is closed before its file is read by another library."""

    def __init__(self, path: Path, **options: Any) -> None:
        store = opened(path, **options)
        try:
            self.oldest, self.head = store.bounds()
            self.events = [event_row(event) for event in store.events(self.oldest, self.head)]
            messages = [store.message(id) for id in ids_in(path)]
            self.messages = [message_row(message) for message in messages if message is not None]
            self.deliveries = [
                delivery_row(delivery)
                for message in messages
                if message is not None
                for delivery in message.deliveries
            ]
            self.payloads = [payload_row(store, message) for message in messages if message is not None]
        finally:
            store.close()


def check(path: Path, **options: Any) -> None:
    """The export of a file tells what its store tells, however it is cut."""
    told = Telling(path, **options)
    export = Export(path)
    try:
        assert export.head()[:2] == (told.oldest, told.head)
        whole = export.events(told.oldest, told.head)
        whole.validate(full=True)
        assert whole.schema == EVENTS
        names = list(told.events[0]) if told.events else []
        assert rows_of(whole, names) == told.events
        for step in (1, 2, 7):
            pieces = [
                export.events(lo, min(lo + step - 1, told.head))
                for lo in range(told.oldest, told.head + 1, step)
            ]
            assert pa.concat_tables([whole.slice(0, 0), *pieces]).equals(whole)
        for name in EVENTS.names:
            assert export.events(told.oldest, told.head, [name]).equals(whole.select([name])), name
        messages = joined(export.messages(1, told.head), MESSAGES)
        assert rows_of(messages, MESSAGES.names) == told.messages
        deliveries = joined(export.deliveries(1, told.head), DELIVERIES)
        names = [name for name in DELIVERIES.names if name != "destination_code"]
        assert rows_of(deliveries, names) == told.deliveries
        payloads = joined(export.payloads(1, told.head), PAYLOADS)
        assert rows_of(payloads, ["sequence", "message_id", "size", "hash", "body"]) == told.payloads
    finally:
        export.close()


class Walked:
    """The home of a walk, whose file is exported at its end."""

    def __init__(self) -> None:
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="waypost-export-", dir=quick))
        self.lives = 1

    @property
    def path(self) -> Path:
        return self.root / str(self.lives) / "waypost.db"

    def open(self, clock: MovableClock, entropy: Entropy) -> SqliteStore:
        self.clock = clock
        return opened(self.path, clock=clock, entropy=entropy)

    def crash(self) -> None:
        before = self.path.parent
        self.lives += 1
        shutil.copytree(before, self.path.parent)

    def remove(self) -> None:
        try:
            check(self.path, clock=self.clock)
        finally:
            shutil.rmtree(self.root)


#: no shrinking: what a walk left tells more than the shortest one
TestWhateverAWalkLeavesIsExported = machine(Walked, settings(QUICK, phases=[Phase.generate])).TestCase
