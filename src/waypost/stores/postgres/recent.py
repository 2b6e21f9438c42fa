"""What a lane's last groups left behind, for as long as nobody else writes.

    one group after the other, and nobody's in between ─▶ alone: what they left is still so
    │  a group takes from here what it would have read, and locks what it must with the last lock
    last lock ─┬─ it has the next turn: all was as it was remembered, or read without a lock
               '─ it has not: somebody was there. All of this is forgotten, and the group locks first and runs again

Kept are messages with open slots, the fetches whose receipts count, the bodies of those that wait, and of each place that was fetched from
the first rows that are ready, up to a bound. There is an end to it: past that, or with a command that is rare, it begins anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..things import Destination, Fetching, Message
from .plain import Kind, Turn

#: how long nobody else must have written before what groups left is relied on: one that finds it was wrong has worked for nothing, and may
#: have waited for a lock, for 20 ms
ALONE_AFTER_SECONDS = 1.0
#: messages, and bytes of their bodies; rows of all places
MOST_MESSAGES = 20_000
MOST_BYTES = 32 << 20
MOST_ROWS = 50_000
#: rows of one place; and how many are looked for at once, in the end
MOST_READY = 2_000
LOOK_AHEAD = 1_000


class Front:
    """The first rows of a place that are ready, in their order; all of them, up to the bound."""

    def __init__(self) -> None:
        self.ready: list[Turn] = []
        #: None: there are no others at all
        self.bound: Turn | None = (-1, 0, 0)
        #: of messages that were found, and nobody has loaded
        self.sizes: dict[int, int] = {}
        self._ahead = 1

    def reaches(self, turn: Turn) -> bool:
        return self.bound is None or turn <= self.bound

    def after(self, turn: Turn, limit: int) -> list[Turn]:
        first = bisect_right(self.ready, turn)
        return self.ready[first : first + limit]

    def look_ahead(self, wanted: int) -> int:
        """How many to look for: the more, the oftener it was not enough."""
        looked = max(wanted, self._ahead)
        self._ahead = min(LOOK_AHEAD, 4 * looked)
        return looked

    def go_on(self, found: Sequence[Turn], wanted: int) -> None:
        """What was found behind the bound, when so many were asked for."""
        self.ready += found
        self.bound = None if len(found) < wanted else found[-1]

    def change(self, come: list[Turn], gone: set[Turn]) -> None:
        if gone:
            self.ready = [turn for turn in self.ready if turn not in gone]
            for _, sequence, _ in gone:
                self.sizes.pop(sequence, None)
        self.ready += [turn for turn in come if self.reaches(turn)]
        self.ready.sort()
        if len(self.ready) > MOST_READY:
            del self.ready[MOST_READY:]
            self.bound = self.ready[-1]


class Recent:
    def __init__(self) -> None:
        #: of the head that this is true of
        self.turn = 0
        self.fronts: dict[Destination, Front] = {}
        self._messages: dict[int, Message] = {}
        self._fetchings: dict[int, Fetching] = {}
        #: those that were written as columns: their kind, and which of it
        self._plain: dict[int, tuple[Kind, int]] = {}
        self._bodies: dict[int, bytes] = {}
        self._bytes = 0

    def clear(self, turn: int = 0) -> None:
        for message in self._messages.values():
            message.let_go()
        self.fronts, self._messages, self._fetchings, self._plain, self._bodies = {}, {}, {}, {}, {}
        self._bytes, self.turn = 0, turn

    # ── for a group that begins ─────────────────────────────────────────────────────────────

    def knows(self, receipts: Iterable[int]) -> bool:
        return all(offset in self._fetchings for offset in receipts)

    def held(self, receipts: Iterable[int]) -> list[tuple[int, int]]:
        """Of receipts that it knows: sequences and destinations."""
        slots = [self._fetchings[offset].slot for offset in receipts]
        return [(slot.message.sequence, slot.queue.number) for slot in slots]

    def fetching(self, offset: int) -> Fetching | None:
        return self._fetchings.get(offset)

    def front(self, place: Destination) -> Front:
        return self.fronts.setdefault(place, Front())

    def take(self, sequence: int) -> tuple[Message, bytes | None] | None:
        """It is the group's, until that is over."""
        if sequence in self._plain:
            kind, number = self._plain.pop(sequence)
            message, body = kind.message(number)
            self._bytes -= len(body)
            return message, body
        if sequence not in self._messages:
            return None
        waiting = self._bodies.pop(sequence, None)
        self._bytes -= len(waiting or b"")
        return self._messages.pop(sequence), waiting

    # ── from one that is over ───────────────────────────────────────────────────────────────

    def learn(
        self,
        turn: int,
        come: Mapping[Destination, list[Turn]],
        gone: Mapping[Destination, set[Turn]],
        plain: Iterable[Kind],
    ) -> None:
        """What became ready, and what is no longer."""
        self.turn = turn
        come = defaultdict(list, come)
        for kind in plain:
            reached = False
            for slot in kind.ready():
                front = self.fronts.get(slot.queue)
                # They are younger than all that is there.
                if front is not None and front.reaches((slot.place[0], kind.sequences[0], slot.number)):
                    come[slot.queue] += kind.turns(slot)
                    reached = True
            if reached:
                self._keep_plain(kind)
        for place in come.keys() | gone.keys():
            if place in self.fronts:
                self.fronts[place].change(come.get(place, []), gone.get(place, set()))

    def _keep_plain(self, kind: Kind) -> None:
        kind.packed.clear()
        for number, sequence in enumerate(kind.sequences):
            self._plain[sequence] = kind, number
        self._bytes += sum([command.size for command in kind.commands])

    def keep(self, message: Message, body: bytes | None) -> None:
        self._messages[message.sequence] = message
        if body is not None:
            self._bodies[message.sequence] = body
            self._bytes += len(body)

    def keep_fetching(self, fetching: Fetching) -> None:
        self._fetchings[fetching.offset] = fetching

    def forget_fetching(self, offset: int) -> None:
        self._fetchings.pop(offset, None)

    def is_too_much(self) -> bool:
        messages = len(self._messages) + len(self._plain)
        rows = sum([1 + len(front.ready) + len(front.sizes) for front in self.fronts.values()])
        return messages > MOST_MESSAGES or self._bytes > MOST_BYTES or rows > MOST_ROWS
