"""The examples about the lake, and the command that draws its page, on a day that was played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.commands import ROOT, end, environment, serve
from tests.integration.test_examples import loaded
from waypost import BlockingClient
from waypost.cli import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.mark.usefixtures("spark")
def test_five_questions_are_answered(day: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["questions.py", "--lake", str(day / "lake")])
    loaded("questions").main()
    said = capsys.readouterr().out
    for number in range(1, 6):
        assert f"\n{number}. " in said
    assert "KeyError: 'canton'" in said
    assert "customers" in said
    assert said.count("nothing to tell") <= 1  # what waited an hour ago: nothing of that day


def test_the_answers_are_those_of_the_tables(spark: SparkSession, day: Path) -> None:
    answers = [
        frame.toArrow().to_pylist() for _, _, frame in loaded("questions").questions(spark, lake=day / "lake")
    ]
    assert len(answers) == 5
    failed, waited, _, changed, saved = answers
    assert {row["consumer"] for row in failed} >= {"crm"}
    assert {row["place"] for row in waited} == {"orders", "shipments", "customers", "invoices", "analytics"}
    assert changed[0]["versions"] > 1
    assert [(row["object"], row["producer"]) for row in saved] == [("customers", "erp")]


def test_duckdb_and_polars_read_the_same_lake_without_java(day: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "lake_without_spark.py", "--lake", day / "lake"],
        env=environment(JAVA_HOME="/nowhere", PATH=os.defpath),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DuckDB: ") == 3
    assert done.stdout.count("Polars: ") == 2
    assert "KeyError: 'canton'" in done.stdout
    assert "customers" in done.stdout


@pytest.mark.usefixtures("spark")
def test_the_command_writes_the_page_and_says_what_is_in_it(day: Path, tmp_path: Path, capfd: Any) -> None:
    page = tmp_path / "report.html"
    broker = serve(day, "--store", f"sqlite:///{day / 'waypost.db'}")
    times = ("--since", "2026-11-15T00:00Z", "--until", "2026-11-16T00:00Z")
    try:
        assert run(["pipeline", "report", "--url", broker.url, "-o", str(page), *times]) == 0
        end(broker)
    finally:
        broker.process.kill()
    said = capfd.readouterr().out
    assert "crm was in trouble from 15 Nov 10:" in said
    assert str(page) in said
    html = page.read_text()
    assert "Sun 15 Nov 2026" in html
    assert broker.url in html
    assert "KeyError: &#x27;canton&#x27;" in html


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["-o", "/nowhere/report.html"], 1, "/nowhere: no such folder"),
        (["--day", "tomorrow"], 2, "not a day: 'tomorrow'"),
        (["--lake", "/nowhere"], 1, "/nowhere is no lake"),
        (["--url", "http://127.0.0.1:9"], 1, "127.0.0.1:9"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], code: int, line: str, monkeypatch: Any, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", "report", *arguments]) == code
    said = capfd.readouterr().err
    assert said.startswith("waypost: ")
    assert line in said
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_customers_that_move_too_often_are_published_once_each(spark: SparkSession, tmp_path: Path) -> None:
    example = loaded("address_changes")
    broker = serve(tmp_path)
    try:
        with BlockingClient(broker.url) as client:
            for customer, moves in (("ann", 5), ("bob", 4), ("cem", 3), ("dee", 0)):
                for move in range(moves + 1):
                    for _ in range(2):  # said twice is not moved twice
                        body = {"name": customer, "address": f"street {move}"}
                        client.publish("customer.changed", body, object="customer", key=customer)
            client.publish("customer.changed", b"no JSON", object="customer", key="ann")
            sealed = client.seal_lake()
            found = example.restless(spark, url=broker.url, asOf=sealed).cache()
            assert sorted((row.key, row.changes, row.address) for row in found.collect()) == [
                ("ann", 5, "street 5"),
                ("bob", 4, "street 4"),
            ]
            for _ in range(2):
                example.publish(example.messages(found), broker.url)
            fetched = client.fetch("review", 10)
            assert [(message.key, message.json()["changes"]) for message in fetched] == [
                ("ann", 5),
                ("bob", 4),
            ]
            assert (fetched[0].topics, fetched[0].mime_type) == (("review.address",), "application/json")
            states = [event["toState"] for event in client.log(1) if event["toState"] in "LU"]
            assert (states[-4:], states.count("U")) == (["L", "U", "L", "U"], 2)
        end(broker)
    finally:
        broker.process.kill()
