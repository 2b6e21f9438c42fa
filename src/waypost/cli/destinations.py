"""queues, queue, channels, channel: where messages go, how much is there, and how each behaves. stats: the whole broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import ChannelNotFound, QueueNotFound, RequestInvalid
from ..policy import DEFAULT, policy_json
from .asking import (
    At,
    Changes,
    Delete,
    Json,
    Topics,
    Url,
    Yes,
    as_instant,
    ask,
    broker,
    do,
    is_offset,
    split,
)
from .failures import CommandMisused
from .jobs import follow
from .output import json_document, moment, note, pairs, plain, show, size, state, table

if TYPE_CHECKING:
    from ..client import Client

POLICY_FIELDS = frozenset(policy_json(DEFAULT))

# ── all of them ─────────────────────────────────────────────────────────────────────────────────


def queues(
    name: Annotated[
        str | None, typer.Argument(help="One queue, with its policy.", show_default=False)
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Queues and how much is in them."""

    async def work() -> None:
        async with broker(url) as client:
            if name is not None:
                document = await client.queue(name)
                json_document(document) if json else _show_one(document)
                return
            documents = await client.queues()
        if json:
            json_document({"queues": documents})
        elif documents:
            show(destinations_table("queue", documents))
        else:
            note("no queues yet; the first message makes one: waypost publish orders.created hello")

    do(work())


def channels(url: Url = None, json: Json = False) -> None:
    """Channels, their topics and how much is in them."""

    async def work() -> None:
        async with broker(url) as client:
            documents = await client.channels()
        if json:
            json_document({"channels": documents})
        elif documents:
            show(destinations_table("channel", documents))
        else:
            note("no channels yet; make one: waypost channel crm --topics 'customer.*'")

    do(work())


def destinations_table(kind: str, documents: list[dict[str, Any]]) -> Any:
    figures = ("ready", "later", "fetched", "done", "dead", "bytes")
    made = table(kind, *figures, *(("topics",) if kind == "channel" else ()), "", right=figures)
    for document in documents:
        states, ready = document["figures"]["states"], document["figures"]["ready"]
        waiting, dead = states["Q"] + states["R"], states["E"] + states["I"]
        made.add_row(
            plain(document["name"], "bold"),
            f"{ready:,}",
            f"{waiting - ready:,}",
            f"{states['F']:,}",
            f"{states['S'] + states['K']:,}",
            plain(f"{dead:,}", "red" if dead else ""),
            size(document["figures"]["bytes"]),
            *((plain(", ".join(document["topics"])),) if kind == "channel" else ()),
            plain(", ".join(_notes(document)), "yellow"),
        )
    return made


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    """What is unusual about it."""
    if document.get("paused"):
        yield "paused"
    if document.get("order") == "key":
        yield "ordered by key"
    if document.get("latestOnly"):
        yield "latest only"
    if document.get("kick"):
        yield "kick"
    if document.get("complete", "any") != "any":
        yield f"complete: {document['complete']}"


# ── one of them ─────────────────────────────────────────────────────────────────────────────────


def queue(
    name: Annotated[str, typer.Argument(show_default=False)],
    changes: Changes = None,
    at: At = None,
    delete: Delete = False,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """One queue: its figures and its policy, which --set changes. A queue that is not there is made."""
    _one_wish(set=changes, at=at, delete=delete)
    wanted = policy_changes(changes or [])

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await _delete(name, yes, client.queue, client.delete_queue)
            elif at is not None:
                _show_past(name, await client.queue(name, at=as_instant(at)), json)
            else:
                document = await (_change_queue(client, name, wanted) if wanted else client.queue(name))
                json_document(document) if json else _show_one(document)

    do(work())


def channel(
    name: Annotated[str, typer.Argument(show_default=False)],
    topics: Topics = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="now|OFFSET|TIME",
            help="What it gets: from now on, or from an offset or time of the log on.",
            show_default=False,
        ),
    ] = None,
    changes: Changes = None,
    at: At = None,
    delete: Delete = False,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """One channel: its figures, topics and policy. With --topics, --from or --set it is made or changed."""
    _one_wish(topics=topics, **{"from": start}, at=at, delete=delete)
    _one_wish(set=changes, at=at, delete=delete)
    wanted = policy_changes(changes or [])
    begin = None if start in (None, "now") else as_instant(start)

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await _delete(name, yes, client.channel, client.delete_channel)
            elif at is not None:
                _show_past(name, await client.channel(name, at=as_instant(at)), json)
            else:
                if topics or start or wanted:
                    await _change_channel(client, name, split(topics), begin, wanted)
                document = await client.channel(name)
                json_document(document) if json else _show_one(document)

    do(work())


