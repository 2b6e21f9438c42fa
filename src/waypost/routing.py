"""Routing: from what a message says of itself to the slots it gets, queue by queue.

A message's queues are its object (or the root of its first topic, or `default`) and the root of every topic, each once. How many
slots it gets in each is the policy's `complete`; a slot may be named for one consumer, and then only that one may fetch it.

A routing function (`module:function`) sees the message and the consumers interested in its topics, and answers with a `Route`:

    once          one slot: the first confirm completes it
    onceOnly      one slot, handed out and not waited for (K)
    oncePerTopic  a slot for each topic of that queue

A consumer it names gets a slot of its own: in the queue it is registered on, else in the first of the route's queues.

Standard library only when it runs: routing functions import this file in a Spark job's executors too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .destinations import Kind
from .errors import RequestInvalid
from .names import DEFAULT_QUEUE, check_name, root_of
from .topics import topic_matches

if TYPE_CHECKING:
    from .consumers import Consumer
    from .message import Envelope
    from .policy import Policy


def queues_of(envelope: Envelope, infer_types: bool = True) -> tuple[str, ...]:
    return named_queues(envelope.topics, envelope.object, infer_types)


@lru_cache(1_024)
def named_queues(topics: tuple[str, ...], object: str | None, infer_types: bool = True) -> tuple[str, ...]:
    roots = [root_of(topic) for topic in topics]
    if object is not None:
        return tuple(dict.fromkeys([object, *roots]))
    if infer_types and roots:
        return tuple(dict.fromkeys(roots))
    return (DEFAULT_QUEUE,)


def with_object(envelope: Envelope, infer_types: bool = True) -> Envelope:
    """With its business type: as said, or inferred from the first topic."""
    if envelope.object is None and infer_types and envelope.topics:
        return envelope.of(root_of(envelope.topics[0]))
    return envelope


#: who each slot is for; None: anyone
Slots = tuple[str | None, ...]


def slots_of(policy: Policy, topics: int, consumers: Sequence[str] = ()) -> Slots:
    """Who must confirm in a destination. `topics`: how many of the message's belong there; `consumers`: those registered on
    it that want the message."""
    if policy.complete == "all" and consumers:
        return tuple(consumers)
    if policy.complete == "per_topic":
        return (None,) * max(1, topics)
    if isinstance(policy.complete, int):
        return (None,) * policy.complete
    return (None,)


@lru_cache(1_024)
def topics_in_queue(topics: tuple[str, ...], queue: str) -> int:
    return sum(root_of(topic) == queue for topic in topics)


def topics_in_channel(topics: Sequence[str], patterns: Sequence[str]) -> int:
    return sum(any(topic_matches(pattern, topic) for pattern in patterns) for topic in topics)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routable:
    """A message as a routing function sees it. Instants are microseconds since 1970 in UTC."""

    id: str
    topics: tuple[str, ...]
    object: str | None
    key: str | None
    mime_type: str | None
    timestamp: int | None
    sent: int | None
    producer: str | None
    encoding: str | None
    meta: dict[str, str]
    size: int
    body: bytes


class Interested(NamedTuple):
    """A registered consumer as a routing function sees it."""

    name: str
    queue: str | None
    channel: str | None
    topics: tuple[str, ...]


class Option(StrEnum):
    ONCE = "once"
    ONCE_ONLY = "onceOnly"
    ONCE_PER_TOPIC = "oncePerTopic"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """What a routing function answers."""

    option: Option = Option.ONCE
    #: each gets a slot that only it may fetch
    consumers: tuple[str, ...] = ()
    #: instead of those the message names; none: the message's own
    queues: tuple[str, ...] = ()


def check_route(given: object) -> Route:
    """What came back from a routing function, or RequestInvalid that says why it is none."""
    if not isinstance(given, Route):
        raise _nonsense(f"{given!r:.200} is not a Route")
    try:
        option = Option(given.option)
    except ValueError:
        raise _nonsense(f"no option is called {given.option!r:.60}") from None
    names: dict[str, tuple[str, ...]] = {}
    for what in ("consumers", "queues"):
        chosen = getattr(given, what)
        if isinstance(chosen, str) or not all(isinstance(name, str) for name in chosen):
            raise _nonsense(f"{what} is a sequence of names")
        names[what] = tuple(dict.fromkeys(check_name(name, what[:-1]) for name in chosen))
    return Route(option=option, **names)


def _nonsense(detail: str) -> RequestInvalid:
    return RequestInvalid(
        detail, 'return Route(option="once", consumers=[…], queues=[…]) of waypost', "ROUTE_INVALID"
    )


class Part(NamedTuple):
    """The slots of one message in one queue."""

    queue: str
    #: None: as the queue's policy says
    slots: Slots | None
    #: handed out and not waited for
    kick: bool = False


def parts_of(
    route: Route | None, envelope: Envelope, registered: Mapping[str, Consumer], infer_types: bool
) -> list[Part]:
    """The queues of a message, with the slots that a route asks for in each."""
    own = queues_of(envelope, infer_types)
    if route is None:
        return [Part(queue, None) for queue in own]
    named: dict[str, list[str]] = {}
    for consumer in route.consumers:
        known = registered.get(consumer)
        at_queue = known is not None and known.kind is Kind.QUEUE
        queue = known.destination if known is not None and at_queue else (route.queues or own)[0]
        named.setdefault(queue, []).append(consumer)
    plain = route.queues or (() if named else own)
    kick = route.option is Option.ONCE_ONLY
    parts = [Part(queue, tuple(consumers), kick) for queue, consumers in named.items()]
    for queue in plain:
        if queue not in named:
            per_topic = route.option is Option.ONCE_PER_TOPIC
            count = max(1, topics_in_queue(envelope.topics, queue)) if per_topic else 1
            parts.append(Part(queue, (None,) * count, kick))
    return parts
