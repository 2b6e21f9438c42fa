"""The pipeline killed while it works, once with the broker's sealer and once with the broker, and a job that writes; judged as in `make prove`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prove.lake import KEPT, round_of_pipeline_kills
from prove.sink import round_of_sink_kills, weigh
from prove.sinking import KEYS, ROWS_A_BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brief_java")
def test_a_killed_pipeline_loses_and_doubles_nothing(spark: SparkSession) -> None:
    piped = round_of_pipeline_kills(seed=5, kills=2, spark=spark, think_seconds=0.1)

    assert (piped.kills, piped.with_sealer, piped.with_broker) == (2, 1, 1)
    assert piped.acknowledged > 200
    assert piped.events > 4 * piped.acknowledged
    assert piped.lost == piped.wrong_events == 0
    assert piped.wrong_rows == dict.fromkeys(KEPT, 0)
    assert piped.rows["messages"] >= piped.acknowledged
    assert piped.reads > 0
    assert piped.read_errors == []


@pytest.mark.timeout(600)
def test_a_killed_job_writes_each_row_once() -> None:
    sunk = round_of_sink_kills(seed=6, kills=1)

    assert sunk.victims == {"job": 1}
    assert sunk.batches >= 2
    assert sunk.rows == sunk.batches * ROWS_A_BATCH
    assert sunk.lost == sunk.doubled == sunk.disordered == sunk.forgotten == 0
    assert sunk.acknowledged > 100


def test_the_judge_of_the_sink_finds_what_it_looks_for() -> None:
    rows = list(range(2 * ROWS_A_BATCH))
    whole = {"batches": 2, "rows": len(rows), "lost": 0, "doubled": 0, "disordered": 0}
    assert weigh(rows, 2) == weigh(rows, 1) == whole
    assert weigh(rows, 3)["lost"] == ROWS_A_BATCH
    assert weigh(rows[:-1], 2)["lost"] == 1
    assert weigh(rows[: ROWS_A_BATCH + 1], 1)["lost"] == ROWS_A_BATCH - 1
    assert weigh([*rows, 7], 2)["doubled"] == 1
    swapped = [*rows[KEYS:], *rows[:KEYS]]
    assert weigh(swapped, 2) == whole | {"disordered": KEYS}
