"""The pipeline killed while it works, once with the broker's sealer and once with the broker, and judged as in `make prove`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prove.lake import KEPT, round_of_pipeline_kills

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(400)
def test_a_killed_pipeline_loses_and_doubles_nothing(spark: SparkSession) -> None:
    piped = round_of_pipeline_kills(seed=5, kills=2, spark=spark)

    assert (piped.kills, piped.with_sealer, piped.with_broker) == (2, 1, 1)
    assert piped.acknowledged > 200
    assert piped.events > 4 * piped.acknowledged
    assert piped.lost == piped.wrong_events == 0
    assert piped.wrong_rows == dict.fromkeys(KEPT, 0)
    assert piped.rows["messages"] >= piped.acknowledged
    assert piped.reads > 0
    assert piped.read_errors == []
