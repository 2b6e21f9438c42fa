"""What the figures say: medians, ratios, targets; then the page, the picture and the raw JSON.

Everything here is a function of a `Run`, so a page can be made again from a stored JSON.
A ratio is the median over the rounds of (Waypost / peer in the same round), because the machine drifts
between rounds more than within one. A measurement with an error is void: it has no figures at all.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loader import Measured
from benchmarks.peers import AGAIN, OURS, PEERS, System
from benchmarks.wires import BATCH

SYSTEMS = {system.name: system for system in (OURS, AGAIN, *PEERS)}
TITLES = {
    "publish": "publish",
    "cycle": "publish → fetch → confirm",
    "batch": f"publish, batches of {BATCH}",
    "batch_cycle": f"publish → fetch → confirm, batches of {BATCH}",
}
#: A client this busy may be what limits the figure.
CLIENT_LIMIT = 0.9
#: Cores used by others, and drift of the disk between rounds, past which a run says nothing.
OTHERS_LIMIT, SYNC_DRIFT = 0.4, 2.0


@dataclass(frozen=True, order=True)
class Cell:
    scenario: str
    clients: int

    @property
    def messages(self) -> int:
        """In one operation."""
        return BATCH if self.scenario.startswith("batch") else 1

    def __str__(self) -> str:
        return f"{self.scenario}@{self.clients}"


#: One per round; a text is the reason why it is void.
Rounds = list[Measured | str]


@dataclass
class Run:
    """All that one run measured."""

    machine: dict[str, str]
    versions: dict[str, str]
    gaps: dict[str, str] = field(default_factory=dict)  #: system → why it was not measured
    cells: dict[tuple[Cell, str], Rounds] = field(default_factory=dict)
    bare_sync: list[float] = field(default_factory=list)  #: p50 of append(256)+fdatasync, seconds, per round
    large: dict[str, Any] = field(default_factory=dict)
    backlog: list[dict[str, Any]] = field(default_factory=list)
    channels: dict[str, Any] = field(default_factory=dict)
    push: dict[str, Any] = field(default_factory=dict)
    minutes: float = 0.0

    def order(self) -> list[Cell]:
        return list(dict.fromkeys(cell for cell, _ in self.cells))

    def good(self, cell: Cell, system: str) -> list[Measured]:
        """The rounds, if not one of them is void."""
        rounds = self.cells.get((cell, system), [])
        kept = [one for one in rounds if isinstance(one, Measured)]
        return kept if len(kept) == len(rounds) else []

    def void(self, cell: Cell, system: str) -> str | None:
        return next((one for one in self.cells.get((cell, system), []) if isinstance(one, str)), None)

    def rate(self, cell: Cell, system: str) -> float | None:
        """Messages a second."""
        good = self.good(cell, system)
        return median(one.rate for one in good) * cell.messages if good else None

    def ratio(self, cell: Cell, system: str) -> float | None:
        """Waypost's rate as a multiple of the other's."""
        ours, theirs = self.good(cell, OURS.name), self.good(cell, system)
        ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=False)]
        return median(ratios) if ratios else None

    def spread(self) -> list[float]:
        """Waypost against Waypost, every cell and round: what no difference looks like."""
        return sorted(
            a.rate / b.rate
            for cell in self.order()
            for a, b in zip(self.good(cell, OURS.name), self.good(cell, AGAIN.name), strict=False)
        )

    def others(self) -> list[float]:
        """Cores that neither the client nor the measured server used."""
        return sorted(
            one.other_cpu / one.seconds
            for rounds in self.cells.values()
            for one in rounds
            if isinstance(one, Measured)
        )

    def disturbed(self) -> list[str]:
        """Why the figures say more about the neighbours than about the systems; empty when they do not."""
        reasons = []
        if (others := self.others()) and median(others) > OTHERS_LIMIT:
            reasons.append(f"other work took {median(others):.2f} cores (median) away")
        if self.bare_sync and max(self.bare_sync) > SYNC_DRIFT * min(self.bare_sync):
            reasons.append(f"the bare sync of the slowest round took more than {SYNC_DRIFT:g} × the fastest")
        return reasons

    def as_json(self) -> dict[str, Any]:
        cells = [
            {
                "scenario": cell.scenario,
                "clients": cell.clients,
                "system": system,
                "rounds": [one if isinstance(one, str) else asdict(one) for one in rounds],
            }
            for (cell, system), rounds in self.cells.items()
        ]
        return vars(self) | {"cells": cells}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        cells: dict[tuple[Cell, str], Rounds] = {
            (Cell(one["scenario"], one["clients"]), one["system"]): [
                kept if isinstance(kept, str) else Measured(**kept) for kept in one["rounds"]
            ]
            for one in data["cells"]
        }
        return cls(**data | {"cells": cells})


# ── targets ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Verdict:
    """One target. `reached` is None where the run cannot say: never a pass."""

    claim: str
    found: str
    reached: bool | None

    @property
    def word(self) -> str:
        return {True: "pass", False: "**fail**", None: "not measured"}[self.reached]


#: (scenario, clients, system, least ratio)
RATIO_TARGETS = [
    ("publish", 256, "rabbitmq", 5.0),
    ("publish", 256, "nats", 5.0),
    ("publish", 256, "beanstalkd", 3.0),
    ("publish", 256, "postgres", 3.0),
    ("publish", 256, "redis", 0.7),
    ("cycle", 256, "rabbitmq", 4.0),
    ("cycle", 256, "rabbitmq-push", 4.0),
    ("cycle", 256, "nats", 4.0),
    ("cycle", 256, "beanstalkd", 4.0),
    ("cycle", 256, "postgres", 4.0),
    ("cycle", 256, "redis", 0.6),
    ("batch", 32, "redis", 0.5),
]
SYNC_TARGET = 2.2  #: p50 of one client, in bare appends with fdatasync
LARGE_P99_TARGET = 0.100  #: seconds, small publishes beside five 16 MiB bodies a second
RSS_TARGET, FETCH_TARGET = 1.2, 1.5  #: times the value with nothing waiting
COLD_START_TARGET = 3.0  #: seconds
CHANNELS_TARGET = 1.2  #: publish among 10,000 channels, as a multiple of that among 10
PUSH_TARGET, HANGING_TARGET = (
    2_000,
    1.5,
)  #: deliveries a second; p99 of the others, as a multiple of that with none


def verdicts(run: Run) -> list[Verdict]:
    found = [_ratio_verdict(run, *target) for target in RATIO_TARGETS]
    found.append(_sync_verdict(run))
    found.append(_large_verdict(run.large))
    found.extend(_backlog_verdicts(run.backlog))
    found.append(_channels_verdict(run.channels))
    found.extend(_push_verdicts(run.push))
    return found


def _ratio_verdict(run: Run, scenario: str, clients: int, system: str, least: float) -> Verdict:
    claim = f"{scenario}, {clients} clients: ≥ {least:g} × {SYSTEMS[system].title}"
    ratio = run.ratio(Cell(scenario, clients), system)
    if ratio is None:
        return Verdict(claim, run.gaps.get(system) or run.void(Cell(scenario, clients), system) or "", None)
    return Verdict(claim, f"{ratio:.2f} ×", ratio >= least)


def _sync_verdict(run: Run) -> Verdict:
    claim = f"publish, one client: p50 ≤ {SYNC_TARGET} × one bare append + fdatasync"
    factor = sync_factor(run, OURS.name)
    if factor is None:
        return Verdict(claim, "", None)
    redis = sync_factor(run, "redis")
    beside = f" (Redis {redis:.2f} ×)" if redis else ""
    return Verdict(claim, f"{factor:.2f} ×{beside}", factor <= SYNC_TARGET)


def sync_factor(run: Run, system: str) -> float | None:
    """p50 of one client's publish as a multiple of the bare sync of the same round."""
    good = run.good(Cell("publish", 1), system)
    pairs = zip(good, run.bare_sync, strict=False)
    return median(one.p50 / bare for one, bare in pairs) if good and run.bare_sync else None


