"""The state machine of waypost.testing for longer, and with other walks each time than `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import msgspec

from .child import ROOT

#: what one unit of WAYPOST_PROVE means (waypost.testing.model)
WALKS_PER_UNIT, STEPS = 100, 100
#: by part: who walks beside the model
WALKERS = {"walk": "the SQLite store", "walk-postgres": "two brokers on one PostgreSQL, taking turns,"}
_TESTS = {
    "walk": "tests/property/test_sqlite_against_memory.py",
    "walk-postgres": "tests/property/test_postgres_against_memory.py",
}


class Walked(msgspec.Struct, kw_only=True):
    walks: int
    passed: bool
    #: the end of what it said, when it did not pass
    said: str = ""
    seconds: float = 0.0


def walk(part: str, units: int) -> Walked:
    began = time.monotonic()
    env = {**os.environ, "WAYPOST_PROVE": str(units), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout", "0", _TESTS[part]],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Walked(
        walks=units * WALKS_PER_UNIT,
        passed=done.returncode == 0,
        said="" if done.returncode == 0 else done.stdout[-8_000:],
        seconds=time.monotonic() - began,
    )
