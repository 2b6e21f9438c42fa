"""Unchanged and obsolete messages, as every store must have them: part of `StoreTests`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..canonical import content_hash
from ..commands import Confirm, DeclareObject, DeleteObject, Fetch, PublishMany, Release, Remove, Settled
from ..delivery import C, E, F, L, O, Outcome, Q, R, S, T, U, X
from ..destinations import Kind
from ..errors import QueueFull
from ..instants import SECOND
from ..message import payload_hash
from ..objects import ObjectPolicy, Unchanged
from ..store import Feature
from .features import wants
from .hand import Hand, publish

DAY = 86_400.0
RETRY, INVALID = Outcome.RETRY, Outcome.INVALID


class ContentTests:
    # ── 12: unchanged ───────────────────────────────────────────────────────────────────────

    def test_nothing_is_compared_until_the_object_says_so(self, hand: Hand) -> None:
        for _ in range(2):
            assert hand.publish("a.x", key="k").state is Q

    @wants(Feature.OBJECTS)
    def test_a_repetition_is_unchanged_and_names_the_message_it_repeats(self, hand: Hand) -> None:
        hand.unchanged("a")
        first = hand.publish("a.x", key="k", body=b'{"n":1}')
        assert (first.state, first.same_as) == (Q, None)
        second = hand.publish("a.x", key="k", body=b'{"n":1}')
        assert (second.state, second.same_as) == (U, first.id)
        assert hand.journey(second.id) == "LU"
        message = hand.store.message(second.id)
        assert message is not None
        assert (message.state, message.same_as, message.deliveries) == (U, first.id, [])
        event = hand.last_event()
        assert (event.from_state, event.to_state, event.same_as, event.queue) == (L, U, first.id, None)
        assert hand.store.ready("a") == 1
        assert hand.store.body(second.id) == b'{"n":1}'

    @wants(Feature.OBJECTS)
    def test_one_without_a_key_leaves_its_neighbours_compared(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.publish("a.x")
        group = [publish("a.x"), publish("a.x", key="k"), publish("a.x", key="k"), publish("a.x")]
        assert [published.state for published in hand.ask(*group)] == [Q, Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_json_is_compared_by_what_it_says_and_all_else_by_its_bytes(self, hand: Hand) -> None:
        hand.unchanged("a")
        states = [
            hand.publish("a.x", key="k", body=body).state
            for body in (
                b'{"n":1,"m":[1.0]}',
                b' { "m" : [1], "n" : 1 }',
                b'{"n":2,"m":[1]}',
                b'{"n":1,"m":[1]}',
                b"text",
                b"text",
                b"text ",
            )
        ]
        assert states == [Q, U, Q, Q, Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_paths_that_are_ignored_may_differ(self, hand: Hand) -> None:
        hand.unchanged("a", "$.exportedAt", "$.rows[*].seen")
        bodies = (
            b'{"exportedAt":1,"rows":[{"n":1,"seen":1}]}',
            b'{"exportedAt":2,"rows":[{"n":1,"seen":9}]}',
            b'{"exportedAt":2,"rows":[{"n":2}]}',
        )
        assert [hand.publish("a.x", key="k", body=body).state for body in bodies] == [Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_other_keys_other_objects_and_no_key_are_other_things(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.unchanged("b")
        assert hand.publish("a.x", key="k").state is Q
        assert hand.publish("a.x", key="j").state is Q
        assert hand.publish("b.x", key="k").state is Q
        assert hand.publish("b.x", key="k", object="a").state is U, "the object counts, not the topic"
        for _ in range(2):
            assert hand.publish("a.x").state is Q

    @wants(Feature.OBJECTS)
    def test_it_is_compared_with_the_last_one_and_with_no_other(self, hand: Hand) -> None:
        hand.unchanged("a")
        states = [hand.publish("a.x", key="k", body=body).state for body in (b"1", b"2", b"1", b"1", b"2")]
        assert states == [Q, Q, Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_an_unchanged_one_is_not_the_last_one(self, hand: Hand) -> None:
        hand.unchanged("a", window_us=10 * SECOND)
        first = hand.publish("a.x", key="k")
        hand.clock.move(6)
        assert hand.publish("a.x", key="k").same_as == first.id
        hand.clock.move(3.999999)
        assert hand.publish("a.x", key="k").same_as == first.id
        hand.clock.move(0.000001)
        assert hand.publish("a.x", key="k").state is Q, "the window counts from the one it repeats"

    @wants(Feature.OBJECTS)
    def test_force_delivers_it_all_the_same(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.publish("a.x", key="k")
        forced = hand.publish("a.x", key="k", force=True)
        assert forced.state is Q
        assert hand.publish("a.x", key="k").same_as == forced.id

    @pytest.mark.parametrize("end", [E, "I", C, T])
    @wants(Feature.OBJECTS)
    def test_what_ended_in_vain_is_not_repeated_but_sent_again(self, hand: Hand, end: object) -> None:
        hand.unchanged("a")
        hand.declare("a", retries=1)
        ttl_us = SECOND if end is T else None
        first = hand.publish("a.x", key="k", ttl_us=ttl_us)
        if end is T:
            hand.wait(1)
        elif end is C:
            hand.do(Remove("a", first.id))
        elif end == "I":
            hand.confirm(hand.one("a"), INVALID)
        else:
            for _ in range(2):
                hand.confirm(hand.one("a"), RETRY, delay_us=0)
        second = hand.publish("a.x", key="k")
        assert second.state is Q
        assert hand.publish("a.x", key="k").same_as == second.id

    @wants(Feature.OBJECTS)
    def test_how_it_ended_counts_even_when_it_is_forgotten(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        hand.unchanged("a")
        cancelled, completed = (hand.publish("a.x", key=key).id for key in "cd")
        hand.do(Remove("a", cancelled))
        hand.confirm(hand.one("a"))
        hand.wait(8 * DAY)
        hand.reap()
        assert hand.store.message(cancelled) is None
        assert hand.store.message(completed) is None
        if self.durable:  # type: ignore[attr-defined]
            restart()
        assert hand.publish("a.x", key="c").state is Q
        assert hand.publish("a.x", key="d").same_as == completed
        hand.clock.move(23 * DAY)
        hand.reap()
        assert hand.publish("a.x", key="d").state is Q, "the window is over"

    @wants(Feature.OBJECTS)
    def test_a_redriven_one_counts_again(self, hand: Hand) -> None:
        hand.unchanged("a")
        first = hand.publish("a.x", key="k")
        hand.do(Remove("a", first.id))
        hand.redrive(states=frozenset({C}))
        assert hand.publish("a.x", key="k").same_as == first.id

    @wants(Feature.OBJECTS)
    def test_idempotency_comes_before_unchanged(self, hand: Hand) -> None:
        hand.unchanged("a")
        first = hand.publish("a.x", key="k", idempotency_key="i")
        assert hand.publish("a.x", key="k", idempotency_key="i") == first
        repeated = hand.publish("a.x", key="k", idempotency_key="j")
        assert (repeated.state, repeated.same_as) == (U, first.id)
        assert hand.publish("a.x", key="k", idempotency_key="j") == repeated
        own = hand.publish("a.x", key="k", id="own")
        assert (own.state, own.same_as) == (U, first.id)
        assert hand.publish("a.x", key="k", id="own") == own

    @wants(Feature.OBJECTS)
    def test_repetitions_inside_one_group_are_seen(self, hand: Hand) -> None:
        hand.unchanged("a")
        results = hand.ask(*(publish("a.x", key="k", body=body) for body in (b"1", b"1", b"2", b"2", b"1")))
        assert [result.state for result in results] == [Q, U, Q, U, Q]
        many = hand.publish_many(*(publish("a.x", key="k", body=body) for body in (b"1", b"3", b"3", b"1")))
        assert [result.state for result in many] == [U, Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_what_is_unchanged_needs_no_room(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.declare("a", max_messages=1)
        hand.publish("a.x", key="k")
        assert hand.publish("a.x", key="k").state is U
        many = [publish("a.x", key="k"), publish("a.x", key="k")]
        assert [result.state for result in hand.do(PublishMany(many))] == [U, U]
        with pytest.raises(QueueFull):
            hand.publish("a.x", key="k", body=b"2")
        with pytest.raises(QueueFull):
            hand.publish_many(publish("a.x", key="k"), publish("a.x", key="k", force=True))
        assert hand.store.ready("a") == 1

    @wants(Feature.OBJECTS)
    def test_unchanged_ones_are_counted_by_producer(self, hand: Hand, restart: Callable[[], None]) -> None:
        hand.unchanged("a")
        for producer in ("erp", "erp", "erp", None, "crm"):
            hand.publish("a.x", key="k", producer=producer)
        info = hand.store.object("a")
        assert info is not None
        assert info.unchanged == {"erp": 2, "anonymous": 1, "crm": 1}
        if self.durable:  # type: ignore[attr-defined]
            restart()
            assert hand.store.object("a") == info
        assert hand.store.objects() == [info]

    @wants(Feature.OBJECTS)
    def test_what_is_unchanged_reaches_no_channel(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.channel("c", "a.*")
        ids = [hand.publish("a.x", key="k").id for _ in range(2)]
        assert hand.states(ids[0]) == "@c:Q a:Q"
        assert hand.states(ids[1]) == ""
        hand.channel("d", "a.*", start=1)
        hand.work()
        assert [heard.id for heard in hand.listen("d", n=9)] == ids[:1]

    @wants(Feature.OBJECTS)
    def test_a_hash_that_came_with_the_message_is_the_one_compared(self, hand: Hand) -> None:
        hand.unchanged("a", "$.at")
        first = hand.publish("a.x", key="k", body=b'{"at":1}')
        given = content_hash(b'{"at":2}', ("$.at",))
        assert hand.publish("a.x", key="k", body=b"anything", content=given).same_as == first.id

    @wants(Feature.OBJECTS)
    def test_a_large_body_is_compared_like_a_small_one(self, hand: Hand) -> None:
        hand.unchanged("a")
        size = min(hand.store.inline_bytes + 1, 100_000)
        results = []
        for body in (b"1" * size, b"1" * size, b"2" * size):
            command = publish("a.x", key="k", body=body)
            command.body = hand.store.stage(body)
            command.hash = payload_hash(body)
            results.append(hand.do(command).state)
        assert results == [Q, U, Q]

    @wants(Feature.OBJECTS)
    def test_turning_it_off_and_on_begins_anew(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.publish("a.x", key="k")
        hand.do(DeclareObject("a", ObjectPolicy()))
        assert hand.publish("a.x", key="k").state is Q
        hand.unchanged("a")
        assert hand.publish("a.x", key="k").state is Q
        assert hand.publish("a.x", key="k").state is U
        assert hand.do(DeleteObject("a")) is True
        assert hand.do(DeleteObject("a")) is False
        assert hand.store.object("a") is None
        assert hand.publish("a.x", key="k").state is Q

    @wants(Feature.OBJECTS)
    def test_an_objects_policy_survives_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        policy = ObjectPolicy(unchanged=Unchanged(ignore=("$.at",), window_us=5 * SECOND), route="inline")
        assert hand.do(DeclareObject("a", policy)).created
        first = hand.publish("a.x", key="k", body=b'{"at":1}')
        restart()
        info = hand.store.object("a")
        assert info is not None
        assert info.policy == policy
        assert hand.publish("a.x", key="k", body=b'{"at":2}').same_as == first.id
        assert not hand.do(DeclareObject("a", policy)).created

    @wants(Feature.OBJECTS)
    def test_an_unchanged_message_is_forgotten_like_any_other(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.publish("a.x", key="k")
        id = hand.publish("a.x", key="k").id
        hand.clock.move(6 * DAY)
        hand.reap()
        assert hand.store.body(id) == b"body"
        hand.clock.move(DAY + 1)
        hand.reap()
        assert hand.store.message(id) is None

    # ── latestOnly ──────────────────────────────────────────────────────────────────────────

    def test_a_newer_message_makes_the_waiting_one_obsolete(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        old, new = (hand.publish("a.x", key="k", body=body).id for body in (b"1", b"2"))
        assert (hand.state(old), hand.state(new)) == (O, Q)
        assert hand.message_state(old) is O
        assert hand.journey(old) == "LQO"
        event = hand.last_event()
        assert (event.message_id, event.to_state, event.reason) == (old, O, "newer-message")
        assert hand.one("a").id == new
        assert hand.fetch("a") == []

    @wants(Feature.SEVERAL)
    def test_other_things_are_left_alone(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        ids = [
            hand.publish("a.x", key="k").id,
            hand.publish("a.x", key="j").id,
            hand.publish("a.x").id,
            hand.publish("a.x").id,
            hand.publish("a.x", key="k", object="b").id,
        ]
        assert [hand.states(id) for id in ids] == ["a:Q", "a:Q", "a:Q", "a:Q", "a:Q b:Q"]

    def test_without_the_policy_nothing_becomes_obsolete(self, hand: Hand) -> None:
        old = hand.publish("a.x", key="k").id
        hand.publish("a.x", key="k")
        assert hand.state(old) is Q

    def test_what_is_fetched_stays_and_what_waits_for_a_retry_does_not(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True, retries=9)
        fetched = hand.publish("a.x", key="k").id
        hand.confirm(hand.one("a"), RETRY, delay_us=5 * SECOND)
        assert hand.state(fetched) is R
        last = hand.publish("a.x", key="k").id
        assert hand.state(fetched) is O
        got = hand.one("a")
        hand.publish("a.x", key="k")
        assert hand.state(last) is F
        assert hand.confirm(got).state is S

    @pytest.mark.parametrize("way", ["retry", "not-interested", "lease", "release"])
    @pytest.mark.parametrize("ended", [True, False])
    def test_what_would_wait_again_behind_a_newer_one_is_obsolete_at_once(
        self, hand: Hand, way: str, ended: bool
    ) -> None:
        hand.declare("a", latest_only=True, retries=9, lease_us=10 * SECOND)
        old = hand.publish("a.x", key="k").id
        got = hand.one("a", "ann")
        new = hand.publish("a.x", key="k").id
        if ended:
            hand.confirm(hand.one("a", "bob"))
        if way == "lease":
            hand.wait(10)
            assert hand.confirm(got).state is None, "it has ended"
        elif way == "release":
            assert hand.do(Release([got.receipt])) == [Settled(got.receipt, old, O)]
        else:
            for _ in range(2):
                assert hand.confirm(got, Outcome(way), reason="busy", delay_us=0).state is O
        assert hand.state(old) is O
        *_, before, last = hand.store.message(old).journey  # type: ignore[union-attr]
        assert (last.from_state, last.to_state, last.reason) == (before.to_state, O, "newer-message")
        assert before.reason == {"lease": "lease-over", "release": "released"}.get(way, "busy")
        hand.wait(10)
        assert [one.id for one in hand.fetch("a", n=9)] == ([] if ended else [new])

    def test_a_dead_letter_behind_a_newer_one_stays_a_dead_letter(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True, retries=0)
        old = hand.publish("a.x", key="k").id
        got = hand.one("a")
        hand.publish("a.x", key="k")
        assert hand.confirm(got, RETRY).state is E
        assert hand.state(old) is E

    @wants(Feature.KEPT)
    def test_a_redriven_one_may_be_older_until_another_newer_one_comes(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True, retries=9)
        old = hand.publish("a.x", key="k").id
        new = hand.publish("a.x", key="k").id
        hand.confirm(hand.one("a"))
        assert hand.redrive(states=frozenset({O})).done == 1
        for _ in range(2):
            got = hand.one("a")
            assert got.id == old
            assert hand.confirm(got, RETRY, delay_us=0).state is R
        got = hand.one("a")
        last = hand.publish("a.x", key="k").id
        assert hand.confirm(got, RETRY, delay_us=0).state is O
        assert [one.id for one in hand.fetch("a", n=9)] == [last]
        assert hand.state(new) is S

    @wants(Feature.OBJECTS)
    def test_one_that_comes_late_behind_a_newer_one_is_obsolete_at_once(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        held = hand.publish("a.x", key="k", hold=True).id
        hand.publish(object="a", key="k", queue="a")
        hand.confirm(hand.one("a"))
        hand.decide(held)
        assert hand.journey(held) == "LQO"
        assert hand.fetch("a") == []

    @wants(Feature.SEVERAL)
    def test_a_dead_letter_that_comes_behind_a_newer_one_is_obsolete_at_once(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        hand.declare("b", retries=0, dead="a")
        dead = hand.publish(object="a", key="k", queue="b").id
        got = hand.one("b")
        hand.publish(object="a", key="k", queue="a")
        hand.confirm(hand.one("a"))
        assert hand.confirm(got, RETRY, queue="b").state is E
        assert hand.states(dead) == "a:O b:E"
        assert hand.fetch("a") == []

    def test_what_is_delayed_becomes_obsolete_too(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        old = hand.publish("a.x", key="k", delay_us=SECOND).id
        new = hand.publish("a.x", key="k", delay_us=SECOND).id
        assert (hand.state(old), hand.state(new)) == (O, Q)
        hand.wait(1)
        assert hand.one("a").id == new

    @wants(Feature.ATOMIC)
    def test_obsolete_inside_one_group(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        results = hand.ask(*(publish("a.x", key="k", body=bytes([n])) for n in range(3)))
        assert [hand.state(result.id) for result in results] == [O, O, Q]
        many = hand.publish_many(*(publish("a.x", key="k", body=bytes([n])) for n in range(3, 5)))
        assert [hand.state(result.id) for result in [*results[2:], *many]] == [O, O, Q]
        assert hand.store.ready("a") == 1

    def test_what_its_group_has_fetched_is_not_made_obsolete(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        old = hand.publish("a.x", key="k", body=b"1").id
        hand.ask(Fetch(queue="a", consumer="ann"), publish("a.x", key="k", body=b"2"))
        assert hand.journey(old) == "LQF"
        assert hand.state(old) is F

    @wants(Feature.SEVERAL)
    def test_only_the_queue_with_the_policy_lets_go(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        old = hand.publish("a.x", "b.x", key="k").id
        hand.publish("a.x", "b.x", key="k")
        assert hand.states(old) == "a:O b:Q"
        assert hand.message_state(old) is Q
        hand.confirm(hand.one("b"), queue="b")
        assert hand.message_state(old) is O
        assert hand.states(old) == "a:O b:S"

    @wants(Feature.CHANNELS)
    def test_a_channel_can_keep_the_latest_only(self, hand: Hand) -> None:
        hand.channel("c", "a.*", latest_only=True)
        old = hand.publish("a.x", key="k").id
        new = hand.publish("a.x", key="k").id
        assert hand.states(old) == "@c:O a:Q"
        assert [heard.id for heard in hand.listen("c", n=9)] == [new]
        hand.channel("d", "a.*", start=1, latest_only=True)
        hand.work()
        assert [heard.id for heard in hand.listen("d", n=9)] == [new]

    @pytest.mark.parametrize("ended", [True, False])
    @wants(Feature.CHANNELS)
    def test_a_backfill_brings_nothing_older_than_what_the_channel_had(self, hand: Hand, ended: bool) -> None:
        old = hand.publish("a.x", key="k").id
        other = hand.publish("a.x", key="j").id
        hand.channel("c", "a.*", latest_only=True)
        new = hand.publish("a.x", key="k").id
        (got,) = hand.listen("c")
        assert got.id == new
        if ended:
            hand.do(Confirm(queue="c", kind=Kind.CHANNEL, receipts=[got.receipt]))
        hand.channel("c", "a.*", start=1, latest_only=True)
        hand.work()
        assert hand.states(old) == "a:Q @c:O"
        assert [heard.id for heard in hand.listen("c", n=9)] == [other]

    def test_a_policy_that_comes_later_counts_for_what_waits_already(self, hand: Hand) -> None:
        old, other = hand.publish("a.x", key="k").id, hand.publish("a.x", key="k").id
        hand.declare("a", latest_only=True)
        assert (hand.state(old), hand.state(other)) == (Q, Q)
        new = hand.publish("a.x", key="k").id
        assert [hand.state(id) for id in (old, other, new)] == [O, O, Q]
        hand.declare("a", latest_only=False)
        hand.publish("a.x", key="k")
        assert hand.state(new) is Q

    @wants(Feature.KEPT)
    def test_an_obsolete_one_can_be_redriven_and_becomes_obsolete_again(self, hand: Hand) -> None:
        hand.declare("a", latest_only=True)
        old, new = hand.publish("a.x", key="k").id, hand.publish("a.x", key="k").id
        assert hand.redrive(states=frozenset({O})).done == 1
        assert (hand.state(old), hand.state(new)) == (Q, Q)
        hand.publish("a.x", key="k")
        assert (hand.state(old), hand.state(new)) == (O, O)

    @wants(Feature.OBJECTS)
    def test_an_obsolete_message_was_not_in_vain(self, hand: Hand) -> None:
        hand.unchanged("a")
        hand.declare("a", latest_only=True)
        hand.publish("a.x", key="k", body=b"1")
        second = hand.publish("a.x", key="k", body=b"2")
        hand.confirm(hand.one("a"))
        assert hand.message_state(second.id) is X
        assert hand.publish("a.x", key="k", body=b"2").same_as == second.id
        assert S is hand.state(second.id)
