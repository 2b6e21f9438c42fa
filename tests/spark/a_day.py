"""Two days in the life of a broker, played in seconds: a real store, a clock that is moved, the same every time.

    erp      ── customer, all of them at 02:00, of which few have changed ─▶ customers ──▶ crm, broken 10:00–11:30
    shop     ── orders, most at noon ──▶ orders ──▶ billing, which stands still 14:20–14:50
    depot    ── shipments ─────────────▶ shipments ──▶ warehouse
    finance  ── invoices at 06:00 ─────▶ invoices ──▶ letters, slow, sometimes refused
                orders.*, customers.* ─▶ channel analytics

The first day is a quiet one, for comparison. What died by 10:40 is redriven at 12:15.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import pi, sin
from pathlib import Path

from waypost.commands import Confirm, Fetch, Publish
from waypost.delivery import Outcome, State
from waypost.destinations import Kind
from waypost.instants import SECOND
from waypost.stores.sqlite.store import SqliteStore
from waypost.testing import Hand, MovableClock, seeded_entropy
from waypost.testing.hand import publish

#: what the broken consumer says; names and reasons are texts of others
BUG = "KeyError: 'canton'"
#: of whom one could wish that a page shows it as it is
HOSTILE = "<script>document.title='owned'</script>"

#: when the day of most tests begins
MIDNIGHT = datetime(2026, 11, 15, tzinfo=UTC)

Moment = float  # seconds since the first midnight
DAY = 86_400.0
HOUR = 3_600.0


@dataclass
class Worker:
    consumer: str
    place: str
    #: seconds that one message takes, in the middle
    seconds: float
    hands: int = 1
    kind: Kind = Kind.QUEUE
    #: what it says instead of success, and how often, at a moment
    fails: Callable[[Moment], tuple[float, Outcome, str]] = lambda _: (0.0, Outcome.RETRY, "")
    #: when it does nothing
    rests: tuple[Moment, Moment] = (0.0, 0.0)
    #: hands that wait for something to come
    idle: int = 0


@dataclass
class Play:
    store: SqliteStore
    clock: MovableClock
    begin: datetime
    #: 1 is a day of a small firm: 40,000 customers, 20,000 other messages
    scale: float
    chance: random.Random = field(default_factory=lambda: random.Random(15))
    #: what is still to happen
    _plan: list[tuple[Moment, int, Callable[[Moment], None]]] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=itertools.count)
    _workers: dict[str, list[Worker]] = field(default_factory=lambda: defaultdict(list))
    _versions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hand = Hand(self.store, self.clock)

    # ── the loop ────────────────────────────────────────────────────────────────────────────

    def at(self, moment: Moment, act: Callable[[Moment], None]) -> None:
        heapq.heappush(self._plan, (moment, next(self._number), act))

    def run(self, until: Moment) -> None:
        start = int(self.begin.timestamp()) * SECOND
        while self._plan and self._plan[0][0] < until:
            moment, _, act = heapq.heappop(self._plan)
            self.clock.now = max(self.clock.now, start + round(moment * SECOND))
            act(moment)

    def every(self, seconds: float, act: Callable[[Moment], None], since: Moment = 0.0) -> None:
        def again(moment: Moment) -> None:
            act(moment)
            self.at(moment + seconds, again)

        self.at(since, again)

    # ── who publishes ───────────────────────────────────────────────────────────────────────

    def send(self, *messages: Publish) -> None:
        self.hand.publish_many(*messages)
        places = {message.envelope.topics[0].partition(".")[0] for message in messages} | {"analytics"}
        self._wake(self.clock.now / SECOND - self.begin.timestamp(), places)

    def stream(self, rate: Callable[[Moment], float], make: Callable[[], Publish]) -> None:
        """Messages at random moments, so many an hour as the rate says."""

        def again(moment: Moment) -> None:
            self.send(make())
            self.at(moment + self.chance.expovariate(max(0.2, rate(moment) * self.scale) / HOUR), again)

        self.at(self.chance.uniform(0, 60), again)

    def order(self) -> Publish:
        body = {"number": self.chance.randrange(10**6), "total": self.chance.randrange(5, 500)}
        return publish("orders.created", body=json.dumps(body).encode(), producer="shop", object="orders")

    def shipment(self) -> Publish:
        return publish(
            "shipments.left", body=b'{"parcel":%d}' % self.chance.randrange(10**6), producer="depot"
        )

    def customer(self, key: str, changed: bool) -> Publish:
        version = self._versions[key] = self._versions.get(key, 0) + changed
        body = json.dumps({"customer": key, "version": version, "name": "x" * (hash_of(key) % 300)}).encode()
        return publish("customers.changed", body=body, object="customers", key=key, producer="erp")

    def resend(self, _: Moment) -> None:
        keys = [f"c{number}" for number in range(round(40_000 * self.scale))]
        for first in range(0, len(keys), 1_000):
            some = keys[first : first + 1_000]
            self.send(
                *(
                    self.customer(key, key not in self._versions or self.chance.random() < 0.0075)
                    for key in some
                )
            )
            self.clock.move(1.5)

    def invoices(self, moment: Moment) -> None:
        for number in range(round(1_500 * self.scale)):
            self.at(moment + number * 0.4, lambda _: self.send(publish("invoices.due", producer="finance")))

    # ── who works ───────────────────────────────────────────────────────────────────────────

    def employ(self, worker: Worker) -> None:
        self._workers[worker.place].append(worker)
        for _ in range(worker.hands):
            self.at(0.0, partial(self._fetch, worker))

    def look(self, moment: Moment) -> None:
        """What waits for its retry wakes nobody by itself here."""
        self._wake(moment, set(self._workers))

    def _wake(self, moment: Moment, places: set[str]) -> None:
        for worker in itertools.chain.from_iterable(self._workers.get(place, []) for place in sorted(places)):
            for _ in range(worker.idle):
                self.at(moment + self.chance.uniform(0.001, 0.006), partial(self._fetch, worker))
            worker.idle = 0

    def _fetch(self, worker: Worker, moment: Moment) -> None:
        if worker.rests[0] <= moment < worker.rests[1]:
            self.at(worker.rests[1], partial(self._fetch, worker))
            return
        got = self.hand.do(
            Fetch(queue=worker.place, kind=worker.kind, consumer=worker.consumer, n=8, lease_us=20 * SECOND)
        )
        if not got:
            worker.idle += 1
            return
        share, outcome, reason = worker.fails(moment)
        failed = self.chance.random() < share
        took = min(worker.seconds * self.chance.lognormvariate(0, 0.7), 15.0)
        if not failed and self.chance.random() < 0.002:
            took = 25.0  # the lease is over by then

        def confirm(at: Moment) -> None:
            self.hand.do(
                Confirm(
                    queue=worker.place,
                    kind=worker.kind,
                    receipts=[one.receipt for one in got],
                    outcome=outcome if failed else Outcome.SUCCESS,
                    reason=reason if failed else None,
                )
            )
            self._fetch(worker, at)

        self.at(moment + took, confirm)


def hash_of(key: str) -> int:
    return sum(key.encode()) * 2_654_435_761 >> 7


def noon(peak: float, least: float) -> Callable[[Moment], float]:
    """So many an hour: most at one o'clock, few at night."""

    def rate(moment: Moment) -> float:
        hour = moment % DAY / HOUR
        return least + (peak - least) * sin((hour - 6) / 14 * pi) if 6 < hour < 20 else least

    return rate


