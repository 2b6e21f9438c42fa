"""Somebody else who reads the lake all the time, with tools that know nothing of Waypost.

    python -m prove.watching LAKE        until its stdin ends; then a line of JSON

Reads every table that is there, now with Polars, now with delta-rs, and holds what must hold of any table at any moment:
offsets without a gap or a double, keys that are there once.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

#: what is there once in each
KEYS = {
    "message_events": ["offset"],
    "payloads": ["sequence"],
    "messages": ["sequence"],
    "deliveries": ["sequence", "destination_code", "slot"],
    "receipts": ["sequence", "destination_code", "slot", "attempt"],
    "queue_minutes": ["minute", "destination_code"],
    "consumer_minutes": ["minute", "consumer", "queue", "channel"],
}


def wrong(lake: Path, name: str, with_polars: bool) -> str | None:
    """What cannot be, in the table as it is now."""
    path, columns = str(lake / name), KEYS[name]
    if with_polars:
        keys = pl.scan_delta(path).select(columns).collect()
    else:
        keys = pl.from_arrow(DeltaTable(path).to_pyarrow_dataset().to_table(columns=columns))  # type: ignore[assignment]
    if keys.n_unique() != keys.height:
        return f"{name}: {keys.height - keys.n_unique()} rows are there twice"
    if name == "message_events" and keys.height:
        offsets = keys["offset"]
        span = offsets.max() - offsets.min() + 1  # type: ignore[operator]
        if span != keys.height:
            return f"{name}: {keys.height} rows in {span} offsets"
    return None


def tables(lake: Path) -> Iterator[str]:
    for name in KEYS:
        if (lake / name / "_delta_log").is_dir() and any((lake / name / "_delta_log").glob("*.json")):
            yield name


def main(lake: Path) -> None:
    reads = 0
    errors: list[str] = []
    while not select.select([sys.stdin], [], [], 2.0)[0]:
        for name in list(tables(lake)):
            reads += 1
            try:
                found = wrong(lake, name, reads % 2 == 0)
            except Exception as error:  # whatever a stranger's tool says is what we want to know
                found = f"{name}: {type(error).__name__}: {error}"
            if found is not None:
                errors.append(found[:500])
    print(json.dumps({"reads": reads, "errors": errors}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
