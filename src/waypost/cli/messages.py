"""publish, fetch, confirm, message, tail: one message at a time, and the stream of all."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer

from ..delivery import Outcome
from ..errors import Refused
from ..names import root_of
from .asking import Consumer, Json, Url, as_instant, broker, do, is_offset
from .failures import CommandFailed, CommandMisused
from .output import (
    STATES,
    bar,
    json_document,
    json_line,
    moment,
    note,
    pairs,
    plain,
    show,
    show_line,
    size,
    span,
    state,
    table,
)
from .selections import place

if TYPE_CHECKING:
    from ..client import Client, Message

Channel = Annotated[
    str | None, typer.Option(metavar="NAME", help="A channel instead of a queue.", show_default=False)
]

#: a file is worth waiting for a broker that restarts
FILE_PATIENCE_SECONDS = 60.0

# ── publish ─────────────────────────────────────────────────────────────────────────────────────


def publish(
    topic: Annotated[
        str | None, typer.Argument(help="For example orders.created.", show_default=False)
    ] = None,
    body: Annotated[str | None, typer.Argument(help="Text, or - for stdin.", show_default=False)] = None,
    body_option: Annotated[
        str | None, typer.Option("--body", "-b", metavar="TEXT", help="The same as BODY.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Newline JSON, a message a line (- for stdin); with a TOPIC, every line is a body.",
            show_default=False,
        ),
    ] = None,
    object: Annotated[
        str | None, typer.Option(metavar="NAME", help="The business type.", show_default=False)
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="TOPIC", help="A further topic; repeatable.", show_default=False),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Names, with the object, one business thing.", show_default=False)
    ] = None,
    mime_type: Annotated[
        str | None, typer.Option("--type", metavar="MIME", help="Guessed when left out.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Not before: 90, 5m, 1h.", show_default=False)
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Not after: 90, 5m, 1h.", show_default=False)
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 first.", show_default=False)] = None,
    id: Annotated[str | None, typer.Option(help="An id of your own.", show_default=False)] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The same key again is the same message.", show_default=False),
    ] = None,
    producer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who publishes.", show_default=False)
    ] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Travels along; repeatable.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if unchanged.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="With --file: messages a request.")] = 1_000,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="With --file: lines that an earlier run published are not published again."
        ),
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Publish a message, or a file of them.

    waypost publish orders.created '{"number": 17}' --key 17

    waypost publish --file messages.ndjson
    """
    said = {
        "object": object,
        "key": key,
        "mimeType": mime_type,
        "delay": delay,
        "ttl": ttl,
        "priority": priority,
        "producer": producer,
        "meta": _meta(meta or []),
        "force": force or None,
    }
    if file is not None:
        if body is not None or body_option is not None or id is not None or idempotency_key is not None:
            raise CommandMisused("--file goes without a body, --id and --idempotency-key")
        if topic is None and any(value is not None for value in said.values()):
            raise CommandMisused("what is said of every message needs a TOPIC; else each line says it")
        fields = {"topics": [topic, *(topics or [])], **said} if topic is not None else {}
        _publish_file(
            url,
            file,
            {name: value for name, value in fields.items() if value is not None},
            batch,
            once,
            json,
        )
        return
    if topic is None:
        raise CommandMisused("publish what? Say a TOPIC, or --file")
    if "/" in root_of(topic):
        raise CommandMisused(f"not a topic: {topic!r}; what stands before the '/' goes into --object")
    if body is not None and body_option is not None:
        raise CommandMisused("one body, not two")
    payload = _payload(body if body is not None else body_option)

    async def work() -> None:
        async with broker(url, producer=producer) as client:
            published = await client.publish(
                topic,
                payload,
                object=object,
                topics=topics or (),
                key=key,
                mime_type=mime_type or guess_type(payload),
                delay=delay,
                ttl=ttl,
                priority=priority,
                id=id,
                idempotency_key=idempotency_key,
                meta=_meta(meta or []),
                force=force,
            )
        if json:
            document = {"id": published.id, "state": published.state}
            json_document(
                document if published.same_as is None else {**document, "sameAs": published.same_as}
            )
        else:
            same = f"  same as {published.same_as}" if published.same_as else ""
            show(plain(published.id), state(published.state), plain(same))

    do(work())


def _payload(given: str | None) -> bytes:
    if given is None and sys.stdin.isatty():
        raise CommandMisused("no body: say it, or - to type it and end with Ctrl-D")
    return sys.stdin.buffer.read() if given in (None, "-") else str(given).encode()