def _one_wish(**given: Any) -> None:
    said = [f"--{name}" for name, value in given.items() if value]
    if len(said) > 1 and not {*said} <= {"--topics", "--from"}:
        raise CommandMisused(f"{said[0]} or {said[1]}, not both")


def policy_changes(given: list[str]) -> dict[str, Any]:
    """Values are JSON, and what is none is text: 5m, key."""
    changes: dict[str, Any] = {}
    for pair in given:
        field, equals, value = pair.partition("=")
        if not equals:
            raise CommandMisused(f"--set wants FIELD=VALUE, not {pair!r}")
        try:
            changes[field] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            changes[field] = value
    return changes


async def _change_queue(client: Client, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        current = policy_of(await client.queue(name))
    except QueueNotFound:
        current = {}
    return await declared(client.declare(name, {**current, **changes}))


async def _change_channel(
    client: Client, name: str, topics: list[str], start: str | None, changes: Mapping[str, Any]
) -> None:
    try:
        document = await client.channel(name)
        current, before = policy_of(document), document["topics"]
    except ChannelNotFound:
        if not topics:
            raise CommandMisused(f"no channel {name!r}; --topics 'fruit.*' makes it") from None
        current, before = {}, []
    begin = int(start) if start is not None and is_offset(start) else start
    made = await declared(client.declare_channel(name, topics or before, {**current, **changes}, start=begin))
    if made.get("job") is not None:
        await follow(client, made["job"], "backfilling")


async def declared(asked: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """What the broker calls wrong was said in options."""
    try:
        return await asked
    except RequestInvalid as error:
        raise CommandMisused(f"{error.detail}; {_as_options(error.hint)}") from error


def _as_options(hint: str) -> str:
    """Over HTTP the hint to a wrong policy is often a right one, in JSON."""
    try:
        example = msgspec.json.decode(hint, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return hint
    return "for example " + " ".join(f"--set '{name}={bytes(raw).decode()}'" for name, raw in example.items())


async def _delete(
    name: str,
    yes: bool,
    look: Callable[[str], Awaitable[dict[str, Any]]],
    delete: Callable[[str], Awaitable[None]],
) -> None:
    states = (await look(name))["figures"]["states"]
    ask(yes, f"Delete {name} and cancel {states['Q'] + states['R'] + states['F']:,} messages in it?")
    await delete(name)
    note(f"{name} is deleted")


# ── how one looks ───────────────────────────────────────────────────────────────────────────────


def _show_one(document: Mapping[str, Any]) -> None:
    show(plain(document["name"], "bold"))
    topics = document.get("topics")
    show(
        pairs(
            [
                ("topics", ", ".join(topics) if topics else None),
                ("created", moment(document["created"])),
                ("ready", f"{document['figures']['ready']:,}"),
                ("bytes", size(document["figures"]["bytes"])),
                *_in_states(document["figures"]["states"]),
                *((name, value_text(value)) for name, value in policy_of(document).items()),
            ]
        )
    )


def _show_past(name: str, document: Mapping[str, Any], json: bool) -> None:
    if json:
        json_document(document)
        return
    show(plain(name, "bold"), plain(f"as of {moment(document['at'])}", "bright_black"))
    counts = list(_in_states(document["figures"]["states"]))
    show(pairs(counts) if counts else plain("nothing was in it"))


def _in_states(states: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for letter, count in states.items():
        if count:
            yield f"in {state(letter).plain}", f"{count:,}"


def policy_of(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name in POLICY_FIELDS}


def value_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "  ".join(f"{name} {value_text(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    return None if value is None else str(value)


# ── stats ───────────────────────────────────────────────────────────────────────────────────────


def stats(url: Url = None, json: Json = False) -> None:
    """Figures of the whole broker."""

    async def work() -> None:
        async with broker(url) as client:
            document = await client.stats()
        json_document(document) if json else show(pairs(flat(document)))

    do(work())


def flat(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested figures as lines: `states.Q`."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield before + name, size(value) if name.lower().endswith("bytes") else f"{value:,}"
        elif isinstance(value, float):
            yield before + name, f"{value:.4g}"
        elif isinstance(value, list):
            yield before + name, f"{len(value):,}"
        elif value is not None:
            yield before + name, str(value)
