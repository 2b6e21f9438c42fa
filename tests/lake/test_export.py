"""What another process reads of a store's file is what the store itself says, column by column."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
from hypothesis import Phase, settings

from waypost.arrow import DELIVERIES, EVENTS, MESSAGES, PAYLOADS
from waypost.commands import ErasePayload, Publish, Staged
from waypost.delivery import LETTERS, Outcome
from waypost.errors import LogBroken, LogTrimmed, PayloadReaped, StoreUnusable
from waypost.instants import SECOND
from waypost.message import Entropy, Envelope, make_id, payload_hash
from waypost.store import DeliveryInfo, Event, MessageInfo
from waypost.stores.sqlite import SqliteStore
from waypost.stores.sqlite.export import Export
from waypost.testing.clock import MovableClock
from waypost.testing.hand import Hand, publish
from waypost.testing.model import QUICK, machine

#: made by an older release
VERSION_2 = Path(__file__).parent.parent / "integration" / "files" / "v2"


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


def check(path: Path, cuts: tuple[int, ...] = (1, 5), **options: Any) -> None:
    """The export of a file tells what its store tells, whole and cut in pieces."""
    told = Telling(path, **options)
    export = Export(path)
    try:
        assert export.head()[:2] == (told.oldest, told.head)
        whole = export.events(told.oldest, told.head)
        whole.validate(full=True)
        assert whole.schema == EVENTS
        names = list(told.events[0]) if told.events else []
        assert rows_of(whole, names) == told.events
        for step in cuts:
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
TestWhateverAWalkLeavesIsExported = machine(
    Walked, settings(QUICK, max_examples=15, phases=[Phase.generate])
).TestCase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store with spaces, ?, # and %41" / "waypost.db"


@contextmanager
def store_at(path: Path) -> Iterator[Hand]:
    """Closed before its file is read by another library."""
    clock = MovableClock()
    store = opened(path, clock=clock)
    try:
        yield Hand(store, clock)
    finally:
        store.close()


@contextmanager
def exporting(path: Path) -> Iterator[Export]:
    export = Export(path)
    try:
        yield export
    finally:
        export.close()


def test_an_empty_store_exports_empty_tables(path: Path) -> None:
    with store_at(path):
        pass
    check(path)
    with exporting(path) as export:
        assert export.head() == (1, 0, 0, export.head().at)
        assert export.events(1, 0).schema == EVENTS
        assert export.events(1, 0, ["offset", "key"]).num_rows == 0


def test_what_is_null_for_long_and_then_is_not_is_exported(path: Path) -> None:
    """Types are inferred from the first rows, which say nothing of these columns."""
    with store_at(path) as hand:
        hand.ask(*(publish("a.x") for _ in range(2_000)))
        for got in hand.fetch("a", n=1_000):
            hand.confirm(got)
        said = Envelope(
            topics=("a.x", "b.süß"),
            object="a",
            key="k",
            mime_type="text/plain",
            timestamp=-1,
            sent=2,
            producer="erp",
        )
        hand.do(Publish(envelope=said, body=b"", hash=payload_hash(b""), id="own-1", ttl_us=SECOND))
        hand.do(publish(object="a", key=""))
        hand.confirm(hand.one("a"), Outcome.INVALID, reason="")
        hand.confirm(hand.one("a", topic="b.*"), Outcome.RETRY, reason="later")
    check(path, cuts=(1_500,))


def test_numbers_and_names_stand_side_by_side(path: Path) -> None:
    with store_at(path) as hand:
        hand.channel("s", "a.*")
        hand.publish("a.x", producer="erp")
        hand.one("a", "ann")
    with exporting(path) as export:
        rows = export.events(1, 4).to_pylist()
        codes = [[row[name] for name in ("queue", "channel", "destination_code")] for row in rows]
        assert codes == [[None, None, None], ["a", None, 2], [None, "s", 1], ["a", None, 2]]
        assert [(row["consumer"], row["consumer_code"]) for row in rows] == [(None, None)] * 3 + [("ann", 2)]
        (batch,) = export.deliveries(1, 4, ["channel", "destination_code"])
        assert batch.to_pylist() == [
            {"channel": "s", "destination_code": 1},
            {"channel": None, "destination_code": 2},
        ]


def test_a_range_that_is_not_all_there_is_refused(path: Path) -> None:
    with store_at(path) as hand:
        hand.publish("a.x")
        hand.confirm(hand.one("a"))
    with exporting(path) as export, pytest.raises(LogBroken, match="ends at 5"):
        export.events(1, 6)
    db = apsw.Connection(str(path))
    db.execute("delete from steps")
    db.close()
    with exporting(path) as export:
        assert export.events(1, 3).num_rows == 3
        with pytest.raises(LogBroken, match="1 … 4"):
            export.events(1, 4)
    db = apsw.Connection(str(path))
    db.execute("delete from messages")
    db.close()
    with exporting(path) as export, pytest.raises(LogBroken, match="messages are missing"):
        export.events(3, 3)
    db = apsw.Connection(str(path))
    db.execute("update head set oldest = 3")
    db.close()
    with exporting(path) as export, pytest.raises(LogTrimmed):
        export.events(2, 3)


def test_payloads_are_exported_as_they_were_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waypost.stores.columns.BATCH_BYTES", 100)
    large = b"large" * 20_000
    bodies = [b"", b"1" * 60, b"2" * 60, large, b"damaged", b"damaged too" * 10_000, b"erased", b"3"]
    with store_at(path) as hand:
        for body in bodies:
            command = publish("a.x", body=body, meta=(("colour", "red"),), encoding="gzip", priority=9)
            if len(body) > hand.store.inline_bytes:
                command.body = hand.store.stage(body)
            id = hand.do(command).id
            if body == b"erased":
                hand.do(ErasePayload(id))
    db = apsw.Connection(str(path))
    db.execute("update messages set body = cast('d4maged' as blob) where body = cast('damaged' as blob)")
    (name,) = (db.execute("select body from messages where size = 110000").get,)
    db.close()
    (path.parent / "waypost.db.bodies" / str(name)).write_bytes(b"short")
    with exporting(path) as export:
        batches = list(export.payloads(1, export.head().head))
    assert [batch.num_rows for batch in batches] == [2, 1, 1, 1, 1, 2]
    table = joined(batches, PAYLOADS)
    expected = [None if body[:7] in (b"damaged", b"erased") else body for body in bodies]
    assert table["body"].to_pylist() == expected
    assert table["hash"].to_pylist() == [payload_hash(body).hex() for body in bodies]
    said = table.select(["meta", "encoding", "priority", "mime_type"]).to_pylist()
    assert said == [{"meta": '{"colour":"red"}', "encoding": "gzip", "priority": 9, "mime_type": None}] * 8


def test_a_file_that_is_not_there_is_not_made(path: Path) -> None:
    with pytest.raises(StoreUnusable, match="cannot read"):
        Export(path)
    assert not path.exists()


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    shutil.copytree(VERSION_2, tmp_path / "v2")
    with pytest.raises(StoreUnusable, match="schema version 2"):
        Export(tmp_path / "v2" / "waypost.db")


#: a broker's process: publishes, fetches and confirms in ever new queues, until its input ends
_BUSY = """
import sys, threading
from waypost.commands import Confirm, Fetch
from waypost.stores.sqlite import SqliteStore
from waypost.testing.hand import publish

