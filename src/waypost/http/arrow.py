"""Arrow streams: pieces from the lake's process, handed on as they come.

    GET /log  Accept: application/vnd.apache.arrow.stream        GET /v1/tables/messages?from=1&until=1000

What is wrong with a request shows before the first piece and is answered as a problem. What goes wrong later ends the connection
without the end mark of Arrow and without the last chunk, so that half an answer never looks whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from waypost.http.schemas import ARROW
from waypost.http.wire import Request


def columns_of(text: str | None) -> list[str] | None:
    """`columns=offset,to_state`; what they may be is known where they are read."""
    return None if text is None else [column.strip() for column in text.split(",")]


async def stream_arrow(
    request: Request, pieces: AsyncGenerator[bytes, None], headers: list[tuple[str, str]]
) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with aclosing(pieces):
        first = await anext(pieces)
        stream = request.stream(200, headers, ARROW)
        request.on_gone(task.cancel)
        await stream.write(first)
        async for piece in pieces:
            await stream.write(piece)
        await stream.end()
