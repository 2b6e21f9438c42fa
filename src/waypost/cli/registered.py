"""objects, object, consumers, consumer, spectators, spectator: what is agreed, who gets messages, who reads the log."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConsumerNotFound, ObjectNotFound
from .asking import Json, Topics, Url, broker, do, split
from .destinations import declared, policy_changes, value_text
from .failures import CommandMisused
from .output import json_document, moment, note, pairs, plain, show, table

if TYPE_CHECKING:
    from ..client import Client

Delete = Annotated[bool, typer.Option("--delete", help="Forget it.")]
Name = Annotated[str, typer.Argument(show_default=False)]


async def _list(
    url: str | None,
    json: bool,
    what: str,
    look: Callable[[Client], Awaitable[list[dict[str, Any]]]],
    form: Callable[[list[dict[str, Any]]], Any],
    otherwise: str,
) -> None:
    async with broker(url) as client:
        documents = await look(client)
    if json:
        json_document({what: documents})
    elif documents:
        show(form(documents))
    else:
        note(otherwise)


def _show_one(document: Mapping[str, Any], lines: Iterator[tuple[str, Any]]) -> None:
    show(plain(document["name"], "bold"))
    show(pairs(lines))


# ── objects ─────────────────────────────────────────────────────────────────────────────────────


def objects(url: Url = None, json: Json = False) -> None:
    """Objects of which something is agreed, and how many of their messages were unchanged."""
    otherwise = "nothing is agreed of any object; for example: waypost object customer --unchanged"
    do(_list(url, json, "objects", lambda client: client.objects(), objects_table, otherwise))


def objects_table(documents: list[dict[str, Any]]) -> Any:
    made = table("object", "unchanged", "ignored", "window", "route", right=("unchanged",))
    for document in documents:
        unchanged = document["unchanged"]
        made.add_row(
            plain(document["name"], "bold"),
            f"{sum(document['figures']['unchanged'].values()):,}",
            plain(", ".join(unchanged["ignore"]) if unchanged else "", "cyan"),
            plain(unchanged["window"] if unchanged else "off"),
            plain(document["route"]),
        )
    return made


def object(
    name: Name,
    unchanged: Annotated[
        bool | None,
        typer.Option(
            "--unchanged/--no-unchanged",
            help="Whether what repeats the last message of its key is delivered again.",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="May differ, such as $.exportedAt; repeatable.", show_default=False
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How far back counts: 30d.", show_default=False)
    ] = None,
    route: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Who routes its messages: inline or spark.", show_default=False),
    ] = None,
    delete: Delete = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """What is agreed of one object. Options change it; what they do not name stays."""
    changing = unchanged is not None or ignore is not None or window is not None or route is not None
    if delete and changing:
        raise CommandMisused("--delete goes alone")
    if unchanged is False and (ignore or window):
        raise CommandMisused("--ignore and --window say when a message is unchanged: not with --no-unchanged")

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await client.delete_object(name)
                note(f"nothing is agreed of {name} any more")
                return
            if changing:
                before = await _agreed(client, name)
                after = object_after(before, unchanged, split(ignore), window, route)
                document = await declared(client.declare_object(name, after))
            else:
                document = await client.object(name)
        json_document(document) if json else _show_one(document, _object_lines(document))

    do(work())


async def _agreed(client: Client, name: str) -> dict[str, Any]:
    try:
        document = await client.object(name)
    except ObjectNotFound:
        return {}
    return {field: document[field] for field in ("unchanged", "route")}


def object_after(
    before: Mapping[str, Any],
    unchanged: bool | None,
    ignore: list[str],
    window: str | None,
    route: str | None,
) -> dict[str, Any]:
    """What is agreed then."""
    after = dict(before)
    if unchanged is False:
        after["unchanged"] = None
    elif unchanged or ignore or window is not None:
        said = {"ignore": ignore or None, "window": window}
        given = {field: value for field, value in said.items() if value is not None}
        after["unchanged"] = {**(before.get("unchanged") or {}), **given}
    if route is not None:
        after["route"] = route
    return after


def _object_lines(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    unchanged = document["unchanged"]
    yield "unchanged", "not looked for" if unchanged is None else "not delivered again"
    if unchanged is not None:
        yield "ignored", ", ".join(unchanged["ignore"]) or "nothing"
        yield "window", str(unchanged["window"])
    yield "route", document["route"]
    for producer, count in document["figures"]["unchanged"].items():
        yield f"of {producer or 'no name'}", f"{count:,} unchanged"
    if document["figures"]["waiting"]:
        yield "waiting", f"{document['figures']['waiting']:,} for a decision"


# ── consumers ───────────────────────────────────────────────────────────────────────────────────

#: what PUT takes of what GET gives
CONSUMER_FIELDS = frozenset(
    {"url", "queue", "channel", "topics", "concurrency", "rate", "timeout", "kick", "paused"}
)


def consumers(url: Url = None, json: Json = False) -> None:
    """Registered consumers: webhooks with their breaker and figures, and those that pull."""
    otherwise = "nobody is registered; for example: waypost consumer billing --queue orders --push https://…"
    do(_list(url, json, "consumers", lambda client: client.consumers(), consumers_table, otherwise))


def consumers_table(documents: list[dict[str, Any]]) -> Any:
    figures = ("sent", "ok", "failed", "now")
    made = table("consumer", "of", "pushed to", "breaker", *figures, "last error", right=figures)
    for document in documents:
        push = document.get("figures") or {}
        made.add_row(
            plain(document["name"], "bold"),
            plain(_where(document)),
            plain(document.get("url") or "it pulls", "" if document.get("url") else "bright_black"),
            _breaker(document),
            *(f"{push[name]:,}" if push else "" for name in ("sent", "succeeded", "failed", "inFlight")),
            plain(push.get("lastError") or "", "yellow"),
        )
    return made


def _where(document: Mapping[str, Any]) -> str:
    channel = document.get("channel")
    return f"channel {channel}" if channel is not None else str(document.get("queue"))


def _breaker(document: Mapping[str, Any]) -> Any:
    if document.get("paused"):
        return plain("paused", "yellow")
    position = (document.get("figures") or {}).get("breaker", "")
    return plain(position, {"open": "red", "half-open": "yellow", "closed": "green"}.get(position, ""))


def consumer(
    name: Name,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The queue it works for.", show_default=False)
    ] = None,
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Or the channel it listens to.", show_default=False)
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where messages are posted to; else it pulls.", show_default=False),
    ] = None,
    topics: Topics = None,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            help="To sign with, whsec_…; - reads it from stdin. Made for you if left out.",
            show_default=False,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="concurrency=4, rate=50, timeout=5s, kick=true, paused=true; repeatable.",
            show_default=False,
        ),
    ] = None,
    delete: Delete = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """One registered consumer. Options register or change it; what they do not name stays."""
    said = {"url": push, "topics": split(topics) or None}
    wanted: dict[str, Any] = {field: value for field, value in said.items() if value is not None}
    wanted |= policy_changes(changes or [])
    if queue is not None or channel is not None:
        wanted |= {"queue": queue, "channel": channel}
    if secret is not None:
        wanted["secret"] = sys.stdin.readline().strip() if secret == "-" else secret
    if delete and wanted:
        raise CommandMisused("--delete goes alone")

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await client.delete_consumer(name)
                note(f"{name} is forgotten")
                return
            if wanted:
                registered = await _registered(client, name)
                document = await declared(client.declare_consumer(name, {**registered, **wanted}))
            else:
                document = await client.consumer(name)
        json_document(document) if json else _show_one(document, _consumer_lines(document))

    do(work())


async def _registered(client: Client, name: str) -> dict[str, Any]:
    try:
        document = await client.consumer(name)
    except ConsumerNotFound:
        return {}
    return {field: value for field, value in document.items() if field in CONSUMER_FIELDS}


def _consumer_lines(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    pushed = document.get("url") is not None
    yield "of", _where(document)
    yield "topics", ", ".join(document["topics"]) or "all"
    yield "pushed to", document.get("url") or "nowhere: it pulls"
    if "secret" in document:
        yield "secret", f"{document['secret']}  (shown this once)"
    elif pushed:
        yield "secrets", str(document["secrets"])
    if pushed:
        for field in ("concurrency", "rate", "timeout", "kick"):
            yield field, value_text(document[field])
    yield "paused", value_text(document["paused"])
    figures = document.get("figures")
    if figures is not None:
        yield "breaker", _breaker({"figures": figures})
        yield "sent", f"{figures['sent']:,}, {figures['succeeded']:,} ok, {figures['failed']:,} failed"
        yield "under way", f"{figures['inFlight']:,}"
        yield "last success", moment(figures["lastSuccess"]) or None
        yield (
            "last error",
            " ".join(filter(None, [moment(figures["lastErrorAt"]), figures["lastError"]])) or None,
        )


# ── spectators ──────────────────────────────────────────────────────────────────────────────────


def spectators(url: Url = None, json: Json = False) -> None:
    """Named readers of the log, and how far behind each is."""
    otherwise = "nobody reads the log under a name; for example: waypost tail --spectator audit"
    do(_list(url, json, "spectators", lambda client: client.spectators(), spectators_table, otherwise))


def spectators_table(documents: list[dict[str, Any]]) -> Any:
    made = table("spectator", "has read to", "behind", "said so", right=("has read to", "behind"))
    for document in documents:
        lag = document["lag"]
        made.add_row(
            plain(document["name"], "bold"),
            f"{document['offset']:,}",
            plain(f"{lag:,}", "yellow" if lag else ""),
            moment(document["at"]),
        )
    return made


def spectator(
    name: Name,
    offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="It has read up to here; 0: nothing.", show_default=False),
    ] = None,
    delete: Delete = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """One reader of the log: how far it has read, which --offset changes."""
    if delete and offset is not None:
        raise CommandMisused("--offset or --delete, not both")

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await client.delete_spectator(name)
                note(f"{name} is forgotten")
                return
            asked = client.spectator(name) if offset is None else client.set_spectator(name, offset)
            document = await asked
        json_document(document) if json else show(spectators_table([document]))

    do(work())
