"""migrate: the tables of a store on a server, made or brought up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from ..config import load


def migrate(
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The store; else the setting.")
    ] = None,
) -> None:
    """Make the tables of a PostgreSQL store, or bring them up to date.

    Brokers of this version and of the one before go on serving meanwhile.
    """
    from ..stores.opening import migrate_store
    from ..stores.urls import masked

    url = str(load(**({} if store is None else {"store": store}))["store"].value)
    before, after = migrate_store(url)
    if before == after:
        print(f"{masked(url)}: schema {after}, up to date")
    else:
        print(f"{masked(url)}: schema {after}, " + ("made" if before == 0 else f"was {before}"))
