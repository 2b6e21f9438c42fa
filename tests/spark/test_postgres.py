"""The pipeline over a broker whose store is PostgreSQL, and one of two that share the lake."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.commands import Broker, serve
from tests.lake.brokers import eventually
from tests.lake.traffic import many, of_every_kind
from tests.postgres.fixtures import database
from tests.spark.logs import Tables
from tests.spark.test_pipeline import check_with
from waypost import BlockingClient
from waypost.lake.owner import Lake
from waypost.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["database"]

pytestmark = pytest.mark.timeout(280)


def seals(broker: Broker) -> bool:
    with BlockingClient(broker.url) as client:
        return bool(client.lake()["sealing"]["here"])


def test_tables_over_postgresql_say_what_its_brokers_say(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    """The pipeline asks the broker that does not seal; the other one is killed between its two runs."""
    with closing(PostgresStore(database)) as store:
        of_every_kind(store)
        many(store, 300)
    from waypost.spark.pipeline import once

    lake = tmp_path / "lake"
    options = ("--store", database, "--lake", str(lake))
    sealer = serve(tmp_path, *options)
    try:
        eventually(lambda: seals(sealer), "the first broker's lease")
        other = serve(tmp_path, *options)
        try:
            with BlockingClient(other.url) as client:
                client.seal_lake()
                client.publish_many([{"topics": ["late.made"], "body": "x"} for _ in range(50)])
            once(spark, other.url, Lake(lake))
            check_with(other, Tables(spark, None, lake))
            sealer.process.kill()
            with BlockingClient(other.url) as client:
                client.publish_many([{"topics": ["later.made"], "body": "y"} for _ in range(50)])
                eventually(lambda: seals(other), "the lease that ended")
                client.seal_lake()
            once(spark, other.url, Lake(lake))
            check_with(other, Tables(spark, None, lake))
        finally:
            other.process.kill()
            other.process.communicate()
    finally:
        sealer.process.kill()
        sealer.process.communicate()
