"""events() and table(): what is sealed and what is not as one, where they look, what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from tests.integration.commands import Broker, end, serve
from tests.lake.traffic import many, opened
from waypost import BlockingClient
from waypost.arrow import EVENTS
from waypost.errors import LakeUnusable

pytest.importorskip("pyspark")

from waypost.spark import ReadingImpossible, events, reading, table
from waypost.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def log_of(broker: Broker) -> list[dict[str, Any]]:
    with urlopen(f"{broker.url}/log") as answer:
        return [json.loads(line) for line in answer]


def lake_of(client: BlockingClient) -> Path:
    return Path(client.lake()["lake"])


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in rows.select("offset").collect())


@pytest.fixture
def unsealed(client: BlockingClient) -> tuple[int, int]:
    """(the last sealed offset, the head), with something between them."""
    client.publish_many([{"topics": ["tail.made"], "body": "x"}] * 3)
    said = client.lake()
    assert 0 < said["sealed"] < said["head"]
    return said["sealed"], said["head"]


def test_events_are_the_sealed_and_the_live_ones_each_once(
    spark: SparkSession, broker: Broker, unsealed: tuple[int, int]
) -> None:
    found = events(spark, broker.url)
    assert found.columns == EVENTS.names
    assert offsets(found) == list(range(1, unsealed[1] + 1))
    told = {
        event["offset"]: (event["toState"], event["queue"], event["messageId"]) for event in log_of(broker)
    }
    rows = found.select("offset", "to_state", "queue", "message_id").collect()
    assert {row.offset: (row.to_state, row.queue, row.message_id) for row in rows} == told


@pytest.mark.parametrize("reach", [(-40, -30), (-5, 2), (1, 3), (0, 1)])
def test_a_range_is_exact_on_both_sides_of_the_seal(
    spark: SparkSession, broker: Broker, unsealed: tuple[int, int], reach: tuple[int, int]
) -> None:
    lo, hi = unsealed[0] + reach[0], unsealed[0] + reach[1]
    assert offsets(events(spark, broker.url, from_=lo, until=hi)) == list(range(lo, hi + 1))
    # also where the offset itself is not asked for
    assert events(spark, broker.url, from_=lo, until=hi, columns=["to_state"]).count() == hi - lo + 1


def test_events_are_those_of_the_moment_they_were_asked_for(
    spark: SparkSession, broker: Broker, client: BlockingClient, unsealed: tuple[int, int]
) -> None:
    asked = events(spark, broker.url)
    client.publish("later.made", "x")
    client.seal_lake()
    assert asked.count() == unsealed[1]
    assert events(spark, broker.url).count() == unsealed[1] + 2


def test_an_instant_stands_for_the_offsets_until_it(spark: SparkSession, broker: Broker) -> None:
    told = log_of(broker)
    moment = told[len(told) // 2]["at"]
    expected = [event["offset"] for event in told if event["at"] <= moment]
    assert offsets(events(spark, broker.url, until=moment)) == expected
    assert offsets(events(spark, broker.url, until=datetime.fromisoformat(moment))) == expected
    since = [event["offset"] for event in told if event["at"] >= moment]
    assert offsets(events(spark, broker.url, from_=moment)) == since


def test_a_lake_is_read_without_its_broker(
    spark: SparkSession, broker: Broker, client: BlockingClient, tmp_path: Path
) -> None:
    sealed = client.seal_lake()
    # A folder's name may have signs that mean something to Hadoop.
    copy = shutil.copytree(lake_of(client), tmp_path / "lake [copy]{1}")
    client.publish("unseen.made", "x")
    assert offsets(events(spark, lake=copy)) == list(range(1, sealed + 1))
    told = log_of(broker)
    moment = told[100]["at"]
    expected = [event["offset"] for event in told if event["at"] <= moment]
    assert offsets(events(spark, lake=copy, until=moment)) == expected
    assert table(spark, "messages", asOf=sealed, lake=copy).count() == sum(
        event["toState"] == "L" for event in told[:sealed]
    )


def test_a_broker_without_a_lake_is_read_over_http(spark: SparkSession, tmp_path: Path) -> None:
    started = serve(tmp_path, "--lake", "off")
    try:
        with BlockingClient(started.url) as client:
            client.publish_many([{"topics": ["fruit.apple"], "body": "x"}] * 20)
            assert offsets(events(spark, started.url)) == list(range(1, 41))
            with pytest.raises(ReadingImpossible, match="nothing is sealed"):
                table(spark, "payloads", url=started.url)
        end(started)
    finally:
        started.process.kill()


def test_a_tail_is_the_same_whoever_reads_it(
    spark: SparkSession, broker: Broker, unsealed: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver a short one, tasks a long one."""
    by_driver = events(spark, broker.url)
    monkeypatch.setattr(reading, "SHORT_TAIL", 0)
    by_tasks = events(spark, broker.url)
    assert by_driver.schema == by_tasks.schema
    tails = [
        sorted(map(tuple, found.where(f"offset > {unsealed[0]}").collect()))
        for found in (by_driver, by_tasks)
    ]
    assert len(tails[0]) == unsealed[1] - unsealed[0]
    assert tails[0] == tails[1]


