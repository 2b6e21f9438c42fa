"""lake seal, status, verify, maintain: the log's cold half, seen and looked after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .asking import Json, Url, broker, do
from .failures import CommandFailed
from .output import bar, json_document, moment, pairs, plain, show, span

if TYPE_CHECKING:
    from ..client import Client

#: how often a long seal is looked at
LOOK_SECONDS = 0.3


def status(url: Url = None, json: Json = False) -> None:
    """Where the lake is, how far it goes, and what is wrong with it."""

    async def work() -> None:
        async with broker(url) as client:
            document = await client.lake()
        if json:
            json_document(document)
            return
        show(pairs(status_lines(document)))

    do(work())


def status_lines(document: dict[str, Any]) -> list[tuple[str, Any]]:
    sealing = document["sealing"] or {}
    if document["lake"] is None:
        return [("lake", "off"), ("store", document["store"]), ("head", f"{document['head']:,}")]
    behind = f"{document['lag']:,} behind" if document["lag"] else "nothing behind"
    process = sealing.get("process")
    failure = document["failure"]
    return [
        ("lake", document["lake"]),
        ("store", document["store"]),
        ("from offset", f"{document['oldest']:,}"),
        ("sealed up to", f"{document['sealed']:,}, {behind}"),
        ("head", f"{document['head']:,}"),
        ("last seal", _last_seal(sealing)),
        ("process", "not needed yet" if process is None else str(process)),
        ("erasures that wait", f"{sealing['erasures']:,}" if sealing.get("erasures") else None),
        ("failures", f"{sealing['failures']:,}" if sealing.get("failures") else None),
        ("wrong now", None if failure is None else plain(failure, "red")),
    ]


def _last_seal(sealing: dict[str, Any]) -> str | None:
    if sealing.get("running"):
        return "under way"
    if sealing.get("last") is None:
        return None
    return f"{moment(sealing['last'])}, in {span(sealing['seconds'] * 1_000)}"


def seal(url: Url = None, json: Json = False) -> None:
    """Put all that is committed now into the lake, and wait until it is there."""

    async def work() -> None:
        async with broker(url) as client:
            before = await client.lake()
            _check_on(before)
            sealed = await _watched(client, before)
        if json:
            json_document({"sealed": sealed})
        else:
            added = sealed - before["sealed"]
            show(plain(f"sealed up to offset {sealed:,}" + (f", {added:,} of them now" if added else "")))

    do(work())


async def _watched(client: Client, before: dict[str, Any]) -> int:
    """Asks for the seal, and shows meanwhile how far it has come."""
    start, head = before["sealed"], before["head"]
    with bar("events") as progress:
        task = progress.add_task("sealing", total=head - start, count="0")
        sealing = asyncio.ensure_future(client.seal_lake())
        try:
            while not sealing.done():
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(sealing), LOOK_SECONDS)
                    break
                come = (await client.lake())["sealed"] - start
                progress.update(task, completed=come, count=f"{come:,} of {head - start:,}")
            return await sealing
        finally:
            sealing.cancel()


def maintain(url: Url = None, json: Json = False) -> None:
    """Put small files together, clean the tables' logs, remove what nobody needs; also done daily."""

    async def work() -> None:
        async with broker(url) as client:
            _check_on(await client.lake())
            with bar("") as progress:
                progress.add_task("maintaining", total=None, count="")
                document = await client.maintain_lake()
        if json:
            json_document(document)
            return
        show(
            plain(
                f"{document['compacted']:,} files put together into {document['into']:,}, {document['vacuumed']:,} gone from the disk"
                + (f", {document['forgotten']:,} events forgotten" if document["forgotten"] else "")
            )
        )

    do(work())


def _check_on(document: dict[str, Any]) -> None:
    if document["lake"] is None:
        raise CommandFailed(
            "this broker has no lake; it needs a store on disk, pip install 'waypost[lake]', and not --lake off"
        )
