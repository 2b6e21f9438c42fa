"""Plain messages: those of a group that are only logged and queued, kept as columns.

    add ─▶ Kind: sequences, salts, ids, commands ─┬─▶ columns (plain_rows.py)
                                                  '─▶ take_out: objects like all others, once a fetch of the same group comes to them

Messages of one kind go to the same places with the same options, so all that is decided about them is decided once. Their rows say
what the rules would say of each by itself: objects and columns are made from the same command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...commands import Publish, Published
from ...delivery import L, Q
from ...message import Envelope, id_maker
from ...store import Event
from ..things import Destination, Message, Sent, Slot, new_event, new_message, new_slot
from .columns import Column

#: a slot's turn in its place: `Slot.place`
Turn = tuple[int, int, int]

#: kinds that a group keeps apart, and slots that a message of one may have
KINDS = 64
SLOTS = 8


class Whole(NamedTuple):
    """A message as the rules would have made it."""

    message: Message
    body: bytes
    slots: list[Slot]
    #: its L, and a Q for each slot
    events: list[tuple[Event, Destination | None]]


_TAKEN = Publish(envelope=Envelope(), body=b"")


class Kind:
    """Messages that go to the same places with the same options."""

    def __init__(self, command: Publish, places: Sequence[Sent], now: int) -> None:
        self._now = now
        self._slots = [
            (place, number, named) for place, slots, _ in places for number, named in enumerate(slots)
        ]
        #: offsets that each takes
        self.step = 1 + len(self._slots)
        #: what its rows say but for numbers, and what each says of itself, goes for all
        self.model = self._whole(command, 0, 0)
        self._make_id = id_maker(now)
        self.sequences: list[int] = []
        self.salts: list[int] = []
        self.ids: list[str] = []
        self.commands: list[Publish] = []
        #: what they say of themselves, as it goes to the server
        self.packed: dict[str, Column] = {}

    def add(self, command: Publish, sequence: int, salt: int) -> Published:
        id = self._make_id(sequence, salt)
        self.sequences.append(sequence)
        self.salts.append(salt)
        self.ids.append(id)
        self.commands.append(command)
        return Published(id, Q)

    def turn(self, place: Destination) -> int:
        """What they come after there, if not after their own."""
        return min(slot.place[0] for slot in self.model.slots if slot.queue is place)

    def take_out(self) -> list[Whole]:
        """All of them; none is left."""
        taken = list(map(self._whole, self.commands, self.sequences, self.salts))
        for column in (self.sequences, self.salts, self.ids, self.commands):
            column.clear()
        return taken

    def message(self, number: int) -> tuple[Message, bytes]:
        """One of them as it is once it was written, and its body. Asked for once: what is left of a kind keeps no bodies of others."""
        command, self.commands[number] = self.commands[number], _TAKEN
        message, slots = self._things(command, self.sequences[number], self.salts[number])
        message.slots = slots
        assert isinstance(command.body, bytes)
        return message, command.body

    def ready(self) -> list[Slot]:
        """Of the model: those that a fetch finds at once."""
        return [slot for slot in self.model.slots if slot.waits]

    def turns(self, slot: Slot) -> list[Turn]:
        """All that are like this slot of the model."""
        return [(slot.place[0], sequence, slot.number) for sequence in self.sequences]

    def _things(self, command: Publish, sequence: int, salt: int) -> tuple[Message, list[Slot]]:
        message = new_message(command, sequence, salt, self._now, routed=True)
        return message, [
            new_slot(message, place, number, named, self._now) for place, number, named in self._slots
        ]

    def _whole(self, command: Publish, sequence: int, salt: int) -> Whole:
        message, slots = self._things(command, sequence, salt)
        said = {"envelope": message.envelope, "hash": message.hash, "size": message.size}
        logged = new_event(message, None, sequence, self._now, None, L, **said)
        events: list[tuple[Event, Destination | None]] = [(logged, None)]
        for offset, slot in enumerate(slots, sequence + 1):
            queued = new_event(message, slot, offset, self._now, L, Q, duration_ms=0)
            events.append((queued, slot.queue))
        assert isinstance(command.body, bytes)
        return Whole(message, command.body, slots, events)


class Plain:
    """Those of one group."""

    def __init__(self, now: int) -> None:
        self._now = now
        #: by places and options; the places are kept, so that what is at their address is they
        self._kinds: dict[tuple[Any, ...], tuple[Sequence[Sent], Kind | None]] = {}

    def __iter__(self) -> Iterator[Kind]:
        return (kind for _, kind in self._kinds.values() if kind is not None and kind.sequences)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def kind_of(self, command: Publish, places: Sequence[Sent]) -> Kind | None:
        """None: it needs more than that."""
        keyed = command.envelope.key is not None
        options = (id(places), keyed, command.priority, command.ttl_us, command.delay_us, command.force)
        found = self._kinds.get(options)
        if found is None:
            if len(self._kinds) == KINDS:
                return None
            kind = None if _is_odd(places, keyed) else Kind(command, places, self._now)
            found = self._kinds[options] = (places, kind)
        return found[1]

    def beyond(self, most: int) -> list[Kind]:
        """Those that are left when so many are set aside; the small ones."""
        return sorted(self, key=lambda kind: len(kind.sequences), reverse=True)[most:]

    def at(self, place: Destination) -> list[Kind]:
        return [kind for kind in self if any(slot.queue is place for slot in kind.model.slots)]


def _is_odd(places: Sequence[Sent], keyed: bool) -> bool:
    """One without a queue is completed at once; an order by key holds up what is not the first of its key; and each slot takes statements
    of its own."""
    in_queues = any(slots and place.is_queue for place, slots, _ in places)
    many = sum(len(slots) for _, slots, _ in places) > SLOTS
    return not in_queues or many or (keyed and any(place.keyed for place, _, _ in places))
