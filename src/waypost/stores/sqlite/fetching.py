"""Fetching: handing out what is ready, in its order.

Where every ready row is for everybody, the fetches of a group share one look at the queue and take its front. Where
it is not (several slots, refusals, an order by key, a topic filter), each row is looked at; a mark per consumer
remembers how far nothing was for it.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from ...commands import Fetch, Fetched, Staged
from ...delivery import E, F, K, Q, R, Reason, Step
from ...destinations import Kind
from ...errors import ChannelNotFound, ConsumerRequired, QueueNotFound
from ...message import Entropy, Envelope, make_id, make_receipt, payload_hash
from ...names import ANONYMOUS
from ...topics import any_topic_matches
from .. import FETCH_BYTES, TOPIC_SCAN
from .names import Destination, Names
from .pending import INSERT_FETCH, Pending
from .rows import ENVELOPE_COLUMNS, Db, Row, envelope_of, signed
from .slots import Ledger, Slot
from .young import Lease, Message, Young

#: rows that one look at a queue brings at most
LOOK = 2_000

#: stands in for a body that must not be handed out
_DAMAGED = Staged(0, "")

log = logging.getLogger("waypost")

_MESSAGE = f"m.at, m.salt, m.own_id, m.hash, m.size, m.body, m.route, {ENVELOPE_COLUMNS}"
_FRONT = """
    select priority, sequence, slot, known from ready where destination = ? order by priority, sequence, slot limit ?"""
_MESSAGES = f"""
    select m.sequence, {_MESSAGE} from carray(?) c cross join messages m on m.sequence = c.value"""
_NEXT = f"""
    select r.priority, r.sequence, r.slot, {_MESSAGE} from ready r cross join messages m on m.sequence = r.sequence
    where r.destination = ? and (r.priority, r.sequence, r.slot) >= (?, ?, ?) order by 1, 2, 3 limit 1"""
_NEXT_NAMED = f"""
    select r.priority, r.sequence, r.slot, {_MESSAGE} from named r cross join messages m on m.sequence = r.sequence
    where r.destination = ? and r.consumer = ? and (r.priority, r.sequence, r.slot) >= (?, ?, ?)
    order by 1, 2, 3 limit 1"""
#: plain integers, because an enum's cost more in the hot path
_F, _Q = int(F), int(Q)


class Fetching:
    def __init__(
        self, db: Db, names: Names, ledger: Ledger, rows: Pending, young: Young, draw: Entropy
    ) -> None:
        self._db, self._names, self._ledger, self._rows = db, names, ledger, rows
        self._young, self._draw = young, draw
        #: messages of one kind say the same of themselves, so they share what is made of it
        self._envelopes: dict[Row, Envelope] = {}

    def run(self, commands: Sequence[Any], results: list[Any]) -> None:
        """The plain fetches of one queue share one look at it."""
        looked: dict[Destination, list[Row]] = {}
        #: the last one, if it was plain: requests with one head share one command, and what holds for the first holds for all
        plain: Any = None
        queue: Destination | None = None
        for index, command in enumerate(commands):
            if command is plain and queue is not None and queue.handed_out:
                results.append(self._fetch_plain(queue, command, looked[queue]))
                continue
            plain = None
            queue = self._names.existing[command.kind].get(command.queue)
            if queue is None:
                missing = QueueNotFound if command.kind is Kind.QUEUE else ChannelNotFound
                results.append(missing(command.queue))
            elif queue.policy.counts_consumers and command.consumer == ANONYMOUS:
                results.append(
                    ConsumerRequired(
                        f"{queue.kind.word} {queue.name!r} counts its consumers (complete: {queue.policy.complete})"
                    )
                )
            elif not queue.handed_out:
                results.append([])
            elif queue.picky(command):
                self._rows.flush()
                looked.clear()
                results.append(self._fetch_picky(queue, command))
            else:
                rows = looked.get(queue)
                if rows is None:
                    wanted = sum(
                        other.n
                        for other in commands[index:]
                        if other.queue == command.queue and other.kind is command.kind
                    )
                    rows = looked[queue] = self._look(queue, wanted)
                plain = command
                results.append(self._fetch_plain(queue, command, rows))

    def _look(self, queue: Destination, limit: int) -> list[Row]:
        """The first rows, last one first, so that they are popped in order; their messages are young again."""
        self._rows.flush()
        rows: list[Row] = self._db.execute(_FRONT, (queue.number, min(limit, LOOK))).fetchall()
        young = self._young.messages
        missing = [row[1] for row in rows if row[1] not in young]
        if missing:
            young |= self._load(missing)
        rows.reverse()
        return rows

    def _load(self, sequences: Sequence[int]) -> dict[int, Message]:
        wanted = apsw.carray(array("q", sequences))
        rows = self._db.execute(_MESSAGES, (wanted,))
        return {sequence: self._message(sequence, columns) for sequence, *columns in rows}

    def _message(self, sequence: int, columns: list[Any]) -> Message:
        """As read from the file; one whose payload is not what was published has no body."""
        created_at, salt, own_id, hash, size, body, route = columns[:7]
        if isinstance(body, str):
            body = Staged(size, body, hash)
        elif payload_hash(body) != hash:
            body = _DAMAGED
        envelope = self._envelope(tuple(columns[7:]))
        id = own_id or make_id(sequence, salt, created_at)
        return Message(id, envelope, created_at, body, size, isinstance(route, int))

    def _fetch_plain(self, queue: Destination, command: Fetch, rows: list[Row]) -> list[Fetched]:
        ledger, pending, wanted, number = self._ledger, self._rows, command.n, queue.number
        now, young, states = ledger.now, self._young.messages, queue.states
        leases, receipts = self._young.leases, self._young.receipts
        consumer = self._names.party(command.consumer)
        until_at = now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        shared = (now, number, consumer, until_at)
        fetched: list[Fetched] = []
        bytes = 0
        is_queue = queue.is_queue
        while len(fetched) < wanted:
            if not rows:
                rows += self._look(queue, wanted - len(fetched))
                if not rows:
                    break
            priority, sequence, slot, known = rows[-1]
            # A message of several queues was perhaps taken out for another one.
            message = young.get(sequence) or self._load((sequence,))[sequence]
            size = message.size
            if fetched and bytes + size > FETCH_BYTES:
                break
            bytes += size
            rows.pop()
            young.pop(sequence, None)
            if message.body is _DAMAGED:
                self._damaged(queue, sequence, slot)
                continue
            ledger.head = offset = ledger.head + 1
            salt = self._draw()
            receipt = make_receipt(offset, salt)
            if known:
                was, attempt, tries, since_at, last = self._db.execute(
                    "select state, attempt, tries, since_at, last from deliveries"
                    " where sequence = ? and destination = ? and slot = ?",
                    (sequence, number, slot),
                ).get
                attempt += 1
                pending.refetched.append(
                    (attempt, tries + 1, consumer, now, offset, until_at, sequence, number, slot)
                )
            else:
                was, attempt, since_at, last = _Q, 1, message.created_at, 0
            waited_ms = (now - since_at) // 1_000
            pending.fetches.add(shared, (offset, sequence, slot, was, waited_ms, attempt, signed(salt), last))
            pending.taken[number, priority] = (sequence, slot)
            states[was] -= 1
            if message.alone and is_queue:
                receipts[offset] = receipt
                leases[receipt] = Lease(
                    offset, receipt, message.id, sequence, number, slot, attempt, consumer, now, size
                )
            fetched.append(
                Fetched(
                    message.id, receipt, attempt, message.envelope, message.created_at, message.body, until_at
                )
            )
        if fetched:
            states[_F] += len(fetched)
            queue.ready -= len(fetched)
            ledger.touched.add(queue)
        return fetched

    def _envelope(self, columns: Row) -> Envelope:
        envelope = self._envelopes.get(columns)
        if envelope is None:
            if len(self._envelopes) >= 4_096:
                self._envelopes.clear()
            envelope = self._envelopes[columns] = envelope_of(columns, self._names.parties)
        return envelope

    def _damaged(self, queue: Destination, sequence: int, number: int) -> None:
        """Not handed out: a payload that is not what was published. It stands with the dead letters."""
        self._rows.flush()
        slot = self._ledger.slot(sequence, queue.number, number)
        log.error("payload of message %d in queue %s does not fit its checksum", sequence, queue.name)
        self._ledger.take(slot, Step((E,), Reason.DAMAGED, None, slot.tries))

    def _fetch_picky(self, queue: Destination, command: Fetch) -> list[Fetched]:
        """Row by row, passing those that are not for this consumer."""
        consumer = self._names.party(command.consumer)
        fetched: list[Fetched] = []
        passed = bytes = 0
        place = queue.marks.get(consumer, (0, 0, 0)) if command.topic is None else (0, 0, 0)
        while len(fetched) < command.n and passed < TOPIC_SCAN:
            row, own = self._db.execute(_NEXT, (queue.number, *place)).get, None
            if queue.named:
                own = self._db.execute(_NEXT_NAMED, (queue.number, consumer, *place)).get
                row = own if row is None or (own is not None and own[:3] < row[:3]) else row
            if row is None:
                break
            priority, sequence, number, *columns = row
            message = self._message(sequence, columns)
            if not self._suits(message, sequence, number, queue, command, consumer, row is own):
                passed += command.topic is not None
            else:
                bytes += message.size
                if fetched and bytes > FETCH_BYTES:
                    break
                self._young.messages.pop(sequence, None)
                if message.body is _DAMAGED:
                    self._damaged(queue, sequence, number)
                else:
                    slot = self._ledger.slot(sequence, queue.number, number)
                    fetched.append(self._hand_out(slot, message, command, consumer))
            place = (priority, sequence, number + 1)
        if command.topic is None and command.consumer != ANONYMOUS:
            # What was passed is not for this consumer, what was taken is gone: next time start here.
            queue.marks[consumer] = place
        return fetched

    def _suits(
        self,
        message: Message,
        sequence: int,
        number: int,
        queue: Destination,
        command: Fetch,
        consumer: int,
        named: bool,
    ) -> bool:
        if command.topic is not None and not any_topic_matches(command.topic, message.envelope.topics):
            return False
        if command.consumer == ANONYMOUS:
            return True
        if (
            queue.refusals
            and self._db.execute(
                "select 1 from refusals where sequence = ? and destination = ? and consumer = ? limit 1",
                (sequence, queue.number, consumer),
            ).get
        ):
            return False
        if not queue.slotted:
            return True
        return not self._ledger.has_another(sequence, queue.number, number, consumer, awaited=not named)

    def _hand_out(self, slot: Slot, message: Message, command: Fetch, consumer: int) -> Fetched:
        queue, ledger = slot.queue, self._ledger
        policy = queue.policy
        now = ledger.now
        until_at = now + (policy.lease_us if command.lease_us is None else command.lease_us)
        was = slot.state
        salt = self._draw()
        ledger.head = offset = ledger.head + 1
        self._db.execute(
            INSERT_FETCH,
            (
                offset,
                now,
                slot.sequence,
                queue.number,
                slot.number,
                was,
                (now - slot.since_at) // 1_000,
                slot.attempt + 1,
                consumer,
                signed(salt),
                slot.last,
                until_at,
            ),
        )
        slot.attempt += 1
        slot.tries += 1
        former = slot.consumer
        slot.consumer, slot.reason = consumer, None
        slot.last, slot.since_at, slot.due_at = offset, now, until_at
        ledger.fetched(slot, was)
        if was is R and former != consumer:
            ledger.free_siblings(slot)
        if policy.kick or slot.kick:
            ledger.take(slot, Step((K,), None, None, slot.tries))
        return Fetched(
            message.id,
            make_receipt(offset, salt),
            slot.attempt,
            message.envelope,
            message.created_at,
            message.body,
            until_at,
        )
