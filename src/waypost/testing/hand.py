"""A store in a test's hand: short words for commands, and an audit that holds for every store at any moment.

hand.publish("a.x"); [got] = hand.fetch("a"); hand.confirm(got)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from ..acts import states_for
from ..commands import (
    Act,
    Acted,
    Chosen,
    Command,
    Confirm,
    Decide,
    Decided,
    DeclareChannel,
    DeclareConsumer,
    Declared,
    DeclareObject,
    DeclareQueue,
    DeleteChannel,
    DeleteQueue,
    ErasePayload,
    Fetch,
    Fetched,
    Job,
    JobKind,
    Publish,
    Published,
    PublishMany,
    Reap,
    Seal,
    Settled,
    Staged,
    StartJob,
    Tick,
    Work,
)
from ..consumers import Consumer
from ..delivery import MESSAGE_TRANSITIONS, TRANSITIONS, L, Outcome, State, U, X
from ..destinations import Kind
from ..errors import Refused
from ..filters import Filter
from ..message import Envelope, payload_hash
from ..names import ANONYMOUS
from ..objects import ObjectPolicy, Unchanged
from ..policy import Policy
from ..store import DeliveryInfo, Event, QueueInfo, Store
from .clock import MovableClock

#: far more turns than any test needs: a command that says "more is left" for ever fails instead of hanging
_TURNS = 1_000


def publish(*topics: str, body: bytes = b"body", queue: str | None = None, **given: Any) -> Publish:
    """A Publish; what belongs to the envelope goes there."""
    said = {name: given.pop(name) for name in list(given) if name in Envelope.__struct_fields__}
    envelope = Envelope(topics=topics, **said)
    return Publish(envelope=envelope, body=body, hash=payload_hash(body), queue=queue, **given)


class Hand:
    def __init__(self, store: Store, clock: MovableClock) -> None:
        self.store, self.clock = store, clock

    def ask(self, *commands: Command) -> list[Any]:
        """The results of one group."""
        return self.store.apply(commands).results

    def do(self, command: Command) -> Any:
        """The result of a group of one; a Refused is raised."""
        (result,) = self.ask(command)
        if isinstance(result, Refused):
            raise result
        return result

    def declare(self, name: str, **policy: Any) -> Declared:
        declared: Declared = self.do(DeclareQueue(name, Policy(**policy)))
        return declared

    def channel(
        self,
        name: str,
        *topics: str,
        start: int | None = None,
        start_at: int | None = None,
        **policy: Any,
    ) -> Declared:
        declared: Declared = self.do(
            DeclareChannel(name=name, topics=topics, start=start, start_at=start_at, policy=Policy(**policy))
        )
        return declared

    def unchanged(self, object: str, *ignore: str, **given: Any) -> None:
        """From now on repetitions of its messages are unchanged."""
        self.do(DeclareObject(object, ObjectPolicy(unchanged=Unchanged(ignore=ignore, **given))))

    def register(self, name: str, **consumer: Any) -> Declared:
        declared: Declared = self.do(DeclareConsumer(name, Consumer(**consumer)))
        return declared

    def decide(self, id: str, **given: Any) -> Decided:
        decided: Decided = self.do(Decide(id=id, **given))
        return decided

    def publish(self, *topics: str, **given: Any) -> Published:
        published: Published = self.do(publish(*topics, **given))
        return published

    def publish_many(self, *messages: Publish) -> list[Published]:
        published: list[Published] = self.do(PublishMany(list(messages)))
        return published

    def fetch(self, queue: str, consumer: str = ANONYMOUS, n: int = 1, **given: Any) -> list[Fetched]:
        fetched: list[Fetched] = self.do(Fetch(queue=queue, consumer=consumer, n=n, **given))
        return fetched

    def listen(self, channel: str, consumer: str = ANONYMOUS, n: int = 1, **given: Any) -> list[Fetched]:
        """A fetch from a channel."""
        return self.fetch(channel, consumer, n, kind=Kind.CHANNEL, **given)

    def one(self, queue: str, consumer: str = ANONYMOUS, **given: Any) -> Fetched:
        (fetched,) = self.fetch(queue, consumer, **given)
        return fetched

    def confirm(
        self, fetched: Fetched | str, outcome: Outcome = Outcome.SUCCESS, queue: str = "a", **given: Any
    ) -> Settled:
        receipt = fetched if isinstance(fetched, str) else fetched.receipt
        settled: Settled
        (settled,) = self.do(Confirm(queue=queue, receipts=[receipt], outcome=outcome, **given))
        return settled

    def seal(self, upto: int) -> None:
        self.do(Seal(upto))

    def erase(self, id: str, sequence: int | None = None) -> bool:
        """Its payload; whether there was one."""
        erased: bool = self.do(ErasePayload(id, sequence))
        return erased

    def tick(self) -> None:
        self._until_done(Tick)

    def work(self, limit: int = 1_000) -> None:
        self._until_done(lambda: Work(limit))

    def reap(self, limit: int = 1_000) -> None:
        self._until_done(lambda: Reap(limit))

    def _until_done(self, command: Callable[[], Command]) -> None:
        for _ in range(_TURNS):
            if not self.do(command()):
                return
        raise AssertionError(f"{command()} is never done")

    def wait(self, seconds: float) -> None:
        """Time goes by, and what is due happens."""
        self.clock.move(seconds)
        self.tick()

    def job(self, kind: JobKind, to: str | None = None, **filter: Any) -> Job:
        """Started and worked to its end; `to`: the consumer that it is for."""
        return self.finish(self.do(StartJob(kind=kind, filter=Filter(**filter), matched=0, consumer=to)))

    def redrive(self, **filter: Any) -> Job:
        return self.job(JobKind.REDRIVE, **filter)

    def act(
        self,
        kind: JobKind,
        *chosen: str | Chosen,
        states: frozenset[State] | None = None,
        as_of: int | None = None,
        to: str | None = None,
        dry_run: bool = False,
    ) -> Acted:
        """On deliveries chosen one by one; a text is a message's id."""
        acted: Acted = self.do(
            Act(
                kind=kind,
                chosen=[Chosen(one) if isinstance(one, str) else one for one in chosen],
                states=states_for(kind, states),
                as_of=as_of,
                consumer=to,
                dry_run=dry_run,
            )
        )
        return acted

    def delete(self, queue: str) -> Job:
        return self.finish(self.do(DeleteQueue(queue)))

    def delete_channel(self, channel: str) -> Job:
        return self.finish(self.do(DeleteChannel(channel)))

    def finish(self, job: Job) -> Job:
        self.work()
        ended = self.store.job(job.id)
        assert ended is not None
        assert ended.ended_at is not None
        return ended

    # ── what it looks like from outside ─────────────────────────────────────────────────────

    def deliveries(self, id: str) -> list[DeliveryInfo]:
        message = self.store.message(id)
        assert message is not None, f"no message {id}"
        return message.deliveries

    def states(self, id: str) -> str:
        """The letters of its deliveries, as `a:Q b:F @c:S`, where c is a channel."""
        return " ".join(
            f"{delivery.queue or f'@{delivery.channel}'}:{delivery.state.name}"
            for delivery in self.deliveries(id)
        )

    def message_state(self, id: str) -> State:
        message = self.store.message(id)
        assert message is not None, f"no message {id}"
        return message.state

    def state(self, id: str) -> State:
        (delivery,) = self.deliveries(id)
        return delivery.state

    def journey(self, id: str) -> str:
        """The letters it went through, in log order."""
        message = self.store.message(id)
        assert message is not None, f"no message {id}"
        return "".join(event.to_state.name for event in message.journey)

    def last_event(self) -> Event:
        head = self.store.bounds()[1]
        (event,) = self.store.events(head, head)
        return event

    def body(self, fetched: Fetched) -> bytes:
        return self.store.unstage(fetched.body) if isinstance(fetched.body, Staged) else fetched.body

    def found(self, limit: int = 1_000, **filter: Any) -> list[DeliveryInfo]:
        return list(listing(self.store, Filter(**filter), limit))


