"""Traffic that nobody thought up: Hypothesis' walks through a store, their logs laid end to end as one.

Each walk is a store of its own. To be folded together its offsets, sequences, moments and numbers of queues and
consumers are moved behind those of the walk before it; what the store says of its messages and deliveries is moved alike.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from waypost.arrow import DELIVERIES, EVENTS, MESSAGES
from waypost.commands import JobKind, Release, Remove
from waypost.delivery import C, Outcome
from waypost.destinations import Kind
from waypost.instants import SECOND
from waypost.message import Entropy
from waypost.stores.sqlite import SqliteStore
from waypost.stores.sqlite.export import Export
from waypost.testing.clock import MovableClock, seeded_entropy
from waypost.testing.hand import Hand
from waypost.testing.model import QUICK, Walk


@dataclass
class Traffic:
    events: pa.Table = field(default_factory=EVENTS.empty_table)
    #: what the stores say in the end
    messages: pa.Table = field(default_factory=MESSAGES.empty_table)
    deliveries: pa.Table = field(default_factory=DELIVERIES.empty_table)
    walks: int = 0

    def add(self, path: Path) -> None:
        export = Export(path)
        try:
            head = export.head().head
            if head:
                base, span = self.events.num_rows, timedelta(days=30 * self.walks)
                self.events = _behind(self.events, export.events(1, head), base, span, self.walks)
                messages = pa.Table.from_batches(export.messages(1, head), MESSAGES)
                self.messages = _behind(self.messages, messages, base, span, self.walks)
                deliveries = pa.Table.from_batches(export.deliveries(1, head), DELIVERIES)
                self.deliveries = _behind(self.deliveries, deliveries, base, span, self.walks)
                self.walks += 1
        finally:
            export.close()


def _behind(before: pa.Table, table: pa.Table, base: int, span: timedelta, walk: int) -> pa.Table:
    moves = {
        "offset": base,
        "sequence": base,
        "at": span,
        "changed_at": span,
        "destination_code": 1_000 * walk,
        "consumer_code": 1_000 * walk,
    }
    for number, column in enumerate(table.schema):
        if column.name in moves:
            by = pa.scalar(moves[column.name])
            moved = pc.add(
                table[column.name], by if isinstance(moves[column.name], timedelta) else by.cast(column.type)
            )
            table = table.set_column(number, column, moved.cast(column.type))
    return pa.concat_tables([before, table])


class _Unwatched(Walk):
    """The walk's steps without the comparing, which its own test does; and without reaping: the log goes back to its beginning,
    and every message is there in the end."""

    reap = seal_everything_and_reap = None  # type: ignore[assignment]

    def compare(self) -> None:
        head = self.model.bounds()[1]
        for event in self.model.events(self.seen + 1, head):
            if event.message_id not in self.ids:
                self.ids.append(event.message_id)
        self.seen = head

    def compare_everything(self) -> None:
        self.compare()


class _Home:
    def __init__(self) -> None:
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="waypost-walks-", dir=quick))
        self.lives = 1

    @property
    def path(self) -> Path:
        return self.root / str(self.lives) / "waypost.db"

    def open(self, clock: MovableClock, entropy: Entropy) -> SqliteStore:
        return SqliteStore(self.path, clock=clock, entropy=entropy, ballast_bytes=4096, pregrown_bytes=0)

    def crash(self) -> None:
        before = self.path.parent
        self.lives += 1
        shutil.copytree(before, self.path.parent)

    def remove(self) -> None:
        shutil.rmtree(self.root)


@cache
def walked(walks: int = 15, steps: int = 50) -> Traffic:
    """The same every time, and made once; first what walks meet too seldom."""
    traffic = Traffic()
    home = _Home()
    clock = MovableClock()
    store = home.open(clock, seeded_entropy())
    try:
        rarities(Hand(store, clock))
    finally:
        store.close()
    traffic.add(home.path)
    home.remove()

    class Home(_Home):
        def remove(self) -> None:
            traffic.add(self.path)
            super().remove()

    machine = type("Walked", (_Unwatched,), {"home": staticmethod(Home)})
    profile = settings(QUICK, max_examples=walks, stateful_step_count=steps, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=profile)
    return traffic


def rarities(hand: Hand) -> None:
    """Every state and every way into it: so that what a test shows does not hang on what the walks happen to do.

    Among it routing that fails and is tried again, to other places and to the same; backfill; a confirm after its
    lease, also in vain; releases; several slots; nothing but a channel; a dead letter of a channel; nothing at all."""
    hand.declare("a", complete=2, retries=1, dead="graveyard")
    hand.declare("none", complete=0)
    hand.declare("single", retries=1)
    for decision in ({"failure": "Traceback:\n  it broke"}, {}):
        held = hand.publish("a.x", hold=True)
        hand.wait(0.25)
        hand.decide(held.id, failure="Traceback:\n  it broke")
        hand.wait(90)
        hand.redrive(id=held.id)
        hand.decide(held.id, **decision)
    again = hand.publish("default.x", hold=True)
    hand.decide(again.id, failure="it broke")
    hand.redrive(id=again.id)
    hand.wait(1)
    hand.decide(again.id)
    held = hand.publish("none.x", hold=True)
    hand.decide(held.id, failure="it broke")
    hand.redrive(id=held.id)
    hand.publish("none.y")
    hand.channel("late", "*", start=1, retries=1, dead="graveyard")
    hand.work()
    for _ in range(4):
        hand.publish("b.x")
    (out,) = hand.listen("late", "ann", lease_us=SECOND)
    hand.wait(61)
    hand.confirm(out, queue="late", kind=Kind.CHANNEL)
    for outcome in (Outcome.NOT_INTERESTED, Outcome.INVALID):
        (out,) = hand.listen("late", "ann")
        hand.confirm(out, outcome, queue="late", kind=Kind.CHANNEL)
    for consumer in ("ann", "bob"):
        (out,) = hand.listen("late", consumer)
        hand.confirm(out, Outcome.RETRY, queue="late", kind=Kind.CHANNEL, delay_us=0, reason="no")
    published = hand.publish("single.z", key="k", object="single")
    out = hand.one("single", "ann", lease_us=SECOND)
    hand.wait(2)
    hand.confirm(out, Outcome.RETRY, queue="single", delay_us=0, reason="later")
    out = hand.one("single", "bob", lease_us=SECOND)
    hand.do(Release([out.receipt]))
    out = hand.one("single", "bob", lease_us=SECOND)
    hand.wait(2)
    hand.confirm(out, Outcome.RETRY, queue="single", delay_us=0)
    hand.redrive(id=published.id)
    out = hand.one("single", "cem")
    hand.wait(1.5)
    hand.confirm(out, queue="single", reason="at last")
    hand.job(JobKind.REPLAY, id=published.id)
    for consumer in ("ann", "bob"):
        hand.confirm(hand.one("single", consumer), Outcome.NOT_INTERESTED, queue="single")
    hand.declare("kicking", kick=True)
    hand.declare("newest", latest_only=True)
    hand.declare("brief", ttl_us=SECOND)
    hand.unchanged("c")
    hand.declare("triple", complete=3)
    for queue in ("kicking", "kicking", "newest", "newest", "brief", "triple"):
        hand.publish(f"{queue}.x", object=queue, key="k")
    kicked = hand.one("kicking", "ann")
    hand.job(JobKind.REPLAY, id=kicked.id)
    hand.one("kicking", "ann")
    hand.wait(2)
    for _ in range(2):
        hand.publish("c.x", object="c", key="k")
    hand.do(Remove("c", hand.one("c", "ann").id))
    late = hand.one("b", "bob", lease_us=SECOND)
    hand.wait(2)
    hand.confirm(late, queue="b")
    cancelled = hand.publish("b.x")
    hand.job(JobKind.CANCEL, id=cancelled.id)
    hand.redrive(id=cancelled.id, states=frozenset({C}))
    hand.job(JobKind.CANCEL, id=cancelled.id)
    hand.confirm(hand.one("triple", "ann"), queue="triple")
    hand.one("triple", "bob")
    hand.confirm(hand.one("b", "cem"), Outcome.RETRY, queue="b", delay_us=60 * SECOND)
    for _ in range(2):
        hand.publish("c.y")
    hand.confirm(hand.one("c", "bob"), Outcome.INVALID, queue="c", reason="no such thing")
