"""Disjoint ranges of a log, one for each task. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

#: more in one task and there is too little to share out; fewer and the task costs more than its rows
MOST = 500_000
FEWEST = 20_000


@dataclass
class Span(InputPartition):
    """Offsets lo … hi; hi = lo - 1 is none."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        return self.hi - self.lo + 1


def split(lo: int, hi: int, wanted: int | None, cores: int) -> list[Span]:
    """All of lo … hi, in `wanted` parts or as many as make sense, equal but for one; an empty range is one empty part."""
    size = hi - lo + 1
    parts = wanted or max(-(-size // MOST), min(cores, -(-size // FEWEST)))
    parts = max(1, min(parts, size))
    edges = [lo + size * part // parts for part in range(parts + 1)]
    return [Span(begin, end - 1) for begin, end in pairwise(edges)]
