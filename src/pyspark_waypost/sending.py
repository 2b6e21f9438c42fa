"""Uploads and batches over HTTP: the broker's half of a write.

All of it can be repeated: an upload that came twice is forgotten once, and a batch is known by its name and content.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .broker import ARROW, PATIENCE_SECONDS, Answer, Broker
from .errors import SourceError

_MODULUS = 1 << 128
_SHORTEST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5


class Upload(NamedTuple):
    """As the broker answered it."""

    id: str
    rows: int
    hash: str


def upload(broker: Broker, stream: bytes, first: int) -> Upload:
    """`first`: the number of its first row."""

    def ask() -> Upload:
        query = {"first": str(first)}
        with Answer(broker, "POST", "/v1/uploads", query, {"Content-Type": ARROW}, stream) as answer:
            kept = json.loads(answer.read())
        return Upload(kept["upload"], kept["rows"], kept["hash"])

    return broker.patiently(ask, PATIENCE_SECONDS)


def accept(broker: Broker, query: str, batch: int, uploads: Sequence[Upload]) -> dict[str, Any]:
    """All rows of these uploads, in this order; if the broker knows the batch already, nothing changes."""
    total = sum(int(one.hash, 16) for one in uploads) % _MODULUS
    form = {
        "uploads": [one.id for one in uploads],
        "rows": sum(one.rows for one in uploads),
        "hash": f"{total:032x}",
    }

    def ask() -> dict[str, Any]:
        sent = json.dumps(form).encode()
        with Answer(broker, "PUT", f"/v1/batches/{query}/{batch}", body=sent) as answer:
            return dict(json.loads(answer.read()))

    return broker.patiently(ask, PATIENCE_SECONDS)


def wait(broker: Broker, accepted: dict[str, Any], seconds: float) -> None:
    """Until all rows are in, or none came in for so long."""
    where = f"/v1/batches/{accepted['query']}/{accepted['batch']}"

    def ask() -> dict[str, Any]:
        with Answer(broker, "GET", where) as answer:
            return dict(json.loads(answer.read()))

    began = moved_at = time.monotonic()
    known, pause = accepted, _SHORTEST_PAUSE_SECONDS
    while known["ended"] is None:
        if time.monotonic() - moved_at > seconds:
            raise SourceError(
                f"{known['entered']} of {known['rows']} rows are in, and for {seconds:g} s no other: is a queue full,"
                f" or the disk? The batch is accepted, and the rest will enter by itself; GET {where} shows it"
            )
        time.sleep(pause)
        now = broker.patiently(ask, PATIENCE_SECONDS)
        if now["entered"] != known["entered"]:
            moved_at = time.monotonic()
        known, pause = now, _pause(accepted, now, time.monotonic() - began)


def _pause(accepted: dict[str, Any], now: dict[str, Any], seconds: float) -> float:
    """Half of what the rest takes at the rate so far: seldom asked on the way, and soon heard of at the end."""
    entered = now["entered"] - accepted["entered"]
    left = (now["rows"] - now["entered"]) * seconds / entered if entered else seconds
    return min(max(left / 2, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
