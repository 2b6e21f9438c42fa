"""The table of transitions and the decisions beside it."""

from itertools import combinations

import pytest

from waypost.commands import Release, Remove
from waypost.delivery import (
    DEAD,
    ENDED,
    LETTERS,
    OPEN,
    STATES,
    TRANSITIONS,
    WAITING,
    C,
    E,
    F,
    I,
    K,
    L,
    N,
    O,
    Outcome,
    Q,
    R,
    S,
    State,
    Step,
    T,
    U,
    X,
    back_off,
    lease_over,
    message_state,
    settle,
)
from waypost.instants import SECOND
from waypost.policy import Policy
from waypost.stores.memory import MemoryStore
from waypost.testing import Hand, MovableClock, audit, seeded_entropy

#: rows of the table that wait for what is not built yet: the router (L, E), latestOnly (O), damaged payloads
LATER = {(L, E), (E, L), (Q, O), (R, O), (O, Q), (Q, E)}


def decide(outcome: Outcome, tries: int = 1, **given: object) -> Step:
    asked: dict[str, object] = {
        "in_queue": True,
        "named": True,
        "policy": Policy(retries=2),
        "reason": None,
        "delay_us": None,
        "now": 1_000,
        "draw": lambda: 1 << 63,
    }
    return settle(outcome, tries=tries, **(asked | given))  # type: ignore[arg-type]


def test_numbers_and_letters_of_states_never_change() -> None:
    assert {state.name: int(state) for state in State} == {
        letter: number for number, letter in enumerate("LUQFSKREINOTCX", start=1)
    }
    assert all(LETTERS[state] == state.name and STATES[state.name] is state for state in State)
    assert max(State) < 32, "five bits are kept for a state"


def test_every_state_of_a_delivery_is_open_or_ended_and_only_open_ones_wait() -> None:
    assert set(TRANSITIONS) == OPEN | ENDED | {L}
    assert not OPEN & ENDED
    assert WAITING < OPEN
    assert DEAD < ENDED


def test_every_ended_state_can_be_redriven_and_nothing_else_leaves_it() -> None:
    for state in ENDED - {N, E}:
        assert TRANSITIONS[state] == {Q}
    assert Q in TRANSITIONS[E]
    assert Q in TRANSITIONS[N]


def test_every_row_of_the_table_is_reached_and_no_other_is_taken() -> None:
    clock = MovableClock()
    hand = Hand(MemoryStore(clock=clock, entropy=seeded_entropy()), clock)
    _a_full_life(hand)
    audit(hand.store)
    taken = {
        (event.from_state, event.to_state)
        for event in hand.store.events(1, hand.store.bounds()[1])
        if event.queue
    }
    rows = {(one, other) for one, others in TRANSITIONS.items() for other in others}
    assert taken <= rows
    assert rows - taken - LATER == set()


def _a_full_life(hand: Hand) -> None:
    hand.declare("a", retries=1, lease_us=10 * SECOND)
    for outcome in Outcome:
        hand.publish("a.x")
        hand.confirm(hand.one("a", "ann"), outcome, delay_us=SECOND)
    hand.wait(1)
    for late in Outcome:
        hand.publish("a.x", priority=0)
        got = hand.one("a", "bob")
        hand.wait(10)
        assert hand.deliveries(got.id)[0].state is R
        hand.confirm(got, late, delay_us=SECOND)
    hand.wait(1)
    for receipts in (hand.fetch("a", "cem", n=99), hand.fetch("a", "dan", n=99)):
        for got in receipts:
            hand.confirm(got, Outcome.RETRY, delay_us=0)
    hand.declare("a", retries=1)
    hand.publish("a.x")
    got = hand.one("a", "eve")
    hand.do(Release([got.receipt]))
    hand.do(Remove("a", got.id))
    again = hand.publish("a.x").id
    hand.confirm(hand.one("a", "eve"), Outcome.RETRY, delay_us=SECOND)
    hand.do(Remove("a", again))
    # Given up by the consumer that came late: R to E.
    hand.declare("a", retries=2)
    hand.publish("a.x")
    for _ in range(2):
        hand.confirm(hand.one("a", "eve"), Outcome.RETRY, delay_us=0)
    got = hand.one("a", "eve")
    hand.declare("a", retries=3)
    hand.wait(10)
    hand.declare("a", retries=1)
    assert hand.confirm(got, Outcome.RETRY).state is E
    for ttl_waits in (0, 1):
        hand.publish("a.x", ttl_us=5 * SECOND)
        if ttl_waits:
            hand.confirm(hand.one("a", "eve"), Outcome.RETRY, delay_us=60 * SECOND)
        hand.wait(5)
    refused = hand.publish("n.x").id
    for who in ("ann", "bob", "cem", "dan"):
        hand.confirm(hand.one("n", who), Outcome.NOT_INTERESTED, "n")
    assert hand.state(refused) is E
    hand.declare("k", kick=True)
    hand.publish("k.x")
    hand.one("k")
    hand.publish("d.x")
    hand.one("d")
    hand.delete("d")
    hand.redrive(states=ENDED)
    assert not hand.found(states=ENDED, queue="a")


