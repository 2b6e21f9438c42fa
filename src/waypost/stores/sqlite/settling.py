"""Settling: what consumers say of what they fetched, and what is taken out of their hands.

A receipt is valid until the next fetch of its slot, a redrive, or an end; its fetch's row knows how it was settled, so
that a repeat gets the same answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from ...commands import Confirm, Extend, Extended, Kick, Release, Remove, Settled
from ...delivery import OPEN, C, F, K, N, Outcome, Q, R, Reason, S, State, Step, settle
from ...destinations import Kind
from ...errors import ChannelNotFound, QueueNotFound
from ...message import Entropy, make_id, parse_receipt
from ...names import ANONYMOUS
from .names import Destination, Names
from .pending import SUCCESS, Pending
from .reading import Reader
from .rows import OUTCOMES, STATE, Db, unsigned
from .slots import Ledger
from .young import Lease, Young

#: plain integers, because an enum's cost more in the hot path
_F, _S = int(F), int(S)
_RECEIPTS = """
    select f."offset", f.salt, f.sequence, f.destination, f.slot, f.attempt, f.consumer, f.outcome, f.became, f.at,
           d.state, d.last, m.at, m.salt, m.own_id, m.route, m.size
    from carray(?) c cross join fetches f on f."offset" = c.value cross join messages m on m.sequence = f.sequence
    cross join deliveries d on d.sequence = f.sequence and d.destination = f.destination and d.slot = f.slot"""


class Settling:
    def __init__(
        self,
        db: Db,
        names: Names,
        reader: Reader,
        ledger: Ledger,
        rows: Pending,
        young: Young,
        draw: Entropy,
    ) -> None:
        self._db, self._names, self._reader, self._ledger, self._rows = db, names, reader, ledger, rows
        self._young, self._draw = young, draw

    def confirm_run(self, commands: Sequence[Any], results: list[Any]) -> None:
        leases = self._young.leases
        #: what has no lease in memory is read at once for all
        older = [text for command in commands for text in command.receipts if text not in leases]
        parsed = {text: parse_receipt(text) for text in older}
        fetches = self._fetches(receipt[0] for receipt in parsed.values() if receipt is not None)
        for command in commands:
            queue = self._names.existing[command.kind].get(command.queue)
            if queue is None:
                missing = QueueNotFound if command.kind is Kind.QUEUE else ChannelNotFound
                results.append(missing(command.queue))
                continue
            plain = command.outcome is Outcome.SUCCESS and not queue.tracked
            settled = []
            for text in command.receipts:
                lease = leases.get(text) if plain else None
                if lease is not None and lease.destination == queue.number:
                    settled.append(self._succeed(lease, queue, command.reason))
                    parsed.pop(text, None)  # what was read of it is no longer true
                    continue
                if text not in parsed:
                    # Its lease went by an earlier command of this group, or is not for this way.
                    self._rows.flush()
                    parsed[text] = receipt = parse_receipt(text)
                    if receipt is not None:
                        fetches |= self._fetches((receipt[0],))
                settled.append(self._settle(text, parsed[text], queue, command, fetches))
            results.append(settled)

    def _fetches(self, offsets: Iterable[int]) -> dict[int, list[Any]]:
        wanted = array("q", offsets)
        if not wanted:
            return {}
        return {row[0]: list(row) for row in self._db.execute(_RECEIPTS, (apsw.carray(wanted),))}

    def _settle(
        self,
        text: str,
        receipt: tuple[int, int] | None,
        queue: Destination,
        command: Confirm,
        fetches: dict[int, list[Any]],
    ) -> Settled:
        row = fetches.get(receipt[0]) if receipt is not None else None
        if row is None or receipt is None or unsigned(row[1]) != receipt[1] or row[3] != queue.number:
            return Settled(text)
        # fmt: off
        (offset, _, sequence, destination, number, attempt, consumer, outcome, became, fetched_at,
         state, last, created_at, salt, own_id, route, size) = row
        # fmt: on
        id = own_id or make_id(sequence, salt, created_at)
        if became is not None:
            repeated = outcome == OUTCOMES[command.outcome]
            return Settled(text, id, STATE[became]) if repeated else Settled(text)
        if (state != _F or last != offset) and not (state == R and self._lease_was_over(offset, last)):
            return Settled(text)
        if (
            state != _F
            or command.outcome is not Outcome.SUCCESS
            or not isinstance(route, int)
            or not queue.is_queue
            or queue.tracked
        ):
            follows = self._settle_slot(sequence, destination, number, command, offset)
            row[7:9] = OUTCOMES[command.outcome], follows
            return Settled(text, id, follows)
        row[7], row[8] = SUCCESS, _S
        lease = Lease(offset, text, id, sequence, destination, number, attempt, consumer, fetched_at, size)
        return self._succeed(lease, queue, command.reason)

    def _succeed(self, lease: Lease, queue: Destination, reason: str | None) -> Settled:
        """The short way: a message that was alone in its slot, and is completed with it."""
        ledger, rows = self._ledger, self._rows
        now, step = ledger.now, ledger.head + 1
        ledger.head += 2
        self._young.end_lease(lease.offset)
        took_ms = (now - lease.fetched_at) // 1_000
        rows.successes.add(
            (now, queue.number, reason),
            (step, lease.sequence, lease.slot, took_ms, lease.attempt, lease.consumer, lease.offset),
        )
        states = queue.states
        states[_F] -= 1
        states[_S] += 1
        queue.bytes -= lease.size
        ledger.touched.add(queue)
        return Settled(lease.receipt, lease.message_id, S)

    def _lease_was_over(self, fetch: int, last: int) -> bool:
        """Whether nothing but the end of the lease came after this fetch."""
        return bool(self._db.execute('select previous from steps where "offset" = ?', (last,)).get == fetch)

    def _settle_slot(
        self, sequence: int, destination: int, number: int, command: Confirm, fetch: int
    ) -> State:
        self._rows.flush()
        slot = self._ledger.slot(sequence, destination, number)
        step = settle(
            command.outcome,
            in_queue=slot.queue.is_queue,
            named=slot.consumer is not None and self._names.parties[slot.consumer] != ANONYMOUS,
            tries=slot.tries,
            policy=slot.queue.policy,
            reason=command.reason,
            delay_us=command.delay_us,
            now=self._ledger.now,
            draw=self._draw,
        )
        if step.path[0] is N:
            slot.queue.refusals = True
            self._db.execute(
                "insert or ignore into refusals values (?, ?, ?, ?)",
                (sequence, destination, number, slot.consumer),
            )
        self._ledger.take(slot, step, outcome=OUTCOMES[command.outcome], fetch=fetch)
        if slot.state is not step.state:
            self._db.execute('update fetches set became = ? where "offset" = ?', (slot.state, fetch))
        return slot.state

    def _valid(self, text: str, queue: Destination | None) -> list[Any] | None:
        """The fetch behind a receipt that is neither stale nor settled."""
        receipt = parse_receipt(text)
        row = self._fetches((receipt[0],)).get(receipt[0]) if receipt is not None else None
        if row is None or receipt is None or unsigned(row[1]) != receipt[1]:
            return None
        if queue is not None and row[3] != queue.number:
            return None
        return row if row[8] is None and row[10] == F and row[11] == row[0] else None

    def extend(self, command: Extend) -> list[Extended]:
        queue = self._names.find(command.kind, command.queue)
        until_at = self._ledger.now + (
            queue.policy.lease_us if command.lease_us is None else command.lease_us
        )
        extended = []
        for text in command.receipts:
            row = self._valid(text, queue)
            if row is not None:
                self._db.execute(
                    "update deliveries set due_at = ? where sequence = ? and destination = ? and slot = ?",
                    (until_at, *row[2:5]),
                )
            extended.append(Extended(text, None if row is None else until_at))
        return extended

    def let_go(self, command: Release | Kick) -> list[Settled]:
        """What was fetched goes back, or is done without a confirm."""
        let_go = []
        for text in command.receipts:
            row = self._valid(text, None)
            if row is None:
                let_go.append(Settled(text))
                continue
            slot = self._ledger.slot(*row[2:5])
            if isinstance(command, Kick):
                self._ledger.take(slot, Step((K,), None, None, slot.tries))
            else:
                self._ledger.take(slot, Step((Q,), Reason.RELEASED, None, slot.tries - 1))
            let_go.append(Settled(text, row[14] or make_id(row[2], row[13], row[12]), slot.state))
        return let_go

    def remove(self, command: Remove) -> bool:
        queue = self._names.existing[command.kind].get(command.queue)
        sequence = self._reader.sequence_of(command.id) if queue else None
        done = False
        if queue is not None and sequence is not None:
            route = self._db.execute("select route from messages where sequence = ?", (sequence,)).get
            for (destination, number), state in self._reader.states(sequence, route):
                if destination == queue.number and state in OPEN:
                    slot = self._ledger.slot(sequence, destination, number)
                    self._ledger.take(slot, Step((S if state is F else C,), Reason.REMOVED, None, slot.tries))
                    done = True
        return done
