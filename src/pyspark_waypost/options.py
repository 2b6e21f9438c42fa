"""What can be said with .option(…), checked before anything is read.

This file knows no network: an instant stays an instant, and whether an offset is kept is not asked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from .errors import SourceError

DEFAULT_URL = "http://127.0.0.1:8080"
TABLES = ("message_events", "messages", "deliveries")
#: as people write them; Spark does not keep the case
NAMES = (
    "url",
    "token",
    "table",
    "from",
    "until",
    "queue",
    "channel",
    "topic",
    "spectator",
    "maxEventsPerTrigger",
    "partitions",
    "topics",
    "object",
    "query",
    "wait",
)
#: of a write, beside url and token; the others are of a read
_OF_WRITES = ("topics", "object", "query", "wait")
#: what Spark itself says to a sink
_SPARKS_OWN = ("checkpointlocation", "queryname")
_FILTERS = ("queue", "channel", "topic")
_LAST_OFFSET = 10**18 - 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Options:
    url: str = DEFAULT_URL
    token: str | None = None
    table: str = "message_events"
    #: offsets (of `sequence` in messages and deliveries), or instants
    start: int | datetime | None = None
    until: int | datetime | None = None
    queue: str | None = None
    channel: str | None = None
    topic: str | None = None
    spectator: str | None = None
    max_events: int | None = None
    partitions: int | None = None
    #: of a write, for rows that do not say it themselves
    topics: str | None = None
    object: str | None = None
    #: names a write, so that it can be done again
    query: str | None = None
    #: how long rows may take to move on; 0: nobody waits for them
    wait_seconds: float = 300.0
    #: a streaming write, which is patient
    checkpointed: bool = False
    #: the options that were given
    given: frozenset[str] = frozenset()

    @property
    def filter(self) -> dict[str, str]:
        chosen = {"queue": self.queue, "channel": self.channel, "topic": self.topic}
        return {name: value for name, value in chosen.items() if value is not None}

    def check_write(self) -> None:
        for name in NAMES:
            if name in self.given and name not in ("url", "token", *_OF_WRITES):
                raise SourceError(f"option {name} is for read and readStream")

    def check_read(self) -> None:
        for name in _OF_WRITES:
            if name in self.given:
                raise SourceError(f"option {name} is for write and writeStream")

    def check_batch(self) -> None:
        self.check_read()
        for name, value in (("spectator", self.spectator), ("maxEventsPerTrigger", self.max_events)):
            if value is not None:
                raise SourceError(f"option {name} is for readStream")
        if self.table == "ranges":
            raise SourceError("table ranges is for readStream")

    def check_stream(self) -> None:
        self.check_read()
        if self.table in ("messages", "deliveries"):
            raise SourceError(
                f"{self.table} are the store's rows as they are now, no stream: read them, or readStream message_events"
            )
        if self.until is not None:
            raise SourceError("option until is for read; a stream ends with trigger(availableNow=True)")


def parse(given: Mapping[str, str]) -> Options:
    known = {name.lower(): name for name in NAMES}
    said = {name.lower(): value for name, value in given.items()}
    for name in said:
        if name == "path":
            raise SourceError("load() and save() take no path: .option('url', …) names the broker")
        if name not in known and name not in _SPARKS_OWN:
            raise SourceError(f"unknown option {name!r}; the options are: {', '.join(NAMES)}")
    options = Options(
        url=_url(said.get("url", DEFAULT_URL)),
        token=_token(said.get("token")),
        table=_table(said.get("table", "message_events")),
        start=_position("from", said.get("from")),
        until=_position("until", said.get("until")),
        queue=said.get("queue"),
        channel=said.get("channel"),
        topic=said.get("topic"),
        spectator=said.get("spectator"),
        max_events=_count("maxEventsPerTrigger", said.get("maxeventspertrigger")),
        partitions=_count("partitions", said.get("partitions")),
        topics=said.get("topics"),
        object=said.get("object"),
        query=_query(said.get("query")),
        wait_seconds=_seconds("wait", said.get("wait", "300")),
        checkpointed="checkpointlocation" in said,
        given=frozenset(known[name] for name in said if name in known),
    )
    _check_together(options)
    return options


def _check_together(options: Options) -> None:
    chosen = list(options.filter)
    if len(chosen) > 1:
        raise SourceError(f"both {chosen[0]} and {chosen[1]}: one of {', '.join(_FILTERS)} at most")
    if chosen and options.table != "message_events":
        raise SourceError(f"option {chosen[0]} is for message_events; use .where(…) on {options.table}")
    start, until = options.start, options.until
    if isinstance(start, int) and isinstance(until, int) and max(1, start) > until:
        raise SourceError(f"from {start} is after until {until}")
    if isinstance(start, datetime) and isinstance(until, datetime) and start > until:
        raise SourceError(f"from {start.isoformat()} is after until {until.isoformat()}")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise SourceError(f"option url is not the address of a broker: {text!r}; for example {DEFAULT_URL}")
    return text.rstrip("/")


def _token(text: str | None) -> str | None:
    if text is not None and not (text.isascii() and text.isprintable() and " " not in text):
        raise SourceError("option token is not a token: it has characters that no header can carry")
    return text


def _table(name: str) -> str:
    if name not in (*TABLES, "ranges"):
        raise SourceError(f"no table {name!r}; there are: {', '.join(TABLES)}")
    return name


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _LAST_OFFSET):
        raise SourceError(f"option {name} is a number above 0, not {text!r}")
    return int(text)


def _query(name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise SourceError(
            f"option query is a name of lower-case letters, digits, '_', '.' and '-', at most 200, not {name!r}"
        )
    return name


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise SourceError(f"option {name} is a number of seconds, 0 for none, not {text!r}")
    return seconds


def _position(name: str, text: str | None) -> int | datetime | None:
    """Digits are an offset, everything else an instant that says its zone."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text) <= _LAST_OFFSET:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise SourceError(f"option {name} is an offset or an instant such as 2026-01-31T10:00:00Z, not {text!r}")
