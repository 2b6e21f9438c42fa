"""A routing function: where a message goes is decided here, by what is in it and who is there.

    cd examples && waypost serve --router router:route

Log messages go to one consumer and nobody waits for its confirm; an order of more than 10,000 is seen by two people;
a message of several topics is confirmed once for each; everything else goes where its topics say, to one consumer.

It runs in a thread of the broker, as trusted as the broker itself. Whatever it raises makes the message a dead letter,
with the traceback; a redrive routes it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from waypost import Route
from waypost.routing import Interested, Option, Routable

#: larger orders need two people
LARGE = 10_000


def route(message: Routable, consumers: Sequence[Interested]) -> Route:
    if message.object == "log":
        return Route(option=Option.ONCE_ONLY, consumers=("clogger",), queues=("log",))
    if message.object == "order" and json.loads(message.body)["total"] > LARGE:
        approvers = [consumer.name for consumer in consumers if consumer.name.startswith("approver-")]
        return Route(consumers=tuple(sorted(approvers)[:2]), queues=("approvals",))
    if len(message.topics) > 1:
        return Route(option=Option.ONCE_PER_TOPIC)
    return Route()
