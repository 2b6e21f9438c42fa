"""What the load sends. A message is a function of its number: a body can be checked without a copy of it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: Short leases, so that what a killed broker had handed out soon comes again; parcels go by their keys.
QUEUES: dict[str, dict[str, Any]] = {
    "orders": {"lease": 1, "retries": 9},
    "bills": {"lease": 1, "retries": 9},
    "parcels": {"lease": 1, "retries": 9, "order": "key"},
}
#: a channel is named with its kind, as in its path
COPIES = "channel/copies"
CHANNELS: dict[str, dict[str, Any]] = {COPIES: {"topics": ["orders.*"], "lease": 1, "retries": 9}}
PLACES = (*QUEUES, *CHANNELS)
KEYS = 200
#: runs of this name are against a folder: without channels, and a message has one queue
FOLDER_RUN = "folder"
#: runs of this name are against a server that is killed, too: while it is away the answer may be 503
POSTGRES_RUN = "postgres"
#: one message in so many has a body that lies in a file of its own
LARGE_EVERY = 400


@dataclass(frozen=True)
class Message:
    number: int
    #: the queues it goes to; the first is its topic's root
    queues: tuple[str, ...]
    body: bytes
    key: str | None
    #: with it, a publish whose answer is unknown is repeated
    idempotency_key: str | None
    #: published by the path of MQ-Core
    short_path: bool
    #: whether the channel gets it if its topic is right
    copied: bool = True

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    @property
    def places(self) -> tuple[str, ...]:
        """Everywhere it must be delivered."""
        return (*self.queues, COPIES) if "orders" in self.queues and self.copied else self.queues

    @property
    def topics(self) -> list[str]:
        return [f"{queue}.changed" for queue in self.queues]


def make_message(run: str, number: int) -> Message:
    """The same for the same run and number."""
    chance = random.Random(f"{run}/{number}")
    first = chance.choices(["orders", "bills", "parcels"], [6, 3, 3])[0]
    both = chance.random() < 0.1 and first == "orders" and not is_on_folder(run)
    length = chance.randint(70_000, 200_000) if chance.randrange(LARGE_EVERY) == 0 else chance.randint(0, 500)
    return Message(
        number,
        ("orders", "bills") if both else (first,),
        f"{run}/{number} ".encode() + chance.randbytes(length // 2).hex().encode(),
        str(chance.randrange(KEYS)) if first == "parcels" else None,
        f"{run}/{number}" if chance.random() < 0.4 else None,
        first == "bills" and chance.random() < 0.3,
        not is_on_folder(run),
    )


def is_on_folder(run: str) -> bool:
    return run.startswith(FOLDER_RUN)


def may_be_away(run: str) -> bool:
    return run.startswith(POSTGRES_RUN)


def places_of(run: str) -> tuple[str, ...]:
    return tuple(QUEUES) if is_on_folder(run) else PLACES


def number_of(run: str, body: bytes) -> int | None:
    """Which message this is; None: not one of the run's, or not as it was sent."""
    start, _, _ = body.partition(b" ")
    name, _, digits = start.decode("ascii", "replace").rpartition("/")
    if name != run or not digits.isdigit():
        return None
    number = int(digits)
    return number if make_message(run, number).body == body else None
