"""What must hold whatever the model says: read from the log and the messages of the store alone.

    quorum      no consumer is among the confirmed slots of a message in a queue or channel twice
    latestOnly  no message is handed out after a newer one of its thing, except after a redrive

A policy that comes later counts for what is published after it, so whoever changes one says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..delivery import ENDED, F, K, Q, S
from ..destinations import Kind
from ..names import ANONYMOUS
from ..store import Event, MessageInfo

_Place = tuple[str, Kind]


def check_quorum(message: MessageInfo) -> None:
    had = [one for one in message.deliveries if one.state in (S, K) and one.consumer not in (None, ANONYMOUS)]
    # Two incarnations of one name may each have had the message, in the same slot.
    slots = {(one.queue, one.channel, one.slot): one.consumer for one in had}
    for (*place, consumer), times in Counter((*place[:2], who) for place, who in slots.items()).items():
        assert times == 1, f"{consumer} confirmed {message.id} {times} times in {place}"


class LatestOnly:
    def __init__(self) -> None:
        #: places with the policy, and the offset from which it counts there
        self._since: dict[_Place, int] = {}
        self._things: dict[int, tuple[str, str]] = {}
        #: the newest message handed out there
        self._newest: dict[tuple[_Place, tuple[str, str]], int] = {}
        self._redriven: set[tuple[_Place, int]] = set()

    def changed(self, places: Iterable[_Place]) -> None:
        """Their policy may be another since this group."""
        for place in places:
            self._since.pop(place, None)
            self._newest = {key: newest for key, newest in self._newest.items() if key[0] != place}

    def stands(self, places: Iterable[_Place], head: int) -> None:
        """After a group: where `latestOnly` is set."""
        for place in places:
            self._since.setdefault(place, head)

    def forgotten(self, sequences: set[int]) -> None:
        """What is no longer kept makes nothing obsolete."""
        self._newest = {key: newest for key, newest in self._newest.items() if newest not in sequences}

    def newest(self) -> set[int]:
        return set(self._newest.values())

    def watch(self, events: Iterable[Event]) -> None:
        for event in events:
            envelope = event.envelope
            if envelope is not None and envelope.object is not None and envelope.key is not None:
                self._things[event.sequence] = (envelope.object, envelope.key)
            name = event.queue or event.channel
            if name is None:
                continue
            place = (name, Kind.QUEUE if event.queue else Kind.CHANNEL)
            if event.from_state in ENDED and event.to_state is Q:
                self._redriven.add((place, event.sequence))
            if event.to_state is F and event.sequence > self._since.get(place, event.sequence):
                self._handed_out(place, event.sequence)

    def _handed_out(self, place: _Place, sequence: int) -> None:
        thing = self._things.get(sequence)
        if thing is None:
            return
        newest = self._newest.get((place, thing), 0)
        assert newest <= sequence or (place, sequence) in self._redriven, (
            f"{place} handed out {sequence} after {newest}, which is newer"
        )
        self._newest[place, thing] = max(newest, sequence)
