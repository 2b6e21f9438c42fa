"""On a cluster: a master and two workers from the installed pyspark, each a process of its own.

The executors' Python has pyspark and pyarrow but not this package: what they run has to travel with the tasks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.integration.commands import ROOT, Broker
from waypost import BlockingClient

pytest.importorskip("pyspark")

from waypost.spark.java import find_java
from waypost.spark.launching import pyspark_folder, shadow_home

pytestmark = pytest.mark.timeout(400)

#: for JVMs that live a minute
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: with this in its environment the Python below finds Waypost: on the driver's side
DRIVER_VARIABLE = "WAYPOST_TEST_DRIVER"

PYTHON = """\
#!/bin/sh
# Without `site`, so without the path of an editable installation.
export PYTHONPATH="$PYTHONPATH:{packages}${{{driver}:+:{ours}}}"
exec {python} -S "$@"
"""

DRIVER = """
import json, os, sys
from importlib.util import find_spec
from waypost.spark import events, session, table
from waypost.spark.routing import once
from waypost.spark.session import UNCOMPILED

url, master, options, checkpoint = sys.argv[1:]
spark = session("cluster", master, brief=True, **{
    "spark.cores.max": 2,
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": options,
    "spark.sql.shuffle.partitions": 2,
    **UNCOMPILED,
})
context = spark.sparkContext
# each task says that it has no Waypost, and who it is: two executors, each with one core
spread = context.parallelize(range(8), 8).map(lambda _: (find_spec("pyspark_waypost") is None, os.getppid())).collect()
live = spark.read.format("waypost").options(url=url, partitions=4).load()
rows = live.selectExpr("count(*) as n", "sum(offset) as total").first()
everything = events(spark, url)
counted = []
query = (
    spark.readStream.format("waypost").options(url=url).load().writeStream
    .option("checkpointLocation", checkpoint).trigger(availableNow=True)
    .foreachBatch(lambda batch, _: counted.append(batch.count())).start()
)
query.awaitTermination()
written = spark.range(0, 1_000, 1, 4).selectExpr("cast(id as string) as value", "'cluster.made' as topics")
for _ in range(2):
    written.write.format("waypost").options(url=url, query="from-a-cluster").mode("append").save()
routed = once(spark, url, "cluster_router:route")
print(json.dumps({
    "routed": [routed.decided, routed.unchanged, routed.failed],
    "without": all(without for without, _ in spread),
    "executors": len({daemon for _, daemon in spread}),
    "source": [rows.n, rows.total],
    "events": everything.count(),
    "streamed": sum(counted),
    "messages": {row.state: row["count"] for row in
                 table(spark, "messages", asOf=rows.n, url=url).groupBy("state").count().collect()},
}))
spark.stop()
"""


#: says by the queue whether the executor has what only a broker needs
ROUTER = """
import sys
from waypost import Route
from waypost.routing import Interested, Option, Routable

def route(message, consumers):
    if message.body == b"raise":
        raise ValueError("on purpose")
    return Route(queues=["with-msgspec" if "msgspec" in sys.modules else "alone"])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def daemon(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's own services."""
    settings = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SPARK_HOME": str(pyspark_folder()),
        "JAVA_HOME": str(shadow_home(find_java()).java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": BRIEF,
    }
    with log.open("wb") as out:
        started = subprocess.Popen(
            [str(pyspark_folder() / "bin" / "spark-class"), *words],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield started
    finally:
        started.terminate()  # a worker ends its executors
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster that is up."""
    port, page = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--webui-port")
    with ExitStack() as running:
        running.enter_context(
            daemon(tmp_path / "master.log", f"{deploy}.master.Master", *here, str(page), "--port", str(port))
        )
        for number in range(2):
            work = ("-c", "1", "-m", "700m", "-d", str(tmp_path / f"worker{number}"), address)
            running.enter_context(
                daemon(tmp_path / f"worker{number}.log", f"{deploy}.worker.Worker", *here, "0", *work)
            )
        give_up_at = time.monotonic() + 90
        while workers_of(f"http://127.0.0.1:{page}/json/") < 2:
            assert time.monotonic() < give_up_at, (tmp_path / "master.log").read_text("utf-8")
            time.sleep(0.1)
        yield address


def workers_of(page: str) -> int:
    try:
        with urlopen(page, timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (URLError, ConnectionError, TimeoutError, ValueError):  # at first it shows another page there
        return 0


@pytest.fixture
def python(tmp_path: Path) -> Path:
    program = tmp_path / "python"
    text = PYTHON.format(
        packages=sysconfig.get_path("purelib"),
        driver=DRIVER_VARIABLE,
        ours=ROOT / "src",
        python=sys.executable,
    )
    program.write_text(text, "utf-8")
    program.chmod(0o755)
    return program


def until_no_lease_is_open(client: BlockingClient) -> None:
    """What other tests have fetched and left would come back while this one reads, and the log grow by itself."""
    give_up_at = time.monotonic() + 60
    while any(place["figures"]["states"].get("F") for place in [*client.queues(), *client.channels()]):
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_source_sink_events_streams_and_tables_work_on_a_cluster(
    broker: Broker, client: BlockingClient, master: str, python: Path, tmp_path: Path
) -> None:
    until_no_lease_is_open(client)
    client.declare_object("far", {"route": "spark", "unchanged": {}})
    bodies = [*(str(number) for number in range(150)), "raise"]
    client.publish_many([{"topics": ["far.away"], "key": body, "body": body} for body in bodies])
    client.publish_many([{"topics": ["far.away"], "key": "7", "body": "7"}])
    (tmp_path / "cluster_router.py").write_text(ROUTER, "utf-8")
    head = client.bounds()[1]
    driver = subprocess.run(
        [str(python), "-c", DRIVER, broker.url, master, BRIEF, str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        env={
            **os.environ,
            DRIVER_VARIABLE: "1",
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert driver.returncode == 0, driver.stderr
    assert driver.stderr == ""
    told: dict[str, Any] = json.loads(driver.stdout)
    assert told["without"] is True
    assert told["executors"] == 2
    assert told["source"] == [head, head * (head + 1) // 2]
    assert told["events"] == told["streamed"] == head
    logged = [event for event in client.log(1) if event["fromState"] is None]
    assert sum(told["messages"].values()) == sum(event["offset"] <= head for event in logged)
    assert sum(event["topics"] == ["cluster.made"] for event in logged) == 1_000
    assert told["routed"] == [152, 1, 1]
    assert client.queue("alone")["figures"]["states"]["Q"] == 150
