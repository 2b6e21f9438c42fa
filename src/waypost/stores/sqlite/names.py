"""The small integers: queues and parties by number, shared by the writer and the readers of one store."""

from __future__ import annotations

import msgspec

from ...commands import Fetch
from ...delivery import State
from ...names import ANONYMOUS
from ...policy import Policy, parse_policy, policy_json
from .rows import Db

QUEUE = 1


def policy_text(policy: Policy) -> str:
    return msgspec.json.encode(policy_json(policy)).decode()


class Destination:
    """A queue as the writer knows it: its policy, and its counters, which `counts` keeps."""

    __slots__ = (
        "bytes",
        "created_at",
        "deleted",
        "marks",
        "name",
        "number",
        "policy",
        "ready",
        "refusals",
        "slotted",
        "states",
    )

    def __init__(
        self, number: int, name: str, policy: Policy, created_at: int, slotted: bool = False
    ) -> None:
        self.number, self.name, self.policy, self.created_at = number, name, policy, created_at
        self.deleted = False
        #: messages had several slots here at some time
        self.slotted = slotted or policy.counts_consumers
        #: somebody refused something here
        self.refusals = False
        self.ready = self.bytes = 0
        #: deliveries, by the state's number
        self.states = [0] * (len(State) + 1)
        #: consumer -> the first place in the queue before which nothing is for it
        self.marks: dict[int, tuple[int, int, int]] = {}

    @property
    def keyed(self) -> bool:
        return self.policy.order == "key"

    def picky(self, command: Fetch) -> bool:
        """Whether each row must be looked at, instead of taking the first n."""
        policy = self.policy
        return (
            command.topic is not None
            or self.slotted
            or policy.kick
            or policy.order == "key"
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
        self.queue_names: dict[int, str] = {}
        #: by number; nobody has 0
        self.parties: list[str | None] = [None]
        self._party_numbers: dict[str, int] = {}
        self.load()

    def load(self) -> None:
        """As the file has it; in place, since readers share these. Also after a roll-back."""
        for known in (self.by_number, self.queues, self.queue_names, self._party_numbers):
            known.clear()
        rows = self._db.execute(
            "select number, name, policy, created_at, slotted, deleted_at, ready, bytes, states"
            " from destinations left join counts on destination = number order by number"
        )
        for number, name, policy, created_at, slotted, deleted_at, ready, bytes, states in rows:
            queue = Destination(
                number, name, parse_policy(msgspec.json.decode(policy)), created_at, bool(slotted)
            )
            if states is not None:
                queue.load_counts(ready, bytes, states)
            queue.deleted = deleted_at is not None
            self._note(queue)
        for (number,) in self._db.execute("select distinct destination from refusals"):
            self.by_number[number].refusals = True
        del self.parties[1:]
        for number, name in self._db.execute("select number, name from parties order by number"):
            assert number == len(self.parties)
            self.parties.append(name)
            self._party_numbers[name] = number

    def _note(self, queue: Destination) -> None:
        self.by_number[queue.number] = queue
        self.queue_names[queue.number] = queue.name
        if not queue.deleted:
            self.queues[queue.name] = queue

    def add_queue(self, name: str, policy: Policy, now: int) -> Destination:
        number = max(self.by_number, default=0) + 1
        queue = Destination(number, name, policy, now)
        self._db.execute(
            "insert into destinations (number, kind, name, policy, created_at, slotted) values (?, ?, ?, ?, ?, ?)",
            (number, QUEUE, name, policy_text(policy), now, int(queue.slotted)),
        )
        self._note(queue)
        return queue

    def party(self, name: str) -> int:
        number = self._party_numbers.get(name)
        if number is None:
            number = len(self.parties)
            self._db.execute("insert into parties (number, name) values (?, ?)", (number, name))
            self.parties.append(name)
            self._party_numbers[name] = number
        return number
