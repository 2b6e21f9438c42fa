"""Routing in Spark: message by message what the broker's own router would have done, once each and in order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prove.routing import round_of_routing_kills
from tests.http.brokers import BrokerInThread
from tests.http.harness import wait_until
from tests.integration.commands import end, environment, outside, serve
from tests.lake.brokers import eventually
from tests.lake.traffic import opened
from waypost.arrow import UNDECIDED
from waypost.cli import run as command
from waypost.decision import load_router
from waypost.stores.memory import MemoryStore

pytest.importorskip("pyspark")

from waypost.spark.routing import RoutingStuck, once, run
from waypost.spark.routing.asking import Desk
from waypost.spark.routing.packing import archive, core_files, module_files
from waypost.spark.routing.running import in_parts, plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(280)

ROUTER = "routing_of_tests:route"
SOURCE = """
import json
import time

from waypost import Route
from waypost.routing import Interested, Option, Routable


def route(message, consumers):
    said = json.loads(message.body)
    if said == "hang":
        time.sleep(60)
    if said == "nonsense":
        return "somewhere"
    if said == "seen":
        return Route(consumers=[consumer.name for consumer in consumers], queues=["seen"])
    if said == "meta":
        return Route(queues=[message.meta["to"]], option=Option.ONCE_ONLY)
    if said == "topics":
        return Route(option="oncePerTopic")
    if isinstance(said, dict) and said["n"] > 2:
        return Route(queues=["many", message.object])
    return Route()
"""


@pytest.fixture(scope="module", autouse=True)
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that this process finds, and no worker does by itself."""
    folder = tmp_path_factory.mktemp("router")
    (folder / "routing_of_tests.py").write_text(SOURCE, "utf-8")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[BrokerInThread]:
    """A broker on a file, of which Spark routes object a."""
    with BrokerInThread(lambda: opened(tmp_path / "waypost.db")) as broker:
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        yield broker


def publish(broker: BrokerInThread, *lines: dict[str, Any]) -> list[str]:
    answer = broker.ask("POST", "/v1/messages", "\n".join(map(json.dumps, lines)))
    assert answer.status == 201, answer
    return [result["id"] for result in answer.json()["results"]]


# ── as inline ───────────────────────────────────────────────────────────────────────────────────

contents = st.one_of(
    st.sampled_from(["nonsense", "seen", "meta", "topics"]).map(json.dumps),
    st.builds(lambda n, at: json.dumps({"n": n, "at": at}), st.integers(0, 4), st.integers(0, 2)),
    st.sampled_from(["no JSON", '{"at":1,"n":1.0}', '{"n":1}']),
)
published = st.builds(
    lambda object, topics, key, body, more: {
        "object": object,
        "topics": topics,
        "key": key,
        "body": body,
        **more,
    },
    st.sampled_from(["a", "a", "b", "c"]),
    st.lists(st.sampled_from(["a.x", "b.y", "news.z"]), min_size=1, max_size=3, unique=True),
    st.sampled_from(["1", "2", None]),
    contents,
    st.sampled_from([{}, {}, {"force": True}, {"meta": {"to": "q"}}, {"priority": 1}, {"producer": "erp"}]),
)


def prepare(broker: BrokerInThread, route: str) -> None:
    for object, policy in (
        ("a", {"route": route, "unchanged": {"ignore": ["$.at"]}}),
        ("b", {"route": route}),
        ("c", {"unchanged": {"ignore": ["$.at"]}}),
    ):
        assert broker.ask("PUT", f"/v1/objects/{object}", json.dumps(policy)).status in (200, 201)
    broker.ask("PUT", "/v1/queues/b", '{"complete":"per_topic"}')
    broker.ask("PUT", "/v1/channels/news", '{"topics":["news.*"]}')
    for name, consumer in (
        ("worker", {"queue": "b"}),
        ("reader", {"channel": "news"}),
        ("picky", {"queue": "b", "topics": ["a.*"]}),
    ):
        assert broker.ask("PUT", f"/v1/consumers/{name}", json.dumps(consumer)).status == 201


