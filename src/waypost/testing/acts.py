"""Work on deliveries that somebody chose one by one, as every store must have it: part of `StoreTests`."""

from __future__ import annotations

from ..commands import Act, Acted, Chosen, JobKind
from ..delivery import C, E, F, I, Outcome, Q, R, S, State, X
from ..instants import SECOND
from ..store import Feature
from .features import wants
from .hand import Hand

INVALID, RETRY = Outcome.INVALID, Outcome.RETRY
REDRIVE, REPLAY, CANCEL = JobKind.REDRIVE, JobKind.REPLAY, JobKind.CANCEL


def counts(acted: Acted) -> tuple[dict[State, int], dict[State, int], int, int]:
    return acted.done, acted.left, acted.changed, acted.unable


class ActTests:
    def test_what_was_chosen_is_redriven_and_nothing_else(self, hand: Hand) -> None:
        dead = [hand.publish("a.x", body=bytes([n])).id for n in range(3)]
        waiting = hand.publish("a.x", body=b"waits").id
        for got in hand.fetch("a", n=3):
            hand.confirm(got, INVALID)
        acted = hand.act(REDRIVE, dead[2], Chosen(dead[0], "a"), waiting)
        assert counts(acted) == ({I: 2}, {Q: 1}, 0, 0)
        assert [hand.state(id) for id in dead] == [Q, I, Q]
        assert hand.last_event().reason == "redriven"
        assert [got.id for got in hand.fetch("a", n=9)] == [dead[0], dead[2], waiting]

    def test_events_come_in_the_order_of_the_log_whatever_the_order_they_were_chosen_in(
        self, hand: Hand
    ) -> None:
        ids = [hand.publish("a.x", body=bytes([n])).id for n in range(4)]
        head = hand.store.bounds()[1]
        hand.act(CANCEL, *reversed(ids))
        assert [event.message_id for event in hand.store.events(head + 1, head + 4)] == ids

    def test_a_dry_run_says_the_same_and_changes_nothing(self, hand: Hand) -> None:
        ids = [hand.publish("a.x", body=bytes([n])).id for n in range(3)]
        hand.confirm(hand.one("a"), INVALID)
        hand.one("a")
        chosen = [*ids, "unknown"]
        head = hand.store.bounds()[1]
        dry = hand.act(CANCEL, *chosen, dry_run=True)
        assert hand.store.bounds()[1] == head
        assert [hand.state(id) for id in ids] == [I, F, Q]
        assert hand.act(CANCEL, *chosen) == dry
        assert counts(dry) == ({Q: 1}, {I: 1, F: 1}, 0, 0)
        assert [hand.state(id) for id in ids] == [I, F, C]

    def test_what_there_is_not_is_told_apart(self, hand: Hand) -> None:
        hand.declare("b")
        message = hand.publish("a.x")
        acted = hand.act(
            CANCEL,
            "no-such-id",
            Chosen(message.id, "b"),
            Chosen(message.id, None, "a"),
            Chosen(message.id, "a"),
            "01a1e29a-45e7-7000-8000-000006ddf11b",
        )
        assert acted.sequences == [None, None, None, 1, None]
        assert counts(acted) == ({Q: 1}, {}, 0, 0)

    def test_what_is_chosen_twice_is_done_and_counted_once(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), INVALID)
        acted = hand.act(REDRIVE, id, id, Chosen(id, "a"))
        assert (counts(acted), acted.sequences) == (({I: 1}, {}, 0, 0), [1, 1, 1])
        assert hand.journey(id).count("Q") == 2

    def test_a_repeat_as_of_the_same_moment_touches_nothing_twice(self, hand: Hand) -> None:
        """Also where it has died again meanwhile: that is another death."""
        hand.declare("a", retries=0)
        ids = [hand.publish("a.x", body=bytes([n])).id for n in range(2)]
        for got in hand.fetch("a", n=2):
            hand.confirm(got, INVALID)
        seen = hand.act(REDRIVE, *ids, dry_run=True).at
        hand.clock.move(1)
        assert hand.act(REDRIVE, ids[0], as_of=seen).done == {I: 1}
        assert counts(hand.act(REDRIVE, *ids, as_of=seen)) == ({I: 1}, {}, 1, 0)
        hand.clock.move(1)
        for got in hand.fetch("a", n=2):
            hand.confirm(got, INVALID)
        assert counts(hand.act(REDRIVE, *ids, as_of=seen)) == ({}, {}, 2, 0)
        assert [hand.state(id) for id in ids] == [I, I]
        assert counts(hand.act(REDRIVE, *ids)) == ({I: 2}, {}, 0, 0)

    def test_only_the_states_asked_for_are_touched(self, hand: Hand) -> None:
        hand.declare("a", retries=0)
        dead, invalid = hand.publish("a.x").id, hand.publish("a.x", body=b"2").id
        hand.confirm(hand.one("a"), RETRY)
        hand.confirm(hand.one("a"), INVALID)
        assert counts(hand.act(REDRIVE, dead, invalid, states=frozenset({E, Q}))) == ({E: 1}, {I: 1}, 0, 0)
        assert (hand.state(dead), hand.state(invalid)) == (Q, I)

    @wants(Feature.KEPT)
    def test_a_replay_takes_what_succeeded_too(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"))
        assert counts(hand.act(REDRIVE, id)) == ({}, {S: 1}, 0, 0)
        assert counts(hand.act(REPLAY, id)) == ({S: 1}, {}, 0, 0)
        assert hand.last_event().reason == "replayed"
        assert hand.message_state(id) is Q
        hand.confirm(hand.one("a"))
        assert hand.message_state(id) is X

    @wants(Feature.CHANNELS)
    def test_a_queue_or_a_channel_is_chosen_or_every_delivery_of_the_message(self, hand: Hand) -> None:
        hand.channel("c", "a.*")
        one, two, three = (hand.publish("a.x", "b.y", body=bytes([n])).id for n in range(3))
        acted = hand.act(CANCEL, Chosen(one, "b"), Chosen(two, None, "c"), three)
        assert counts(acted) == ({Q: 5}, {}, 0, 0)
        assert hand.states(one) == "@c:Q a:Q b:C"
        assert hand.states(two) == "@c:C a:Q b:Q"
        assert hand.states(three) == "@c:C a:C b:C"

    @wants(Feature.SEVERAL)
    def test_a_consumer_gets_what_it_could_have(self, hand: Hand) -> None:
        hand.declare("a", complete=2)
        id = hand.publish("a.x").id
        for consumer in ("ann", "bob"):
            hand.confirm(hand.one("a", consumer), INVALID)
        assert counts(hand.act(REDRIVE, id, to="ann", dry_run=True)) == ({I: 1}, {}, 0, 1)
        assert counts(hand.act(REDRIVE, id, to="ann")) == ({I: 1}, {}, 0, 1)
        assert hand.fetch("a", "zed") == []
        assert hand.one("a", "ann").id == id

    def test_what_is_for_one_consumer_is_for_that_one(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a", "ann"), INVALID)
        assert hand.act(REDRIVE, id, to="zed").done == {I: 1}
        assert hand.fetch("a", "ann") == []
        assert hand.one("a", "zed").id == id

    def test_what_a_deleted_queue_had_is_left_alone(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), INVALID)
        hand.delete("a")
        hand.declare("a")
        assert counts(hand.act(REDRIVE, id)) == ({}, {}, 0, 1)

    @wants(Feature.ERASING)
    def test_what_has_no_body_is_left_alone(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), INVALID)
        hand.erase(id)
        assert counts(hand.act(REDRIVE, id)) == ({}, {}, 0, 1)

    def test_what_waits_for_its_retry_is_cancelled_too(self, hand: Hand) -> None:
        hand.declare("a", retries=9)
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), RETRY, delay_us=60 * SECOND)
        assert hand.act(CANCEL, id).done == {R: 1}
        assert hand.state(id) is C
        hand.wait(61)
        assert hand.fetch("a") == []

    def test_what_became_ready_is_told(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.confirm(hand.one("a"), INVALID)

        act = Act(kind=REDRIVE, chosen=[Chosen(id)], states=frozenset({I}))
        assert hand.store.apply([act]).ready == {"a": 1}
