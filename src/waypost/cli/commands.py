"""The table of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from ..version import __version__
from . import load, messages, queues, serving

app = typer.Typer(
    name="waypost",
    help="A durable message broker that starts with one command and speaks plain HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"waypost {__version__}")
        raise typer.Exit


@app.callback()
def waypost(
    version: Annotated[
        bool, typer.Option("--version", help="Which Waypost this is.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


for command in (
    serving.serve,
    messages.publish,
    messages.fetch,
    messages.confirm,
    messages.tail,
    messages.message,
    queues.queues,
    queues.dead,
    queues.redrive,
    queues.cancel,
    queues.purge,
    queues.stats,
    load.bench,
    serving.config,
):
    app.command()(command)
