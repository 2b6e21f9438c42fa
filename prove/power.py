"""Power cuts under load: a new disk each time, a life or two of the broker on it, the cut, and what is left.

    plain     load ─▶ cut ─▶ broker gone ─▶ the image on a new device ─▶ start ─▶ drain ─▶ judge
    healed    load ─▶ writes fail ─▶ it ends itself ─▶ healed ─▶ start on the warm cache ─▶ load ─▶ cut ─▶ …

The healed one is the trap: a bare SQLite loses what it acknowledges after the error has gone. Most requests
publish, so that the cut finds messages that nobody has fetched yet.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .child import Child, NotServing, serve_command
from .evidence import kept_when_wrong
from .kills import Struck, read_log
from .load import drain, live
from .record import Record
from .rig import Disk, RigFailed
from .verdict import judge

#: how long a life is loaded
PLAIN_SECONDS = (0.5, 3.0)
#: … before and after an error: short, because the first checkpoint of a busy broker would disarm the trap
HEALED_SECONDS = (0.2, 0.6)
PUBLISHING = 0.9
#: how long a cut that is aimed at a sync waits for one
AIM_SECONDS = 0.5
#: after a file system that gave up, a cut is tried again, so often
TRIES = 5
#: of a store's path, what serves it
Command = Callable[[Path], Sequence[str]]


def cut(seed: int, *, healed: bool, aimed: bool, command: Command = serve_command) -> Struck:
    """One power cut. `healed`: after an I/O error that has gone. `aimed`: while a thread of the broker
    is in a write or a sync, as far as the kernel tells; else at any moment."""
    for attempt in range(TRIES):
        struck = _cut(f"cut{seed}x{attempt}", random.Random(f"{seed}/{attempt}"), healed, aimed, command)
        if struck.faults or not struck.verdict.faultless:
            return struck
    raise RigFailed(f"{TRIES} times the error hit the journal, and the file system was read-only for good")


def _cut(run: str, rng: random.Random, healed: bool, aimed: bool, command: Command) -> Struck:
    """No fault is counted where the error hit the journal: then no broker can start on that mount, and the cut
    comes without a load. What was acknowledged before is judged all the same."""
    began = time.monotonic()
    record = Record(run)
    writing: list[bool] = []
    loaded = True
    with Disk() as disk:
        serve = command(disk.mount / "store" / "waypost.db")

        def start() -> Child:
            return Child(serve, disk.folder / "broker.log")

        def life(fault: Callable[[], None]) -> None:
            child = start()

            def strike() -> None:
                until = time.monotonic() + AIM_SECONDS
                while not (found := child.is_writing()) and aimed and time.monotonic() < until:
                    time.sleep(0)
                writing.append(found)
                fault()

            seconds = rng.uniform(*(HEALED_SECONDS if healed else PLAIN_SECONDS))
            if not live(record, child, rng, seconds, strike, PUBLISHING):
                record.strange.append("the broker did not end itself on a disk that fails")
            elif child.process.returncode <= 0:
                record.strange.append(f"it ended with status {child.process.returncode}: {child.said[-300:]}")

        if healed:
            life(disk.fail_writes)
            time.sleep(rng.random() * 0.5)
            disk.heal()
        try:
            life(disk.cut)
        except NotServing:
            if not _is_read_only(disk.mount):
                raise
            loaded = False
            disk.cut()
        disk.attach_again()
        with kept_when_wrong(disk.mount / "store", run, careful=command is serve_command) as checked:
            child = start()
            try:
                log, depths = drain(record, child)
            finally:
                child.kill()
            verdict = checked(judge(record, read_log(log), depths))
    return Struck(
        faults=int(loaded),
        open_commits=int(writing[-1] or len(writing) in verdict.unanswered_lives),
        verdict=verdict,
        seconds=time.monotonic() - began,
    )


def _is_read_only(mount: Path) -> bool:
    try:
        (mount / "probe").write_bytes(b"")
    except OSError:
        return True
    return False