def _large_verdict(large: dict[str, Any]) -> Verdict:
    claim = f"five 16 MiB bodies a second: p99 of 256-byte publishes ≤ {LARGE_P99_TARGET * 1e3:.0f} ms"
    if not large or "void" in large:
        return Verdict(claim, large.get("void", ""), None)
    reached = large["beside"]["p99"] <= LARGE_P99_TARGET and large["large"]["rate"] >= 4.5
    found = f"{large['beside']['p99'] * 1e3:.1f} ms at {large['large']['rate']:.1f} bodies a second"
    return Verdict(claim, found, reached)


def _backlog_verdicts(backlog: list[dict[str, Any]]) -> list[Verdict]:
    base = next((one for one in backlog if one["waiting"] == 0), None)
    found: list[Verdict] = []
    for waiting in (1_000_000, 10_000_000):
        name = f"{waiting // 1_000_000} M waiting"
        at = next((one for one in backlog if one["waiting"] == waiting), None)
        claims = (
            f"{name}: RSS ≤ {RSS_TARGET} × that with none",
            f"{name}: fetch p99 ≤ {FETCH_TARGET} × that with none",
            f"{name}: cold start < {COLD_START_TARGET:g} s",
        )
        if at is None or base is None:
            found.extend(Verdict(claim, "", None) for claim in claims)
            continue
        rss = max(at["rss"], at["rss_filled"]) / base["rss"]
        fetch = at["fetch_p99"] / base["fetch_p99"]
        start = at["cold_start"]
        found.append(Verdict(claims[0], f"{rss:.2f} ×", rss <= RSS_TARGET))
        found.append(Verdict(claims[1], f"{fetch:.2f} ×", fetch <= FETCH_TARGET))
        found.append(Verdict(claims[2], f"{start:.2f} s", start < COLD_START_TARGET))
    return found


