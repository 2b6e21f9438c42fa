"""Contents: whether a message repeats the last one of its object and key.

A row of `contents` holds the last message of a thing that was not unchanged: its content's hash, its id, when it came and, once
it is forgotten, how it ended. It is looked at and written inside the group's transaction, so producers that publish
one key at the same moment get the answers they would have got one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from ...canonical import content_hash
from ...commands import Staged
from ...delivery import UNDELIVERED
from ...message import Envelope
from ...names import ANONYMOUS
from .names import Names
from .pending import Pending
from .reading import Reader
from .rows import STATE, Db
from .slots import Ledger

#: (object, key)
Thing = tuple[str, str]


class Contents:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        rows: Pending,
        unstage: Callable[[Staged], bytes],
    ) -> None:
        self._db, self._names, self._reader, self._ledger, self._rows = db, names, reader, ledger, rows
        self._unstage = unstage

    def hash(
        self, object: str | None, key: str | None, body: bytes | Staged, given: bytes
    ) -> tuple[Thing, bytes] | None:
        """What would be compared; None where nothing is."""
        if object is None or key is None or object not in self._names.compared:
            return None
        unchanged = self._names.objects[object].unchanged
        assert unchanged is not None
        if not given:
            whole = self._unstage(body) if isinstance(body, Staged) else body
            given = content_hash(whole, unchanged.ignore)
        return (object, key), given

    def repeated(self, thing: Thing, hash: bytes) -> str | None:
        """The id of the last one, if it says the same and was not in vain."""
        row = self._db.execute(
            "select hash, id, sequence, at, ended from contents where object = ? and key = ?", thing
        ).get
        unchanged = self._names.objects[thing[0]].unchanged
        if (
            row is None
            or unchanged is None
            or row[0] != hash
            or row[3] + unchanged.window_us <= self._ledger.now
        ):
            return None
        self._rows.flush()
        state = self._reader.state_of(row[2]) if row[4] is None else STATE[row[4]]
        return None if state in UNDELIVERED else str(row[1])

    def note(self, thing: Thing, hash: bytes, id: str, sequence: int) -> None:
        self._db.execute(
            "insert or replace into contents values (?, ?, ?, ?, ?, ?, null)",
            (*thing, hash, id, sequence, self._ledger.now),
        )

    def count(self, envelope: Envelope, object: str) -> None:
        self._db.execute(
            "insert into unchanged values (?, ?, 1) on conflict do update set count = count + 1",
            (object, envelope.producer or ANONYMOUS),
        )

    def forget(self, object: str) -> None:
        self._db.execute("delete from contents where object = ?", (object,))
