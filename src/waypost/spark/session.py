"""A Spark session as Waypost wants it: quiet, quick to start, exact about time.

    spark = waypost.spark.session("report")                       on this machine
    spark = waypost.spark.session("report", "spark://host:7077")  on a cluster
    spark = waypost.spark.session("report", **{"spark.driver.memory": "8g"})

Settings given by name win over those here. A second call in one process gives the same session.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import launching
from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: paths above this number Spark lists in a job of its own: seconds for a table of many files
_LIST_HERE = 100_000
_GIB = 1 << 30
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: for some thousand rows: the first answer comes a third sooner when queries are walked through instead of compiled, and planned once
UNCOMPILED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def session(
    name: str = "waypost", master: str | None = None, *, log: str = "error", brief: bool = False, **conf: Any
) -> SparkSession:
    """The session. `log` is the level of what Spark says on stderr: off, error, warn, info.

    `brief` is for work of seconds: Java then compiles at once and roughly, which is slower on a large amount.
    """
    launching.pyspark_folder()  # says in one line when there is none
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    master = master or f"local[{_cores()}]"
    settings = merged(_settings(master, log, brief), conf)
    java = find_java()
    home = launching.shadow_home(java)
    variables = _variables(master, home)
    with ExitStack() as started:
        if not launching.is_own_spark() and not settings.keys() & set(launching.LAUNCHERS_OWN):
            words = home.driver_command(_java_options(home, settings))
            arguments = started.enter_context(launching.arguments_file(words))
            variables |= {"SPARK_HOME": str(home.folder), launching.ARGUMENTS_VARIABLE: str(arguments)}
        started.enter_context(launching.environment(variables))
        said = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        return SparkSession.builder.master(master).appName(name).config(conf=said).getOrCreate()


def merged(settings: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """What is given wins; options for Java are added to ours, where the last of two counts."""
    said = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()
    }
    if JAVA_OPTIONS in said:
        said[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {said[JAVA_OPTIONS]}"
    return {**settings, **said}


def _settings(master: str, log: str, brief: bool) -> dict[str, str]:
    """What every session here has, unless it is told otherwise."""
    quiet = resources.files(__package__) / "log4j2.properties"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(_LIST_HERE),
        # Arrow stays Arrow until a task reads it, instead of becoming rows in the driver first.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.driver.memory": f"{_driver_gib()}g",
        JAVA_OPTIONS: " ".join(
            [
                shlex.quote(f"-Dlog4j2.configurationFile=file:{quiet}"),
                f"-Dwaypost.log.level={log}",
                *(["-XX:TieredStopAtLevel=1"] if brief else []),
            ]
        ),
    }
    if is_local(master):
        # One shuffle partition a core: Spark's 200 are for clusters and cost seconds here.
        settings["spark.sql.shuffle.partitions"] = str(_cores())
        settings["spark.python.daemon.module"] = "waypost.spark.daemon"
    if _is_near(master):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


def _java_options(home: launching.ShadowHome, settings: Mapping[str, str]) -> list[str]:
    """What the launcher would make of the settings, and the archive of classes where there is one."""
    options = [f"-Xmx{settings['spark.driver.memory']}", "-XX:+UseParallelGC", *launching.QUIET]
    if home.archive.exists():
        options.append(f"-XX:SharedArchiveFile={home.archive}")
    return [*options, *shlex.split(settings[JAVA_OPTIONS])]


def _variables(master: str, home: launching.ShadowHome) -> dict[str, str]:
    variables = {"JAVA_HOME": str(home.java_home)}
    if is_local(master) or "PYSPARK_PYTHON" not in os.environ:
        # Otherwise workers run whatever `python3` is on PATH, with other packages.
        variables["PYSPARK_PYTHON"] = variables["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_near(master):
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    return variables


def is_local(master: str) -> bool:
    return master.startswith("local")


def _is_near(master: str) -> bool:
    """Whether the executors are on this machine, so that nothing need be reached over a network."""
    return is_local(master) or urlsplit(master).hostname in ("127.0.0.1", "localhost")


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 2


def _driver_gib() -> int:
    """A quarter of the machine, at least 1 and at most 4: locally the driver is the whole of Spark."""
    return max(1, min(4, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * _GIB)))
