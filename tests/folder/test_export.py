"""The log of a folder as Arrow: what the lake and Spark read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.folder.conftest import Open
from waypost.arrow import EVENTS, PAYLOADS
from waypost.commands import Seal
from waypost.delivery import LETTERS, Outcome
from waypost.errors import LogBroken, LogTrimmed
from waypost.lake.owner import Lake, claim
from waypost.lake.sealing import prepare, seal_upto
from waypost.lake.verifying import Verification
from waypost.stores.exporting import open_export
from waypost.stores.folder.export import Export
from waypost.testing.hand import Hand

DAY = 86_400.0


def busy(hand: Hand) -> None:
    """Some of everything."""
    hand.declare("a", retries=1)
    for n in range(6):
        hand.publish("a.x", key=f"k{n}", meta=(("n", str(n)),), body=str(n).encode())
    hand.confirm(hand.one("a", "ann"))
    hand.confirm(hand.one("a", "bob"), Outcome.INVALID, reason="no")
    hand.confirm(hand.one("a", "ann"), Outcome.NOT_INTERESTED)
    hand.one("a", "cem")
    hand.wait(11)
    hand.declare("k", kick=True)
    hand.publish("k.x")
    hand.one("k")
    hand.redrive()


def test_the_export_has_every_event_as_the_store_has_it(hand: Hand, root: Path) -> None:
    busy(hand)
    export = open_export(str(root / "log"))
    assert isinstance(export, Export)
    oldest, head = hand.store.bounds()
    assert export.head()[:3] == (1, head, 0)
    table = export.events(1, head)
    assert table.schema == EVENTS
    consumers: dict[str, int] = {}
    for row, event in zip(table.to_pylist(), hand.store.events(oldest, head), strict=True):
        expected: dict[str, Any] = {
            "offset": event.offset,
            "message_id": event.message_id,
            "sequence": event.sequence,
            "queue": event.queue,
            "from_state": None if event.from_state is None else LETTERS[event.from_state],
            "to_state": LETTERS[event.to_state],
            "attempt": event.attempt,
            "consumer": event.consumer,
            "reason": event.reason,
            "duration_ms": event.duration_ms,
            "size": event.size,
            "hash": None if event.hash is None else event.hash.hex(),
            "key": None if event.envelope is None else event.envelope.key,
        }
        assert {name: row[name] for name in expected} == expected
        if event.consumer is not None:
            assert consumers.setdefault(event.consumer, row["consumer_code"]) == row["consumer_code"]
        assert (row["destination_code"] is None) is (event.queue is None)
    assert len(set(consumers.values())) == len(consumers) > 2
    assert export.events(2, 4, ["offset", "to_state"]).to_pydict() == {
        "offset": [2, 3, 4],
        "to_state": ["Q", "L", "Q"],
    }
    export.close()


def test_the_export_follows_and_says_what_is_not_there(hand: Hand, root: Path) -> None:
    hand.publish("a.x")
    export = Export(root / "log")
    assert export.id == hand.store.id()
    assert export.head().head == 2
    with pytest.raises(LogBroken):
        export.events(1, 3)
    hand.publish("a.x")
    assert export.events(3, 4).num_rows == 2
    hand.do(Seal(2))
    assert export.head().sealed == 2
    for got in hand.fetch("a", n=9):
        hand.confirm(got)
    hand.clock.move(8 * DAY)
    hand.publish("b.x")
    hand.reap()
    oldest, head = hand.store.bounds()
    assert export.head()[:2] == (oldest, head)
    with pytest.raises(LogTrimmed):
        export.events(oldest - 1, oldest)
    assert export.events(oldest, head).num_rows == head - oldest + 1
    export.close()
    late = Export(root / "log")
    assert late.events(oldest, head).num_rows == head - oldest + 1
    late.close()


def test_a_log_is_sealed_into_a_lake_in_which_nothing_is_wrong(
    hand: Hand, root: Path, open_hand: Open
) -> None:
    busy(hand)
    export = Export(root / "log")
    lake = Lake(root / "lake")
    claim(lake, hand.store.id(), 0)
    prepare(lake)
    sealed = seal_upto(export, lake)
    head = hand.store.bounds()[1]
    assert (sealed.upto, sealed.events) == (head, head)
    verification = Verification(lake, export)
    assert list(verification.findings()) == []
    assert verification.figures.compared == head
    assert verification.figures.payloads == verification.figures.without_body == 7
    (batch,) = export.payloads(1, head)
    assert batch.schema == PAYLOADS
    assert batch["meta"].to_pylist()[0] == '{"n":"0"}'
    export.close()