def play(path: Path, begin: datetime, *, scale: float = 1.0, days: int = 2) -> SqliteStore:
    """The store after it; the last of the days is the one with the trouble."""
    begin = begin.astimezone(UTC)
    clock = MovableClock(int(begin.timestamp()) * SECOND)
    store = SqliteStore(path, clock=clock, entropy=seeded_entropy(), synchronous="off")
    played = Play(store, clock, begin, scale)
    hand, last = played.hand, (days - 1) * DAY
    hand.unchanged("customers")
    hand.declare("orders", lease_us=20 * SECOND, ttl_us=6 * 3_600 * SECOND)
    hand.declare("customers", retries=2, backoff_base_us=20 * SECOND)
    hand.declare("shipments")
    hand.declare("invoices", retries=1)
    hand.channel("analytics", "orders.*", "customers.*")

    def broken(moment: Moment) -> tuple[float, Outcome, str]:
        return (0.97 if last + 10 * HOUR <= moment < last + 11.5 * HOUR else 0.0), Outcome.RETRY, BUG

    def refused(_: Moment) -> tuple[float, Outcome, str]:
        number = played.chance.randrange(10_000, 99_999)
        if played.chance.random() < 0.5:
            return (
                0.02,
                Outcome.INVALID,
                f"Traceback (most recent call last):\n  …\nno such customer {number}",
            )
        return 0.02, Outcome.RETRY, f"HTTP 503 {HOSTILE}"

    played.employ(Worker("crm", "customers", 0.4, hands=2, fails=broken))
    played.employ(
        Worker("billing", "orders", 0.6, hands=2, rests=(last + 14 * HOUR + 1_200, last + 14 * HOUR + 3_000))
    )
    played.employ(Worker("warehouse", "shipments", 0.15))
    played.employ(Worker("letters", "invoices", 2.5, fails=refused))
    played.employ(Worker("analytics", "analytics", 0.01, kind=Kind.CHANNEL))
    played.stream(noon(1_300, 120), played.order)
    played.stream(noon(700, 40), played.shipment)
    played.stream(
        noon(260, 30), lambda: played.customer(f"c{played.chance.randrange(round(40_000 * scale))}", True)
    )
    for number in range(days):
        played.at(number * DAY + 2 * HOUR, played.resend)
        played.at(number * DAY + 6 * HOUR, played.invoices)
    played.every(15.0, lambda _: hand.tick())
    played.every(60.0, played.look)

    def redrive(_: Moment) -> None:
        until = int((begin + timedelta(seconds=last + 10 * HOUR + 2_400)).timestamp()) * SECOND
        hand.redrive(queue="customers", states=frozenset({State.E}), until_at=until)

    played.at(last + 12.25 * HOUR, redrive)
    played.run(days * DAY)
    return store
