"""Jobs: work on many that the broker does in slices, and how far it has come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .output import bar, json_document, note, plain, show

if TYPE_CHECKING:
    from ..client import Client, Job


async def follow(client: Client, id: str, doing: str) -> dict[str, Any]:
    """The job's document once it has ended. Whoever stops watching does not stop the job."""
    document: dict[str, Any] = {}
    with bar("deliveries") as progress:
        task = progress.add_task(doing, total=None, count="0")
        try:
            async for document in client.job_steps(id):
                progress.update(
                    task,
                    total=document["matched"],
                    completed=document["done"],
                    count=f"{document['done']:,} of {document['matched']:,}",
                )
        except asyncio.CancelledError:
            note(f"the broker goes on with it: GET /v1/jobs/{id}")
            raise
    return document


async def carry_out(client: Client, job: Job, doing: str, done: str, json: bool) -> None:
    """A job to its end, or what a dry run found."""
    if job.id is None:
        if json:
            json_document({"job": None, "matched": job.matched, "states": job.states})
        else:
            states = ", ".join(f"{count:,} in {letter}" for letter, count in job.states.items())
            show(plain(f"{job.matched:,} would be {done}" + (f": {states}" if states else "")))
        return
    ended = await follow(client, job.id, doing)
    if json:
        json_document({"job": job.id, "matched": job.matched, "done": ended["done"]})
    else:
        show(plain(f"{ended['done']:,} {done}"))
