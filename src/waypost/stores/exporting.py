"""What another process than the broker's reads a store by: its log as Arrow. Chosen by what the store's `export_source` said."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..store import Task
    from .folder.export import Export as FolderExport
    from .postgres.export import Export as PostgresExport
    from .sqlite.export import Export as SqliteExport

    Export = SqliteExport | FolderExport | PostgresExport


def is_server(source: str) -> bool:
    """Whether it is a server's, with no folder for a lake beside it."""
    return source.startswith("postgresql://")


def open_export(source: str) -> Export:
    """`source` may hold a password: it is never shown."""
    if is_server(source):
        from .postgres.export import Export as PostgresExport

        return PostgresExport(source)
    from .folder.log import is_log

    if is_log(source):
        from .folder.export import Export as FolderExport

        return FolderExport(source)
    from .sqlite.export import Export as SqliteExport

    return SqliteExport(source)


def is_owner(export: Export, task: Task, broker: str) -> bool:
    """Whether the task is that broker's at this moment; where the store has a `tenure` of it."""
    from .postgres.export import Export as PostgresExport

    assert isinstance(export, PostgresExport)
    return export.is_owner(task, broker)
