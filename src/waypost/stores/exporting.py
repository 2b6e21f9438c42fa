"""What another process than the broker's reads a store by: its log as Arrow. Chosen by what the store's `export_source` said."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .postgres.export import Export as PostgresExport
    from .sqlite.export import Export as SqliteExport

    Export = SqliteExport | PostgresExport


def open_export(source: str) -> Export:
    """`source` may hold a password: it is never shown."""
    if source.startswith("postgresql://"):
        from .postgres.export import Export as PostgresExport

        return PostgresExport(source)
    from .sqlite.export import Export as SqliteExport

    return SqliteExport(source)
