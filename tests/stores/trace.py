"""A life of a store, the same one each time: commands by a seed, with the answers of the memory store to go on from."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from waypost.commands import (
    Command,
    Confirm,
    Decide,
    DeclareChannel,
    DeclareConsumer,
    DeclareObject,
    DeclareQueue,
    DeleteChannel,
    DeleteQueue,
    ErasePayload,
    Extend,
    Fetch,
    JobKind,
    Kick,
    Publish,
    PublishMany,
    Reap,
    Release,
    Remove,
    Seal,
    SetSpectator,
    StartJob,
    Tick,
    Work,
)
from waypost.consumers import Consumer
from waypost.delivery import Outcome
from waypost.destinations import Kind
from waypost.errors import Refused
from waypost.filters import Filter
from waypost.instants import SECOND
from waypost.objects import ObjectPolicy, Unchanged
from waypost.policy import Policy
from waypost.routing import Option, Route
from waypost.store import Feature, Store
from waypost.stores.memory import MemoryStore
from waypost.testing.clock import MovableClock, seeded_entropy
from waypost.testing.hand import publish
from waypost.testing.model import fitted, shown

#: seconds that pass before a group, and the group
Step = tuple[int, list[Command]]
WORKERS = ("ann", "bob", "anonymous")
LARGE = bytes(range(256)) * 300


def trace(seed: int, groups: int, lacks: frozenset[Feature] = frozenset()) -> list[Step]:
    """What a store can do that lacks these."""
    return _Life(seed, lacks).lived(groups)


class _Life:
    def __init__(self, seed: int, lacks: frozenset[Feature]) -> None:
        self._chance, self._lacks = random.Random(seed), lacks
        self._clock = MovableClock()
        self._store = MemoryStore(
            clock=self._clock, entropy=seeded_entropy(), keeps=Feature.KEPT not in lacks
        )
        self._receipts: list[tuple[str, Kind, str]] = []
        self._ids: list[str] = ["own-1"]
        self._steps: list[Step] = []

    def lived(self, groups: int) -> list[Step]:
        self._run(0, self._beginning())
        for _ in range(groups):
            seconds = self._chance.choice([0, 0, 0, 0, 1, 3, 12])
            commands = [self._some() for _ in range(self._chance.choice([1, 1, 2, 4]))]
            self._run(seconds, [Tick(), *commands] if seconds else commands)
        self._run(0, [Tick(), Work(), Reap()])
        return self._steps

    def _run(self, seconds: int, commands: Sequence[Command]) -> None:
        group = [one for command in commands if (one := fitted(command, self._lacks)) is not None]
        self._steps.append((seconds, copy.deepcopy(group)))
        self._clock.move(seconds)
        for command, result in zip(group, self._store.apply(group).results, strict=True):
            if isinstance(result, Refused):
                continue
            if isinstance(command, Fetch):
                self._receipts += [(command.queue, command.kind, one.receipt) for one in result]
            elif isinstance(command, Publish):
                self._ids.append(result.id)

    def _beginning(self) -> list[Command]:
        return [
            DeclareQueue("plain"),
            DeclareQueue("short", Policy(lease_us=2 * SECOND, retries=1, keep_us=5 * SECOND)),
            DeclareQueue("keyed", Policy(order="key", retries=2)),
            DeclareQueue("latest", Policy(latest_only=True)),
            DeclareQueue("both", Policy(complete=2, dead="plain")),
            DeclareQueue("kicked", Policy(kick=True)),
            DeclareChannel(name="all", topics=("*",)),
            DeclareObject("short", ObjectPolicy(unchanged=Unchanged())),
            DeclareConsumer("ann", Consumer(queue="both", topics=("both.*",))),
            SetSpectator("watcher", 0),
        ]

    def _some(self) -> Command:
        kinds = [self._publish] * 7 + [self._fetch] * 6 + [self._settle] * 8 + [self._rare] * 4
        kinds += [self._decide] * 5 + [self._again]
        return self._chance.choice(kinds)()

    def _publish(self) -> Command:
        chance = self._chance
        queue = chance.choice(["plain", "short", "keyed", "latest", "both", "kicked"])
        some = [
            publish(
                f"{queue}.{chance.choice('xy')}",
                *(["plain.z"] if chance.random() < 0.1 else []),
                body=chance.choice([b"", b"1", b'{"a":1}', b"\xff\x00", LARGE]),
                object=queue if chance.random() < 0.7 else None,
                key=chance.choice([None, "k1", "k2", "größe"]),
                producer=chance.choice([None, "erp"]),
                id=f"own-{chance.randrange(9)}" if chance.random() < 0.1 else None,
                idempotency_key=f"again-{chance.randrange(5)}" if chance.random() < 0.1 else None,
                delay_us=chance.choice([0, 0, 0, 5 * SECOND]),
                ttl_us=chance.choice([None, None, None, 8 * SECOND]),
                priority=chance.choice([5, 5, 0, 9]),
                hold=chance.random() < 0.05,
                meta=(("colour", "red"),) if chance.random() < 0.2 else (),
            )
            for _ in range(3 if chance.random() < 0.1 else 1)
        ]
        return some[0] if len(some) == 1 else PublishMany(some)

    def _again(self) -> Command:
        """The same thing, with the same content."""
        return publish("short.x", body=b"same", object="short", key="k1")

    def _decide(self) -> Command:
        """Of what stopped at L, the first."""
        id = next((one.id for one in self._store.undecided(0, 1)), self._ids[-1])
        if self._chance.random() < 0.3:
            return Decide(id=id, failure="Traceback: no route")
        routes = [None, None, Route(option=Option.ONCE_ONLY), Route(option=Option.ONCE, consumers=("bob",))]
        return Decide(id=id, route=self._chance.choice(routes))

    def _fetch(self) -> Command:
        chance = self._chance
        channel = chance.random() < 0.15
        queue = (
            "all"
            if channel
            else chance.choice(["plain", "short", "short", "keyed", "latest", "both", "kicked"])
        )
        kind = Kind.CHANNEL if channel and Feature.CHANNELS not in self._lacks else Kind.QUEUE
        return Fetch(queue=queue, kind=kind, consumer=chance.choice(WORKERS), n=chance.choice([1, 2, 5]))

    def _settle(self) -> Command:
        chance = self._chance
        if not self._receipts:
            return self._fetch()
        recent = self._receipts[-6:] if chance.random() < 0.8 else self._receipts
        queue, kind, receipt = chance.choice(recent)
        if chance.random() < 0.15:
            extend = Extend(queue=queue, kind=kind, receipts=[receipt])
            others: list[Command] = [Release([receipt]), Kick([receipt]), extend]
            return chance.choice(others)
        return Confirm(
            queue=queue,
            kind=kind,
            receipts=[receipt],
            outcome=chance.choice([Outcome.SUCCESS, Outcome.SUCCESS, Outcome.SUCCESS, *Outcome]),
            reason=chance.choice([None, 'no "fruit"', "später"]),
            delay_us=chance.choice([None, 0, 4 * SECOND]),
        )

    def _rare(self) -> Command:
        chance = self._chance
        id = chance.choice(self._ids[-20:])
        head = self._store.bounds()[1]
        some: list[Command] = [
            StartJob(
                kind=chance.choice([JobKind.REDRIVE, JobKind.REPLAY]), filter=Filter(existing=True), matched=1
            ),
            StartJob(kind=JobKind.CANCEL, filter=Filter(queue="latest", existing=True), matched=1),
            Work(),
            Work(),
            Reap(),
            Remove(chance.choice(["plain", "short"]), id),
            SetSpectator("watcher", head),
            Seal(head),
            ErasePayload(id),
            ErasePayload(id),
            DeleteQueue("kicked"),
            DeleteChannel("all"),
            DeclareChannel(name="all", topics=("*",), start=1),
            DeclareQueue("keyed", Policy(order=chance.choice(["key", "fifo"]))),
        ]
        return chance.choice(some)


def live(store: Store, clock: MovableClock, steps: list[Step]) -> list[list[Any]]:
    """Through all of it; the answers, in a form that can be compared."""
    answers = []
    for seconds, commands in copy.deepcopy(steps):
        clock.move(seconds)
        for command in commands:
            for message in [command] if isinstance(command, Publish) else []:
                if message.size > store.inline_bytes:
                    assert isinstance(message.body, bytes)
                    message.body = store.stage(message.body)
        answers.append(shown(store.apply(commands).results, store))
    return answers
