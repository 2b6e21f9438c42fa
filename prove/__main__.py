"""The proofs as a command; `python -m prove --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.postgres_server import programs
from scripts.test_servers import SERVERS, table

from . import results
from .child import ROOT, normal_command, serve_command, unchecked_command
from .kills import Struck, round_of_kills
from .lake import round_of_pipeline_kills, round_of_pipeline_kills_on_postgres
from .power import cut
from .replay import round_of_replay_kills
from .results import Outcomes, Row
from .routing import round_of_routing_kills
from .shared import round_of_folder_kills, round_of_postgres_kills
from .sink import round_of_sink_kills
from .walk import WALKERS, walk

#: kills on one file, folder or database
ROUND = 20
#: kills of the pipeline, or of replays, on one lake
PIPELINE_ROUND = 10


class Kills(NamedTuple):
    """A part that is rounds of kills, each as `run` says."""

    run: Callable[[int, int, Callable[[], None]], Struck | Outcomes]
    usual: int
    #: in one round
    largest: int
    help: str

    def rounds(self, kills: int) -> list[int]:
        return [min(self.largest, kills - done) for done in range(0, kills, self.largest)]


KILLS = {
    "kills": Kills(round_of_kills, 200, ROUND, "kill -9 under load"),
    "folder": Kills(round_of_folder_kills, 200, ROUND, "… of brokers on a folder"),
    "postgres": Kills(round_of_postgres_kills, 200, ROUND, "… of brokers on PostgreSQL, and of it"),
    "pipeline": Kills(round_of_pipeline_kills, 20, PIPELINE_ROUND, "kill -9 of the pipeline"),
    "pipeline-postgres": Kills(
        round_of_pipeline_kills_on_postgres, 10, PIPELINE_ROUND, "… on PostgreSQL, beside a second broker"
    ),
    "routing": Kills(round_of_routing_kills, 20, PIPELINE_ROUND, "… of routing in Spark, and of its broker"),
    "sink": Kills(round_of_sink_kills, 20, PIPELINE_ROUND, "… of a job that writes, and of its broker"),
    "replay": Kills(round_of_replay_kills, 20, PIPELINE_ROUND, "… of a replay, and of its target"),
}
PARTS = ("power", "control", *WALKERS, *KILLS)
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
    parser.add_argument("--cuts", type=int, default=10, help="power cuts, half after a healed error (10)")
    parser.add_argument("--controls", type=int, default=3, help="power cuts for each control (3)")
    parser.add_argument("--walks", type=int, default=2, help="hundreds of walks (2)")
    parser.add_argument("--postgres-walks", type=int, default=1, help="… of brokers on PostgreSQL (1)")
    for part, kills in KILLS.items():
        option = f"--{size_of(part).replace('_', '-')}"
        parser.add_argument(option, type=int, default=kills.usual, help=f"{kills.help} ({kills.usual})")
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
    if "power" in chosen:
        rows += [row("cuts", index) for index in range(arguments.cuts - arguments.cuts // 2)]
        rows += [row("healed", index) for index in range(arguments.cuts // 2)]
    if "control" in chosen:
        rows += [row(part, index) for part in results.CONTROLS for index in range(arguments.controls)]
    for part, units in (("walk", arguments.walks), ("walk-postgres", arguments.postgres_walks)):
        if part in chosen:
            rows.append(row(part, 0, units))
    for part, kills in KILLS.items():
        if part in chosen:
            sizes = kills.rounds(getattr(arguments, size_of(part)))
            rows += [row(part, index, size) for index, size in enumerate(sizes)]
    return rows


def size_of(part: str) -> str:
    """The argument that says how many kills it has."""
    return "kills" if part == "kills" else f"{part.replace('-', '_')}_kills"


#: what says how long a section's run is
_SIZES = {section: (size_of(section),) for section in results.SECTIONS} | {
    "sqlite": ("kills", "cuts", "controls", "walks"),
    "postgres": (size_of("postgres"), "postgres_walks"),
}


def is_whole(section: str, arguments: argparse.Namespace) -> bool:
    """Whether its run is at least as long as the one that the page speaks of."""
    usual = parser().parse_args([])
    return set(results.SECTIONS[section]) <= set(arguments.only.split(",")) and all(
        getattr(arguments, size) >= getattr(usual, size) for size in _SIZES[section]
    )


def prove(row: Row, tell: Callable[[], None]) -> None:
    """Fills in the result; `tell` hears of each fault."""
    if row.part in WALKERS:
        row.walked = walk(row.part, row.size)
        for _ in range(row.size):
            tell()
    elif row.part in KILLS:
        came = KILLS[row.part].run(row.seed, row.size, tell)
        if isinstance(came, Struck):
            row.struck = came
        else:
            row.outcome = came
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
    if not parts.isdisjoint(("postgres", "walk-postgres", "pipeline-postgres")) and programs() is None:
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
    outcomes = results.outcomes_of(row for row in rows if row.part == part)
    if outcomes:
        return type(outcomes[0]).figures(outcomes)
    struck = [row.struck for row in rows if row.part == part and row.struck is not None]
    acknowledged = sum(one.verdict.acknowledged for one in struck)
    lost = sum(one.verdict.lost for one in struck)
    return f"{acknowledged:,} acknowledged, {lost:,} lost" if struck else ""


if __name__ == "__main__":
    sys.exit(main())
