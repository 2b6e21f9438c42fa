"""mover, reaper: the folder store's daemons, inside `serve` or alone.

    mover    new/ ─▶ queues/ at once     delay/ ─▶ queues/, or dead/, when their time is over
    reaper   remove/ ─▶ unlinked

Both look through their folders when they start, so nothing that came meanwhile is left lying. Alone they run until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from ..commands import Tick
from ..config import load
from .failures import CommandMisused

log = logging.getLogger("waypost")

#: how often their folders are looked at
LOOK_SECONDS = 0.25

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The folder, such as folder:////srv/mq.", show_default=False),
]


def mover(store: StoreUrl = None) -> None:
    """Publish files dropped into new/, and bring back what was fetched and not confirmed in time, or waited for its moment."""
    from ..instants import SECOND
    from ..stores.folder import FolderStore

    folder = FolderStore(_folder(store), mover=True, reaper=False)
    stopping = _until_stopped("mover", folder)
    try:
        due_at: int | None = folder.clock()
        while not stopping.is_set():
            if (due_at is not None and due_at <= folder.clock()) or folder.dropped():
                due_at = folder.apply([Tick()]).due_at
            elif (seen := folder.look()) is not None:
                due_at = seen.due_at
            wait = LOOK_SECONDS if due_at is None else (due_at - folder.clock()) / SECOND
            stopping.wait(max(0.0, min(wait, LOOK_SECONDS)))
    finally:
        folder.close()


def reaper(store: StoreUrl = None) -> None:
    """Unlink what is done, in remove/."""
    from ..stores.folder.tree import Tree

    tree = Tree(_folder(store))
    stopping = _until_stopped("reaper", tree.root)
    try:
        while not stopping.is_set():
            for spot in tree.removed():
                tree.unlink(spot)
            stopping.wait(LOOK_SECONDS)
    finally:
        tree.close()


def _folder(url: str | None) -> Path:
    from ..stores.opening import parse_store_url

    parsed = parse_store_url(load(store=url)["store"].value)
    if parsed.scheme != "folder":
        raise CommandMisused("this is for folder stores: --store folder:////srv/mq")
    return Path(parsed.path)


def _until_stopped(name: str, of: object) -> threading.Event:
    from .serving import set_up_logging

    set_up_logging(load()["log"].value)
    stopping = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stopping.set())
    log.info("%s ready; %s", name, of)
    return stopping
