"""Names: destinations, objects and consumers, as a broker keeps them in memory.

`log_head.version` rises with every change of them. A group decides with what is cached here and says so with its last lock; when
somebody else changed a name meanwhile, it is rolled back, reads them anew and runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec
from psycopg import Cursor

from ...consumers import Consumer
from ...destinations import Kind
from ...objects import ObjectPolicy
from ...policy import Policy
from ...store import ConsumerInfo
from ...topics import TopicIndex
from ..things import Destination

Db = Cursor[tuple[Any, ...]]


class Names:
    def __init__(self, db: Db) -> None:
        db.execute("select version from log_head")
        row = db.fetchone()
        assert row is not None
        self.version: int = row[0]
        db.execute("select max(number) from migrations")
        row = db.fetchone()
        assert row is not None
        #: of the tables; a migration raises the version
        self.schema: int = row[0]
        #: every incarnation, and those that exist
        self.places: dict[int, Destination] = {}
        self.named: dict[Kind, dict[str, Destination]] = {Kind.QUEUE: {}, Kind.CHANNEL: {}}
        self._subscribers: TopicIndex[Destination] | None = None
        #: consumers that are known to have a number; what is rolled back forgets all names
        self.parties: set[str] = set()
        db.execute(
            "select number, kind, name, policy, created_at, deleted_at, topics, start from destinations"
            " order by number"
        )
        for number, kind, name, policy, created_at, deleted_at, topics, start in db.fetchall():
            decoded = msgspec.json.decode(policy, type=Policy)
            patterns = tuple(topics.split(",")) if topics else ()
            self.add(Destination(Kind(kind), name, number, decoded, created_at, deleted_at, patterns, start))
        db.execute("select name, policy from objects")
        self.objects = {
            name: msgspec.json.decode(policy, type=ObjectPolicy) for name, policy in db.fetchall()
        }
        db.execute("select name, consumer, created_at from consumers order by name")
        self.consumers = {
            name: ConsumerInfo(
                name=name, consumer=msgspec.json.decode(consumer, type=Consumer), created_at=created_at
            )
            for name, consumer, created_at in db.fetchall()
        }

    def add(self, place: Destination) -> None:
        self.forget()
        self.places[place.number] = place
        if not place.deleted:
            self.named[place.kind][place.name] = place

    def forget(self) -> None:
        """What was computed of names and policies."""
        self._subscribers = None
        self.__dict__.pop("keyed", None)
        self.__dict__.pop("limited", None)

    def subscribed(self, topics: tuple[str, ...]) -> list[Destination]:
        """Channels, by number."""
        if self._subscribers is None:
            self._subscribers = TopicIndex()
            for channel in self.named[Kind.CHANNEL].values():
                self._subscribers.add(channel.topics, channel)
        return sorted(self._subscribers.find(topics), key=lambda place: place.number)

    @cached_property
    def keyed(self) -> bool:
        """Whether keys matter anywhere: an order by key, or only the latest of a thing."""
        return any(place.keyed or place.policy.latest_only for place in self._existing())

    @cached_property
    def limited(self) -> list[Destination]:
        return [
            place
            for place in self._existing()
            if place.policy.max_messages is not None or place.policy.max_bytes is not None
        ]

    def _existing(self) -> Iterator[Destination]:
        return (place for named in self.named.values() for place in named.values())
