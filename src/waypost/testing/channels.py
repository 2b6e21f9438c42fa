"""Channels and topics, as every store must have them: part of `StoreTests`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..commands import (
    Confirm,
    DeclareChannel,
    DeclareObject,
    DeleteChannel,
    Extend,
    Fetch,
    JobKind,
    Release,
    Remove,
    Work,
)
from ..delivery import C, E, F, N, Outcome, Q, R, S, X
from ..destinations import Kind
from ..errors import ChannelNotFound, ConsumerRequired, LogTrimmed, QueueFull, QueueNotFound
from ..instants import SECOND
from ..objects import ObjectPolicy
from ..policy import Policy
from ..store import Feature
from .features import wants
from .hand import Hand, publish

RETRY, INVALID, NOT_INTERESTED = Outcome.RETRY, Outcome.INVALID, Outcome.NOT_INTERESTED
DAY = 86_400.0


def confirm(hand: Hand, receipt: str, outcome: Outcome = Outcome.SUCCESS, channel: str = "c") -> str | None:
    """The letter that follows."""
    command = Confirm(queue=channel, kind=Kind.CHANNEL, receipts=[receipt], outcome=outcome, delay_us=0)
    (settled,) = hand.do(command)
    return None if settled.state is None else settled.state.name


@wants(Feature.CHANNELS)
class ChannelTests:
    # ── what it gets ────────────────────────────────────────────────────────────────────────

    def test_a_channel_gets_every_message_whose_topics_match(self, hand: Hand) -> None:
        hand.channel("c", "fruit.*", "a.x")
        hand.channel("d", "*")
        assert hand.states(hand.publish("fruit.apple").id) == "@c:Q @d:Q fruit:Q"
        assert hand.states(hand.publish("a.x").id) == "@c:Q @d:Q a:Q"
        assert hand.states(hand.publish("fruit").id) == "@d:Q fruit:Q"
        assert hand.states(hand.publish("a.y").id) == "@d:Q a:Q"
        assert hand.states(hand.publish(object="fruit").id) == "fruit:Q", "no topic, no channel"

    def test_a_message_that_matches_twice_comes_once(self, hand: Hand) -> None:
        hand.channel("c", "a.*", "a.x", "b.*")
        id = hand.publish("a.x", "b.y").id
        assert hand.states(id) == "@c:Q a:Q b:Q"

    def test_a_message_sent_to_one_queue_comes_to_the_channels_of_its_topics(self, hand: Hand) -> None:
        hand.channel("c", "b.*")
        assert hand.states(hand.publish("b.x", queue="a").id) == "@c:Q a:Q"

    def test_the_log_says_which_channel(self, hand: Hand) -> None:
        hand.channel("a", "a.*")
        hand.publish("a.x")
        _, in_queue, in_channel = hand.store.events(1, 3)
        assert (in_queue.queue, in_queue.channel) == ("a", None)
        assert (in_channel.queue, in_channel.channel) == (None, "a")
        (delivery,) = hand.found(channel="a")
        assert (delivery.queue, delivery.channel, delivery.state) == (None, "a", Q)

    def test_a_queue_and_a_channel_of_one_name_do_not_meet(self, hand: Hand) -> None:
        hand.channel("a", "a.*")
        hand.publish("a.x")
        got = hand.one("a")
        assert hand.store.ready("a") == 0
        assert hand.store.ready("a", Kind.CHANNEL) == 1
        assert confirm(hand, got.receipt, channel="a") is None, (
            "a receipt of the queue is none of the channel"
        )
        (heard,) = hand.listen("a")
        assert heard.id == got.id
        assert hand.confirm(heard.receipt).state is None
        assert confirm(hand, heard.receipt, channel="a") == "S"
        assert hand.confirm(got).state is S

    def test_each_subscriber_has_its_own_copy_of_the_way_and_none_of_the_payload(self, hand: Hand) -> None:
        for name in ("c", "d"):
            hand.channel(name, "a.*")
        id = hand.publish("a.x", body=b"once").id
        (first,), (second,) = hand.listen("c"), hand.listen("d")
        assert (first.id, hand.body(first)) == (second.id, hand.body(second)) == (id, b"once")
        confirm(hand, first.receipt)
        assert hand.states(id) == "@c:S @d:F a:Q"

    def test_messages_come_in_order_and_as_many_as_asked(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        ids = [hand.publish("a.x", priority=5).id for _ in range(3)]
        first = hand.publish("a.x", priority=0).id
        assert [got.id for got in hand.listen("c", n=2)] == [first, ids[0]]
        assert [got.id for got in hand.listen("c", n=9)] == ids[1:]
        assert hand.listen("c") == []

    def test_a_group_says_which_channels_have_something_now(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        applied = hand.store.apply([publish("a.x"), publish("b.x")])
        assert (applied.ready, applied.ready_channels) == ({"a": 1, "b": 1}, {"c": 1})

    # ── what it does not touch ──────────────────────────────────────────────────────────────

    def test_channels_never_count_for_the_messages_state(self, hand: Hand) -> None:
        hand.channel("c", "a.*", retries=1)
        id = hand.publish("a.x").id
        assert hand.message_state(id) is Q
        (heard,) = hand.listen("c")
        assert hand.message_state(id) is Q
        assert confirm(hand, heard.receipt, INVALID) == "I"
        assert hand.message_state(id) is Q
        hand.confirm(hand.one("a"))
        assert hand.message_state(id) is X
        other = hand.publish("a.x", body=b"2").id
        hand.confirm(hand.one("a"))
        assert hand.message_state(other) is X, "though the channel still has it"
        assert hand.states(other) == "@c:Q a:S"
        assert hand.journey(other) == "LQQFSX"

    def test_a_message_for_channels_only_completes_at_once(self, hand: Hand) -> None:
        hand.declare("a", complete=0)
        hand.channel("c", "a.*")
        published = hand.publish("a.x")
        assert published.state is X
        assert hand.journey(published.id) == "LQX"
        (heard,) = hand.listen("c")
        confirm(hand, heard.receipt)
        assert hand.journey(published.id) == "LQXFS"
        assert hand.message_state(published.id) is X

    def test_a_message_whose_channel_still_has_it_keeps_its_body(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0)
        hand.channel("c", "a.*", keep_us=0)
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"))
        hand.wait(8 * DAY)
        hand.reap()
        assert hand.store.body(id) == b"body"
        (heard,) = hand.listen("c")
        confirm(hand, heard.receipt)
        hand.wait(8 * DAY)
        hand.reap()
        assert hand.store.message(id) is None

    # ── confirm, lease, policy ──────────────────────────────────────────────────────────────

    def test_not_interested_ends_it_in_a_channel(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        id = hand.publish("a.x").id
        for consumer in ("ann", "anonymous"):
            (heard,) = hand.listen("c", consumer) or hand.listen("c", consumer)
            assert confirm(hand, heard.receipt, NOT_INTERESTED) == "N"
            assert confirm(hand, heard.receipt, NOT_INTERESTED) == "N", "a repeat gets the same answer"
            assert hand.listen("c", "bob") == []
            assert hand.states(id) == "@c:N a:Q"
            hand.job(JobKind.REDRIVE, channel="c", states=frozenset({N}))
        assert hand.states(id) == "@c:Q a:Q"

    def test_what_nobody_confirms_comes_again_and_ends_as_a_dead_letter(self, hand: Hand) -> None:
        hand.channel("c", "a.*", retries=1, lease_us=5 * SECOND)
        id = hand.publish("a.x").id
        (heard,) = hand.listen("c")
        hand.wait(6)
        assert hand.states(id) == "@c:R a:Q"
        (again,) = hand.listen("c")
        assert again.attempt == 2
        assert confirm(hand, again.receipt, RETRY) == "E"
        assert confirm(hand, heard.receipt) is None
        assert hand.states(id) == "@c:E a:Q"
        assert hand.message_state(id) is Q

    def test_a_channel_has_its_own_policy(self, hand: Hand) -> None:
        hand.declare("a", lease_us=60 * SECOND)
        hand.channel("c", "a.*", lease_us=3 * SECOND, ttl_us=20 * SECOND, kick=True)
        hand.channel("two", "a.*", complete=2)
        id = hand.publish("a.x").id
        assert hand.states(id) == "a:Q @c:Q @two:Q @two:Q"
        (heard,) = hand.listen("c")
        assert heard.until_at == hand.clock.now + 3 * SECOND
        assert hand.states(id) == "a:Q @c:K @two:Q @two:Q"
        with pytest.raises(ConsumerRequired):
            hand.listen("two")
        assert len(hand.listen("two", "ann", n=5)) == 1
        late = hand.publish("a.x").id
        hand.wait(21)
        assert hand.states(late) == "a:Q @c:T @two:Q @two:Q"
        info = hand.store.channel("c")
        assert info is not None
        assert (info.policy.lease_us, info.topics) == (3 * SECOND, ("a.*",))

    def test_per_topic_counts_the_topics_that_the_channel_wants(self, hand: Hand) -> None:
        hand.channel("c", "a.*", complete="per_topic")
        assert hand.states(hand.publish("a.x", "a.y", "b.z").id).count("@c:Q") == 2

    def test_a_channel_without_slots_gets_nothing(self, hand: Hand) -> None:
        hand.channel("c", "a.*", complete=0)
        assert hand.states(hand.publish("a.x").id) == "a:Q"

    def test_extend_release_and_remove_work_in_a_channel(self, hand: Hand) -> None:
        hand.channel("c", "a.*", lease_us=5 * SECOND)
        id = hand.publish("a.x").id
        (heard,) = hand.listen("c")
        command = Extend(queue="c", kind=Kind.CHANNEL, receipts=[heard.receipt], lease_us=60 * SECOND)
        assert hand.do(command)[0].until_at == hand.clock.now + 60 * SECOND
        hand.wait(30)
        assert hand.states(id) == "@c:F a:Q"
        hand.do(Release([heard.receipt]))
        assert hand.states(id) == "@c:Q a:Q"
        assert hand.do(Remove("c", id, Kind.CHANNEL)) is True
        assert hand.states(id) == "@c:C a:Q"
        assert hand.do(Remove("c", id, Kind.CHANNEL)) is False

    def test_a_paused_channel_collects_and_hands_out_nothing(self, hand: Hand) -> None:
        hand.channel("c", "a.*", paused=True)
        id = hand.publish("a.x").id
        assert hand.listen("c") == []
        assert hand.store.ready("c", Kind.CHANNEL) == 0
        applied = hand.store.apply([DeclareChannel(name="c", topics=("a.*",))])
        assert applied.ready_channels == {"c": 1}
        assert [heard.id for heard in hand.listen("c")] == [id]

    def test_a_full_channel_refuses_for_all_or_none(self, hand: Hand) -> None:
        hand.channel("c", "a.*", max_messages=1)
        hand.publish("a.x")
        with pytest.raises(QueueFull):
            hand.publish("a.x", "b.x")
        assert hand.store.queue("b") is None
        assert hand.store.ready("a") == 1
        hand.publish("b.x")

    def test_a_channel_can_order_by_key(self, hand: Hand) -> None:
        hand.channel("c", "a.*", order="key")
        first, _, other = (hand.publish("a.x", key=key).id for key in ("k", "k", "j"))
        heard = hand.listen("c", n=9)
        assert [got.id for got in heard] == [first, other]
        confirm(hand, heard[0].receipt)
        assert len(hand.listen("c", n=9)) == 1

    def test_dead_letters_of_a_channel_go_to_its_dead_queue(self, hand: Hand) -> None:
        hand.channel("c", "a.*", retries=1, dead="graves")
        id = hand.publish("a.x").id
        for _ in range(2):
            (heard,) = hand.listen("c")
            confirm(hand, heard.receipt, RETRY)
        assert hand.states(id) == "@c:E a:Q graves:Q"

    # ── declaring, changing, deleting ───────────────────────────────────────────────────────

    def test_unknown_channels_are_refused(self, hand: Hand) -> None:
        hand.declare("c")
        for command in (
            Fetch(queue="c", kind=Kind.CHANNEL),
            Confirm(queue="c", kind=Kind.CHANNEL, receipts=["1-0000000000000000"]),
            Extend(queue="c", kind=Kind.CHANNEL, receipts=["1-0000000000000000"]),
            DeleteChannel("c"),
        ):
            with pytest.raises(ChannelNotFound):
                hand.do(command)
        assert hand.store.channel("c") is None
        assert hand.store.ready("c", Kind.CHANNEL) is None
        hand.channel("d", "*")
        with pytest.raises(QueueNotFound):
            hand.fetch("d")

    def test_declaring_again_changes_topics_and_policy_and_brings_nothing_back(self, hand: Hand) -> None:
        assert hand.channel("c", "a.*").created
        before = hand.publish("a.x").id
        assert not hand.channel("c", "b.*", lease_us=7 * SECOND).created
        assert hand.states(hand.publish("a.x").id) == "a:Q"
        after = hand.publish("b.x").id
        assert [heard.id for heard in hand.listen("c", n=9)] == [before, after]
        (info,) = hand.store.channels()
        assert (info.name, info.topics, info.policy) == ("c", ("b.*",), Policy(lease_us=7 * SECOND))

    def test_a_deleted_channel_gets_nothing_and_what_waited_is_cancelled(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        waiting, out = hand.publish("a.x").id, hand.publish("a.x").id
        (heard,) = hand.listen("c")
        assert heard.id == waiting
        job = hand.delete_channel("c")
        assert (job.kind, job.matched, job.done) == (JobKind.DELETE, 2, 2)
        assert hand.states(out) == "@c:C a:Q"
        assert hand.last_event().reason == "channel-deleted"
        assert hand.states(hand.publish("a.x").id) == "a:Q"
        with pytest.raises(ChannelNotFound):
            confirm(hand, heard.receipt)
        hand.channel("c", "a.*")
        assert hand.listen("c") == [], "a new one of the name starts empty"

    def test_channels_survive_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        hand.channel("c", "a.*", "b.x", lease_us=3 * SECOND)
        hand.channel("gone", "*")
        hand.delete_channel("gone")
        id = hand.publish("a.x").id
        before = hand.store.channels(), hand.store.message(id), hand.store.ready("c", Kind.CHANNEL)
        restart()
        assert (hand.store.channels(), hand.store.message(id), hand.store.ready("c", Kind.CHANNEL)) == before
        later = hand.publish("b.x").id
        assert [heard.id for heard in hand.listen("c", n=9)] == [id, later]

    # ── from the past ───────────────────────────────────────────────────────────────────────

    def test_from_now_is_exact_within_a_group(self, hand: Hand) -> None:
        hand.ask(
            publish("a.x", id="before"),
            DeclareChannel(name="c", topics=("a.*",)),
            publish("a.x", id="after"),
        )
        assert [heard.id for heard in hand.listen("c", n=9)] == ["after"]

    def test_from_an_offset_brings_exactly_what_was_logged_from_there_on(self, hand: Hand) -> None:
        ids = [hand.publish("a.x").id for _ in range(4)]
        hand.publish("b.x")
        message = hand.store.message(ids[1])
        assert message is not None
        declared = hand.channel("c", "a.*", start=message.sequence)
        assert declared.job is not None
        ids.append(hand.publish("a.x").id)
        hand.work()
        ids.append(hand.publish("a.x").id)
        assert [heard.id for heard in hand.listen("c", n=9)] == ids[1:]
        job = hand.store.job(declared.job)
        assert job is not None
        assert (job.kind, job.done) == (JobKind.BACKFILL, 3)
        reasons = {event.reason for event in hand.store.events(1, hand.store.bounds()[1]) if event.channel}
        assert reasons == {"backfill", None}

    def test_an_offset_in_the_middle_of_a_message_begins_with_the_next_one(self, hand: Hand) -> None:
        first, second = hand.publish("a.x"), hand.publish("a.x")
        hand.channel("c", "a.*", start=2)
        hand.work()
        assert [heard.id for heard in hand.listen("c", n=9)] == [second.id]
        hand.channel("d", "a.*", start=0)
        hand.work()
        assert [heard.id for heard in hand.listen("d", n=9)] == [first.id, second.id]

    def test_from_a_moment_brings_what_was_logged_from_then_on(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.clock.move(10)
        later = hand.publish("a.x").id
        hand.channel("c", "a.*", start_at=hand.clock.now)
        hand.work()
        assert [heard.id for heard in hand.listen("c", n=9)] == [later]
        hand.channel("d", "a.*", start_at=0)
        hand.work()
        assert len(hand.listen("d", n=9)) == 2

    def test_an_offset_beyond_the_head_is_now(self, hand: Hand) -> None:
        hand.publish("a.x")
        assert hand.channel("c", "a.*", start=1_000).job is None
        id = hand.publish("a.x").id
        assert [heard.id for heard in hand.listen("c", n=9)] == [id]

    def test_an_offset_that_is_not_kept_any_more_is_refused(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.clock.move(8 * DAY)
        hand.reap()
        hand.publish("a.x")
        with pytest.raises(LogTrimmed):
            hand.channel("c", "a.*", start=1)
        assert hand.store.channel("c") is None
        hand.channel("c", "a.*", start=hand.store.bounds()[0])
        hand.work()
        assert len(hand.listen("c", n=9)) == 1

    def test_a_backfill_works_in_slices_and_nothing_comes_twice(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        ids = [hand.publish("a.x").id for _ in range(7)]
        hand.channel("c", "a.*", start=1)
        assert hand.do(Work(3)) is True
        assert hand.store.ready("c", Kind.CHANNEL) == 3
        ids.append(hand.publish("a.x").id)
        hand.channel("c", "a.*", start=1)
        restart_or_not = restart if self.durable else lambda: None  # type: ignore[attr-defined]
        restart_or_not()
        hand.work(2)
        assert [heard.id for heard in hand.listen("c", n=20)] == ids

    def test_a_backfill_passes_what_has_no_body_any_more(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0)
        hand.publish("a.x")
        hand.confirm(hand.one("a"))
        hand.clock.move(1)
        hand.reap()
        kept = hand.publish("a.x").id
        hand.channel("c", "a.*", start=1)
        hand.work()
        assert [heard.id for heard in hand.listen("c", n=9)] == [kept]

    def test_a_backfill_of_a_channel_that_was_deleted_ends(self, hand: Hand) -> None:
        for _ in range(3):
            hand.publish("a.x")
        hand.channel("c", "a.*", start=1)
        hand.do(Work(1))
        hand.delete_channel("c")
        assert hand.store.apply([]).working is False
        assert {found.state for found in hand.found(channel="c")} == {C}

    def test_the_messages_state_and_its_queue_are_left_alone_by_a_backfill(self, hand: Hand) -> None:
        done, out, dead = (hand.publish("a.x").id for _ in range(3))
        hand.declare("a", retries=1)
        hand.confirm(hand.one("a"))
        held = hand.one("a")
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        hand.channel("c", "a.*", start=1)
        hand.work()
        assert [hand.message_state(id) for id in (done, out, dead)] == [X, F, E]
        heard = hand.listen("c", n=9)
        for one in heard:
            assert confirm(hand, one.receipt) == "S"
        assert hand.confirm(held).state is S
        assert hand.journey(out) == "LQFQFSSX", "X by the queue's confirm alone"
        assert [hand.message_state(id) for id in (done, out, dead)] == [X, X, E]

    def test_what_is_logged_and_not_routed_comes_once_when_it_is(self, hand: Hand) -> None:
        hand.do(DeclareObject("a", ObjectPolicy(route="spark")))
        held, other = hand.publish("a.x").id, hand.publish("a.x").id
        hand.channel("c", "a.*", start=1)
        hand.channel("now", "a.*")
        hand.decide(held)
        hand.work()
        assert [heard.id for heard in hand.listen("c", n=9)] == [held]
        hand.decide(other)
        assert [heard.id for heard in hand.listen("c", n=9)] == [other]
        assert hand.listen("now") == [], "they were logged before it began"

    def test_a_redrive_in_a_channel_leaves_the_queues_alone(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        id = hand.publish("a.x").id
        (heard,) = hand.listen("c")
        confirm(hand, heard.receipt)
        hand.confirm(hand.one("a"))
        assert hand.redrive(channel="c", states=frozenset({S})).done == 1
        assert hand.states(id) == "@c:Q a:S"
        assert hand.message_state(id) is X
        (again,) = hand.listen("c")
        assert again.attempt == 2

    def test_channels_are_counted_by_state(self, hand: Hand) -> None:
        hand.channel("c", "a.*", retries=3)
        for _ in range(4):
            hand.publish("a.x", body=b"12")
        one, two, _ = hand.listen("c", n=3)
        confirm(hand, one.receipt)
        confirm(hand, two.receipt, RETRY)
        info = hand.store.channel("c")
        assert info is not None
        assert info.states == {S: 1, R: 1, F: 1, Q: 1}
        assert (info.ready, info.bytes) == (2, 6)

    def test_many_channels_do_not_disturb_each_other(self, hand: Hand) -> None:
        hand.ask(*(DeclareChannel(name=f"c{n}", topics=(f"t{n % 7}.*",)) for n in range(70)))
        id = hand.publish("t3.x").id
        assert hand.states(id).count("@") == 10
        assert sum(hand.store.ready(f"c{n}", Kind.CHANNEL) or 0 for n in range(70)) == 10
