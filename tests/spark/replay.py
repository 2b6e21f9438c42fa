"""The tables in plain Python: one event after the other, one dictionary a row. Slow, and simple enough to be believed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
OPEN = ("Q", "R", "F")
CONFIRMED = ("S", "I", "N")
MINUTE = 60_000_000


def rows(table: pa.Table) -> list[Row]:
    """Moments as whole microseconds."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
    found: list[Row] = table.to_pylist()
    return found


def kept(events: list[Row]) -> dict[str, list[Row]]:
    """What the pipeline's tables say after these events: of minutes those that are closed."""
    closed = [event for event in events if event["at"] < events[-1]["at"] // MINUTE * MINUTE]
    return {
        "messages": messages(events),
        "deliveries": deliveries(events),
        "receipts": receipts(events),
        "queue_minutes": queue_minutes(closed),
        "consumer_minutes": consumer_minutes(closed),
    }


def messages(events: Iterable[Row]) -> list[Row]:
    """What the store does not say itself."""
    found: dict[int, Row] = {}
    for event in events:
        if event["channel"] is not None:
            continue
        row = found.setdefault(
            event["sequence"],
            {
                "sequence": event["sequence"],
                "attempt": 0,
                "slots": 0,
                "consumer": None,
                "reason": None,
                "wait_ms": None,
                "processing_ms": None,
                "first_fetched_at": None,
                "confirmed_at": None,
            },
        )
        row["changed_at"], row["last_offset"] = event["at"], event["offset"]
        if event["slot"] is None:
            continue
        row["attempt"] = max(row["attempt"], event["attempt"])
        row["slots"] += (event["from_state"] == "L") - (event["to_state"] == "L")
        row["consumer"] = event["consumer"] or row["consumer"]
        if event["reason"] is not None and (event["from_state"], event["to_state"]) != ("L", "Q"):
            row["reason"] = event["reason"]
        _spans(row, event)
    return list(found.values())


def deliveries(events: Iterable[Row]) -> list[Row]:
    """What the store does not say itself."""
    found: dict[tuple[Any, ...], Row] = {}
    for event in events:
        if event["slot"] is None:
            continue
        key = (event["sequence"], event["destination_code"], event["slot"])
        if event["to_state"] == "L":
            del found[key]
            continue
        row = found.setdefault(
            key,
            {
                "sequence": key[0],
                "destination_code": key[1],
                "slot": key[2],
                "queued_at": None,
                "first_fetched_at": None,
                "confirmed_at": None,
                "wait_ms": None,
                "processing_ms": None,
                "retries": 0,
            },
        )
        row["last_offset"] = event["offset"]
        row["retries"] += event["to_state"] == "R"
        if event["to_state"] == "Q" and row["queued_at"] is None:
            row["queued_at"] = event["at"]
        _spans(row, event)
    return list(found.values())


def _spans(row: Row, event: Row) -> None:
    if event["from_state"] == "Q":
        row["wait_ms"] = (row["wait_ms"] or 0) + event["duration_ms"]
    if event["from_state"] == "F" and event["to_state"] in CONFIRMED:
        row["processing_ms"] = (row["processing_ms"] or 0) + event["duration_ms"]
    if event["to_state"] == "F" and row["first_fetched_at"] is None:
        row["first_fetched_at"] = event["at"]
    if event["to_state"] == "S":
        row["confirmed_at"] = event["at"]


def receipts(events: Iterable[Row]) -> list[Row]:
    found: list[Row] = []
    last: dict[tuple[Any, ...], Row] = {}
    for event in events:
        place = (event["sequence"], event["destination_code"], event["slot"])
        if event["to_state"] == "F":
            last[place] = {
                **{name: event[name] for name in ("sequence", "message_id", "queue", "channel", "slot")},
                **{name: event[name] for name in ("attempt", "consumer", "offset", "destination_code")},
                "fetched_at": event["at"],
                "settled_at": None,
                "outcome": None,
                "reason": None,
                "wait_ms": event["duration_ms"] if event["from_state"] == "Q" else None,
                "processing_ms": None,
            }
            found.append(last[place])
        elif event["from_state"] == "F" or (event["from_state"] == "R" and event["consumer"] is not None):
            row = last[place]
            row["settled_at"], row["outcome"] = event["at"], event["to_state"]
            row["reason"] = event["reason"]
            if event["to_state"] in CONFIRMED:
                row["processing_ms"] = (event["at"] - row["fetched_at"]) // 1_000
    return found


_COUNTED = {
    "queued": "Q",
    "fetched": "F",
    "confirmed": "S",
    "kicked": "K",
    "retried": "R",
    "dead": "EI",
    "timed_out": "T",
    "cancelled": "C",
    "obsolete": "O",
    "not_interested": "N",
}


def queue_minutes(events: Iterable[Row]) -> list[Row]:
    found: dict[tuple[Any, ...], Row] = {}
    waits: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    spans: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    depths: dict[int, int] = defaultdict(int)
    for event in events:
        if event["slot"] is None:
            continue
        minute = event["at"] // MINUTE * MINUTE
        key = (minute, event["destination_code"])
        row = found.setdefault(
            key,
            {
                "minute": minute,
                **{name: event[name] for name in ("queue", "channel", "destination_code")},
                **dict.fromkeys(_COUNTED, 0),
            },
        )
        for name, letters in _COUNTED.items():
            row[name] += event["to_state"] in letters
        depths[key[1]] += (event["to_state"] in OPEN) - (event["from_state"] in OPEN)
        row["depth"] = depths[key[1]]
        if (event["from_state"], event["to_state"]) == ("Q", "F"):
            waits[key].append(event["duration_ms"])
        if event["from_state"] == "F" and event["to_state"] in CONFIRMED:
            spans[key].append(event["duration_ms"])
    for key, row in found.items():
        row |= _percentiles("wait", waits[key]) | _percentiles("processing", spans[key])
    return list(found.values())


def consumer_minutes(events: Iterable[Row]) -> list[Row]:
    found: dict[tuple[Any, ...], Row] = {}
    spans: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for event in events:
        if event["consumer"] is None:
            continue
        minute = event["at"] // MINUTE * MINUTE
        names = {name: event[name] for name in ("consumer", "queue", "channel")}
        key = (minute, *names.values())
        counts = ("fetched", "confirmed", "retried", "invalid", "not_interested", "lease_over")
        row = found.setdefault(key, {"minute": minute, **names, **dict.fromkeys(counts, 0)})
        for name, letter in (("fetched", "F"), ("confirmed", "S"), ("invalid", "I"), ("not_interested", "N")):
            row[name] += event["to_state"] == letter
        if event["from_state"] in "FR" and event["to_state"] in "RE":
            row["lease_over" if event["reason"] == "lease-over" else "retried"] += 1
        if event["from_state"] == "F" and event["to_state"] in CONFIRMED:
            spans[key].append(event["duration_ms"])
    for key, row in found.items():
        row |= _percentiles("processing", spans[key])
    return list(found.values())


def _percentiles(prefix: str, spans: list[int]) -> Row:
    """Between the two nearest, rounded half up, as a person would do it on paper."""
    spans = sorted(spans)
    found: Row = {}
    for share in (50, 95, 99):
        if not spans:
            found[f"{prefix}_p{share}_ms"] = None
            continue
        place = (len(spans) - 1) * share / 100
        below = spans[int(place)]
        above = spans[min(int(place) + 1, len(spans) - 1)]
        found[f"{prefix}_p{share}_ms"] = int(below + (above - below) * (place - int(place)) + 0.5)
    return found
