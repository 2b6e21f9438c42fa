"""Replay from the lake beside plain publishes of the same bodies: messages a second, each into a broker of its own, in turns.

    python -m benchmarks.replay [--messages 50000] [--rounds 5] [--no-page]

by 100, by 1,000   `publish_many` of the client, one request after the other, bodies held in memory
replay             `waypost replay --from-lake … --go`, from its first look into the lake to its last answer: selected, read, sent, position stored
dry run            the same without sending: what of it the lake costs

All speak with a broker in a process of its own, on the disk of /var/tmp, over one connection. Ratios are those of a round's neighbours, and their median.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.folder import version_of_code
from benchmarks.report import write_between
from benchmarks.run import PAGE
from waypost import BlockingClient

WAYPOST = [sys.executable, "-m", "waypost"]
BY_100, BY_1000, REPLAY, DRY_RUN = "publish_many by 100", "publish_many by 1,000", "replay", "replay, dry run"
BODY = {"name": "Ann", "street": "Long Street 17", "note": "x" * 180}


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Its URL."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [*WAYPOST, "serve", "--port", "0", *options], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        ready = process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", ready)
        if found is None:
            raise SystemExit(f"no broker: {ready}")
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def lines(count: int) -> list[dict[str, Any]]:
    return [
        {
            "topics": ["customer.changed"],
            "object": "customer",
            "key": str(n % 1_000),
            "body": json.dumps({"n": n, **BODY}),
        }
        for n in range(count)
    ]


def published(url: str, messages: list[dict[str, Any]], batch: int) -> float:
    """Messages a second."""
    with BlockingClient(url) as client:
        began = time.monotonic()
        for start in range(0, len(messages), batch):
            client.publish_many(messages[start : start + batch])
        return len(messages) / (time.monotonic() - began)


def replayed(url: str, lake: Path, count: int, *more: str) -> float:
    command = [*WAYPOST, "replay", "object=customer", "--from-lake", str(lake), "--to", url, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    document = json.loads(done.stdout)
    assert document["messages"] == count, document
    return float(count / document["seconds"])


def filled(folder: Path, messages: list[dict[str, Any]]) -> Path:
    """A lake that has them, each fetched and confirmed: five events a message."""
    with serving(folder) as url, BlockingClient(url) as client:
        for start in range(0, len(messages), 1_000):
            client.publish_many(messages[start : start + 1_000])
            got = client.fetch("customer", 1_000)
            client.confirm("customer", [message.receipt for message in got])
        client.seal_lake()
    return folder / "waypost-data" / "lake"


def measure(place: Path, count: int, rounds: int) -> dict[str, list[float]]:
    messages = lines(count)
    lake = filled(place / "source", messages)
    rates: dict[str, list[float]] = {name: [] for name in (BY_100, BY_1000, REPLAY, DRY_RUN)}
    for turn in range(rounds):
        folder = place / str(turn)
        with serving(folder / "100", "--lake", "off") as url:
            rates[BY_100].append(published(url, messages, 100))
        with serving(folder / "replay", "--lake", "off") as url:
            rates[DRY_RUN].append(replayed(url, lake, count))
            rates[REPLAY].append(replayed(url, lake, count, "--go"))
        with serving(folder / "1000", "--lake", "off") as url:
            rates[BY_1000].append(published(url, messages, 1_000))
        said = ", ".join(f"{name} {all[-1]:,.0f}/s" for name, all in rates.items())
        print(f"round {turn + 1}: {said}", flush=True)
    return rates


def table(rates: dict[str, list[float]], count: int) -> str:
    text = [
        f"{count:,} messages of 250 bytes, {len(rates[REPLAY])} rounds; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {version_of_code()}.",
        "",
        "| | median messages a second | from | to | replay is |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, all in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates[REPLAY], all, strict=True)]
        beside = "" if name in (REPLAY, DRY_RUN) else f"{median(ratios):.2f} ×"
        text.append(f"| {name} | {median(all):,.0f} | {min(all):,.0f} | {max(all):,.0f} | {beside} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay from the lake beside plain publishes.")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md as it is")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir="/var/tmp") as place:
        text = table(measure(Path(place), asked.messages, asked.rounds), asked.messages)
    print(text)
    if not asked.no_page:
        write_between(PAGE, "replay", text)


if __name__ == "__main__":
    main()
