"""What the lake's run found, as a page: targets first, then the figures. A function of the raw figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report import write_between

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def write_page(found: dict[str, Any], path: Path = PAGE) -> None:
    write_between(path, "lake", page(found))


def page(found: dict[str, Any]) -> str:
    return "\n".join([_facts(found["run"]), "", _targets(found), "", _figures(found)])


def _facts(run: dict[str, Any]) -> str:
    return (
        f"{run['events']:,} events, {run['rounds']} rounds, {run['minutes']} minutes, {run['cores']} cores, "
        f"Python {run['python']}; load of the last quarter of an hour at the end {run['load before']}."
    )


def _row(what: str, wanted: str, got: str, held: bool) -> str:
    return f"| {what} | {wanted} | {got} | {'yes' if held else '**no**'} |"


def _targets(found: dict[str, Any]) -> str:
    source, seal, read, fold = found["source"], found["seal"], found["read"], found["fold"]
    growth, start = found["growth"], found["start"]
    rows = [
        _row(
            f"`events()` with a tail of {read['tail']:,}, as a multiple of native Parquet (A/A {read['same']})",
            "≤ 1.3 ×", f"{read['ratio']} ×", read["ratio"] <= 1.3,
        ),
        _row("HTTP source, rate as a multiple of SQLite's own aggregate", "≥ 1 ×", f"{source['rate']} ×", source["rate"] >= 1),
        _row("`messages`, time as a multiple of DuckDB's", "≤ 3 ×", f"{fold['packed / DuckDB']} ×", fold["packed / DuckDB"] <= 3),
        _row(
            "what is folded of `messages`, how much faster than with `max_by`", "≥ 3 ×", f"{fold['max_by / packed']} ×",
            fold["max_by / packed"] >= 3,
        ),
        _row(
            "continuous `messages` and `deliveries`, 500,000 events a batch", "≥ 400,000 events/s",
            f"{growth['events/s']:,}", growth["events/s"] >= 400_000,
        ),
        _row(
            f"time of a batch at {growth['to'] // 1_000_000} M events, as a multiple of that at 1 M", "≤ 1.3 ×",
            f"{growth['grown']} ×", growth["grown"] <= 1.3,
        ),
        _row("sealing", "≥ 400,000 events/s", f"{seal['events/s']:,}", seal["events/s"] >= 400_000),
        _row(
            f"publish p99 while sealing, as a multiple of that while the sealer is stopped (A/A: {seal['stopped / stopped']} ×)",
            "≤ 1.5 × and the spread", f"{seal['sealing / stopped']} ×",
            seal["sealing / stopped"] <= 1.5 * seal["stopped / stopped"],
        ),
        _row("`waypost pipeline once` after `waypost spark warm`", "< 10 s", f"{start['warm, s']} s", start["warm, s"] < 10),
    ]  # fmt: skip
    return "\n".join(["| | wanted | found | held |", "|---|---:|---:|---|", *rows])


def _figures(found: dict[str, Any]) -> str:
    source, seal, read, fold = found["source"], found["seal"], found["read"], found["fold"]
    growth, latency, start = found["growth"], found["latency"], found["start"]
    tables = ", ".join(f"`{name}` {seconds}" for name, seconds in fold["tables"].items())
    rates = ", ".join(f"{name} {rate:,}" for name, rate in source["rates"].items())
    lines = [
        f"* Count by destination and state, events/s: {rates}.",
        f"* The same in Spark, seconds: {_listed(read['seconds'])}.",
        f"* `messages` from {fold['events']:,} events, seconds: {_listed(fold['seconds'])}. *Packed* and *max_by* are what is folded (state, tries, "
        f"consumer, reason, times); whole, with what L says joined to it, it is {fold['whole, max_by / packed']} × faster than with `max_by`. "
        f"Whoever groups by `sequence`, as we do, instead of `message_id` spares `max_by` most of its sorting: then packed is {fold['max_by, by our key / packed']} × faster.",
        f"* Each table from all events, warm, seconds: {tables}.",
        f"* Continuous, seconds a batch of 500,000, at so many events before it: {_listed(growth['seconds'])}.",
        f"* Sealing with 8 publishers at work: {seal['under load, events/s']:,} events/s; their p99, ms: {_listed(seal['p99 ms'])}.",
        f"* From a publish's answer to a row in the lake, asked to seal: {latency['to lake, ms']} ms; to a batch of a stream "
        f"{latency['to stream, ms']} ms, at worst {latency['to stream, worst ms']} ms (trigger 0 s).",
        f"* `waypost pipeline once` on a log of 100 events: {start['warm, s']} s warm, {start['without, s']} s without; "
        f"`waypost spark warm` takes {start['warming, s']} s.",
    ]
    return "\n".join(lines)


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())
