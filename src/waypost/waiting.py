"""What waits in L: for how long the oldest has waited, and what became of the decisions.

A message that waits for longer than a bound is a warning, in the broker's log and in /health/ready: a routing job that does not
run, or a routing function that does not keep up. Nothing else is done about it, because nothing is lost by waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from .commands import Decide, Decided
from .errors import StoreUnavailable
from .instants import SECOND
from .store import Store

log = logging.getLogger("waypost")

#: how long a message may wait before it is a warning
WARN_SECONDS = 60.0
#: how often it is looked for
LOOK_SECONDS = 5.0

#: who decides
By = Literal["inline", "spark"]
#: what became of a decision: `late` changed nothing, `failed` made a dead letter
RESULTS = ("applied", "late", "failed")


class Oldest(msgspec.Struct, frozen=True):
    """The lowest sequence in L."""

    id: str
    object: str | None
    #: when it came into L: when it was logged, or redriven
    since_at: int
    by: By


class Waiting:
    def __init__(
        self,
        store: Store,
        look: Callable[[Callable[[], Oldest | None]], Awaitable[Oldest | None]],
        bound_seconds: float = WARN_SECONDS,
    ) -> None:
        """`look` asks the store, in a thread where that may take its time."""
        self._store, self._look, self._bound_seconds = store, look, bound_seconds
        #: as of the last look
        self.oldest: Oldest | None = None
        #: (who, what became of it) -> how many decisions
        self.decisions: Counter[tuple[By, str]] = Counter()

    @property
    def age_seconds(self) -> float:
        """For how long the oldest has waited; 0 when nothing waits."""
        return 0.0 if self.oldest is None else max(0, self._store.clock() - self.oldest.since_at) / SECOND

    @property
    def warning(self) -> str | None:
        oldest, age = self.oldest, self.age_seconds
        if oldest is None or age <= self._bound_seconds:
            return None
        said = f"message {oldest.id} has waited in L for {age:.0f} s, longer than {self._bound_seconds:g} s"
        if oldest.by == "spark":
            return f"{said}: Spark routes object {oldest.object!r}; is `waypost pipeline route` running?"
        return f"{said}: the router does not keep up"

    def count(self, by: By, decision: Decide, result: Any) -> None:
        if isinstance(result, Decided):
            failed = "applied" if decision.failure is None else "failed"
            self.decisions[by, failed if result.applied else "late"] += 1

    async def watch(self) -> None:
        """Until it is cancelled."""
        warned = False
        while True:
            try:
                self.oldest = await self._look(self._find)
            except StoreUnavailable:
                pass  # said elsewhere
            else:
                warning = self.warning
                if warning is not None and not warned:
                    log.warning("%s", warning)
                elif warning is None and warned:
                    log.info("nothing waits in L for longer than %g s any more", self._bound_seconds)
                warned = warning is not None
            await asyncio.sleep(min(LOOK_SECONDS, self._bound_seconds / 4))

    def _find(self) -> Oldest | None:
        store = self._store
        for one in store.undecided(0, 1):
            info = store.message(one.id)
            came = [event.at for event in info.journey] if info is not None else []
            object = one.envelope.object
            by: By = "spark" if object in store.sparks() else "inline"
            return Oldest(one.id, object, came[-1] if came else one.created_at, by)
        return None
