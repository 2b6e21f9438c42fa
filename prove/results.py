"""Results: a line each in .prove/results.jsonl, and the table they make."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import apsw
import msgspec

from waypost.version import __version__

from .child import ROOT
from .kills import Struck
from .lake import Piped
from .outcome import Outcome
from .replay import Replayed
from .routing import Routed
from .sink import Sunk
from .verdict import FAULTY
from .walk import STEPS, WALKERS, Walked

FILE = ROOT / ".prove" / "results.jsonl"
PAGE = ROOT / "docs" / "guarantees.md"
#: what the page says apart from each other: each has its own table, run and commit
SECTIONS = {
    "sqlite": ("kills", "power", "control", "walk"),
    "folder": ("folder",),
    "postgres": ("postgres", "walk-postgres"),
    "pipeline": ("pipeline",),
    "pipeline-postgres": ("pipeline-postgres",),
    "routing": ("routing",),
    "sink": ("sink",),
    "replay": ("replay",),
}
#: code that a section's faults cannot reach
_SPARK = ("pyspark_waypost", "waypost/spark")
_ELSEWHERE = {
    "sqlite": (*_SPARK, "waypost/stores/folder", "waypost/stores/postgres"),
    "folder": (*_SPARK, "waypost/stores/sqlite", "waypost/stores/postgres"),
    "postgres": (*_SPARK, "waypost/stores/sqlite", "waypost/stores/folder"),
    "pipeline": ("waypost/stores/folder", "waypost/stores/postgres"),
    "pipeline-postgres": ("waypost/stores/folder", "waypost/stores/sqlite"),
    "routing": ("waypost/stores/folder", "waypost/stores/postgres"),
    "sink": ("waypost/stores/folder", "waypost/stores/postgres", "waypost/lake"),
    "replay": (*_SPARK, "waypost/stores/folder", "waypost/stores/postgres"),
}

#: each kind of fault, in words
TITLES = {
    "kills": "`kill -9` under load",
    "cuts": "power cut",
    "healed": "power cut after an I/O error that healed",
    "normal": "control: `synchronous=NORMAL`, power cut",
    "unchecked": "control: no checkpoint at start, power cut after a healed I/O error",
    "folder": "`kill -9` of a broker on a folder under load",
    "postgres": "`kill -9` of PostgreSQL, of a broker on it, of both, under load",
}
#: these must lose
CONTROLS = ("normal", "unchecked")


Outcomes = Piped | Routed | Sunk | Replayed


class Row(msgspec.Struct, kw_only=True):
    #: a key of TITLES, of WALKERS, or one that has an outcome
    part: str
    #: which round, which cut, and of what size
    index: int
    size: int
    seed: int
    #: what was proved
    code: str
    at: str
    struck: Struck | None = None
    walked: Walked | None = None
    outcome: Outcomes | None = None


def section_of(part: str) -> str:
    """Of a row's."""
    return next((section for section, parts in SECTIONS.items() if part in parts), "sqlite")


def code_of(section: str, root: Path = ROOT) -> str:
    """A name for the code as it is, as far as the section runs it: results of other code do not count."""
    digest = hashlib.sha256()
    for path in sorted((root / "src").rglob("*")):
        name = path.relative_to(root / "src").as_posix()
        if path.suffix in (".py", ".sql") and not name.startswith(_ELSEWHERE.get(section, ())):
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def load(path: Path = FILE) -> list[Row]:
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Row)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line]


def append(row: Row, path: Path = FILE) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


# ── what they say ───────────────────────────────────────────────────────────────────────────────


def outcomes_of(rows: Iterable[Row]) -> list[Outcome]:
    return [row.outcome for row in rows if row.outcome is not None]


def problems(rows: Sequence[Row]) -> list[str]:
    """Everything that is not as promised; nothing: it held."""
    found = []
    for row in rows:
        if row.struck is not None and row.part not in CONTROLS and not row.struck.verdict.faultless:
            verdict = row.struck.verdict
            counts = {name: getattr(verdict, name) for name in FAULTY}
            found.append(f"{row.part} {row.index} (seed {row.seed}): {counts}")
            found += [f"    {finding}" for finding in verdict.findings]
        if row.walked is not None and not row.walked.passed:
            found.append(f"{row.part}: a step on which the stores disagree\n{row.walked.said}")
        if row.outcome is not None and not row.outcome.faultless:
            found.append(f"{row.part} {row.index} (seed {row.seed}): {msgspec.to_builtins(row.outcome)}")
    for part in CONTROLS:
        struck = [row.struck for row in rows if row.part == part and row.struck is not None]
        if struck and not sum(one.verdict.lost for one in struck):
            found.append(f"{part}: the control lost nothing, so the rig shows nothing")
    return found


