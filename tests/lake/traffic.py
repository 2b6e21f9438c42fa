"""Messages of every kind, put through a store without a broker: for those who read what it leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from waypost.commands import (
    Confirm,
    DeclareChannel,
    DeclareObject,
    DeclareQueue,
    Fetch,
    Fetched,
    Publish,
    PublishMany,
)
from waypost.delivery import Outcome
from waypost.destinations import Kind
from waypost.message import Envelope, payload_hash
from waypost.objects import ObjectPolicy, Unchanged
from waypost.policy import Policy
from waypost.store import Store
from waypost.stores.sqlite import SqliteStore


def opened(path: Path, **options: Any) -> SqliteStore:
    return SqliteStore(path, ballast_bytes=4096, pregrown_bytes=0, **options)


def message(topic: str, body: bytes, **said: Any) -> Publish:
    of_publish = {name: said.pop(name) for name in ("id", "priority", "ttl_us") if name in said}
    envelope = Envelope(topics=(topic, *said.pop("topics", ())), **said)
    return Publish(envelope=envelope, body=body, hash=payload_hash(body), **of_publish)


def done(store: Store, *commands: Any) -> list[Any]:
    return store.apply(commands).results


def fetch(store: Store, place: str, n: int = 1, **more: Any) -> list[Fetched]:
    fetched: list[Fetched] = done(store, Fetch(queue=place, n=n, **more))[0]
    return fetched


def settle(store: Store, place: str, fetched: list[Fetched], **how: Any) -> None:
    done(store, Confirm(queue=place, receipts=[one.receipt for one in fetched], **how))


def of_every_kind(store: Store) -> None:
    """Some 80 events: channels, own ids, unchanged, retries, dead, invalid, not interested, several roots, text that needs escaping."""
    done(store, DeclareObject("customer", ObjectPolicy(unchanged=Unchanged())))
    done(store, DeclareChannel(name="crm", topics=("customer.*",)))
    done(store, DeclareQueue("picky", Policy(retries=1)))
    for number in range(3):
        done(
            store,
            message("customer.changed", b'{"n":1}', key="k1", object="customer", producer='erp, "north"'),
            message(
                "fruit.apple",
                b"\xff\x00binary",
                topics=("veg.carrot",),
                id=f"own-{number}",
                mime_type="application/octet-stream",
                timestamp=1_700_000_000_000_000 + number,
                sent=1_700_000_000_123_456,
            ),
            message("picky.one", 'größer\n"quoted"'.encode(), key=f"ключ-{number}"),
        )
    settle(store, "customer", fetch(store, "customer", 3, consumer="c1"))
    settle(store, "crm", fetch(store, "crm", 2, kind=Kind.CHANNEL), kind=Kind.CHANNEL)
    settle(store, "fruit", fetch(store, "fruit", consumer="c2"), outcome=Outcome.NOT_INTERESTED)
    settle(store, "fruit", fetch(store, "fruit", consumer="c3"), outcome=Outcome.INVALID, reason='no "fruit"')
    for _ in range(2):
        retried = fetch(store, "picky", consumer="c4")
        settle(store, "picky", retried, outcome=Outcome.RETRY, delay_us=0, reason="später")


def many(store: Store, messages: int, key_bytes: int = 0) -> None:
    """Published, fetched, confirmed: five events each. With keys that no packing makes small, where it should be many bytes."""
    for start in range(0, messages, 1_000):
        numbers = range(start, min(messages, start + 1_000))
        keys = [os.urandom(key_bytes // 2).hex() or None for _ in numbers]
        published = [
            message("orders.created", b"body %d" % number, key=key)
            for number, key in zip(numbers, keys, strict=True)
        ]
        done(store, PublishMany(published))
        settle(store, "orders", fetch(store, "orders", len(numbers), consumer="worker"))
