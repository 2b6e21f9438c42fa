"""config: what a broker started here would be told, and by whom."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..config import SETTINGS, load, shown, unknown_variables
from ..stores.urls import masked
from .asking import Json
from .output import json_document, note, plain, show, table


def _printable(name: str, value: Any) -> Any:
    """A database's password is not shown."""
    return masked(value) if name == "store" and value.startswith("postgresql://") else value


def config(json: Json = False) -> None:
    """Every setting, its value, and where that came from."""
    said = {name: value._replace(value=_printable(name, value.value)) for name, value in load().items()}
    if json:
        json_document({name: {"value": value.value, "from": value.origin} for name, value in said.items()})
    else:
        made = table("setting", "value", "from", "")
        for name, value in said.items():
            styled = plain(value.origin, "bright_black" if value.origin == "default" else "cyan")
            made.add_row(
                plain(name, "bold"),
                plain(shown(value.value)),
                styled,
                plain(SETTINGS[name].text, "bright_black"),
            )
        show(made)
        note("flag > WAYPOST_… > waypost.toml > default")
    for variable in unknown_variables(os.environ):
        print(f"waypost: {variable} is set, but there is no such setting", file=sys.stderr)
