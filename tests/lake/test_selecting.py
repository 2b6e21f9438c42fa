"""Messages of a lake that a filter selects: the same that the store finds, and what it takes to publish them again."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.lake.test_store_to_lake import Walked, exporting, seal, store_at
from tests.lake.traffic import many, of_every_kind, opened
from waypost.commands import ErasePayload
from waypost.delivery import C, E, I, L, Q, S, State, U, X
from waypost.errors import LakeUnusable, RequestInvalid
from waypost.filters import Filter, in_bounds, selects_message
from waypost.lake import sealing, selecting
from waypost.lake.owner import Lake, claim
from waypost.lake.selecting import Selection
from waypost.message import payload_hash
from waypost.store import MessageInfo, Store
from waypost.testing.clock import MovableClock
from waypost.testing.hand import listing
from waypost.testing.model import QUICK, machine


def selected(lake: Lake, after: int = 0, own: str | None = None, **filter: Any) -> list[dict[str, Any]]:
    found = Selection(lake, Filter(**filter), after, own)
    return [
        row for _, window in found.windows() for chunk in found.chunks(window) for row in chunk.to_pylist()
    ]


def expected(store: Store, filter: Filter) -> list[MessageInfo]:
    """What a store says of the same filter; of messages that have no delivery, their own state counts."""
    found = {delivery.message_id for delivery in listing(store, filter)}
    oldest, head = store.bounds()
    messages = []
    for event in store.events(oldest, head):
        message = store.message(event.message_id) if event.envelope is not None else None
        if message is None:
            continue
        alone = not message.deliveries and filter.queue is None and filter.channel is None
        wanted = frozenset(State) - {U} if filter.states is None else filter.states
        if message.id in found or (alone and is_meant(filter, message) and message.state in wanted):
            messages.append(message)
    return messages


def is_meant(filter: Filter, message: MessageInfo) -> bool:
    same = filter.id is None or filter.id == message.id
    return same and selects_message(filter, message.envelope) and in_bounds(filter, message.created_at)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """A store with messages of every kind, one in L, one that went nowhere, one erased; and its lake, in several files."""
    folder = tmp_path_factory.mktemp("played")
    lake = Lake(folder / "lake")
    claim(lake, "a store", sealed=None)
    clock = MovableClock()
    for part in range(3):
        with store_at(folder / "waypost.db", clock) as hand:
            of_every_kind(hand.store)
            hand.declare("nothing", complete=0)
            hand.publish("nothing.x", body=b"log only")
            hand.publish(queue="named", body=b"to a queue of its own", meta=(("a", "b"),), priority=2)
            hand.publish("held.x", body=b"in L", hold=True, encoding="gzip", traceparent="00-1-2-03")
            hand.do(ErasePayload(hand.publish("erased.x", body=b"gone %d" % part).id))
            many(hand.store, 20)
            if part == 1:
                hand.redrive(states=frozenset({S, E, I}), queue="fruit")
            clock.move(60)
        seal(folder / "waypost.db", lake, 50)
    return folder / "waypost.db", lake


FILTERS: list[dict[str, Any]] = [
    {},
    {"object": "customer"},
    {"object": "customer", "key": "k1", "states": frozenset({U})},
    {"key": "ключ-1"},
    {"topic": "fruit.*"},
    {"topic": "veg.carrot"},
    {"queue": "fruit"},
    {"queue": "veg", "states": frozenset({Q})},
    {"channel": "crm"},
    {"channel": "crm", "states": frozenset({S})},
    {"states": frozenset({E, I})},
    {"states": frozenset({S})},
    {"states": frozenset({C})},
    {"states": frozenset({L, X})},
    {"id": "own-1"},
    {"object": "nobody"},
    {"queue": "named"},
]


@pytest.mark.parametrize("window", [60, 1 << 19])
@pytest.mark.parametrize("filter", FILTERS, ids=str)
def test_it_is_what_the_store_finds(
    played: tuple[Path, Lake], filter: dict[str, Any], window: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(selecting, "WINDOW", window)
    path, lake = played
    found = selected(lake, **filter)
    with closing(opened(path)) as store:
        wanted = expected(store, Filter(**filter))
        assert [row["message_id"] for row in found] == [message.id for message in wanted]
        assert [row["sequence"] for row in found] == [message.sequence for message in wanted]
        assert [row["state"] for row in found] == [message.state.name for message in wanted]
        for row, message in zip(found, wanted, strict=True):
            envelope = message.envelope
            assert tuple(row["topics"] or ()) == envelope.topics
            assert (row["object"], row["key"], row["producer"]) == (
                envelope.object,
                envelope.key,
                envelope.producer,
            )
            if row["body"] is not None:
                assert payload_hash(row["body"]) == message.hash
    assert bool(found) is (filter.get("object") != "nobody")


def test_moments_bound_when_it_was_logged(played: tuple[Path, Lake]) -> None:
    path, lake = played
    with closing(opened(path)) as store:
        moments = sorted({message.created_at for message in expected(store, Filter())})
        for since, until in [
            (moments[0], moments[1]),
            (moments[1], None),
            (None, moments[1]),
            (moments[2], moments[2] + 1),
        ]:
            bounds: dict[str, Any] = {"since_at": since, "until_at": until}
            wanted = expected(store, Filter(**bounds))
            assert [row["message_id"] for row in selected(lake, **bounds)] == [one.id for one in wanted]
            assert wanted
    assert selected(lake, since_at=moments[-1] + 1) == []


def test_it_begins_beyond_an_offset_and_passes_by_what_it_has_published_itself(
    played: tuple[Path, Lake],
) -> None:
    everything = selected(played[1])
    assert selected(played[1], after=everything[9]["sequence"]) == everything[10:]
    kept = [row for row in everything if not row["message_id"].startswith("own-")]
    assert len(everything) > len(kept)
    assert selected(played[1], own="own-") == kept


def test_all_that_was_said_of_it_comes_along(played: tuple[Path, Lake]) -> None:
    named = selected(played[1], queue="named")[0]
    assert (named["queue"], named["object"], named["priority"]) == ("named", None, 2)
    assert named["meta"] == '{"a":"b"}'
    held = selected(played[1], object="held")[0]
    assert (held["state"], held["queue"], held["encoding"]) == ("L", None, "gzip")
    assert [row["body"] for row in selected(played[1], object="erased")] == [None, None, None]
    both = selected(played[1], id="own-0")[0]
    assert both["queue"] == "fruit"


def test_chunks_are_bounded_by_count_and_by_bytes(played: tuple[Path, Lake], monkeypatch: Any) -> None:
    everything = selected(played[1])
    for name, most in (("CHUNK", 3), ("CHUNK_BYTES", 10)):
        monkeypatch.setattr(selecting, name, most)
        found = Selection(played[1], Filter())
        chunks = [chunk for _, window in found.windows() for chunk in found.chunks(window)]
        assert [row for chunk in chunks for row in chunk.to_pylist()] == everything
        assert all(chunk.num_rows <= 3 for chunk in chunks)
        assert len(chunks) > len(everything) // 4


def test_what_it_does_not_know_it_says(played: tuple[Path, Lake], tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match="not searched by consumer"):
        Selection(played[1], Filter(consumer="ann"))
    with pytest.raises(LakeUnusable, match="is no Delta table"):
        Selection(Lake(tmp_path), Filter())


MORE: list[dict[str, Any]] = [{}, {"queue": "a"}, {"channel": "a"}, {"object": "b"}]


class Asked(Walked):
    """The home of a walk; at its end its lake is asked what its store is asked."""

    def remove(self) -> None:
        lake = Lake(self.root / "lake")
        claim(lake, "a store", sealed=None)
        with exporting(self.path) as export:
            oldest, head, *_ = export.head()
            sealing.seal_upto(export, lake, range_events=max(1, head // 3))
        if oldest == 1 and head:
            with closing(opened(self.path)) as store:
                for states in (None, *(frozenset({state}) for state in State)):
                    for more in MORE:
                        filter = Filter(states=states, **more)
                        found = [
                            (row["message_id"], row["state"]) for row in selected(lake, states=states, **more)
                        ]
                        assert found == [(one.id, one.state.name) for one in expected(store, filter)]
        shutil.rmtree(self.root)


TestWhateverAWalkLeavesIsSelected = machine(
    Asked, settings(QUICK, max_examples=4, phases=[Phase.generate])
).TestCase
