"""Acts: deliveries that somebody chose one by one, and what may be done to each.

    chosen ──▶ the deliveries meant, each once, by sequence ──▶ verdict ─┬─ done      redriven, replayed, cancelled
                                                                         ├─ left      in another state than asked for
                                                                         ├─ changed   since the chooser saw it
                                                                         └─ unable    nobody could have it

Stores find deliveries and do the work; to which it is done is decided here, so that a dry run and the act agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from .commands import JOB_DEFAULTS, JOB_STATES, Act, Acted, Chosen, JobKind
from .delivery import State
from .destinations import Kind

#: deliveries in one request, and so in one group
MOST_CHOSEN = 1_000
#: those that hand deliveries out again
AGAIN = frozenset({JobKind.REDRIVE, JobKind.REPLAY})

D = TypeVar("D")
#: a message's sequence, and its slots in order with the queue or channel of each
Deliveries = tuple[int, Iterable[tuple[Kind, str, D]]]


class Verdict(Enum):
    DONE = auto()
    LEFT = auto()
    CHANGED = auto()
    UNABLE = auto()


def states_for(kind: JobKind, given: frozenset[State] | None) -> frozenset[State]:
    """What of the states asked for, or of those it takes by itself, this kind of work may touch."""
    return frozenset((JOB_DEFAULTS[kind] if given is None else given) & JOB_STATES[kind])


def verdict(act: Act, state: State, changed_at: int, able: Callable[[], bool]) -> Verdict:
    if act.as_of is not None and changed_at > act.as_of:
        return Verdict.CHANGED
    if state not in act.states:
        return Verdict.LEFT
    return Verdict.DONE if able() else Verdict.UNABLE


class _Meant(NamedTuple):
    kind: Kind
    name: str
    place: int

    def by(self, chosen: Chosen) -> bool:
        if chosen.queue is None and chosen.channel is None:
            return True
        return (chosen.queue if self.kind is Kind.QUEUE else chosen.channel) == self.name


def meant(
    chosen: Iterable[Chosen], find: Callable[[str], Deliveries[D] | None]
) -> tuple[list[int | None], list[D]]:
    """For each chosen one the sequence of its message, None where there is no such delivery; and the slots meant, each once, in the
    order of the log."""
    sequences: list[int | None] = []
    slots: dict[tuple[int, int], D] = {}
    known: dict[str, tuple[int, list[tuple[_Meant, D]]] | None] = {}
    for one in chosen:
        if one.id not in known:
            found = find(one.id)
            known[one.id] = None if found is None else (found[0], _numbered(found[1]))
        message = known[one.id]
        here = [] if message is None else [(place, slot) for place, slot in message[1] if place.by(one)]
        if message is None or not here:
            sequences.append(None)
            continue
        sequences.append(message[0])
        slots |= {(message[0], place.place): slot for place, slot in here}
    return sequences, [slots[place] for place in sorted(slots)]


def _numbered(slots: Iterable[tuple[Kind, str, D]]) -> list[tuple[_Meant, D]]:
    return [(_Meant(kind, name, place), slot) for place, (kind, name, slot) in enumerate(slots)]


class Tally:
    """What became of the deliveries of an act."""

    def __init__(self) -> None:
        self._done: dict[State, int] = {}
        self._left: dict[State, int] = {}
        self._changed = self._unable = 0

    def count(self, was: State, said: Verdict) -> None:
        if said is Verdict.CHANGED:
            self._changed += 1
        elif said is Verdict.UNABLE:
            self._unable += 1
        else:
            counts = self._done if said is Verdict.DONE else self._left
            counts[was] = counts.get(was, 0) + 1

    def acted(self, at: int, sequences: list[int | None]) -> Acted:
        return Acted(
            at=at,
            done=self._done,
            left=self._left,
            changed=self._changed,
            unable=self._unable,
            sequences=sequences,
        )
