"""Watching: the mover inside a broker that serves a folder. Four times a second it looks for what others dropped, and what they did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..commands import Tick

if TYPE_CHECKING:
    from ..broker import Broker
    from ..store import Store
    from ..stores.folder import FolderStore

log = logging.getLogger("waypost")

#: how often the folders are looked at
LOOK_SECONDS = 0.25


def watch(store: Store, broker: Broker, values: dict[str, Any]) -> Callable[[], None]:
    """The mover inside a broker: what others dropped, and what they did; how to stop it."""
    from ..stores.folder import FolderStore

    if not isinstance(store, FolderStore):
        return lambda: None
    log.info(
        "folder: %s; peers %d, mover %s, reaper %s",
        store,
        values["peers"],
        "here" if values["mover"] else "elsewhere",
        "here" if values["reaper"] else "elsewhere",
    )
    if not values["mover"]:
        return lambda: None
    watching = _Watching(store, broker)
    watching.look()
    return watching.stop


class _Watching:
    def __init__(self, store: FolderStore, broker: Broker) -> None:
        self._store, self._broker = store, broker
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        if self._store.dropped():
            self._broker.submit(Tick(), lambda result: None)
        self._broker.look()
        self._timer = self._loop.call_later(LOOK_SECONDS, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
