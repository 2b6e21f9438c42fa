"""Brokers on one PostgreSQL, beside a plain queue table on the same server.

    python -m benchmarks.postgres [--rounds N] [--seconds S] [--clients 32,256] [--json FILE] [--no-page]

One PostgreSQL on the disk, fsync on; four brokers on one database of it, of which one, two or four are loaded. A round goes through all
cells, and in each through the table and the brokers, beginning with another one every time.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.loader import Measured, Refused, Script, Tick, drive, measure_all
from benchmarks.peers import POSTGRES, Absent, Plan, Running, Server, running, version
from benchmarks.report import OTHERS_LIMIT, write_between
from benchmarks.run import PAGE, machine
from benchmarks.wires import Wire
from benchmarks.wires.http import Waypost
from benchmarks.wires.postgres import Postgres, ask, frame

BROKERS = (1, 2, 4)
#: at 256 clients, by scenario: what the best number of brokers is to be of the table's rate
TARGETS = {"publish": 1.5, "cycle": 2.5}
CLIENTS = (32, 256)


@dataclass(frozen=True)
class Loaded:
    """The table, or so many brokers."""

    name: str
    wire: Callable[[], Wire]
    servers: list[Running]  #: that are spoken to
    database: Running | None = None  #: beside them


@dataclass
class Found:
    facts: dict[str, str]
    #: by scenario, clients and what was loaded: one per round, or why it is void
    cells: dict[tuple[str, int, str], list[Measured | str]] = field(default_factory=dict)

    def rounds(self, scenario: str, clients: int, name: str) -> list[Measured]:
        return [one for one in self.cells.get((scenario, clients, name), ()) if isinstance(one, Measured)]

    def ratio(self, scenario: str, clients: int, name: str) -> float | None:
        """Of the table's rate, round by round."""
        pairs = zip(
            self.cells.get((scenario, clients, name), ()),
            self.cells.get((scenario, clients, TABLE), ()),
            strict=False,
        )
        ratios = [
            ours.rate / table.rate
            for ours, table in pairs
            if isinstance(ours, Measured) and isinstance(table, Measured)
        ]
        return median(ratios) if ratios else None


TABLE = "plain table"


def brokers(number: int) -> str:
    return "1 broker" if number == 1 else f"{number} brokers"


def start(folder: Path, stack: ExitStack) -> list[Loaded]:
    database = stack.enter_context(running(POSTGRES, folder / "postgres"))

    def create() -> Script:
        yield from Postgres().hello()
        yield from ask(frame(b"Q", b"create database waypost\0"))

    drive(database.address, create())
    url = f"postgresql://postgres@127.0.0.1:{database.address[1]}/waypost"

    def plan(program: str, folder: Path, port: int) -> Plan:
        return Plan([program, "serve", "--store", url, "--port", str(port)])

    waypost = Server("waypost", ("waypost",), (), Waypost, plan)
    started = [
        stack.enter_context(running(waypost, folder / f"waypost-{number}")) for number in range(max(BROKERS))
    ]
    return [
        Loaded(TABLE, Postgres, [database]),
        *(Loaded(brokers(number), Waypost, started[:number], database) for number in BROKERS),
    ]


def measure_one(loaded: Loaded, scenario: str, clients: int, queue: str, seconds: float) -> Measured | str:
    """What was measured, or why it is void."""

    def step(name: str) -> Script:
        wire = loaded.wire()
        yield from wire.hello()
        yield from getattr(wire, name)(queue)

    def script(tick: Tick) -> Script:
        wire = loaded.wire()
        yield from wire.hello()
        yield from getattr(wire, scenario)(queue, tick)

    pids = [server.pid for server in loaded.servers]
    if loaded.database is not None:
        pids.append(loaded.database.pid)
    addresses = [server.address for server in loaded.servers]
    try:
        drive(addresses[0], step("prepare"))
        measured = measure_all(addresses, pids, clients, script, seconds)
        drive(addresses[0], step("remove"))
    except (OSError, Refused) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return measured


