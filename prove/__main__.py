"""The proofs as a command; `python -m prove --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.postgres_server import programs
from scripts.test_servers import SERVERS, table

from . import results
from .child import ROOT, normal_command, serve_command, unchecked_command
from .kills import round_of_kills
from .lake import round_of_pipeline_kills, round_of_pipeline_kills_on_postgres
from .power import cut
from .replay import round_of_replay_kills
from .results import Row
from .routing import round_of_routing_kills
from .shared import round_of_folder_kills, round_of_postgres_kills
from .sink import round_of_sink_kills
from .walk import walk

PARTS = (
    "kills",
    "power",
    "control",
    "walk",
    "folder",
    "postgres",
    "pipeline",
    "pipeline-postgres",
    "routing",
    "sink",
    "replay",
)
#: kills on one file, folder or database
ROUND = 20
#: kills of the pipeline, or of replays, on one lake
PIPELINE_ROUND = 10
RIG = ("nbdkit", "nbdfuse", "fuse3")
_COMMANDS = {
    "cuts": serve_command,
    "healed": serve_command,
    "normal": normal_command,
    "unchecked": unchecked_command,
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("prove", description="Prove that nothing acknowledged is lost.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (all)")
    parser.add_argument("--kills", type=int, default=200, help="kill -9 under load (200)")
    parser.add_argument("--cuts", type=int, default=10, help="power cuts, half after a healed error (10)")
    parser.add_argument("--controls", type=int, default=3, help="power cuts for each control (3)")
    parser.add_argument("--walks", type=int, default=2, help="hundreds of walks (2)")
    parser.add_argument("--folder-kills", type=int, default=200, help="… of brokers on a folder (200)")
    parser.add_argument(
        "--postgres-kills", type=int, default=200, help="… of brokers on PostgreSQL, and of it (200)"
    )
    parser.add_argument("--pipeline-kills", type=int, default=20, help="kill -9 of the pipeline (20)")
    parser.add_argument("--pipeline-postgres-kills", type=int, default=10, help="… on PostgreSQL (10)")
    parser.add_argument("--routing-kills", type=int, default=20, help="… of routing in Spark (20)")
    parser.add_argument(
        "--sink-kills", type=int, default=20, help="kill -9 of a job that writes, and of its broker (20)"
    )
    parser.add_argument("--replay-kills", type=int, default=20, help="kill -9 of a replay, its target (20)")
    parser.add_argument("--seed", type=int, default=1, help="which run of chance (1)")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever .prove holds")
    return parser


def planned(arguments: argparse.Namespace) -> list[Row]:
    """What the run consists of, without its results."""
    codes = {section: results.code_of(section) for section in results.SECTIONS}
    chosen = arguments.only.split(",")

    def row(part: str, index: int, size: int = 1) -> Row:
        seed = arguments.seed * 1_000 + index
        code = codes[results.section_of(part)]
        return Row(part=part, index=index, size=size, seed=seed, code=code, at="")

    rows = []
    if "kills" in chosen:
        rows += [row("kills", index, size) for index, size in enumerate(_rounds(arguments.kills, ROUND))]
    if "power" in chosen:
        rows += [row("cuts", index) for index in range(arguments.cuts - arguments.cuts // 2)]
        rows += [row("healed", index) for index in range(arguments.cuts // 2)]
    if "control" in chosen:
        rows += [row(part, index) for part in results.CONTROLS for index in range(arguments.controls)]
    if "walk" in chosen:
        rows.append(row("walk", 0, arguments.walks))
    for part, kills, largest in (
        ("folder", arguments.folder_kills, ROUND),
        ("postgres", arguments.postgres_kills, ROUND),
        ("pipeline", arguments.pipeline_kills, PIPELINE_ROUND),
        ("pipeline-postgres", arguments.pipeline_postgres_kills, PIPELINE_ROUND),
        ("routing", arguments.routing_kills, PIPELINE_ROUND),
        ("sink", arguments.sink_kills, PIPELINE_ROUND),
        ("replay", arguments.replay_kills, PIPELINE_ROUND),
    ):
        if part in chosen:
            rows += [row(part, index, size) for index, size in enumerate(_rounds(kills, largest))]
    return rows


def _rounds(kills: int, largest: int) -> list[int]:
    return [min(largest, kills - done) for done in range(0, kills, largest)]


#: what says how long a section's run is
_SIZES = {
    "sqlite": ("kills", "cuts", "controls", "walks"),
    "folder": ("folder_kills",),
    "postgres": ("postgres_kills",),
    "pipeline": ("pipeline_kills",),
    "pipeline-postgres": ("pipeline_postgres_kills",),
    "routing": ("routing_kills",),
    "sink": ("sink_kills",),
    "replay": ("replay_kills",),
}


def is_whole(section: str, arguments: argparse.Namespace) -> bool:
    """Whether its run is at least as long as the one that the page speaks of."""
    usual = parser().parse_args([])
    return set(results.SECTIONS[section]) <= set(arguments.only.split(",")) and all(
        getattr(arguments, size) >= getattr(usual, size) for size in _SIZES[section]
    )


def prove(row: Row, tell: Callable[[], None]) -> None:
    """Fills in the result; `tell` hears of each fault."""
    if row.part == "walk":
        row.walked = walk(row.size)
        for _ in range(row.size):
            tell()
    elif row.part == "pipeline":
        row.piped = round_of_pipeline_kills(row.seed, row.size, tell)
    elif row.part == "pipeline-postgres":
        row.piped = round_of_pipeline_kills_on_postgres(row.seed, row.size, tell)
    elif row.part == "routing":
        row.routed = round_of_routing_kills(row.seed, row.size, tell)
    elif row.part == "sink":
        row.sunk = round_of_sink_kills(row.seed, row.size, tell)
    elif row.part == "replay":
        row.replayed = round_of_replay_kills(row.seed, row.size, tell)
    elif row.part == "folder":
        row.struck = round_of_folder_kills(row.seed, row.size, tell)
    elif row.part == "postgres":
        row.struck = round_of_postgres_kills(row.seed, row.size, tell)
    elif row.part == "kills":
        row.struck = round_of_kills(row.seed, row.size, tell)
    else:
        # Every second cut is aimed at a sync.
        row.struck = cut(
            row.seed,
            healed=row.part in ("healed", "unchecked"),
            aimed=row.index % 2 == 0,
            command=_COMMANDS[row.part],
        )
        tell()
    row.at = results.now()


def _identity(row: Row) -> tuple[str, int, int, int, str]:
    return (row.part, row.index, row.size, row.seed, row.code)


def gap(parts: set[str]) -> str | None:
    """What of these parts cannot be done here, and why."""
    if not parts.isdisjoint(_COMMANDS) and (reason := _power_gap()) is not None:
        return f"{reason}\nwithout them: --only kills,walk,folder,postgres"
    if not parts.isdisjoint(("postgres", "pipeline-postgres")) and programs() is None:
        missing = table([SERVERS["postgresql"]])
        return "\n".join(["its kills need a program that is not on this machine:", *missing])
    return None


def _power_gap() -> str | None:
    missing = [SERVERS[name] for name in RIG if SERVERS[name].missing()]
    if missing:
        return "\n".join(["the power cuts need programs that are not on this machine:", *table(missing)])
    return None if os.geteuid() == 0 else "the power cuts need root: they attach a disk and mount it"


def main(given: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(given)
    console = Console()
    unknown = set(arguments.only.split(",")) - set(PARTS)
    if unknown:
        console.print(f"prove: no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        return 2
    rows = planned(arguments)
    if (reason := gap({row.part for row in rows})) is not None:
        console.print(f"prove: {reason}", highlight=False)
        return 2
    known = {} if arguments.fresh else {_identity(row): row for row in results.load()}
    done: list[Row] = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
        console=console,
    ) as progress:
        tasks = {
            part: progress.add_task(part, total=sum(row.size for row in rows if row.part == part), said="")
            for part in dict.fromkeys(row.part for row in rows)
        }
        for row in rows:
            task = tasks[row.part]
            if (earlier := known.get(_identity(row))) is not None:
                progress.advance(task, row.size)
            else:
                prove(row, lambda task=task: progress.advance(task))  # type: ignore[misc]
                results.append(row)
            done.append(earlier or row)
            progress.update(task, said=_figures(done, row.part))
    for section in results.SECTIONS:
        rows = [row for row in done if results.section_of(row.part) == section]
        if not rows:
            continue
        text = results.table(section, rows)
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        if is_whole(section, arguments):
            results.write_page(section, text)
            console.print(f"written to {results.PAGE.relative_to(ROOT)}")
    found = results.problems(done)
    for problem in found:
        console.print(problem, markup=False, highlight=False)
    return 1 if found else 0


def _figures(rows: Sequence[Row], part: str) -> str:
    piped = [row.piped for row in rows if row.part == part and row.piped is not None]
    if piped:
        wrong = sum(one.wrong_events + sum(one.wrong_rows.values()) for one in piped)
        return f"{sum(one.events for one in piped):,} events, {wrong:,} rows wrong"
    routed = [row.routed for row in rows if row.part == part and row.routed is not None]
    if routed:
        wrong = sum(one.lost + one.wrong + one.overtaken for one in routed)
        return f"{sum(one.decided_by_spark for one in routed):,} decided, {wrong:,} wrong"
    sunk = [row.sunk for row in rows if row.part == part and row.sunk is not None]
    if sunk:
        wrong = sum(one.lost + one.doubled + one.disordered for one in sunk)
        return f"{sum(one.rows for one in sunk):,} rows, {wrong:,} wrong"
    replayed = [row.replayed for row in rows if row.part == part and row.replayed is not None]
    if replayed:
        wrong = sum(one.lost + one.doubled + one.overtaken + one.wrong_bodies for one in replayed)
        return f"{sum(one.messages for one in replayed):,} messages, {wrong:,} wrong"
    struck = [row.struck for row in rows if row.part == part and row.struck is not None]
    acknowledged = sum(one.verdict.acknowledged for one in struck)
    lost = sum(one.verdict.lost for one in struck)
    return f"{acknowledged:,} acknowledged, {lost:,} lost" if struck else ""


if __name__ == "__main__":
    sys.exit(main())
