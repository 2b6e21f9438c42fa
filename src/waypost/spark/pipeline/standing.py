"""How far each table is; read from their logs and asked of the broker, without Spark."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from pyspark_waypost.broker import Broker

from ...lake import delta
from ...lake.owner import PIPELINE, Lake
from .keeping import kept_in
from .log import plainly


def standing(url: str, lake: Lake) -> dict[str, Any]:
    """For `status`: offsets, and how many events each table lacks."""
    oldest, head = plainly(Broker(url).bounds)
    tables = []
    for one in kept_in(lake):
        folded = one.folded()
        size = 0
        if folded is not None:
            size = sum(file.size for file in delta.data_files(delta.open_table(one.path), one.path))
        tables.append(
            {
                "name": one.name,
                "offset": folded,
                "lag": head - (oldest - 1 if folded is None else folded),
                "bytes": size,
            }
        )
    return {
        "lake": str(lake.folder),
        "oldest": oldest,
        "head": head,
        "running": _runs(lake),
        "tables": tables,
    }


def _runs(lake: Lake) -> int | None:
    """The process that keeps the tables now."""
    try:
        fd = os.open(lake.folder / f".{PIPELINE}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(fd, 20, 0).strip() or 0)
    finally:
        os.close(fd)
    return None
