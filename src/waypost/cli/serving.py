"""serve, config: the broker as a process, and its settings.

settings ─▶ store ─▶ service ─▶ one ready line ─▶ … ─▶ SIGTERM or SIGINT: drain, at most 10 s ─▶ exit 0
                                                  '─▶ a second one: exit at once
                                                  '─▶ a commit failed: one line, and exit at once, because
                                                      nothing may be answered any more
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..config import SETTINGS, Value, unknown_variables
from ..version import __version__
from .asking import CommandFailed, Json, settings

if TYPE_CHECKING:
    from ..errors import StoreBroken
    from ..store import Store

log = logging.getLogger("waypost")

DRAIN_SECONDS = 10.0


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Default 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Default 8080; 0 takes a free one.", show_default=False)
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Default sqlite:///waypost-data/waypost.db, in this folder.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="A host name it answers to; repeatable.", show_default=False
        ),
    ] = None,
    infer_types: Annotated[
        bool | None,
        typer.Option(
            "--infer-types/--no-infer-types",
            help="Whether a message without object takes its first topic's root.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="text|json", help="How log lines look.", show_default=False)
    ] = None,
    access_log: Annotated[
        bool | None,
        typer.Option(
            "--access-log/--no-access-log", help="A log line for every request.", show_default=False
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Every setting can also stand in the environment (WAYPOST_PORT) or in waypost.toml (port = 9000).
    """
    said = settings(
        host=host,
        port=port,
        store=store,
        name=name or None,
        infer_types=infer_types,
        log=log,
        access_log=access_log,
    )
    values = {name: value.value for name, value in said.items()}
    set_up_logging(values["log"])
    from ..http.server import run
    from ..stores.opening import open_store

    opened = open_store(values["store"], infer_types=values["infer-types"])
    try:
        run(_serve(opened, values))
    except BaseException:
        opened.close()
        raise


async def _serve(store: Store, values: dict[str, Any]) -> None:
    import asyncio
    import signal

    from ..http.service import run
    from ..http.site import is_loopback

    host, port = values["host"], values["port"]
    try:
        service = await run(
            store,
            host=host,
            port=port,
            names=values["name"],
            access_log=values["access-log"],
            on_broken=broken,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "; another port: --port 0" if error.errno == 98 else ""
        raise CommandFailed(f"cannot listen on {host}:{port}: {reason}{hint}") from error

    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def signalled() -> None:
        if asked.is_set():
            os._exit(1)
        asked.set()

    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, signalled)
    if not is_loopback(host):
        log.warning(
            "serving on %s: whoever reaches this address may do everything, there is no authentication yet",
            host,
        )
    log.info(
        "waypost %s ready on %s; %s",
        __version__,
        address(host, service.port),
        described(values["store"], store),
    )
    await asked.wait()
    log.info("stopping: no new connections, at most %g s for what is under way", DRAIN_SECONDS)
    await service.stop(DRAIN_SECONDS)


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def described(url: str, store: Store) -> str:
    """Where messages live, and what an answer is worth there."""
    worth = getattr(store, "durability", "nothing survives this process" if url.startswith("memory:") else "")
    return f"store {url}" + (f", {worth}" if worth else "")


def broken(error: StoreBroken) -> NoReturn:
    """No answer may go out after a failed commit, so nothing is flushed, closed or awaited."""
    os.write(2, f"waypost: the store failed, stopping at once: {error}\n".encode())
    os._exit(1)


# ── log lines ───────────────────────────────────────────────────────────────────────────────────


def set_up_logging(form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


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


# ── config ──────────────────────────────────────────────────────────────────────────────────────


def config(json: Json = False) -> None:
    """Every setting, its value, and where that came from."""
    from .output import json_document, note, plain, show, table

    said = settings()
    if json:
        json_document({name: {"value": value.value, "from": value.origin} for name, value in said.items()})
    else:
        made = table("setting", "value", "from", "")
        for name, value in said.items():
            styled = plain(value.origin, "bright_black" if value.origin == "default" else "cyan")
            made.add_row(
                plain(name, "bold"), plain(shown(value)), styled, plain(SETTINGS[name].text, "bright_black")
            )
        show(made)
        note("flag > WAYPOST_… > waypost.toml > default")
    for variable in unknown_variables(os.environ):
        print(f"waypost: {variable} is set, but there is no such setting", file=sys.stderr)


def shown(value: Value) -> str:
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    return ", ".join(value.value) or "(none)" if isinstance(value.value, tuple) else str(value.value)