def test_payloads_come_from_the_lake(spark: SparkSession, broker: Broker, client: BlockingClient) -> None:
    id = client.publish("body.made", "grüße").id
    client.seal_lake()
    rows = table(spark, "payloads", url=broker.url)
    (row,) = rows.where(f"message_id = '{id}'").collect()
    assert (row.body, row.size) == ("grüße".encode(), 7)
    logged = [event["offset"] for event in log_of(broker) if event["toState"] == "L"]
    assert rows.count() == len(logged)
    assert table(spark, "payloads", asOf=logged[9], url=broker.url).count() == 10


@pytest.mark.parametrize("name", ["messages", "deliveries", "receipts"])
def test_a_table_as_of_an_offset_knows_nothing_later(spark: SparkSession, broker: Broker, name: str) -> None:
    past = table(spark, name, asOf=2_000, url=broker.url)
    latest = "offset" if name == "receipts" else "last_offset"
    assert past.where(f"{latest} > 2000").count() == 0
    assert past.count() > 0


def test_minutes_as_of_a_moment_are_closed_ones(spark: SparkSession, broker: Broker) -> None:
    last = datetime.fromisoformat(log_of(broker)[-1]["at"])
    soon = table(spark, "queue_minutes", asOf=last + timedelta(minutes=1), url=broker.url)
    assert soon.where("queue = 'orders'").agg({"confirmed": "sum"}).first()[0] == 1_000  # type: ignore[index]
    assert table(spark, "queue_minutes", asOf=1, url=broker.url).count() == 0


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda spark, url: events(spark, url, until=10**9), "offset 1000000000 is beyond the head"),
        (
            lambda spark, url: events(spark, url, columns=["ofset"]),
            "no column 'ofset'; there are: offset, at",
        ),
        (lambda spark, url: events(spark, url, columns=[]), "no column named"),
        (
            lambda spark, url: events(spark, url, until="noon"),
            "until is an offset or an instant with its zone",
        ),
        (
            lambda spark, url: table(spark, "mesages", url=url),
            "no table 'mesages'; there are: message_events",
        ),
        (lambda spark, url: table(spark, "messages", url=url), "`waypost pipeline once` makes it"),
        (lambda spark, url: events(spark, "http://127.0.0.1:9"), "no broker answers at http://127.0.0.1:9"),
        (lambda spark, url: events(spark, url, lake="/no/such/lake"), "which is not on this machine"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    spark: SparkSession, broker: Broker, ask: Callable[..., Any], text: str
) -> None:
    with pytest.raises(ReadingImpossible, match=re.escape(text)) as refused:
        ask(spark, broker.url)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The lake of another broker."""
    folder = tmp_path_factory.mktemp("stranger")
    with closing(opened(folder / "waypost.db")) as store:
        many(store, 10)
    started = serve(folder, "--store", f"sqlite:///{folder / 'waypost.db'}")
    try:
        with BlockingClient(started.url) as client:
            client.seal_lake()
        end(started)
        yield folder / "lake"
    finally:
        started.process.kill()


def test_the_lake_of_another_broker_is_refused(spark: SparkSession, broker: Broker, stranger: Path) -> None:
    with pytest.raises(LakeUnusable, match="is the lake of another store"):
        events(spark, broker.url, lake=stranger)


def test_a_folder_that_is_no_lake_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeUnusable, match="is no lake"):
        events(spark, lake=tmp_path)


def test_a_table_with_a_foreign_protocol_is_refused(
    spark: SparkSession, stranger: Path, tmp_path: Path
) -> None:
    from deltalake import DeltaTable, TableFeatures

    copy = shutil.copytree(stranger, tmp_path / "lake")
    DeltaTable(copy / "message_events").alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(LakeUnusable, match="has the Delta protocol"):
        events(spark, lake=copy)


def test_a_table_whose_log_leaves_out_a_file_is_refused(
    spark: SparkSession, client: BlockingClient, tmp_path: Path
) -> None:
    for _ in range(2):
        client.publish("one.more", "x")
        client.seal_lake()
    copy = shutil.copytree(lake_of(client), tmp_path / "lake")
    entry = sorted((copy / "message_events" / "_delta_log").glob("*.json"))[-2]
    kept = [line for line in entry.read_text().splitlines() if '"add"' not in line]
    entry.write_text("\n".join(kept) + "\n")
    with pytest.raises(LakeUnusable, match=r"is not whole at offset .* waypost lake verify"):
        events(spark, lake=copy)


def test_every_table_can_be_asked_for_by_its_name(spark: SparkSession, broker: Broker) -> None:
    for name in TABLES:
        assert table(spark, name, asOf=datetime.now(UTC), url=broker.url).columns


PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_what_the_page_shows_runs(
    spark: SparkSession, broker: Broker, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(block.replace("http://127.0.0.1:8080", broker.url), "docs/spark.md", "exec"), {})
    assert capsys.readouterr().out or "writeStream" in block
