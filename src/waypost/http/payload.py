"""Reading a stored body: small ones at once, large ones in a thread."""

from __future__ import annotations

import asyncio

from waypost.commands import Staged
from waypost.store import Store


async def read_payload(store: Store, id: str) -> bytes:
    """Raises MessageNotFound or PayloadReaped."""
    body = store.body(id)
    return await asyncio.to_thread(store.unstage, body) if isinstance(body, Staged) else body
