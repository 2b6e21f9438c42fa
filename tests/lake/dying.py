"""Lets a sealer die at each of its steps in turn: what a process leaves behind that was killed there.

    python -m tests.lake.dying each WHAT FOLDER      one lake a step; each dies there once, then is left whole by a second process
    python -m tests.lake.dying often SEED FOLDER     one lake, and sealers that die at a step drawn by lot until it is done

Prints the steps reached. This process loads what is needed and opens no table, so that forking is safe and quick.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from tests.lake import rows
from waypost.lake import delta, maintaining, sealing
from waypost.lake.owner import SEALER, Lake, claim, writing

HEAD = 90
DIED = 77

Reached = Callable[[str], None]


def seal(lake: Lake, reached: Reached) -> None:
    """Two ranges, each with two portions of payloads."""
    source = rows.Source(HEAD, body_bytes=1_000)
    source.batch_rows = 5
    sealing.seal_upto(source, lake, range_events=45, portion_bytes=8_000, reached=reached)


def compact(lake: Lake, reached: Reached) -> None:
    seal(lake, delta.nothing)
    maintaining.maintain(lake, reached=reached)


def forget(lake: Lake, reached: Reached) -> None:
    seal(lake, delta.nothing)
    maintaining.forget(lake, moment_of(31), reached=reached)


def erase(lake: Lake, reached: Reached) -> None:
    seal(lake, delta.nothing)
    maintaining.erase(lake, [1, 43, 88], reached=reached)


def moment_of(offset: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(rows.moment(offset)))


DO = {"seal": seal, "compact": compact, "forget": forget, "erase": erase}


def run(do: Callable[[Lake, Reached], None], lake: Lake, die_at: int | None) -> tuple[int, str]:
    """The exit status of a process that does it, and the step at which it died."""
    reading, writing_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        steps = count(1)

        def reached(point: str) -> None:
            if next(steps) == die_at:
                os.write(writing_end, point.encode())
                os._exit(DIED)

        try:
            with writing(lake, SEALER, wait=True):
                claim(lake, "a store", sealed=None)
                sealing.prepare(lake)
                do(lake, reached)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(writing_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return os.waitstatus_to_exitcode(status), pipe.read()


def each(what: str, folder: Path) -> list[str]:
    points: list[str] = []
    for step in count(1):
        lake = Lake(folder / str(step))
        status, point = run(DO[what], lake, step)
        if status == 0:
            return points
        assert status == DIED, status
        points.append(point)
        assert run(DO[what], lake, None)[0] == 0
    raise AssertionError


def often(seed: int, folder: Path) -> list[str]:
    lots = random.Random(seed)
    points: list[str] = []
    while True:
        status, point = run(seal, Lake(folder / "often"), lots.randint(1, 12))
        if status == 0:
            return points
        assert status == DIED, status
        points.append(point)


if __name__ == "__main__":
    how, which, where = sys.argv[1:]
    rows.events(1, 3)  # the first array makes pyarrow load more: once, here, and not in every fork
    print(json.dumps(each(which, Path(where)) if how == "each" else often(int(which), Path(where))))
