"""The pipeline: whatever happens to it, its tables are those of one fold over the whole log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_waypost.broker import Broker as Source
from tests.integration.commands import Broker, Done, end, environment, outside, serve
from tests.lake.traffic import many, of_every_kind, opened
from tests.spark import dying, replay
from tests.spark.logs import FileLog, Tables, in_memory, same
from tests.spark.test_tables import KEYS
from tests.spark.walks import walked
from waypost import BlockingClient
from waypost.arrow import DELIVERIES, EVENTS, MESSAGES
from waypost.cli import run
from waypost.errors import LakeUnusable
from waypost.lake import delta
from waypost.lake.mending import entry_path
from waypost.lake.owner import PIPELINE, Lake, writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(280)


class Died(Exception):
    pass


def test_what_is_looked_up_of_the_log_is_read_in_stretches_without_long_gaps() -> None:
    from waypost.spark.pipeline.keeping import NEAR, stretches

    near, far = [5, 6, 5 + NEAR], [1_000_000, 1_000_001]
    cut = [part.tolist() for part in stretches(np.array(near + far), 500_000)]
    assert cut == [near, far]
    assert [part.tolist() for part in stretches(np.array(near), 2)] == [[5, 6], [5 + NEAR]]
    assert stretches(np.array([], dtype=np.int64), 10) == []


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as made:
        yield made


@pytest.fixture
def log(spark: SparkSession, short: pa.Table, folder: Path) -> FileLog:
    return FileLog(spark, short, folder)


@pytest.fixture(scope="session")
def short() -> pa.Table:
    return walked().events.slice(0, 600)


@pytest.fixture
def tables(spark: SparkSession, log: FileLog, folder: Path) -> Tables:
    return Tables(spark, log, folder / "lake")


def check(tables: Tables, events: pa.Table, *names: str) -> None:
    """They are what a replay of these events says."""
    for name, told in replay.kept(replay.rows(events)).items():
        if name in (names or KEYS):
            same(tables.rows(name), told, KEYS[name])


def versions(tables: Tables) -> dict[str, int | None]:
    return {name: delta.version_of(tables.lake.table(name), PIPELINE) for name in KEYS}


# --- wherever it dies --------------------------------------------------------------------------------------------


def test_a_pipeline_that_dies_at_any_point_goes_on_where_it_was(tables: Tables, short: pa.Table) -> None:
    """In each slice at another one; the next pipeline knows nothing of the one before."""
    points = (
        "messages folded",
        "messages committed",
        "deliveries committed",
        "receipts folded",
        "queue_minutes folded",
        "queue_minutes committed",
        "consumer_minutes committed",
    )
    for number, point in enumerate(points, 1):

        def reached(where: str, point: str = point) -> None:
            if where == point:
                raise Died

        with pytest.raises(Died):
            tables.keep(80 * number, reached=reached)
    assert len(set(versions(tables).values())) > 1
    tables.keep()
    check(tables, short)


def test_tables_that_fell_behind_are_brought_up(tables: Tables, short: pa.Table, folder: Path) -> None:
    """One was restored from a copy, one is gone, of one the newest entry is torn: they read only what they lack."""
    lake, log = tables.lake, tables.log
    tables.keep(200)
    shutil.copytree(lake.table("messages"), folder / "copy")
    tables.keep(400)
    shutil.rmtree(lake.table("messages"))
    shutil.copytree(folder / "copy", lake.table("messages"))
    shutil.rmtree(lake.table("receipts"))
    torn = delta.open_table(lake.table("deliveries")).version()
    entry_path(lake.table("deliveries"), torn).write_bytes(b'{"commitInfo":')
    log.reads.clear()

    tables.keep()

    assert log.reads[0] == (1, 200)  # receipts alone
    check(tables, short)


def test_messages_logged_before_the_log_begins_are_not_told_of(
    spark: SparkSession, short: pa.Table, folder: Path
) -> None:
    """A lake that was turned on later: what is left of older messages is no story."""
    oldest = 150
    tables = Tables(spark, FileLog(spark, short, folder, oldest), folder / "lake")
    for upto in (220, 400, short.num_rows):
        tables.keep(upto)
    after = short.filter(pa.compute.greater_equal(short["sequence"], oldest))
    assert after.num_rows < short.num_rows - oldest
    check(tables, after, "messages", "deliveries", "receipts")
    assert min(row["depth"] for row in tables.rows("queue_minutes")) >= 0


def test_a_table_that_lacks_what_is_gone_says_so(tables: Tables, log: FileLog) -> None:
    from waypost.spark.pipeline import PipelineStuck

    tables.keep(100)
    log.oldest = 102
    with pytest.raises(PipelineStuck, match="begins at 102: what is between is gone; begin anew with"):
        tables.keep()
    log.oldest, log.head = 1, 90
    with pytest.raises(PipelineStuck, match="the lake is newer than the store"):
        tables.keep()


def test_tables_are_tidied_now_and_then(
    tables: Tables, short: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waypost.spark.pipeline import keeping

    monkeypatch.setattr(keeping, "MAINTAIN_EVERY", 2)
    seen: list[str] = []
    for upto in (150, 300, short.num_rows):
        tables.keep(upto, reached=seen.append)
    assert "messages maintained" in seen
    assert "queue_minutes maintained" in seen
    check(tables, short)


# --- anew --------------------------------------------------------------------------------------------------------


def test_a_table_is_rebuilt_under_its_readers(tables: Tables, log: FileLog, short: pa.Table) -> None:
    """They see the old rows to the last moment; after a death nothing has changed."""
    from waypost.spark.pipeline.rebuilding import rebuilt

    tables.keep(300)
    path = tables.lake.table("messages")
    delta.replace_where(path, _wrong(tables), "bucket is not null", app=PIPELINE, version=300)
    counts: list[int] = []

    def reached(where: str) -> None:
        counts.append(len(tables.rows("messages")))
        if where == "receipts rebuilt":
            raise Died

    with pytest.raises(Died):
        rebuilt(tables.spark, log, tables.lake, ["messages", "receipts"], reached=reached)
    assert set(counts) == {3, len(replay.messages(replay.rows(short)))}
    check(tables, short, "messages", "receipts")
    tables.keep()
    check(tables, short)


def _wrong(tables: Tables) -> pa.Table:
    """Three rows that are no messages."""
    from waypost.spark.tables.messages import SCHEMA

    return pa.Table.from_pylist([{"sequence": n, "bucket": 0} for n in range(1, 4)], SCHEMA)


def test_a_table_that_cannot_be_used_is_rebuilt(tables: Tables, log: FileLog, short: pa.Table) -> None:
    from waypost.spark.pipeline.rebuilding import rebuilt

    tables.keep(300)
    change_protocol(tables.lake.table("deliveries"))
    with pytest.raises(LakeUnusable, match="somebody else changed this table"):
        tables.keep()
    said: list[str] = []
    rebuilt(tables.spark, log, tables.lake, ["deliveries"], say=said.append)
    assert len(said) == 1
    assert "the old table is" in said[0]
    tables.keep()
    check(tables, short)


def change_protocol(path: Path) -> None:
    """As somebody does who switches a feature on."""
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 5}}
    entry_path(path, delta.open_table(path).version() + 1).write_text(json.dumps(protocol) + "\n")


# --- with a broker -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Lake]]:
    """A broker and its lake, the larger part of the log sealed."""
    folder = tmp_path_factory.mktemp("kept")
    store = opened(folder / "waypost.db")
    of_every_kind(store)
    many(store, 1_000)
    store.close()
    broker = serve(folder, "--store", f"sqlite:///{folder / 'waypost.db'}")
    try:
        with BlockingClient(broker.url) as client:
            client.seal_lake()
            client.publish_many([{"topics": ["late.made"], "body": "x"} for _ in range(100)])
        yield broker, Lake(folder / "lake")
        end(broker)
    finally:
        broker.process.kill()


def check_with(broker: Broker, tables: Tables) -> None:
    """The tables are what a replay of the broker's log says, and what the broker itself says of each message."""
    source = Source(broker.url)
    head = source.bounds().head
    check(tables, pa.Table.from_batches(source.events(1, head, EVENTS.names, {}), EVENTS))
    for name, schema, unsaid in (
        ("messages", MESSAGES, {"priority", "expires_at"}),
        ("deliveries", DELIVERIES, {"due_at", "named"}),
    ):
        columns = [column for column in schema.names if column not in unsaid]
        said = replay.rows(pa.Table.from_batches(source.rows(name, 1, head, columns)))
        same(tables.rows(name), said, KEYS[name])


