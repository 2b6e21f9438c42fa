"""search, dead, redrive, replay, cancel, purge: find deliveries by one filter, and act on what it finds.

    waypost search object=customer key=XYZ state=E since=10:00 until=11:30
    waypost redrive queue=orders state=E consumer=billing --dry-run

Terms may stand as they are or in one text; a word without '=' is a queue. Bare times are the person's own.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from .asking import DryRun, Json, Url, Yes, as_meant, ask, broker, do
from .failures import CommandFailed, CommandMisused
from .jobs import carry_out
from .output import json_line, moment, note, plain, show, state, table

Terms = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILTER]...",
        help="For example queue=orders state=E since=10:00 until=11:30; or just a queue. Bare times are yours.",
        show_default=False,
    ),
]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help="The same as FILTER.", show_default=False)
]
Rate = Annotated[
    float | None,
    typer.Option(metavar="N", help="At most so many a second; else as fast as it goes.", show_default=False),
]
For = Annotated[
    str | None,
    typer.Option("--consumer", metavar="NAME", help="Only this one may have them then.", show_default=False),
]
Most = Annotated[int, typer.Option("-n", min=1, help="At most so many.")]


def filter_of(terms: list[str] | None, filter: str | None) -> str:
    """As the broker takes it, possibly empty."""
    words = [term if "=" in term else f"queue={term}" for term in terms or () if term.strip()]
    return as_meant(" ".join([*words, *([filter] if filter else [])]))


# ── find ────────────────────────────────────────────────────────────────────────────────────────


def search(
    terms: Terms = None, filter: Filter = None, n: Most = 100, url: Url = None, json: Json = False
) -> None:
    """Deliveries that a filter selects, in the order of the log."""
    do(_find(url, filter_of(terms, filter), n, json, "nothing is like that"))


def dead(
    terms: Terms = None, filter: Filter = None, n: Most = 100, url: Url = None, json: Json = False
) -> None:
    """Dead letters, with their reasons."""
    asked = filter_of(terms, filter)
    if not re.search(r"(^|\s)state=", asked):
        asked = f"{asked} state=EI".strip()

    async def work() -> None:
        if await _find(url, asked, n, json, "no dead letters") and not json:
            note("back to where they were with: waypost redrive FILTER --dry-run")

    do(work())


async def _find(url: str | None, filter: str, n: int, json: bool, otherwise: str) -> bool:
    """Whether there was anything."""
    found: list[dict[str, Any]] = []
    more = False
    async with broker(url) as client:
        async for delivery in client.search(filter):
            if len(found) == n:
                more = True
                break
            found.append(delivery)
    if json:
        for delivery in found:
            json_line(delivery)
    elif found:
        show(deliveries_table(found))
    else:
        note(otherwise)
    if more:
        note(f"more than {n}; -n shows more")
    return bool(found)


def deliveries_table(deliveries: list[dict[str, Any]]) -> Any:
    made = table("message", "where", "state", "tries", "when", "consumer", "reason", right=("tries",))
    made.columns[0].no_wrap = made.columns[4].no_wrap = True
    for delivery in deliveries:
        made.add_row(
            plain(delivery["messageId"]),
            plain(place(delivery)),
            state(delivery["state"]),
            str(delivery["attempt"]),
            moment(delivery["changed"]),
            plain(delivery.get("consumer") or _for(delivery.get("named"))),
            plain(delivery.get("reason") or ""),
        )
    return made


def place(of: dict[str, Any]) -> str:
    """Of a delivery or event: its queue, or its channel, which says so."""
    if of.get("channel") is not None:
        return f"channel {of['channel']}"
    return of.get("queue") or ""


def _for(named: str | None) -> str:
    return "" if named is None else f"for {named}"


# ── act ─────────────────────────────────────────────────────────────────────────────────────────


def redrive(
    terms: Terms = None,
    filter: Filter = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    consumer: For = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Dead letters back to where they were; or other ended deliveries, when the filter names states."""
    _act("redrive", "redriven", terms, filter, url, json, dry_run=dry_run, rate=rate, consumer=consumer)


def replay(
    terms: Terms = None,
    filter: Filter = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    consumer: For = None,
    from_lake: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Messages of this lake, published again; only counted without --go.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --from-lake: the broker that gets them.", show_default=False),
    ] = None,
    go: Annotated[bool, typer.Option("--go", help="With --from-lake: do it.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --from-lake: another name is another replay.", show_default=False
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET", min=0, help="With --from-lake: begin beyond this one.", show_default=False
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Everything that has ended once more, in its order: also what was confirmed. Or, from a lake, messages published again.

    waypost replay orders state=S since=10:00 --dry-run

    waypost replay 'object=customer since=2026-01-31' --from-lake /srv/lake --to http://127.0.0.1:8080
    """
    if from_lake is None:
        if to is not None or go or name is not None or after is not None:
            raise CommandMisused("--to, --go, --name and --after belong to --from-lake DIR")
    else:
        if consumer is not None or (dry_run and go):
            raise CommandMisused(
                "--from-lake goes without --consumer, whose it becomes is routed anew; and --dry-run without --go"
            )
        from ..lake.keeper import EXTRA, missing_packages

        if missing_packages():
            raise CommandFailed(f"this needs: {EXTRA}")
        from .replaying import replay_from_lake

        asked = _of_something(filter_of(terms, filter))
        replay_from_lake(asked, from_lake, to or url, name, rate, go, after, json)
        return
    _act("replay", "replayed", terms, filter, url, json, dry_run=dry_run, rate=rate, consumer=consumer)


def cancel(
    terms: Terms = None,
    filter: Filter = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Waiting deliveries out of their queue or channel, for good."""
    _act("cancel", "cancelled", terms, filter, url, json, dry_run=dry_run, rate=rate)


def _act(
    verb: str,
    done: str,
    terms: list[str] | None,
    filter: str | None,
    url: str | None,
    json: bool,
    **how: Any,
) -> None:
    """`verb` is the client's."""
    asked = _of_something(filter_of(terms, filter))

    async def work() -> None:
        async with broker(url) as client:
            await carry_out(client, await getattr(client, verb)(asked, **how), verb, done, json)

    do(work())


def _of_something(filter: str) -> str:
    if not filter:
        raise CommandMisused("name a QUEUE or a FILTER; nothing is done to everything by accident")
    return filter


def purge(
    queue: Annotated[str | None, typer.Argument(show_default=False)] = None,
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="A channel instead.", show_default=False)
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Everything that waits in a queue or channel out of it."""
    if (queue is None) is (channel is None):
        raise CommandMisused("purge what? Say a QUEUE, or --channel NAME")

    async def work() -> None:
        async with broker(url) as client:
            look = client.queue(queue) if queue is not None else client.channel(str(channel))
            states = (await look)["figures"]["states"]
            ask(
                yes or dry_run,
                f"Cancel {states['Q'] + states['R']:,} waiting messages of {queue or channel}?",
                ", or --dry-run to count",
            )
            if dry_run:
                named = f"queue={queue}" if queue is not None else f"channel={channel}"
                job = await client.cancel(named, dry_run=True)
            else:
                job = await client.purge(queue, channel=channel)
            await carry_out(client, job, "purge", "purged", json)

    do(work())
