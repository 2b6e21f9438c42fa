"""pipeline run, once, status, rebuild: Spark keeps the lake's tables up to date with the log."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import load
from .asking import Json, Url, Yes, ask
from .failures import CommandMisused
from .output import bar, json_document, json_line, note, pairs, plain, show, size, span, table

if TYPE_CHECKING:
    from ..lake.owner import Lake
    from ..spark.pipeline import Batch, Figures

Folder = Annotated[
    Path | None,
    typer.Option(
        "--lake", metavar="DIR", help="The lake, where the broker's path is another.", show_default=False
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="A Spark cluster; else on this machine.", show_default=False
    ),
]
#: events that Spark folds quicker than it compiles what it folds them with
SHORT = 20_000
#: the session's name in Spark
NAME = "waypost pipeline"


def once(url: Url = None, lake: Folder = None, master: Master = None, json: Json = False) -> None:
    """Bring all tables up to what the log has now, and end."""
    place = _place(url)
    if _is_short(place):
        spark, found = _side_by_side(place, lake, master)
    else:
        from ..spark.pipeline import standing
        from ..spark.pipeline.keeping import SLICE

        found = _lake(place, lake)
        behind = max(one["lag"] for one in standing(place, found)["tables"])
        spark = _session(master, brief=behind <= SLICE)
    from ..spark.pipeline import once as fold_once

    with _progress(place) as tell:
        figures = fold_once(spark, place, found, tell=tell, say=note)
    _tell_end(figures, json)


def run(
    url: Url = None,
    lake: Folder = None,
    master: Master = None,
    trigger: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often new events are looked for.", min=0)
    ] = 30.0,
    json: Json = False,
) -> None:
    """Keep all tables up to date until SIGTERM or Ctrl-C."""
    from ..spark.pipeline import run as keep_running

    place = _place(url)
    found = _lake(place, lake)
    spark = _session(master)
    stopped = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopped.set())
    note(f"keeping the tables in {found.folder} up to date every {trigger:g} s; Ctrl-C ends it")

    def tell(batch: Batch, figures: Figures) -> None:
        if json:
            json_line(
                {"from": batch.lo, "until": batch.hi, "seconds": round(batch.seconds, 3), "rows": batch.rows}
            )
        else:
            show(plain(f"{time.strftime('%H:%M:%S')}  {batch_line(batch)}"))

    figures = keep_running(spark, place, found, stopped, trigger_seconds=trigger, tell=tell, say=note)
    _tell_end(figures, json)


def rebuild(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Which; else all.", show_default=False)
    ] = None,
    url: Url = None,
    lake: Folder = None,
    master: Master = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Fold tables anew from the whole log; readers see the old rows until the new ones are there."""
    from ..spark.pipeline import rebuild as fold_anew
    from ..spark.tables import KEPT

    if unknown := [name for name in names or [] if name not in KEPT]:
        raise CommandMisused(f"no table {unknown[0]!r} is kept; there are {', '.join(KEPT)}")
    place = _place(url)
    found = _lake(place, lake)
    _check_beginning(place, yes)
    spark = _session(master)
    with _progress(place) as tell:
        figures = fold_anew(spark, place, found, names or None, tell=tell, say=note)
    _tell_end(figures, json)


def status(url: Url = None, lake: Folder = None, json: Json = False) -> None:
    """How far each table is; starts no Spark."""
    from ..spark.pipeline import standing
    from ..spark.pipeline.log import lake_of

    place = _place(url)
    document = standing(place, lake_of(place, lake))
    if json:
        json_document(document)
        return
    process = document["running"]
    show(
        pairs(
            [
                ("lake", document["lake"]),
                ("log", f"offsets {document['oldest']:,} to {document['head']:,}"),
                ("pipeline", "not running" if process is None else f"running, process {process}"),
            ]
        )
    )
    made = table("table", "up to", "behind", "size", right=("up to", "behind", "size"))
    for one in document["tables"]:
        made.add_row(
            one["name"],
            "not yet" if one["offset"] is None else f"{one['offset']:,}",
            f"{one['lag']:,}",
            size(one["bytes"]),
        )
    show(made)


def batch_line(batch: Batch) -> str:
    rows = ", ".join(f"{name} {count:,}" for name, count in batch.rows.items() if count)
    rate = batch.events / batch.seconds if batch.seconds else 0.0
    return f"events {batch.lo:,} to {batch.hi:,} in {span(batch.seconds * 1_000)}, {rate:,.0f} a second" + (
        f"; rows: {rows}" if rows else ""
    )


def _place(url: str | None) -> str:
    return str(load(url=url)["url"].value)


def _lake(url: str, folder: Path | None) -> Lake:
    """The broker's; nobody else writes its tables at this moment."""
    from ..lake.owner import PIPELINE, writing
    from ..spark.pipeline.log import lake_of

    lake = lake_of(url, folder)
    with writing(lake, PIPELINE):
        pass  # another one that does is named before Spark takes its seconds
    return lake


def _is_short(url: str) -> bool:
    """Whether the broker's log is so short that starting is all that takes time."""
    from pyspark_waypost.broker import Broker
    from pyspark_waypost.errors import SourceError

    try:
        return bool(Broker(url).lake(0)["head"] <= SHORT)
    except (SourceError, KeyError):
        return False  # what is wrong with it is said where the lake is looked for


def _side_by_side(url: str, folder: Path | None, master: str | None) -> tuple[Any, Lake]:
    """Spark starts while the lake is looked at, which a young broker has to make first."""
    from concurrent.futures import ThreadPoolExecutor

    # All of it here: two threads that import parts of one package, each from its own end, can break each other's.
    from ..spark import pipeline  # noqa: F401

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(_lake, url, folder)
        return _session(master, brief=True, small=True), looking.result()


def _check_beginning(url: str, yes: bool) -> None:
    """What the log has let go of cannot be folded again."""
    from pyspark_waypost.broker import Broker

    oldest = Broker(url).bounds().oldest
    if oldest > 1:
        ask(
            yes,
            f"The log begins at offset {oldest:,}; messages logged before will be lost to the tables. Go on?",
        )


def _session(master: str | None, brief: bool = False, small: bool = False) -> Any:
    from ..spark.session import UNCOMPILED, session

    note("starting Spark")
    # What goes wrong there is raised here too; Spark would say it in a hundred lines before.
    return session(NAME, master, log="off", brief=brief, **(UNCOMPILED if small else {}))


@contextmanager
def _progress(url: str) -> Iterator[Callable[[Batch, Figures], None]]:
    """A bar over the events that there were when it began."""
    from pyspark_waypost.broker import Broker

    head = Broker(url).bounds().head
    with bar("events") as progress:
        task = progress.add_task("folding", total=None, count="0")

        def tell(batch: Batch, figures: Figures) -> None:
            done = figures.upto
            progress.update(task, total=head, completed=done, count=f"{done:,} of {head:,}")

        yield tell


def _tell_end(figures: Figures, json: bool) -> None:
    if json:
        json_document(
            {
                "events": figures.events,
                "upto": figures.upto,
                "seconds": round(figures.seconds, 3),
                "rows": figures.rows,
            }
        )
        return
    if not figures.events:
        show(plain("nothing new: the tables have all that the log has"))
        return
    rate = f"{figures.rate:,.0f} a second"
    show(
        plain(
            f"{figures.events:,} events up to offset {figures.upto:,} in {span(figures.seconds * 1_000)}, {rate}"
        )
    )
    show(pairs((name, f"{rows:,} rows") for name, rows in figures.rows.items()))
