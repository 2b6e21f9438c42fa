"""queues, queue, dead, redrive, cancel, purge, stats: looking after a broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import QueueNotFound, RequestInvalid
from .asking import DryRun, Json, Url, as_meant, broker, do
from .failures import CommandMisused
from .output import json_document, json_line, moment, note, pairs, plain, show, size, state, table

if TYPE_CHECKING:
    from ..client import Client, Job

Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="FILTER",
        help="For example 'queue=orders state=E since=10:00 until=11:30'; bare times are yours.",
        show_default=False,
    ),
]

# ── queues ──────────────────────────────────────────────────────────────────────────────────────


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
                json_document(document) if json else _show_queue(document)
                return
            documents = await client.queues()
        if json:
            json_document({"queues": documents})
        elif documents:
            show(queues_table(documents))
        else:
            note("no queues yet; the first message makes one: waypost publish orders.created hello")

    do(work())


def queues_table(documents: list[dict[str, Any]]) -> Any:
    figures = ("ready", "later", "fetched", "done", "dead", "bytes")
    made = table("queue", *figures, "", right=figures)
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
            plain(", ".join(_notes(document)), "yellow"),
        )
    return made


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    """What is unusual about a queue."""
    if document.get("paused"):
        yield "paused"
    if document.get("order") == "key":
        yield "ordered by key"
    if document.get("kick"):
        yield "kick"
    if document.get("complete", "any") != "any":
        yield f"complete: {document['complete']}"


def _show_queue(document: Mapping[str, Any]) -> None:
    show(plain(document["name"], "bold"))
    states = {letter: count for letter, count in document["figures"]["states"].items() if count}
    policy = _policy(document)
    show(
        pairs(
            [
                ("created", moment(document["created"])),
                ("ready", f"{document['figures']['ready']:,}"),
                ("bytes", size(document["figures"]["bytes"])),
                *((f"in {letter}", f"{count:,}") for letter, count in states.items()),
                *((name, _policy_text(value)) for name, value in policy.items()),
            ]
        )
    )


def _policy(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("name", "figures", "created")}


def _policy_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "  ".join(f"{name} {part}" for name, part in value.items())
    return None if value is None else str(value)


def queue(
    name: Annotated[str, typer.Argument(show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change the policy: retries=5, lease=5m, paused=true; repeatable.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it; what waits in it is cancelled.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --delete: do not ask.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """One queue: its figures and its policy, which --set changes. A queue that is not there is made."""
    if changes and delete:
        raise CommandMisused("--set or --delete, not both")
    wanted = policy_changes(changes or [])

    async def work() -> None:
        async with broker(url) as client:
            if delete:
                await _delete(client, name, yes)
                return
            document = await (_change(client, name, wanted) if wanted else client.queue(name))
        json_document(document) if json else _show_queue(document)

    do(work())


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


async def _change(client: Client, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        current = _policy(await client.queue(name))
    except QueueNotFound:
        current = {}
    try:
        return await client.declare(name, {**current, **changes})
    except RequestInvalid as error:
        raise CommandMisused(f"{error.detail}; {_as_options(error.hint)}") from error


def _as_options(hint: str) -> str:
    """Over HTTP the hint to a wrong policy is often a right one, in JSON."""
    try:
        example = msgspec.json.decode(hint, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return hint
    return "for example " + " ".join(f"--set '{name}={bytes(raw).decode()}'" for name, raw in example.items())


async def _delete(client: Client, name: str, yes: bool) -> None:
    states = (await client.queue(name))["figures"]["states"]
    _ask(yes, f"Delete {name} and cancel {states['Q'] + states['R'] + states['F']:,} messages in it?")
    await client.delete_queue(name)
    note(f"{name} is deleted")


def _ask(yes: bool, question: str, otherwise: str = "") -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandMisused(f"nobody is there to be asked: say --yes{otherwise}")
    typer.confirm(question, abort=True, err=True)


# ── dead letters ────────────────────────────────────────────────────────────────────────────────


def dead(
    queue: Annotated[str | None, typer.Argument(show_default=False)] = None,
    filter: Filter = None,
    n: Annotated[int, typer.Option("-n", min=1, help="At most so many.")] = 100,
    url: Url = None,
    json: Json = False,
) -> None:
    """Dead letters, with their reasons."""

    async def work() -> None:
        asked = _joined(queue, filter)
        if "state=" not in asked:
            asked = f"{asked} state=EI".strip()
        found: list[dict[str, Any]] = []
        more = False
        async with broker(url) as client:
            async for delivery in client.search(asked):
                if len(found) == n:
                    more = True
                    break
                found.append(delivery)
        if json:
            for delivery in found:
                json_line(delivery)
            return
        if not found:
            note("no dead letters")
            return
        show(dead_table(found))
        if more:
            note(f"more than {n}; -n shows more")
        note("back to their queue with: waypost redrive QUEUE --dry-run")

    do(work())


def dead_table(deliveries: list[dict[str, Any]]) -> Any:
    made = table("message", "queue", "state", "tries", "when", "consumer", "reason", right=("tries",))
    made.columns[0].no_wrap = made.columns[4].no_wrap = True
    for delivery in deliveries:
        made.add_row(
            plain(delivery["messageId"]),
            plain(delivery["queue"]),
            state(delivery["state"]),
            str(delivery["attempt"]),
            moment(delivery["changed"]),
            plain(delivery.get("consumer") or ""),
            plain(delivery.get("reason") or ""),
        )
    return made


def redrive(
    queue: Annotated[str | None, typer.Argument(show_default=False)] = None,
    filter: Filter = None,
    dry_run: DryRun = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Dead letters back to their queue; or other ended deliveries, when the filter names states."""

    async def work() -> None:
        asked = _asked(queue, filter)
        async with broker(url) as client:
            await _carry_out(client, await client.redrive(asked, dry_run=dry_run), "redriven", json)

    do(work())