def guess_type(payload: bytes) -> str:
    try:
        msgspec.json.decode(payload)
        return "application/json"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        payload.decode()
        return "text/plain; charset=utf-8"
    except UnicodeDecodeError:
        return "application/octet-stream"


def _meta(given: list[str]) -> dict[str, str] | None:
    for pair in given:
        if "=" not in pair:
            raise CommandMisused(f"--meta wants NAME=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in given) or None


class Lines:
    """A file's messages, and how far it was read."""

    def __init__(self, file: BinaryIO, name: str, fields: Mapping[str, Any], once: bool) -> None:
        self._file, self._fields, self._once = file, fields, once
        self.name = name
        self.number = self.read_bytes = 0
        #: the lines of messages that were given out and are not known to be published
        self.pending: deque[int] = deque()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._file:
            self.number += 1
            self.read_bytes += len(line)
            text = line.rstrip(b"\r\n")
            if not text.strip():
                continue
            message = self._message(text)
            if self._once and "idempotencyKey" not in message:
                # The same line at the same place is the same message, in whatever run.
                message["idempotencyKey"] = hashlib.sha256(b"%d:%b" % (self.number, text)).hexdigest()
            self.pending.append(self.number)
            yield message

    def published(self, count: int) -> None:
        for _ in range(count):
            self.pending.popleft()

    def _message(self, text: bytes) -> dict[str, Any]:
        if self._fields:
            return {"mimeType": guess_type(text), **self._fields, **_body(text)}
        try:
            message = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CommandFailed(f"{self.name}, line {self.number}: not JSON: {error}") from None
        if not isinstance(message, dict):
            raise CommandFailed(f"{self.name}, line {self.number}: a message is a JSON object")
        body = message.get("body")
        if body is not None and not isinstance(body, str):
            # On the wire a body is text; JSON that stands in the line as it is means itself.
            message["body"] = msgspec.json.encode(body).decode()
            message.setdefault("mimeType", "application/json")
        return message


def _body(text: bytes) -> dict[str, str]:
    import base64

    try:
        return {"body": text.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(text).decode()}


def _publish_file(
    url: str | None, file: str, fields: Mapping[str, Any], batch: int, once: bool, json: bool
) -> None:
    if file == "-":
        counts = do(_publish_lines(url, Lines(sys.stdin.buffer, "stdin", fields, once), None, batch))
    else:
        with Path(file).open("rb") as opened:
            total = os.fstat(opened.fileno()).st_size
            counts = do(_publish_lines(url, Lines(opened, file, fields, once), total, batch))
    if json:
        json_document(counts)
        return
    published, unchanged, seconds = counts["published"], counts["unchanged"], counts["seconds"]
    same = f", {unchanged:,} of them unchanged" if unchanged else ""
    same += ", now or by an earlier run" if once else ""
    rate = f" ({published / seconds:,.0f} a second)" if seconds else ""
    show(plain(f"{published:,} messages published{same}, in {seconds:.1f} s{rate}"))


async def _publish_lines(url: str | None, lines: Lines, total: int | None, batch: int) -> dict[str, Any]:
    async with broker(url) as client:
        await client.stats()  # whether it is there at all is known at once
    published = unchanged = 0
    began = time.monotonic()
    async with broker(url, patience=FILE_PATIENCE_SECONDS) as client:
        with bar("messages") as progress:
            task = progress.add_task("publishing", total=total, count="0")
            try:
                async for results in client.publish_stream(lines, batch):
                    published += len(results)
                    lines.published(len(results))
                    unchanged += sum(result.state == "U" for result in results)
                    progress.update(task, completed=lines.read_bytes, count=f"{published:,}")
            except CommandFailed as error:
                raise CommandFailed(f"{error} ({published:,} messages before it were published)") from error
            except Refused as error:
                raise CommandFailed(
                    f"{lines.name}, in the batch from line {lines.pending[0]}: {error.detail}; {error.hint}"
                    f" ({published:,} messages before it were published)"
                ) from error
    return {"published": published, "unchanged": unchanged, "seconds": round(time.monotonic() - began, 3)}


# ── fetch, confirm ──────────────────────────────────────────────────────────────────────────────


def fetch(
    queue: Annotated[str | None, typer.Argument(show_default=False)] = None,
    channel: Channel = None,
    n: Annotated[int, typer.Option("-n", min=1, max=1_000, help="At most so many.")] = 1,
    wait: Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait for the first.")] = 0,
    lease: Annotated[
        float | None, typer.Option(help="Seconds; else the queue's.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Only these: fruit.apple, fruit.*", show_default=False)
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Confirm success once they are printed.")
    ] = False,
    consumer: Consumer = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Fetch messages from a queue or channel. They come again after the lease unless they are confirmed."""
    if (queue is None) is (channel is None):
        raise CommandMisused("fetch from where? Say a QUEUE, or --channel NAME")

    async def work() -> None:
        async with broker(url, consumer=consumer) as client:
            messages = await client.fetch(queue, n, channel=channel, wait=wait, lease=lease, topic=topic)
            receipts = [message.receipt for message in messages]
            for message in messages:
                json_line(_fetched_document(message)) if json else _show_fetched(message)
            if confirm and messages:
                await client.confirm(queue, receipts, channel=channel)
        if not messages and not json:
            note(f"nothing to fetch in {queue or channel}")
        elif messages and not confirm and not json:
            note(f"confirm with: waypost confirm {queue or f'--channel {channel}'} {' '.join(receipts)}")

    do(work())


def _fetched_document(message: Message) -> dict[str, Any]:
    document = {
        "id": message.id,
        "receipt": message.receipt,
        "attempt": message.attempt,
        "topics": message.topics,
        "object": message.object,
        "key": message.key,
        "mimeType": message.mime_type,
        "created": message.created,
        **_body(message.body),
    }
    return {**document, "meta": message.meta} if message.meta else document


def _show_fetched(message: Message) -> None:
    said = ", ".join(message.topics) or message.queue or ""
    rest = f"  key {message.key}" if message.key is not None else ""
    show(
        plain(message.id, "bold"),
        plain(said, "cyan"),
        plain(f"attempt {message.attempt}{rest}  {moment(message.created)}", "bright_black"),
    )
    show(plain("receipt", "bright_black"), plain(message.receipt))
    try:
        show(plain(message.text()))
    except UnicodeDecodeError:
        show(plain(f"({size(len(message.body))} of {message.mime_type or 'unknown type'})", "bright_black"))


def confirm(
    queue: Annotated[str, typer.Argument(help="Not with --channel.", show_default=False)],
    receipts: Annotated[list[str] | None, typer.Argument(metavar="[RECEIPT]...", show_default=False)] = None,
    channel: Channel = None,
    outcome: Annotated[
        Outcome, typer.Option(metavar="OUTCOME", help="success, invalid, not-interested or retry.")
    ] = Outcome.SUCCESS,
    reason: Annotated[
        str | None, typer.Option(help="Stays in the message's journey.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="With retry: not before 90, 5m.", show_default=False)
    ] = None,
    consumer: Consumer = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Say what became of fetched messages. A stale receipt changes nothing; the exit code is then 1."""
    # Of a channel there is no QUEUE, and what stands in its place is the first receipt.
    named = queue if channel is None else None
    tokens = [*(receipts or ())] if channel is None else [queue, *(receipts or ())]
    if not tokens:
        raise CommandMisused("confirm what? Say one RECEIPT or more, as fetch showed them")

    async def work() -> None:
        async with broker(url, consumer=consumer) as client:
            results = await client.confirm(
                named, tokens, outcome, channel=channel, reason=reason, delay=delay
            )
        if json:
            json_document(
                {
                    "results": [
                        {"receipt": result.receipt, "stale": True}
                        if result.stale
                        else {"receipt": result.receipt, "id": result.id, "state": result.state}
                        for result in results
                    ]
                }
            )
        else:
            for result in results:
                if not result.stale:
                    show(plain(result.id), state(result.state))
        stale = [result.receipt for result in results if result.stale]
        if stale:
            raise CommandFailed(
                f"stale, so nothing was done: {', '.join(stale)}; fetch again for a new receipt"
            )

    do(work())


# ── message, tail ───────────────────────────────────────────────────────────────────────────────


def message(
    id: Annotated[str, typer.Argument(show_default=False)],
    body: Annotated[bool, typer.Option("--body", help="Its body, as it was sent, and nothing else.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """A message and its whole journey."""

    async def work() -> None:
        async with broker(url) as client:
            if body:
                sys.stdout.buffer.write(await client.payload(id))
                return
            document = await client.message(id)
        json_document(document) if json else show_message(document)

    do(work())


def show_message(document: Mapping[str, Any]) -> None:
    show(plain(document["id"], "bold"), state(document["state"]))
    keyed = document.get("key")
    show(
        pairs(
            [
                ("topics", ", ".join(document["topics"]) or None),
                ("object", document["object"] if keyed is None else f"{document['object']}  key {keyed}"),
                ("body", f"{size(document['size'])}  {document.get('mimeType') or ''}"),
                ("producer", document.get("producer")),
                ("created", moment(document["created"])),
                ("expires", moment(document.get("expires")) or None),
                ("same as", document.get("sameAs")),
                (
                    "meta",
                    " ".join(f"{name}={value}" for name, value in document.get("meta", {}).items()) or None,
                ),
                ("confirmed", ", ".join(_confirmations(document["consumed"])) or None),
                ("missing", ", ".join(_missing(document["missing"])) or None),
            ]
        )
    )
    show(journey_table(document["journey"]))


def _confirmations(consumed: list[dict[str, Any]]) -> Iterator[str]:
    for one in consumed:
        if one["confirmedTS"] is not None:
            yield f"{one['consumerId']} after {span(one['durationMS'])}"


def _missing(missing: list[dict[str, Any]]) -> Iterator[str]:
    """Who has not confirmed yet: by name, or how many whoever they are."""
    by_place = Counter((one["queue"], one["consumer"]) for one in missing)
    for (queue, consumer), count in by_place.items():
        yield f"{consumer or ('anyone' if count == 1 else f'any {count}')} in {queue}"


def journey_table(journey: list[dict[str, Any]]) -> Any:
    made = table("when", "after", "where", "state", "try", "consumer", "reason", right=("after", "try"))
    for event in journey:
        made.add_row(
            moment(event["at"]),
            span(event.get("durationMs")),
            plain(place(event)),
            state(event["toState"]),
            str(event.get("attempt") or ""),
            plain(event.get("consumer") or ""),
            plain(event.get("reason") or ""),
        )
    return made


def tail(
    start: Annotated[
        str | None, typer.Option("--from", metavar="OFFSET|TIME", help="Start here.", show_default=False)
    ] = None,
    n: Annotated[int, typer.Option("-n", min=0, help="Without --from: start with the last so many.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f/-F", help="Go on as events come.")
    ] = True,
    queue: Annotated[str | None, typer.Option(help="Only this queue's events.", show_default=False)] = None,
    channel: Annotated[
        str | None, typer.Option(help="Only this channel's events.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Only messages logged with it: fruit.apple, fruit.*", show_default=False),
    ] = None,
    spectator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Go on where this one was, and remember how far.", show_default=False
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Follow the event log: every transition of every message."""
    chosen = [one for one in (queue, channel, topic) if one is not None]
    if len(chosen) > 1:
        raise CommandMisused("--queue, --channel or --topic: one of them")
    if spectator is not None and (chosen or start is not None):
        raise CommandMisused("a spectator reads everything, from where it was: --spectator goes alone")

    async def work() -> None:
        async with broker(url) as client:
            if spectator is not None:
                events = client.spectate(spectator, follow=follow)
            else:
                first = await _first(client, start, n)
                events = client.log(first, follow=follow, topic=topic, queue=queue, channel=channel)
            async with aclosing(events):
                async for event in events:
                    json_line(event) if json else show_line(event_line(event))

    do(work())


async def _first(client: Client, start: str | None, n: int) -> int | str:
    if start is None:
        oldest, head = await client.bounds()
        return max(oldest, head - n + 1)
    return int(start) if is_offset(start) else as_instant(start)


def event_line(event: dict[str, Any]) -> Any:
    """One event, in columns that stay where they are."""
    from rich.text import Text

    letter = event["toState"]
    word, style = STATES.get(letter, ("", ""))
    where = place(event) or ", ".join(event.get("topics") or ())
    details = [
        f"try {event['attempt']}" if event.get("attempt") and letter == "F" else "",
        event.get("consumer") or "",
        f"key {event['key']}" if event.get("key") is not None else "",
        f"after {span(event['durationMs'])}" if event.get("durationMs") is not None else "",
        f"same as {event['sameAs']}" if event.get("sameAs") else "",
    ]
    line = Text()
    line.append(f"{event['offset']:>8} ", "bright_black")
    line.append(f"{moment(event['at'])} ")
    line.append(f" {event.get('fromState') or ' '} → {letter} {word:<14} ", style)
    line.append_text(plain(f"{where:<20} ", "bold"))
    line.append(f"{event['messageId']}  ", "bright_black")
    line.append_text(plain(" ".join(detail for detail in details if detail)))
    if event.get("reason"):
        line.append_text(plain("  " + " ".join(event["reason"].split()), "yellow"))
    return line
