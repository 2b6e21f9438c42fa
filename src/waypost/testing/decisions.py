"""Registered consumers, slots that are named, and messages that wait for a decision: part of `StoreTests`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..commands import (
    Decide,
    DeclareObject,
    DeleteConsumer,
    DeleteObject,
    PublishMany,
    Release,
    StartJob,
    Work,
)
from ..commands import JobKind as Kinds
from ..consumers import Consumer
from ..delivery import E, F, K, L, Outcome, Q, S, U, X
from ..destinations import Kind
from ..errors import ChannelNotFound, ConsumerRequired, MessageNotFound, QueueFull, QueueNotFound
from ..filters import Filter
from ..instants import SECOND
from ..objects import ObjectPolicy
from ..routing import Option, Route
from ..store import Feature
from .features import wants
from .hand import Hand, publish

RETRY, NOT_INTERESTED = Outcome.RETRY, Outcome.NOT_INTERESTED


def named(hand: Hand, id: str) -> list[tuple[str | None, str | None]]:
    """(queue, whom the slot is for) of each delivery."""
    return [(delivery.queue or delivery.channel, delivery.named) for delivery in hand.deliveries(id)]


@wants(Feature.CONSUMERS)
class ConsumerTests:
    def test_consumers_are_registered_replaced_and_removed(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        hand.declare("a")
        hand.channel("c", "a.*")
        assert hand.register("bob", queue="a", topics=("a.x",), secrets=("whsec_1",), rate=2.5).created
        created_at = hand.clock.now
        assert hand.register("ann", channel="c", url="http://127.0.0.1/").created
        hand.clock.move(1)
        assert not hand.register("bob", queue="a", concurrency=3).created
        bob = hand.store.consumer("bob")
        assert bob is not None
        assert (bob.consumer, bob.created_at) == (Consumer(queue="a", concurrency=3), created_at)
        before = hand.store.consumers()
        assert [info.name for info in before] == ["ann", "bob"]
        if self.durable:  # type: ignore[attr-defined]
            restart()
            assert hand.store.consumers() == before
        assert hand.do(DeleteConsumer("bob")) is True
        assert hand.do(DeleteConsumer("bob")) is False
        assert hand.store.consumer("bob") is None

    def test_a_consumer_of_what_does_not_exist_is_refused(self, hand: Hand) -> None:
        with pytest.raises(QueueNotFound):
            hand.register("ann", queue="a")
        hand.declare("a")
        with pytest.raises(ChannelNotFound):
            hand.register("ann", channel="a")

    def test_all_makes_a_slot_for_each_registered_consumer(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        for name in ("bob", "ann"):
            hand.register(name, queue="a")
        id = hand.publish("a.x").id
        assert named(hand, id) == [("a", "ann"), ("a", "bob")]
        with pytest.raises(ConsumerRequired):
            hand.fetch("a")
        assert hand.fetch("a", "cem", n=9) == [], "those who are not registered are not asked"
        hand.confirm(hand.one("a", "ann", n=9))
        assert hand.fetch("a", "ann") == []
        assert hand.message_state(id) is Q
        hand.confirm(hand.one("a", "bob", n=9))
        assert hand.message_state(id) is X

    def test_who_registers_later_gets_later_messages(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        first = hand.publish("a.x").id
        hand.register("ann", queue="a")
        second = hand.publish("a.x").id
        hand.do(DeleteConsumer("ann"))
        third = hand.publish("a.x").id
        assert [named(hand, id) for id in (first, second, third)] == [
            [("a", None)],
            [("a", "ann")],
            [("a", None)],
        ]
        assert [got.id for got in hand.fetch("a", "bob", n=9)] == [first, third]
        assert [got.id for got in hand.fetch("a", "ann", n=9)] == [second]

    def test_all_asks_those_who_want_the_topics(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        hand.register("ann", queue="a", topics=("a.x",))
        hand.register("bob", queue="a", topics=("a.*",))
        hand.declare("b")
        hand.register("cem", queue="b")
        assert named(hand, hand.publish("a.x").id) == [("a", "ann"), ("a", "bob")]
        assert named(hand, hand.publish("a.y").id) == [("a", "bob")]

    def test_all_counts_in_a_channel_too(self, hand: Hand) -> None:
        hand.channel("c", "a.*", complete="all")
        hand.register("ann", channel="c")
        hand.register("bob", channel="c")
        id = hand.publish("a.x").id
        assert named(hand, id) == [("c", "ann"), ("c", "bob"), ("a", None)]
        (heard,) = hand.listen("c", "bob", n=9)
        assert heard.id == id
        assert len(hand.listen("c", "ann", n=9)) == 1

    def test_a_named_slot_stays_named_through_retry_and_restart(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        hand.declare("a", complete="all", retries=9)
        hand.register("ann", queue="a")
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "ann"), RETRY, delay_us=0)
        assert hand.fetch("a", "bob") == []
        hand.do(Release([hand.one("a", "ann").receipt]))
        if self.durable:  # type: ignore[attr-defined]
            restart()
        assert hand.fetch("a", "bob") == []
        assert hand.one("a", "ann").attempt == 3
        assert named(hand, id) == [("a", "ann")]

    def test_named_and_open_slots_are_handed_out_in_one_order(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        one = hand.publish("a.x").id
        hand.register("ann", queue="a")
        two = hand.publish("a.x").id
        hand.do(DeleteConsumer("ann"))
        three = hand.publish("a.x").id
        first = hand.publish("a.x", priority=0).id
        assert [got.id for got in hand.fetch("a", "ann", n=2)] == [first, one]
        assert [got.id for got in hand.fetch("a", "ann", n=9)] == [two, three]

    def test_what_is_ready_counts_named_slots(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        hand.register("ann", queue="a")
        applied = hand.store.apply([publish("a.x")])
        assert applied.ready == {"a": 1}
        assert hand.store.ready("a") == 1
        hand.one("a", "ann")
        assert hand.store.ready("a") == 0

    def test_not_interested_at_its_own_slot_is_final_for_it(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        hand.register("ann", queue="a")
        id = hand.publish("a.x").id
        assert hand.confirm(hand.one("a", "ann"), NOT_INTERESTED).state is Q
        assert hand.fetch("a", "ann") == []
        assert hand.fetch("a", "bob") == []
        hand.job(Kinds.CANCEL, id=id)
        assert hand.redrive(states=frozenset({hand.state(id)})).done == 1
        assert hand.one("a", "ann").id == id, "until it is redriven"


@wants(Feature.OBJECTS)
class DecisionTests:
    @pytest.fixture
    def held(self, hand: Hand) -> Hand:
        """A store in which messages of object a stop at L."""
        hand.do(DeclareObject("a", ObjectPolicy(route="spark")))
        return hand

    def test_a_held_message_is_logged_and_goes_nowhere(self, hand: Hand) -> None:
        applied = hand.store.apply([publish("a.x", hold=True, id="m"), publish("b.x")])
        assert [result.state for result in applied.results] == [L, Q]
        assert applied.logged == 1
        assert hand.journey("m") == "L"
        assert hand.message_state("m") is L
        assert hand.store.queue("a") is None
        assert hand.store.apply([]).logged is None
        assert [one.id for one in hand.store.undecided(0, 10)] == ["m"]

    def test_what_waits_for_a_decision_is_listed_in_order_with_its_body(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        ids = [hand.publish("a.x", hold=True, key=str(n), body=bytes([n])).id for n in range(4)]
        if self.durable:  # type: ignore[attr-defined]
            restart()
        listed = hand.store.undecided(0, 3)
        assert [(one.id, one.body, one.envelope.key) for one in listed] == [
            (id, bytes([n]), str(n)) for n, id in enumerate(ids[:3])
        ]
        assert [one.id for one in hand.store.undecided(listed[-1].sequence, 3)] == ids[3:]
        hand.decide(ids[1])
        assert [one.id for one in hand.store.undecided(0, 9)] == [ids[0], *ids[2:]]

    def test_what_waits_for_spark_and_what_for_the_broker_are_listed_apart(self, held: Hand) -> None:
        ids = [
            held.publish(topic, object=object, hold=True, body=bytes([number])).id
            for number, (topic, object) in enumerate(
                [("a.x", None), ("b.x", None), ("c.x", "a"), ("b.y", "c")]
            )
        ]
        assert held.store.sparks() == {"a"}

        def listed(after: int = 0, limit: int = 9, **chosen: set[str]) -> list[str]:
            return [one.id for one in held.store.undecided(after, limit, **chosen)]

        assert listed(only={"a"}) == [ids[0], ids[2]]
        assert listed(only={"a"}, after=1) == [ids[2]]
        assert listed(only={"a", "b"}, limit=2) == ids[:2]
        assert listed(but={"a"}) == [ids[1], ids[3]]
        assert listed(but={"a", "b"}) == [ids[3]]
        assert listed(only=set()) == []
        assert listed(but=set()) == listed() == ids
        held.do(DeclareObject("a", ObjectPolicy()))
        held.do(DeclareObject("b", ObjectPolicy(route="spark")))
        assert held.store.sparks() == {"b"}
        held.do(DeleteObject("b"))
        assert held.store.sparks() == set()

    def test_a_message_without_an_object_is_never_sparks(self, held: Hand) -> None:
        id = held.publish(hold=True).id
        assert held.store.undecided(0, 9, only={"a"}) == []
        assert [one.id for one in held.store.undecided(0, 9, but={"a"})] == [id]

    def test_an_object_that_spark_routes_stops_at_l(self, held: Hand) -> None:
        published = held.publish("a.x")
        assert published.state is L
        assert held.publish("b.x").state is Q
        assert held.publish("b.x", object="a").state is L
        info = held.store.object("a")
        assert info is not None
        assert (info.logged, held.store.stats().undecided) == (2, 2)
        assert held.publish("a.x", queue="q").state is Q, "whoever names the queue has routed it"

    def test_a_decision_without_a_route_sends_it_where_its_topics_say(self, held: Hand) -> None:
        held.channel("c", "a.*")
        id = held.publish("a.x", "b.x").id
        held.clock.move(3)
        assert held.decide(id).state is Q
        assert held.states(id) == "@c:Q a:Q b:Q"
        message = held.store.message(id)
        assert message is not None
        assert [(e.from_state, e.to_state, e.duration_ms) for e in message.journey[1:]] == [(L, Q, 3_000)] * 3
        held.confirm(held.one("a"))
        held.confirm(held.one("b"), queue="b")
        assert held.message_state(id) is X
        assert held.journey(id) == "LQQQFSFSX"

    def test_a_decision_is_applied_once(self, held: Hand) -> None:
        id = held.publish("a.x").id
        first, second = held.ask(Decide(id=id), Decide(id=id, route=Route(queues=("other",))))
        assert (first.state, first.applied) == (Q, True)
        assert (second.state, second.applied) == (Q, False), "it came late"
        assert held.states(id) == "a:Q"
        held.one("a")
        assert held.decide(id, failure="too late").state is F
        routed = held.publish("b.x").id
        assert held.decide(routed, route=Route(queues=("other",))).state is Q
        assert held.states(routed) == "b:Q"
        with pytest.raises(MessageNotFound):
            held.decide("nobody")

    def test_a_route_names_the_queues(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.decide(id, route=Route(queues=("q", "r")))
        assert held.states(id) == "q:Q r:Q"

    def test_once_completes_by_the_first_confirm_whatever_the_policy_says(self, held: Hand) -> None:
        held.declare("a", complete=3)
        id = held.publish("a.x").id
        held.decide(id, route=Route())
        assert held.states(id) == "a:Q"
        held.confirm(held.one("a", "ann"))
        assert held.message_state(id) is X

    def test_once_only_is_kicked(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.decide(id, route=Route(option=Option.ONCE_ONLY))
        got = held.one("a")
        assert held.state(id) is K
        assert held.message_state(id) is X
        assert held.confirm(got).state is None
        plain = held.publish("b.x").id
        held.one("b")
        assert held.state(plain) is F

    def test_once_per_topic_makes_a_slot_for_each_topic(self, held: Hand) -> None:
        id = held.publish("a.x", "a.y", "b.z").id
        held.decide(id, route=Route(option=Option.ONCE_PER_TOPIC))
        assert held.states(id) == "a:Q a:Q b:Q"
        assert len(held.fetch("a", "ann", n=9)) == 1
        assert len(held.fetch("a", "bob", n=9)) == 1

    def test_a_consumer_named_by_the_route_gets_a_slot_of_its_own(
        self, held: Hand, restart: Callable[[], None]
    ) -> None:
        held.declare("b")
        held.register("bob", queue="b")
        id = held.publish("a.x").id
        held.decide(id, route=Route(consumers=("bob", "ann")))
        if self.durable:  # type: ignore[attr-defined]
            restart()
        assert sorted(named(held, id), key=str) == [("a", "ann"), ("b", "bob")]
        assert held.fetch("a") == []
        assert held.fetch("a", "bob") == []
        held.confirm(held.one("a", "ann"))
        held.confirm(held.one("b", "bob"), queue="b")
        assert held.message_state(id) is X

    def test_a_delay_counts_from_the_publish(self, held: Hand) -> None:
        first, second = (held.publish("a.x", delay_us=10 * SECOND, body=body).id for body in (b"1", b"2"))
        held.clock.move(4)
        held.decide(first)
        assert held.fetch("a") == []
        held.wait(6)
        assert held.one("a").id == first
        held.clock.move(5)
        held.decide(second)
        assert held.one("a").id == second

    def test_a_decided_message_is_found_forgotten_and_redriven_like_any_other(self, held: Hand) -> None:
        id = held.publish("a.x", id="m").id
        held.decide(id)
        assert [found.message_id for found in held.found(queue="a", states=frozenset({Q}))] == ["m"]
        held.confirm(held.one("a"))
        held.redrive(states=frozenset({S}))
        held.confirm(held.one("a"))
        assert held.journey(id) == "LQFSXQFSX"
        held.clock.move(8 * 86_400)
        held.reap()
        assert held.store.message(id) is None

    def test_a_message_without_a_decision_is_never_forgotten(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.clock.move(100 * 86_400)
        held.reap()
        assert held.store.body(id) == b"body"
        held.decide(id)
        assert held.one("a").id == id

    def test_a_decision_for_no_queue_completes_it(self, held: Hand) -> None:
        held.declare("a", complete=0)
        held.channel("c", "a.*")
        id = held.publish("a.x").id
        held.clock.move(1)
        assert held.decide(id).state is X
        assert held.journey(id) == "LQX"
        assert held.last_event().duration_ms == 1_000
        other = held.publish("a.x", queue="a").id
        assert held.journey(other) == "LQX"

    def test_a_decision_takes_no_notice_of_limits(self, held: Hand) -> None:
        held.declare("a", max_messages=1)
        ids = [held.publish("a.x", body=bytes([n])).id for n in range(2)]
        for id in ids:
            assert held.decide(id).state is Q
        with pytest.raises(QueueFull):
            held.publish(queue="a")

    # ── unchanged, when it is decided ───────────────────────────────────────────────────────

    def test_unchanged_is_decided_with_the_route(self, hand: Hand) -> None:
        hand.unchanged("a")
        first, second = (hand.publish("a.x", key="k", hold=True).id for _ in range(2))
        assert hand.decide(first).state is Q
        hand.clock.move(2)
        decided, late = hand.decide(second), hand.decide(second)
        assert (decided.state, decided.same_as, decided.applied) == (U, first, True)
        assert (late.state, late.same_as, late.applied) == (U, first, False)
        message = hand.store.message(second)
        assert message is not None
        assert (message.state, message.same_as, hand.journey(second)) == (U, first, "LU")
        event = message.journey[-1]
        assert (event.same_as, event.duration_ms, event.queue) == (first, 2_000, None)
        forced = hand.publish("a.x", key="k", hold=True, force=True).id
        assert hand.decide(forced).state is Q
        hand.clock.move(8 * 86_400)
        hand.reap()
        assert hand.store.message(second) is None

    def test_a_hash_that_came_with_the_decision_is_the_one_compared(self, hand: Hand) -> None:
        hand.unchanged("a")
        one, two = (hand.publish("a.x", key="k", hold=True, body=body).id for body in (b"1", b"2"))
        assert hand.decide(one, content=b"h" * 32).state is Q
        assert hand.decide(two, content=b"h" * 32).same_as == one

    # ── failures ────────────────────────────────────────────────────────────────────────────

    def test_a_failure_is_a_dead_letter_at_default_with_the_traceback(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.clock.move(1)
        assert held.decide(id, failure="Traceback …").state is E
        (delivery,) = held.deliveries(id)
        assert (delivery.queue, delivery.slot, delivery.state) == ("default", 0, E)
        assert delivery.reason == "Traceback …"
        event = held.last_event()
        assert (event.from_state, event.to_state, event.reason) == (L, E, "Traceback …")
        assert held.store.undecided(0, 9) == []
        assert [found.message_id for found in held.found(states=frozenset({E}))] == [id]
        assert held.decide(id, route=Route(queues=("q",))).state is E, "it is not in L any more"

    def test_of_a_long_traceback_the_end_is_kept(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.decide(id, failure="x" * 10_000 + "the error")
        (delivery,) = held.deliveries(id)
        assert delivery.reason is not None
        assert len(delivery.reason) == 4_000
        assert delivery.reason.endswith("the error")

    def test_a_redrive_routes_it_again(self, held: Hand, restart: Callable[[], None]) -> None:
        id = held.publish("a.x", key="k", body=b"kept", delay_us=SECOND).id
        held.decide(id, failure="broken")
        if self.durable:  # type: ignore[attr-defined]
            restart()
        job = held.do(StartJob(kind=Kinds.REDRIVE, filter=Filter(states=frozenset({E})), matched=1))
        applied = held.store.apply([Work()])
        assert applied.logged == 1
        done = held.store.job(job.id)
        assert done is not None
        assert done.done == 1
        assert held.message_state(id) is L
        assert held.deliveries(id) == []
        event = held.last_event()
        assert (event.queue, event.slot, event.from_state, event.to_state) == ("default", 0, E, L)
        info = held.store.queue("default")
        assert info is not None
        assert info.states == {}
        assert [one.id for one in held.store.undecided(0, 9)] == [id]
        held.decide(id, failure="again")
        held.redrive()
        held.clock.move(1)
        assert held.decide(id).state is Q
        assert held.journey(id) == "LELELQ"
        assert held.body(held.one("a")) == b"kept"

    def test_a_failure_is_not_sent_to_the_dead_queue(self, held: Hand) -> None:
        held.declare("default", dead="graves")
        id = held.publish("a.x").id
        held.decide(id, failure="broken")
        assert held.states(id) == "default:E"
        held.redrive()
        held.decide(id)
        assert held.states(id) == "a:Q"

    # ── from spark to inline ────────────────────────────────────────────────────────────────

    def test_inline_takes_effect_when_nothing_of_the_object_is_in_l(self, held: Hand) -> None:
        first, second = held.publish("a.x").id, held.publish("a.x").id
        applied = held.store.apply([DeclareObject("a", ObjectPolicy())])
        assert applied.logged == 1, "the broker hears that there is something to drain"
        third = held.publish("a.x")
        assert third.state is L
        assert held.publish("b.x").state is Q
        for id in (first, second, third.id):
            held.decide(id)
        assert held.publish("a.x").state is Q
        assert [got.id for got in held.fetch("a", n=3)] == [first, second, third.id]

    def test_what_failed_is_not_waited_for(self, held: Hand) -> None:
        id = held.publish("a.x").id
        held.decide(id, failure="broken")
        held.do(DeclareObject("a", ObjectPolicy()))
        assert held.publish("a.x").state is Q

    def test_messages_of_one_request_stop_together(self, held: Hand) -> None:
        results: list[Any] = held.do(PublishMany([publish("a.x"), publish("b.x"), publish("a.y")]))
        assert [result.state for result in results] == [L, Q, L]

    def test_a_repeated_id_shows_the_state_of_its_message(self, held: Hand) -> None:
        held.publish("a.x", id="m")
        assert held.publish("a.x", id="m").state is L
        held.decide("m")
        assert held.publish("a.x", id="m").state is Q
        held.publish("a.x", id="n", body=b"2", idempotency_key="i")
        held.decide("n")
        assert held.publish("a.x", id="n", body=b"2", idempotency_key="i").state is L, "the first answer"
        assert held.store.ready("a", Kind.QUEUE) == 2
