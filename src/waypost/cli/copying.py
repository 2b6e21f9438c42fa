"""copy: what one store holds into another."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import bar, plain, show

#: how often the bar moves: after so many
_STEP = 500


def copy(
    origin: Annotated[str, typer.Option("--from", metavar="URL", help="The store; nobody may serve it.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty one, of any kind.")],
    drop_bodies: Annotated[
        bool,
        typer.Option(
            "--drop-bodies", help="Leave out bodies of what has ended, where the target keeps none."
        ),
    ] = False,
) -> None:
    """Copy a stopped broker's store to another kind, and check that nothing is lost.

    Ids, states, receipts and the log's offsets stay the same. The store at --from stays as it is: serve only one of the two afterwards.
    """
    from ..stores.copying import copy_store
    from ..stores.urls import masked

    with bar("") as progress:
        task = progress.add_task("copying", total=None, count="")

        def come(doing: str, done: int, total: int) -> None:
            if done % _STEP == 0 or done == total:
                progress.update(
                    task, description=doing, completed=done, total=total, count=f"{done:,} of {total:,}"
                )

        copied = copy_store(origin, target, come, drop_bodies)
    show(
        plain(
            f"{copied.messages:,} messages, {copied.deliveries:,} deliveries, {copied.events:,} events copied to {masked(target)};"
            " read again and compared: the same"
        )
    )
