"""serve: the broker as a process.

settings ─▶ store ─▶ service ─▶ one ready line ─▶ … ─▶ SIGTERM or SIGINT: drain, at most 10 s ─▶ exit 0
                                                  '─▶ a second one: exit at once
                                                  '─▶ a commit failed: one line, and exit at once, because
                                                      nothing may be answered any more
"""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..config import LAKE_BESIDE, LAKE_FOREVER, LAKE_OFF, NO_ROUTER, SETTINGS, load, shown
from ..store import Feature
from ..version import __version__
from .failures import CommandFailed, CommandMisused

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..broker import Broker
    from ..errors import StoreBroken
    from ..http.wire import Request
    from ..lake.keeper import Keeper
    from ..router import RouteFunction
    from ..store import Store

log = logging.getLogger("waypost")
access = logging.getLogger("waypost.access")

DRAIN_SECONDS = 10.0
#: `timeout` and others signal the process and its group: that is one wish, not two
SAME_SIGNAL_SECONDS = 0.5


def serve(arguments: Sequence[str]) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    values = {name: value.value for name, value in load(**vars(_parser().parse_args(arguments))).items()}
    set_up_logging(values["log"])
    from ..http.server import run
    from ..stores.opening import open_store

    route = _router(values["router"])
    store = open_store(
        values["store"],
        infer_types=values["infer-types"],
        peers=values["peers"],
        mover=values["mover"],
        reaper=values["reaper"],
    )
    if route is not None and Feature.OBJECTS in store.lacks:
        store.close()
        raise CommandFailed("this store has no routing function: leave --router out, or serve another store")
    run(_serve(store, route, values))


def _router(named: str) -> RouteFunction | None:
    if named == NO_ROUTER:
        return None
    from ..router import load_router

    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    return load_router(named)


def keeping(store: Store, wanted: str, keep: str) -> tuple[Callable[[Broker], Keeper] | None, str]:
    """What keeps the lake, and the line that says where it is or why there is none. Raises LakeUnusable."""
    from functools import partial
    from pathlib import Path

    from ..instants import parse_span
    from ..lake.keeper import EXTRA, Keeper, missing_packages
    from ..lake.owner import Lake, check_owner
    from ..stores.exporting import is_server

    source = store.export_source()
    if source is None:
        return None, "lake: off, because this store does not last"
    if missing_packages():
        return None, f"lake: off, because it needs: {EXTRA}"
    if wanted == LAKE_OFF:
        return partial(Keeper, folder=None), "lake: off, as told"
    if wanted == LAKE_BESIDE and is_server(source):
        return partial(
            Keeper, folder=None
        ), "lake: off; a folder that all brokers share turns it on: --lake DIR"
    folder = Path(source).parent / "lake" if wanted == LAKE_BESIDE else Path(wanted).expanduser()
    folder = Path(os.path.abspath(folder))
    store.use_lake(True)
    check_owner(Lake(folder), store.id(), store.sealed())
    keep_us = None if keep == LAKE_FOREVER else parse_span(keep)
    return partial(Keeper, folder=folder, keep_us=keep_us), f"lake: {folder}, kept {_for_how_long(keep)}"


def _for_how_long(keep: str) -> str:
    return "for ever" if keep == LAKE_FOREVER else f"for {keep}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandMisused(f"{message}; see: waypost serve --help")


def _parser() -> argparse.ArgumentParser:
    """An option for each setting of a broker. Not by typer: that brings pydantic, and takes as long as all
    the rest of the start."""
    parser = _Parser(
        "waypost serve",
        description="Run a broker until SIGTERM or Ctrl-C.",
        epilog="Or in the environment (WAYPOST_PORT=9000), or in waypost.toml (port = 9000).",
        allow_abbrev=False,
    )
    for setting in SETTINGS.values():
        if setting.name == "url":  # that of the other commands
            continue
        text = f"{setting.text} ({shown(setting.default)})"
        if isinstance(setting.default, bool):
            parser.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=text)
        elif isinstance(setting.default, tuple):
            parser.add_argument(
                setting.flag,
                action="append",
                metavar="CIDR" if setting.name == "push-allow" else "HOST",
                help=f"{setting.text}; repeatable",
            )
        else:
            parser.add_argument(setting.flag, metavar=setting.name.upper(), help=text)
    return parser


