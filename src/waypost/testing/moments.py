"""Depths as of a past moment, and spectators, as every store must have them: part of `StoreTests`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..commands import DeleteSpectator, SetSpectator
from ..delivery import E, F, Outcome, Q, R, S, State
from ..destinations import Kind
from ..errors import LogTrimmed, RequestInvalid
from ..instants import SECOND
from ..store import Feature, SpectatorInfo
from .features import wants
from .hand import Hand

DAY = 86_400.0


def depths(hand: Hand, at: int, name: str = "a", kind: Kind = Kind.QUEUE) -> dict[State, int] | None:
    found = hand.store.depths(kind, name, at)
    return None if found is None else found.states


class MomentTests:
    # ── as of ───────────────────────────────────────────────────────────────────────────────

    @wants(Feature.MOMENTS)
    def test_depths_as_of_any_moment(self, hand: Hand, restart: Callable[[], None]) -> None:
        start = hand.clock.now
        hand.declare("a", retries=9)
        for _ in range(3):
            hand.clock.move(1)
            hand.publish("a.x")
        hand.clock.move(1)
        first, second = hand.fetch("a", n=2)
        hand.clock.move(1)
        hand.confirm(first)
        hand.confirm(second, Outcome.RETRY, delay_us=SECOND)

        def check() -> None:
            assert depths(hand, start - 1) is None
            assert depths(hand, start) == {}
            assert depths(hand, start + SECOND - 1) == {}
            assert depths(hand, start + SECOND) == {Q: 1}
            assert depths(hand, start + 3 * SECOND) == {Q: 3}
            assert depths(hand, start + 4 * SECOND) == {Q: 1, F: 2}
            assert depths(hand, start + 5 * SECOND) == {Q: 1, S: 1, R: 1}
            assert depths(hand, start + 500 * SECOND) == {Q: 1, S: 1, R: 1}

        check()
        if self.durable:  # type: ignore[attr-defined]
            restart()
            check()
        found = hand.store.depths(Kind.QUEUE, "a", start + 2 * SECOND)
        assert found is not None
        assert (found.at, found.offset) == (start + 2 * SECOND, 4)

    @wants(Feature.MOMENTS)
    def test_depths_over_hours_start_from_what_was_counted_then(self, hand: Hand) -> None:
        hand.declare("b")
        moments = []
        for count in range(1, 8):
            hand.publish("a.x")
            moments.append((hand.clock.now, count))
            hand.clock.move(1_800)
        hand.confirm(hand.one("a"))
        assert depths(hand, hand.clock.now) == {Q: 6, S: 1}
        for at, count in moments:
            assert depths(hand, at) == {Q: count}
            assert depths(hand, at, "b") == {}

    @wants(Feature.CHANNELS)
    def test_channels_have_depths_of_their_own(self, hand: Hand) -> None:
        hand.channel("a", "a.*")
        hand.publish("a.x")
        before = hand.clock.now
        hand.clock.move(1)
        hand.listen("a")
        assert depths(hand, before, "a", Kind.CHANNEL) == {Q: 1}
        assert depths(hand, hand.clock.now, "a", Kind.CHANNEL) == {F: 1}
        assert depths(hand, hand.clock.now, "a") == {Q: 1}
        assert depths(hand, hand.clock.now, "nowhere", Kind.CHANNEL) is None

    @wants(Feature.MOMENTS)
    def test_each_incarnation_has_its_time(self, hand: Hand) -> None:
        hand.publish("a.x")
        first = hand.clock.now
        hand.clock.move(1)
        hand.delete("a")
        gone = hand.clock.now
        hand.clock.move(1)
        hand.publish("a.x")
        hand.publish("a.x")
        assert depths(hand, first) == {Q: 1}
        assert depths(hand, gone) is None
        assert depths(hand, hand.clock.now) == {Q: 2}

    @wants(Feature.MOMENTS)
    def test_before_what_is_kept_the_oldest_moment_is_named(self, hand: Hand) -> None:
        hand.publish("a.x")
        old = hand.clock.now
        for _ in range(20):
            hand.clock.move(DAY / 2)
            hand.publish("a.x")
        hand.reap()
        assert hand.store.bounds()[0] > 1
        with pytest.raises(LogTrimmed) as refused:
            hand.store.depths(Kind.QUEUE, "a", old)
        oldest_at = refused.value.oldest_at
        assert oldest_at is not None
        assert old < oldest_at <= hand.clock.now
        now = hand.clock.now
        counted = [depths(hand, at) for at in (oldest_at, now)]
        assert counted[1] == {Q: 21}
        assert counted[0] is not None
        assert sum(counted[0].values()) == 21 - (now - oldest_at) // int(DAY / 2 * SECOND)

    @wants(Feature.MOMENTS)
    def test_what_is_forgotten_is_not_counted_afterwards(self, hand: Hand) -> None:
        hand.declare("a", keep_us=0)
        hand.publish("a.x")
        hand.confirm(hand.one("a"))
        hand.clock.move(8 * DAY)
        hand.publish("a.x")
        hand.reap()
        hand.clock.move(1)
        assert depths(hand, hand.clock.now) == {Q: 1}

    @wants(Feature.OBJECTS)
    def test_a_failure_that_is_redriven_leaves_no_count(self, hand: Hand) -> None:
        id = hand.publish("a.x", hold=True).id
        hand.clock.move(1)
        hand.decide(id, failure="broken")
        failed = hand.clock.now
        hand.clock.move(1)
        hand.redrive()
        assert depths(hand, failed, "default") == {E: 1}
        assert depths(hand, hand.clock.now, "default") == {}

    # ── spectators ──────────────────────────────────────────────────────────────────────────

    def test_a_spectator_has_a_position_and_a_lag(self, hand: Hand, restart: Callable[[], None]) -> None:
        hand.publish("a.x")
        assert hand.do(SetSpectator("lake", 0)).created
        assert not hand.do(SetSpectator("lake", 1)).created
        said_at = hand.clock.now
        hand.clock.move(1)
        hand.publish("a.x")
        info = SpectatorInfo(name="lake", offset=1, lag=3, at=said_at)
        assert hand.store.spectator("lake") == info
        hand.do(SetSpectator("audit", 4))
        if self.durable:  # type: ignore[attr-defined]
            restart()
        assert [one.name for one in hand.store.spectators()] == ["audit", "lake"]
        assert hand.store.spectator("lake") == info
        assert hand.do(DeleteSpectator("lake")) is True
        assert hand.do(DeleteSpectator("lake")) is False
        assert hand.store.spectator("lake") is None

    @pytest.mark.parametrize("offset", [-1, 3])
    def test_a_position_that_the_log_does_not_have_is_refused(self, hand: Hand, offset: int) -> None:
        hand.publish("a.x")
        with pytest.raises(RequestInvalid):
            hand.do(SetSpectator("lake", offset))
        assert hand.store.spectators() == []

    def test_the_log_waits_for_its_spectators_up_to_thirty_days(self, hand: Hand) -> None:
        id = hand.publish("a.x").id
        hand.do(SetSpectator("lake", 1))
        hand.confirm(hand.one("a"))
        hand.clock.move(20 * DAY)
        hand.publish("b.x")
        hand.reap()
        assert hand.store.bounds()[0] == 2, "it has read the first event"
        assert len(hand.store.events(2, 5)) == 4
        hand.do(SetSpectator("lake", 3))
        hand.reap()
        assert hand.store.bounds()[0] == 4
        hand.clock.move(10 * DAY + 1)
        hand.reap()
        assert hand.store.bounds()[0] == 6, "thirty days are over"
        assert hand.store.message(id) is None

    def test_spectators_that_are_gone_hold_nothing(self, hand: Hand) -> None:
        hand.publish("a.x")
        hand.confirm(hand.one("a"))
        hand.do(SetSpectator("lake", 0))
        hand.clock.move(8 * DAY)
        hand.reap()
        assert hand.store.bounds()[0] == 1
        hand.do(DeleteSpectator("lake"))
        hand.reap()
        assert hand.store.bounds()[0] == 6
