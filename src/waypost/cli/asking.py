"""What commands that speak to a broker share: options, the client, and times as the person means them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..config import load
from ..errors import RequestInvalid
from .failures import CommandFailed, CommandMisused

if TYPE_CHECKING:
    from ..client import Client

T = TypeVar("T")

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The broker; or WAYPOST_URL.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Consumer = Annotated[
    str | None,
    typer.Option("--consumer", metavar="NAME", help="Who fetches and confirms.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what would be done.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change the policy: retries=5, lease=5m, paused=true; repeatable.",
        show_default=False,
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics", metavar="TOPIC", help="fruit.apple, fruit.*, *; repeatable.", show_default=False
    ),
]
At = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="As it was then: 10:00, 2026-01-31 10:00.", show_default=False),
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete it; what waits in it is cancelled.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_TERM = re.compile(r'(\s*)([A-Za-z]+)=("[^"]*"|\S+)')
_TIME = re.compile(r"\d\d:\d\d(:\d\d)?")


@asynccontextmanager
async def broker(url: str | None, *, patience: float = 0.0, **more: Any) -> AsyncIterator[Client]:
    """A client of the broker that was meant. A person at a terminal hears at once that it is not there."""
    from ..client import Client, Unreachable

    try:
        opened = Client(load(url=url)["url"].value, patience=patience, **more)
    except RequestInvalid as error:
        raise CommandMisused(f"{error.detail}; {error.hint}") from error
    try:
        async with opened as client:
            yield client
    except Unreachable as error:
        raise CommandFailed(
            f"no broker answers at {error.url} ({error.detail}); start one with: waypost serve"
        ) from error


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def ask(yes: bool, question: str, otherwise: str = "") -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandMisused(f"nobody is there to be asked: say --yes{otherwise}")
    typer.confirm(question, abort=True, err=True)


def split(given: list[str] | None) -> list[str]:
    """An option that is repeated, or has commas in it, or both."""
    return [one for said in given or () for part in said.split(",") if (one := part.strip())]


def as_meant(filter: str, today: date | None = None) -> str:
    """A filter whose bare times and dates, which are this person's, say so: over HTTP they would be UTC."""

    def meant(term: re.Match[str]) -> str:
        blank, name, value = term.groups()
        if name in ("since", "until"):
            value = _utc(value.strip('"'), today or date.today())
        return f"{blank}{name}={value}"

    return _TERM.sub(meant, filter)


def as_instant(moment: str) -> str:
    """A moment as the person means it."""
    return _utc(moment.strip(), date.today())


def is_offset(text: str) -> bool:
    """Digits are an offset of the log, unless there are as many as in 20260131100000."""
    return text.isascii() and text.isdigit() and len(text) < 12


def _utc(value: str, today: date) -> str:
    """What is no local time stays as it is, right or wrong: the broker judges it."""
    text = f"{today.isoformat()}T{value}" if _TIME.fullmatch(value) else value
    if text.isdigit():
        return value
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return value
    # A moment without a zone is taken as local, with the summer time of its own day.
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
