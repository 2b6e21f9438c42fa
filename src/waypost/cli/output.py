"""How things look: tables, states, times and sizes for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

#: what a state's letter stands for, and its colour
STATES = {
    "L": ("logged", "white"),
    "U": ("unchanged", "bright_black"),
    "Q": ("queued", "cyan"),
    "F": ("fetched", "blue"),
    "S": ("success", "green"),
    "K": ("kicked", "green"),
    "R": ("retry", "yellow"),
    "E": ("dead", "red"),
    "I": ("invalid", "magenta"),
    "N": ("not interested", "yellow"),
    "O": ("obsolete", "bright_black"),
    "T": ("timed out", "bright_black"),
    "C": ("cancelled", "bright_black"),
    "X": ("completed", "bold green"),
}
#: what does not go to a terminal is not folded
WIDE = 220


@cache
def console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else WIDE)


def show(*things: Any) -> None:
    console().print(*things)


def show_line(line: Text) -> None:
    """One line: cut at a terminal's edge, whole for pipes."""
    if console().is_terminal:
        console().print(line, no_wrap=True, overflow="ellipsis")
    else:
        console().print(line, soft_wrap=True)


def table(*columns: str, right: Iterable[str] = (), title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        pad_edge=False,
    )
    rights = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in rights else "left", overflow="fold")
    return made


def pairs(rows: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, those that are None left out."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bright_black")
    made.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            made.add_row(name, value if not isinstance(value, str) else plain(value))
    return made


def plain(text: object, style: str = "") -> Text:
    """Text of others: never read as markup, and no sign in it moves the cursor."""
    from rich.text import Text

    return Text(
        "".join(
            sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in str(text)
        ),
        style,
    )


def state(letter: str | None) -> Text:
    word, style = STATES.get(letter or "", ("", ""))
    return plain(f"{letter} {word}".strip() if letter else "", style)


def moment(text: str | None) -> str:
    """An RFC 3339 instant in the person's zone; the day only when it is not today."""
    if text is None:
        return ""
    at = datetime.fromisoformat(text).astimezone()
    form = "%H:%M:%S.%f" if at.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S.%f"
    return at.strftime(form)[:-3]


def span(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def size(octets: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if octets < 1_024 or unit == "GiB":
            break
        octets /= 1_024
    return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"


def bar(unit: str) -> Progress:
    """How far something has come: at a terminal, beside the result, and gone when it is through."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn(f"{{task.fields[count]}} {unit}"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def json_document(document: Any) -> None:
    """One document: over several lines for eyes, in one for pipes."""
    encoded = msgspec.json.encode(document)
    _write(msgspec.json.format(encoded, indent=2) if sys.stdout.isatty() else encoded)


def json_line(document: Any) -> None:
    """One of many."""
    _write(msgspec.json.encode(document))


def _write(encoded: bytes) -> None:
    sys.stdout.buffer.write(encoded + b"\n")
    sys.stdout.buffer.flush()


def note(line: str) -> None:
    """For the person, beside the result: on stderr, and only at a terminal."""
    if sys.stderr.isatty():
        console(stderr=True).print(plain(line, "bright_black"))
