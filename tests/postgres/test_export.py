"""What another process reads of the database is what the store itself says, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import Phase, settings

from tests.lake.test_export import delivery_row, event_row, joined, message_row, rows_of
from tests.lake.traffic import many, of_every_kind
from tests.postgres.fixtures import database, databases
from waypost.arrow import DELIVERIES, EVENTS, MESSAGES, PAYLOADS
from waypost.commands import ErasePayload, Publish
from waypost.delivery import Outcome
from waypost.errors import LogBroken, LogTrimmed, PayloadReaped, StoreUnusable
from waypost.instants import SECOND
from waypost.message import Entropy, Envelope, make_id, payload_hash
from waypost.store import MessageInfo, Task
from waypost.stores.exporting import open_export
from waypost.stores.postgres import PostgresStore
from waypost.stores.postgres.export import Export
from waypost.testing.clock import MovableClock
from waypost.testing.hand import Hand, publish
from waypost.testing.model import QUICK, machine

__all__ = ["database"]


@contextmanager
def exporting(url: str) -> Iterator[Export]:
    export = open_export(url)
    assert isinstance(export, Export)
    try:
        yield export
    finally:
        export.close()


@pytest.fixture
def hand(database: str) -> Iterator[Hand]:
    clock = MovableClock()
    store = PostgresStore(database, clock=clock)
    yield Hand(store, clock)
    store.close()


def url_of(hand: Hand) -> str:
    return store_of(hand).url


def store_of(hand: Hand) -> PostgresStore:
    assert isinstance(hand.store, PostgresStore)
    return hand.store


def messages_of(store: PostgresStore) -> list[MessageInfo]:
    """Also those whose events have left the log."""
    with psycopg.connect(store.url) as connection:
        rows = connection.execute(
            "select own_id, sequence, salt, at from messages order by sequence"
        ).fetchall()
    found = [store.message(own_id or make_id(sequence, salt, at)) for own_id, sequence, salt, at in rows]
    return [message for message in found if message is not None]


def payload_row(store: PostgresStore, message: MessageInfo) -> dict[str, Any]:
    try:
        body = store.body(message.id)
    except PayloadReaped:
        body = None
    said = message.envelope
    return {
        "sequence": message.sequence,
        "at": message.created_at,
        "message_id": message.id,
        "mime_type": said.mime_type,
        "encoding": said.encoding,
        "traceparent": said.traceparent,
        "priority": message.priority,
        "hash": message.hash.hex(),
        "size": message.size,
        "body": body,
    }


def check(store: PostgresStore, cuts: tuple[int, ...] = (1, 5)) -> None:
    """The export tells what the store tells, whole and cut in pieces."""
    oldest, head = store.bounds()
    events = [event_row(event) for event in store.events(oldest, head)]
    messages = messages_of(store)
    with exporting(store.url) as export:
        assert export.head()[:2] == (oldest, head)
        assert export.id == store.id()
        whole = export.events(oldest, head)
        whole.validate(full=True)
        assert whole.schema == EVENTS
        assert rows_of(whole, list(events[0]) if events else []) == events
        for step in cuts:
            pieces = [export.events(lo, min(lo + step - 1, head)) for lo in range(oldest, head + 1, step)]
            assert pa.concat_tables([whole.slice(0, 0), *pieces]).equals(whole)
        for name in EVENTS.names:
            assert export.events(oldest, head, [name]).equals(whole.select([name])), name
        told = joined(export.messages(1, head), MESSAGES)
        assert rows_of(told, MESSAGES.names) == [message_row(message) for message in messages]
        told = joined(export.deliveries(1, head), DELIVERIES)
        names = [name for name in DELIVERIES.names if name != "destination_code"]
        assert rows_of(told, names) == [delivery_row(one) for info in messages for one in info.deliveries]
        told = joined(export.payloads(1, head), PAYLOADS)
        names = [name for name in PAYLOADS.names if name != "meta"]
        assert rows_of(told, names) == [payload_row(store, message) for message in messages]
    codes = (
        whole.select(["consumer", "consumer_code"])
        .group_by("consumer_code")
        .aggregate([("consumer", "count_distinct")])
    )
    assert set(codes["consumer_count_distinct"].to_pylist()) <= {0, 1}
    assert whole["consumer_code"].null_count == whole["consumer"].null_count


class Walked:
    """The home of a walk, whose database is exported at its end."""

    def __init__(self) -> None:
        self._url = databases().new()
        self._store: PostgresStore | None = None

    def open(self, clock: MovableClock, entropy: Entropy) -> PostgresStore:
        self._store = PostgresStore(self._url, clock=clock, entropy=entropy)
        return self._store

    def crash(self) -> None:
        assert self._store is not None
        self._store.lane.close()
        self._store._reader.close()

    def remove(self) -> None:
        try:
            assert self._store is not None
            store = PostgresStore(self._url, clock=self._store.clock)
            check(store, cuts=(7,))
            store.close()
        finally:
            databases().give_back(self._url)


#: no shrinking: what a walk left tells more than the shortest one
TestWhateverAWalkLeavesIsExported = machine(
    Walked, settings(QUICK, max_examples=2, phases=[Phase.generate])
).TestCase


def test_an_empty_store_exports_empty_tables(hand: Hand) -> None:
    check(store_of(hand))
    with exporting(url_of(hand)) as export:
        assert export.events(1, 0).schema == EVENTS
        assert export.events(1, 0, ["offset", "key"]).num_rows == 0


def test_traffic_of_every_kind_is_exported_as_the_store_tells_it(hand: Hand) -> None:
    of_every_kind(hand.store)
    many(hand.store, 300, key_bytes=20)
    said = Envelope(
        topics=("a.x", "b.süß\u2028"),
        object="a",
        key='\x01 \\ " 🍏',
        mime_type="text/plain",
        timestamp=-1,
        sent=2,
        producer="2020-01-01",
        encoding="gzip",
        traceparent="00-a-b-01",
    )
    hand.do(Publish(envelope=said, body=b"", hash=payload_hash(b""), ttl_us=SECOND))
    hand.do(publish(object="a", key=""))
    hand.confirm(hand.one("a"), Outcome.INVALID, reason="")
    hand.clock.move(2)
    hand.tick()
    check(store_of(hand), cuts=(1, 400))


def test_numbers_and_names_stand_side_by_side_and_stay(hand: Hand) -> None:
    hand.channel("s", "a.*")
    hand.publish("a.x", producer="erp")
    hand.one("a", "ann")
    with exporting(url_of(hand)) as export:
        rows = export.events(1, 4).to_pylist()
        codes = [[row[name] for name in ("queue", "channel", "destination_code")] for row in rows]
        assert codes == [[None, None, None], ["a", None, 2], [None, "s", 1], ["a", None, 2]]
        assert [(row["consumer"], row["consumer_code"]) for row in rows] == [(None, None)] * 3 + [("ann", 1)]
        # Another broker, which knows nobody, and names that came after this export began.
        other = PostgresStore(url_of(hand))
        stranger = Hand(other, hand.clock)
        for name in ("zoe", "ann", "bob"):
            stranger.publish("b.x")
            stranger.one("b", name)
        other.close()
        hand.publish("b.x")
        hand.one("b", "zoe")
        fetched = [row for row in export.events(5, export.head().head).to_pylist() if row["to_state"] == "F"]
        assert [(row["consumer"], row["consumer_code"], row["queue"]) for row in fetched] == [
            ("zoe", 2, "b"),
            ("ann", 1, "b"),
            ("bob", 3, "b"),
            ("zoe", 2, "b"),
        ]


def test_a_range_that_is_not_all_there_is_refused(hand: Hand) -> None:
    hand.publish("a.x")
    hand.confirm(hand.one("a"))
    with exporting(url_of(hand)) as export:
        with pytest.raises(LogBroken, match="ends at 5"):
            export.events(1, 6)
        with psycopg.connect(url_of(hand)) as connection:
            connection.execute('delete from events where "offset" = 4')
        with pytest.raises(LogBroken, match="1 … 5"):
            export.events(1, 5)
        assert export.events(1, 3).num_rows == 3
        with psycopg.connect(url_of(hand)) as connection:
            connection.execute("update log_head set oldest = 3")
        with pytest.raises(LogTrimmed):
            export.events(2, 3)


def test_payloads_are_exported_as_they_were_published(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waypost.stores.columns.BATCH_BYTES", 100)
    bodies = [b"", b"1" * 60, b"2" * 60, b"large" * 20_000, b"damaged", b"erased", b"3"]
    for body in bodies:
        id = hand.do(publish("a.x", body=body, meta=(("colour", "red"),), priority=9)).id
        if body == b"erased":
            hand.do(ErasePayload(id))
    with psycopg.connect(url_of(hand)) as connection:
        connection.execute("update payloads set body = 'd4maged' where body = 'damaged'")
    with exporting(url_of(hand)) as export:
        portions = list(export.payloads(1, export.head().head))
    assert [batch.num_rows for batch in portions] == [2, 1, 1, 3]
    table = joined(portions, PAYLOADS)
    assert table["body"].to_pylist() == [None if body in (b"damaged", b"erased") else body for body in bodies]
    assert table["hash"].to_pylist() == [payload_hash(body).hex() for body in bodies]
    assert table["meta"].to_pylist() == ['{"colour":"red"}'] * len(bodies)


def test_a_connection_that_was_ended_is_made_anew(hand: Hand) -> None:
    hand.publish("a.x")
    with exporting(url_of(hand)) as export:
        assert export.events(1, 2).num_rows == 2
        with psycopg.connect(url_of(hand), autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'waypost export'"
                " and datname = current_database()"
            )
        assert export.events(1, 2).num_rows == 2


def test_a_database_that_cannot_be_read_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnusable) as refused:
        Export("postgresql://ann:s3cr3t@127.0.0.1:1/none")
    assert "cannot read postgresql://ann@127.0.0.1:1/none" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_task_is_a_brokers_only_while_its_lease_lasts(hand: Hand) -> None:
    with exporting(url_of(hand)) as export, psycopg.connect(url_of(hand), autocommit=True) as connection:
        assert not export.is_owner(Task.REAPING, "b1")
        connection.execute("insert into owned values ('reaping', 'b1', now() + interval '1 hour')")
        assert export.is_owner(Task.REAPING, "b1")
        assert not export.is_owner(Task.REAPING, "b2")
        assert not export.is_owner(Task.PUSH, "b1")
        connection.execute("update owned set until = now()")
        assert not export.is_owner(Task.REAPING, "b1")
