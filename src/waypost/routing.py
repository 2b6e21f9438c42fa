"""Routing: from what a message says of itself to the queues it goes to, and how many slots it gets in each.

A message's queues are its object (or the root of its first topic, or `default`) and the root of every topic, each once.
"""

from __future__ import annotations

import msgspec

from .message import Envelope
from .names import DEFAULT_QUEUE, root_of
from .policy import Policy


def queues_of(envelope: Envelope, infer_types: bool = True) -> tuple[str, ...]:
    roots = [root_of(topic) for topic in envelope.topics]
    if envelope.object is not None:
        return tuple(dict.fromkeys([envelope.object, *roots]))
    if infer_types and roots:
        return tuple(dict.fromkeys(roots))
    return (DEFAULT_QUEUE,)


def with_object(envelope: Envelope, infer_types: bool = True) -> Envelope:
    """With its business type: as said, or inferred from the first topic."""
    if envelope.object is None and infer_types and envelope.topics:
        return msgspec.structs.replace(envelope, object=root_of(envelope.topics[0]))
    return envelope


def slots_of(policy: Policy, topics: tuple[str, ...], queue: str) -> int:
    """How many consumers must confirm in this queue."""
    if policy.complete == "per_topic":
        return max(1, sum(root_of(topic) == queue for topic in topics))
    if isinstance(policy.complete, int):
        return policy.complete
    return 1


def topic_matches(pattern: str, topic: str) -> bool:
    """`fruit.*` is a prefix, anything else is exact."""
    if pattern.endswith("*"):
        return topic.startswith(pattern[:-1])
    return topic == pattern
