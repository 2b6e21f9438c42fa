"""The routing function of `prove.routing`: the same in the broker and in Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence

from waypost import Route
from waypost.routing import Interested, Option, Routable


def route(message: Routable, consumers: Sequence[Interested]) -> Route:
    said = json.loads(message.body)
    if said["level"] == 7:
        raise ValueError("on purpose")
    if said["level"] == 5:
        return Route(queues=("vip", "customer"))
    if said["level"] == 3:
        return Route(option=Option.ONCE_PER_TOPIC)
    return Route()