def _channels_verdict(channels: dict[str, Any]) -> Verdict:
    claim = f"10,000 channels that do not match: a publish takes ≤ {CHANNELS_TARGET} × as long as among 10"
    if not channels or "void" in channels:
        return Verdict(claim, channels.get("void", ""), None)
    slower, same = channels["slower"]["many"], channels["slower"]["few again"]
    return Verdict(
        claim, f"{slower:.2f} × (10 against 10: {same:.2f} ×)", slower <= CHANNELS_TARGET * max(1.0, same)
    )


def _push_verdicts(push: dict[str, Any]) -> list[Verdict]:
    claims = (
        f"webhooks: ≥ {PUSH_TARGET:,} deliveries a second",
        f"one endpoint of 100 hangs: p99 of the others ≤ {HANGING_TARGET} ×",
    )
    if not push or "void" in push:
        return [Verdict(claim, push.get("void", ""), None) for claim in claims]
    least, middle, most = push["same"]
    # A machine that differs so much from itself cannot say.
    fair = 1 / HANGING_TARGET <= middle <= HANGING_TARGET
    beside = f"{push['ratio']:.2f} × (100 against 100: {least:.2f} – {most:.2f})"
    return [
        Verdict(claims[0], f"{push['rate']:,.0f}", push["rate"] >= PUSH_TARGET),
        Verdict(claims[1], beside, push["ratio"] <= HANGING_TARGET if fair else None),
    ]


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────


def page(run: Run) -> str:
    parts = [_facts(run), _targets_table(run)]
    for scenario in TITLES:
        if cells := [cell for cell in run.order() if cell.scenario == scenario]:
            parts.append(_scenario_table(run, scenario, cells))
    if run.large:
        parts.append(_large_table(run.large))
    if run.backlog:
        parts.append(_backlog_table(run.backlog))
    if run.channels:
        parts.append(_channels_table(run.channels))
    if run.push:
        parts.append(_push_table(run.push))
    return "\n\n".join(parts)


def _facts(run: Run) -> str:
    lines = [f"* {name}: {value}" for name, value in run.machine.items()]
    lines.append("* versions: " + ", ".join(f"{name} {number}" for name, number in run.versions.items()))
    if run.bare_sync:
        each = ", ".join(f"{p50 * 1e3:.2f}" for p50 in run.bare_sync)
        lines.append(f"* bare append(256) + fdatasync, p50 per round: {each} ms")
    if spread := run.spread():
        lines.append(
            f"* A/A (Waypost against Waypost, {len(spread)} pairs): median {median(spread):.2f}, from "
            f"{spread[0]:.2f} to {spread[-1]:.2f}. Differences within that are noise."
        )
    if others := run.others():
        lines.append(
            f"* other work on the machine while measuring: median {median(others):.2f}, at most "
            f"{others[-1]:.2f} cores"
        )
    lines.extend(f"* **disturbed**: {reason}" for reason in run.disturbed())
    for name, reason in run.gaps.items():
        lines.append(f"* **gap**: {SYSTEMS[name].title} was not measured: {reason}")
    lines.append(f"* the run took {run.minutes:.1f} minutes")
    return "\n".join(lines)


def _targets_table(run: Run) -> str:
    rows = [f"| {one.claim} | {one.found} | {one.word} |" for one in verdicts(run)]
    doubt = " (a disturbed run: these do not count)" if run.disturbed() else ""
    return "\n".join([f"### Targets{doubt}", "", "| target | found | |", "|---|---|---|", *rows])


