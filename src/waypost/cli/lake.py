"""lake seal, status, verify, maintain: the log's cold half, seen and looked after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import LAKE_BESIDE, LAKE_OFF, load
from .asking import Json, Url, broker, do
from .failures import CommandFailed
from .output import bar, json_document, moment, pairs, plain, show, size, span

if TYPE_CHECKING:
    from ..client import Client
    from ..lake.owner import Lake
    from ..lake.verifying import Figures
    from ..stores.exporting import Export

Folder = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="The lake's folder; else the broker's.", show_default=False),
]
StoreOf = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store to compare it with.", show_default=False),
]

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
        ("sealed by", None if sealing.get("here", True) else "another broker"),
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
            "this broker has no lake; it needs a store that lasts, pip install 'waypost[lake]', and not --lake off; on PostgreSQL --lake DIR"
        )


# ── verify ──────────────────────────────────────────────────────────────────────────────────────


def verify(lake: Folder = None, store: StoreOf = None, url: Url = None, json: Json = False) -> None:
    """Read every file of the lake and check that nothing is missing, doubled or changed. No broker is needed."""
    from ..lake.keeper import EXTRA, missing_packages

    if missing_packages():
        raise CommandFailed(f"this needs: {EXTRA}")
    from ..lake.owner import Lake

    folder = Path(lake).expanduser().absolute() if lake is not None else Path(do(_told(url)))
    if not folder.is_dir():
        raise CommandFailed(f"there is no folder {folder} on this machine; say where the lake is: --lake DIR")
    figures, findings = _verified(Lake(folder), _log_of(Lake(folder), store))
    if json:
        json_document({"lake": str(folder), **_figures_json(figures), "findings": findings})
    else:
        for finding in findings:
            show(plain(finding, "red"))
        show(plain(_summary(figures)))
    if findings:
        raise typer.Exit(1)


def _figures_json(figures: Figures) -> dict[str, Any]:
    return {
        "oldest": figures.oldest,
        "sealed": figures.sealed,
        "events": figures.events,
        "payloads": figures.payloads,
        "withoutBody": figures.without_body,
        "files": figures.files,
        "bytes": figures.size,
        "compared": figures.compared,
    }


async def _told(url: str | None) -> str:
    """Where the broker has its lake; else where one that is started here would have it."""
    try:
        async with broker(url) as client:
            told: str | None = (await client.lake())["lake"]
    except CommandFailed:
        told = _beside_the_store() if url is None else None
        if told is None:
            raise
    if told is None:
        raise CommandFailed("this broker has no lake; say where one is: --lake DIR")
    return told


def _beside_the_store() -> str | None:
    wanted = load()["lake"].value
    if wanted == LAKE_OFF:
        return None
    if wanted != LAKE_BESIDE:
        return str(Path(wanted).expanduser().absolute())
    path = _store_file(load()["store"].value)
    folder = None if path is None else path.parent / "lake"
    return str(folder) if folder is not None and folder.is_dir() else None


def _store_file(url: str) -> Path | None:
    from ..stores.opening import parse_store_url

    parsed = parse_store_url(url)
    if parsed.scheme == "folder":
        return Path(parsed.path).absolute() / "log"
    return Path(parsed.path).absolute() if parsed.scheme == "sqlite" else None


def _log_of(lake: Lake, url: str | None) -> Export | None:
    """The store's own log, to compare with: the one that was named, else the one beside the lake or of the settings, if it is its."""
    from ..lake.owner import owner
    from ..stores.exporting import open_export
    from ..stores.urls import masked

    source = _source_of(load()["store"].value if url is None else url)
    if source is None:
        if url is not None:
            raise CommandFailed(f"there is no store at {url}")
        return None
    export = open_export(source)
    if export.id == owner(lake):
        return export
    export.close()
    if url is not None:
        raise CommandFailed(f"{lake.folder} is not the lake of {masked(source)}")
    return None


def _source_of(url: str) -> str | None:
    """What `open_export` reads; None: it is not there."""
    from ..stores.exporting import is_server

    path = _store_file(url)
    if path is not None and path.exists():
        return str(path)
    return url if is_server(url) else None


def _verified(lake: Lake, log: Export | None) -> tuple[Figures, list[str]]:
    from ..lake.verifying import Verification

    with bar("rows") as progress:
        task = progress.add_task("verifying", total=None, count="0")
        verification = Verification(
            lake,
            log,
            lambda read, all: progress.update(task, completed=read, total=all, count=f"{read:,} of {all:,}"),
        )
        try:
            findings = [str(finding) for finding in verification.findings()]
        finally:
            if log is not None:
                log.close()
    return verification.figures, findings


def _summary(figures: Figures) -> str:
    if figures.sealed is None:
        return "nothing could be looked at"
    wrong = f"{figures.findings:,} findings" if figures.findings else "nothing wrong"
    compared = f"; {figures.compared:,} events are as the store has them" if figures.compared else ""
    return (
        f"{wrong}: {figures.events:,} events, offsets {figures.oldest:,} to {figures.sealed:,}, {figures.payloads:,} payloads"
        f" ({figures.without_body:,} without body), {figures.files:,} files, {size(figures.size)}{compared}"
    )