store, ending, round = SqliteStore(sys.argv[1], ballast_bytes=4096, pregrown_bytes=0), threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), ending.set()), daemon=True).start()
while not ending.is_set():
    round += 1
    queue = f"q{round}"
    store.apply([publish(f"{queue}.x", f"q{round - 1}.x", body=b"x" * 500) for _ in range(20)])
    (fetched,) = store.apply([Fetch(queue=queue, n=10, consumer=f"w{round}")]).results
    store.apply([Confirm(queue=queue, receipts=[one.receipt for one in fetched])])
    if round == 3:
        print("busy", flush=True)
store.close()
"""


def test_beside_a_busy_writer_every_range_is_whole_and_nothing_is_held_up(path: Path) -> None:
    path.parent.mkdir()
    writer = subprocess.Popen(
        [sys.executable, "-c", _BUSY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "busy\n"
        with exporting(path) as export:
            pieces, upto = [EVENTS.empty_table()], 0
            while len(pieces) < 40:
                head = export.head().head
                pieces.append(export.events(upto + 1, head))
                upto = head
                live = joined(export.deliveries(max(1, head - 200), head), DELIVERIES)
                assert live["queue"].null_count == 0
            writer.communicate("")
            assert writer.returncode == 0
            # The export is still open and holds nothing: another start gets its checkpoint at once.
            code = "import sys; from waypost.stores.sqlite import SqliteStore, files; files.CHECKPOINT_SECONDS = 0; SqliteStore(sys.argv[1]).close()"
            subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    finally:
        writer.kill()
        writer.wait()
    told = Telling(path)
    rows = rows_of(pa.concat_tables(pieces), list(told.events[0]))
    assert upto > 0
    assert rows == told.events[:upto]