async def _serve(store: Store, route: RouteFunction | None, values: dict[str, Any]) -> None:
    import asyncio
    import signal

    from ..http.service import run
    from ..http.site import is_loopback
    from ..push import Pusher
    from ..push.addresses import parse_allowed
    from ..stores.opening import described

    host, port = values["host"], values["port"]
    allowed = parse_allowed(values["push-allow"])
    lake, where = keeping(store, values["lake"], values["lake-keep"])
    try:
        service = await run(
            store,
            host=host,
            port=port,
            names=values["name"],
            access=log_request if values["access-log"] else None,
            push=lambda broker: Pusher(broker, allowed),
            lake=lake,
            route=route,
            route_seconds=values["router-timeout"],
            warn_seconds=values["router-warning"],
            on_broken=broken,
        )
    except OSError as error:
        # The loop puts a sentence around the system's words; getaddrinfo has numbers of its own.
        known = (error.errno or 0) in errno.errorcode
        reason = (os.strerror(error.errno or 0) if known else error.strerror or str(error)).lower()
        hint = "; another port: --port 0" if error.errno == errno.EADDRINUSE else ""
        raise CommandFailed(f"cannot listen on {host}:{port}: {reason}{hint}") from error

    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    asked_at = 0.0

    def signalled() -> None:
        nonlocal asked_at
        if not asked.is_set():
            asked_at = loop.time()
            asked.set()
        elif loop.time() > asked_at + SAME_SIGNAL_SECONDS:
            os._exit(1)

    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, signalled)
    if not is_loopback(host):
        log.warning(
            "serving on %s: whoever reaches this address may do everything, there is no authentication yet",
            host,
        )
    log.info(
        "waypost %s ready on %s; %s%s",
        __version__,
        address(host, service.port),
        described(values["store"]),
        "" if route is None else f"; routed by {values['router']}",
    )
    log.info("%s", where)
    if values["store"].startswith("folder:"):
        mover, reaper = ("here" if values[daemon] else "elsewhere" for daemon in ("mover", "reaper"))
        log.info("folder: %s; peers %d, mover %s, reaper %s", store, values["peers"], mover, reaper)
    # What is here stays; the rest lives for one group. Looking through it all again and again finds nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    await asked.wait()
    log.info("stopping: no new connections, at most %g s for what is under way", DRAIN_SECONDS)
    await service.stop(DRAIN_SECONDS)


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_request(request: Request, status: int) -> None:
    """One line an answer. The request's id is the client's X-Request-Id, or made here."""
    head = request.head
    known = head.headers.get("x-request-id", "")
    id = known if known.isprintable() and 0 < len(known) <= 80 else os.urandom(8).hex()
    milliseconds = (time.monotonic() - request.began) * 1_000
    access.info("%s %s %d %.1f ms, request %s", head.method, head.target, status, milliseconds, id)


def broken(error: StoreBroken) -> NoReturn:
    """No answer may go out after a failed commit, so nothing is flushed, closed or awaited."""
    from ..http.service import BROKEN_EXIT

    os.write(2, f"waypost: the store failed, stopping at once: {error}\n".encode())
    os._exit(BROKEN_EXIT)


# ── log lines ───────────────────────────────────────────────────────────────────────────────────


def set_up_logging(form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # It warns of each transaction that ends early; what that means is ours to say.
    logging.getLogger("psycopg").setLevel(logging.ERROR)


#: what every record has; anything else was added by the one who logs
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _added(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def _moment(record: logging.LogRecord) -> str:
    from ..instants import instant_text

    return instant_text(int(record.created * 1_000_000))


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        added = "".join(f" {name}={value}" for name, value in _added(record).items())
        line = f"{_moment(record)} {record.levelname.lower()} {record.getMessage()}{added}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import json

        line = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_added(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