def _scenario_table(run: Run, scenario: str, cells: list[Cell]) -> str:
    unit = "messages" if scenario.startswith("batch") else "operations"
    lines = [
        f"### {TITLES[scenario][0].upper()}{TITLES[scenario][1:]}",
        "",
        f"| clients | system | {unit}/s | p50 ms | p99 ms | server µs | client busy | Waypost is |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in cells:
        for system in SYSTEMS.values():
            gap = system.name in run.gaps and scenario in system.scenarios
            if gap or (cell, system.name) in run.cells:
                lines.append(_row(run, cell, system))
    return "\n".join(lines)


def _row(run: Run, cell: Cell, system: System) -> str:
    start = f"| {cell.clients} | {system.title} | "
    good = run.good(cell, system.name)
    if not good:
        void = run.void(cell, system.name)
        return start + (f"void: {void[:80].replace('|', '/')}" if void else "gap") + " | | | | | |"
    busy = median(one.client_cpu / one.seconds for one in good)
    ratio = run.ratio(cell, system.name)
    figures = [
        f"{run.rate(cell, system.name):,.0f}",
        f"{median(one.p50 for one in good) * 1e3:.2f}",
        f"{median(one.p99 for one in good) * 1e3:.2f}",
        f"{median(one.server_cpu / one.operations for one in good) / cell.messages * 1e6:.1f}",
        f"{busy:.0%}{' (limit)' if busy >= CLIENT_LIMIT else ''}",
        f"{ratio:.2f} ×" if ratio is not None and system is not OURS else "",
    ]
    return start + " | ".join(figures) + " |"


def _large_table(large: dict[str, Any]) -> str:
    lines = ["### Large messages beside small ones", ""]
    if "void" in large:
        return "\n".join([*lines, f"void: {large['void']}"])
    lines.append("| 256-byte publishes, paced | a second | p50 ms | p99 ms | longest ms |")
    lines.append("|---|---:|---:|---:|---:|")
    for name, title in (
        ("alone", "alone"),
        ("beside", f"beside {large['large']['rate']:.1f} bodies of 16 MiB a second"),
    ):
        one = large[name]
        lines.append(
            f"| {title} | {one['rate']:.0f} | {one['p50'] * 1e3:.2f} | {one['p99'] * 1e3:.2f} "
            f"| {one['longest'] * 1e3:.1f} |"
        )
    return "\n".join(lines)


def _backlog_table(backlog: list[dict[str, Any]]) -> str:
    lines = [
        "### Backlog",
        "",
        "| waiting | RSS after a cold start and the same load | RSS of the process that took them in | "
        "fetch p50 ms | fetch p99 ms | cold start | filled at |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in backlog:
        filled = f"{one['fill_rate']:,.0f}/s" if one["fill_rate"] else ""
        lines.append(
            f"| {one['waiting']:,} | {one['rss'] / 1e6:.1f} MB | {one['rss_filled'] / 1e6:.1f} MB "
            f"| {one['fetch_p50'] * 1e3:.2f} | {one['fetch_p99'] * 1e3:.2f} "
            f"| {one['cold_start']:.2f} s | {filled} |"
        )
    return "\n".join(lines)


def _channels_table(channels: dict[str, Any]) -> str:
    lines = ["### Channels that do not match", ""]
    if "void" in channels:
        return "\n".join([*lines, f"void: {channels['void']}"])
    lines += ["| channels | publishes a second | server µs each | takes longer by |", "|---:|---:|---:|---:|"]
    for name, title in (("few", "10"), ("few again", "10, again"), ("many", "10,000")):
        rate, cpu, slower = (channels[column][name] for column in ("rates", "cpuMicroseconds", "slower"))
        lines.append(f"| {title} | {rate:,} | {cpu} | {slower:.2f} × |")
    return "\n".join(lines)


def _push_table(push: dict[str, Any]) -> str:
    lines = ["### Webhooks", ""]
    if "void" in push:
        return "\n".join([*lines, f"void: {push['void']}"])
    rates = ", ".join(f"{rate:,.0f}" for rate in push["rates"])
    lines.append(
        f"Deliveries a second to a local receiver, each confirmed on disk: {push['rate']:,.0f} (rounds: {rates})."
    )
    lines += ["", "| 100 endpoints, 4 messages a second each | p99 ms, round by round |", "|---|---|"]
    for name, title in (
        ("answering", "all answer"),
        ("again", "all answer, again"),
        ("hanging", "one hangs: the other 99"),
    ):
        lines.append(f"| {title} | {', '.join(f'{p99 * 1e3:.1f}' for p99 in push['p99'][name])} |")
    return "\n".join(lines)


def write_between(path: Path, name: str, text: str) -> None:
    """Puts the text between `<!-- name -->` and `<!-- /name -->`; the rest of the page is people's."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text() if path.exists() else f"# Benchmarks\n\n{opening}\n{closing}\n"
    if opening not in old or closing not in old:
        raise SystemExit(f"{path} has no {opening} … {closing}")
    block = f"{opening}\n{text}\n{closing}"
    path.write_text(re.sub(f"{re.escape(opening)}.*?{re.escape(closing)}", lambda _: block, old, flags=re.S))