def measure_rounds(
    found: Found, loaded: list[Loaded], rounds: int, seconds: float, clients: list[int]
) -> None:
    cells = [(scenario, number) for scenario in TARGETS for number in clients]
    for turn in range(rounds):
        for index, (scenario, number) in enumerate(cells):
            by = (turn + index) % len(loaded)
            for one in loaded[by:] + loaded[:by]:
                queue = f"bench-{turn}-{index}-{one.name.replace(' ', '-')}"
                result = measure_one(one, scenario, number, queue, seconds)
                found.cells.setdefault((scenario, number, one.name), []).append(result)
                said = f"void: {result}" if isinstance(result, str) else f"{result.rate:,.0f}/s"
                print(f"round {turn + 1}  {scenario:8} {number:4} clients  {one.name:12} {said}", flush=True)


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────


def page(found: Found, clients: list[int]) -> str:
    lines = [f"* {name}: {value}" for name, value in found.facts.items()]
    lines += ["", "| target | found | |", "|---|---|---|"]
    for scenario, wanted in TARGETS.items():
        if 256 in clients:
            ratios = {number: found.ratio(scenario, 256, brokers(number)) for number in BROKERS}
            known = {number: ratio for number, ratio in ratios.items() if ratio is not None}
            best = max(known, key=lambda number: known[number], default=None)
            got = "void" if best is None else f"{known[best]:.2f} × with {brokers(best)}"
            verdict = "pass" if best is not None and known[best] >= wanted else "**fail**"
            lines.append(f"| {scenario}, 256 clients: ≥ {wanted} × the plain table | {got} | {verdict} |")
    for scenario in TARGETS:
        lines += [
            "",
            f"### {scenario.capitalize()}, on PostgreSQL",
            "",
            "| clients | loaded | operations/s | p50 ms | p99 ms | brokers µs | database µs | client busy | of the table's rate |",
            "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for number in clients:
            for name in (TABLE, *map(brokers, BROKERS)):
                lines.append(_row(found, scenario, number, name))
    return "\n".join(lines)


def _row(found: Found, scenario: str, clients: int, name: str) -> str:
    rounds = found.rounds(scenario, clients, name)
    if not rounds:
        why = next(iter(found.cells.get((scenario, clients, name), ())), "not measured")
        return f"| {clients} | {name} | void: {why} | | | | | | |"

    def middle(of: Callable[[Measured], float]) -> float:
        return median(of(one) for one in rounds)

    ours = middle(lambda one: sum(one.each_cpu[:-1]) / one.operations * 1e6)
    theirs = middle(lambda one: one.each_cpu[-1] / one.operations * 1e6)
    ratio = None if name == TABLE else found.ratio(scenario, clients, name)
    return (
        f"| {clients} | {name} | {middle(lambda one: one.rate):,.0f} | {middle(lambda one: one.p50) * 1e3:.1f}"
        f" | {middle(lambda one: one.p99) * 1e3:.1f} | {'' if name == TABLE else f'{ours:.0f}'} | {theirs:.0f}"
        f" | {middle(lambda one: one.client_cpu / one.seconds):.0%} | {'' if ratio is None else f'{ratio:.2f} ×'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="that count, per cell")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="the disk where the database lies")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    clients = [int(number) for number in given.clients.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no server stays behind
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=given.dir) as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL refuses to be root and must reach its own folder in it
        try:
            loaded = start(folder, stack)
        except Absent as gap:
            raise SystemExit(f"not measured: {gap}") from gap
        found = Found(machine(given.dir))
        found.facts["PostgreSQL"] = version(POSTGRES)
        measure_rounds(found, loaded, given.rounds, given.seconds, clients)
    others = [
        one.other_cpu / one.seconds
        for cell in found.cells.values()
        for one in cell
        if isinstance(one, Measured)
    ]
    if others:
        found.facts["other work on the machine"] = (
            f"median {median(others):.2f}, at most {max(others):.2f} cores"
        )
    found.facts["the run took"] = f"{(time.monotonic() - began) / 60:.1f} minutes, {given.rounds} rounds"
    if given.json:
        raw = {
            " ".join(map(str, cell)): [one if isinstance(one, str) else asdict(one) for one in rounds]
            for cell, rounds in found.cells.items()
        }
        given.json.write_text(json.dumps({"facts": found.facts, "cells": raw}, indent=1) + "\n")
    text = page(found, clients)
    print(text)
    if others and median(others) > OTHERS_LIMIT:
        print("the run was disturbed: the page stays as it is")
    elif not given.no_page:
        write_between(PAGE, "postgres", text)


if __name__ == "__main__":
    main()
