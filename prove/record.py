"""What the load saw, kept in its own process: the only witness that no fault can touch.

Everything has a *tick*, its place in the order in which this process saw things, and a *life*: how many times
the broker had been started on the file. A request is written down before it is sent, its answer when it has
come in whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Message


@dataclass
class Sent:
    """A publish."""

    message: Message
    life: int
    #: of the first answer that said so
    id: str | None = None
    acknowledged_life: int | None = None
    #: answered with something else than success: it must not have happened
    refused: bool = False
    #: sent again with its idempotency key, its answer being unknown
    repeated: bool = False

    @property
    def hash(self) -> str:
        return self.message.hash


@dataclass(frozen=True)
class Delivered:
    """A message that came in the answer to a fetch."""

    id: str
    queue: str
    attempt: int
    #: None: its body is none that was sent
    number: int | None
    life: int
    #: when the fetch was sent
    asked: int
    receipt: str


@dataclass(frozen=True)
class Confirmed:
    """A confirm that was answered with a state."""

    id: str
    queue: str
    attempt: int
    state: str
    life: int
    #: when the answer came
    answered: int


@dataclass
class Record:
    #: names the run; bodies begin with it
    run: str
    #: the log's head at the start of each life
    heads: list[int] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    #: keyed publishes whose answer is unknown
    to_repeat: list[int] = field(default_factory=list)
    #: confirms that came too late for their lease
    stale: int = 0
    #: answers that should not have been
    strange: list[str] = field(default_factory=list)
    _tick: int = 0

    @property
    def life(self) -> int:
        return len(self.heads)

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    def published(self, number: int, id: str) -> None:
        sent = self.sent[number]
        if sent.id is not None and sent.id != id:
            self.strange.append(f"message {number} was answered as {sent.id}, its repeat as {id}")
        if sent.id is None:
            sent.id, sent.acknowledged_life = id, self.life

    def unanswered(self, number: int) -> None:
        if self.sent[number].message.idempotency_key is not None:
            self.to_repeat.append(number)
