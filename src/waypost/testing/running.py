"""A whole broker for a test: store, committer and HTTP server, on a free port, gone when the test is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..errors import StoreBroken
from ..http.service import Serving, run
from ..store import Store
from ..stores.memory import MemoryStore

log = logging.getLogger("waypost.testing")

#: how long a test's connections may keep the broker from stopping
STOP_SECONDS = 2.0


@asynccontextmanager
async def running_broker(
    store: Store | None = None, *, port: int = 0, **options: Any
) -> AsyncIterator[Serving]:
    """Serve a store, a memory store if none is given; `options` are those of `waypost.http.service.run`.

    When the store breaks, nothing is answered any more, as in earnest, but the test's process goes on.
    """
    options.setdefault("on_broken", _log_broken)
    serving = await run(store if store is not None else MemoryStore(), port=port, **options)
    try:
        yield serving
    finally:
        await serving.stop(STOP_SECONDS)


def _log_broken(broken: StoreBroken) -> None:
    log.critical("the store is broken: %s", broken)
