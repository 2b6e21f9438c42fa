"""Checkpoints: the write-ahead log is copied into the file by a thread, and starts over.

The thread has its own connection and does the long part; it cannot keep pace with a busy writer to the last page, so
the writer does the short rest after its next commit, and the log begins again at its start instead of growing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from .files import connect

#: pages in the write-ahead log that start a checkpoint
PAGES = 4_000


class Checkpoints:
    def __init__(self, path: Path, synchronous: str, on_error: Callable[[Exception], None]) -> None:
        self._path, self._synchronous, self._on_error = path, synchronous, on_error
        self._wanted = threading.Event()
        self._rest = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def after_commit(self, writer: apsw.Connection, pages: int) -> None:
        """Called by the writer with the log's length."""
        if self._rest:
            self._rest = False
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        elif pages > PAGES and not self._wanted.is_set():
            self._wanted.set()

    def _run(self) -> None:
        connection = connect(self._path, self._synchronous)
        try:
            while True:
                self._wanted.wait()
                if self._stopped:
                    return
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._rest = True
                self._wanted.clear()
        except apsw.Error as error:
            self._on_error(error)
        finally:
            connection.close()

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()
        self._thread.join()
