"""What the lake holds and what is erased, as every store must have it: part of `StoreTests`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..commands import Erased, ErasePayload, Fetch, Fetched, JobKind, Seal, SetSpectator
from ..delivery import C, E, Outcome, Q, Reason, X
from ..errors import LogTrimmed, MessageNotFound, PayloadReaped, RequestInvalid, StillLogged
from ..instants import SECOND
from ..store import Feature
from .features import wants
from .hand import Hand, publish

DAY = 86_400.0


def assert_gone(hand: Hand, id: str) -> None:
    with pytest.raises(PayloadReaped):
        hand.store.body(id)


def fetched(hand: Hand, queue: str = "a", body: bytes = b"body") -> Fetched:
    hand.publish(f"{queue}.x", body=body)
    return hand.one(queue, "ann")


class SealingTests:
    # ── sealed ──────────────────────────────────────────────────────────────────────────────

    def test_what_the_lake_holds_is_known_and_never_falls(self, hand: Hand) -> None:
        hand.publish("a.x")
        assert hand.store.sealed() is None
        hand.store.use_lake(True)
        assert hand.store.sealed() == 0
        for upto in (1, 2, 1, 0):
            assert hand.do(Seal(upto)) is None
        assert hand.store.sealed() == 2

    def test_what_is_not_there_cannot_be_sealed(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        hand.publish("a.x")
        for upto in (3, -1):
            with pytest.raises(RequestInvalid):
                hand.seal(upto)
        assert hand.store.sealed() == 0

    @wants(Feature.ERASING)
    def test_what_the_lake_holds_is_known_after_a_restart(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        id = hand.store.id()
        hand.store.use_lake(True)
        published = hand.publish("a.x")
        hand.seal(2)
        hand.erase(published.id)
        restart()
        assert hand.store.sealed() is None
        hand.store.use_lake(True)
        assert (hand.store.sealed(), hand.store.erasures(), hand.store.id()) == (2, [1], id)

    def test_with_a_lake_events_leave_when_they_are_sealed_and_old(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        hand.confirm(fetched(hand))
        hand.clock.move(8 * DAY)
        hand.reap()
        assert hand.store.bounds() == (1, 5)
        hand.seal(3)
        hand.reap()
        assert hand.store.bounds() == (4, 5)
        hand.seal(5)
        hand.reap()
        assert hand.store.bounds() == (6, 5)
        with pytest.raises(LogTrimmed):
            hand.store.events(5, 5)

    def test_with_a_lake_young_events_stay_though_they_are_sealed(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        hand.publish("a.x")
        hand.seal(2)
        hand.clock.move(6 * DAY)
        hand.reap()
        assert hand.store.bounds() == (1, 2)

    def test_with_a_lake_spectators_hold_nothing(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.do(SetSpectator("audit", 0))
        hand.clock.move(8 * DAY)
        hand.reap()
        assert hand.store.bounds() == (1, 2)
        hand.store.use_lake(True)
        hand.seal(2)
        hand.reap()
        assert hand.store.bounds() == (3, 2)

    @wants(Feature.KEPT)
    def test_with_a_lake_a_body_stays_until_it_is_sealed(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        got = fetched(hand, body=b"needed")
        hand.confirm(got)
        hand.clock.move(8 * DAY)
        hand.reap()
        assert hand.store.body(got.id) == b"needed"
        hand.seal(1)
        hand.reap()
        assert_gone(hand, got.id)
        hand.seal(5)
        hand.reap()
        assert hand.store.message(got.id) is None

    def test_events_that_left_unsealed_hold_nothing_up_when_a_lake_comes(self, hand: Hand) -> None:
        got = fetched(hand)
        hand.confirm(got)
        hand.clock.move(8 * DAY)
        hand.reap()
        assert (hand.store.bounds(), hand.store.message(got.id)) == ((6, 5), None)
        hand.store.use_lake(True)
        hand.publish("a.x")
        hand.seal(7)
        assert (hand.store.bounds(), hand.store.sealed()) == ((6, 7), 7)

    # ── erased ──────────────────────────────────────────────────────────────────────────────

    @wants(Feature.CHANNELS)
    def test_what_waits_is_cancelled_when_its_payload_is_erased(self, hand: Hand) -> None:
        hand.channel("s", "a.*")
        published = hand.publish("a.x", "b.x")
        assert hand.erase(published.id) is True
        assert hand.states(published.id) == "@s:C a:C b:C"
        assert {delivery.reason for delivery in hand.deliveries(published.id)} == {Reason.ERASED}
        assert (hand.fetch("a"), hand.fetch("b"), hand.listen("s")) == ([], [], [])
        assert [hand.store.ready(name) for name in "ab"] == [0, 0]
        assert_gone(hand, published.id)

    @wants(Feature.ERASING)
    def test_what_is_fetched_is_cancelled_when_its_payload_is_erased(self, hand: Hand) -> None:
        got = fetched(hand)
        hand.erase(got.id)
        assert hand.journey(got.id) == "LQFC"
        assert hand.last_event().consumer == "ann"
        assert hand.confirm(got).state is None
        hand.wait(60)
        assert hand.state(got.id) is C

    @wants(Feature.ERASING)
    def test_what_waits_for_its_time_is_cancelled_when_its_payload_is_erased(self, hand: Hand) -> None:
        delayed = hand.publish("a.x", delay_us=SECOND)
        hand.confirm(fetched(hand, "b"), Outcome.RETRY, "b", delay_us=SECOND)
        retried = hand.found(queue="b")[0].message_id
        for id in (delayed.id, retried):
            hand.erase(id)
            assert hand.state(id) is C
        hand.wait(5)
        assert (hand.fetch("a"), hand.fetch("b")) == ([], [])

    @wants(Feature.ERASING)
    def test_what_has_ended_stays_as_it_is_when_its_payload_is_erased(self, hand: Hand) -> None:
        got = fetched(hand)
        hand.confirm(got)
        assert hand.erase(got.id) is True
        assert (hand.message_state(got.id), hand.journey(got.id)) == (X, "LQFSX")
        assert_gone(hand, got.id)

    @wants(Feature.SEVERAL)
    def test_of_several_slots_those_that_are_open_are_cancelled(self, hand: Hand) -> None:
        hand.declare("a", complete=3)
        published = hand.publish("a.x")
        hand.confirm(hand.one("a", "ann"))
        hand.one("a", "bob")
        hand.erase(published.id)
        assert hand.states(published.id) == "a:S a:C a:C"
        assert hand.message_state(published.id) is C
        assert hand.fetch("a", "cem") == []

    @wants(Feature.ERASING)
    def test_an_erased_message_frees_its_key(self, hand: Hand) -> None:
        hand.declare("a", order="key")
        first, second = (hand.publish("a.x", key="k", body=body) for body in (b"1", b"2"))
        hand.erase(first.id)
        assert hand.one("a").id == second.id

    @wants(Feature.ERASING)
    def test_an_erased_message_can_be_the_first_of_many(self, hand: Hand) -> None:
        published = [hand.publish("a.x", body=str(number).encode()) for number in range(5)]
        for number in (0, 2):
            hand.erase(published[number].id)
        assert [hand.body(got) for got in hand.fetch("a", n=9)] == [b"1", b"3", b"4"]

    @wants(Feature.ERASING)
    def test_a_payload_is_erased_in_the_group_of_its_publish(self, hand: Hand) -> None:
        command = publish("a.x", id="own-1")
        _, erased, found = hand.ask(command, ErasePayload("own-1"), Fetch(queue="a"))
        assert (erased, found) == (True, [])
        assert hand.state("own-1") is C

    @wants(Feature.ERASING)
    def test_a_dead_letter_without_its_payload_cannot_be_redriven(self, hand: Hand) -> None:
        hand.declare("a", retries=0)
        got = fetched(hand)
        hand.confirm(got, Outcome.RETRY)
        assert hand.erase(got.id) is True
        for kind in (JobKind.REDRIVE, JobKind.REPLAY):
            assert hand.job(kind).done == 0
        assert hand.state(got.id) is E
        assert hand.fetch("a") == []

    @wants(Feature.ERASING)
    def test_what_was_cancelled_by_an_erasure_cannot_be_redriven(self, hand: Hand) -> None:
        published = hand.publish("a.x")
        hand.erase(published.id)
        assert hand.redrive(states=frozenset({C})).done == 0
        assert hand.state(published.id) is C

    @wants(Feature.OBJECTS)
    def test_a_message_in_l_keeps_its_payload(self, hand: Hand) -> None:
        published = hand.publish("a.x", hold=True)
        hand.store.use_lake(True)
        with pytest.raises(StillLogged):
            hand.erase(published.id)
        assert (hand.store.body(published.id), hand.store.erasures()) == (b"body", [])
        hand.decide(published.id)
        assert hand.erase(published.id) is True
        assert hand.state(published.id) is C

    @wants(Feature.OBJECTS)
    def test_a_message_whose_routing_failed_is_not_routed_again_without_its_payload(self, hand: Hand) -> None:
        published = hand.publish("a.x", hold=True)
        hand.decide(published.id, failure="it broke")
        assert hand.erase(published.id) is True
        assert hand.redrive().done == 0
        assert hand.states(published.id) == "default:E"
        assert hand.store.undecided(0, 9) == []

    @wants(Feature.ERASING)
    def test_a_new_channel_gets_nothing_that_was_erased(self, hand: Hand) -> None:
        hand.erase(hand.publish("a.x").id)
        kept = hand.publish("a.x")
        hand.channel("s", "a.*", start=1)
        hand.work()
        assert [got.id for got in hand.listen("s", n=9)] == [kept.id]

    @wants(Feature.OBJECTS)
    def test_what_repeats_an_erased_message_that_was_delivered_is_unchanged(self, hand: Hand) -> None:
        hand.unchanged("a")
        said = {"object": "a", "key": "k"}
        first = hand.publish("a.x", **said)
        hand.confirm(hand.one("a"))
        hand.erase(first.id)
        assert hand.publish("a.x", **said).same_as == first.id

    @wants(Feature.OBJECTS)
    def test_what_repeats_an_erased_message_that_waited_is_delivered(self, hand: Hand) -> None:
        hand.unchanged("a")
        said = {"object": "a", "key": "k"}
        hand.erase(hand.publish("a.x", **said).id)
        assert hand.publish("a.x", **said).state is Q

    @wants(Feature.ERASING)
    def test_an_erased_message_is_forgotten_with_its_events(self, hand: Hand) -> None:
        hand.declare("a", retries=0)
        waiting, dead = hand.publish("b.x"), fetched(hand)
        hand.confirm(dead, Outcome.RETRY)
        for id in (waiting.id, dead.id):
            hand.erase(id)
        hand.clock.move(6 * DAY)
        hand.reap()
        assert (hand.state(waiting.id), hand.state(dead.id)) == (C, E)
        hand.clock.move(2 * DAY)
        hand.reap()
        assert (hand.store.message(waiting.id), hand.store.message(dead.id)) == (None, None)
        assert hand.found() == []

    @wants(Feature.ERASING)
    def test_an_unknown_message_has_no_payload(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        with pytest.raises(MessageNotFound):
            hand.erase("no-such")
        assert hand.store.erasures() == []

    # ── noted for the lake ──────────────────────────────────────────────────────────────────

    @wants(Feature.ERASING)
    def test_an_erasure_is_noted_until_the_lake_has_done_it(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        first, second = hand.publish("a.x"), hand.publish("a.x")
        assert [hand.erase(id) for id in (second.id, first.id, first.id)] == [True, True, False]
        assert hand.store.erasures() == [1, 3]
        assert hand.do(Erased([1, 77])) is None
        assert hand.store.erasures() == [3]
        hand.do(Erased([3]))
        assert hand.store.erasures() == []

    @wants(Feature.ERASING)
    def test_without_a_lake_nothing_is_noted_unless_there_was_one(self, hand: Hand) -> None:
        first, second = hand.publish("a.x"), hand.publish("a.x")
        hand.erase(first.id)
        assert hand.store.erasures() == []
        hand.seal(2)
        hand.erase(second.id)
        assert hand.store.erasures() == [3]

    @wants(Feature.ERASING)
    def test_what_was_reaped_here_is_still_noted_for_the_lake(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        got = fetched(hand)
        hand.confirm(got)
        hand.seal(1)
        hand.clock.move(8 * DAY)
        hand.reap()
        assert_gone(hand, got.id)
        assert hand.erase(got.id) is False
        assert hand.store.erasures() == [1]

    @wants(Feature.ERASING)
    def test_what_only_the_lake_remembers_is_noted_for_it(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        got = fetched(hand)
        hand.confirm(got)
        hand.seal(5)
        hand.clock.move(8 * DAY)
        hand.reap()
        with pytest.raises(MessageNotFound):
            hand.erase(got.id)
        assert hand.erase(got.id, 1) is False
        assert hand.store.erasures() == [1]

    @wants(Feature.ERASING)
    def test_where_a_message_is_the_store_knows_better_than_who_asks(self, hand: Hand) -> None:
        hand.store.use_lake(True)
        hand.publish("a.x")
        second = hand.publish("a.x")
        assert hand.erase(second.id, 1) is True
        assert hand.store.erasures() == [3]
        assert hand.one("a").id != second.id
