"""A decision: what becomes of one message in L, by a routing function, wherever that runs.

    message, consumers ─▶ route(message, interested) ─▶ Decision: the content's hash, and a route or why there is none

The broker's router decides so in its thread, and a Spark job in its tasks: one answer, whoever computes it. Standard library
only, because executors import this file too.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .canonical import content_hash
from .errors import RouterUnusable
from .routing import Interested, Routable, Route, check_route, named_queues
from .topics import any_topic_matches

RouteFunction = Callable[[Routable, Sequence[Interested]], Route]


class Decision(NamedTuple):
    #: hash of its content, where that is compared
    content: bytes = b""
    #: None without a function: where its topics and the policies send it
    route: Route | None = None
    #: why there is no route: the traceback
    failure: str | None = None


class Registered(NamedTuple):
    """A registered consumer, with what it listens to."""

    name: str
    #: one of the two
    queue: str | None
    channel: str | None
    #: patterns; none: all that its queue or channel gets
    topics: tuple[str, ...]
    #: those of its channel
    channel_topics: tuple[str, ...] = ()

    def wants(self, topics: tuple[str, ...], own: tuple[str, ...]) -> bool:
        """`own`: the message's queues."""
        if self.topics:
            return any(any_topic_matches(pattern, topics) for pattern in self.topics)
        if self.queue is not None:
            return self.queue in own
        return any(any_topic_matches(pattern, topics) for pattern in self.channel_topics)


def interested(
    topics: tuple[str, ...], object: str | None, consumers: Sequence[Registered]
) -> list[Interested]:
    """Those whose topics, or whose queue or channel, a message is for."""
    own = named_queues(topics, object)
    return [Interested(*one[:4]) for one in consumers if one.wants(topics, own)]


def decided(
    function: RouteFunction | None,
    message: Routable,
    consumers: Sequence[Interested],
    ignore: tuple[str, ...] | None,
) -> Decision:
    """Anything that goes wrong is a decision too. `ignore`: the paths that its content's hash leaves out; None where nothing is
    compared."""
    try:
        content = b"" if ignore is None else content_hash(message.body, ignore)
        route = None if function is None else check_route(function(message, consumers))
        return Decision(content, route)
    except BaseException:
        return Decision(failure=last_failure())


def last_failure() -> str:
    """The traceback, without what no store could write."""
    return traceback.format_exc().encode("utf-8", "backslashreplace").decode()


def no_answer(seconds: float) -> str:
    """The failure of a function that hangs."""
    return f"the router gave no answer within {seconds:g} s"


def load_router(spec: str) -> RouteFunction:
    """`module:function`, or RouterUnusable that says in one line why not."""
    module_name, colon, name = spec.partition(":")
    if not module_name or not colon or not name:
        raise RouterUnusable(f"not a router: {spec!r}; write module:function, such as myrouting:route")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise RouterUnusable(
            f"router {spec!r}: no module {error.name!r}; is its folder in PYTHONPATH?"
        ) from error
    except Exception as error:
        raise RouterUnusable(
            f"router {spec!r}: importing it failed: {type(error).__name__}: {error}"
        ) from error
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        what = "is missing" if function is None else "cannot be called"
        raise RouterUnusable(f"router {spec!r}: {name!r} {what} in {module_name}")
    found: RouteFunction = function
    return found
