"""A routing function: waypost serve --router routing:route, with this file's folder in PYTHONPATH.

Log messages go to one consumer and nobody waits for its confirm; an order of more than 10,000 is seen by two people;
everything else goes where its topics say, to one consumer.
"""

import json
from collections.abc import Sequence

from waypost import Route
from waypost.routing import Interested, Option, Routable


def route(message: Routable, consumers: Sequence[Interested]) -> Route:
    if message.object == "log":
        return Route(option=Option.ONCE_ONLY, consumers=("clogger",), queues=("log",))
    if message.object == "order" and json.loads(message.body)["total"] > 10_000:
        approvers = [consumer.name for consumer in consumers if consumer.name.startswith("approver-")]
        return Route(consumers=tuple(sorted(approvers)[:2]), queues=("approvals",))
    if len(message.topics) > 1:
        return Route(option=Option.ONCE_PER_TOPIC)
    return Route()
