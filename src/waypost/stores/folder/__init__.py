"""The folder store: one file a message, in folders that a shell can read."""

from .store import FolderStore

__all__ = ["FolderStore"]
