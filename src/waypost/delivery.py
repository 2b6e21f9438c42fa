"""A delivery: one message on its way to one queue or channel, in one slot.

     route           fetch             confirm
    L ----->  Q  ------------>  F  ------------>  S     X: the message, once every slot is S or K
              ^ \\              /|\\
              |  '-> O, T, C  / | '-> I   invalid       (listed with the dead letters)
              |              /  '---> K   kicked: nobody waits for a confirm
              '--- N <------'         N   not interested: back to Q for others; in a channel its end
              R <-- retry, lease over -'
              '--> F, T, C, O         E   exasperated: as many fetches as the policy allows, and none confirmed

Every change of state is a row of TRANSITIONS; nothing outside this file decides one. The functions below say
what follows from an outcome; stores do it. Each decision is a *step*: the states entered together, in one commit
(F -> N -> Q is one step of two transitions).

This file knows no store, no clock and no network.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import msgspec

from .message import Entropy

if TYPE_CHECKING:
    from .policy import Policy


class State(IntEnum):
    """A state's letter and its number in stores, Arrow and Parquet; numbers never change."""

    L = 1  #: Logged: received and saved in the event log
    U = 2  #: Unchanged: the same as the last message of its object and key
    Q = 3  #: Queued: waits in a queue or channel
    F = 4  #: Fetched: a consumer has it, under a lease
    S = 5  #: Success: the consumer confirmed it
    K = 6  #: Kicked: handed out; no confirm is awaited
    R = 7  #: Retry: waits to be fetched again
    E = 8  #: Exasperated: given up, a dead letter
    I = 9  # noqa: E741  #: Invalid: the consumer said that it can never be processed
    N = 10  #: Not interested: this consumer does not want it
    O = 11  # noqa: E741  #: Obsolete: a newer message of the same thing took its place
    T = 12  #: Timed out: its ttl ended while it waited
    C = 13  #: Cancelled: taken out by an operator or with its queue
    X = 14  #: Completed: the message, when enough consumers confirmed


#: LETTERS[state] is the state's letter; quicker than the enum's name
LETTERS = "?" + "".join(state.name for state in State)
#: by letter
STATES = {state.name: state for state in State}

L, U, Q, F, S, K, R = State.L, State.U, State.Q, State.F, State.S, State.K, State.R
E, I, N, O, T, C, X = State.E, State.I, State.N, State.O, State.T, State.C, State.X  # noqa: E741

#: may be fetched, now or later
WAITING = frozenset({Q, R})
#: not ended
OPEN = frozenset({Q, R, F})
#: nothing happens to it any more unless someone redrives it
ENDED = frozenset({S, K, E, I, N, O, T, C})
#: listed with the dead letters
DEAD = frozenset({E, I})

#: from each state of a delivery, the states it may enter; L is "not yet routed". N rests only in channels; what waits
#: becomes E only when its payload turns out to be damaged. A confirm that comes after its lease, and before the next
#: fetch, still counts: R to S, I, N, R or E.
TRANSITIONS: dict[State, frozenset[State]] = {
    L: frozenset({Q, E}),
    Q: frozenset({F, O, T, C, E}),
    R: frozenset({F, O, T, C, E, S, I, N, R}),
    F: frozenset({S, I, K, N, R, E, Q, C}),
    N: frozenset({Q, E}),  # back to Q by a redrive, too, in a channel
    S: frozenset({Q}),
    K: frozenset({Q}),
    E: frozenset({Q, L}),
    I: frozenset({Q}),
    O: frozenset({Q}),
    T: frozenset({Q}),
    C: frozenset({Q}),
}
#: the message's own, beside those of its deliveries
MESSAGE_TRANSITIONS: dict[State | None, frozenset[State]] = {None: frozenset({L}), L: frozenset({U, X})}


class Outcome(StrEnum):
    """What a consumer answers."""

    SUCCESS = "success"
    INVALID = "invalid"
    NOT_INTERESTED = "not-interested"
    RETRY = "retry"


class Reason(StrEnum):
    """Reasons that Waypost itself gives; a consumer's own text stands beside them."""

    LEASE_OVER = "lease-over"
    RELEASED = "released"
    NOT_INTERESTED = "not-interested"
    EXHAUSTED = "retries-exhausted"
    EXPIRED = "ttl-over"
    PURGED = "purged"
    QUEUE_DELETED = "queue-deleted"
    CHANNEL_DELETED = "channel-deleted"
    OBSOLETE = "newer-message"
    BACKFILLED = "backfill"
    REPLAYED = "replayed"
    CANCELLED = "cancelled"
    REMOVED = "removed"
    REDRIVEN = "redriven"
    DEAD_LETTER = "dead-letter"
    DAMAGED = "payload-damaged"
    ERASED = "payload-erased"
    RECOVERED = "recovered"


class Step(msgspec.Struct, frozen=True, gc=False):
    """What happens to a slot in one commit."""

    #: the states entered, in order
    path: tuple[State, ...]
    reason: str | None = None
    #: when it may be fetched again; None: at once, or never if it ended
    due_at: int | None = None
    #: how many of the allowed fetches are used up afterwards
    tries: int = 0

    @property
    def state(self) -> State:
        return self.path[-1]


def back_off(tries: int, policy: Policy, draw: Entropy) -> int:
    """Full jitter: anything from nothing to base x 2^(tries - 1), at most the cap."""
    ceiling = min(policy.backoff_cap_us, policy.backoff_base_us << min(tries - 1, 40))
    return (ceiling * draw()) >> 64


def settle(
    outcome: Outcome,
    *,
    in_queue: bool,
    named: bool,
    tries: int,
    policy: Policy,
    reason: str | None,
    delay_us: int | None,
    now: int,
    draw: Entropy,
) -> Step:
    """What a confirm does to a fetched slot. `tries` counts this fetch; `named`: the consumer has a name of its own."""
    if outcome is Outcome.SUCCESS:
        return Step((S,), reason, None, tries)
    if outcome is Outcome.INVALID:
        return Step((I,), reason, None, tries)
    exhausted = tries > policy.retries
    if outcome is Outcome.NOT_INTERESTED and not in_queue:
        return Step((N,), reason, None, tries)
    if outcome is Outcome.NOT_INTERESTED and named:
        if exhausted:
            return Step((N, E), Reason.NOT_INTERESTED, None, tries)
        return Step((N, Q), reason or Reason.NOT_INTERESTED, None, tries)
    if exhausted:
        return Step((E,), reason or Reason.EXHAUSTED, None, tries)
    wait_us = back_off(tries, policy, draw) if delay_us is None else delay_us
    return Step((R,), reason, now + wait_us if wait_us else None, tries)


def lease_over(*, tries: int, policy: Policy) -> Step:
    """Nobody confirmed in time."""
    return Step((E if tries > policy.retries else R,), Reason.LEASE_OVER, None, tries)


#: a message in one of these has not been delivered as it should: the next one of its thing is no repetition of it
UNDELIVERED = frozenset({E, C, T})


def message_state(slots: Iterable[State]) -> State:
    """A message's state, from its queue slots. L while there are none: it is not routed yet."""
    present = set(slots)
    if not present:
        return L
    if present & DEAD:
        return E
    for state in (F, R, Q):
        if state in present:
            return state
    if present <= {S, K}:
        return X
    for state in (C, T, O):
        if state in present:
            return state
    raise ValueError(f"no queue slot rests in {present}")
