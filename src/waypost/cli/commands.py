"""The table of commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from ..version import __version__
from . import (
    copying,
    destinations,
    folders,
    lake,
    load,
    messages,
    migrating,
    pipeline,
    registered,
    report,
    routing,
    selections,
    serving,
    settings,
    spark,
)


def _as_people_read_it(parameters: list[Any]) -> list[Any]:
    """In helps: arguments as QUEUE, and no type after an option that takes no value."""
    for parameter in parameters:
        if parameter.metavar is None and isinstance(parameter, TyperArgument):
            parameter.metavar = str(parameter.name).upper()
        elif parameter.metavar is None and getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_people_read_it(super().get_params(ctx))


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_people_read_it(super().get_params(ctx))


app = typer.Typer(
    name="waypost",
    cls=_Commands,
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


BROKER = "The broker"
MESSAGES = "Messages"
PLACES = "Queues and channels"
AGREED = "Objects, consumers, spectators"
WATCH = "Watch and find"
ACT = "Act on many"


@app.command(
    rich_help_panel=BROKER,
    help="Run a broker until SIGTERM or Ctrl-C.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def serve(context: typer.Context) -> None:
    # Only for the list of commands: `run` does not come here for it.
    serving.serve(context.args)


#: in the order in which the help shows them
COMMANDS = {
    MESSAGES: (messages.publish, messages.fetch, messages.confirm),
    PLACES: (destinations.queues, destinations.queue, destinations.channels, destinations.channel),
    AGREED: (
        registered.objects,
        registered.object,
        registered.consumers,
        registered.consumer,
        registered.spectators,
        registered.spectator,
    ),
    WATCH: (messages.tail, messages.message, selections.search, selections.dead, destinations.stats),
    ACT: (selections.redrive, selections.replay, selections.cancel, selections.purge),
    BROKER: (load.bench, settings.config, migrating.migrate, copying.copy, folders.mover, folders.reaper),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=_Command, rich_help_panel=panel)(command)


LAKE = "The lake"
#: commands of two words, by the first: what it is about, and the second ones
GROUPS = {
    "lake": ("The log's cold half as Delta tables.", (lake.status, lake.seal, lake.verify, lake.maintain)),
    "pipeline": (
        "Spark keeps tables of the log, draws a page of them, and routes messages.",
        (pipeline.once, pipeline.run, pipeline.status, pipeline.rebuild, report.report, routing.route),
    ),
    "spark": ("Spark on this machine.", (spark.warm,)),
}
for name, (about, members) in GROUPS.items():
    group = typer.Typer(cls=_Commands, help=about, no_args_is_help=True)
    for member in members:
        group.command(cls=_Command)(member)
    app.add_typer(group, name=name, rich_help_panel=LAKE)
