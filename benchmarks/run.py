"""Measures Waypost and every peer that is installed, in one run, with one client.

    python -m benchmarks.run [--full] [--only publish,cycle] [--peers redis,nats] [--rounds N] [--seconds S]

All servers run side by side, each idle while another is measured; a round goes through all cells, and in
each cell through all systems, beginning with another one every time. Every cell gets a queue of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.backlog import FULL_SIZES, SIZES, measure_backlog
from benchmarks.channels import measure_channels
from benchmarks.large import measure_large
from benchmarks.loader import Measured, Refused, Script, Tick, drive, measure, percentile
from benchmarks.peers import AGAIN, OURS, PEERS, Absent, Running, System, running, version
from benchmarks.picture import picture
from benchmarks.push import measure_push
from benchmarks.report import Cell, Run, page, write_between

SINGLE_CLIENTS, BATCH_CLIENTS = (1, 32, 256), (1, 8, 32)
SCENARIOS = ("publish", "cycle", "batch")
FULL_SCENARIOS = (*SCENARIOS, "batch_cycle")
OTHERS = ("large", "backlog", "channels", "push")
#: Rounds after which the next would take a default run past its quarter of an hour are left out.
MINUTES = 12.0
#: Columns from which the tables are drawn; below, and in a file, they are printed as they are written.
WIDE = 120
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Asked:
    scenarios: tuple[str, ...]
    systems: tuple[System, ...]
    rounds: int
    seconds: float
    minutes: float | None
    full: bool
    folder: Path
    json: Path | None
    page: Path | None

    def cells(self) -> list[Cell]:
        return [
            Cell(scenario, clients)
            for scenario in FULL_SCENARIOS
            if scenario in self.scenarios
            for clients in self._clients(scenario)
        ]

    def _clients(self, scenario: str) -> tuple[int, ...]:
        if not scenario.startswith("batch"):
            return SINGLE_CLIENTS
        return (*BATCH_CLIENTS, 256) if self.full else BATCH_CLIENTS


def asked() -> Asked:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [system.name for system in PEERS]
    parser.add_argument("--full", action="store_true", help="every cell, more rounds, the 10 M backlog")
    parser.add_argument("--only", help=f"some of {','.join((*FULL_SCENARIOS, *OTHERS))}")
    parser.add_argument("--peers", help=f"some of {','.join(known)}, or none")
    parser.add_argument("--no-waypost", action="store_true", help="measure the peers alone")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=1.5, help="that count, per cell and system")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="the disk where all stores lie")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    default = (*(FULL_SCENARIOS if given.full else SCENARIOS), *OTHERS)
    scenarios = tuple(given.only.split(",")) if given.only else default
    wanted = known if given.peers is None else [name for name in given.peers.split(",") if name != "none"]
    if unknown := {*scenarios} - {*FULL_SCENARIOS, *OTHERS} | {*wanted} - {*known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    peers = tuple(system for system in PEERS if system.name in wanted)
    return Asked(
        scenarios=scenarios,
        systems=peers if given.no_waypost else (OURS, AGAIN, *peers),
        rounds=given.rounds or (5 if given.full else 3),
        seconds=given.seconds,
        minutes=None if given.full else MINUTES,
        full=given.full,
        folder=given.dir,
        json=given.json,
        page=None if given.no_page else given.page,
    )


# ── one measurement ──────────────────────────────────────────────────────────────────────────────────


def measure_cell(system: System, server: Running, cell: Cell, queue: str, seconds: float) -> Measured | str:
    """What was measured, or why it is void."""

    def script(tick: Tick) -> Script:
        wire = system.wire()
        yield from wire.hello()
        yield from getattr(wire, cell.scenario)(queue, tick)

    try:
        drive(server.address, _step(system, queue, "prepare"))
        measured = measure(server.address, server.pid, cell.clients, script, seconds)
        drive(server.address, _step(system, queue, "remove"))
    except (OSError, Refused) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return measured


def _step(system: System, queue: str, step: str) -> Script:
    wire = system.wire()
    yield from wire.hello()
    yield from getattr(wire, step)(queue)


def bare_sync(folder: Path, times: int = 300) -> float:
    """p50 of what no durable server can avoid: append 256 bytes, fdatasync. Seconds."""
    path = folder / "bare"
    latencies = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            start = time.perf_counter()
            os.write(fd, b"x" * 256)
            os.fdatasync(fd)
            latencies.append(time.perf_counter() - start)
    finally:
        os.close(fd)
        path.unlink()
    return percentile(sorted(latencies), 0.5)


# ── the whole run ────────────────────────────────────────────────────────────────────────────────────


def start_servers(
    systems: tuple[System, ...], folder: Path, stack: ExitStack, run: Run
) -> dict[str, Running]:
    """One server per instance. A peer that is absent becomes a gap."""
    servers: dict[str, Running] = {}
    failed: dict[str, str] = {}
    for system in systems:
        if system.instance not in servers and system.instance not in failed:
            try:
                home = folder / system.instance
                servers[system.instance] = stack.enter_context(running(system.server, home))
                run.versions[system.server.name] = version(system.server)
            except Absent as gap:
                failed[system.instance] = str(gap)
        if reason := failed.get(system.instance):
            run.gaps[system.name] = reason
    return servers


def measure_cells(asked: Asked, run: Run, folder: Path, console: Console) -> None:
    cells = asked.cells()
    if not cells:
        return
    with ExitStack() as stack:
        console.print("starting the servers …")
        servers = start_servers(asked.systems, folder, stack, run)
        for name, reason in run.gaps.items():
            console.print(f"[yellow]gap[/] {name}: {reason}")
        systems = [system for system in asked.systems if system.name not in run.gaps]
        # No refreshing thread: it would take time from the client while it measures.
        progress = stack.enter_context(
            Progress(
                TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                console=console, auto_refresh=False,
            )
        )  # fmt: skip
        each_round = sum(cell.scenario in system.scenarios for cell in cells for system in systems)
        task = progress.add_task("", total=asked.rounds * each_round)
        began, longest = time.monotonic(), 0.0
        for number in range(asked.rounds):
            round_began = time.monotonic()
            if asked.minutes and round_began - began + longest > asked.minutes * 60:
                progress.console.print(f"[yellow]{number} rounds only[/]: the next would take too long")
                break
            for index, cell in enumerate(cells):
                if cell == Cell("publish", 1):
                    run.bare_sync.append(bare_sync(folder))
                for system in _turned(systems, number + index):
                    if cell.scenario in system.scenarios:
                        progress.update(task, description=f"{cell} {system.name}", refresh=True)
                        queue = f"bench-{number}-{index}-{system.name}"
                        found = measure_cell(system, servers[system.instance], cell, queue, asked.seconds)
                        run.cells.setdefault((cell, system.name), []).append(found)
                        progress.advance(task)
                progress.console.print(_line(run, cell, systems))
            longest = max(longest, time.monotonic() - round_began)


def _turned(systems: list[System], by: int) -> list[System]:
    by %= len(systems)
    return systems[by:] + systems[:by]


def _line(run: Run, cell: Cell, systems: list[System]) -> str:
    """The last round of one cell."""
    figures = []
    for system in systems:
        if rounds := run.cells.get((cell, system.name)):
            last = rounds[-1]
            if isinstance(last, str):
                found = f"[red]void: {last[:60]}[/]"
            else:
                found = f"{last.rate * cell.messages:,.0f}"
            figures.append(f"[dim]{system.name}[/] {found}")
    return f"{cell!s:16} " + "  ".join(figures)


def measure_others(asked: Asked, run: Run, folder: Path, console: Console) -> None:
    """What only Waypost is asked."""
    if OURS not in asked.systems or OURS.name in run.gaps:
        return
    if "large" in asked.scenarios:
        console.print("16 MiB bodies beside small ones …")
        try:
            run.large = measure_large(folder / "large", 10.0)
        except (Absent, OSError, Refused) as error:
            run.large = {"void": str(error)}
        shutil.rmtree(folder / "large", ignore_errors=True)
    if "backlog" in asked.scenarios:
        sizes = FULL_SIZES if asked.full else SIZES
        with Progress(console=console) as progress:
            task = progress.add_task("filling the backlog", total=sizes[-1])
            try:
                run.backlog = measure_backlog(folder / "backlog", sizes, lambda n: progress.advance(task, n))
            except (Absent, OSError, Refused) as error:
                console.print(f"[red]backlog is void[/]: {error}")
    rounds = 5 if asked.full else 3
    if "channels" in asked.scenarios:
        console.print("10,000 channels that do not match …")
        try:
            run.channels = measure_channels(folder / "channels", rounds, asked.seconds, 32)
        except (Absent, OSError, Refused) as error:
            run.channels = {"void": str(error)}
        shutil.rmtree(folder / "channels", ignore_errors=True)
    if "push" in asked.scenarios:
        console.print("webhooks, also with one that hangs …")
        try:
            run.push = measure_push(folder / "push", 3.0, rounds)
        except (OSError, TimeoutError) as error:
            run.push = {"void": str(error)}
        shutil.rmtree(folder / "push", ignore_errors=True)


def machine(folder: Path) -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    home = str(folder.resolve())
    on = max((m for m in mounts if home.startswith(m[1].rstrip("/") + "/")), key=lambda m: len(m[1]))
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}, {on[2]}",
        "Python": platform.python_version(),
        "commit": commit or "unknown",
    }


def main() -> None:
    given = asked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no server stays behind
    # Sealing would run into its neighbours' measurements, as the rewriting of Redis' file would; `make bench-lake` measures it.
    os.environ["WAYPOST_LAKE"] = "off"
    console = Console()
    began = time.monotonic()
    run = Run(machine(given.folder), {})
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=given.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)  # servers that refuse to be root must reach their own folders in it
        measure_cells(given, run, folder, console)
        measure_others(given, run, folder, console)
    run.minutes = (time.monotonic() - began) / 60
    if given.json:
        given.json.write_text(json.dumps(run.as_json(), indent=1) + "\n")
    text = page(run)
    console.print(Markdown(text) if console.width >= WIDE else text, markup=False, soft_wrap=True)
    if run.disturbed() and given.page == PAGE:
        console.print("[yellow]the run was disturbed[/]: the page stays as it is (--page writes one anyway)")
    elif given.page:
        image = f"![Waypost as a multiple of its peers]({given.page.stem}.svg)"
        write_between(given.page, "bench", f"{image}\n\n{text}")
        given.page.with_suffix(".svg").write_text(picture(run))


if __name__ == "__main__":
    main()
