"""The controls: the same broker with one piece of its care left out. Nothing in the product offers this.

python -m prove.careless normal /abs/waypost.db         syncs at checkpoints only
python -m prove.careless unchecked /abs/waypost.db      no checkpoint at the start
"""

from __future__ import annotations

import asyncio
import sys
from unittest.mock import patch

from waypost.http.service import run
from waypost.stores.sqlite import SqliteStore, files


def open_careless(how: str, path: str) -> SqliteStore:
    if how == "normal":
        return SqliteStore(path, synchronous="normal")
    # The log's size at the start is one more checkpoint, so that goes too.
    with patch.object(files, "checkpoint"):
        return SqliteStore(path, pregrown_bytes=0)


async def serve(how: str, path: str) -> None:
    serving = await run(open_careless(how, path), port=0)
    print(f"careless: ready on {serving.url}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
