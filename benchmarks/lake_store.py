"""A store with millions of events in it, made by the store itself: the log that a busy week leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import apsw

from waypost.commands import Command, Confirm, Fetch, Publish
from waypost.delivery import Outcome
from waypost.message import Envelope, payload_hash
from waypost.stores.sqlite import SqliteStore

QUEUES = ("orders", "customers", "invoices", "stock", "mail", "audit")
WORKERS = 24
PRODUCERS = ("erp", "shop", "crm")
BODY = b"x" * 256
GROUP = 1_000


def fill(path: Path, events: int, told: Callable[[int], None] = lambda head: None, seed: int = 1) -> int:
    """Publish, fetch and confirm until the log has so many events; the last offset. Some are retried, some are invalid."""
    rng, hash = random.Random(seed), payload_hash(BODY)
    store = SqliteStore(path, synchronous="off")  # it is kept for an hour, not promised to anybody
    try:
        head = store.bounds()[1]
        while head < events:
            queue = rng.choice(QUEUES)
            store.apply(
                [
                    Publish(
                        envelope=Envelope(
                            topics=(f"{queue}.changed",),
                            key=str(rng.randrange(50_000)),
                            mime_type="application/json",
                            producer=rng.choice(PRODUCERS),
                        ),
                        body=BODY,
                        hash=hash,
                    )
                    for _ in range(GROUP)
                ]
            )
            fetches: list[Command] = [
                Fetch(queue=queue, consumer=f"worker-{rng.randrange(WORKERS)}", n=GROUP // 10)
                for _ in range(10)
            ]
            for fetched in store.apply(fetches).results:
                store.apply(_confirms(queue, [one.receipt for one in fetched], rng))
            head = store.bounds()[1]
            told(head)
        return head
    finally:
        store.close()


def _confirms(queue: str, receipts: list[str], rng: random.Random) -> list[Command]:
    cut = len(receipts) // 20
    if rng.random() < 0.5:
        return [
            Confirm(queue=queue, receipts=receipts[cut:]),
            Confirm(
                queue=queue, receipts=receipts[:cut], outcome=Outcome.RETRY, delay_us=0, reason="try again"
            ),
        ]
    return [
        Confirm(queue=queue, receipts=receipts[1:]),
        Confirm(queue=queue, receipts=receipts[:1], outcome=Outcome.INVALID, reason="no such customer"),
    ]


#: each event of the three tables as (destination, to_state, at); as a person would write it who knows the tables
_AGGREGATE = """
    select destination, state, count(*), max(at) from (
        select 0 as destination, 1 as state, at from messages
        union all select route, 3, at from messages where typeof(route) = 'integer'
        union all select destination, 4, at from fetches
        union all select destination, path >> 5 & 31, at from steps
        union all select destination, path >> 10 & 31, at from steps where path >> 10
    ) group by 1, 2"""


def aggregate(path: Path) -> int:
    """SQLite's own count of events by destination and state, and the last moment of each; how many there were."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return sum(count for _, _, count, _ in connection.execute(_AGGREGATE))
    finally:
        connection.close()
