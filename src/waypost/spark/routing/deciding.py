"""What a task does: from rows of messages in L to a line of JSON for each, the decision.

The heavy, stateless half of routing. On executors it needs the standard library, pyarrow and pyspark, and what `packing` sends along; this
file itself travels with its tasks.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from waypost.decision import (
    Decision,
    Registered,
    RouteFunction,
    decided,
    interested,
    load_router,
    no_answer,
)
from waypost.routing import Interested, Routable, Route

#: what comes out
DECISIONS = "sequence bigint, line string"
#: columns that a message has as they are, and those that are read first
_PLAIN = ("object", "key", "mime_type", "producer", "encoding", "size", "body")
_READ = ("message_id", "topics", "meta", "ignore", "failure")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class NoAnswer(BaseException):
    """The routing function hangs; not an Exception, which it might catch itself."""


def decider(
    router: str | None, consumers: Sequence[Registered], seconds: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow. `router` is module:function, found where the task runs."""

    def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = None if router is None else bounded(load_router(router), seconds)
        for batch in batches:
            lines = [_line(id, made) for id, made in _decisions(batch, function, consumers)]
            yield pa.RecordBatch.from_arrays(
                [batch.column("sequence"), pa.array(lines, pa.string())], names=["sequence", "line"]
            )

    return decide


def bounded(function: RouteFunction, seconds: float) -> RouteFunction:
    """The same, which fails when it takes longer: by an alarm, which only a main thread can have."""
    if threading.current_thread() is not threading.main_thread():
        return function

    def ring(*_: Any) -> None:
        raise NoAnswer(no_answer(seconds))

    signal.signal(signal.SIGALRM, ring)

    def call(message: Routable, consumers: Sequence[Interested]) -> Route:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return function(message, consumers)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return call


def _decisions(
    batch: pa.RecordBatch, function: RouteFunction | None, consumers: Sequence[Registered]
) -> Iterator[tuple[str, Decision]]:
    columns = {name: batch.column(name).to_pylist() for name in _PLAIN}
    for name in ("timestamp", "sent"):
        columns[name] = batch.column(name).cast(pa.int64()).to_pylist()
    rest = zip(*(batch.column(name).to_pylist() for name in _READ), strict=True)
    for (id, topics, meta, ignore, failure), said in zip(
        rest, zip(*columns.values(), strict=True), strict=True
    ):
        if failure is not None:
            yield id, Decision(failure=failure)
            continue
        named = dict(zip(columns, said, strict=True))
        message = Routable(
            id=id, topics=tuple(topics), meta={} if meta == "{}" else json.loads(meta), **named
        )
        wanted = [] if function is None else interested(message.topics, message.object, consumers)
        yield id, decided(function, message, wanted, None if ignore is None else tuple(ignore))


def _line(id: str, made: Decision) -> str:
    if made.failure is not None:
        return json.dumps({"id": id, "failure": made.failure})
    route = made.route
    text = "null"
    if route is not None:
        chosen = {"option": str(route.option), "consumers": route.consumers, "queues": route.queues}
        text = json.dumps(chosen, separators=(",", ":"))
    return f'{{"id":"{id}","content":"{made.content.hex()}","route":{text}}}'