@pytest.mark.parametrize(
    ("outcome", "tries", "given", "path", "reason"),
    [
        (Outcome.SUCCESS, 1, {}, (S,), None),
        (Outcome.SUCCESS, 99, {"reason": "fine"}, (S,), "fine"),
        (Outcome.INVALID, 1, {"reason": "bad"}, (I,), "bad"),
        (Outcome.INVALID, 99, {}, (I,), None),
        (Outcome.NOT_INTERESTED, 1, {}, (N, Q), "not-interested"),
        (Outcome.NOT_INTERESTED, 2, {}, (N, Q), "not-interested"),
        (Outcome.NOT_INTERESTED, 3, {}, (N, E), "not-interested"),
        (Outcome.NOT_INTERESTED, 1, {"named": False}, (R,), None),
        (Outcome.NOT_INTERESTED, 3, {"named": False}, (E,), "retries-exhausted"),
        (Outcome.NOT_INTERESTED, 1, {"in_queue": False}, (N,), None),
        (Outcome.NOT_INTERESTED, 9, {"in_queue": False}, (N,), None),
        (Outcome.RETRY, 2, {"reason": "later"}, (R,), "later"),
        (Outcome.RETRY, 3, {}, (E,), "retries-exhausted"),
        (Outcome.RETRY, 3, {"reason": "later"}, (E,), "later"),
    ],
)
def test_a_confirm_decides_where_a_slot_goes(
    outcome: Outcome, tries: int, given: dict[str, object], path: tuple[State, ...], reason: str | None
) -> None:
    step = decide(outcome, tries, **given)
    assert (step.path, step.reason, step.tries) == (path, reason, tries)
    assert step.state is path[-1]
    if step.state is not R:
        assert step.due_at is None


def test_a_retry_waits_for_the_delay_asked_for_else_for_the_back_off() -> None:
    assert decide(Outcome.RETRY, delay_us=7).due_at == 1_007
    assert decide(Outcome.RETRY, delay_us=0).due_at is None
    assert decide(Outcome.RETRY, 1).due_at == 1_000 + SECOND // 2
    assert decide(Outcome.RETRY, 2).due_at == 1_000 + SECOND


def test_back_off_doubles_up_to_the_cap_with_full_jitter() -> None:
    policy = Policy(backoff_base_us=1_000, backoff_cap_us=5_000)
    most = (1 << 64) - 1
    assert [back_off(tries, policy, lambda: most) for tries in (1, 2, 3, 4, 1_000_000)] == [
        999,
        1_999,
        3_999,
        4_999,
        4_999,
    ]
    assert {back_off(tries, policy, lambda: 0) for tries in (1, 2, 9)} == {0}


def test_a_lease_that_is_over_retries_at_once_until_nothing_is_left() -> None:
    policy = Policy(retries=2)
    for tries, state in ((1, R), (2, R), (3, E), (4, E)):
        assert lease_over(tries=tries, policy=policy) == Step((state,), "lease-over", None, tries)


@pytest.mark.parametrize(
    ("slots", "state"),
    [
        ("", L),
        ("Q", Q),
        ("R", R),
        ("F", F),
        ("S", X),
        ("K", X),
        ("SK", X),
        ("E", E),
        ("I", E),
        ("C", C),
        ("T", T),
        ("O", O),
        ("QF", F),
        ("QR", R),
        ("RF", F),
        ("SQ", Q),
        ("SC", C),
        ("TC", C),
        ("OT", T),
        ("KO", O),
        ("FE", E),
        ("SSI", E),
        ("CQ", Q),
    ],
)
def test_a_messages_state_follows_from_its_queue_slots(slots: str, state: State) -> None:
    assert message_state(STATES[letter] for letter in slots) is state


def test_a_messages_state_does_not_depend_on_the_order_of_its_slots() -> None:
    for pair in combinations([Q, R, F, S, K, E, I, O, T, C], 2):
        assert message_state(pair) is message_state(reversed(pair))


def test_a_slot_that_cannot_rest_in_a_queue_is_an_error() -> None:
    with pytest.raises(ValueError, match="no queue slot rests"):
        message_state([N])
    assert U not in TRANSITIONS
    assert X not in TRANSITIONS
