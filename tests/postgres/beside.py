"""A PostgreSQL store beside the memory store: what each answers and holds is compared after every group."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from waypost.commands import Command
from waypost.filters import Filter
from waypost.instants import SECOND
from waypost.stores.memory import MemoryStore
from waypost.stores.postgres import PostgresStore
from waypost.testing import audit
from waypost.testing.clock import MovableClock
from waypost.testing.hand import listing


@pytest.fixture
def both(database: str) -> Iterator["Both"]:
    clock = MovableClock()
    draw = count(1).__next__, count(1).__next__
    store = PostgresStore(database, clock=clock, entropy=draw[0])
    yield Both(store, MemoryStore(clock=clock, entropy=draw[1]), clock)
    store.close()


class Both:
    """The store and the model: one group after the other goes to both, and nothing tells them apart."""

    def __init__(self, store: PostgresStore, model: MemoryStore, clock: MovableClock) -> None:
        self.store, self.model, self.clock = store, model, clock

    def ask(self, *commands: Command) -> list[Any]:
        self.clock.now += SECOND
        got, expected = self.store.apply(commands), self.model.apply(commands)
        assert got.results == expected.results
        assert (got.ready, got.ready_channels) == (expected.ready, expected.ready_channels)
        assert got.due_at == expected.due_at
        _, head = self.model.bounds()
        assert self.store.events(1, head) == self.model.events(1, head)
        for event in self.model.events(1, head):
            assert self.store.message(event.message_id) == self.model.message(event.message_id)
            assert self.store.body(event.message_id) == self.model.body(event.message_id)
        assert list(listing(self.store, Filter())) == list(listing(self.model, Filter()))
        assert self.store.queues() == self.model.queues()
        assert self.store.channels() == self.model.channels()
        audit(self.store)
        return got.results
