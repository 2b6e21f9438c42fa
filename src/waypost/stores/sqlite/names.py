"""What is known by heart: destinations and parties by number, objects and consumers by name; shared by the writer and the
readers of one store."""

from __future__ import annotations

import msgspec

from ...commands import Fetch
from ...consumers import Consumer
from ...delivery import State
from ...destinations import Kind
from ...errors import ChannelNotFound, QueueNotFound
from ...names import ANONYMOUS
from ...objects import DEFAULT_OBJECT, ObjectPolicy
from ...policy import Policy, parse_policy, policy_json
from ...store import ConsumerInfo
from ...topics import TopicIndex
from .rows import Db, Place


def policy_text(policy: Policy) -> str:
    return msgspec.json.encode(policy_json(policy)).decode()


class Destination:
    """A queue or channel as the writer knows it: its policy, and its counters, which `counts` keeps."""

    __slots__ = (
        "bytes",
        "created_at",
        "deleted",
        "deleted_at",
        "is_queue",
        "keyed",
        "kind",
        "marks",
        "name",
        "named",
        "number",
        "policy",
        "ready",
        "refusals",
        "slotted",
        "start",
        "states",
        "topics",
        "tracked",
    )

    def __init__(
        self,
        number: int,
        kind: Kind,
        name: str,
        policy: Policy,
        created_at: int,
        slotted: bool = False,
        topics: tuple[str, ...] = (),
        start: int = 0,
    ) -> None:
        self.number, self.name, self.created_at = number, name, created_at
        self.set_policy(policy)
        self.kind, self.is_queue = kind, kind is Kind.QUEUE
        self.deleted = False
        self.deleted_at: int | None = None
        #: of a channel: its patterns, and the first sequence it gets
        self.topics, self.start = topics, start
        #: not every row is like the others: messages had several slots, or slots with a kick, at some time
        self.slotted = slotted or policy.counts_consumers
        #: of what is ready, how much is for one consumer alone
        self.named = 0
        #: somebody refused something here
        self.refusals = False
        self.ready = self.bytes = 0
        #: deliveries, by the state's number
        self.states = [0] * (len(State) + 1)
        #: consumer -> the first place in the queue before which nothing is for it
        self.marks: dict[int, tuple[int, int, int]] = {}

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.keyed = policy.order == "key"
        #: its open deliveries are listed by key
        self.tracked = self.keyed or policy.latest_only

    @property
    def limited(self) -> bool:
        return self.policy.max_messages is not None or self.policy.max_bytes is not None

    def picky(self, command: Fetch) -> bool:
        """Whether each row must be looked at, instead of taking the first n."""
        policy = self.policy
        return (
            command.topic is not None
            or self.slotted
            or self.named > 0
            or policy.kick
            or policy.order == "key"
            or policy.latest_only
            or (self.refusals and command.consumer != ANONYMOUS)
        )

    @property
    def handed_out(self) -> int:
        """What a fetch would find."""
        return 0 if self.policy.paused or self.deleted else self.ready

    def load_counts(self, ready: int, bytes: int, states: str) -> None:
        self.ready, self.bytes, self.states = ready, bytes, msgspec.json.decode(states, type=list[int])


