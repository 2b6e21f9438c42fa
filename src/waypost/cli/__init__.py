"""The command line: `waypost serve`, and commands for people who look after a broker.

    commands      the table of all commands               serving     serve
    messages      publish, fetch, confirm, message, tail  settings    config
    destinations  queues, queue, channels, channel, stats load        bench
    registered    objects, consumers, spectators          asking      what commands that speak to a broker share
    selections    search, dead, redrive, replay, cancel   jobs        work on many, followed to its end
    folders       mover, reaper                           migrating   migrate
    copying       copy                                    replaying   replay --from-lake
    output        how things look                         failures    commands that failed

Whatever goes wrong is one line on stderr: exit code 2 for a command that cannot be meant, 1 for one that
could not be done. This package is the only place that reads settings and joins the parts. Imports stand
inside functions where a part is heavy: `serve` starts without the client, without rich and without typer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..config import TRACEBACK_VARIABLE, SettingInvalid
from ..errors import Refused, WaypostError
from .failures import CommandMisused

#: for those whose hint on the wire speaks of requests, the same in the words of the command line
_HINTS = {
    "QUEUE_NOT_FOUND": "waypost queues lists them, and the first message makes one",
    "CHANNEL_NOT_FOUND": "waypost channels lists them; waypost channel NAME --topics 'fruit.*' makes one",
    "OBJECT_NOT_FOUND": "waypost objects lists them; waypost object NAME --unchanged agrees something",
    "CONSUMER_NOT_FOUND": "waypost consumers lists them; waypost consumer NAME --queue orders registers one",
    "SPECTATOR_NOT_FOUND": "waypost spectators lists them; waypost spectator NAME --offset 0 makes one",
    "CONSUMER_REQUIRED": "say who you are: --consumer NAME",
    "OFFSET_BEYOND_HEAD": "leave --from out to wait for what comes next",
    "LOG_TRIMMED": "start there with --from, or leave --from out",
    "LEASE_INVALID": "for example --lease 30",
    "ID_TAKEN": "say another --id, or none",
    "IDEMPOTENCY_CONFLICT": "a new message takes a new --idempotency-key",
    "BUSY": "try again in a moment",
}


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter must not find that out again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return _complain(*_plain(error))


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        from .serving import serve

        serve(arguments[1:])
        return 0
    import typer

    from .commands import app

    try:
        code = app(args=list(arguments), prog_name="waypost", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _complain(*_usage(error))
    except typer.Abort:
        return 130


def _complain(line: str, code: int) -> int:
    if line:
        print("waypost: " + " ".join(line.split()), file=sys.stderr)
    return code


def _usage(error: Exception) -> tuple[str, int]:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "waypost"
    said = getattr(error, "format_message", error.__str__)().rstrip(".")
    if not said:  # no command at all: the help was shown
        return "", 0
    said = said.replace("Value error, ", "")  # what typer's validation puts before its own words
    return f"{said}; see: {command} --help", getattr(error, "exit_code", 2)


def _plain(error: Exception) -> tuple[str, int]:
    if isinstance(error, Refused):
        hint = _HINTS.get(error.code, error.hint)
        return f"{error.detail}; {hint}" if hint else error.detail, 1
    if isinstance(error, WaypostError):
        return str(error), 2 if isinstance(error, SettingInvalid | CommandMisused) else 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1
    return f"{type(error).__name__}: {error} (a bug; {TRACEBACK_VARIABLE}=1 shows where)", 1
