"""The router: a function of the operator's that says where messages go, in a thread of its own.

    published ─▶ L ─▶ undecided ──batch──▶ thread: route(message, consumers) ──▶ Decide, in the log's order ─▶ Q │ U │ E
                                              '── longer than its deadline: that message fails, the thread is left behind

Messages are decided one after the other in the order of the log, so those of one key keep theirs. An exception, an answer
that is no `Route`, or no answer in time never loses a message: it stands with the dead letters, with the traceback, and a redrive
routes it again. A slow function delays what waits in L and nothing else.

The function is the operator's own code, trusted as the broker itself is. Without one, this drains what an earlier
configuration left in L.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from .commands import Decide, Staged
from .decision import Registered, RouteFunction, decided, interested, last_failure, load_router, no_answer
from .errors import Busy, Refused, StoreUnavailable
from .routing import Interested, Routable
from .store import Store, Undecided

__all__ = ["RouteFunction", "Router", "load_router"]

log = logging.getLogger("waypost")

#: messages that one hand-over to the thread brings
BATCH = 100
#: how long to wait when the commit queue is full
BUSY_SECONDS = 0.1
#: threads that may hang in the function at once; beyond it, routing waits for one of them
MOST_STUCK = 8


class _Task(msgspec.Struct):
    """What the thread needs to decide for one message."""

    message: Undecided
    consumers: list[Interested]
    #: paths to ignore, where its content is compared
    ignore: tuple[str, ...] | None


_Decision = tuple[int, Decide]


class _Worker(threading.Thread):
    """Calls the function until it is left behind."""

    def __init__(
        self, function: RouteFunction | None, store: Store, finished: Callable[[_Worker], None]
    ) -> None:
        super().__init__(name="router", daemon=True)
        self._function, self._store, self._finished = function, store, finished
        self._inbox: queue.SimpleQueue[list[_Task] | None] = queue.SimpleQueue()
        self.batch: list[_Task] = []
        #: with the message's sequence
        self.decisions: list[_Decision] = []
        #: when it began with the message at hand
        self.began_at: float | None = None
        self.left_behind = False
        self.start()

    def give(self, batch: list[_Task]) -> None:
        self.batch, self.decisions = batch, []
        self._inbox.put(batch)

    def stop(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        while (batch := self._inbox.get()) is not None:
            for task in batch:
                self.began_at = time.monotonic()
                decision = decide(task, self._function, self._store)
                if self.left_behind:
                    break
                self.decisions.append((task.message.sequence, decision))
            self.began_at = None
            self._finished(self)
            if self.left_behind:
                return


def decide(task: _Task, function: RouteFunction | None, store: Store) -> Decide:
    """The decision for one message; anything that goes wrong is a decision too."""
    message = task.message
    body = message.body
    if isinstance(body, Staged):
        try:
            wanted = function is not None or task.ignore is not None
            body = store.unstage(body) if wanted else b""
        except BaseException:
            return Decide(id=message.id, failure=last_failure())
    made = decided(function, _routable(message, body), task.consumers, task.ignore)
    return Decide(id=message.id, route=made.route, failure=made.failure, content=made.content)


def _routable(message: Undecided, body: bytes) -> Routable:
    said = message.envelope
    return Routable(
        id=message.id,
        topics=said.topics,
        object=said.object,
        key=said.key,
        mime_type=said.mime_type,
        timestamp=said.timestamp,
        sent=said.sent,
        producer=said.producer,
        encoding=said.encoding,
        meta=dict(said.meta),
        size=message.size,
        body=body,
    )


def registered(store: Store) -> list[Registered]:
    """The consumers, as a decision needs them."""
    found = []
    for info in store.consumers():
        consumer = info.consumer
        channel = None if consumer.channel is None or consumer.topics else store.channel(consumer.channel)
        found.append(
            Registered(
                info.name,
                consumer.queue,
                consumer.channel,
                consumer.topics,
                () if channel is None else channel.topics,
            )
        )
    return found


class Router:
    """Everything that waits in L and is not for Spark, decided in order."""

    def __init__(
        self,
        store: Store,
        submit: Callable[[Decide, Callable[[Any], None]], None],
        function: RouteFunction | None = None,
        *,
        deadline_seconds: float = 5.0,
    ) -> None:
        self._store, self._submit, self._function = store, submit, function
        self._deadline_seconds = deadline_seconds
        self._loop = asyncio.get_running_loop()
        #: decided up to this sequence
        self._after = 0
        #: objects that were Spark's when it was decided up to there
        self._passed_by: frozenset[str] = frozenset()
        self._worker: _Worker | None = None
        self._stuck: set[_Worker] = set()
        self._busy = self._stopped = False
        self._watch: asyncio.TimerHandle | None = None

    @property
    def routes(self) -> bool:
        """Whether messages stop at L for it."""
        return self._function is not None

    def wake(self, sequence: int) -> None:
        """Something from this sequence on waits for a decision."""
        self._after = min(self._after, sequence - 1)
        if not self._busy:
            self._next()

    def stop(self) -> None:
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()
        for worker in (self._worker, *self._stuck):
            if worker is not None:
                worker.stop()

    def _next(self) -> None:
        """The next batch, if there is one and a thread for it."""
        self._busy = False
        if self._stopped or len(self._stuck) >= MOST_STUCK:
            return
        try:
            sparks = self._store.sparks()
            if not self._passed_by <= sparks:
                self._after = (
                    0  # what was Spark's is ours now, and none of it may be overtaken by what came later
                )
            self._passed_by = sparks
            waiting = self._store.undecided(self._after, BATCH, but=sparks)
            tasks = self._tasks(waiting)
        except StoreUnavailable:
            self._busy = True
            self._loop.call_later(BUSY_SECONDS, self._next)
            return
        if tasks:
            self._after = waiting[-1].sequence
            self._busy = True
            self._give(tasks)

    def _tasks(self, waiting: list[Undecided]) -> list[_Task]:
        consumers = registered(self._store) if self._function is not None else []
        policies = {
            name: self._store.object(name) for m in waiting if (name := m.envelope.object) is not None
        }
        tasks = []
        for message in waiting:
            said = message.envelope
            info = None if said.object is None else policies[said.object]
            unchanged = None if info is None else info.policy.unchanged
            ignore = None if unchanged is None or said.key is None else unchanged.ignore
            tasks.append(_Task(message, interested(said.topics, said.object, consumers), ignore))
        return tasks

    def _give(self, tasks: list[_Task]) -> None:
        if self._worker is None:
            self._worker = _Worker(self._function, self._store, self._finished_in_thread)
        self._worker.give(tasks)
        self._watch = self._loop.call_later(self._deadline_seconds / 4, self._look)

    def _finished_in_thread(self, worker: _Worker) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            self._loop.call_soon_threadsafe(self._finished, worker)

    def _finished(self, worker: _Worker) -> None:
        if worker is not self._worker:
            self._stuck.discard(worker)
            if not self._busy:
                self._next()
            return
        if self._watch is not None:
            self._watch.cancel()
        self._decided(worker.decisions, [])

    def _look(self) -> None:
        """Whether the function hangs."""
        worker = self._worker
        began_at = None if worker is None else worker.began_at
        if worker is None or self._stopped:
            return
        if began_at is None or time.monotonic() - began_at < self._deadline_seconds:
            self._watch = self._loop.call_later(self._deadline_seconds / 4, self._look)
            return
        worker.left_behind = True
        decisions = list(worker.decisions)
        if len(decisions) == len(worker.batch):
            # It was the last one, and it came at this moment: `_finished` is on its way.
            self._worker = None
            worker.stop()
            self._decided(decisions, [])
            return
        hanging, rest = worker.batch[len(decisions)], worker.batch[len(decisions) + 1 :]
        self._stuck.add(worker)
        self._worker = None
        worker.stop()
        log.error("router: no answer for message %s in %g s", hanging.message.id, self._deadline_seconds)
        late = hanging.message
        failed = Decide(id=late.id, failure=no_answer(self._deadline_seconds))
        self._decided([*decisions, (late.sequence, failed)], rest)

    def _decided(self, decisions: list[_Decision], rest: list[_Task]) -> None:
        """Commit them; then go on with the rest of the batch, or with the next one."""
        unanswered = len(decisions)
        refused: list[int] = []

        def answered(sequence: int, decision: Decide, result: Any) -> None:
            nonlocal unanswered
            if isinstance(result, Refused) and not isinstance(result, Busy) and decision.failure is None:
                # The store would not have it: a dead letter then, never a message that stays in L for ever.
                failed = Decide(id=decision.id, failure=f"not routed: {result}")
                self._submit(failed, partial(answered, sequence, failed))
                return
            unanswered -= 1
            if isinstance(result, Busy):
                refused.append(sequence)
            if unanswered == 0:
                self._go_on(rest, refused)

        for sequence, decision in decisions:
            self._submit(decision, partial(answered, sequence, decision))

    def _go_on(self, rest: list[_Task], refused: list[int]) -> None:
        if self._stopped:
            return
        if refused:
            self._after = min(self._after, refused[0] - 1)
            self._loop.call_later(BUSY_SECONDS, self._next)
        elif rest and len(self._stuck) < MOST_STUCK:
            self._give(rest)
        else:
            if rest:
                self._after = min(self._after, rest[0].message.sequence - 1)
            self._next()
