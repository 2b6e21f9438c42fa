"""Reading a stored body: small ones at once, large ones in a thread."""

from __future__ import annotations

import asyncio

from waypost.broker import Broker
from waypost.commands import Staged


async def read_payload(broker: Broker, id: str) -> bytes:
    """Raises MessageNotFound or PayloadReaped."""
    body = await broker.look(broker.store.body, id)
    return await asyncio.to_thread(broker.store.unstage, body) if isinstance(body, Staged) else body