def told(broker: BrokerInThread, ids: list[str]) -> list[Any]:
    """What became of each message: all but moments and the lines of a traceback that are not the router's."""
    documents = [broker.get(f"/v1/messages/{id}") for id in ids]
    return [
        (
            document["id"],
            document["state"],
            document["sameAs"],
            [event["toState"] for event in document["journey"]],
            sorted(
                (
                    *(str(one[field]) for field in ("queue", "channel", "slot", "state")),
                    (one["reason"] or "").strip().rpartition("\n")[2],
                )
                for one in document["deliveries"]
            ),
        )
        for document in documents
    ]


def test_spark_and_the_broker_decide_alike(spark: SparkSession) -> None:
    function = load_router(ROUTER)
    number = 0

    @settings(
        max_examples=5,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(published, min_size=10, max_size=60), st.integers(1, 59))
    def compare(lines: list[dict[str, Any]], cut: int) -> None:
        nonlocal number
        number += 1
        lines = [{"id": f"m-{number}-{at}", **line} for at, line in enumerate(lines)]
        ids = [str(line["id"]) for line in lines]
        publish(inline, *lines)
        for part in (lines[:cut], lines[cut:]):
            if part:
                publish(sparks, *part)
                once(spark, sparks.serving.url, ROUTER)
        for broker in (inline, sparks):
            wait_until(lambda broker=broker: broker.get("/v1/stats")["undecided"] == 0, "all decided")  # type: ignore[misc]
        assert told(sparks, ids) == told(inline, ids)

    with (
        BrokerInThread(MemoryStore, route=function) as inline,
        BrokerInThread(MemoryStore, route=function) as sparks,
    ):
        prepare(inline, "inline")
        prepare(sparks, "spark")
        compare()
        figures = sparks.get("/v1/stats")["unchanged"]
        assert figures == inline.get("/v1/stats")["unchanged"]
        assert figures, "some of it was unchanged"
        metrics = sparks.ask("GET", "/metrics").body.decode()
        assert 'waypost_decisions_total{by="spark",result="applied"} 0.0' not in metrics


def test_a_function_that_hangs_or_fails_makes_dead_letters(spark: SparkSession, held: BrokerInThread) -> None:
    ids = publish(held, *({"topics": ["a.x"], "body": json.dumps(body)} for body in ("hang", 1, "meta")))
    large = held.publish("/in/a.x", json.dumps("x" * (2 << 20)))
    figures = once(spark, held.serving.url, ROUTER, route_seconds=0.3)
    assert (figures.decided, figures.failed, figures.late) == (4, 2, 0)
    assert [held.journey(id) for id in (*ids, large)] == ["LE", "LQ", "LE", "LQ"]
    reasons = [held.get(f"/v1/messages/{id}")["deliveries"][0]["reason"] for id in (ids[0], ids[2])]
    assert "the router gave no answer within 0.3 s" in reasons[0]
    assert reasons[1].rstrip().endswith("KeyError: 'to'")
    assert "routing_of_tests.py" in reasons[1]


def test_without_a_function_topics_and_policies_decide(spark: SparkSession, held: BrokerInThread) -> None:
    held.ask("PUT", "/v1/objects/a", '{"route":"spark","unchanged":{"ignore":["$.at"]}}')
    bodies = ('{"n":1,"at":1}', '{"at":2,"n":1}')
    ids = publish(held, *({"topics": ["a.x", "b.y"], "key": "k", "body": body} for body in bodies))
    assert once(spark, held.serving.url).unchanged == 1
    assert [held.journey(id) for id in ids] == ["LQQ", "LU"]
    assert held.get("/v1/spectators/routing")["offset"] == 2
    assert once(spark, held.serving.url).rounds == 0


