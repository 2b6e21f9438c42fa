"""spark warm: what makes Spark start quicker on this machine."""

from __future__ import annotations

from .asking import Json
from .output import bar, json_document, pairs, show, size, span


def warm(json: Json = False) -> None:
    """Prepare an archive of Java classes, once: later sessions start in about half the time."""
    from ..spark.warm import warm as rehearse

    with bar("") as progress:
        task = progress.add_task("starting", total=None, count="")
        warmed = rehearse(lambda line: progress.update(task, description=line))
    if json:
        json_document(
            {
                "java": warmed.java.version,
                "javaHome": str(warmed.java.home),
                "folder": str(warmed.home.folder),
                "bytes": warmed.archive_bytes,
                "coldSeconds": round(warmed.cold_seconds, 2),
                "warmSeconds": round(warmed.warm_seconds, 2),
            }
        )
        return
    show(
        pairs(
            [
                ("java", f"{warmed.java.version}, from {warmed.java.origin}: {warmed.java.home}"),
                ("kept in", f"{warmed.home.folder}, {size(warmed.archive_bytes)}"),
                ("first answer before", span(warmed.cold_seconds * 1_000)),
                ("first answer now", span(warmed.warm_seconds * 1_000)),
            ]
        )
    )