def _bound(n: int) -> str:
    """The rule of three: with none seen in n, at most this share with 95 % confidence."""
    share = min(1.0, 3 / n) if n else 1.0
    return f"{share * 100:.3g} %" if share >= 1e-4 else f"{share * 1e6:.3g} per million"


def _line(part: str, rows: Iterable[Row]) -> str:
    struck = [row.struck for row in rows if row.part == part and row.struck is not None]

    def total(name: str) -> int:
        return sum(getattr(one.verdict, name) for one in struck)

    faults = sum(one.faults for one in struck)
    hits = sum(one.open_commits for one in struck)
    lost, acknowledged = total("lost"), total("acknowledged")
    bound = "" if lost else f" (3/n: {_bound(acknowledged)})"
    cells = (
        TITLES[part],
        f"{faults}" + ("" if lost else f" (3/n: {_bound(faults)})"),
        f"{hits}",
        f"{acknowledged:,}",
        f"**{lost:,}**{bound}",
        f"{total('confirmed'):,}",
        f"**{total('again'):,}**",
        f"{total('forgotten'):,}",
        f"{total('unexpected'):,}",
        f"{total('duplicated'):,}",
        f"{total('illegal'):,} of {total('events'):,}",
        f"{total('recovered'):,}",
        f"{total('redelivered'):,}",
    )
    return f"| {' | '.join(cells)} |"


def table(section: str, rows: Sequence[Row]) -> str:
    """In Markdown; every figure is counted here, none is typed."""
    outcomes = outcomes_of(rows)
    lines = type(outcomes[0]).lines(outcomes) if outcomes else _store_lines(rows)
    return "\n".join([*lines, "", _circumstances(section, rows)])


def _store_lines(rows: Sequence[Row]) -> list[str]:
    parts = [part for part in TITLES if any(row.part == part for row in rows)]
    heads = (
        *("fault", "faults", "in an open commit", "acknowledged", "lost", "confirmed", "again", "forgotten"),
        *("unexpected", "duplicated", "illegal log lines", "recovered", "redelivered"),
    )
    lines = []
    if parts:
        lines += [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
        lines += [*(_line(part, rows) for part in parts), ""]
    victims: Counter[str] = Counter()
    for row in rows:
        victims.update(row.struck.victims if row.struck is not None else {})
    if victims:
        struck = ", ".join(f"{who} {times}" for who, times in sorted(victims.items()))
        lines.append(f"Struck: {struck}.\n")
    starts = sum(row.struck.start_kills for row in rows if row.struck is not None)
    if starts:
        lines.append(f"Starts killed before they were ready, beside these: {starts}.\n")
    for row in rows:
        if row.walked is not None:
            outcome = "agreed after every one" if row.walked.passed else "**did not agree**"
            lines.append(
                f"{row.walked.walks} random walks of up to {STEPS} steps, restarts and crashes among them: "
                f"{WALKERS[row.part]} and the model {outcome}."
            )
    return lines


def _circumstances(section: str, rows: Sequence[Row]) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    minutes = (
        sum(one.seconds for row in rows for one in (row.struck, row.walked, row.outcome) if one is not None)
        / 60
    )
    below = {
        "folder": [],
        "postgres": sorted({row.struck.server for row in rows if row.struck is not None}),
        "pipeline-postgres": ["PostgreSQL with two brokers"],
    }.get(section, [f"SQLite {apsw.sqlite_lib_version()}"])
    on = ", ".join([*below, f"Python {platform.python_version()}", f"Linux {platform.release()}"])
    return (
        f"Waypost {__version__} (commit {commit or 'unknown'}, sources {code_of(section)}), {on}; "
        f"{minutes:.0f} minutes, ended {max(row.at for row in rows)}."
    )


def write_page(section: str, text: str, page: Path = PAGE) -> None:
    begin, end = f"<!-- prove:{section} -->", f"<!-- /prove:{section} -->"
    before, rest = page.read_text("utf-8").split(begin, 1)
    _, after = rest.split(end, 1)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")
