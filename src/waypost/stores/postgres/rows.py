"""Rows of a group, as they are written: numbers are final, texts fit.

message, slot, event ── the numbers that came with the last lock ──▶ tuples, in the order of the table's columns
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...commands import Fetched, Published
from ...delivery import State
from ...store import Event
from ..things import Destination, Message, Slot

MESSAGES = (
    "messages (sequence bigint, at bigint, salt integer, own_id text, envelope text, object text, key text,"
    " hash bytea, size bigint, priority smallint, expires_at bigint, due_at bigint, force boolean,"
    " kept boolean, routed boolean, undecided boolean, same_as text, ended_at bigint)"
)
PAYLOADS = "payloads (sequence bigint, body bytea)"
#: of a delivery: where it is, and what can change
PLACE = "sequence bigint, destination bigint, slot smallint"
CHANGING = (
    "state smallint, blocked boolean, since_at bigint, due_at bigint, expires_at bigint, named text, attempt integer,"
    " tries integer, consumer text, reason text, redriven bigint, refused text, fetched bigint"
)
DELIVERIES = f"deliveries ({PLACE}, priority smallint, key text, kick boolean, routed text, {CHANGING})"
EVENTS = (
    'events ("offset" bigint, at bigint, message_id text, sequence bigint, destination bigint, slot smallint,'
    " from_state smallint, to_state smallint, attempt integer, consumer text, reason text, duration_ms bigint,"
    " envelope text, hash bytea, size bigint, same_as text)"
)


class Written:
    """A group's numbers, once they are final."""

    def __init__(self, base: int, delta: int, at: int, turn: int, snapshot_due: bool) -> None:
        self._base, self.delta, self.at, self.turn, self.snapshot_due = base, delta, at, turn, snapshot_due
        #: ids and receipts that were made with provisional numbers
        self._texts: dict[str, str] = {}

    def number(self, number: int | None) -> int | None:
        return number if number is None or number <= self._base else number + self.delta

    def text(self, text: str | None) -> str | None:
        return text if text is None else self._texts.get(text, text)

    def rename_all(self, before: list[str], after: list[str]) -> None:
        self._texts.update(zip(before, after, strict=True))

    def rename(self, before: str, after: str) -> None:
        if before != after:
            self._texts[before] = after

    def results(self, results: list[Any]) -> list[Any]:
        """As the callers get them."""
        return list(map(self._result, results)) if self._texts else results

    def _result(self, result: Any) -> Any:
        if type(result) is Published and result.same_as is None:
            return Published(self._texts.get(result.id, result.id), result.state)
        if isinstance(result, list):
            return [self._result(one) for one in result]
        changes: dict[str, Any] = {}
        for field in ("id", "receipt", "same_as"):
            text = getattr(result, field, None)
            if isinstance(text, str) and text in self._texts:
                changes[field] = self._texts[text]
        if isinstance(result, Fetched) and "id" in changes:
            changes["created_at"] = self.at
        return msgspec.structs.replace(result, **changes) if changes else result


def message_row(message: Message, envelope: str, undecided: bool, written: Written) -> tuple[Any, ...]:
    return (
        written.number(message.sequence),
        written.at,
        message.salt,
        message.own_id,
        envelope,
        message.envelope.object,
        message.envelope.key,
        message.hash,
        message.size,
        message.priority,
        message.expires_at,
        message.due_at,
        message.force,
        message.kept,
        message.routed,
        undecided,
        written.text(message.same_as),
        message.ended_at,
    )


def place_of(slot: Slot, written: Written) -> tuple[Any, ...]:
    return written.number(slot.message.sequence), slot.queue.number, slot.number


def delivery_row(slot: Slot, row: tuple[Any, ...], written: Written) -> tuple[Any, ...]:
    """A new one; `row`: what can change of it."""
    fixed = (slot.place[0], slot.message.envelope.key, slot.kick, slot.routed)
    return (*place_of(slot, written), *fixed, *changing(row, None, written))


def changing(row: tuple[Any, ...], was: tuple[Any, ...] | None, written: Written) -> tuple[Any, ...]:
    state, blocked, since_at, *fields, reason, redriven, refused, fetch = row
    if was is None or since_at != was[2]:
        since_at = written.at  # as its event says
    numbers = (_clean(reason), written.number(redriven), refused, written.number(fetch))
    return (state, blocked, since_at, *fields, *numbers)


def event_row(
    event: Event, place: Destination | None, envelope: str | None, written: Written
) -> tuple[Any, ...]:
    return (
        written.number(event.offset),
        written.at,
        written.text(event.message_id),
        written.number(event.sequence),
        None if place is None else place.number,
        event.slot,
        code_of(event.from_state),
        int(event.to_state),
        event.attempt,
        event.consumer,
        _clean(event.reason),
        # Brokers' clocks differ a little.
        None if event.duration_ms is None else max(0, event.duration_ms),
        envelope,
        event.hash,
        event.size,
        written.text(event.same_as),
    )


def code_of(state: State | None) -> int | None:
    return None if state is None else int(state)


def _clean(text: str | None) -> str | None:
    """PostgreSQL's text holds no NUL."""
    return text if text is None or "\0" not in text else text.replace("\0", "\N{REPLACEMENT CHARACTER}")