def test_a_broker_and_its_tables_say_the_same(spark: SparkSession, kept: tuple[Broker, Lake]) -> None:
    """One pipeline dies in the middle, in a process of its own; the next brings in the rest, of the broker's log too."""
    from waypost.spark.pipeline import once

    broker, lake = kept
    died = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying", broker.url, str(lake.folder), "deliveries committed"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert died.returncode == dying.CODE, died.stderr
    figures = once(spark, broker.url, lake)

    with BlockingClient(broker.url) as client:
        head = client.lake()["head"]
        spectator = client.spectator("pipeline")
    assert figures.upto == head
    check_with(broker, Tables(spark, None, lake.folder))
    assert spectator["lag"] == 0
    shown = outside("pipeline", "status", "--url", broker.url, "--json").json
    assert shown["running"] is None
    assert {
        one["name"]: one["lag"] for one in shown["tables"] if one["name"] in ("messages", "receipts")
    } == {
        "messages": 0,
        "receipts": 0,
    }


def test_a_running_pipeline_follows_and_stops(spark: SparkSession, kept: tuple[Broker, Lake]) -> None:
    from waypost.spark import table
    from waypost.spark.pipeline import once, standing
    from waypost.spark.pipeline import run as keep_running

    broker, lake = kept
    once(spark, broker.url, lake)
    assert once(spark, broker.url, lake).events == 0
    stopped, caught_up = threading.Event(), threading.Event()
    with BlockingClient(broker.url) as client:
        client.publish_many([{"topics": ["more.made"], "body": "y"} for _ in range(50)])
        head = client.lake()["head"]

        def tell(batch: Any, figures: Any) -> None:
            if figures.upto >= head:
                caught_up.set()

        running = threading.Thread(
            target=keep_running,
            args=(spark, broker.url, lake, stopped),
            kwargs={"trigger_seconds": 0.5, "tell": tell},
        )
        running.start()
        try:
            assert caught_up.wait(120)
            assert standing(broker.url, lake)["running"] == os.getpid()
            second = outside("pipeline", "once", "--url", broker.url)
            assert "another pipeline writes to" in second.line
        finally:
            stopped.set()
            running.join(60)
        assert not running.is_alive()
    assert table(spark, "messages", url=broker.url).where("array_contains(topics, 'more.made')").count() == 50


def test_what_is_wrong_is_one_line(
    kept: tuple[Broker, Lake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker, lake = kept

    def waypost(*words: str) -> Done:
        return Done(run(words), *capsys.readouterr())

    away = waypost("pipeline", "status", "--url", "http://127.0.0.1:9")
    assert "no broker answers at http://127.0.0.1:9" in away.line
    nowhere = waypost("pipeline", "once", "--url", broker.url, "--lake", str(tmp_path / "nowhere"))
    assert "say with --lake where it is" in nowhere.line
    other = tmp_path / "other"
    other.mkdir()
    (other / "lake.json").write_text('{"format": 1, "store": "another"}')
    stranger = waypost("pipeline", "once", "--url", broker.url, "--lake", str(other))
    assert "is the lake of another store" in stranger.line
    unknown = waypost("pipeline", "rebuild", "mesages", "--url", broker.url)
    assert "no table 'mesages' is kept" in unknown.line
    with writing(lake, PIPELINE):
        assert waypost("pipeline", "status", "--url", broker.url, "--json").json["running"] is not None
