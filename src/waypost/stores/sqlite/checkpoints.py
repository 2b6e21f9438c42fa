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
    def __init__(
        self,
        path: Path,
        synchronous: str,
        *,
        on_full: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._path, self._synchronous = path, synchronous
        self._on_full, self._on_error = on_full, on_error
        self._wanted = threading.Event()
        self._under_way = self._rest = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def after_commit(self, writer: apsw.Connection, pages: int) -> None:
        """Called by the writer with the log's length."""
        if self._rest:
            self._rest = False
            self._checkpoint(writer)
        elif pages > PAGES and not self._under_way:
            self._under_way = True
            self._wanted.set()

    def _run(self) -> None:
        connection = connect(self._path, self._synchronous)
        try:
            while True:
                self._wanted.wait()
                # Cleared before the work, so that a stop during it is seen after it.
                self._wanted.clear()
                if self._stopped:
                    return
                self._checkpoint(connection)
                self._rest, self._under_way = True, False
        except apsw.Error as error:
            self._on_error(error)
        finally:
            connection.close()

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """A full disk is no damage: the log stays as it is, and grows, until there is room again. Nor is a writer who is
        just in the way: it is tried again after a later commit."""
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.FullError:
            self._on_full()
        except apsw.BusyError:
            pass

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()
        self._thread.join()
