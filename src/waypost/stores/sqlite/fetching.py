"""Fetching: handing out what is ready, in its order.

Where every ready row is for everybody, the fetches of a group share one look at the queue and take its front. Where
it is not (several slots, refusals, an order by key, a topic filter), each row is looked at; a mark per consumer
remembers how far nothing was for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...commands import Fetch, Fetched, Staged
from ...delivery import E, F, K, Reason, Step
from ...errors import ConsumerRequired, QueueNotFound
from ...message import Entropy, Envelope, make_id, make_receipt, payload_hash
from ...names import ANONYMOUS
from ...topics import topic_matches
from .. import FETCH_BYTES, TOPIC_SCAN
from .names import Destination, Names
from .pending import INSERT_FETCH, Pending
from .rows import ENVELOPE_COLUMNS, Db, Row, envelope_of, signed
from .slots import Ledger, Slot

#: rows that one look at a queue brings at most
LOOK = 2_000

log = logging.getLogger("waypost")

_READY = f"""
    select r.priority, r.sequence, r.slot, r.known, m.at, m.salt, m.own_id, m.hash, m.size, m.body, {ENVELOPE_COLUMNS}
    from ready r cross join messages m on m.sequence = r.sequence
    where r.destination = ?"""


class Fetching:
    def __init__(self, db: Db, names: Names, ledger: Ledger, rows: Pending, draw: Entropy) -> None:
        self._db, self._names, self._ledger, self._rows, self._draw = db, names, ledger, rows, draw
        #: messages of one kind say the same of themselves, so they share what is made of it
        self._envelopes: dict[Row, Envelope] = {}

    def run(self, commands: Sequence[Any], results: list[Any]) -> None:
        """The plain fetches of one queue share one look at it."""
        looked: dict[Destination, list[Row]] = {}
        for index, command in enumerate(commands):
            queue = self._names.queues.get(command.queue)
            if queue is None:
                results.append(QueueNotFound(command.queue))
            elif queue.policy.counts_consumers and command.consumer == ANONYMOUS:
                results.append(
                    ConsumerRequired(
                        f"queue {queue.name!r} counts its consumers (complete: {queue.policy.complete})"
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
                    wanted = sum(other.n for other in commands[index:] if other.queue == command.queue)
                    rows = looked[queue] = self._look(queue, wanted)
                results.append(self._fetch_plain(queue, command, rows))

    def _look(self, queue: Destination, limit: int) -> list[Row]:
        """The first rows, last one first, so that they are popped in order."""
        self._rows.flush()
        order = " order by r.priority, r.sequence, r.slot limit ?"
        rows: list[Row] = self._db.execute(_READY + order, (queue.number, min(limit, LOOK))).fetchall()
        rows.reverse()
        return rows

    def _fetch_plain(self, queue: Destination, command: Fetch, rows: list[Row]) -> list[Fetched]:
        ledger = self._ledger
        now = ledger.now
        consumer = self._names.party(command.consumer)
        until_at = now + (queue.policy.lease_us if command.lease_us is None else command.lease_us)
        fetched: list[Fetched] = []
        bytes = 0
        while len(fetched) < command.n:
            if not rows:
                rows += self._look(queue, command.n - len(fetched))
                if not rows:
                    break
            bytes += rows[-1][8]
            if fetched and bytes > FETCH_BYTES:
                break
            row = rows.pop()
            priority, sequence, slot, known, created_at, _, _, hash, _, body = row[:10]
            if not isinstance(body, str) and payload_hash(body) != hash:
                self._damaged(queue, sequence, slot)
                continue
            ledger.head = offset = ledger.head + 1
            salt = self._draw()
            if known:
                was, attempt, tries, since_at, last = self._db.execute(
                    "select state, attempt, tries, since_at, last from deliveries"
                    " where sequence = ? and destination = ? and slot = ?",
                    (sequence, queue.number, slot),
                ).get
                attempt += 1
                self._rows.refetched.append(
                    (attempt, tries + 1, consumer, now, offset, until_at, sequence, queue.number, slot)
                )
            else:
                was, attempt, since_at, last = 3, 1, created_at, 0
                self._rows.deliveries.append((sequence, queue.number, slot, consumer, now, offset, until_at))
            self._rows.fetches.append(
                (
                    offset,
                    now,
                    sequence,
                    queue.number,
                    slot,
                    was,
                    (now - since_at) // 1_000,
                    attempt,
                    consumer,
                    signed(salt),
                    last,
                    until_at,
                    None,
                    None,
                    None,
                )
            )
            self._rows.taken[queue.number, priority] = (sequence, slot)
            queue.states[was] -= 1
            fetched.append(self._fetched(row, make_receipt(offset, salt), attempt, until_at))
        if fetched:
            queue.states[F] += len(fetched)
            queue.ready -= len(fetched)
            ledger.touched.add(queue)
        return fetched

    def _fetched(self, row: Row, receipt: str, attempt: int, until_at: int) -> Fetched:
        _, sequence, _, _, created_at, salt, own_id, hash, size, body = row[:10]
        return Fetched(
            own_id or make_id(sequence, salt, created_at),
            receipt,
            attempt,
            self._envelope(row[10:]),
            created_at,
            Staged(size, body, hash) if isinstance(body, str) else body,
            until_at,
        )

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
            row = self._db.execute(
                _READY + " and (r.priority, r.sequence, r.slot) >= (?, ?, ?) order by 1, 2, 3 limit 1",
                (queue.number, *place),
            ).get
            if row is None:
                break
            if not self._suits(row, queue, command, consumer):
                passed += command.topic is not None
            else:
                bytes += row[8]
                if fetched and bytes > FETCH_BYTES:
                    break
                slot = self._ledger.slot(row[1], queue.number, row[2])
                if not isinstance(row[9], str) and payload_hash(row[9]) != row[7]:
                    self._damaged(queue, row[1], row[2])
                else:
                    fetched.append(self._hand_out(slot, row, command, consumer))
            place = (row[0], row[1], row[2] + 1)
        if command.topic is None and command.consumer != ANONYMOUS:
            # What was passed is not for this consumer, what was taken is gone: next time start here.
            queue.marks[consumer] = place
        return fetched

    def _suits(self, row: Row, queue: Destination, command: Fetch, consumer: int) -> bool:
        if command.topic is not None and not any(
            topic_matches(command.topic, topic) for topic in row[10].split(",") if topic
        ):
            return False
        sequence, number = row[1], row[2]
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
        has_another = self._db.execute(
            "select 1 from deliveries where sequence = ? and destination = ? and slot <> ? and consumer = ?"
            " and state in (4, 5, 6, 8, 9) limit 1",
            (sequence, queue.number, number, consumer),
        ).get
        return has_another is None

    def _hand_out(self, slot: Slot, row: Row, command: Fetch, consumer: int) -> Fetched:
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
                None,
                None,
                None,
            ),
        )
        slot.attempt += 1
        slot.tries += 1
        slot.consumer, slot.reason = consumer, None
        slot.last, slot.since_at, slot.due_at = offset, now, until_at
        ledger.fetched(slot, was)
        if policy.kick:
            ledger.take(slot, Step((K,), None, None, slot.tries))
        return self._fetched(row, make_receipt(offset, salt), slot.attempt, until_at)