# ── while it runs ───────────────────────────────────────────────────────────────────────────────


def test_a_policy_moves_to_and_fro_and_nothing_is_overtaken(spark: SparkSession, tmp_path: Path) -> None:
    """With a router of the broker's own, so that both decide; a dead letter that is redriven in between is routed as well."""
    function = load_router(ROUTER)
    stopped = threading.Event()
    failures: list[BaseException] = []

    def job(url: str) -> None:
        try:
            run(spark, url, stopped, ROUTER, trigger_seconds=0.1)
        except BaseException as failure:
            failures.append(failure)

    with BrokerInThread(lambda: opened(tmp_path / "waypost.db"), route=function) as broker:
        broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
        (dead,) = publish(broker, {"topics": ["a.x"], "body": '"meta"'})
        once(spark, broker.serving.url, ROUTER)
        assert broker.journey(dead) == "LE"
        running = threading.Thread(target=job, args=(broker.serving.url,))
        running.start()
        ids: list[str] = []
        try:
            for step in range(40):
                lines = [{"topics": ["a.x"], "key": str(n % 5), "body": str(step)} for n in range(20)]
                ids += publish(broker, *lines)
                route = "inline" if step % 2 else "spark"
                broker.ask("PUT", "/v1/objects/a", json.dumps({"route": route}))
                if step == 12:
                    broker.ask("POST", "/v1/redrive", '{"filter":"state=E"}')
                threading.Event().wait(0.05)
            broker.ask("PUT", "/v1/objects/a", '{"route":"spark"}')
            ids += publish(broker, {"topics": ["a.x"], "key": "0", "body": "1"})
            eventually(lambda: broker.get("/v1/stats")["undecided"] == 0 or failures, "all decided")
            eventually(lambda: broker.get("/v1/spectators/routing")["lag"] == 0 or failures, "all read")
        finally:
            stopped.set()
            running.join()
        assert failures == []
        events = broker.events("/log")
        metrics = broker.ask("GET", "/metrics").body.decode()
    queued = [event["messageId"] for event in events if event["queue"] == "a" and event["toState"] == "Q"]
    assert sorted(queued) == sorted(ids), "each once"
    key = {event["messageId"]: event["key"] for event in events if event["fromState"] is None}
    for wanted in "01234":
        assert [id for id in queued if key[id] == wanted] == [id for id in ids if key[id] == wanted]
    for by in ("inline", "spark"):
        assert f'waypost_decisions_total{{by="{by}",result="applied"}} 0.0' not in metrics, by
    assert [event["toState"] for event in events if event["messageId"] == dead] == ["L", "E", "L", "E"]


@pytest.mark.usefixtures("brief_java")
def test_a_killed_job_and_a_killed_broker_lose_and_double_nothing(spark: SparkSession) -> None:
    routed = round_of_routing_kills(seed=3, kills=1, spark=spark)

    assert routed.kills == 1
    assert routed.acknowledged > 200
    assert routed.decided_by_spark > 200
    assert routed.unchanged > 0
    assert routed.faultless, routed


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────


