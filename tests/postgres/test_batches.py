"""Batches on a database that brokers share: whoever accepted one may go, and another goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.http.brokers import BrokerInThread
from tests.http.harness import wait_until
from tests.http.test_batches import batch_of, bodies, entered, put, rows, upload
from tests.postgres.fixtures import database
from waypost import entering
from waypost.stores.postgres import PostgresStore

__all__ = ["database"]


@pytest.fixture
def another(database: str) -> Callable[[], BrokerInThread]:
    return lambda: BrokerInThread(lambda: PostgresStore(database))


def test_rows_come_in_through_any_broker(another: Callable[[], BrokerInThread]) -> None:
    with another() as one, another() as two:
        uploads = [upload(one, rows(2_500)), upload(two, rows(3, 2_500))]
        assert put(two, "q/0", batch_of(*uploads)).status == 202
        entered(one, "q/0")
        assert put(one, "q/0", batch_of(*uploads)).status == 200
        assert bodies(one, "fruit") == [str(number) for number in range(2_503)]


def test_another_broker_goes_on_where_the_first_one_ended(
    another: Callable[[], BrokerInThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entering, "LOOK_SECONDS", 0.2)
    with another() as two:
        with another() as one:
            one.ask("PUT", "/v1/queues/fruit", json.dumps({"maxMessages": 3}))
            put(one, "q/0", batch_of(upload(one, rows(5))))
            wait_until(lambda: one.get("/v1/batches/q/0")["entered"] == 3, "what there is room for")
        assert two.ask("PUT", "/v1/queues/fruit", "{}").status == 200
        wait_until(lambda: two.get("/v1/batches/q/0")["ended"] is not None, "the other one")
        assert bodies(two, "fruit") == [str(number) for number in range(5)]
