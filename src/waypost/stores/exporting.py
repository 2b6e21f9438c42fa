"""What another process than the broker's reads a store by: its log as Arrow. Chosen by what the file is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .folder.export import Export as FolderExport
    from .sqlite.export import Export as SqliteExport

    Export = SqliteExport | FolderExport


def open_export(source: str) -> Export:
    """`source` is what the store's `export_source` said."""
    from .folder.log import is_log

    if is_log(source):
        from .folder.export import Export as FolderExport

        return FolderExport(source)
    from .sqlite.export import Export as SqliteExport

    return SqliteExport(source)
