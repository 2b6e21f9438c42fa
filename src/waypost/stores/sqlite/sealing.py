"""Sealing: what the lake holds of this store, and what it has to erase.

    Seal(upto)      the lake has everything up to here     ─▶  the reaper may forget it
    ErasePayload    gone here at once, and noted           ─▶  the lake erases it too  ─▶  Erased(sequences): the note goes

A body that is erased is overwritten (`secure_delete`), not only cut off; what the write-ahead log still has of it goes when that starts over.
"""

from __future__ import annotations

from ...commands import Erased, ErasePayload, Seal
from ...delivery import OPEN, C, Reason, Step
from ...errors import MessageNotFound, RequestInvalid, StillLogged
from .files import overwriting
from .reading import Reader
from .reaping import Reaper
from .rows import Db
from .slots import Ledger
from .young import Young


class Sealing:
    def __init__(self, db: Db, reader: Reader, ledger: Ledger, reaper: Reaper, young: Young) -> None:
        self._db, self._reader, self._ledger, self._reaper, self._young = db, reader, ledger, reaper, young

    def seal(self, command: Seal) -> None:
        head = self._ledger.head
        if not 0 <= command.upto <= head:
            raise RequestInvalid(f"no event has offset {command.upto}", f"the log ends at {head}")
        self._reaper.seal(command.upto)

    def erase(self, command: ErasePayload) -> bool:
        known = self._reader.sequence_of(command.id)
        sequence = command.sequence if known is None else known
        if sequence is None:
            raise MessageNotFound(command.id)
        if self._db.execute("select 1 from undecided where sequence = ? and not failed", (sequence,)).get:
            raise StillLogged(command.id)
        if self._reaper.lake or self._reaper.sealed is not None:
            self._db.execute("insert or ignore into erasures values (?)", (sequence,))
        if known is None or not self._erase_here(known):
            return False
        self._cancel(known)
        return True

    def _erase_here(self, sequence: int) -> bool:
        """Whether there was one."""
        if self._db.execute("select body is null from messages where sequence = ?", (sequence,)).get:
            return False
        self._young.messages.pop(sequence, None)
        with overwriting(self._db):
            self._reaper.drop_body(sequence)
        return True

    def _cancel(self, sequence: int) -> None:
        route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
        for place, state in sorted(self._reader.states(sequence, route)):
            if state in OPEN:
                slot = self._ledger.slot(sequence, *place)
                self._ledger.take(slot, Step((C,), Reason.ERASED, None, slot.tries))

    def erased(self, command: Erased) -> None:
        self._db.executemany(
            "delete from erasures where sequence = ?", [(sequence,) for sequence in command.sequences]
        )
