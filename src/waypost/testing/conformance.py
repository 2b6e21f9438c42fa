"""What every store must do: one sentence a test, in the order of the rulings.

A store's test is a subclass and the fixture `open_store`, which opens the same store again when called again
(if the store is `durable`). After each test the store's log is audited against its deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..commands import (
    Confirm,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Extended,
    Fetch,
    Fetched,
    JobKind,
    Kick,
    Publish,
    Published,
    PublishMany,
    Reap,
    Release,
    Remove,
    Settled,
    StartJob,
    Tick,
    Work,
)
from ..delivery import DEAD, ENDED, C, E, F, I, K, L, N, Outcome, Q, R, S, State, T, X
from ..errors import (
    ConsumerRequired,
    IdempotencyConflict,
    IdTaken,
    LogTrimmed,
    MessageNotFound,
    PayloadReaped,
    QueueFull,
    QueueNotFound,
)
from ..filters import Filter
from ..instants import SECOND
from ..message import Entropy, Envelope, make_id, make_receipt, parse_id, parse_receipt, payload_hash
from ..policy import DEFAULT, Policy
from ..store import Feature, Store
from .acts import ActTests
from .batches import BatchTests
from .channels import ChannelTests
from .clock import MovableClock, seeded_entropy
from .contents import ContentTests
from .decisions import ConsumerTests, DecisionTests
from .features import skip_without, wants
from .hand import Hand, audit, publish
from .moments import MomentTests
from .sealing import SealingTests
from .selections import SelectionTests

#: opens the store of this test, again with what it held when it is called again
OpenStore = Callable[[MovableClock, Entropy], Store]

DAY = 86_400.0
RETRY, INVALID, NOT_INTERESTED = Outcome.RETRY, Outcome.INVALID, Outcome.NOT_INTERESTED


class StoreTests(
    ActTests,
    ChannelTests,
    ContentTests,
    ConsumerTests,
    DecisionTests,
    SelectionTests,
    MomentTests,
    SealingTests,
    BatchTests,
):
    #: whether what it acknowledged is there again when it is opened again
    durable = True

    @pytest.fixture
    def clock(self) -> MovableClock:
        return MovableClock()

    @pytest.fixture
    def entropy(self) -> Entropy:
        return seeded_entropy()

    @pytest.fixture
    def hand(
        self, request: pytest.FixtureRequest, open_store: OpenStore, clock: MovableClock, entropy: Entropy
    ) -> Iterator[Hand]:
        hand = Hand(open_store(clock, entropy), clock)
        skip_without(hand.store, request.function)
        yield hand
        audit(hand.store)
        hand.store.close()

    @pytest.fixture
    def restart(self, open_store: OpenStore, hand: Hand, entropy: Entropy) -> Callable[[], None]:
        """Closes the store and opens it again."""

        def restart() -> None:
            if not self.durable:
                pytest.skip("this store keeps nothing")
            hand.store.close()
            hand.store = open_store(hand.clock, entropy)

        return restart

    # ── publish, fetch, confirm ─────────────────────────────────────────────────────────────

    def test_a_message_is_logged_queued_fetched_confirmed_and_completed(self, hand: Hand) -> None:
        published = hand.publish("a.x", body=b"hello")
        assert published.state is Q
        got = hand.one("a", "ann")
        assert (got.id, hand.body(got), got.attempt) == (published.id, b"hello", 1)
        assert hand.confirm(got) == Settled(got.receipt, got.id, S)
        assert hand.journey(got.id) == "LQFSX"
        assert hand.fetch("a", "ann") == []

    def test_a_reason_with_a_nul_is_no_hindrance(self, hand: Hand) -> None:
        published = hand.publish("a.x")
        assert hand.confirm(hand.one("a", "ann"), INVALID, reason="odd\0text").state is I
        (delivery,) = hand.store.find(Filter(id=published.id), 0, 10)[0]
        assert delivery.reason in ("odd\0text", "odd\ufffdtext")

    def test_what_the_producer_said_comes_back_unchanged(self, hand: Hand) -> None:
        said = Envelope(
            topics=("a.x", "a.süß & salty"),
            object="a",
            key="k-1",
            mime_type="text/plain; charset=utf-8",
            timestamp=-62_135_596_800_000_000,
            sent=hand.clock.now,
            producer="erp",
            encoding="gzip",
            meta=(("color", "red"), ("no", "")),
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        body = bytes(range(256))
        published = hand.do(Publish(envelope=said, body=body, hash=payload_hash(body)))
        got = hand.one("a")
        assert (got.envelope, hand.body(got), got.created_at) == (said, body, hand.clock.now)
        message = hand.store.message(published.id)
        assert message is not None
        assert (message.envelope, message.hash, message.size) == (said, payload_hash(body), 256)
        logged = hand.store.events(1, 1)[0]
        assert (logged.envelope, logged.hash, logged.size) == (said, payload_hash(body), 256)

    def test_an_empty_body_is_a_body(self, hand: Hand) -> None:
        published = hand.publish("a.x", body=b"")
        assert hand.body(hand.one("a")) == b""
        assert hand.store.body(published.id) == b""

    def test_a_body_put_away_beforehand_is_delivered_whole(self, hand: Hand) -> None:
        size = min(hand.store.inline_bytes + 1, 300_000)
        body = bytes(range(256)) * (size // 256 + 1)
        command = publish("a.x", body=body)
        command.body = hand.store.stage(body)
        published = hand.do(command)
        assert hand.body(hand.one("a")) == body
        message = hand.store.message(published.id)
        assert message is not None
        assert message.size == len(body)

    def test_ids_sort_in_log_order_and_carry_the_sequence(self, hand: Hand) -> None:
        ids = []
        for _ in range(20):
            ids.append(hand.publish("a.x").id)
            hand.clock.move(0.0004)
        assert ids == sorted(ids)
        assert len(set(ids)) == 20
        for id in ids:
            message, parsed = hand.store.message(id), parse_id(id)
            assert message is not None
            assert parsed is not None
            assert message.sequence == parsed.sequence

    def test_a_guessed_id_finds_nothing(self, hand: Hand) -> None:
        id = parse_id(hand.publish("a.x").id)
        assert id is not None
        guesses = [
            make_id(id.sequence, id.salt ^ 1, id.created_ms * 1_000),
            make_id(id.sequence, id.salt, id.created_ms * 1_000 + 1_000),
            make_id(id.sequence + 1, id.salt, id.created_ms * 1_000),
            make_id((1 << 48) - 1, id.salt, id.created_ms * 1_000),
            "no-such-message",
        ]
        for guess in guesses:
            assert hand.store.message(guess) is None
            assert hand.do(Remove("a", guess)) is False
            with pytest.raises(MessageNotFound):
                hand.store.body(guess)

    def test_fetching_confirming_or_extending_in_an_unknown_queue_is_refused(self, hand: Hand) -> None:
        for command in (
            Fetch(queue="nowhere"),
            Confirm(queue="nowhere", receipts=["1-0000000000000000"]),
            Extend(queue="nowhere", receipts=["1-0000000000000000"]),
            DeleteQueue("nowhere"),
        ):
            with pytest.raises(QueueNotFound):
                hand.do(command)
        assert hand.store.ready("nowhere") is None
        assert hand.store.queue("nowhere") is None

    def test_a_fetch_brings_as_many_as_asked_in_order(self, hand: Hand) -> None:
        ids = [hand.publish("a.x").id for _ in range(5)]
        assert [got.id for got in hand.fetch("a", n=3)] == ids[:3]
        assert [got.id for got in hand.fetch("a", n=10)] == ids[3:]

    def test_an_empty_fetch_leaves_no_trace_in_the_log(self, hand: Hand) -> None:
        hand.declare("a")
        assert hand.fetch("a") == []
        assert hand.store.bounds() == (1, 0)

    def test_a_fetch_can_ask_for_a_topic(self, hand: Hand) -> None:
        hand.publish("a.apple")
        pear = hand.publish("a.pear.green", "a.other")
        red = hand.publish("a.pear.red")
        assert [got.id for got in hand.fetch("a", topic="a.pear.red", n=5)] == [red.id]
        assert [got.id for got in hand.fetch("a", topic="a.pear.*", n=5)] == [pear.id]
        assert hand.fetch("a", topic="a.pear", n=5) == []

    @wants(Feature.SEVERAL)
    def test_messages_go_to_their_object_and_to_the_root_of_every_topic_once_each(self, hand: Hand) -> None:
        assert hand.states(hand.publish("b.x", "c.y", "b.z", object="a").id) == "a:Q b:Q c:Q"
        inferred = hand.publish("b.x", "c.y")
        assert hand.states(inferred.id) == "b:Q c:Q"
        message = hand.store.message(inferred.id)
        assert message is not None
        assert message.envelope.object == "b"
        assert hand.states(hand.publish().id) == "default:Q"

    def test_a_message_sent_to_one_queue_goes_nowhere_else(self, hand: Hand) -> None:
        hand.declare("a")
        published = hand.publish("b.x", object="c", queue="a", create=False)
        assert hand.states(published.id) == "a:Q"

    def test_a_publish_that_may_not_make_its_queue_is_refused_where_there_is_none(self, hand: Hand) -> None:
        with pytest.raises(QueueNotFound):
            hand.publish(queue="a", create=False)
        assert hand.store.queues() == []
        assert hand.store.bounds() == (1, 0)

    # ── 1: slots ────────────────────────────────────────────────────────────────────────────

    @wants(Feature.SEVERAL)
    def test_a_message_completes_when_as_many_consumers_as_asked_confirmed(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        id = hand.publish("a.x").id
        assert [delivery.slot for delivery in hand.deliveries(id)] == [0, 1]
        hand.confirm(hand.one("a", "ann"))
        assert X not in [event.to_state for event in hand.store.events(1, hand.store.bounds()[1])]
        hand.confirm(hand.one("a", "bob"))
        assert hand.last_event().to_state is X
        assert hand.states(id) == "a:S a:S"

    @wants(Feature.SEVERAL)
    def test_a_consumer_never_gets_two_slots_of_one_message(self, hand: Hand) -> None:
        hand.declare("a", complete=3)
        hand.publish("a.x")
        first = hand.one("a", "ann", n=5)
        assert hand.fetch("a", "ann", n=5) == []
        hand.confirm(first)
        assert hand.fetch("a", "ann", n=5) == []
        assert len(hand.fetch("a", "bob", n=5)) == 1

    @pytest.mark.parametrize("outcome", [INVALID, NOT_INTERESTED])
    @wants(Feature.SEVERAL)
    def test_who_ended_or_refused_one_slot_does_not_get_another_of_the_message(
        self, hand: Hand, outcome: Outcome
    ) -> None:
        hand.declare("a", complete=2)
        hand.publish("a.x")
        hand.confirm(hand.one("a", "ann"), outcome)
        assert hand.fetch("a", "ann", n=5) == []
        assert len(hand.fetch("a", "bob", n=5)) == 1

    @wants(Feature.SEVERAL)
    def test_who_may_not_have_the_first_message_gets_the_next(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        first, second = hand.publish("a.x"), hand.publish("a.x")
        assert hand.one("a", "ann").id == first.id
        assert hand.one("a", "ann").id == second.id
        assert [got.id for got in hand.fetch("a", "bob", n=9)] == [first.id, second.id]

    @wants(Feature.SEVERAL)
    def test_a_slot_that_comes_back_is_offered_again_to_who_was_passed_over(self, hand: Hand) -> None:
        hand.declare("a", complete=2, retries=5)
        first, second = hand.publish("a.x"), hand.publish("a.x")
        anns = hand.fetch("a", "ann", n=2)
        assert hand.fetch("a", "ann") == []
        hand.do(Release([anns[0].receipt]))
        assert hand.one("a", "ann").id == first.id
        hand.confirm(anns[1], RETRY, delay_us=0)
        assert hand.one("a", "ann").id == second.id

    @wants(Feature.SEVERAL)
    def test_a_slot_whose_lease_is_over_is_still_its_consumers_until_somebody_else_fetches_it(
        self, hand: Hand
    ) -> None:
        hand.declare("a", complete=2, retries=9)
        id = hand.publish("a.x").id
        hand.one("a", "bob", lease_us=SECOND)
        late = hand.one("a", "ann", lease_us=SECOND)
        hand.wait(2)
        assert hand.states(id) == "a:R a:R"
        again = hand.one("a", "ann", n=9)
        assert [delivery.state for delivery in hand.deliveries(id)] == [R, F], "the very slot, no sibling"
        assert hand.confirm(late).state is None
        assert hand.confirm(again).state is S
        assert hand.fetch("a", "ann", n=9) == []
        hand.confirm(hand.one("a", "bob"))
        assert hand.message_state(id) is X

    @wants(Feature.SEVERAL)
    def test_who_lost_its_slot_to_another_may_have_a_sibling(self, hand: Hand) -> None:
        hand.declare("a", complete=2, retries=9)
        id = hand.publish("a.x").id
        late = hand.one("a", "ann", lease_us=SECOND)
        hand.wait(2)
        hand.confirm(hand.one("a", "ann"), RETRY, delay_us=5 * SECOND)
        assert hand.fetch("a", "ann", n=9) == [], "it waits for its own slot"
        hand.wait(5)
        applied = hand.store.apply([Fetch(queue="a", consumer="bob")])
        assert applied.ready == {"a": 1}, "ann may have something now"
        assert [delivery.state for delivery in hand.deliveries(id)] == [F, Q]
        ann = hand.one("a", "ann")
        assert hand.confirm(late).state is None
        assert hand.confirm(ann).state is S
        assert [delivery.consumer for delivery in hand.deliveries(id)] == ["bob", "ann"]

    def test_what_became_ready_is_said_as_it_is_when_the_group_is_over(self, hand: Hand) -> None:
        messages = [publish(queue=queue, key="k") for queue in ("a", "b", "c") for _ in range(2)]
        ordered = DeclareQueue("b", Policy(order="key"))
        paused = DeclareQueue("c", Policy(paused=True))
        applied = hand.store.apply([*messages, DeleteQueue("a"), ordered, paused, publish(queue="d")])
        assert applied.ready == {"b": 1, "d": 1}

    @wants(Feature.SEVERAL)
    def test_who_waits_for_a_slot_that_is_cancelled_may_have_a_sibling(self, hand: Hand) -> None:
        hand.declare("a", complete=2, retries=9)
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "ann"), RETRY, delay_us=5 * SECOND)
        assert hand.fetch("a", "ann") == []
        chosen = Filter(id=id, states=frozenset({R}))
        hand.do(StartJob(kind=JobKind.CANCEL, filter=chosen, matched=1))
        assert hand.store.apply([Work()]).ready == {"a": 1}
        assert hand.one("a", "ann").id == id

    @wants(Feature.SEVERAL)
    def test_per_topic_makes_a_slot_for_each_topic_of_that_queue(self, hand: Hand) -> None:
        hand.declare("a", complete="per_topic")
        hand.declare("b", complete="per_topic")
        id = hand.publish("a.x", "a.y", "b.z").id
        assert hand.states(id) == "a:Q a:Q b:Q"
        other = hand.publish("b.z", object="a")
        assert hand.states(other.id) == "a:Q b:Q", "never fewer than one"

    @wants(Feature.SEVERAL)
    def test_all_makes_one_slot_where_no_consumer_is_registered(self, hand: Hand) -> None:
        hand.declare("a", complete="all")
        assert hand.states(hand.publish("a.x").id) == "a:Q"

    @wants(Feature.SEVERAL)
    def test_complete_0_makes_no_slot_and_completes_at_once(self, hand: Hand) -> None:
        hand.declare("a", complete=0)
        published = hand.publish("a.x")
        assert published.state is X
        assert hand.journey(published.id) == "LX"
        assert hand.fetch("a") == []

    @wants(Feature.SEVERAL)
    def test_each_slot_has_its_own_lease_and_attempts(self, hand: Hand) -> None:
        hand.declare("a", complete=2, lease_us=10 * SECOND)
        id = hand.publish("a.x").id
        hand.one("a", "ann")
        hand.wait(6)
        bob = hand.one("a", "bob")
        hand.wait(6)
        assert hand.confirm(bob).state is S
        assert [(delivery.state, delivery.attempt) for delivery in hand.deliveries(id)] == [(R, 1), (S, 1)]
        assert hand.one("a", "ann").attempt == 2

    def test_a_confirm_after_its_lease_counts_until_somebody_else_has_fetched(self, hand: Hand) -> None:
        hand.declare("a", lease_us=10 * SECOND)
        id = hand.publish("a.x").id
        late = hand.one("a", "ann")
        hand.wait(11)
        assert hand.states(id) == "a:R"
        assert hand.confirm(late).state is S
        assert hand.journey(id) == "LQFRSX"
        assert hand.fetch("a", "bob") == []
        hand.publish("a.x")
        stale = hand.one("a", "ann")
        hand.wait(11)
        fresh = hand.one("a", "bob")
        assert hand.confirm(stale).state is None
        assert hand.confirm(fresh).state is S

    # ── 2: a message's state ────────────────────────────────────────────────────────────────

    @wants(Feature.SEVERAL)
    def test_one_group_hands_a_message_of_two_queues_out_in_both(self, hand: Hand) -> None:
        hand.publish("a.x", "b.x", body=b"for both")
        hand.publish("a.y", "b.y", body=b"too")
        taken = hand.ask(*(Fetch(queue=queue) for queue in "abba"))
        assert [hand.body(message) for (message,) in taken] == [b"for both", b"for both", b"too", b"too"]

    def test_what_is_kicked_is_done_without_a_confirm(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        got = hand.one("a", "ann")
        assert hand.do(Kick([got.receipt, "junk"])) == [Settled(got.receipt, id, K), Settled("junk")]
        assert hand.do(Kick([got.receipt])) == [Settled(got.receipt)]
        assert hand.confirm(got).state is None
        assert hand.journey(id) == "LQFKX"

    def test_receipts_in_one_group_are_settled_once_each(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.publish("a.x")
        first, second = hand.fetch("a", n=2)
        hand.declare("b")
        answers = hand.ask(
            Confirm(queue="b", receipts=[first.receipt]),
            Confirm(queue="a", receipts=[first.receipt, first.receipt]),
            Confirm(queue="a", receipts=[first.receipt], outcome=Outcome.RETRY),
            Confirm(queue="a", receipts=[second.receipt], outcome=Outcome.INVALID),
            Confirm(queue="a", receipts=[second.receipt, first.receipt, "0x" + second.receipt]),
        )
        done = Settled(first.receipt, first.id, S)
        assert answers == [
            [Settled(first.receipt)],
            [done, done],
            [Settled(first.receipt)],
            [Settled(second.receipt, second.id, I)],
            [Settled(second.receipt), done, Settled("0x" + second.receipt)],
        ]

    @wants(Feature.SEVERAL)
    def test_a_message_in_two_queues_completes_when_both_are_through(self, hand: Hand) -> None:
        id = hand.publish("a.x", "b.x").id
        hand.confirm(hand.one("a"))
        assert hand.states(id) == "a:S b:Q"
        assert hand.last_event().to_state is S
        hand.confirm(hand.one("b"), queue="b")
        assert hand.last_event().to_state is X

    @wants(Feature.SEVERAL)
    def test_the_answer_to_a_repeated_id_shows_the_state_of_its_message(self, hand: Hand) -> None:
        hand.publish("a.x", "b.x", id="m")
        got = hand.one("a")
        assert hand.publish("a.x", "b.x", id="m").state is F
        hand.confirm(got, RETRY, delay_us=SECOND)
        assert hand.publish("a.x", "b.x", id="m").state is R
        hand.wait(1)
        hand.confirm(hand.one("a"))
        assert hand.publish("a.x", "b.x", id="m").state is Q
        hand.confirm(hand.one("b"), queue="b")
        assert hand.publish("a.x", "b.x", id="m").state is X
        hand.publish("a.x", "b.x", body=b"2", id="n")
        hand.confirm(hand.one("a"), INVALID)
        assert hand.publish("a.x", "b.x", body=b"2", id="n").state is E

    # ── 3: who ──────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("complete", [2, "all", "per_topic"])
    @wants(Feature.SEVERAL)
    def test_a_queue_that_counts_consumers_wants_their_names(self, hand: Hand, complete: str | int) -> None:
        hand.declare("a", complete=complete)
        hand.publish("a.x")
        with pytest.raises(ConsumerRequired):
            hand.fetch("a")
        assert len(hand.fetch("a", "ann")) == 1

    def test_not_interested_frees_the_message_for_others_and_never_for_that_one(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        settled = hand.confirm(hand.one("a", "ann"), NOT_INTERESTED)
        assert settled.state is Q
        assert hand.fetch("a", "ann") == []
        assert hand.one("a", "bob").attempt == 2
        message = hand.store.message(id)
        assert message is not None
        refusal = message.journey[3:5]
        assert [(event.from_state, event.to_state) for event in refusal] == [(F, N), (N, Q)]
        assert {event.reason for event in refusal} == {"not-interested"}
        assert refusal[0].consumer == "ann"

    def test_as_many_refusals_as_fetches_allowed_make_a_dead_letter(self, hand: Hand) -> None:
        hand.declare("a", retries=2)
        id = hand.publish("a.x").id
        states = [hand.confirm(hand.one("a", who), NOT_INTERESTED).state for who in ("ann", "bob", "cem")]
        assert states == [Q, Q, E]
        assert hand.journey(id) == "LQ" + "FNQ" * 2 + "FNE"
        assert hand.deliveries(id)[0].reason == "not-interested"

    def test_not_interested_from_somebody_without_a_name_means_retry(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        assert hand.confirm(hand.one("a"), NOT_INTERESTED, delay_us=0).state is R
        assert hand.one("a").attempt == 2
        assert "N" not in hand.journey(id)

    # ── 4: attempts, leases, retries ────────────────────────────────────────────────────────

    def test_a_lease_that_is_over_makes_the_message_fetchable_at_once(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.one("a", "ann")
        hand.wait(9.999)
        assert hand.fetch("a") == []
        hand.wait(0.001)
        assert hand.state(id) is R
        assert (hand.last_event().reason, hand.last_event().consumer) == ("lease-over", "ann")
        assert hand.one("a").attempt == 2
        assert hand.journey(id) == "LQFRF"

    def test_a_lease_is_the_queues_or_the_fetchs_own(self, hand: Hand) -> None:
        hand.declare("a", lease_us=20 * SECOND)
        hand.publish("a.x")
        hand.publish("a.x")
        assert hand.one("a").until_at == hand.clock.now + 20 * SECOND
        assert hand.one("a", lease_us=5 * SECOND).until_at == hand.clock.now + 5 * SECOND
        hand.wait(5)
        assert hand.store.ready("a") == 1

    def test_an_extended_lease_lasts_from_now(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        hand.wait(9)
        assert hand.do(Extend(queue="a", receipts=[got.receipt, "junk"])) == [
            Extended(got.receipt, hand.clock.now + 10 * SECOND),
            Extended("junk", None),
        ]
        hand.wait(9)
        (longer,) = hand.do(Extend(queue="a", receipts=[got.receipt], lease_us=30 * SECOND))
        assert longer.until_at == hand.clock.now + 30 * SECOND
        hand.wait(29)
        assert hand.confirm(got).state is S
        assert hand.do(Extend(queue="a", receipts=[got.receipt])) == [Extended(got.receipt, None)]

    def test_an_extension_leaves_no_trace_in_the_log(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        head = hand.store.bounds()
        hand.do(Extend(queue="a", receipts=[got.receipt]))
        assert hand.store.bounds() == head

    def test_fetches_beyond_one_and_the_retries_make_a_dead_letter(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        id = hand.publish("a.x").id
        assert hand.confirm(hand.one("a"), RETRY, delay_us=0).state is R
        assert hand.confirm(hand.one("a"), RETRY, delay_us=0).state is E
        assert hand.journey(id) == "LQFRFE"
        assert hand.deliveries(id)[0].reason == "retries-exhausted"
        assert hand.fetch("a") == []

    def test_the_last_lease_that_is_over_makes_a_dead_letter(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        id = hand.publish("a.x").id
        for _ in range(2):
            hand.one("a")
            hand.wait(10)
        assert hand.state(id) is E
        assert hand.deliveries(id)[0].reason == "lease-over"

    def test_a_retry_waits_for_its_delay_and_then_is_fetched_directly(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), RETRY, delay_us=5 * SECOND, reason="try later")
        assert hand.deliveries(id)[0].due_at == hand.clock.now + 5 * SECOND
        assert hand.last_event().reason == "try later"
        hand.wait(4.999)
        assert hand.fetch("a") == []
        hand.wait(0.001)
        assert hand.one("a").id == id
        assert hand.journey(id) == "LQFRF"

    def test_a_retry_without_a_delay_backs_off_by_the_policy(self, hand: Hand) -> None:
        hand.declare("a", retries=9, backoff_base_us=SECOND, backoff_cap_us=4 * SECOND)
        waits = []
        for ceiling in (1, 2, 4, 4):
            id = hand.publish("a.x").id
            for _ in range({1: 0, 2: 1, 4: 2}[ceiling]):
                hand.confirm(hand.one("a"), RETRY, delay_us=0)
            hand.confirm(hand.one("a"), RETRY)
            due_at = hand.deliveries(id)[0].due_at
            assert due_at is None or due_at <= hand.clock.now + ceiling * SECOND
            waits.append(due_at)
            hand.do(Remove("a", id))
        assert len(set(waits)) > 1, "full jitter"

    def test_an_invalid_message_ends_at_once_and_is_listed_with_the_dead(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        got = hand.one("a")
        assert hand.confirm(got, INVALID, reason="not my format").state is State.I
        assert hand.fetch("a") == []
        (dead,) = hand.found(states=frozenset(DEAD))
        assert (dead.message_id, dead.reason) == (id, "not my format")

    def test_a_kicked_message_is_handed_out_and_forgotten(self, hand: Hand) -> None:
        hand.declare("a", kick=True)
        id = hand.publish("a.x").id
        got = hand.one("a", "ann")
        assert hand.journey(id) == "LQFKX"
        assert hand.confirm(got) == Settled(got.receipt, None, None)
        assert hand.store.apply([Tick()]).due_at is None
        hand.wait(3_600)
        assert hand.state(id) is K
        assert hand.fetch("a") == []

    def test_a_released_message_goes_back_to_its_place_without_counting(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        first = hand.publish("a.x").id
        hand.publish("a.x")
        for attempt in range(1, 5):
            got = hand.one("a", "ann")
            assert (got.id, got.attempt) == (first, attempt)
            assert hand.do(Release([got.receipt])) == [Settled(got.receipt, first, Q)]
        assert hand.last_event().reason == "released"
        hand.confirm(hand.one("a"), RETRY, delay_us=0)
        assert hand.confirm(hand.one("a"), RETRY, delay_us=0).state is E

    def test_a_released_receipt_is_stale(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        hand.do(Release([got.receipt]))
        assert hand.confirm(got).state is None
        assert hand.do(Release([got.receipt, "junk"])) == [Settled(got.receipt), Settled("junk")]
        assert len(hand.fetch("a")) == 1

    # ── 5: redrive and cancel ───────────────────────────────────────────────────────────────

    @wants(Feature.KEPT)
    def test_a_redrive_takes_any_ended_delivery_back_to_its_queue(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        hand.declare("k", kick=True)
        succeeded = hand.publish("a.x").id
        hand.confirm(hand.one("a"))
        invalid = hand.publish("a.x").id
        hand.confirm(hand.one("a"), INVALID)
        exhausted = hand.publish("a.x").id
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        timed_out = hand.publish("a.x", ttl_us=SECOND).id
        hand.wait(1)
        cancelled = hand.publish("a.x").id
        hand.do(Remove("a", cancelled))
        kicked = hand.publish("k.x").id
        hand.one("k")
        ids = [succeeded, invalid, exhausted, timed_out, cancelled, kicked]
        assert "".join(hand.state(id).name for id in ids) == "SIETCK"
        job = hand.redrive(states=ENDED)
        assert job.done == 6
        assert all(hand.state(id) is Q for id in ids)
        assert hand.last_event().reason == "redriven"

    @wants(Feature.KEPT)
    def test_a_redriven_message_leaves_its_end_and_can_complete_again(self, hand: Hand) -> None:
        id = hand.publish("a.x", id="m").id
        hand.confirm(hand.one("a"))
        hand.redrive(states=frozenset({S}))
        assert hand.publish("a.x", id="m").state is Q
        hand.confirm(hand.one("a"))
        assert hand.journey(id) == "LQFSXQFSX"

    def test_a_redrive_gives_all_retries_back_while_attempts_go_on(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        hand.publish("a.x")
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        hand.redrive(queue="a", states=frozenset({E}))
        got = hand.one("a")
        assert got.attempt == 3
        assert hand.confirm(got, RETRY, delay_us=0).state is R
        assert hand.confirm(hand.one("a"), RETRY, delay_us=0).state is E

    @wants(Feature.KEPT)
    def test_a_redriven_message_that_had_timed_out_waits_without_an_end(self, hand: Hand) -> None:
        id = hand.publish("a.x", ttl_us=SECOND).id
        hand.wait(1)
        assert hand.state(id) is T
        hand.redrive(states=frozenset({T}))
        hand.wait(DAY)
        assert hand.one("a").id == id

    def test_a_redriven_message_is_offered_again_to_who_refused_it(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        hand.publish("a.x")
        for who in ("ann", "bob"):
            hand.confirm(hand.one("a", who), NOT_INTERESTED)
        hand.redrive(states=frozenset({E}))
        assert len(hand.fetch("a", "ann")) == 1

    def test_a_consumers_own_words_never_count_as_a_redrive(self, hand: Hand) -> None:
        hand.declare("a", retries=1)
        hand.publish("a.x")
        assert hand.confirm(hand.one("a", "ann"), NOT_INTERESTED, reason="redriven").state is Q
        assert hand.fetch("a", "ann") == []
        assert hand.confirm(hand.one("a", "bob"), NOT_INTERESTED, reason="redriven").state is E

    @wants(Feature.SEVERAL)
    def test_a_redrive_takes_only_what_its_filter_selects(self, hand: Hand) -> None:
        first = hand.publish("a.x", "b.x").id
        hand.clock.move(60)
        second = hand.publish("a.x").id
        for queue in ("a", "a", "b"):
            hand.confirm(hand.one(queue), INVALID, queue)
        assert hand.redrive(queue="a", states=frozenset({State.I}), since_at=hand.clock.now).done == 1
        assert (hand.states(first), hand.states(second)) == ("a:I b:I", "a:Q")
        assert hand.redrive(id=first, states=frozenset(DEAD)).done == 2

    def test_a_job_is_done_in_slices_and_leaves_later_messages_alone(self, hand: Hand) -> None:
        before = [hand.publish("a.x").id for _ in range(5)]
        job = hand.do(StartJob(kind=JobKind.PURGE, filter=Filter(queue="a"), matched=5))
        after = hand.publish("a.x").id
        assert hand.store.apply([]).working
        turns = 1
        while hand.do(Work(2)):
            turns += 1
        assert turns >= 3
        ended = hand.store.job(job.id)
        assert ended is not None
        assert (ended.kind, ended.matched, ended.done, ended.ended_at) == (
            JobKind.PURGE,
            5,
            5,
            hand.clock.now,
        )
        assert {hand.state(id) for id in before} == {C}
        assert hand.deliveries(before[0])[0].reason == "purged"
        assert hand.state(after) is Q
        assert not hand.store.apply([]).working

    def test_cancel_and_purge_leave_what_somebody_holds(self, hand: Hand) -> None:
        held = hand.publish("a.x").id
        waiting = hand.publish("a.x").id
        got = hand.one("a")
        assert hand.job(JobKind.CANCEL, queue="a").done == 1
        assert (hand.state(held), hand.state(waiting)) == (F, C)
        assert hand.deliveries(waiting)[0].reason == "cancelled"
        assert hand.confirm(got).state is S

    def test_an_unknown_job_is_none(self, hand: Hand) -> None:
        assert hand.store.job("1") is None
        assert hand.store.job("junk") is None

    # ── 6: order ────────────────────────────────────────────────────────────────────────────

    def test_higher_priority_goes_first_and_else_who_came_first(self, hand: Hand) -> None:
        for priority in (9, 5, 0, 5, 0):
            hand.publish("a.x", priority=priority, body=str(priority).encode())
        got = hand.fetch("a", n=9)
        assert [hand.body(one) for one in got] == [b"0", b"0", b"5", b"5", b"9"]
        sequences = [message.sequence for one in got if (message := hand.store.message(one.id))]
        assert sequences[0] < sequences[1]
        assert sequences[2] < sequences[3]

    def test_a_retried_a_released_and_a_redriven_message_keep_their_place(self, hand: Hand) -> None:
        ids = [hand.publish("a.x").id for _ in range(4)]
        one, two, three = hand.fetch("a", n=3)
        hand.confirm(three, INVALID)
        hand.do(Release([two.receipt]))
        hand.confirm(one, RETRY, delay_us=0)
        hand.redrive(states=frozenset(DEAD))
        assert [got.id for got in hand.fetch("a", n=9)] == ids

    def test_fifo_does_not_wait_for_what_is_delayed_or_held(self, hand: Hand) -> None:
        hand.publish("a.x", delay_us=60 * SECOND, key="k")
        hand.publish("a.x", key="k")
        last = hand.publish("a.x", key="k").id
        hand.one("a")
        assert hand.one("a").id == last

    def test_by_key_only_one_message_of_a_key_is_out(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        first = hand.publish("a.x", key="k", priority=9).id
        second = hand.publish("a.x", key="k", priority=0).id
        other = hand.publish("a.x", key="j").id
        none = [hand.publish("a.x").id for _ in range(2)]
        assert hand.store.ready("a") == 4
        got = hand.fetch("a", n=9)
        assert [one.id for one in got] == [first, other, *none], (
            "priority is ignored, no key means no waiting"
        )
        hand.confirm(got[0])
        assert hand.one("a").id == second

    def test_by_key_delay_and_back_off_block_their_key(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        first = hand.publish("a.x", key="k", delay_us=5 * SECOND).id
        second = hand.publish("a.x", key="k").id
        assert hand.fetch("a") == []
        assert hand.store.ready("a") == 0
        hand.wait(5)
        hand.confirm(hand.one("a"), RETRY, delay_us=5 * SECOND)
        assert hand.fetch("a") == []
        hand.wait(5)
        got = hand.one("a")
        assert got.id == first
        hand.confirm(got)
        assert hand.one("a").id == second

    @pytest.mark.parametrize("end", ["success", "invalid", "remove", "ttl", "dead"])
    def test_by_key_every_end_frees_the_key(self, hand: Hand, end: str) -> None:
        hand.declare("a", order="key", retries=1)
        first = hand.publish("a.x", key="k", ttl_us=20 * SECOND if end == "ttl" else None).id
        second = hand.publish("a.x", key="k").id
        match end:
            case "success" | "invalid":
                hand.confirm(hand.one("a"), Outcome(end))
            case "remove":
                hand.do(Remove("a", first))
            case "ttl":
                hand.wait(20)
            case "dead":
                for _ in range(2):
                    hand.confirm(hand.one("a"), RETRY, delay_us=0)
        assert hand.store.ready("a") == 1
        assert hand.one("a").id == second

    def test_by_key_a_redriven_older_message_goes_before_the_newer(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        first, second = (hand.publish("a.x", key="k").id for _ in range(2))
        hand.confirm(hand.one("a"), INVALID)
        hand.redrive(states=frozenset(DEAD))
        assert [got.id for got in hand.fetch("a", n=9)] == [first]
        assert hand.state(second) is Q

    def test_by_key_a_redriven_older_message_waits_for_the_newer_that_is_out(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        first, second = (hand.publish("a.x", key="k").id for _ in range(2))
        hand.confirm(hand.one("a"), INVALID)
        newer = hand.one("a")
        assert newer.id == second
        hand.redrive(states=frozenset(DEAD))
        assert hand.fetch("a") == []
        hand.confirm(newer)
        assert hand.one("a").id == first

    def test_the_order_of_a_queue_can_be_changed_while_it_is_full(self, hand: Hand) -> None:
        for key in ("k", "k", "j"):
            hand.publish("a.x", key=key)
        assert hand.store.ready("a") == 3
        hand.declare("a", order="key")
        assert hand.store.ready("a") == 2
        assert len(hand.fetch("a", n=9)) == 2
        hand.declare("a")
        assert len(hand.fetch("a", n=9)) == 1

    # ── 7: receipts ─────────────────────────────────────────────────────────────────────────

    def test_a_later_fetch_makes_a_receipt_stale(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        old = hand.one("a", "ann")
        hand.wait(10)
        new = hand.one("a", "bob")
        for outcome in Outcome:
            assert hand.confirm(old, outcome) == Settled(old.receipt)
        assert hand.do(Extend(queue="a", receipts=[old.receipt])) == [Extended(old.receipt)]
        assert hand.do(Release([old.receipt])) == [Settled(old.receipt)]
        assert hand.state(id) is F
        assert hand.confirm(new).state is S

    def test_a_confirm_is_taken_as_long_as_nobody_ended_the_lease(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        hand.clock.move(60)
        assert hand.confirm(got).state is S

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_repeating_the_confirm_that_settled_it_gives_the_same_answer(
        self, hand: Hand, outcome: Outcome
    ) -> None:
        hand.publish("a.x")
        got = hand.one("a", "ann")
        first = hand.confirm(got, outcome, delay_us=0)
        assert first.state is not None
        head = hand.store.bounds()
        assert hand.confirm(got, outcome, delay_us=0) == first
        for other in set(Outcome) - {outcome}:
            assert hand.confirm(got, other) == Settled(got.receipt)
        if first.state in (Q, R):
            head = (1, head[1] + 1)
            assert len(hand.fetch("a", "bob")) == 1
            assert hand.confirm(got, outcome) == first
        assert hand.store.bounds() == head

    def test_a_receipt_twice_in_one_confirm_settles_once(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        settled = hand.do(Confirm(queue="a", receipts=[got.receipt, got.receipt]))
        assert settled == [Settled(got.receipt, got.id, S)] * 2
        assert hand.journey(got.id) == "LQFSX"

    @wants(Feature.KEPT)
    def test_a_redrive_makes_an_open_receipt_stale(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        hand.do(Remove("a", got.id))
        hand.redrive(states=frozenset({S}))
        assert hand.confirm(got) == Settled(got.receipt)
        assert hand.state(got.id) is Q

    def test_what_is_no_receipt_of_that_queue_is_stale(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.declare("b")
        got = hand.one("a")
        parsed = parse_receipt(got.receipt)
        assert parsed is not None
        offset, salt = parsed
        junk = [
            "",
            "junk",
            got.receipt + "0",
            got.receipt.upper() + " ",
            make_receipt(offset, salt ^ 1),
            make_receipt(offset + 1, salt),
            make_receipt(1, salt),
            make_receipt(2**60 - 1, salt),
            "٣-" + "0" * 16,
        ]
        settled = hand.do(Confirm(queue="a", receipts=junk))
        assert settled == [Settled(one) for one in junk]
        assert hand.confirm(got, queue="b") == Settled(got.receipt)
        assert hand.confirm(got).state is S

    def test_receipts_survive_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        for _ in range(3):
            hand.publish("a.x")
        settled, held, old = hand.fetch("a", "ann", n=3, lease_us=60 * SECOND)
        hand.confirm(settled)
        hand.do(Release([old.receipt]))
        hand.one("a", "bob")
        restart()
        assert hand.confirm(settled).state is S
        assert hand.confirm(old).state is None
        assert hand.confirm(held).state is S

    # ── 8: MQ-Core's delete ─────────────────────────────────────────────────────────────────

    def test_remove_confirms_what_is_held_cancels_what_waits_and_leaves_the_rest(self, hand: Hand) -> None:
        held, waiting = hand.publish("a.x").id, hand.publish("a.x").id
        got = hand.one("a")
        assert hand.do(Remove("a", held)) is True
        assert hand.do(Remove("a", waiting)) is True
        assert (hand.state(held), hand.state(waiting)) == (S, C)
        assert (hand.journey(held), hand.journey(waiting)) == ("LQFSX", "LQC")
        assert hand.do(Remove("a", held)) is False
        assert hand.do(Remove("a", waiting)) is False
        assert hand.confirm(got) == Settled(got.receipt)

    @wants(Feature.SEVERAL)
    def test_remove_takes_a_waiting_retry_and_only_in_the_queue_named(self, hand: Hand) -> None:
        id = hand.publish("a.x", "b.x").id
        hand.confirm(hand.one("a"), RETRY, delay_us=SECOND)
        assert hand.do(Remove("nowhere", id)) is False
        assert hand.do(Remove("c", id)) is False
        assert hand.do(Remove("a", id)) is True
        assert hand.states(id) == "a:C b:Q"

    # ── 9: idempotency and own ids ──────────────────────────────────────────────────────────

    def test_a_key_again_with_the_same_body_gives_the_first_answer(self, hand: Hand) -> None:
        first = hand.publish("a.x", idempotency_key="k", producer="p")
        hand.confirm(hand.one("a"))
        assert hand.publish("a.x", idempotency_key="k", producer="p") == first
        assert hand.fetch("a") == []
        assert hand.store.bounds() == (1, 5)

    def test_a_key_again_with_another_body_is_refused(self, hand: Hand) -> None:
        hand.publish("a.x", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            hand.publish("a.x", idempotency_key="k", body=b"other")
        assert hand.store.bounds() == (1, 2)

    def test_a_key_belongs_to_its_producer(self, hand: Hand) -> None:
        ids = {hand.publish("a.x", idempotency_key="k", producer=who).id for who in (None, "p", "q")}
        assert len(ids) == 3
        hand.publish("a.x", idempotency_key="j", producer="p", body=b"other")

    def test_a_key_is_kept_for_a_day(self, hand: Hand) -> None:
        first = hand.publish("a.x", idempotency_key="k")
        hand.clock.move(DAY - 1)
        hand.reap()
        assert hand.publish("a.x", idempotency_key="k") == first
        hand.clock.move(1)
        second = hand.publish("a.x", idempotency_key="k", body=b"other")
        assert second.id != first.id
        assert hand.publish("a.x", idempotency_key="k", body=b"other") == second

    def test_keys_and_own_ids_survive_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        keyed = hand.publish("a.x", idempotency_key="k", producer="p")
        own = hand.publish("a.x", id="m-1")
        restart()
        assert hand.publish("a.x", idempotency_key="k", producer="p") == keyed
        assert hand.publish("a.x", id="m-1") == own
        with pytest.raises(IdempotencyConflict):
            hand.publish("a.x", idempotency_key="k", producer="p", body=b"other")
        with pytest.raises(IdTaken):
            hand.publish("a.x", id="m-1", body=b"other")

    def test_a_message_has_the_id_its_producer_gave_it(self, hand: Hand) -> None:
        assert hand.publish("a.x", id="m-1").id == "m-1"
        assert hand.one("a").id == "m-1"
        message = hand.store.message("m-1")
        assert message is not None
        assert {event.message_id for event in message.journey} == {"m-1"}
        assert [delivery.message_id for delivery in hand.found(id="m-1")] == ["m-1"]
        assert hand.do(Remove("a", "m-1")) is True

    def test_an_own_id_again_is_the_same_message_or_taken(self, hand: Hand) -> None:
        first = hand.publish("a.x", id="m")
        assert hand.publish("a.x", id="m") == first
        with pytest.raises(IdTaken):
            hand.publish("a.x", id="m", body=b"other")
        assert hand.store.bounds() == (1, 2)

    def test_an_own_id_may_look_like_one_of_ours(self, hand: Hand) -> None:
        ours = hand.publish("a.x").id
        parsed = parse_id(ours)
        assert parsed is not None
        alike = make_id(parsed.sequence, parsed.salt ^ 1, parsed.created_ms * 1_000)
        assert hand.publish("a.x", id=alike, body=b"own").id == alike
        assert hand.publish("a.x", id=ours).id == ours
        with pytest.raises(IdTaken):
            hand.publish("a.x", id=ours, body=b"own")
        for id, body in ((ours, b"body"), (alike, b"own")):
            assert hand.store.body(id) == body
            message = hand.store.message(id)
            assert message is not None
            assert message.id == id

    def test_a_key_beside_a_known_id_is_remembered_too(self, hand: Hand) -> None:
        first = hand.publish("a.x", id="m")
        assert hand.publish("a.x", id="m", idempotency_key="k") == first
        with pytest.raises(IdempotencyConflict):
            hand.publish("a.x", idempotency_key="k", body=b"other")

    def test_the_key_is_asked_before_the_id(self, hand: Hand) -> None:
        first = hand.publish("a.x", idempotency_key="k")
        hand.publish("a.x", id="m", body=b"other")
        assert hand.publish("a.x", idempotency_key="k", id="m") == first

    # ── 10: policies ────────────────────────────────────────────────────────────────────────

    def test_declaring_without_a_policy_makes_a_queue_or_leaves_it_as_it_is(self, hand: Hand) -> None:
        assert hand.do(DeclareQueue("a")).created is True
        hand.declare("a", retries=7, lease_us=SECOND)
        assert hand.do(DeclareQueue("a")).created is False
        info = hand.store.queue("a")
        assert info is not None
        assert info.policy == Policy(retries=7, lease_us=SECOND)
        assert hand.declare("a", retries=2).created is False
        info = hand.store.queue("a")
        assert info is not None
        assert info.policy == Policy(retries=2), "what is left out takes its default"

    @wants(Feature.SEVERAL)
    def test_every_field_of_a_policy_survives_a_restart(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        policy = Policy(
            lease_us=7_000,
            retries=9,
            complete="per_topic",
            order="key",
            latest_only=True,
            kick=True,
            ttl_us=5,
            backoff_base_us=3,
            backoff_cap_us=4,
            max_messages=2,
            max_bytes=1 << 61,
            keep_us=6,
            dead="d",
            paused=True,
        )
        assert all(getattr(policy, name) != getattr(DEFAULT, name) for name in Policy.__struct_fields__), (
            "a new field belongs here"
        )
        hand.do(DeclareQueue("a", policy))
        hand.declare("b", complete=3)
        restart()
        a, b = hand.store.queues()
        assert (a.policy, b.policy) == (policy, Policy(complete=3))

    def test_a_full_queue_refuses_until_something_in_it_ended(self, hand: Hand) -> None:
        hand.declare("a", max_messages=2)
        hand.publish("a.x")
        hand.publish("a.x")
        with pytest.raises(QueueFull) as full:
            hand.publish("a.x")
        assert full.value.retry_after
        got = hand.one("a")
        with pytest.raises(QueueFull):
            hand.publish("a.x")
        hand.confirm(got)
        hand.publish("a.x")

    def test_a_queue_can_be_full_of_bytes(self, hand: Hand) -> None:
        hand.declare("a", max_bytes=10)
        hand.publish("a.x", body=b"12345678")
        with pytest.raises(QueueFull):
            hand.publish("a.x", body=b"123")
        hand.publish("a.x", body=b"12")
        info = hand.store.queue("a")
        assert info is not None
        assert info.bytes == 10
        hand.confirm(hand.one("a"))
        info = hand.store.queue("a")
        assert info is not None
        assert info.bytes == 2

    def test_a_full_queue_answers_repeats_as_before(self, hand: Hand) -> None:
        hand.declare("a", max_messages=1)
        first = hand.publish("a.x", id="m", idempotency_key="k")
        assert hand.publish("a.x", idempotency_key="k") == first
        assert hand.publish("a.x", id="m") == first

    @wants(Feature.SEVERAL)
    def test_a_message_of_several_queues_enters_all_or_none(self, hand: Hand) -> None:
        hand.declare("b", max_messages=1)
        hand.publish("b.x")
        head = hand.store.bounds()
        with pytest.raises(QueueFull):
            hand.publish("new.x", "b.x")
        assert hand.store.queue("new") is None
        assert hand.store.bounds() == head

    @wants(Feature.ATOMIC)
    def test_many_messages_enter_all_or_none(self, hand: Hand) -> None:
        hand.declare("a", max_messages=2)
        refused: list[tuple[type[Exception], list[Publish]]] = [
            (QueueFull, [publish("b.x"), publish("a.x"), publish("a.x"), publish("a.x")]),
            (QueueNotFound, [publish("b.x"), publish(queue="nowhere", create=False)]),
            (IdTaken, [publish("b.x", id="m"), publish("b.x", id="m", body=b"other")]),
            (
                IdempotencyConflict,
                [publish("b.x", idempotency_key="k"), publish("b.x", idempotency_key="k", body=b"2")],
            ),
        ]
        for error, messages in refused:
            with pytest.raises(error):
                hand.do(PublishMany(messages))
        assert [info.name for info in hand.store.queues()] == ["a"]
        assert hand.store.bounds() == (1, 0)
        assert hand.publish("b.x", idempotency_key="k", id="m").state is Q, "nothing of them is remembered"

    @wants(Feature.ATOMIC)
    def test_many_messages_are_answered_one_by_one_in_their_order(self, hand: Hand) -> None:
        known = hand.publish("a.x", id="known")
        one, again, two, key, key_again = hand.publish_many(
            publish("a.x", body=b"1"),
            publish("a.x", id="known"),
            publish("b.x", body=b"2"),
            publish("a.x", body=b"3", idempotency_key="k"),
            publish("a.x", body=b"3", idempotency_key="k"),
        )
        assert again == known
        assert key == key_again
        assert len({one.id, two.id, key.id, known.id}) == 4
        assert [hand.body(got) for got in hand.fetch("a", n=9)] == [b"body", b"1", b"3"]

    @wants(Feature.ATOMIC)
    def test_no_messages_at_all_are_no_trouble(self, hand: Hand) -> None:
        assert hand.publish_many() == []

    @wants(Feature.SEVERAL)
    def test_what_ends_exasperated_also_goes_to_the_dead_queue(self, hand: Hand) -> None:
        hand.declare("a", retries=1, dead="graves")
        id = hand.publish("a.x", body=b"poor thing").id
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        assert hand.states(id) == "a:E graves:Q"
        got = hand.one("graves")
        assert (got.id, hand.body(got), got.attempt) == (id, b"poor thing", 1)
        hand.confirm(got, queue="graves")
        assert hand.states(id) == "a:E graves:S"

    @wants(Feature.SEVERAL)
    def test_the_dead_queue_gets_neither_invalid_messages_nor_its_own(self, hand: Hand) -> None:
        hand.declare("a", retries=1, dead="a")
        id = hand.publish("a.x").id
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        assert hand.states(id) == "a:E"
        hand.declare("a", dead="graves")
        hand.publish("a.x")
        hand.confirm(hand.one("a"), INVALID)
        assert hand.store.queue("graves") is None

    @wants(Feature.SEVERAL)
    def test_a_dead_letter_never_brings_a_confirmed_success_back(self, hand: Hand) -> None:
        hand.declare("a", retries=1, dead="b")
        id = hand.publish("a.x", "b.x").id
        hand.confirm(hand.one("b"), queue="b")
        for _ in range(2):
            hand.confirm(hand.one("a"), RETRY, delay_us=0)
        assert hand.states(id) == "a:E b:S"
        assert hand.fetch("b") == []

    def test_a_paused_queue_takes_messages_and_hands_out_none(self, hand: Hand) -> None:
        hand.declare("a", paused=True)
        hand.publish("a.x")
        assert hand.fetch("a") == []
        assert hand.store.ready("a") == 0
        applied = hand.store.apply([DeclareQueue("a", Policy())])
        assert applied.ready == {"a": 1}
        assert len(hand.fetch("a")) == 1

    def test_a_deleted_queues_name_is_free_at_once_and_its_deliveries_are_cancelled(self, hand: Hand) -> None:
        hand.declare("a", retries=7)
        waiting, held, ended = (hand.publish("a.x").id for _ in range(3))
        hand.do(Remove("a", ended))
        _, got = hand.one("a"), hand.one("a")
        hand.do(Release([got.receipt]))
        job = hand.do(DeleteQueue("a"))
        assert hand.store.queue("a") is None
        assert hand.store.ready("a") is None
        with pytest.raises(QueueNotFound):
            hand.fetch("a")
        new = hand.publish("a.x").id
        done = hand.finish(job)
        assert (done.kind, done.matched, done.done) == (JobKind.DELETE, 2, 2)
        for id in (waiting, held, ended):
            assert hand.state(id) is C
        assert hand.deliveries(waiting)[0].reason == "queue-deleted"
        assert hand.state(new) is Q
        (info,) = hand.store.queues()
        assert (info.policy, info.states) == (DEFAULT, {Q: 1})

    def test_receipts_of_a_deleted_queue_mean_nothing_in_its_successor(self, hand: Hand) -> None:
        hand.publish("a.x")
        got = hand.one("a")
        hand.do(DeleteQueue("a"))
        hand.declare("a")
        assert hand.confirm(got) == Settled(got.receipt)
        hand.work()
        assert hand.state(got.id) is C

    @wants(Feature.SEVERAL)
    def test_a_purge_never_touches_the_successor_of_its_queue(self, hand: Hand) -> None:
        hand.declare("b", retries=1, dead="a")
        late = hand.publish("b.x").id
        hand.publish("a.x")
        purge = hand.do(StartJob(kind=JobKind.PURGE, filter=Filter(queue="a"), matched=1))
        hand.do(DeleteQueue("a"))
        hand.declare("a")
        for _ in range(2):
            hand.confirm(hand.one("b"), RETRY, "b", delay_us=0)
        assert hand.states(late) == "b:E a:Q"
        hand.finish(purge)
        assert hand.states(late) == "b:E a:Q"

    def test_jobs_go_on_after_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        ids = [hand.publish("a.x").id for _ in range(4)]
        job = hand.do(DeleteQueue("a"))
        hand.publish("a.x")
        hand.do(Work(2))
        restart()
        assert hand.store.apply([]).working
        hand.finish(job)
        assert {hand.state(id) for id in ids} == {C}
        assert hand.store.ready("a") == 1

    # ── delay and ttl ───────────────────────────────────────────────────────────────────────

    def test_a_delayed_message_waits(self, hand: Hand) -> None:
        hand.declare("a")
        applied = hand.store.apply([publish("a.x", delay_us=5 * SECOND)])
        assert applied.due_at == hand.clock.now + 5 * SECOND
        assert not applied.ready
        assert hand.store.ready("a") == 0
        hand.clock.move(5)
        applied = hand.store.apply([Tick()])
        assert applied.ready == {"a": 1}
        assert applied.due_at is None
        assert hand.store.ready("a") == 1

    def test_a_ttl_ends_what_waits_whether_queued_delayed_or_retried(self, hand: Hand) -> None:
        hand.declare("a", retries=9)
        retried = hand.publish("a.x", ttl_us=30 * SECOND).id
        hand.confirm(hand.one("a"), RETRY, delay_us=3_600 * SECOND)
        waiting = hand.publish("a.x", ttl_us=30 * SECOND).id
        delayed = hand.publish("a.x", ttl_us=30 * SECOND, delay_us=60 * SECOND).id
        hand.wait(29.999)
        assert T not in {hand.state(id) for id in (retried, waiting, delayed)}
        hand.wait(0.001)
        assert {hand.state(id) for id in (retried, waiting, delayed)} == {T}
        assert hand.deliveries(waiting)[0].reason == "ttl-over"
        assert hand.store.ready("a") == 0
        hand.wait(3_600)
        assert hand.fetch("a") == []

    def test_a_ttl_does_not_take_a_message_out_of_a_consumers_hands(self, hand: Hand) -> None:
        kept = hand.publish("a.x", ttl_us=5 * SECOND).id
        lost = hand.publish("a.x", ttl_us=5 * SECOND).id
        got, _ = hand.fetch("a", n=2)
        hand.wait(6)
        assert (hand.state(kept), hand.state(lost)) == (F, F)
        hand.confirm(got)
        hand.wait(4)
        assert (hand.state(kept), hand.journey(lost)) == (S, "LQFRT")

    @wants(Feature.SEVERAL)
    def test_a_queues_ttl_is_for_messages_that_bring_none(self, hand: Hand) -> None:
        hand.declare("a", ttl_us=5 * SECOND)
        plain = hand.publish("a.x", "b.x").id
        own = hand.publish("a.x", ttl_us=10 * SECOND).id
        hand.wait(5)
        assert (hand.states(plain), hand.states(own)) == ("a:T b:Q", "a:Q")
        hand.wait(5)
        assert hand.states(own) == "a:T"

    def test_a_tick_does_no_more_than_its_limit_and_says_so(self, hand: Hand) -> None:
        for _ in range(5):
            hand.publish("a.x")
        hand.fetch("a", n=5)
        hand.clock.move(10)
        ready = []
        more = True
        while more:
            more = hand.do(Tick(2))
            ready.append(hand.store.ready("a"))
        assert ready[:3] == [2, 4, 5]

    def test_leases_delays_and_ttls_survive_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        for given in ({}, {"delay_us": 60 * SECOND}, {"ttl_us": 5 * SECOND, "delay_us": 90 * SECOND}):
            hand.publish("a.x", **given)
        hand.one("a", lease_us=30 * SECOND)
        restart()
        assert hand.store.apply([]).due_at == hand.clock.now + 5 * SECOND
        hand.wait(5)
        assert hand.store.apply([]).due_at == hand.clock.now + 25 * SECOND
        hand.wait(25)
        assert hand.store.ready("a") == 1
        hand.wait(30)
        assert hand.store.ready("a") == 2
        assert hand.store.apply([]).due_at is None

    # ── 15: the log ─────────────────────────────────────────────────────────────────────────

    def test_the_log_is_read_by_range(self, hand: Hand) -> None:
        assert hand.store.bounds() == (1, 0)
        hand.publish("a.x")
        hand.publish("b.x")
        assert hand.store.bounds() == (1, 4)
        assert [(event.offset, event.to_state, event.queue) for event in hand.store.events(1, 4)] == [
            (1, L, None),
            (2, Q, "a"),
            (3, L, None),
            (4, Q, "b"),
        ]
        assert [event.offset for event in hand.store.events(2, 3)] == [2, 3]

    def test_an_event_says_who_why_which_attempt_and_how_long(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.clock.move(2.5)
        got = hand.one("a", "ann")
        hand.clock.move(0.75)
        hand.confirm(got, RETRY, reason="flaky", delay_us=0)
        fetched, retried = hand.store.events(3, 4)
        assert (fetched.from_state, fetched.consumer, fetched.attempt, fetched.slot) == (Q, "ann", 1, 0)
        assert fetched.duration_ms == 2_500
        assert (retried.from_state, retried.consumer, retried.attempt, retried.reason) == (
            F,
            "ann",
            1,
            "flaky",
        )
        assert retried.duration_ms == 750
        assert retried.at == hand.clock.now
        assert retried.sequence == 1

    def test_time_in_the_log_never_falls_when_the_clock_does(self, hand: Hand, open_store: OpenStore) -> None:
        hand.publish("a.x")
        at = hand.last_event().at
        hand.clock.move(-3_600)
        hand.publish("a.x")
        assert hand.last_event().at == at

    def test_time_in_the_log_never_falls_over_a_restart(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        hand.publish("a.x")
        at = hand.last_event().at
        hand.clock.move(-3_600)
        restart()
        hand.publish("a.x")
        assert hand.last_event().at == at

    def test_the_log_can_be_entered_at_a_moment(self, hand: Hand) -> None:
        assert hand.store.offset_at(0) == 1
        start = hand.clock.now
        for _ in range(3):
            hand.publish("a.x")
            hand.clock.move(1)
        assert [
            hand.store.offset_at(start + us) for us in (-1, 0, 1, SECOND, 2 * SECOND, 2 * SECOND + 1)
        ] == [
            1,
            1,
            3,
            3,
            5,
            7,
        ]

    @wants(Feature.SEVERAL)
    def test_the_whole_of_it_survives_a_restart(self, hand: Hand, restart: Callable[[], None]) -> None:
        hand.declare("a", complete=2, retries=1)
        ids = [hand.publish("a.x", "b.y", key=f"k{n}", body=bytes([n])).id for n in range(3)]
        hand.confirm(hand.one("a", "ann"), RETRY, delay_us=5 * SECOND)
        hand.confirm(hand.one("a", "bob"), NOT_INTERESTED, reason="no")
        hand.confirm(hand.one("b"), queue="b")
        hand.clock.move(1)
        hand.one("b", "cem")

        def everything() -> list[Any]:
            store = hand.store
            return [
                store.events(*store.bounds()),
                store.queues(),
                [store.message(id) for id in ids],
                [store.body(id) for id in ids],
                hand.found(),
                [store.ready(queue) for queue in ("a", "b")],
                store.apply([]).due_at,
            ]

        before = everything()
        restart()
        assert everything() == before
        assert hand.one("a", "bob").id == ids[1], "and bob may still not have what he refused"

    # ── 17: what is kept, and for how long ──────────────────────────────────────────────────

    @wants(Feature.KEPT)
    def test_a_completed_messages_body_goes_after_the_queues_keep(self, hand: Hand) -> None:
        hand.declare("a", keep_us=5 * SECOND)
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"))
        hand.clock.move(4.999)
        hand.reap()
        assert hand.store.body(id) == b"body"
        hand.clock.move(0.001)
        hand.reap()
        with pytest.raises(PayloadReaped):
            hand.store.body(id)
        assert hand.journey(id) == "LQFSX"

    @wants(Feature.SEVERAL)
    def test_reaping_in_small_slices_leaves_nothing_behind(self, hand: Hand) -> None:
        hand.declare("a", complete=2, keep_us=0)
        id = hand.publish("a.x").id
        hand.ask(Remove("a", id))
        hand.wait(8 * 86_400)
        while hand.do(Reap(1)):
            pass
        info = hand.store.queue("a")
        assert info is not None
        assert info.states == {}

    def test_waiting_held_and_dead_messages_keep_their_bodies(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0, lease_us=43_200 * SECOND)
        invalid, held, waiting = (hand.publish("a.x").id for _ in range(3))
        hand.confirm(hand.one("a"), INVALID)
        hand.one("a")
        hand.clock.move(40_000)
        hand.reap()
        for id in (invalid, held, waiting):
            assert hand.store.body(id) == b"body"
        hand.clock.move(60 * DAY)
        hand.reap()
        assert hand.store.body(invalid) == b"body"
        assert len(hand.found(states=frozenset(DEAD))) == 1

    @wants(Feature.SEVERAL)
    def test_a_message_that_completed_at_once_is_forgotten_like_any_other(self, hand: Hand) -> None:
        hand.declare("a", complete=0)
        id = hand.publish("a.x").id
        hand.clock.move(6 * DAY)
        hand.reap()
        assert hand.store.body(id) == b"body"
        hand.clock.move(DAY + 1)
        hand.reap()
        assert hand.store.message(id) is None
        assert hand.store.bounds() == (3, 2)

    @wants(Feature.SEVERAL)
    def test_a_message_of_more_slots_than_a_slice_is_forgotten_as_a_whole(self, hand: Hand) -> None:
        hand.declare("a", complete=3, keep_us=0)
        id = hand.publish("a.x", "b.x").id
        for who in ("ann", "bob", "cem"):
            hand.confirm(hand.one("a", who))
        hand.clock.move(1)
        hand.reap(limit=1)
        assert hand.store.body(id) == b"body", "b still has it"
        hand.confirm(hand.one("b"), queue="b")
        hand.clock.move(8 * DAY)
        hand.reap(limit=1)
        assert hand.store.message(id) is None

    @wants(Feature.SEVERAL)
    def test_a_message_stays_while_any_of_its_queues_keeps_it(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0)
        hand.declare("b", keep_us=60 * SECOND)
        id = hand.publish("a.x", "b.x").id
        hand.confirm(hand.one("a"))
        hand.clock.move(1)
        hand.reap()
        assert hand.store.body(id) == b"body"
        hand.confirm(hand.one("b"), queue="b")
        hand.clock.move(59)
        hand.reap()
        assert hand.store.body(id) == b"body"
        hand.clock.move(1)
        hand.reap()
        with pytest.raises(PayloadReaped):
            hand.store.body(id)

    @wants(Feature.KEPT)
    def test_a_redrive_passes_messages_whose_body_is_gone(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0)
        gone, kept = (hand.publish("a.x", body=body).id for body in (b"1", b"2"))
        for _ in range(2):
            hand.confirm(hand.one("a"))
            hand.declare("a", keep_us=0)
            if hand.state(kept) is not S:
                hand.reap()
        assert hand.redrive(states=frozenset({S})).done == 1
        assert (hand.state(gone), hand.state(kept)) == (S, Q)
        assert hand.body(hand.one("a")) == b"2"

    def test_the_log_is_trimmed_and_then_old_messages_are_forgotten(self, hand: Hand) -> None:
        old = hand.publish("a.x", id="old").id
        hand.confirm(hand.one("a"))
        waiting = hand.publish("a.x").id
        hand.clock.move(7 * DAY + 1)
        fresh = hand.publish("b.x").id
        hand.reap()
        assert hand.store.bounds() == (8, 9)
        assert hand.store.stats().oldest == 8
        with pytest.raises(LogTrimmed):
            hand.store.events(7, 9)
        assert [event.message_id for event in hand.store.events(8, 9)] == [fresh, fresh]
        assert hand.store.offset_at(0) == 8
        assert hand.store.message(old) is None
        with pytest.raises(MessageNotFound):
            hand.store.body(old)
        info = hand.store.queue("a")
        assert info is not None
        assert info.states == {Q: 1}, "what is forgotten is not counted any more"
        assert hand.one("a").id == waiting
        assert hand.publish("a.x", id="old", body=b"another").state is Q, "its id is free again"

    def test_offsets_go_on_after_everything_was_forgotten(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        hand.publish("a.x")
        hand.confirm(hand.one("a"))
        hand.clock.move(8 * DAY)
        hand.reap()
        assert hand.store.bounds() == (6, 5)
        restart()
        assert hand.store.bounds() == (6, 5)
        hand.publish("a.x")
        assert [event.offset for event in hand.store.events(6, 7)] == [6, 7]

    # ── 25: a group ─────────────────────────────────────────────────────────────────────────

    def test_earlier_commands_of_a_group_are_visible_to_later_ones(self, hand: Hand) -> None:
        declared, published, fetched, again = hand.ask(
            DeclareQueue("a", Policy(kick=True)),
            publish("a.x", id="m"),
            Fetch(queue="a", consumer="ann"),
            Fetch(queue="a", consumer="bob"),
        )
        assert declared.created
        assert published.state is Q
        assert [got.id for got in fetched] == ["m"]
        assert again == []
        assert hand.journey("m") == "LQFKX"

    @wants(Feature.ATOMIC)
    def test_one_bad_command_never_fails_its_neighbours(self, hand: Hand) -> None:
        hand.declare("full", max_messages=1)
        hand.publish("full.x")
        hand.publish("a.x", id="m")
        results = hand.ask(
            publish("a.x", body=b"1"),
            publish("a.x", id="m", body=b"2"),
            Fetch(queue="nowhere"),
            PublishMany([publish("a.x", body=b"3"), publish("full.x")]),
            publish("full.x"),
            Confirm(queue="a", receipts=["junk"]),
            DeleteQueue("nowhere"),
            publish("a.x", body=b"4"),
            Fetch(queue="a", n=9),
        )
        assert [type(result) for result in results] == [
            Published,
            IdTaken,
            QueueNotFound,
            QueueFull,
            QueueFull,
            list,
            QueueNotFound,
            Published,
            list,
        ]
        assert [hand.body(got) for got in results[-1]] == [b"body", b"1", b"4"]

    def test_a_repeat_inside_a_group_is_known(self, hand: Hand) -> None:
        first, same, other = hand.ask(
            publish("a.x", idempotency_key="k"),
            publish("a.x", idempotency_key="k"),
            publish("a.x", idempotency_key="k", body=b"other"),
        )
        assert first == same
        assert isinstance(other, IdempotencyConflict)
        first, same, other = hand.ask(
            publish("a.x", id="m"), publish("a.x", id="m"), publish("a.x", id="m", body=b"other")
        )
        assert first == same
        assert isinstance(other, IdTaken)
        assert hand.store.ready("a") == 2

    def test_room_is_counted_within_a_group(self, hand: Hand) -> None:
        hand.declare("a", max_messages=2)
        results = hand.ask(*(publish("a.x") for _ in range(4)))
        assert [type(result) for result in results] == [Published, Published, QueueFull, QueueFull]

    def test_fetches_of_one_group_share_what_there_is(self, hand: Hand) -> None:
        ids = [hand.publish("a.x").id for _ in range(5)]
        results: list[list[Fetched]] = hand.ask(
            *(Fetch(queue="a", consumer=who, n=2) for who in ("ann", "bob", "cem", "dan"))
        )
        assert [[got.id for got in fetched] for fetched in results] == [ids[:2], ids[2:4], ids[4:], []]

    @wants(Feature.KEPT)
    def test_a_message_can_be_published_removed_and_redriven_in_one_group(self, hand: Hand) -> None:
        *_, more, fetched = hand.ask(
            publish("a.x", id="m"),
            Remove("a", "m"),
            StartJob(kind=JobKind.REDRIVE, filter=Filter(states=frozenset({C})), matched=1),
            Work(),
            Fetch(queue="a"),
        )
        assert more is False
        assert [got.id for got in fetched] == ["m"]
        assert hand.journey("m") == "LQCQF"

    def test_a_confirm_and_a_fetch_of_one_group_see_each_other(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        for _ in range(2):
            hand.publish("a.x", key="k")
        got = hand.one("a")
        settled, fetched, removed = hand.ask(
            Confirm(queue="a", receipts=[got.receipt]), Fetch(queue="a"), Remove("a", got.id)
        )
        assert settled[0].state is S
        assert len(fetched) == 1
        assert removed is False

    def test_an_empty_group_changes_nothing(self, hand: Hand) -> None:
        hand.publish("a.x")
        assert hand.ask() == []
        assert hand.store.bounds() == (1, 2)

    # ── 28: ready, due, search ──────────────────────────────────────────────────────────────

    @wants(Feature.SEVERAL)
    def test_a_group_says_which_queues_have_something_now(self, hand: Hand) -> None:
        assert hand.store.apply([publish("a.x"), publish("a.x", "b.x")]).ready == {"a": 2, "b": 1}
        got = hand.one("a")
        assert (
            hand.store.apply([Confirm(queue="a", receipts=[got.receipt], outcome=RETRY, delay_us=0)]).ready[
                "a"
            ]
            == 2
        )

    def test_due_is_the_next_moment_something_happens_by_itself(self, hand: Hand) -> None:
        assert hand.store.apply([]).due_at is None
        now = hand.clock.now
        assert hand.store.apply([publish("a.x", ttl_us=50 * SECOND)]).due_at == now + 50 * SECOND
        assert hand.store.apply([publish("a.x", delay_us=20 * SECOND)]).due_at == now + 20 * SECOND
        applied = hand.store.apply([Fetch(queue="a")])
        assert applied.due_at == now + 10 * SECOND
        (got,) = applied.results[0]
        assert hand.store.apply([Confirm(queue="a", receipts=[got.receipt])]).due_at == now + 20 * SECOND

    def test_counters_show_every_state(self, hand: Hand) -> None:
        hand.declare("a", retries=9)
        for _ in range(4):
            hand.publish("a.x", body=b"12")
        one, two, _ = hand.fetch("a", n=3)
        hand.confirm(one)
        hand.confirm(two, RETRY, delay_us=SECOND)
        info = hand.store.queue("a")
        assert info is not None
        assert info.states == {S: 1, R: 1, F: 1, Q: 1}
        assert (info.ready, info.bytes, info.created_at) == (1, 6, hand.clock.now)

    @wants(Feature.SEVERAL)
    def test_a_search_finds_by_every_term(self, hand: Hand) -> None:
        first = hand.publish("a.x", "b.x", id="one").id
        hand.clock.move(10)
        second = hand.publish("a.x", body=b"2").id
        hand.confirm(hand.one("a", "ann"), INVALID, reason="bad")

        def ids(**filter: Any) -> list[tuple[str, str | None]]:
            return [(found.message_id, found.queue) for found in hand.found(**filter)]

        assert ids() == [(first, "a"), (first, "b"), (second, "a")]
        assert ids(id="one") == [(first, "a"), (first, "b")]
        assert ids(id=second) == [(second, "a")]
        assert ids(id="nobody") == []
        assert ids(queue="b") == [(first, "b")]
        assert ids(queue="nowhere") == []
        assert ids(states=frozenset({State.I, S})) == [(first, "a")]
        assert ids(states=frozenset()) == []
        assert ids(since_at=hand.clock.now) == [(second, "a")]
        assert ids(until_at=hand.clock.now) == [(first, "a"), (first, "b")]
        assert ids(queue="a", states=frozenset({Q}), since_at=0) == [(second, "a")]
        (invalid,) = hand.found(states=frozenset({State.I}))
        assert (invalid.consumer, invalid.reason, invalid.attempt, invalid.changed_at) == (
            "ann",
            "bad",
            1,
            hand.clock.now,
        )

    @wants(Feature.SEVERAL)
    def test_a_search_in_pages_lists_each_delivery_once(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        for _ in range(7):
            hand.publish("a.x", "b.x")
        whole = hand.found()
        assert len(whole) == 21
        for limit in (1, 2, 5, 21):
            assert hand.found(limit) == whole
            assert hand.found(limit, queue="b") == [found for found in whole if found.queue == "b"]

    def test_the_figures_of_the_log_are_the_stores_too(self, hand: Hand) -> None:
        hand.publish("a.x")
        stats = hand.store.stats()
        assert (stats.oldest, stats.head) == hand.store.bounds()
        assert stats.disk_bytes >= 0
        assert hand.store.refusal() is None
