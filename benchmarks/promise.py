"""Does an answer wait for the disk? Makes every sync longer, and looks whether the answers come later.

    python -m benchmarks.promise [SYSTEM …]      needs strace

One client publishes while strace delays each fsync and fdatasync of the server by DELAY. A system whose
p50 stays below that answers before its message is synced, and has no place in the tables.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.loader import Script, Tick, drive, family, measure
from benchmarks.peers import OURS, PEERS, Absent, System, running

DELAY = 0.020


def p50_delayed(system: System, folder: Path) -> float:
    def prepare() -> Script:
        wire = system.wire()
        yield from wire.hello()
        yield from wire.prepare("promise")

    def publish(tick: Tick) -> Script:
        wire = system.wire()
        yield from wire.hello()
        yield from wire.publish("promise", tick)

    with running(system.server, folder) as server:
        drive(server.address, prepare())
        injected = f"inject=fsync,fdatasync:delay_exit={DELAY * 1e6:.0f}"
        pids = [word for pid in family(server.pid) for word in ("-p", str(pid))]
        strace = subprocess.Popen(
            ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", injected, "-o", "/dev/null", *pids]
        )
        try:
            time.sleep(1.0)  # strace does not say when it has attached to the last thread
            return measure(server.address, server.pid, 1, publish, 2.0).p50
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()


def main() -> None:
    broken = False
    with tempfile.TemporaryDirectory(prefix="waypost-promise-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        for system in (OURS, *PEERS):
            if "publish" not in system.scenarios or (sys.argv[1:] and system.name not in sys.argv[1:]):
                continue
            try:
                p50 = p50_delayed(system, Path(name) / system.name)
            except Absent as gap:
                print(f"{system.title:30} gap: {gap}")
                continue
            kept = p50 >= DELAY
            broken = broken or not kept
            verdict = "waits" if kept else "DOES NOT WAIT"
            print(f"{system.title:30} p50 {p50 * 1e3:5.1f} ms  {verdict}", flush=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
