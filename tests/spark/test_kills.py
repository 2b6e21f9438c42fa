"""Two kills of the proof that `make prove` runs at length: the pipeline, then the pipeline with the broker and its sealer."""

from typing import TYPE_CHECKING

import pytest

from prove.lake import round_of_pipeline_kills

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(280)
def test_tables_are_exact_whatever_is_killed(spark: "SparkSession") -> None:
    piped = round_of_pipeline_kills(seed=3, kills=2, spark=spark)

    assert (piped.kills, piped.with_broker) == (2, 1)
    assert piped.read_errors == []
    assert (piped.lost, piped.wrong_events) == (0, 0)
    assert piped.wrong_rows == dict.fromkeys(piped.wrong_rows, 0)
    assert piped.faultless
    assert piped.reads > 10
    assert piped.events > 1_000
    assert piped.rows["messages"] > 200
    assert piped.rows["deliveries"] >= piped.rows["messages"]