def cancel(
    queue: Annotated[str | None, typer.Argument(show_default=False)] = None,
    filter: Filter = None,
    dry_run: DryRun = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Waiting messages out of their queue, for good."""

    async def work() -> None:
        asked = _asked(queue, filter)
        async with broker(url) as client:
            await _carry_out(client, await client.cancel(asked, dry_run=dry_run), "cancelled", json)

    do(work())


def purge(
    queue: Annotated[str, typer.Argument(show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Everything that waits in a queue out of it."""

    async def work() -> None:
        async with broker(url) as client:
            waiting = await client.queue(queue)
            states = waiting["figures"]["states"]
            _ask(
                yes or dry_run,
                f"Cancel {states['Q'] + states['R']:,} waiting messages of {queue}?",
                ", or --dry-run to count",
            )
            job = await (client.cancel(f"queue={queue}", dry_run=True) if dry_run else client.purge(queue))
            await _carry_out(client, job, "purged", json)

    do(work())


def _joined(queue: str | None, filter: str | None) -> str:
    return " ".join(part for part in (f"queue={queue}" if queue else "", as_meant(filter or "")) if part)


def _asked(queue: str | None, filter: str | None) -> str:
    asked = _joined(queue, filter)
    if not asked:
        raise CommandMisused("name a QUEUE or a --filter; nothing is done to everything by accident")
    return asked


async def _carry_out(client: Client, job: Job, done: str, json: bool) -> None:
    if job.id is None:
        document: dict[str, Any] = {"job": None, "matched": job.matched}
    else:
        ended = await client.job_done(job)
        document = {"job": job.id, "matched": job.matched, "done": ended["done"]}
    if json:
        json_document(document)
    elif job.id is None:
        show(plain(f"{job.matched:,} would be {done}"))
    else:
        show(plain(f"{document['done']:,} {done}"))


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
