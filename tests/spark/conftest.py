"""One Spark session for all tests of this folder, since it takes seconds to start, and a broker as a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.commands import Broker, end, serve
from tests.lake.traffic import many, of_every_kind, opened
from tests.spark.a_day import MIDNIGHT, play
from waypost import BlockingClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from waypost.spark.session import UNCOMPILED, session

    # Tests ask a hundred questions of a few rows each: compiling them would take most of the time.
    made = session("tests", "local[2]", brief=True, log="off", **UNCOMPILED)
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()


@pytest.fixture
def brief_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """JVMs that live a minute do not get back what Java's second compiler takes."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its log has events of every kind, the first ones sealed, the rest not; tests add to it."""
    folder = tmp_path_factory.mktemp("broker")
    with closing(opened(folder / "waypost.db")) as store:
        of_every_kind(store)
        many(store, 1_000)
    started = serve(folder, "--store", f"sqlite:///{folder / 'waypost.db'}")
    try:
        with BlockingClient(started.url) as client:
            client.seal_lake()
            client.publish_many(
                [{"topics": ["late.made"], "key": str(key), "body": "x"} for key in range(500)]
            )
            late = client.fetch("late", 200, consumer="lately")
            client.confirm("late", [message.receipt for message in late])
        yield started
        end(started)
    finally:
        started.process.kill()


@pytest.fixture(scope="session")
def day(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which a day was played, and its lake with all tables beside it."""
    from waypost.spark.pipeline import once
    from waypost.spark.pipeline.log import lake_of

    folder = tmp_path_factory.mktemp("day")
    play(folder / "waypost.db", MIDNIGHT, scale=0.05, days=1).close()
    started = serve(folder, "--store", f"sqlite:///{folder / 'waypost.db'}")
    try:
        once(spark, started.url, lake_of(started.url))
        end(started)
    finally:
        started.process.kill()
    return folder


@pytest.fixture
def client(broker: Broker) -> Iterator[BlockingClient]:
    with BlockingClient(broker.url) as opened_client:
        yield opened_client
