"""The SQLite store: the embedded default; one file, one process. DESIGN.md beside this says why it is built so."""

from .store import SqliteStore

__all__ = ["SqliteStore"]
