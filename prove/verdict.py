"""The judgement: what the load was told, beside what the broker has. Pure.

lost         acknowledged for a queue or channel, never delivered from it, and not listed with its dead letters
again        delivered after a confirm of it was answered with a final state
forgotten    answered (a publish, a fetch, a confirm), and the log does not have it
unexpected   delivered, but never sent, refused, or not as it was sent
duplicated   one publish, more than one message
illegal      the log is not dense, a journey is not one of TRANSITIONS, or a depth differs from a recount
recovered    no answer, yet stored: allowed
redelivered  delivered again without a confirm: allowed
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from waypost.delivery import DEAD, ENDED, MESSAGE_TRANSITIONS, STATES, TRANSITIONS, L, State

from .messages import QUEUES
from .record import Record

#: each must be 0
FAULTY = ("lost", "again", "forgotten", "unexpected", "duplicated", "illegal", "strange")
#: states after which a delivery is never handed out again
FINAL = frozenset({"S", "I"})
#: so many findings are told in words
TOLD = 20

#: one fetch: (message id, queue, attempt)
Fetch = tuple[str, str, int]


class Event(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What is needed of a line of the log."""

    offset: int
    at: str
    message_id: str
    sequence: int
    to_state: str
    queue: str | None = None
    slot: int | None = None
    from_state: str | None = None
    attempt: int | None = None
    hash: str | None = None
    channel: str | None = None

    @property
    def place(self) -> str | None:
        return self.queue if self.channel is None else f"channel/{self.channel}"


