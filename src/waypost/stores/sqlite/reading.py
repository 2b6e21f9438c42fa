"""Reading: events, messages and searches, from one connection.

The store has a reader of its own beside the writer, for what others ask; the writer has one on its connection, which sees the
group it is in the middle of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ...commands import Published, Staged
from ...delivery import DEAD, F, L, Q, State, U, X, message_state
from ...errors import LogTrimmed, MessageNotFound, PayloadDamaged, PayloadReaped
from ...filters import Filter, bounds_fetches, in_bounds
from ...message import make_id, parse_id, payload_hash
from ...store import DeliveryInfo, Event, MessageInfo, Undecided
from ...topics import any_topic_matches
from .names import Names
from .rows import ENVELOPE_COLUMNS, STATE, Db, LogRows, Row, envelope_of, unpack_route

#: offsets that one look of a search goes through
SEARCH_WINDOW = 20_000

MESSAGE_EVENTS = f"""
    select m.sequence, m.at, m.salt, m.own_id, m.route, m.same_as, m.hash, m.size, {ENVELOPE_COLUMNS}
    from messages m where m.sequence between ? and ? order by m.sequence"""
FETCH_EVENTS = """
    select f."offset", f.at, f.sequence, f.destination, f.slot, f.from_state, f.duration_ms, f.attempt, f.consumer,
           m.at, m.salt, m.own_id
    from fetches f cross join messages m on m.sequence = f.sequence"""
STEP_EVENTS = """
    select s."offset", s.at, s.sequence, s.destination, s.slot, s.path, s.duration_ms, s.attempt, s.consumer, s.reason,
           m.at, m.salt, m.own_id, m.same_as
    from steps s cross join messages m on m.sequence = s.sequence"""
_DELIVERIES = """
    select sequence, destination, slot, state, attempt, consumer, reason, since_at, due_at, last, named
    from deliveries where sequence between ? and ? order by sequence, destination, slot"""


NO_FILTER = Filter()
#: (queue's or channel's number, delivery)
_Found = tuple[int, DeliveryInfo]


class Reader:
    def __init__(self, db: Db, names: Names) -> None:
        self._db, self._names = db, names
        self._rows = LogRows(names.places, names.parties)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    def bounds(self) -> tuple[int, int]:
        oldest, head = self._db.execute('select oldest, "offset" from head').get
        return oldest, head

    def events(self, lo: int, hi: int) -> list[Event]:
        oldest = self.bounds()[0]
        if lo < oldest:
            raise LogTrimmed(oldest)
        found = list(self._events(lo, hi))
        found.sort(key=lambda event: event.offset)
        return found

    def _events(self, lo: int, hi: int) -> Iterable[Event]:
        """A row may begin before lo and still hold events from lo on, so each table is read from the row before."""
        first = self._db.execute("select max(sequence) from messages where sequence <= ?", (lo,)).get or lo
        for row in self._db.execute(MESSAGE_EVENTS, (first, hi)):
            yield from (event for event in self._rows.of_message(row) if lo <= event.offset <= hi)
        for row in self._db.execute(FETCH_EVENTS + ' where f."offset" between ? and ?', (lo, hi)):
            yield self._rows.of_fetch(row)
        first = self._db.execute('select max("offset") from steps where "offset" <= ?', (lo,)).get or lo
        for row in self._db.execute(STEP_EVENTS + ' where s."offset" between ? and ?', (first, hi)):
            yield from (event for event in self._rows.of_step(row) if lo <= event.offset <= hi)

    def row_of(self, offset: int) -> tuple[int, int]:
        """(first offset, instant) of the row that holds this offset."""
        return max(
            self._db.execute(
                "select * from (select sequence, at from messages where sequence <= ?1 order by sequence desc limit 1)"
                ' union all select * from (select "offset", at from fetches where "offset" <= ?1'
                ' order by "offset" desc limit 1)'
                ' union all select * from (select "offset", at from steps where "offset" <= ?1'
                ' order by "offset" desc limit 1)',
                (offset,),
            ),
            default=(1, 0),
        )

    def offset_at(self, at: int) -> int:
        return max(self.bounds()[0], self._first_since(at))

    def _first_since(self, at: int) -> int:
        """By halving: instants never fall with the offset."""
        lo, hi = 1, self.bounds()[1] + 1
        while lo < hi:
            middle = (lo + hi) // 2
            if self.row_of(middle)[1] < at:
                lo = middle + 1
            else:
                hi = middle
        return lo

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def sequence_of(self, id: str) -> int | None:
        own = self._db.execute("select sequence from own_ids where id = ?", (id,)).get
        if own is not None:
            return int(own)
        parsed = parse_id(id)
        if parsed is None:
            return None
        row = self._db.execute(
            "select at, salt, own_id from messages where sequence = ?", (parsed.sequence,)
        ).get
        if row is None:
            return None
        at, salt, own_id = row
        fits = own_id is None and salt == parsed.salt and at // 1_000 == parsed.created_ms
        return parsed.sequence if fits else None

    def message(self, id: str) -> MessageInfo | None:
        sequence = self.sequence_of(id)
        if sequence is None:
            return None
        oldest = self.bounds()[0]
        row = self._db.execute(MESSAGE_EVENTS, (sequence, sequence)).get
        priority, expires_at = self._db.execute(
            "select priority, expires_at from messages where sequence = ?", (sequence,)
        ).get
        journey = list(self._rows.of_message(row))
        for (last,) in self._db.execute(
            "select last from deliveries where sequence = ?", (sequence,)
        ).fetchall():
            journey += self._walk(last)
        return MessageInfo(
            id=id,
            sequence=sequence,
            envelope=envelope_of(row[8:], self._names.parties),
            hash=row[6],
            size=row[7],
            priority=priority,
            created_at=row[1],
            expires_at=expires_at,
            state=self._state(sequence, row[4], row[5] is not None),
            same_as=None if row[5] is None else row[5].decode(),
            deliveries=[delivery for _, delivery in self._deliveries(sequence, sequence)[0][1]],
            journey=sorted((e for e in journey if e.offset >= oldest), key=lambda event: event.offset),
        )

    def _walk(self, last: int) -> Iterable[Event]:
        """A slot's rows from the last back to the first; each names the one before it."""
        while last:
            row = self._db.execute(STEP_EVENTS + ' where s."offset" = ?', (last,)).get
            if row is not None:
                yield from self._rows.of_step(row)
                last = self._db.execute('select previous from steps where "offset" = ?', (last,)).get
                continue
            row = self._db.execute(FETCH_EVENTS + ' where f."offset" = ?', (last,)).get
            if row is None:
                return
            yield self._rows.of_fetch(row)
            last = self._db.execute('select previous from fetches where "offset" = ?', (last,)).get

    def body(self, id: str) -> bytes | Staged:
        sequence = self.sequence_of(id)
        if sequence is None:
            raise MessageNotFound(id)
        body, size, hash = self._db.execute(
            "select body, size, hash from messages where sequence = ?", (sequence,)
        ).get
        if body is None:
            raise PayloadReaped(f"the body of {id!r} is gone")
        if isinstance(body, str):
            return Staged(size, body, hash)
        if payload_hash(body) != hash:
            raise PayloadDamaged(f"the body of {id!r} does not fit its checksum")
        return bytes(body)

    def states(self, sequence: int, route: int | str | None) -> list[tuple[tuple[int, int], State]]:
        """((destination, slot), state) of every delivery of one message."""
        known = {
            (destination, slot): STATE[state]
            for destination, slot, state in self._db.execute(
                "select destination, slot, state from deliveries where sequence = ? and destination > 0",
                (sequence,),
            )
        }
        slots = {place: Q for place in unpack_route(route)} | known
        return list(slots.items())

    def queue_states(self, sequence: int, route: int | str | None) -> list[tuple[tuple[int, int], State]]:
        """Those of its queue slots, which alone make its state."""
        by_number = self._names.by_number
        return [entry for entry in self.states(sequence, route) if by_number[entry[0][0]].is_queue]

    def _state(self, sequence: int, route: int | str | None, unchanged: bool) -> State:
        states = [state for _, state in self.queue_states(sequence, route)]
        if states:
            return message_state(states)
        if unchanged:
            return U
        return L if route is None else X

    def state_of(self, sequence: int) -> State:
        return self.published(sequence, "").state

    def published(self, sequence: int, id: str) -> Published:
        """What a publish of this message would answer now."""
        route, same_as = self._db.execute(
            "select route, same_as from messages where sequence = ?", (sequence,)
        ).get
        state = self._state(sequence, route, same_as is not None)
        return Published(id, state, None if same_as is None else same_as.decode())

    def undecided(
        self, after: int, limit: int, only: Collection[str] | None, but: Collection[str]
    ) -> list[Undecided]:
        chosen, objects = "", []
        if only is not None:
            chosen += " and u.object in (select value from json_each(?))"
            objects.append(msgspec.json.encode(list(only)).decode())
        if but:
            chosen += " and (u.object is null or u.object not in (select value from json_each(?)))"
            objects.append(msgspec.json.encode(list(but)).decode())
        rows = self._db.execute(
            f"select m.sequence, m.at, m.salt, m.own_id, m.hash, m.size, m.body, {ENVELOPE_COLUMNS}"
            " from undecided u cross join messages m on m.sequence = u.sequence"
            f" where u.sequence > ? and not u.failed{chosen} order by u.sequence limit ?",
            (after, *objects, limit),
        )
        return [
            Undecided(
                id=own_id or make_id(sequence, salt, at),
                sequence=sequence,
                envelope=envelope_of(tuple(envelope), self._names.parties),
                created_at=at,
                size=size,
                body=Staged(size, body, hash) if isinstance(body, str) else bytes(body),
            )
            for sequence, at, salt, own_id, hash, size, body, *envelope in rows
        ]

    # ── search ──────────────────────────────────────────────────────────────────────────────

    def _deliveries(self, lo: int, hi: int, filter: Filter = NO_FILTER) -> list[tuple[int, list[_Found]]]:
        """(sequence, deliveries) of each message lo … hi that the filter wants, in order."""
        known: dict[int, list[Row]] = {}
        for row in self._db.execute(_DELIVERIES, (lo, hi)):
            known.setdefault(row[0], []).append(row)
        found = []
        for sequence, at, salt, own_id, route, topics, object, key in self._db.execute(
            "select sequence, at, salt, own_id, route, topics, object, key from messages"
            " where sequence between ? and ? order by sequence",
            (lo, hi),
        ):
            if (
                (filter.object is not None and filter.object != object)
                or (filter.key is not None and filter.key != key)
                or (filter.topic is not None and not any_topic_matches(filter.topic, topics.split(",")))
            ):
                continue
            id = own_id or make_id(sequence, salt, at)
            rows = {place: _untouched(sequence, place, at) for place in unpack_route(route)}
            for row in known.get(sequence, ()):
                if row[1]:
                    rows[row[1:3]] = row
            chosen = [
                (row[1], self._delivery(id, at, row))
                for _, row in sorted(rows.items())
                if self._selects(filter, row)
            ]
            found.append((sequence, chosen))
        return found

    def _delivery(self, id: str, created_at: int, row: Row) -> DeliveryInfo:
        sequence, destination, slot, state, attempt, consumer, reason, since_at, due_at, _, named = row
        queue, channel = self._names.places[destination]
        return DeliveryInfo(
            sequence=sequence,
            message_id=id,
            queue=queue,
            channel=channel,
            slot=slot,
            state=STATE[state],
            attempt=attempt,
            consumer=None if consumer is None else self._names.parties[consumer],
            reason=reason,
            created_at=created_at,
            changed_at=since_at,
            due_at=due_at,
            named=None if named is None else self._names.parties[named],
        )

    def _selects(self, filter: Filter, row: Row) -> bool:
        """What the message and the bounds of the search have not settled yet."""
        queue, channel = self._names.places[row[1]]
        if (
            (filter.queue is not None and filter.queue != queue)
            or (filter.channel is not None and filter.channel != channel)
            or (filter.states is not None and STATE[row[3]] not in filter.states)
            or (filter.existing and self._names.by_number[row[1]].deleted)
        ):
            return False
        if filter.consumer is None:
            return True
        consumer = row[5] or row[10]
        if consumer is None or self._names.parties[consumer] != filter.consumer:
            return False
        return not bounds_fetches(filter) or any(
            event.to_state is F and event.consumer == filter.consumer and in_bounds(filter, event.at)
            for event in self._walk(row[9])
        )

    def search(self, filter: Filter, after: int, limit: int) -> tuple[list[_Found], int | None]:
        """As `Store.find`, with the number of each one's queue or channel."""
        lo, hi = after + 1, self.bounds()[1]
        if filter.since_at is not None and not bounds_fetches(filter):
            lo = max(lo, self._first_since(filter.since_at))
        if filter.until_at is not None:
            # Nothing is fetched before it is logged.
            hi = min(hi, self._first_since(filter.until_at) - 1)
        if filter.id is not None:
            sequence = self.sequence_of(filter.id)
            if sequence is None or not lo <= sequence <= hi:
                return [], None
            lo = hi = sequence
        if lo > hi:
            return [], None
        if filter.states is not None and filter.states <= DEAD:
            return self._find_dead(filter, lo, hi, limit)
        window = min(hi, lo + SEARCH_WINDOW - 1)
        found: list[_Found] = []
        for sequence, deliveries in self._deliveries(lo, window, filter):
            if len(found) >= limit:
                return found, sequence - 1
            found += deliveries
        return found, window if window < hi else None

    def _find_dead(self, filter: Filter, lo: int, hi: int, limit: int) -> tuple[list[_Found], int | None]:
        """Through their own index: dead letters lie among millions that are not."""
        sequences = self._db.execute(
            "select distinct sequence from deliveries indexed by deliveries_dead"
            " where state in (8, 9) and sequence between ? and ? order by sequence limit ?",
            (lo, hi, limit),
        ).fetchall()
        found: list[_Found] = []
        for (sequence,) in sequences:
            for _, deliveries in self._deliveries(sequence, sequence, filter):
                found += deliveries
        return found, sequences[-1][0] if len(sequences) == limit else None


def _untouched(sequence: int, place: tuple[int, int], at: int) -> Row:
    """A delivery as it was routed, in the form of a row of `deliveries`."""
    return (sequence, *place, int(Q), 0, None, None, at, None, 0, None)
