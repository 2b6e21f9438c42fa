"""Filters: one grammar for search, redrive and cancel, in HTTP and on the command line.

    object=customer key=XYZ state=E consumer=billing since=10:00 until=11:30 topic=fruit.*

Terms are separated by blanks and must all hold; a value with blanks stands in double quotes. A filter selects deliveries:
`state` and `consumer` are the delivery's. `since` and `until` bound the moment its message was logged or, with `consumer`, the
moments that consumer fetched it. `state` takes several letters (`state=EI`); `topic` may end in `*`.
"""

from __future__ import annotations

import re
from datetime import UTC, tzinfo

import msgspec

from .delivery import STATES, State
from .errors import RequestInvalid
from .instants import parse_instant
from .message import Envelope
from .names import check_name, check_own_id
from .topics import any_topic_matches, check_pattern

_TERM = re.compile(r'\s*([A-Za-z]+)=(?:"([^"]*)"|(\S+))(?=\s|$)')
TERMS = ("id", "object", "key", "topic", "queue", "channel", "state", "consumer", "since", "until")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    queue: str | None = None
    channel: str | None = None
    object: str | None = None
    key: str | None = None
    #: a pattern
    topic: str | None = None
    #: who has or had the delivery, or whom its slot is named for
    consumer: str | None = None
    states: frozenset[State] | None = None
    #: inclusive
    since_at: int | None = None
    #: exclusive
    until_at: int | None = None
    #: leave out what deleted queues and channels had: nothing can be done with it
    existing: bool = False


def parse_filter(text: str, now: int, zone: tzinfo = UTC) -> Filter:
    """`zone` is what a bare time is read in: UTC over HTTP, the person's own on the command line."""
    given: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _TERM.match(text, position)
        if match is None:
            raise _wrong(f"cannot read {text[position : position + 60].strip()!r}")
        name = match[1]
        if name not in TERMS:
            raise _wrong(f"unknown term {name[:60]!r}")
        if name in given:
            raise _wrong(f"{name} is given twice")
        given[name] = match[2] if match[2] is not None else match[3]
        position = match.end()
    states = given.get("state")
    return Filter(
        id=check_own_id(given["id"]) if "id" in given else None,
        queue=check_name(given["queue"]) if "queue" in given else None,
        channel=check_name(given["channel"], "channel") if "channel" in given else None,
        object=check_name(given["object"], "object") if "object" in given else None,
        key=given.get("key"),
        topic=check_pattern(given["topic"]) if "topic" in given else None,
        consumer=given.get("consumer"),
        states=None if states is None else parse_states(states),
        since_at=parse_instant(given["since"], now, zone) if "since" in given else None,
        until_at=parse_instant(given["until"], now, zone) if "until" in given else None,
    )


def parse_states(letters: str) -> frozenset[State]:
    chosen = letters.replace(",", "").upper()
    if not chosen or any(letter not in STATES for letter in chosen):
        raise _wrong(f"unknown state in {letters[:60]!r}", f"states are {' '.join(STATES)}")
    return frozenset(STATES[letter] for letter in chosen)


def selects_message(filter: Filter, envelope: Envelope) -> bool:
    """What the filter asks of the message itself."""
    return (
        (filter.object is None or filter.object == envelope.object)
        and (filter.key is None or filter.key == envelope.key)
        and (filter.topic is None or any_topic_matches(filter.topic, envelope.topics))
    )


def bounds_fetches(filter: Filter) -> bool:
    """Whether `since` and `until` are about the fetches of its consumer."""
    return filter.consumer is not None and (filter.since_at is not None or filter.until_at is not None)


def in_bounds(filter: Filter, at: int) -> bool:
    return (filter.since_at is None or at >= filter.since_at) and (
        filter.until_at is None or at < filter.until_at
    )


def _wrong(detail: str, hint: str | None = None) -> RequestInvalid:
    return RequestInvalid(
        detail, hint or f"terms are {', '.join(TERMS)}: queue=orders state=E since=10:00", "FILTER_INVALID"
    )
