"""Any store beside the memory store: the same commands, the same clock, the same chance, and after every
step the same answers, log, queues, messages and listings.

    class Home:                          where the store lives, for one run
        open(clock, entropy) -> Store    opens what is there
        crash()                          what is on disk now moves elsewhere; the open store is abandoned

    TestMyStore = machine(Home).TestCase

Restarts and crashes are steps like any other: nothing that was answered may be missing afterwards. What both could get wrong
alike is watched beside (`watching`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import count, zip_longest
from typing import Any, Protocol

import msgspec
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ..commands import (
    JOB_STATES,
    Act,
    Chosen,
    Command,
    Confirm,
    Decide,
    DeclareChannel,
    DeclareConsumer,
    DeclareObject,
    DeclareQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteObject,
    DeleteQueue,
    DeleteSpectator,
    Erased,
    ErasePayload,
    Extend,
    Fetch,
    Fetched,
    JobKind,
    Publish,
    Published,
    PublishMany,
    Reap,
    Release,
    Remove,
    Seal,
    SetSpectator,
    Staged,
    StartJob,
    Tick,
    Work,
)
from ..consumers import Consumer
from ..delivery import Outcome, State
from ..destinations import Kind
from ..errors import LogTrimmed, MessageNotFound, NotOffered, PayloadReaped, Refused
from ..filters import Filter
from ..instants import SECOND
from ..message import Entropy, Envelope, make_receipt, parse_receipt, payload_hash
from ..names import ANONYMOUS, root_of
from ..objects import ObjectPolicy, Unchanged
from ..policy import Policy
from ..routing import Option, Route, queues_of
from ..store import Applied, Feature, Store
from ..stores.memory import MemoryStore
from .clock import MovableClock, seeded_entropy
from .hand import audit, listing, publish
from .watching import LatestOnly, check_quorum

#: every test run: always the same walks, some seconds. 40 x 50 steps.
QUICK = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
#: with WAYPOST_PROVE set: other walks each time, for minutes
LONG = settings(
    QUICK,
    max_examples=int(os.environ.get("WAYPOST_PROVE") or 1) * 100,
    stateful_step_count=100,
    derandomize=False,
    phases=[Phase.generate, Phase.shrink],
)
PROFILE = LONG if os.environ.get("WAYPOST_PROVE") else QUICK


class Home(Protocol):
    def open(self, clock: MovableClock, entropy: Entropy) -> Store: ...

    def crash(self) -> None: ...

    def remove(self) -> None:
        """The run is over."""
        ...


QUEUES = ("a", "b", "c")
CHANNELS = ("a", "s")
OBJECTS = ("a", "b", "order")
CONSUMERS = (ANONYMOUS, "ann", "bob", "cem")
PLACES = (
    *((name, Kind.QUEUE) for name in (*QUEUES, "default")),
    *((name, Kind.CHANNEL) for name in CHANNELS),
)
TOPICS = ("a.x", "a.y", "b.x", "b", "c.z")
#: shaped like one of ours, given by a producer
ALIKE = "01890000-0000-7000-8000-000004000001"

#: rows of a listing's page: few enough that a walk turns pages
PAGE = 7

queues = st.sampled_from(["a", "a", "a", "b", "b", "c"])
spans = st.sampled_from([0, 1, 2, 5, 15]).map(lambda seconds: seconds * SECOND)
bodies = st.sampled_from([b"", b"1", b"22", b"333"])
#: (name, kind) of a queue, and now and then of a channel
places = st.sampled_from(
    [*((name, Kind.QUEUE) for name in "aaabbc"), *((name, Kind.CHANNEL) for name in "asss")]
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.none(), values)


def rarely(values: st.SearchStrategy[Any], otherwise: Any = None) -> st.SearchStrategy[Any]:
    return st.sampled_from(range(10)).flatmap(lambda chance: values if chance == 7 else st.just(otherwise))


#: few retries and short waits, so that a walk of some fifty steps gets to the end of things
policies = st.builds(
    Policy,
    lease_us=st.sampled_from([1, 5, 10]).map(lambda seconds: seconds * SECOND),
    retries=st.integers(1, 2),
    complete=st.sampled_from(["any", "any", "any", "any", 0, 1, 2, 3, "per_topic", "all"]),
    order=st.sampled_from(["fifo", "fifo", "key"]),
    latest_only=st.sampled_from([False, False, False, True]),
    kick=rarely(st.just(True), False),
    ttl_us=rarely(spans),
    backoff_base_us=st.just(SECOND),
    backoff_cap_us=st.sampled_from([1, 4]).map(lambda seconds: seconds * SECOND),
    max_messages=rarely(st.integers(1, 9)),
    max_bytes=rarely(st.integers(4, 20)),
    keep_us=st.sampled_from([0, 5 * SECOND, 7 * 86_400 * SECOND]),
    dead=maybe(st.sampled_from(QUEUES)),
    paused=rarely(st.just(True), False),
)

publishes = st.builds(
    lambda topics, **given: publish(*topics, **given),
    st.lists(st.sampled_from(TOPICS), max_size=3, unique=True),
    object=maybe(st.sampled_from([*QUEUES, "order"])),
    key=maybe(st.sampled_from(["k", "j"])),
    producer=maybe(st.just("p")),
    meta=st.sampled_from([(), (("colour", "red"),)]),
    body=bodies,
    queue=maybe(queues),
    create=st.sampled_from([True, True, False]),
    id=rarely(st.sampled_from(["m-1", "m-2", ALIKE])),
    idempotency_key=rarely(st.sampled_from(["k-1", "k-2"])),
    delay_us=rarely(spans, 0),
    ttl_us=rarely(spans),
    priority=st.sampled_from([5, 5, 5, 0, 9]),
    force=rarely(st.just(True), False),
    hold=rarely(st.just(True), False),
)

channels = st.builds(
    DeclareChannel,
    name=st.sampled_from(CHANNELS),
    topics=st.lists(st.sampled_from(["a.*", "b.*", "*", "a.x", "b"]), max_size=2, unique=True).map(tuple),
    start=maybe(st.sampled_from([0, 1, 5, 30, 1_000])),
    start_at=st.none(),
    policy=policies,
)
objects = st.builds(
    DeclareObject,
    st.sampled_from(OBJECTS),
    st.builds(
        ObjectPolicy,
        unchanged=st.sampled_from([None, Unchanged(), Unchanged(window_us=10 * SECOND)]),
        route=rarely(st.just("spark"), "inline"),
    ),
)
consumers = st.builds(
    DeclareConsumer,
    st.sampled_from(CONSUMERS[1:]),
    st.one_of(
        st.builds(Consumer, queue=queues, topics=st.sampled_from([(), ("a.*",)])),
        st.builds(Consumer, channel=st.sampled_from(CHANNELS)),
    ),
)
routes = st.builds(
    Route,
    option=st.sampled_from(Option),
    consumers=st.lists(st.sampled_from(CONSUMERS[1:]), max_size=2, unique=True).map(tuple),
    queues=st.lists(st.sampled_from(QUEUES), max_size=2, unique=True).map(tuple),
)

fetches = st.builds(
    lambda place, **given: Fetch(queue=place[0], kind=place[1], **given),
    places,
    consumer=st.sampled_from(CONSUMERS),
    n=st.sampled_from([1, 1, 2, 10]),
    lease_us=maybe(st.sampled_from([1, 5, 60]).map(lambda seconds: seconds * SECOND)),
    topic=rarely(st.sampled_from(["a.x", "a.*", "b", "*"])),
)
outcomes = st.sampled_from([*Outcome, Outcome.SUCCESS])

filters = st.builds(
    Filter,
    queue=maybe(queues),
    channel=rarely(st.sampled_from(CHANNELS)),
    object=rarely(st.sampled_from(OBJECTS)),
    key=rarely(st.sampled_from(["k", "j"])),
    topic=rarely(st.sampled_from(["a.*", "b.x"])),
    consumer=rarely(st.sampled_from(CONSUMERS)),
    states=maybe(st.frozensets(st.sampled_from([s for s in State if s not in (State.L, State.U, State.X)]))),
)


class Walk(RuleBasedStateMachine):
    """One run. `home` is filled in by `machine`."""

    home: Callable[[], Home]

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.place = self.home()
        self.entropy = seeded_entropy()
        self.lake = False
        self.store = self.place.open(self.clock, self.entropy)
        self.model = MemoryStore(
            clock=self.clock, entropy=seeded_entropy(), keeps=Feature.KEPT not in self.store.lacks
        )
        #: receipts and ids ever seen, oldest first
        self.receipts: list[tuple[str, Kind, str]] = []
        self.ids: list[str] = ["m-1", ALIKE]
        self.seen = self.watched = 0
        self.latest_only = LatestOnly()

    # ── steps ───────────────────────────────────────────────────────────────────────────────

    @initialize(
        given=st.fixed_dictionaries(dict.fromkeys(QUEUES, policies)),
        listening=st.lists(channels, max_size=3),
        agreed=st.lists(objects, max_size=3),
        registered=st.lists(consumers, max_size=3),
        lake=st.booleans(),
    )
    def some_of_everything(
        self,
        given: dict[str, Policy],
        listening: list[DeclareChannel],
        agreed: list[DeclareObject],
        registered: list[DeclareConsumer],
        lake: bool,
    ) -> None:
        self.use_lake(lake)
        self.run(*(DeclareQueue(name, policy) for name, policy in given.items()))
        compared = DeclareObject("a", ObjectPolicy(unchanged=Unchanged()))
        self.run(DeclareChannel(name="s", topics=("*",)), compared, *listening, *agreed, *registered)

    def use_lake(self, on: bool) -> None:
        self.lake = on
        for store in (self.store, self.model):
            store.use_lake(on)

    @rule(data=st.data())
    def administer(self, data: st.DataObject) -> None:
        """Queues, channels, objects, consumers and spectators come, change and go."""
        spectators = st.sampled_from(["p", "q"])
        choices: list[st.SearchStrategy[Any]] = [
            st.builds(DeclareQueue, queues, st.one_of(policies, st.none())),
            channels,
            channels.map(lambda command: self.from_a_moment(command)),
            objects,
            objects,
            consumers,
            st.builds(SetSpectator, spectators, st.integers(0, 20).map(lambda n: self.model.bounds()[1] - n)),
            st.one_of(
                st.builds(DeleteChannel, st.sampled_from(CHANNELS)),
                st.builds(DeleteObject, st.sampled_from(OBJECTS)),
                st.builds(DeleteConsumer, st.sampled_from(CONSUMERS[1:])),
                st.builds(DeleteSpectator, spectators),
                st.builds(DeleteQueue, queues),
            ),
        ]
        self.run(data.draw(data.draw(st.sampled_from(choices))))

    def from_a_moment(self, command: DeclareChannel) -> DeclareChannel:
        command.start, command.start_at = None, self.clock.now - 2 * SECOND
        return command

    @rule(command=publishes, object=st.sampled_from(OBJECTS), times=st.integers(2, 3), many=st.booleans())
    def publish_again(self, command: Publish, object: str, times: int, many: bool) -> None:
        """The same thing with the same content."""
        again = [self.about_a_thing(command, object) for _ in range(times)]
        self.run(*([PublishMany(again)] if many else again))

    @rule(
        command=publishes,
        object=st.sampled_from(["a", "a", "b"]),
        outcome=st.sampled_from([*Outcome, None]),
        seconds=st.sampled_from([0, 1, 15]),
    )
    def publish_again_after_its_end(
        self, command: Publish, object: str, outcome: Outcome | None, seconds: int
    ) -> None:
        (published,) = self.run(self.about_a_thing(command, object))
        if outcome is None and isinstance(published, Published):
            self.run(Remove(object, published.id))
        elif outcome is not None:
            self.consume(Fetch(queue=object, consumer="ann", n=10), outcome, 0)
        self.clock.move(seconds)
        self.run(self.about_a_thing(command, object))

    def about_a_thing(self, command: Publish, object: str) -> Publish:
        command = copy.deepcopy(command)
        command.envelope = msgspec.structs.replace(command.envelope, object=object, key="k")
        command.id = command.idempotency_key = command.queue = None
        return command

    @rule(data=st.data(), most=st.sampled_from([1, 9]))
    def decide(self, data: st.DataObject, most: int) -> None:
        waiting = self.model.undecided(0, most)
        self.run(*(self.some_decision(data, one.id) for one in waiting))

    @rule(data=st.data())
    def decide_anything(self, data: st.DataObject) -> None:
        self.run(self.some_decision(data, data.draw(st.sampled_from(self.ids))))

    def some_decision(self, data: st.DataObject, id: str) -> Decide:
        return Decide(
            id=id,
            route=data.draw(maybe(routes)),
            failure=data.draw(rarely(st.just("it broke"))),
            content=data.draw(rarely(st.just(b"h" * 32), b"")),
        )

    @rule(command=publishes)
    def publish(self, command: Publish) -> None:
        self.run(command)

    @rule(command=publishes, data=st.data())
    def publish_with_an_id_of_ours(self, command: Publish, data: st.DataObject) -> None:
        command.id = data.draw(st.sampled_from(self.ids))
        self.run(command)

    @rule(command=publishes, more=st.integers(1, 3))
    def publish_a_large_one(self, command: Publish, more: int) -> None:
        if self.store.inline_bytes <= 1 << 20:
            command.body = b"x" * (self.store.inline_bytes + more)
            command.hash = payload_hash(command.body)
            self.run(command)

    @rule(messages=st.lists(publishes, min_size=1, max_size=5))
    def publish_one_by_one(self, messages: list[Publish]) -> None:
        self.run(*messages)

    @rule(messages=st.lists(publishes, max_size=5))
    def publish_many(self, messages: list[Publish]) -> None:
        self.run(PublishMany(messages))

    @rule(command=fetches)
    def fetch(self, command: Fetch) -> None:
        self.run(command)

    @rule(command=fetches, outcome=outcomes, delay_us=rarely(st.none(), 0))
    def fetch_and_confirm(self, command: Fetch, outcome: Outcome, delay_us: int | None) -> None:
        self.consume(command, outcome, delay_us)

    @rule(command=fetches, lease_us=maybe(st.just(7 * SECOND)), seconds=st.sampled_from([1, 8]))
    def fetch_and_extend(self, command: Fetch, lease_us: int | None, seconds: float) -> None:
        (fetched,) = self.run(command)
        self.clock.move(1)
        if isinstance(fetched, list) and fetched:
            self.run(
                Extend(
                    queue=command.queue,
                    kind=command.kind,
                    receipts=[one.receipt for one in fetched],
                    lease_us=lease_us,
                )
            )
            self.clock.move(seconds)
            self.run(Tick())

    @rule(
        command=publishes,
        complete=st.sampled_from([None, 2, 2, 3]),
        first=st.lists(st.sampled_from(CONSUMERS[1:]), min_size=1, max_size=3),
        then=st.lists(st.sampled_from(CONSUMERS[1:]), min_size=1, max_size=2),
        data=st.data(),
    )
    def confirm_late(
        self,
        command: Publish,
        complete: int | None,
        first: list[str],
        then: list[str],
        data: st.DataObject,
    ) -> None:
        """Short leases end; some fetch again; then receipts old and new are confirmed, in any order."""
        if complete is not None:
            self.run(DeclareQueue("a", Policy(complete=complete, retries=5)))
        self.run(self.about_a_thing(command, "a"))
        receipts = self.fetch_each(first, SECOND)
        self.clock.move(2)
        self.run(Tick())
        receipts += self.fetch_each(then, 60 * SECOND)
        for receipt in data.draw(st.permutations(receipts[-6:])):
            self.run(Confirm(queue="a", receipts=[receipt]))

    def fetch_each(self, consumers: list[str], lease_us: int) -> list[str]:
        receipts = []
        for consumer in consumers:
            (fetched,) = self.run(Fetch(queue="a", consumer=consumer, n=2, lease_us=lease_us))
            if isinstance(fetched, list):
                receipts += [one.receipt for one in fetched]
        return receipts

    @rule(
        command=publishes,
        declare=st.booleans(),
        way=st.sampled_from([Outcome.RETRY, Outcome.NOT_INTERESTED, "lease", "release"]),
    )
    def overtake(self, command: Publish, declare: bool, way: str) -> None:
        """While one is out, a newer one of its thing comes and goes."""
        if declare:
            self.run(DeclareQueue("a", Policy(latest_only=True, retries=3)))
        self.run(self.about_a_thing(command, "a"))
        (fetched,) = self.run(Fetch(queue="a", consumer="ann", n=2, lease_us=SECOND))
        command.force = True
        self.run(self.about_a_thing(command, "a"))
        self.consume(Fetch(queue="a", consumer="bob", n=9), Outcome.SUCCESS, None)
        receipts = [one.receipt for one in fetched] if isinstance(fetched, list) else []
        if way == "lease":
            self.clock.move(2)
            self.run(Tick())
        elif way == "release":
            self.run(Release(receipts))
        else:
            self.run(Confirm(queue="a", receipts=receipts, outcome=Outcome(way), delay_us=0))
        self.consume(Fetch(queue="a", consumer="cem", n=9), Outcome.SUCCESS, None)

    @rule(command=fetches)
    def give_up(self, command: Fetch) -> None:
        """As often as the policy allows: dead letters."""
        for _ in range(3):
            self.consume(command, Outcome.RETRY, 0)

    @rule(place=places)
    def nobody_is_interested(self, place: tuple[str, Kind]) -> None:
        for consumer in CONSUMERS:
            fetch = Fetch(queue=place[0], kind=place[1], consumer=consumer, n=2)
            self.consume(fetch, Outcome.NOT_INTERESTED, 0)

    @rule(command=fetches)
    def work_it_off(self, command: Fetch) -> None:
        for consumer in CONSUMERS:
            command.consumer = consumer
            self.consume(command, Outcome.SUCCESS, None)

    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        chosen = Filter(queue=data.draw(maybe(queues)), states=JOB_STATES[JobKind.REDRIVE])
        consumer = data.draw(maybe(st.sampled_from(CONSUMERS[1:])))
        self.run(StartJob(kind=JobKind.REDRIVE, filter=chosen, matched=0, consumer=consumer))
        self.work_to_the_end(data.draw(st.integers(1, 5)))

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.run(self.some_confirm(data))

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        self.run(self.some_extend(data))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.run(self.some_release(data))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.run(self.some_remove(data))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.run(self.some_act(data))

    @rule(data=st.data())
    def start_job(self, data: st.DataObject) -> None:
        self.run(self.some_job(data))

    @rule(limit=st.integers(1, 3))
    def work_a_slice(self, limit: int) -> None:
        self.run(Work(limit))

    @rule(limit=st.sampled_from([1, 3, 1_000]))
    def work_to_the_end(self, limit: int) -> None:
        for _ in range(200):
            if self.run(Work(limit)) == [False]:
                return
        raise AssertionError("a job never ends")

    @rule(seconds=st.sampled_from([0.5, 1, 5, 10, 60, 3_600]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.run()

    @rule(seconds=st.sampled_from([1, 10]), limit=st.sampled_from([2, 1_000]))
    def let_time_pass_and_tick(self, seconds: float, limit: int) -> None:
        self.clock.move(seconds)
        self.run(Tick(limit))

    @rule(limit=st.integers(1, 3))
    def tick(self, limit: int) -> None:
        self.run(Tick(limit))

    @rule(
        days=st.sampled_from([0, 0, 1, 8]),
        limit=st.sampled_from([1, 3, 1_000]),
        unsealed=st.sampled_from([None, 0, 0, 1, 5]),
    )
    def reap(self, days: int, limit: int, unsealed: int | None) -> None:
        """Stores may forget in slices of their own; what is left in the end is the same."""
        self.clock.move(days * 86_400)
        if unsealed is not None:
            self.run(Seal(max(0, self.model.bounds()[1] - unsealed)))
        for store in (self.model, self.store):
            for _ in range(1_000):
                if not store.apply([Reap(limit)]).results[0]:
                    break
            else:
                raise AssertionError("reaping never ends")
        kept = {one.sequence for one in listing(self.store, Filter())}
        self.latest_only.forgotten(self.latest_only.newest() - kept)
        self.compare()

    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        self.run(self.some_seal(data))

    @rule(on=rarely(st.just(False), True))
    def turn_the_lake_on_or_off(self, on: bool) -> None:
        """As another start may do it."""
        self.use_lake(on)
        self.restart()

    @rule(data=st.data())
    def erase_a_payload(self, data: st.DataObject) -> None:
        self.run(self.some_erasure(data))

    @rule(data=st.data(), command=fetches, outcome=outcomes)
    def erase_the_payload_of_what_is_out(self, data: st.DataObject, command: Fetch, outcome: Outcome) -> None:
        (fetched,) = self.run(command)
        if isinstance(fetched, list) and fetched:
            self.run(*(ErasePayload(one.id) for one in fetched))
            receipts = [one.receipt for one in fetched]
            self.run(Confirm(queue=command.queue, kind=command.kind, receipts=receipts, outcome=outcome))

    @rule(data=st.data())
    def erased_in_the_lake(self, data: st.DataObject) -> None:
        self.run(self.some_erased(data))

    @rule(data=st.data())
    def a_group(self, data: st.DataObject) -> None:
        kinds: list[Callable[[st.DataObject], Command]] = [
            lambda data: data.draw(publishes),
            lambda data: data.draw(publishes),
            lambda data: PublishMany(data.draw(st.lists(publishes, max_size=3))),
            lambda data: data.draw(fetches),
            lambda data: data.draw(fetches),
            lambda data: DeclareQueue(data.draw(queues), data.draw(policies)),
            lambda data: DeleteQueue(data.draw(queues)),
            lambda data: data.draw(channels),
            lambda data: data.draw(objects),
            lambda data: data.draw(consumers),
            lambda data: self.some_decision(data, data.draw(st.sampled_from(self.ids))),
            lambda data: Work(data.draw(st.integers(1, 3))),
            lambda data: Tick(data.draw(st.integers(1, 3))),
            self.some_confirm,
            self.some_confirm,
            self.some_extend,
            self.some_release,
            self.some_remove,
            self.some_job,
            self.some_act,
            self.some_seal,
            self.some_erasure,
            self.some_erased,
        ]
        chosen = data.draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=7))
        self.run(*(kind(data) for kind in chosen))

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.place.open(self.clock, self.entropy)
        self.store.use_lake(self.lake)
        self.compare_everything()

    @rule()
    def crash(self) -> None:
        abandoned = self.store
        self.place.crash()
        self.store = self.place.open(self.clock, self.entropy)
        self.store.use_lake(self.lake)
        abandoned.close()
        self.compare_everything()

    @rule(command=fetches, outcome=outcomes, kill=st.booleans())
    def fetch_and_confirm_across_a_crash(self, command: Fetch, outcome: Outcome, kill: bool) -> None:
        for _ in range(2):
            (fetched,) = self.run(command)
            self.crash() if kill else self.restart()
            if isinstance(fetched, list) and fetched:
                receipts = [one.receipt for one in fetched]
                self.run(
                    Confirm(
                        queue=command.queue,
                        kind=command.kind,
                        receipts=receipts,
                        outcome=outcome,
                        delay_us=0,
                    )
                )

    @rule(command=publishes, own_id=st.booleans(), kill=st.booleans())
    def publish_again_across_a_crash(self, command: Publish, own_id: bool, kill: bool) -> None:
        command.id, command.idempotency_key = ("m-3", None) if own_id else (None, "k-3")
        self.run(command)
        self.crash() if kill else self.restart()
        self.run(command)

    # ── what the steps are made of ──────────────────────────────────────────────────────────

    def some_receipts(self, data: st.DataObject) -> tuple[dict[str, Any], list[str]]:
        """(a queue or channel, receipts): most are the newest from there, some old, some of elsewhere, some junk."""
        place = data.draw(places)
        here = [receipt for *where, receipt in self.receipts if tuple(where) == place]
        choices = ["junk", make_receipt(1, 1)]
        choices += [receipt for *_, receipt in self.receipts[-3:]]
        if here:
            offset, salt = parse_receipt(here[-1]) or (1, 1)
            choices += [make_receipt(offset, salt ^ 1), make_receipt(offset + 1, salt)]
            choices = here[-6:] * 4 + here + choices
        receipts = data.draw(st.lists(st.sampled_from(choices), min_size=1, max_size=4))
        return {"queue": place[0], "kind": place[1]}, receipts

    def some_confirm(self, data: st.DataObject) -> Confirm:
        place, receipts = self.some_receipts(data)
        return Confirm(
            **place,
            receipts=receipts,
            outcome=data.draw(outcomes),
            reason=data.draw(maybe(st.sampled_from(["because", "redriven", "lease-over"]))),
            delay_us=data.draw(maybe(spans)),
        )

    def some_extend(self, data: st.DataObject) -> Extend:
        place, receipts = self.some_receipts(data)
        return Extend(**place, receipts=receipts, lease_us=data.draw(maybe(st.just(7 * SECOND))))

    def some_release(self, data: st.DataObject) -> Release:
        return Release(self.some_receipts(data)[1])

    def some_remove(self, data: st.DataObject) -> Remove:
        name, kind = data.draw(places)
        return Remove(name, data.draw(st.sampled_from(self.ids[-12:])), kind)

    def some_seal(self, data: st.DataObject) -> Seal:
        """Mostly near the head, now and then beyond it."""
        return Seal(self.model.bounds()[1] - data.draw(st.sampled_from([0, 0, 1, 5, 20, -1])))

    def some_erasure(self, data: st.DataObject) -> ErasePayload:
        ids = [*self.ids[-12:], *(one.id for one in self.model.undecided(0, 3))]
        return ErasePayload(data.draw(st.sampled_from(ids)), data.draw(rarely(st.sampled_from([1, 20]))))

    def some_erased(self, data: st.DataObject) -> Erased:
        return Erased(data.draw(st.lists(st.sampled_from([1, *self.model.erasures()]), max_size=3)))

    def some_job(self, data: st.DataObject) -> StartJob:
        kinds = [JobKind.REDRIVE, JobKind.REDRIVE, JobKind.REPLAY, JobKind.CANCEL, JobKind.PURGE]
        kind = data.draw(st.sampled_from(kinds))
        filter = data.draw(filters)
        states = JOB_STATES[kind] if filter.states is None else filter.states & JOB_STATES[kind]
        chosen = msgspec.structs.replace(
            filter,
            id=data.draw(maybe(st.sampled_from(self.ids[-12:]))),
            states=frozenset(states),
            since_at=data.draw(maybe(st.just(self.clock.now - 10 * SECOND))),
            until_at=data.draw(maybe(st.just(self.clock.now))),
        )
        return StartJob(
            kind=kind,
            filter=chosen,
            matched=len(list(listing(self.model, chosen))),
            consumer=data.draw(rarely(st.sampled_from(CONSUMERS[1:]))),
            rate=data.draw(rarely(st.sampled_from([0.5, 2.0, 30.0]))),
        )

    def some_act(self, data: st.DataObject) -> Act:
        """Now and then as of a moment that some have changed since."""
        kind = data.draw(st.sampled_from([JobKind.REDRIVE, JobKind.REPLAY, JobKind.CANCEL]))
        chosen = st.builds(
            Chosen, st.sampled_from(self.ids[-12:]), maybe(queues), rarely(st.sampled_from(CHANNELS))
        )
        return Act(
            kind=kind,
            chosen=data.draw(st.lists(chosen, min_size=1, max_size=6)),
            states=JOB_STATES[kind],
            as_of=data.draw(maybe(st.sampled_from([self.clock.now, self.clock.now - 10 * SECOND]))),
            consumer=None if kind is JobKind.CANCEL else data.draw(rarely(st.sampled_from(CONSUMERS[1:]))),
            dry_run=data.draw(rarely(st.just(True))) or False,
        )

    def consume(self, command: Fetch, outcome: Outcome, delay_us: int | None) -> None:
        (fetched,) = self.run(command)
        if isinstance(fetched, list) and fetched:
            receipts = [one.receipt for one in fetched]
            self.run(
                Confirm(
                    queue=command.queue,
                    kind=command.kind,
                    receipts=receipts,
                    outcome=outcome,
                    delay_us=delay_us,
                )
            )

    def run(self, *commands: Command) -> list[Any]:
        """One group on both; what the store lacks is left out of it."""
        fitting = [fitted(command, self.store.lacks) for command in commands]
        results = iter(self.run_group([command for command in fitting if command is not None]))
        return [NotOffered("left out") if command is None else next(results) for command in fitting]

    def run_group(self, commands: list[Command]) -> list[Any]:
        """Everything that can be seen of it is compared."""
        before = {place: self.model.ready(*place) or 0 for place in PLACES}
        expected = self.model.apply([copy.deepcopy(command) for command in commands])
        applied = self.store.apply([_staged(copy.deepcopy(command), self.store) for command in commands])
        same("results", shown(applied.results, self.store), shown(expected.results, self.model))
        same("due_at", applied.due_at, expected.due_at)
        same("working", applied.working, expected.working)
        same("logged", applied.logged, expected.logged)
        self.compare_ready(applied, before)
        for command, result in zip(commands, expected.results, strict=True):
            event(f"{type(command).__name__}: {_kind_of(command, result)}")
            if isinstance(command, Fetch) and not isinstance(result, Refused):
                self.receipts += [(command.queue, command.kind, fetched.receipt) for fetched in result]
        self.latest_only.changed([place for command in commands for place in _policy_of(command)])
        self.compare()
        told = [(info.name, Kind.QUEUE) for info in self.store.queues() if info.policy.latest_only]
        told += [(info.name, Kind.CHANNEL) for info in self.store.channels() if info.policy.latest_only]
        self.latest_only.stands(told, self.store.bounds()[1])
        return expected.results

    # ── comparing ───────────────────────────────────────────────────────────────────────────

    def compare_ready(self, applied: Applied, before: Mapping[tuple[str, Kind], int]) -> None:
        """What became fetchable is said, and nothing is said that cannot be fetched."""
        said = {(name, Kind.QUEUE): count for name, count in applied.ready.items()}
        said |= {(name, Kind.CHANNEL): count for name, count in applied.ready_channels.items()}
        for place, told in said.items():
            assert 0 < told <= (self.model.ready(*place) or 0), f"{place}: {told} are not ready"
        for place in PLACES:
            now = self.model.ready(*place) or 0
            if now > before[place]:
                assert said.get(place, 0) >= now - before[place], f"{place} became ready in silence"

    def compare(self) -> None:
        same("bounds", self.store.bounds(), self.model.bounds())
        oldest, head = self.model.bounds()
        lo = max(self.seen + 1, oldest)
        fresh = self.model.events(lo, head) if lo <= head else []
        same("events", self.store.events(lo, head) if lo <= head else [], fresh)
        self.latest_only.watch(one for one in fresh if one.offset > self.watched)
        self.seen = self.watched = head
        self.compare_messages(dict.fromkeys(one.message_id for one in fresh))
        same("queues", self.store.queues(), self.model.queues())
        same("channels", self.store.channels(), self.model.channels())
        same("objects", self.store.objects(), self.model.objects())
        waiting = [_with_body(one, self.store) for one in self.store.undecided(0, 5)]
        same("undecided", waiting, self.model.undecided(0, 5))
        sparks = self.store.sparks()
        same("what Spark routes", sparks, self.model.sparks())
        for chosen in ({"only": sparks}, {"but": sparks}):
            ids = [one.id for one in self.store.undecided(0, 5, **chosen)]
            same(f"undecided, {chosen}", ids, [one.id for one in self.model.undecided(0, 5, **chosen)])
        for place in PLACES:
            same(f"ready{place}", self.store.ready(*place), self.model.ready(*place))
        same("sealed", self.store.sealed(), self.model.sealed())
        same("erasures", self.store.erasures(), self.model.erasures())
        same("find()", list(listing(self.store, Filter(), PAGE)), list(listing(self.model, Filter())))

    def compare_messages(self, ids: Iterable[str]) -> None:
        for id in list(ids):
            if id not in self.ids:
                self.ids.append(id)
            message = self.store.message(id)
            same(f"message({id})", message, self.model.message(id))
            if message is not None:
                check_quorum(message)
            same(f"body({id})", body_of(self.store, id), body_of(self.model, id))

    def compare_everything(self) -> None:
        self.seen = 0
        self.compare()
        self.compare_messages(self.ids)
        for at in (0, self.clock.now - 5 * SECOND, self.clock.now, self.clock.now + 1):
            same(f"offset_at({at})", self.store.offset_at(at), self.model.offset_at(at))
            for name, kind in PLACES:
                self.compare_depths(name, kind, at)
        same("consumers", self.store.consumers(), self.model.consumers())
        same("spectators", self.store.spectators(), self.model.spectators())
        for number in map(str, count(1)):
            job = self.model.job(number)
            same(f"job({number})", self.store.job(number), job)
            if job is None:
                break
        for state in State:
            filter = Filter(states=frozenset({state}))
            same(f"find({state})", list(listing(self.store, filter, PAGE)), list(listing(self.model, filter)))
        for consumer in CONSUMERS:
            filter = Filter(consumer=consumer, since_at=self.clock.now - 60 * SECOND)
            same(
                f"find({consumer})",
                list(listing(self.store, filter, PAGE)),
                list(listing(self.model, filter)),
            )
        same("due_at", self.store.apply([]).due_at, self.model.apply([]).due_at)

    def compare_depths(self, name: str, kind: Kind, at: int) -> None:
        """How far back a store knows, once its log was trimmed, is its own affair."""
        if Feature.MOMENTS in self.store.lacks:
            return
        try:
            found, expected = (store.depths(kind, name, at) for store in (self.store, self.model))
        except LogTrimmed:
            assert self.model.bounds()[0] > 1, "nothing was trimmed"
            return
        same(f"depths({kind.word} {name}, {at})", found, expected)

    def teardown(self) -> None:
        try:
            self.compare_everything()
            audit(self.store)
        finally:
            self.store.close()
            self.place.remove()


def same(what: str, got: Any, expected: Any) -> None:
    """As an assertion that shows the first thing that differs, not two long lists."""
    if got == expected:
        return
    if isinstance(got, list) and isinstance(expected, list):
        for number, (one, other) in enumerate(zip_longest(got, expected)):
            if one != other:
                what, got, expected = f"{what}[{number}]", one, other
                break
    raise AssertionError(f"{what}\n  store:  {got}\n  memory: {expected}")


def machine(home: Callable[[], Home], profile: settings = PROFILE) -> type[RuleBasedStateMachine]:
    """The walk for the stores of one kind of home; its `.TestCase` is what pytest runs."""
    walk: type[RuleBasedStateMachine] = type("StoreWalk", (Walk,), {"home": staticmethod(home)})
    walk.TestCase.settings = profile
    return walk


#: commands that need a feature whatever they say
_NEEDED: dict[type, Feature] = {
    PublishMany: Feature.ATOMIC,
    DeclareChannel: Feature.CHANNELS,
    DeleteChannel: Feature.CHANNELS,
    DeclareObject: Feature.OBJECTS,
    DeleteObject: Feature.OBJECTS,
    Decide: Feature.OBJECTS,
    DeclareConsumer: Feature.CONSUMERS,
    DeleteConsumer: Feature.CONSUMERS,
    ErasePayload: Feature.ERASING,
    Erased: Feature.ERASING,
}


def fitted(command: Command, lacks: frozenset[Feature]) -> Command | None:
    """The command, or what of it a store can do; None: nothing."""
    if _NEEDED.get(type(command)) in lacks:
        return None
    if isinstance(command, Publish):
        if Feature.OBJECTS in lacks:
            command.hold = False
        if Feature.SEVERAL in lacks and command.queue is None:
            command.envelope = _for_one_queue(command.envelope)
    elif isinstance(command, DeclareQueue) and command.policy is not None and Feature.SEVERAL in lacks:
        command.policy = msgspec.structs.replace(command.policy, complete="any", dead=None)
    return command


def _for_one_queue(envelope: Envelope) -> Envelope:
    queue = queues_of(envelope)[0]
    topics = tuple(topic for topic in envelope.topics if root_of(topic) == queue)
    return msgspec.structs.replace(envelope, topics=topics)


def _staged(command: Command, store: Store) -> Command:
    """As the broker does it: large bodies are put away first."""
    for message in [command] if isinstance(command, Publish) else []:
        if isinstance(message.body, bytes) and len(message.body) > store.inline_bytes:
            message.body = store.stage(message.body)
    return command


def _policy_of(command: Command) -> list[tuple[str, Kind]]:
    """Whose policy it may change."""
    if isinstance(command, DeclareQueue | DeleteQueue):
        return [(command.name, Kind.QUEUE)]
    if isinstance(command, DeclareChannel | DeleteChannel):
        return [(command.name, Kind.CHANNEL)]
    return []


def shown(results: list[Any], store: Store) -> list[Any]:
    """Results in a form that can be compared: refusals by their kind, bodies as bytes."""
    return [
        type(result) if isinstance(result, Refused) else _with_bodies(result, store) for result in results
    ]


def _kind_of(command: Command, result: Any) -> str:
    """For Hypothesis' statistics: what a walk has seen."""
    where = "in a channel " if getattr(command, "kind", None) is Kind.CHANNEL else ""
    if isinstance(result, list):
        states = {getattr(one, "state", None) or type(one).__name__ for one in result}
        return where + (" ".join(sorted(getattr(state, "name", state) for state in states)) or "nothing")
    if isinstance(result, Published):
        return result.state.name
    return where + type(result).__name__


def _with_bodies(result: Any, store: Store) -> Any:
    if isinstance(result, list) and result and isinstance(result[0], Fetched):
        return [_with_body(fetched, store) for fetched in result]
    return result


def _with_body(found: Any, store: Store) -> Any:
    if isinstance(found.body, Staged):
        return msgspec.structs.replace(found, body=store.unstage(found.body))
    return found


def body_of(store: Store, id: str) -> bytes | str:
    try:
        body = store.body(id)
        return store.unstage(body) if isinstance(body, Staged) else body
    except (MessageNotFound, PayloadReaped) as gone:
        return type(gone).__name__