def test_a_module_that_executors_cannot_load_is_one_line(
    spark: SparkSession, held: BrokerInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waypost.spark.failures import SparkFailed

    (tmp_path / "unloadable_of_tests.py").write_text("import nowhere_of_tests\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    publish(held, {"topics": ["a.x"], "body": "1"})
    with pytest.raises(SparkFailed, match="router 'unloadable_of_tests:route': no module 'nowhere_of_tests'"):
        once(spark, held.serving.url, "unloadable_of_tests:route")
    assert held.get("/v1/stats")["undecided"] == 1, "nothing is lost"


def test_a_broker_that_goes_away_is_waited_for_and_then_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from waypost.spark.routing import asking

    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(RoutingStuck, match=r"no broker answers at http://127\.0\.0\.1:9"):
        plainly(lambda: Desk("http://127.0.0.1:9").undecided(1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--router", "nowhere:route"), "no module 'nowhere'; is its folder in PYTHONPATH?"),
        (("--router", "json:nothing"), "'nothing' is missing in json"),
        (("--router", "json:__name__"), "cannot be called"),
        (("--router", "no colon"), "module:function, or none"),
        (("--router-timeout", "0"), "a number of seconds, from 0.01 to 3600"),
        (("--url", "http://127.0.0.1:9"), "no broker answers at http://127.0.0.1:9"),
        (("--url", "nonsense"), ""),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = outside("pipeline", "route", "--once", *arguments)
    assert done.code != 0
    assert said in done.line
    assert done.out == ""


def test_a_store_without_routing_says_so(tmp_path: Path) -> None:
    broker = serve(tmp_path, "--store", f"folder:///{tmp_path / 'mq'}")
    try:
        done = outside("pipeline", "route", "--once", "--url", broker.url)
        assert "this broker's store has no objects" in done.line
        end(broker)
    finally:
        broker.process.kill()


def test_the_command_decides_and_says_how_many(
    spark: SparkSession, held: BrokerInThread, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(held, *({"topics": ["a.x"], "body": str(n)} for n in range(120)))
    arguments = ["pipeline", "route", "--once", "--url", held.serving.url, "--router", ROUTER]
    assert command([*arguments, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["decided"], said["failed"], said["rounds"]) == (120, 0, 1)
    assert command(arguments) == 0
    assert capfd.readouterr().out == "nothing waited\n"


# ── its parts ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_packed_runs_on_the_standard_library_alone(tmp_path: Path) -> None:
    """Without site-packages, and so without msgspec: as on an executor."""
    packed = archive(core_files() | module_files("routing_of_tests"), tmp_path)
    assert archive(core_files() | module_files("routing_of_tests"), tmp_path) == packed
    program = (
        "import sys; from waypost.decision import decided, load_router; from waypost.routing import Routable\n"
        "message = Routable(id='m', topics=('a.x',), object='a', key=None, mime_type=None, timestamp=None,"
        " sent=None, producer=None, encoding=None, meta={}, size=7, body=b'{\"n\":3}')\n"
        f"print(decided(load_router('{ROUTER}'), message, [], ('$.at',)).route)\n"
        "assert 'zip' in sys.modules['waypost'].__file__ and 'msgspec' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment(PYTHONPATH=str(packed)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "queues=('many', 'a')" in done.stdout


def test_a_package_goes_along_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packed_of_tests"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "rules.json", "deep/__init__.py", "deep/router.py"):
        (package / name).write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = module_files("packed_of_tests.deep.router")
    assert sorted(files) == [
        f"packed_of_tests/{name}"
        for name in ("__init__.py", "deep/__init__.py", "deep/router.py", "rules.json")
    ]
    with zipfile.ZipFile(archive(files, tmp_path)) as zipped:
        assert sorted(zipped.namelist()) == sorted(files)
    assert module_files("waypost.decision") == {}
    assert module_files("sys") == {}


def test_rows_are_shared_out_in_disjoint_ranges() -> None:
    def shared(rows: int, tasks: int) -> list[list[int]]:
        table = pa.Table.from_pylist([{"sequence": n} for n in range(rows)], UNDECIDED)
        return [batch["sequence"].to_pylist() for batch in in_parts(table, tasks).to_batches()]

    assert shared(10, 4) == [list(range(10))]
    assert shared(200, 2) == [list(range(100)), list(range(100, 200))]
    assert [len(part) for part in shared(301, 8)] == [50, 50, 50, 50, 50, 51]


def test_consumers_are_seen_as_the_broker_sees_them(held: BrokerInThread) -> None:
    from waypost.router import registered

    prepare(held, "spark")
    assert Desk(held.serving.url).registered() == held.call(registered, held.store)
