"""replay --from-lake: messages of a lake published again, to the broker they came from or to another one.

    lake ──▶ selection, in the order of the log ──▶ slices ──▶ POST /v1/messages, with force
                                                      '──▶ the position, at the target: the spectator replay-NAME

A message is published under an id of the replay's own, replay-NAME-SEQUENCE, so that the target itself knows what it has. After each slice the
spectator is put on the L of its last message, in the target's log, and that message's id says how far the replay has come. A replay that broke
off goes on there: a slice that was published before its position was stored is sent again under the same ids, which changes nothing. A target
may forget ids, but not within a day: after that, its log beyond the position is read for them instead.

What the lake does not have, delay and ttl, is not given; priority, key, meta and the producer are those of the message.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..config import load
from ..errors import LogTrimmed, Refused, RequestInvalid, SpectatorNotFound
from ..filters import Filter, parse_filter
from ..instants import SteadyClock, instant_text
from ..lake.owner import Lake, owner
from ..lake.selecting import Selection
from ..wire import body_json
from .asking import broker, do
from .failures import CommandFailed, CommandMisused
from .output import bar, json_document, moment, plain, show

if TYPE_CHECKING:
    from ..client import Client

T = TypeVar("T")

#: of a slice, which is published in one transaction
SLICE = 1_000
SLICE_BYTES = 4 << 20
#: a line must fit into one request, 16 MiB
LINE_BYTES = 15 << 20
#: at a rate, so many slices a second
TURNS_A_SECOND = 10
#: a target that restarts is waited for
PATIENCE_SECONDS = 60.0
#: so long a target surely knows the ids it has taken
IDS_KNOWN = timedelta(hours=24)
#: ids, and objects, that are named
SHOWN = 10
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")


# ── what is asked for ───────────────────────────────────────────────────────────────────────────


class Asked(NamedTuple):
    filter: Filter
    lake: Path
    #: of the target
    url: str
    #: of the replay
    name: str
    #: messages a second
    rate: float | None
    go: bool
    #: where to begin, instead of at the position
    after: int | None
    json: bool

    @property
    def spectator(self) -> str:
        return f"replay-{self.name}"

    @property
    def prefix(self) -> str:
        """Of the ids of what it publishes."""
        return f"{self.spectator}-"


def replay_from_lake(
    terms: str,
    folder: str,
    to: str | None,
    name: str | None,
    rate: float | None,
    go: bool,
    after: int | None,
    json: bool,
) -> None:
    """`terms`: a filter, its times in UTC."""
    if rate is not None and rate <= 0:
        raise CommandMisused("--rate N: more than 0 a second")
    if name is not None and not _NAME.fullmatch(name):
        raise CommandMisused(f"not a name for a replay: {name!r}; 1 to 20 of a-z, 0-9 and '-'")
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise CommandFailed(f"there is no folder {path} on this machine")
    lake = Lake(path)
    store = owner(lake)
    if store is None:
        raise CommandFailed(f"{path} is no lake: it has no lake.json")
    try:
        filter = parse_filter(terms, SteadyClock()())
    except RequestInvalid as wrong:
        raise CommandMisused(f"{wrong.detail}; {wrong.hint}") from None
    asked = Asked(
        filter, path, load(url=to)["url"].value, name or _digest(store, filter), rate, go, after, json
    )
    do(_replay(asked))


def _digest(store: str, filter: Filter) -> str:
    """The same lake and the same filter, however it is written, are the same replay."""
    states = None if filter.states is None else sorted(filter.states)
    said = [
        store,
        *(states if name == "states" else getattr(filter, name) for name in filter.__struct_fields__),
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:12]


# ── the target ──────────────────────────────────────────────────────────────────────────────────


async def position_at(client: Client, asked: Asked) -> int | None:
    """The sequence, in the lake, of the last message that the target has; 0: it has begun, and there is none; None: it has not begun."""
    try:
        spectator = await client.spectator(asked.spectator)
    except SpectatorNotFound:
        return None
    offset: int = spectator["offset"]
    since = datetime.now(UTC) - datetime.fromisoformat(spectator["at"])
    done = 0
    try:
        if offset:
            async for event in client.log(offset, 1):
                done = _sequence(event, asked.prefix)
        if since > IDS_KNOWN:
            async with aclosing(client.log(offset + 1)) as events:
                async for event in events:
                    done = max(done, _sequence(event, asked.prefix))
    except LogTrimmed as gone:
        raise CommandFailed(
            f"the log at {asked.url} no longer goes back to where this replay was ({gone.detail}): find its last message, "
            f"{asked.prefix}SEQUENCE, and go on with --after SEQUENCE"
        ) from None
    return done


def _sequence(event: dict[str, Any], prefix: str) -> int:
    """In the lake, of the message that the replay published with this event; 0: it is another event."""
    id: str = event["messageId"]
    said = id.removeprefix(prefix)
    return int(said) if id != said and event["fromState"] is None and said.isdigit() else 0


async def _publish(client: Client, asked: Asked, messages: list[dict[str, Any]]) -> None:
    """One slice; when this returns it is published, and the position is behind it."""
    await client.publish_many(messages)
    document = await client.message(messages[-1]["id"])
    await client.set_spectator(asked.spectator, document["sequence"])


# ── the messages ────────────────────────────────────────────────────────────────────────────────


@dataclass
class Figures:
    """What a replay has come by."""

    messages: int = 0
    objects: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    first_at: int | None = None
    last_at: int | None = None
    #: ids of those whose body was erased or reaped, and of those that no request can hold
    without_body: list[str] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)

    def count(self, chunk: pa.Table) -> None:
        """Messages that can be sent."""
        if chunk.num_rows:
            self.messages += chunk.num_rows
            self.objects.update(pc.fill_null(chunk["object"], "(none)").to_pylist())
            self.states.update(chunk["state"].to_pylist())
            moments = chunk["at"].cast(pa.int64())
            self.first_at = moments[0].as_py() if self.first_at is None else self.first_at
            self.last_at = moments[-1].as_py()


#: columns and the fields of newline JSON that they become
_FIELDS = {
    "topics": "topics",
    "object": "object",
    "queue": "queue",
    "key": "key",
    "mime_type": "mimeType",
    "producer": "producer",
    "timestamp": "timestamp",
    "sent": "sent",
    "priority": "priority",
    "meta": "meta",
    "encoding": "encoding",
    "traceparent": "traceparent",
}


def lines_of(chunk: pa.Table, prefix: str) -> list[dict[str, Any]]:
    """Messages that have a body, as lines of newline JSON; made column by column, since there may be millions."""
    given = {"idempotencyKey": None, "force": True}
    lines = [
        {"id": f"{prefix}{sequence}", **given, **body_json(body)}
        for sequence, body in zip(chunk["sequence"].to_pylist(), chunk["body"].to_pylist(), strict=True)
    ]
    # One that named a queue itself says no object, since that is made of the topics otherwise.
    queues = pc.if_else(pc.is_null(chunk["object"]), chunk["queue"], pa.scalar(None, pa.string()))
    chunk = chunk.set_column(chunk.schema.get_field_index("queue"), "queue", queues)
    for column, name in _FIELDS.items():
        if chunk[column].null_count < chunk.num_rows:
            for line, value in zip(lines, _values(chunk[column], name), strict=True):
                if value is not None:
                    line[name] = value
    return lines


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    if name in ("timestamp", "sent"):
        return [None if at is None else instant_text(at) for at in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    if name == "meta":
        return [msgspec.json.decode(meta) if meta else None for meta in values]
    return [value or None for value in values] if name == "topics" else values


class Slices:
    """A selection in slices that each fit into one request; what cannot be sent is noted and left out."""

    def __init__(self, selection: Selection, prefix: str, most: int, figures: Figures) -> None:
        self._selection, self._prefix, self._most, self._figures = selection, prefix, most, figures

    def __iter__(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """(how far it has come in the lake, lines)"""
        for upto, window in self._selection.windows():
            for chunk in self._selection.chunks(window):
                come = chunk["sequence"][-1].as_py()
                for lines in self._of_chunk(chunk):
                    yield come, lines
            yield upto, []

    def _of_chunk(self, chunk: pa.Table) -> Iterator[list[dict[str, Any]]]:
        sendable = pc.is_valid(chunk["body"])
        self._figures.without_body += chunk.filter(pc.invert(sendable))["message_id"].to_pylist()
        chunk = chunk.filter(sendable)
        sizes = pc.binary_length(chunk["body"]).to_pylist()
        lines = lines_of(chunk, self._prefix)
        large = [
            place
            for place, size in enumerate(sizes)
            if size > LINE_BYTES // 8 and len(msgspec.json.encode(lines[place])) > LINE_BYTES
        ]
        if large:
            self._figures.too_large += chunk.take(large)["message_id"].to_pylist()
            kept = sorted(set(range(len(lines))) - set(large))
            chunk, lines, sizes = chunk.take(kept), [lines[n] for n in kept], [sizes[n] for n in kept]
        self._figures.count(chunk)
        start = held = 0
        for place, size in enumerate(sizes):
            if place > start and (place - start >= self._most or held + size > SLICE_BYTES):
                yield lines[start:place]
                start, held = place, 0
            held += size
        if lines:
            yield lines[start:]


async def ahead(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Each is made in a thread while the one before is used."""
    end = object()
    coming = asyncio.ensure_future(asyncio.to_thread(next, items, end))
    try:
        while (item := await coming) is not end:
            coming = asyncio.ensure_future(asyncio.to_thread(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        await asyncio.wait([coming])


# ── the command ─────────────────────────────────────────────────────────────────────────────────


async def _replay(asked: Asked) -> None:
    async with broker(asked.url) as client:
        position = await position_at(client, asked)
        if asked.go and position is None:
            # From here on its log is kept for the replay, and read for what it has published.
            await client.set_spectator(asked.spectator, (await client.bounds())[1])
    after = asked.after if asked.after is not None else position or 0
    figures = Figures()
    selection = Selection(Lake(asked.lake), asked.filter, after, asked.prefix)
    most = SLICE if asked.rate is None else max(1, min(SLICE, int(asked.rate / TURNS_A_SECOND)))
    slices = Slices(selection, asked.prefix, most, figures)
    began = time.monotonic()
    sent = await _send(asked, selection, slices)
    seconds = time.monotonic() - began
    if asked.json:
        json_document(_document(asked, figures, selection.unchanged, after, sent, seconds))
    else:
        for text in _lines(asked, figures, selection.unchanged, after, sent, seconds):
            show(plain(text))
    if asked.go and figures.too_large:
        raise CommandFailed(
            f"{len(figures.too_large):,} messages do not fit into one request: {_some(figures.too_large)}"
        )


async def _send(asked: Asked, selection: Selection, slices: Slices) -> int:
    """How many were published."""
    from ..client import Unreachable

    lo, hi = selection.span.lo, selection.span.hi
    sent, due = 0, time.monotonic()
    async with broker(asked.url, patience=PATIENCE_SECONDS) as client:
        with bar("messages") as progress:
            task = progress.add_task(
                "replaying" if asked.go else "counting", total=max(0, hi - lo + 1), count="0"
            )
            async with aclosing(ahead(iter(slices))) as coming:
                async for come, lines in coming:
                    if lines and asked.go:
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                        try:
                            await _publish(client, asked, lines)
                        except Unreachable as gone:
                            raise CommandFailed(
                                f"no broker answers at {gone.url} ({gone.detail}): {_standing(sent)}"
                            ) from gone
                        except Refused as refused:
                            raise CommandFailed(
                                f"{refused.detail}; {refused.hint}: {_standing(sent)}"
                            ) from refused
                        due = time.monotonic() if asked.rate is None else due + len(lines) / asked.rate
                    sent += len(lines)
                    progress.update(task, completed=come - lo + 1, count=f"{sent:,}")
    return sent


def _standing(sent: int) -> str:
    return f"{sent:,} messages were replayed, and the same command goes on"


# ── what is said of it ──────────────────────────────────────────────────────────────────────────


def _document(
    asked: Asked, figures: Figures, unchanged: int, after: int, sent: int, seconds: float
) -> dict[str, Any]:
    return {
        "replay": asked.spectator,
        "dryRun": not asked.go,
        "after": after,
        "messages": sent,
        "objects": dict(figures.objects),
        "states": dict(figures.states),
        "first": None if figures.first_at is None else instant_text(figures.first_at),
        "last": None if figures.last_at is None else instant_text(figures.last_at),
        "unchanged": unchanged,
        "withoutBody": figures.without_body,
        "tooLarge": figures.too_large,
        "seconds": round(seconds, 3),
    }


def _lines(
    asked: Asked, figures: Figures, unchanged: int, after: int, sent: int, seconds: float
) -> Iterator[str]:
    if asked.go:
        rate = f" ({sent / seconds:,.0f} a second)" if seconds and sent else ""
        yield f"{sent:,} messages replayed to {asked.url} in {seconds:.1f} s{rate}, as {asked.spectator}"
    else:
        yield f"{sent:,} messages would be replayed to {asked.url}, as {asked.spectator}"
    if figures.first_at is not None and figures.last_at is not None:
        yield f"  logged from {moment(instant_text(figures.first_at))} to {moment(instant_text(figures.last_at))}"
        yield f"  by object: {_counts(figures.objects)}"
        yield f"  by state: {_counts(figures.states)}"
    if after:
        yield f"  those up to offset {after:,} of the lake were replayed before"
    if unchanged:
        yield f"  left out: {unchanged:,} that were unchanged; state=U selects them"
    if figures.without_body:
        yield f"  left out: {len(figures.without_body):,} whose body was erased or reaped: {_some(figures.without_body)}"
    if figures.too_large and not asked.go:
        yield f"  cannot be sent: {len(figures.too_large):,} that do not fit into one request: {_some(figures.too_large)}"
    if not asked.go and sent:
        yield "nothing was sent; the same command with --go does it"


def _counts(counts: Counter[str]) -> str:
    named = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    return named + (f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else "")


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:SHOWN]) + (" …" if len(ids) > SHOWN else "")
