"""Lets the broker that seals die at each of its steps in turn; another one, which gets the lease then, goes on.

    python -m tests.postgres.dying URL FOLDER        one lake a step

Prints the steps reached. This process opens no table and no connection, so that forking is safe.
"""

import json
import os
import sys
from itertools import count
from pathlib import Path

import psycopg

from tests.lake import rows
from tests.lake.dying import DIED
from waypost.lake import desk, sealing
from waypost.lake.child import Unneeded
from waypost.lake.owner import Lake
from waypost.store import Task
from waypost.stores.exporting import open_export


def hand_over(url: str, broker: str) -> None:
    """As time does it: the lease of the one that is gone has ended."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "insert into owned (task, broker, until) values (%s, %s, now() + interval '1 minute')"
            " on conflict (task) do update set broker = excluded.broker, until = excluded.until",
            (Task.SEAL, broker),
        )


def seal(url: str, lake: Lake, broker: str, die_at: int | None) -> tuple[int, str]:
    """The exit status of a process that seals for that broker, and the step at which it died."""
    reading, writing_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _seal(url, lake, broker, die_at, writing_end)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(writing_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return os.waitstatus_to_exitcode(status), pipe.read()


def _seal(url: str, lake: Lake, broker: str, die_at: int | None, pipe: int) -> None:
    hand_over(url, broker)
    exports = desk.Exports()
    exports.begin(url)
    fence = desk.Fence(exports, broker)
    steps = count(1)

    def reached(point: str) -> None:
        fence(point)
        if next(steps) == die_at:
            os.write(pipe, point.encode())
            os._exit(DIED)

    export = open_export(url)
    desk.OpenLake.open(lake, export.id, None, export, fence, lock=False)
    sealing.seal_upto(export, lake, range_events=60, portion_bytes=4_000, reached=reached)


def each(url: str, folder: Path) -> list[str]:
    points: list[str] = []
    for step in count(1):
        lake = Lake(folder / str(step))
        status, point = seal(url, lake, "first", step)
        if status == 0:
            return points
        assert status == DIED, status
        points.append(point)
        assert seal(url, lake, "second", None)[0] == 0
    raise AssertionError


if __name__ == "__main__":
    # What is loaded late is loaded once, here, and not in every fork.
    sys.meta_path.insert(0, Unneeded())
    import waypost.stores.postgres.export  # noqa: F401

    rows.events(1, 3)
    print(json.dumps(each(sys.argv[1], Path(sys.argv[2]))))
