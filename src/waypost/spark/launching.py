"""Starting Spark's JVM quickly and without a word.

pyspark runs `$SPARK_HOME/bin/spark-submit`: a script that starts one JVM to work out the command of a second, the
driver. Its workers then import pyspark from an archive without compiled code. Both cost seconds, so a *shadow home*
in the user's cache folder stands in for SPARK_HOME:

    jars -> pyspark's            no python/lib/pyspark.zip beside them: workers import the installed package
    bin/…   -> pyspark's         but spark-submit is ours and starts the driver at once
    driver.json                  the driver's command, as Spark's own launcher said it
    java/bin/java                the same Java, deaf to the options that only make it talk, or that it does not know
    classes.jsa                  classes ready to be mapped into memory, once `waypost spark warm` has made it

Whoever sets SPARK_HOME, SPARK_CONF_DIR or PYSPARK_SUBMIT_ARGS means a Spark of their own and gets that one, started
by its own script. This file knows how a JVM is started, not what it is told to do.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import WaypostError
from .java import Java

#: raised when a shadow home made by older code must not be used
FORM = 1
#: with one of these in the environment it is somebody's own Spark
OWN_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
#: settings that Spark's launcher turns into parts of the command; with one of them, it must
LAUNCHERS_OWN = ("spark.driver.extraClassPath", "spark.driver.extraLibraryPath")
#: The vector module serves MLlib alone, is missing in runtimes that wheels bring, and is announced on stderr where
#: it is there; the opened package is gone in Java 25, which says so.
UNWANTED = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")
#: JVMs write their own warnings to stdout, among them that an archive of classes does not fit; only errors, to stderr
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
#: where our spark-submit finds the rest of its command
ARGUMENTS_VARIABLE = "WAYPOST_SPARK_DRIVER"

_SUBMIT = f"""\
#!/bin/sh
# Starts the driver with the command that Waypost wrote down.
export PYTHONHASHSEED=0
exec "$JAVA_HOME/bin/java" "@${ARGUMENTS_VARIABLE}" "$@"
"""

_JAVA = """\
#!/bin/sh
for word do
    shift
    case "$word" in
        {unwanted}) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


class SparkUnusable(WaypostError):
    """Spark cannot be started here; its text says why."""


@dataclass(frozen=True)
class ShadowHome:
    folder: Path

    @property
    def java_home(self) -> Path:
        return self.folder / "java"

    @property
    def archive(self) -> Path:
        return self.folder / "classes.jsa"

    def driver_command(self, options: Sequence[str]) -> list[str]:
        """The words after `java`: ours last, because the last of two that contradict each other counts."""
        *words, main = json.loads((self.folder / "driver.json").read_text("utf-8"))
        return [*words, *options, main]


def cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "waypost" / "spark"


def pyspark_folder() -> Path:
    try:
        import pyspark
    except ImportError:
        raise SparkUnusable("Spark is not installed; pip install 'waypost[spark]'") from None
    return Path(pyspark.__file__).parent


def is_own_spark(environment: Mapping[str, str] = os.environ) -> bool:
    return any(environment.get(name) for name in OWN_SPARK)


def shadow_home(java: Java) -> ShadowHome:
    """The one for this pyspark and this Java; made when it is first asked for, whole or not at all."""
    spark = pyspark_folder()
    home = _place(spark, java)
    if not (home / "driver.json").exists():
        try:
            _make(home, spark, java)
        except OSError:  # a cache folder that cannot be written: this process makes its own
            folder = Path(tempfile.mkdtemp(prefix="waypost-spark-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            home = folder / "home"
            _make(home, spark, java)
    return ShadowHome(home)


def abandoned_homes() -> list[Path]:
    """Those whose pyspark is gone."""
    return [home for home in cache_folder().glob("*") if home.is_dir() and not (home / "jars").exists()]


@contextmanager
def arguments_file(words: Sequence[str]) -> Iterator[Path]:
    """The words as a file that `java @FILE` reads, for as long as the start takes."""
    with tempfile.TemporaryDirectory(prefix="waypost-spark-") as folder:
        file = Path(folder) / "driver"
        quoted = ('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words)
        file.write_text("\n".join(quoted) + "\n", "utf-8")
        yield file


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """These variables, for what is started inside; afterwards the process has its own again."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _place(spark: Path, java: Java) -> Path:
    named = json.dumps(
        [FORM, str(spark), _text(spark / "version.py"), str(java.home), _text(java.home / "release")]
    )
    return cache_folder() / hashlib.sha256(named.encode()).hexdigest()[:16]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _make(home: Path, spark: Path, java: Java) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=home.parent))
    try:
        (unfinished / "jars").symlink_to(spark / "jars")
        (unfinished / "bin").mkdir()
        for program in (spark / "bin").iterdir():
            if program.name != "spark-submit":
                (unfinished / "bin" / program.name).symlink_to(program)
        _write_program(unfinished / "bin" / "spark-submit", _SUBMIT)
        (unfinished / "java" / "bin").mkdir(parents=True)
        shim = _JAVA.format(unwanted="|".join(UNWANTED), java=shlex.quote(str(java.program)))
        _write_program(unfinished / "java" / "bin" / "java", shim)
        words = _launchers_words(home, unfinished, java)
        (unfinished / "driver.json").write_text(json.dumps(words, indent=1), "utf-8")
        with suppress(OSError):  # another process was quicker; its own is as good
            unfinished.rename(home)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not (home / "driver.json").exists():
        raise OSError(f"{home} cannot be made")


def _write_program(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    file.chmod(0o755)


def _launchers_words(home: Path, unfinished: Path, java: Java) -> list[str]:
    """What Spark's launcher would run for a driver in that home, without what is not wanted."""
    command = [str(java.program), "-cp", f"{unfinished}/jars/*", "org.apache.spark.launcher.Main"]
    asked = subprocess.run(
        [*command, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"],
        env={**os.environ, "SPARK_HOME": str(unfinished), "SPARK_SCALA_VERSION": "2.13"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    said = asked.stdout.decode("utf-8", "replace").replace(str(unfinished), str(home))
    words = [word for word in said.strip().split("\0") if word.strip()]
    if asked.returncode != 0 or words[-1:] != ["pyspark-shell"]:
        raise SparkUnusable(
            f"Spark's launcher does not run: {asked.stderr.decode('utf-8', 'replace')[-300:]}"
        )
    return [word for word in words[1:-1] if word not in UNWANTED]
