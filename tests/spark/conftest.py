"""One Spark session for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from waypost.spark.session import session

    made = session("tests", "local[2]", brief=True, log="off")
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()
