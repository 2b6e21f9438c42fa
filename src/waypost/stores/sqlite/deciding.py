"""Deciding: where a message goes that stopped at L.

    undecided ─▶ U (it repeats the last one) │ Q in the queues and channels of its route │ E at `default`, if its routing failed

What is decided later than L has no place in the message's row: each slot begins with a step of its own.
"""

from __future__ import annotations

from ...commands import Decide, Decided, Staged
from ...delivery import E, L, State, U, X
from ...errors import MessageNotFound
from ...names import DEFAULT_QUEUE
from ...routing import parts_of
from .. import LONGEST_FAILURE
from .contents import Contents
from .names import Names
from .publishing import Publishing
from .reading import Reader
from .rows import ENVELOPE_COLUMNS, LATER, Db, envelope_of
from .slots import Ledger, Slot

_MESSAGE = f"select m.at, m.body, m.hash, m.size, {ENVELOPE_COLUMNS} from messages m where m.sequence = ?"


class Deciding:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        publishing: Publishing,
        contents: Contents,
        infer_types: bool,
    ) -> None:
        self._db, self._names, self._reader, self._ledger = db, names, reader, ledger
        self._publishing, self._contents, self._infer_types = publishing, contents, infer_types

    def decide(self, command: Decide) -> Decided:
        sequence = self._reader.sequence_of(command.id)
        if sequence is None:
            raise MessageNotFound(command.id)
        waiting = self._db.execute(
            "select object, due_at, force from undecided where sequence = ? and not failed", (sequence,)
        ).get
        if waiting is not None:
            object, due_at, force = waiting
            self._names.count_logged(object, -1)
            if command.failure is not None:
                self._fail(sequence, command.failure[-LONGEST_FAILURE:])
            else:
                self._route(sequence, command, due_at, bool(force))
        now = self._reader.published(sequence, command.id)
        return Decided(now.id, now.state, now.same_as, applied=waiting is not None)

    def _fail(self, sequence: int, reason: str) -> None:
        ledger = self._ledger
        queue = self._names.queues.get(DEFAULT_QUEUE) or ledger.make_queue(DEFAULT_QUEUE)
        slot = ledger.later_slot(sequence, queue, 0, reason=reason)
        slot.state, slot.expires_at = E, None
        age_ms = (ledger.now - slot.created_at) // 1_000
        slot.last = ledger.step(sequence, queue.number, 0, (L, E), age_ms, reason, ledger.own_last(sequence))
        self._db.execute("delete from deliveries where sequence = ? and destination = 0", (sequence,))
        ledger.add_ended(slot)
        self._db.execute("update undecided set failed = 1 where sequence = ?", (sequence,))

    def _route(self, sequence: int, command: Decide, due_at: int | None, force: bool) -> None:
        ledger = self._ledger
        created_at, body, hash, size, *columns = self._db.execute(_MESSAGE, (sequence,)).get
        envelope = envelope_of(tuple(columns), self._names.parties)
        age_ms = (ledger.now - created_at) // 1_000
        self._db.execute("delete from undecided where sequence = ?", (sequence,))
        stored = Staged(size, body, hash) if isinstance(body, str) else body
        compared = self._contents.hash(envelope.object, envelope.key, stored, command.content)
        if compared is not None:
            same_as = None if force else self._contents.repeated(*compared)
            if same_as is not None:
                ledger.set_route(sequence, LATER, same_as)
                self._end(sequence, U, age_ms)
                self._contents.count(envelope, str(envelope.object))
                return
            self._contents.note(*compared, command.id, sequence)
        ledger.set_route(sequence, LATER)
        registered = {name: info.consumer for name, info in self._names.consumers.items()}
        parts = parts_of(command.route, envelope, registered, self._infer_types)
        places = self._publishing.places(parts, envelope.topics, sequence)
        begun: list[Slot] = []
        for place, slots, kick in places:
            if len(slots) > 1:
                self._names.look_closely(place)
            for number, named in enumerate(slots):
                slot = ledger.later_slot(
                    sequence,
                    place,
                    number,
                    named=None if named is None else self._names.party(named),
                    kick=kick,
                    due_at=due_at if due_at is not None and due_at > ledger.now else None,
                )
                ledger.begin(slot, age_ms)
                begun.append(slot)
        if not any(slot.queue.is_queue for slot in begun):
            self._end(sequence, X, age_ms)
        for place, _, _ in places:
            ledger.note_latest(place, sequence, envelope.object, envelope.key)

    def _end(self, sequence: int, state: State, age_ms: int) -> None:
        """Without a queue slot."""
        ledger = self._ledger
        last = ledger.step(sequence, 0, 0, (L, state), age_ms, None, ledger.own_last(sequence))
        ledger.save_own(sequence, state, last)