class Names:
    def __init__(self, db: Db) -> None:
        self._db = db
        #: every incarnation
        self.by_number: dict[int, Destination] = {}
        #: those that exist
        self.queues: dict[str, Destination] = {}
        self.channels: dict[str, Destination] = {}
        #: by Kind
        self.existing: tuple[dict[str, Destination], ...] = ({}, self.queues, self.channels)
        self.places: dict[int, Place] = {}
        #: from topics to channels
        self.subscribers: TopicIndex[Destination] = TopicIndex()
        self.objects: dict[str, ObjectPolicy] = {}
        #: objects whose messages are compared, and those whose messages Spark routes
        self.compared: set[str] = set()
        self.sparks: set[str] = set()
        #: how many messages of an object are in L
        self.logged: dict[str | None, int] = {}
        self.consumers: dict[str, ConsumerInfo] = {}
        #: by number; nobody has 0
        self.parties: list[str | None] = [None]
        self._party_numbers: dict[str, int] = {}
        self.load()

    def load(self) -> None:
        """As the file has it; in place, since readers share these. Also after a roll-back."""
        tables = (self.by_number, self.queues, self.channels, self.places, self.objects, self.logged)
        for known in (*tables, self.consumers, self._party_numbers, self.compared, self.sparks):
            known.clear()
        self.subscribers.clear()
        rows = self._db.execute(
            "select number, kind, name, policy, created_at, slotted, topics, start, deleted_at, ready, bytes, states"
            " from destinations left join counts on destination = number order by number"
        )
        for number, kind, name, policy, created_at, slotted, topics, start, deleted_at, *counts in rows:
            place = Destination(
                number,
                Kind(kind),
                name,
                parse_policy(msgspec.json.decode(policy)),
                created_at,
                bool(slotted),
                () if topics is None else tuple(msgspec.json.decode(topics)),
                start or 0,
            )
            if counts[2] is not None:
                place.load_counts(*counts)
            place.deleted, place.deleted_at = deleted_at is not None, deleted_at
            self._note(place)
        for (number,) in self._db.execute("select distinct destination from refusals"):
            self.by_number[number].refusals = True
        for number, count in self._db.execute("select destination, count(*) from named group by destination"):
            self.by_number[number].named = count
        for name, policy in self._db.execute("select name, policy from objects"):
            self.note_object(name, msgspec.json.decode(policy, type=ObjectPolicy))
        for object, count in self._db.execute(
            "select object, count(*) from undecided where not failed group by object"
        ):
            self.logged[object] = count
        for name, consumer, created_at in self._db.execute(
            "select name, consumer, created_at from consumers"
        ):
            known_consumer = msgspec.json.decode(consumer, type=Consumer)
            self.consumers[name] = ConsumerInfo(name=name, consumer=known_consumer, created_at=created_at)
        del self.parties[1:]
        for number, name in self._db.execute("select number, name from parties order by number"):
            assert number == len(self.parties)
            self.parties.append(name)
            self._party_numbers[name] = number

    def _note(self, place: Destination) -> None:
        self.by_number[place.number] = place
        self.places[place.number] = (place.name, None) if place.is_queue else (None, place.name)
        if not place.deleted:
            self.existing[place.kind][place.name] = place
            self.subscribers.add(place.topics, place)

    def find(self, kind: Kind, name: str) -> Destination:
        known = self.existing[kind].get(name)
        if known is None:
            raise QueueNotFound(name) if kind is Kind.QUEUE else ChannelNotFound(name)
        return known

    def add(
        self, kind: Kind, name: str, policy: Policy, now: int, topics: tuple[str, ...] = (), start: int = 0
    ) -> Destination:
        number = max(self.by_number, default=0) + 1
        place = Destination(number, kind, name, policy, now, False, topics, start)
        self._db.execute(
            "insert into destinations values (?, ?, ?, ?, ?, null, ?, ?, ?)",
            (
                number,
                kind,
                name,
                policy_text(policy),
                now,
                int(place.slotted),
                None if place.is_queue else msgspec.json.encode(topics).decode(),
                None if place.is_queue else start,
            ),
        )
        self._note(place)
        return place

    def change(
        self, place: Destination, policy: Policy, topics: tuple[str, ...] = (), start: int = 0
    ) -> None:
        self.subscribers.remove(place.topics, place)
        place.set_policy(policy)
        place.topics, place.start = topics, start
        self.subscribers.add(topics, place)
        place.slotted = place.slotted or policy.counts_consumers
        self._db.execute(
            "update destinations set policy = ?, slotted = ?, topics = ?, start = ? where number = ?",
            (
                policy_text(policy),
                int(place.slotted),
                None if place.is_queue else msgspec.json.encode(topics).decode(),
                None if place.is_queue else start,
                place.number,
            ),
        )

    def delete(self, place: Destination, now: int) -> None:
        del self.existing[place.kind][place.name]
        self.subscribers.remove(place.topics, place)
        place.deleted, place.deleted_at = True, now
        self._db.execute("update destinations set deleted_at = ? where number = ?", (now, place.number))

    def look_closely(self, place: Destination) -> None:
        """From now on not every row there is like the others."""
        if not place.slotted:
            place.slotted = True
            self._db.execute("update destinations set slotted = 1 where number = ?", (place.number,))

    def registered(self, kind: Kind, name: str, topics: tuple[str, ...]) -> list[str]:
        """Consumers of a destination that want a message of these topics."""
        return [
            known
            for known, info in sorted(self.consumers.items())
            if info.consumer.destination == name
            and info.consumer.kind is kind
            and info.consumer.wants(topics)
        ]

    def note_object(self, name: str, policy: ObjectPolicy | None) -> None:
        if policy is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = policy
        policy = policy or DEFAULT_OBJECT
        for names, belongs in (
            (self.compared, policy.unchanged is not None),
            (self.sparks, policy.route == "spark"),
        ):
            (names.add if belongs else names.discard)(name)

    def count_logged(self, object: str | None, change: int) -> None:
        count = self.logged.get(object, 0) + change
        if count:
            self.logged[object] = count
        else:
            self.logged.pop(object, None)

    def party(self, name: str) -> int:
        number = self._party_numbers.get(name)
        if number is None:
            number = len(self.parties)
            self._db.execute("insert into parties (number, name) values (?, ?)", (number, name))
            self.parties.append(name)
            self._party_numbers[name] = number
        return number
