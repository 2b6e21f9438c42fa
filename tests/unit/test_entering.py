"""Entering: the next slice is unpacked while one enters, and is thrown away where another broker has been."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from waypost.batches import Packing, Rows
from waypost.commands import AcceptBatch, Batch, Command, EnterRows, Fetch, KeepUpload, Publish
from waypost.entering import Entering
from waypost.errors import Busy, Refused
from waypost.message import payload_hash
from waypost.stores.memory import MemoryStore

SLICE, SLICES = 10, 6
BODIES = [b"%d" % number for number in range(SLICE * SLICES)]


def done(store: MemoryStore, command: Command) -> Any:
    result = store.apply([command]).results[0]
    if isinstance(result, Refused):
        raise result
    return result


def accepted(store: MemoryStore) -> Batch:
    packing = Packing()
    for start in range(0, len(BODIES), SLICE):
        some = BODIES[start : start + SLICE]
        packing.add(Rows([(("a.x",), None, None)], None, some, list(map(payload_hash, some))))
    body = store.stage_chunk("u", packing.chunk())
    done(store, KeepUpload(id="u", body=body, rows=packing.rows, hash=packing.hash))
    batch: Batch = done(
        store, AcceptBatch(query="q", batch=0, uploads=["u"], rows=packing.rows, hash=packing.hash)
    )
    return batch


def entered(store: MemoryStore, before: Callable[[EnterRows], None]) -> list[tuple[int, int]]:
    """All of a batch, `before` called before each slice; the slices as (first row, rows)."""
    slices: list[tuple[int, int]] = []

    async def run() -> None:
        async def call(work: Callable[..., Any], *given: Any) -> Any:
            return work(*given)

        async def prepare(messages: list[Publish]) -> None:
            return None

        async def enter(command: EnterRows) -> Batch:
            for _ in range(5):
                await asyncio.sleep(0)  # what was asked for ahead comes first
            slices.append((command.after, len(command.messages)))
            before(command)
            batch: Batch = done(store, command)
            if batch.ended_at is not None:
                ended.set()
            return batch

        ended = asyncio.Event()
        entering = Entering(store, look=call, work=call, prepare=prepare, enter=enter)
        entering.wake(accepted(store))
        async with asyncio.timeout(20):
            await ended.wait()
        entering.stop()

    asyncio.run(run())
    return slices


def bodies(store: MemoryStore) -> list[bytes]:
    return [fetched.body for fetched in done(store, Fetch(queue="a", n=1_000, lease_us=10**6))]


def test_each_slice_enters_once_and_in_order() -> None:
    store = MemoryStore()
    assert entered(store, lambda command: None) == [(start, SLICE) for start in range(0, len(BODIES), SLICE)]
    assert bodies(store) == BODIES


@pytest.mark.parametrize("theirs", [SLICE, SLICE + 3, 3 * SLICE])
def test_what_was_unpacked_ahead_is_not_used_where_another_broker_has_been(theirs: int) -> None:
    store = MemoryStore()
    once = iter([None])

    def another(command: EnterRows) -> None:
        if command.after == SLICE and next(once, 0) is None:
            rows = BODIES[SLICE : SLICE + theirs]
            theirs_of_it = Rows([(("a.x",), None, None)], None, rows, list(map(payload_hash, rows)))
            done(store, EnterRows(query="q", batch=0, after=SLICE, messages=theirs_of_it.messages()))

    slices = entered(store, another)
    assert slices[:3] == [(0, SLICE), (SLICE, SLICE), (SLICE + theirs, SLICE - theirs % SLICE)]
    assert bodies(store) == BODIES


def test_a_slice_that_cannot_enter_now_is_tried_again() -> None:
    store = MemoryStore()
    refusals = iter([Busy("not now")] * 2)

    def before(command: EnterRows) -> None:
        if command.after == SLICE and (refusal := next(refusals, None)) is not None:
            raise refusal

    slices = entered(store, before)
    assert slices[1:4] == [(SLICE, SLICE)] * 3
    assert bodies(store) == BODIES