def listing(store: Store, filter: Filter, limit: int = 1_000) -> Iterator[DeliveryInfo]:
    """Every delivery of a search, page by page."""
    after: int | None = 0
    while after is not None:
        page, following = store.find(filter, after, limit)
        assert following is None or following > after, "a page must bring the search forward"
        yield from page
        after = following


def audit(store: Store) -> None:
    """The log tells the same story as deliveries and counters, and each step in it is a row of the table."""
    oldest, head = store.bounds()
    events = store.events(oldest, head) if oldest <= head else []
    assert [event.offset for event in events] == list(range(oldest, head + 1)), "offsets are dense"
    assert all(one.at <= two.at for one, two in pairwise(events)), "`at` never falls"
    resting: dict[_Place, list[State]] = {}
    for event in events:
        if event.queue is None and event.channel is None:
            assert event.to_state in MESSAGE_TRANSITIONS[event.from_state], event
            assert event.to_state in (L, U, X), event
            assert event.slot is None, event
        else:
            assert event.from_state is not None, event
            assert event.to_state in TRANSITIONS[event.from_state], event
            assert event.slot is not None, event
            assert None in (event.queue, event.channel), event
        assert (event.envelope is not None) is (event.to_state is L and event.from_state is None), event
        assert (event.same_as is not None) is (event.to_state is U), event
    deliveries = list(listing(store, Filter()))
    if oldest > 1:
        return
    # One name can have had several incarnations, so a place can hold several deliveries of one message.
    for event in events:
        if event.slot is None or event.from_state is None:
            continue
        there = resting.setdefault((event.sequence, event.queue, event.channel, event.slot), [])
        if event.from_state is L:
            there.append(event.to_state)
            continue
        assert event.from_state in there, f"{event} leaves a state that nothing was in"
        there.remove(event.from_state)
        if event.to_state is not L:
            there.append(event.to_state)
    shown: dict[_Place, list[State]] = {}
    for delivery in deliveries:
        place = (delivery.sequence, delivery.queue, delivery.channel, delivery.slot)
        shown.setdefault(place, []).append(delivery.state)
    assert {place: sorted(states) for place, states in resting.items() if place in shown} == {
        place: sorted(states) for place, states in shown.items()
    }, "the log and the deliveries disagree"
    held = Counter((delivery.queue, delivery.channel) for delivery in deliveries)
    counted: list[tuple[QueueInfo, int]] = [(info, held[info.name, None]) for info in store.queues()]
    counted += [(info, held[None, info.name]) for info in store.channels()]
    for info, count in counted:
        assert sum(info.states.values()) <= count, f"{info.name} counts more than it has"
        assert info.ready <= sum(info.states.get(state, 0) for state in (State.Q, State.R))


#: (sequence, queue, channel, slot)
_Place = tuple[int, str | None, str | None, int]
