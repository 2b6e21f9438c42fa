"""pipeline route: Spark decides where messages go, for the objects whose policy says so."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import NO_ROUTER, load
from .asking import Json, Url
from .output import bar, json_document, json_line, note, pairs, plain, show, span
from .pipeline import SHORT, Master

if TYPE_CHECKING:
    from ..spark.routing import Figures, Round

#: the session's name in Spark
NAME = "waypost routing"
#: how often `route` says what it did
SAY_SECONDS = 2.0


def route(
    url: Url = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Decides where messages go; or WAYPOST_ROUTER. Without: their topics and the policies do.",
            show_default=False,
        ),
    ] = None,
    router_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="What it may take for a message (5).", show_default=False),
    ] = None,
    master: Master = None,
    once: Annotated[bool, typer.Option("--once", help="End when nothing waits any more.")] = False,
    trigger: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often the log is looked at.", min=0)
    ] = 0.2,
    json: Json = False,
) -> None:
    """Decide where messages go that wait for Spark, until SIGTERM or Ctrl-C."""
    values = {
        name: value.value
        for name, value in load(url=url, router=router, router_timeout=router_timeout).items()
    }
    place, seconds = str(values["url"]), float(values["router-timeout"])
    function = _checked(values["router"])
    waiting = _waiting(place)
    stopped = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopped.set())
    spark = _session(master, brief=once and waiting <= SHORT)
    from ..spark.routing import once as route_once
    from ..spark.routing import run

    if once:
        with _progress(waiting) as tell:
            figures = route_once(spark, place, function, route_seconds=seconds, stopped=stopped, tell=tell)
    else:
        by = "their topics and the policies" if function is None else function
        note(f"routing by {by}; Ctrl-C ends it")
        with _spoken(json) as tell:
            figures = run(
                spark, place, stopped, function, route_seconds=seconds, trigger_seconds=trigger, tell=tell
            )
    _tell_end(figures, json)


def _checked(named: str) -> str | None:
    """What is wrong with it shows here and not in a hundred tasks."""
    if named == NO_ROUTER:
        return None
    from ..decision import load_router

    sys.path.insert(0, os.getcwd())  # as `waypost serve` has it
    load_router(named)
    return named


def _waiting(url: str) -> int:
    """How many; a broker that is away, or has no routing, is heard of before Spark takes its seconds."""
    from ..spark.launching import pyspark_folder

    pyspark_folder()
    from ..spark.routing.asking import Desk
    from ..spark.routing.running import plainly

    return plainly(lambda: Desk(url).waiting())


def _session(master: str | None, brief: bool) -> Any:
    from ..spark.routing.running import ARROW_BATCHES
    from ..spark.session import UNCOMPILED, session

    note("starting Spark")
    conf: dict[str, Any] = {**ARROW_BATCHES, **(UNCOMPILED if brief else {})}
    # What goes wrong there is raised here too; Spark would say it in a hundred lines before.
    return session(NAME, master, log="off", brief=brief, **conf)


@contextmanager
def _progress(waiting: int) -> Iterator[Callable[[Round, Figures], None]]:
    with bar("messages") as progress:
        task = progress.add_task("routing", total=waiting or None, count="0")

        def tell(one: Round, figures: Figures) -> None:
            done, total = figures.decided, max(waiting, figures.decided)
            progress.update(task, total=total, completed=done, count=f"{done:,} of {total:,}")

        yield tell


@contextmanager
def _spoken(json: bool) -> Iterator[Callable[[Round, Figures], None]]:
    """A line now and then, with what was done since the last one."""
    from ..spark.routing import Figures

    since, said_at = Figures(), time.monotonic()

    def say() -> None:
        if not since.rounds:
            return
        if json:
            json_line(_form(since))
        else:
            show(plain(f"{time.strftime('%H:%M:%S')}  {_line(since)}"))

    def tell(one: Round, figures: Figures) -> None:
        nonlocal since, said_at
        since.add(one)
        if time.monotonic() > said_at + SAY_SECONDS:
            say()
            since, said_at = Figures(), time.monotonic()

    yield tell
    say()


def _line(figures: Figures) -> str:
    more = [
        f"{count:,} {word}"
        for word, count in (
            ("unchanged", figures.unchanged),
            ("failed", figures.failed),
            ("late", figures.late),
        )
        if count
    ]
    took = span(figures.seconds * 1_000)
    return f"{figures.decided:,} decided in {took}, {figures.rate:,.0f} a second" + (
        f"; {', '.join(more)}" if more else ""
    )


def _form(figures: Figures) -> dict[str, Any]:
    return {
        "decided": figures.decided,
        "unchanged": figures.unchanged,
        "failed": figures.failed,
        "late": figures.late,
        "rounds": figures.rounds,
        "seconds": round(figures.seconds, 3),
    }


def _tell_end(figures: Figures, json: bool) -> None:
    if json:
        json_document(_form(figures))
    elif not figures.rounds:
        show(plain("nothing waited"))
    else:
        show(pairs([("in all", _line(figures))]))
