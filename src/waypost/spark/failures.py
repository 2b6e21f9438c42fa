"""What Spark raises, in one line: it puts Python's and Java's stacks around what was said.

with in_one_line():
    spark.read.format("waypost").load().count()       raises SparkFailed("no broker answers at …")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import WaypostError

#: what our own code said, wherever in Spark's text it stands
_OURS = re.compile(r"^(?:\S+: )*(?:pyspark_waypost|waypost)(?:\.\w+)+: (.+)$", re.MULTILINE)
_LONGEST = 500


class SparkFailed(WaypostError):
    """Spark could not do it; its text says why."""


@contextmanager
def in_one_line() -> Iterator[None]:
    """For commands and other places where a person reads the text; the whole of it stays the cause."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(reason_of(str(error))) from error


def reason_of(text: str) -> str:
    """The last thing that our code said, else the first line of what Spark says."""
    ours = _OURS.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = ours[-1] if ours else f"Spark: {lines[0] if lines else 'no word'}"
    return said[:_LONGEST]
