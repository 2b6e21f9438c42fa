"""`waypost spark warm`: what makes the next sessions start quicker, made once and kept in the user's cache folder.

A JVM spends most of its start on loading classes. A rehearsal of what Waypost does with Spark writes the classes that
it loaded into an archive, which later JVMs map into memory. The archive fits one Java and one pyspark; where it does
not fit any more, the JVM passes it by, and sessions are as slow as without.

    python -m waypost.spark.warm ARCHIVE      rehearse, write the archive
    python -m waypost.spark.warm              only time the first answer
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .java import Java, find_java
from .launching import ShadowHome, SparkUnusable, abandoned_homes, is_own_spark, shadow_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Warmed:
    java: Java
    home: ShadowHome
    archive_bytes: int
    #: from the start of the process to the first answer of a small query
    cold_seconds: float
    warm_seconds: float


def warm(say: Callable[[str], None] = lambda line: None) -> Warmed:
    if is_own_spark():
        raise SparkUnusable(
            "SPARK_HOME, SPARK_CONF_DIR or PYSPARK_SUBMIT_ARGS is set: that Spark is left as it is"
        )
    java = find_java()
    home = shadow_home(java)
    for gone in abandoned_homes():
        say(f"removing {gone}, whose pyspark is gone")
        shutil.rmtree(gone, ignore_errors=True)
    say(f"rehearsing on Java {java.version} ({java.origin})")
    home.archive.unlink(missing_ok=True)
    fresh = home.archive.with_suffix(".new")
    cold = _rehearsal(str(fresh))
    if not fresh.exists():
        raise SparkUnusable(f"Java {java.version} in {java.home} wrote no archive of its classes")
    fresh.replace(home.archive)
    say("starting once more, with the archive")
    return Warmed(java, home, home.archive.stat().st_size, cold, _rehearsal())


def _rehearsal(*arguments: str) -> float:
    """In a process of its own: the archive is written when its JVM ends."""
    done = subprocess.run(
        [sys.executable, "-m", "waypost.spark.warm", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise SparkUnusable(f"Spark does not run here: {last}")
    return float(json.loads(done.stdout.splitlines()[-1])["first"])


def main(arguments: list[str]) -> None:
    began = time.perf_counter()
    from .session import JAVA_OPTIONS, session

    archiving: dict[str, Any] = {}
    if arguments:
        archiving[JAVA_OPTIONS] = f"-XX:ArchiveClassesAtExit={arguments[0]}"
    spark = session("waypost-warm", log="off", **archiving)
    spark.range(100).selectExpr("id % 3 as third").groupBy("third").count().collect()
    first = time.perf_counter() - began
    if arguments:
        from .rehearsing import rehearse

        with tempfile.TemporaryDirectory() as folder:
            rehearse(spark, Path(folder))
    _end(spark)
    print(json.dumps({"first": first}))


def _end(spark: SparkSession) -> None:
    """Let the JVM go through its own exit, which writes the archive: it ends when its stdin does."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