class Verdict(msgspec.Struct, kw_only=True):
    #: messages sent
    attempted: int = 0
    #: … and answered with success
    acknowledged: int = 0
    #: deliveries that came in the answer to a fetch
    delivered: int = 0
    #: … and whose confirm was answered with a state
    confirmed: int = 0
    #: lines of the log that were checked
    events: int = 0
    lost: int = 0
    again: int = 0
    forgotten: int = 0
    unexpected: int = 0
    duplicated: int = 0
    illegal: int = 0
    strange: int = 0
    recovered: int = 0
    redelivered: int = 0
    dead: int = 0
    #: lives, by number, in whose last moments a group was committed and not answered
    unanswered_lives: list[int] = []
    findings: list[str] = []

    @property
    def faultless(self) -> bool:
        return not any(getattr(self, name) for name in FAULTY)

    def found(self, what: str, finding: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if len(self.findings) < TOLD:
            self.findings.append(f"{what}: {finding}")


class Story:
    """The log, read from its first line."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.logged: dict[str, Event] = {}
        #: message id -> queue or channel -> state; each of the load has one slot
        self.states: dict[str, dict[str, State]] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self.fetches: dict[Fetch, Event] = {}
        self.confirms: dict[Fetch, Event] = {}

    def read(self, events: Iterable[Event]) -> None:
        offset, at = 0, ""
        for event in events:
            self._verdict.events += 1
            if event.offset != offset + 1:
                self._illegal(event, f"follows offset {offset}")
            if event.at < at:
                self._illegal(event, "is earlier than the line before")
            offset, at = event.offset, event.at
            if event.place is None:
                self._of_message(event)
            else:
                self._of_delivery(event, event.place)

    def _illegal(self, event: Event, why: str) -> None:
        self._verdict.found("illegal", f"offset {event.offset} {why}: {event}")

    def _of_message(self, event: Event) -> None:
        came = STATES[event.from_state] if event.from_state else None
        if STATES[event.to_state] not in MESSAGE_TRANSITIONS.get(came, frozenset()):
            self._illegal(event, "is no transition of a message")
        if event.to_state == "L":
            if event.message_id in self.logged or event.sequence != event.offset:
                self._illegal(
                    event, "logs a message a second time, or under a sequence that is not its offset"
                )
            self.logged[event.message_id] = event
        elif event.to_state == "X":
            # Channels never count.
            states = self.states.get(event.message_id, {})
            own = [state for place, state in states.items() if place in QUEUES]
            if not own or any(state not in (State.S, State.K) for state in own):
                self._illegal(event, f"completes a message whose deliveries are {states}")

    def _of_delivery(self, event: Event, queue: str) -> None:
        own = self.states.setdefault(event.message_id, {})
        came, goes = own.get(queue, L), STATES[event.to_state]
        # The load redrives nothing, so what has ended stays so.
        if event.from_state != came.name or goes not in TRANSITIONS[came] or came in ENDED or event.slot != 0:
            self._illegal(event, f"is no transition of a delivery in {came.name}")
        if event.message_id not in self.logged:
            self._illegal(event, "is of a message that was never logged")
        own[queue] = goes
        fetch = (event.message_id, queue, event.attempt or 0)
        if goes is State.F:
            self._attempts[fetch[:2]] += 1
            if event.attempt != self._attempts[fetch[:2]]:
                self._illegal(event, f"is fetch {self._attempts[fetch[:2]]} of its delivery")
            self.fetches[fetch] = event
        elif goes.name in FINAL:
            self.confirms[fetch] = event


def judge(record: Record, log: Iterable[Event], depths: Mapping[str, Mapping[str, int]]) -> Verdict:
    verdict = Verdict(
        attempted=len(record.sent),
        acknowledged=sum(sent.id is not None for sent in record.sent.values()),
        delivered=len(record.delivered),
        confirmed=len(record.confirmed),
        strange=len(record.strange),
        findings=[f"strange: {one}" for one in record.strange[:TOLD]],
    )
    story = Story(verdict)
    story.read(log)
    _check_depths(story, depths, verdict)
    _check_log_has_all(record, story, verdict)
    _check_messages(record, story, verdict)
    _check_deliveries(record, verdict)
    verdict.unanswered_lives = sorted(_unanswered_lives(record, story))
    return verdict


def _check_depths(story: Story, depths: Mapping[str, Mapping[str, int]], verdict: Verdict) -> None:
    recount: dict[str, Counter[str]] = {}
    for own in story.states.values():
        for queue, state in own.items():
            recount.setdefault(queue, Counter())[state.name] += 1
    for queue, shown in depths.items():
        counted = recount.get(queue, Counter())
        if {letter: n for letter, n in shown.items() if n} != dict(counted):
            verdict.found("illegal", f"queue {queue} shows {dict(shown)}, its log has {dict(counted)}")


def _check_log_has_all(record: Record, story: Story, verdict: Verdict) -> None:
    for number, sent in record.sent.items():
        if sent.id is not None:
            logged = story.logged.get(sent.id)
            if logged is None or logged.hash != sent.hash:
                verdict.found("forgotten", f"message {number}, acknowledged as {sent.id}: {logged}")
    for one in record.delivered:
        if (one.id, one.queue, one.attempt) not in story.fetches:
            verdict.found("forgotten", f"a fetch: {one}")
    for confirmed in record.confirmed:
        if confirmed.state in FINAL:
            event = story.confirms.get((confirmed.id, confirmed.queue, confirmed.attempt))
            if event is None or event.to_state != confirmed.state:
                verdict.found("forgotten", f"{confirmed}: {event}")


def _check_messages(record: Record, story: Story, verdict: Verdict) -> None:
    of_hash = {sent.hash: number for number, sent in record.sent.items()}
    stored: dict[int, list[str]] = {}
    for id, event in story.logged.items():
        number = of_hash.get(event.hash or "")
        if number is None:
            verdict.found("unexpected", f"the log has a message that was never sent: {event}")
        else:
            stored.setdefault(number, []).append(id)
    delivered = {(one.number, one.queue) for one in record.delivered}
    for number, sent in record.sent.items():
        ids = stored.get(number, [])
        if len(ids) > 1:
            verdict.found("duplicated", f"message {number} is {ids}")
        if ids and sent.refused:
            verdict.found("unexpected", f"message {number} was refused, and is {ids}")
        if ids:
            known = sent.acknowledged_life
            verdict.recovered += known is None or story.logged[ids[0]].offset <= record.heads[known - 1]
        for queue in sent.message.places:
            states = [story.states.get(id, {}).get(queue) for id in ids]
            dead = not DEAD.isdisjoint(states)
            verdict.dead += dead
            if sent.id is not None and not dead and (number, queue) not in delivered:
                verdict.found("lost", f"message {number}, acknowledged as {sent.id}, queue {queue}: {states}")


def _check_deliveries(record: Record, verdict: Verdict) -> None:
    final: dict[tuple[str, str], tuple[int, int]] = {}
    for confirmed in record.confirmed:
        if confirmed.state in FINAL:
            place = (confirmed.id, confirmed.queue)
            final.setdefault(place, (confirmed.answered, confirmed.attempt))
    seen: set[tuple[str, str]] = set()
    for one in record.delivered:
        place = (one.id, one.queue)
        verdict.redelivered += place in seen
        seen.add(place)
        answered, attempt = final.get(place, (one.asked, one.attempt))
        if one.asked > answered or one.attempt > attempt:
            verdict.found("again", f"{one}, confirmed in attempt {attempt}")
        sent = record.sent.get(one.number) if one.number is not None else None
        if sent is None or sent.id not in (None, one.id) or one.queue not in sent.message.places:
            verdict.found("unexpected", f"{one}")


def _unanswered_lives(record: Record, story: Story) -> set[int]:
    """Lives whose log has something that nobody was told: the fault came between the write and the answer."""
    acknowledged = {sent.id: sent.acknowledged_life for sent in record.sent.values() if sent.id is not None}
    fetched = {(one.id, one.queue, one.attempt) for one in record.delivered}
    confirmed = {(one.id, one.queue, one.attempt): one.life for one in record.confirmed}

    def life(event: Event) -> int:
        return bisect_left(record.heads, event.offset)

    untold = [event for id, event in story.logged.items() if acknowledged.get(id) != life(event)]
    untold += [event for fetch, event in story.fetches.items() if fetch not in fetched]
    untold += [event for fetch, event in story.confirms.items() if confirmed.get(fetch) != life(event)]
    return {life(event) for event in untold} - {record.life}
