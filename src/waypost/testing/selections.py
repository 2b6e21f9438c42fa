"""Search, and work on many, as every store must have them: part of `StoreTests`."""

from __future__ import annotations

from typing import Any

import pytest

from ..commands import JOB_STATES, JobKind, Release, StartJob, Work
from ..delivery import C, E, I, Outcome, Q, S, X
from ..filters import Filter
from ..instants import SECOND
from ..store import Feature
from .features import wants
from .hand import Hand

RETRY, INVALID = Outcome.RETRY, Outcome.INVALID


class SelectionTests:
    @wants(Feature.SEVERAL)
    def test_a_search_finds_by_object_key_and_topic(self, hand: Hand) -> None:
        one = hand.publish("a.x", "b.y", key="k").id
        two = hand.publish("a.z", object="b", key="j").id

        def ids(**filter: Any) -> list[str]:
            return list(dict.fromkeys(found.message_id for found in hand.found(**filter)))

        assert ids(object="a") == [one]
        assert ids(object="b") == [two]
        assert ids(object="nothing") == []
        assert ids(key="k") == [one]
        assert ids(key="j", object="a") == []
        assert ids(topic="a.x") == [one]
        assert ids(topic="a.*") == [one, two]
        assert ids(topic="a") == []
        assert ids(topic="b.*", queue="a") == [one]

    @wants(Feature.CHANNELS)
    def test_a_search_tells_queues_from_channels(self, hand: Hand) -> None:
        hand.channel("a", "a.*")
        hand.publish("a.x")
        assert [(found.queue, found.channel) for found in hand.found(queue="a")] == [("a", None)]
        assert [(found.queue, found.channel) for found in hand.found(channel="a")] == [(None, "a")]
        assert hand.found(queue="a", channel="a") == []

    @wants(Feature.SEVERAL)
    def test_the_consumer_of_a_delivery_is_who_had_it_last_or_whom_it_is_for(self, hand: Hand) -> None:
        hand.declare("a", retries=9)
        id = hand.publish("a.x").id
        assert hand.found(consumer="ann") == []
        hand.confirm(hand.one("a", "ann"), RETRY, delay_us=0)
        assert [found.message_id for found in hand.found(consumer="ann")] == [id]
        hand.one("a", "bob")
        assert hand.found(consumer="ann") == []
        assert [found.message_id for found in hand.found(consumer="bob")] == [id]
        hand.declare("b", complete="all")
        hand.register("cem", queue="b")
        waiting = hand.publish("b.x").id
        assert [found.message_id for found in hand.found(consumer="cem")] == [waiting]

    def test_with_a_consumer_the_times_bound_its_fetches(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        ids = [hand.publish("a.x").id for _ in range(3)]
        start = hand.clock.now
        for _ in range(3):
            hand.clock.move(10)
            hand.confirm(hand.one("a", "ann"), INVALID)

        def ids_between(since: int | None, until: int | None, consumer: str = "ann") -> list[str]:
            since_at = None if since is None else start + since * SECOND
            until_at = None if until is None else start + until * SECOND
            found = hand.found(consumer=consumer, since_at=since_at, until_at=until_at)
            return [delivery.message_id for delivery in found]

        assert ids_between(20, 30) == [ids[1]]
        assert ids_between(10, None) == ids
        assert ids_between(11, None) == ids[1:]
        assert ids_between(None, 20) == ids[:1]
        assert ids_between(0, 10) == []
        assert ids_between(0, 100, "bob") == []
        assert [found.message_id for found in hand.found(since_at=start, until_at=start + 1)] == ids

    def test_every_fetch_of_the_consumer_counts_not_only_the_last(self, hand: Hand) -> None:
        hand.declare("a", retries=9)
        id = hand.publish("a.x").id
        times = []
        for _ in range(3):
            hand.clock.move(10)
            times.append(hand.clock.now)
            hand.confirm(hand.one("a", "ann"), RETRY, delay_us=0)
        for at in times:
            (found,) = hand.found(consumer="ann", since_at=at, until_at=at + 1)
            assert found.message_id == id
        assert hand.found(consumer="ann", since_at=times[0] + 1, until_at=times[1]) == []

    def test_one_consumers_failures_are_redriven_to_that_consumer_in_order(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        before, *broken, other = (hand.publish("a.x", body=bytes([n])).id for n in range(4))
        hand.confirm(hand.one("a", "billing"), INVALID)
        hand.clock.move(60)
        since = hand.clock.now
        for _ in range(2):
            hand.confirm(hand.one("a", "billing"), INVALID)
        hand.confirm(hand.one("a", "shipping"), INVALID)
        job = hand.job(
            JobKind.REDRIVE,
            to="billing",
            consumer="billing",
            states=frozenset({E, hand.state(before)}),
            since_at=since,
            until_at=since + SECOND,
        )
        assert (job.done, job.consumer) == (2, "billing")
        assert hand.fetch("a", "shipping", n=9) == []
        again = hand.fetch("a", "billing", n=9)
        assert [got.id for got in again] == broken
        assert other not in broken
        for got in again:
            assert hand.confirm(got).state is S

    @wants(Feature.SEVERAL)
    def test_of_a_message_with_several_slots_the_consumer_of_a_redrive_gets_one(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        id = hand.publish("a.x").id
        for consumer in ("ann", "bob"):
            hand.confirm(hand.one("a", consumer), INVALID)
        assert hand.job(JobKind.REDRIVE, to="zed", queue="a", states=frozenset({I})).done == 1
        assert [(found.state, found.named) for found in hand.deliveries(id)] == [(Q, "zed"), (I, None)]
        hand.confirm(hand.one("a", "zed", n=9))
        assert hand.redrive(queue="a", states=frozenset({I})).done == 1
        hand.confirm(hand.one("a", "bob"))
        assert hand.message_state(id) is X

    @pytest.mark.parametrize("outcome", [Outcome.SUCCESS, INVALID, RETRY, Outcome.NOT_INTERESTED])
    @wants(Feature.SEVERAL)
    def test_who_has_or_had_a_slot_of_the_message_gets_no_other_by_a_redrive(
        self, hand: Hand, outcome: Outcome
    ) -> None:
        hand.declare("a", complete=2, retries=9)
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "ann"), INVALID)
        zed = hand.one("a", "zed")
        for _ in range(2):
            job = hand.job(JobKind.REDRIVE, to="zed", consumer="ann", states=frozenset({I}))
            assert (job.done, hand.deliveries(id)[0].state) == (0, I)
            hand.confirm(zed, outcome)

    @wants(Feature.SEVERAL)
    def test_of_all_consumers_one_that_confirmed_its_slot_gets_no_other(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        for name in ("ann", "bob"):
            hand.register(name, queue="a")
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "bob"), INVALID)
        assert hand.job(JobKind.REDRIVE, to="ann", states=frozenset({I})).done == 0
        hand.confirm(hand.one("a", "ann"))
        assert hand.job(JobKind.REDRIVE, to="ann", states=frozenset({I})).done == 0
        assert hand.states(id) == "a:S a:I"

    @wants(Feature.SEVERAL)
    def test_a_later_redrive_without_a_consumer_is_for_whom_the_routing_said(self, hand: Hand) -> None:
        hand.declare("a")
        hand.declare("b", complete="all")
        hand.register("ann", queue="b")
        free, anns = hand.publish("a.x").id, hand.publish("b.x").id
        hand.confirm(hand.one("a", "bob"), INVALID)
        hand.confirm(hand.one("b", "ann"), INVALID, queue="b")
        dead = frozenset({I})
        for _ in range(2):
            assert hand.job(JobKind.REDRIVE, to="zed", states=dead).done == 2
            assert (hand.fetch("a", "bob"), hand.fetch("b", "ann")) == ([], [])
            for queue in ("a", "b"):
                hand.confirm(hand.one(queue, "zed"), INVALID, queue=queue)
        assert hand.redrive(states=dead).done == 2
        assert [hand.deliveries(id)[0].named for id in (free, anns)] == [None, "ann"]
        assert hand.fetch("b", "zed") == []
        assert (hand.one("a", "bob").id, hand.one("b", "ann").id) == (free, anns)

    @wants(Feature.SEVERAL)
    def test_two_slots_are_never_named_for_one_consumer(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        for name in ("ann", "bob"):
            hand.register(name, queue="a")
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "ann"), INVALID)
        assert hand.job(JobKind.CANCEL, consumer="bob", states=frozenset({Q})).done == 1
        assert hand.job(JobKind.REDRIVE, to="bob", states=frozenset({I})).done == 1
        assert hand.redrive(states=frozenset({C})).done == 0, "what is bob's would be his second"
        hand.confirm(hand.one("a", "bob"))
        assert hand.states(id) == "a:S a:C"

    @wants(Feature.SEVERAL)
    def test_whom_a_slot_waits_for_takes_that_one_and_not_its_siblings(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        id = hand.publish("a.x").id
        early = hand.one("a", "ann")
        hand.confirm(hand.one("a", "bob"), INVALID)
        hand.do(Release([early.receipt]))
        assert hand.job(JobKind.REDRIVE, to="zed", states=frozenset({I})).done == 1
        hand.confirm(hand.one("a", "zed", n=9))
        assert hand.states(id) == "a:Q a:S"
        hand.confirm(hand.one("a", "ann"))
        assert hand.message_state(id) is X

    @wants(Feature.KEPT)
    def test_a_replay_takes_what_was_confirmed_too_in_the_original_order(self, hand: Hand) -> None:
        ids = [hand.publish("a.x", body=bytes([n])).id for n in range(4)]
        for got in reversed(hand.fetch("a", n=3)):
            hand.confirm(got)
        job = hand.job(JobKind.REPLAY, queue="a", states=JOB_STATES[JobKind.REPLAY])
        assert job.done == 3
        assert hand.last_event().reason == "replayed"
        assert [got.id for got in hand.fetch("a", n=9)] == ids
        assert hand.message_state(ids[0]) is not X

    @wants(Feature.CHANNELS)
    def test_a_cancel_takes_what_the_filter_says(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        id = hand.publish("a.x", key="k").id
        other = hand.publish("a.x", key="j").id
        job = hand.job(JobKind.CANCEL, key="k", channel="c", states=JOB_STATES[JobKind.CANCEL])
        assert job.done == 1
        assert (hand.states(id), hand.states(other)) == ("@c:C a:Q", "@c:Q a:Q")

    def test_a_job_with_a_rate_goes_on_bit_by_bit(self, hand: Hand) -> None:
        for _ in range(5):
            hand.publish("a.x")
        filter = Filter(states=frozenset({Q}))
        job = hand.do(StartJob(kind=JobKind.CANCEL, filter=filter, matched=5, rate=2.0))
        assert job.rate == 2.0
        applied = hand.store.apply([Work()])
        assert applied.results == [False], "no more may be done now"
        assert (applied.working, applied.due_at) == (False, hand.clock.now + SECOND // 2)
        assert hand.do(Work()) is False
        assert len(hand.found(states=frozenset({C}))) == 1
        for turn in range(2, 6):
            hand.clock.move(0.5)
            assert hand.store.apply([]).working is True
            hand.do(Work())
            assert len(hand.found(states=frozenset({C}))) == turn
        hand.clock.move(0.5)
        hand.work()
        ended = hand.store.job(job.id)
        assert ended is not None
        assert ended.ended_at == hand.clock.now

    def test_a_fast_rate_does_a_tenth_of_a_second_at_a_time(self, hand: Hand) -> None:
        for _ in range(10):
            hand.publish("a.x")
        filter = Filter(states=frozenset({Q}))
        hand.do(StartJob(kind=JobKind.CANCEL, filter=filter, matched=10, rate=40.0))
        hand.do(Work())
        assert len(hand.found(states=frozenset({C}))) == 4
        assert hand.store.apply([]).due_at == hand.clock.now + SECOND // 10

    def test_a_slow_job_does_not_hold_up_the_others(self, hand: Hand) -> None:
        for _ in range(3):
            hand.publish("a.x")
            hand.publish("b.x")
        states = frozenset({Q})
        hand.do(StartJob(kind=JobKind.CANCEL, filter=Filter(queue="a", states=states), matched=3, rate=1.0))
        hand.do(StartJob(kind=JobKind.CANCEL, filter=Filter(queue="b", states=states), matched=3))
        assert hand.do(Work()) is True
        assert hand.do(Work()) is False
        assert len(hand.found(states=frozenset({C}), queue="b")) == 3
        assert len(hand.found(states=frozenset({C}), queue="a")) == 1

    def test_a_released_fetch_was_a_fetch(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.do(Release([hand.one("a", "ann").receipt]))
        assert len(hand.found(consumer="ann", since_at=hand.clock.now)) == 1
