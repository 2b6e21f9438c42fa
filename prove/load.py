"""The load: clients that publish, fetch and confirm, each on its own connection, and write down every answer.

A client ends when its connection does; what it had asked then has no answer, and the record leaves it open.
Keyed publishes without an answer are sent again, to the broker's next life.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from .child import Child
from .messages import (
    CHANNELS,
    QUEUES,
    Message,
    is_on_folder,
    make_message,
    may_be_away,
    number_of,
    places_of,
)
from .record import Confirmed, Delivered, Record, Sent
from .wire import Answer, Connection, Unanswered

CLIENTS = 32
#: between two requests of one client, on average: some two thousand requests a second, about one core
THINK_SECONDS = 0.012
#: a broker that lives on for so long after its fault is ended by force
AFTER_FAULT_SECONDS = 20.0
#: for so long the load goes on after a fault, where a broker is left
OUTLIVED_SECONDS = 0.5
DRAIN_SECONDS = 180.0
OPEN = ("Q", "R", "F")


class NotDrained(Exception):
    """Messages wait, and no fetch brings them."""


def live(
    record: Record,
    child: Child,
    rng: random.Random,
    seconds: float,
    fault: Callable[[], None],
    publishing: float = 0.6,
    clients: int = CLIENTS,
    think_seconds: float = THINK_SECONDS,
) -> bool:
    """One life: load, after some seconds the fault, until the broker is gone. False: only by force.

    `publishing` is the share of requests that publish; the others fetch and confirm.
    """
    port = child.port()
    striker = threading.Timer(seconds, fault)

    async def load() -> bool:
        async with Connection.open_to(port) as connection:
            await _begin(record, connection)
        striker.start()
        working = [
            asyncio.create_task(
                _client(
                    record, child, port, publishing, random.Random(rng.random()), think_seconds=think_seconds
                )
            )
            for _ in range(clients)
        ]
        try:
            await asyncio.to_thread(child.process.wait, seconds + AFTER_FAULT_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            child.process.kill()
            await asyncio.gather(*working)

    try:
        return asyncio.run(load())
    finally:
        striker.cancel()
        if striker.ident is not None:
            striker.join()
        child.kill()


def share(
    record: Record,
    children: Sequence[Child],
    rng: random.Random,
    seconds: float,
    fault: Callable[[], None],
) -> None:
    """A life of brokers on one store: load on all of them, after some seconds the fault, and on with those that are left."""
    ports = [child.port() for child in children]

    async def load() -> None:
        async with Connection.open_to(ports[0]) as connection:
            await _begin(record, connection)
        ended = asyncio.Event()
        working = [
            asyncio.create_task(_client(record, child, port, 0.6, random.Random(rng.random()), ended))
            for child, port in itertools.islice(itertools.cycle(zip(children, ports, strict=True)), CLIENTS)
        ]
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(fault)
            if any(child.process.poll() is None for child in children):
                await asyncio.sleep(OUTLIVED_SECONDS)
        finally:
            ended.set()
            await asyncio.gather(*working)

    asyncio.run(load())


async def _begin(record: Record, connection: Connection) -> None:
    if not record.heads:
        for name, policy in QUEUES.items():
            await connection.ask("PUT", f"/v1/queues/{name}", msgspec.json.encode(policy))
        for place in [place for place in places_of(record.run) if place in CHANNELS]:
            policy, path = CHANNELS[place], place.replace("channel/", "/v1/channels/")
            await connection.ask("PUT", path, msgspec.json.encode(policy))
    answer = await connection.ask("HEAD", "/log")
    while answer.status == 503 and may_be_away(record.run):
        await asyncio.sleep(0.05)
        answer = await connection.ask("HEAD", "/log")
    record.heads.append(int(answer.headers["waypost-head"]))


async def _client(
    record: Record,
    child: Child,
    port: int,
    publishing: float,
    rng: random.Random,
    ended: asyncio.Event | None = None,
    think_seconds: float = THINK_SECONDS,
) -> None:
    try:
        async with Connection.open_to(port) as connection:
            while ended is None or not ended.is_set():
                await asyncio.sleep(rng.expovariate(1 / think_seconds))
                await _step(record, connection, publishing, rng)
    except Unanswered as error:
        # A process takes a moment to die, and its connections go first.
        for _ in range(100):
            if child.process.poll() is not None:
                return
            await asyncio.sleep(0.01)
        record.strange.append(f"a connection ended, and its broker lived on: {error}")


async def _step(record: Record, connection: Connection, publishing: float, rng: random.Random) -> None:
    if record.to_repeat:
        await _repeat(record, connection)
    elif rng.random() < publishing:
        if rng.random() < 0.1 and not is_on_folder(record.run):
            await _publish_many(record, connection, [_next(record) for _ in range(rng.randint(2, 8))])
        else:
            await _publish(record, connection, _next(record))
    else:
        places = places_of(record.run)
        place = rng.choices(places, [6, 4, 3, 5][: len(places)])[0]
        await _work(record, connection, place, rng)


# ── publish ─────────────────────────────────────────────────────────────────────────────────────


def _next(record: Record) -> Message:
    number = len(record.sent) + 1
    message = make_message(record.run, number)
    record.sent[number] = Sent(message, record.life)
    return message


def publish_request(message: Message) -> tuple[str, dict[str, str]]:
    """(path, headers)."""
    headers = {}
    if message.idempotency_key is not None:
        headers["Idempotency-Key"] = message.idempotency_key
    if message.key is not None:
        headers["Waypost-Key"] = message.key
    if message.short_path:
        return f"/{message.queues[0]}/messages", headers
    if len(message.topics) > 1:
        headers["Waypost-Topics"] = ",".join(message.topics[1:])
    return f"/in/{message.topics[0]}", headers


def publish_line(message: Message) -> dict[str, Any]:
    line: dict[str, Any] = {"topics": message.topics, "body": message.body.decode()}
    if message.key is not None:
        line["key"] = message.key
    if message.idempotency_key is not None:
        line["idempotencyKey"] = message.idempotency_key
    return line


async def _publish(record: Record, connection: Connection, message: Message) -> None:
    path, headers = publish_request(message)
    try:
        answer = await connection.ask("POST", path, message.body, headers)
    except Unanswered:
        record.unanswered(message.number)
        raise
    if answer.status == 201:
        record.published(message.number, answer.headers["x-message-id"])
    else:
        _refused(record, [message], answer)


async def _repeat(record: Record, connection: Connection) -> None:
    sent = record.sent[record.to_repeat.pop()]
    sent.repeated = True
    await _publish(record, connection, sent.message)


async def _publish_many(record: Record, connection: Connection, messages: list[Message]) -> None:
    lines = msgspec.json.Encoder().encode_lines(map(publish_line, messages))
    try:
        answer = await connection.ask("POST", "/v1/messages", lines)
    except Unanswered:
        for message in messages:
            record.unanswered(message.number)
        raise
    if answer.status == 201:
        for message, result in zip(messages, answer.json()["results"], strict=True):
            record.published(message.number, result["id"])
    else:
        _refused(record, messages, answer)


def _refused(record: Record, messages: Iterable[Message], answer: Answer) -> None:
    # The first try of a repeat may have been stored; and so may what it is no use to wait for.
    in_doubt = answer.status == 503 and "retry-after" not in answer.headers
    for message in messages:
        sent = record.sent[message.number]
        if sent.repeated or in_doubt:
            record.unanswered(message.number)
        else:
            sent.refused = True
    if answer.status != 503:
        record.strange.append(f"publish: {answer.status} {answer.body[:200]!r}")


# ── fetch and confirm ───────────────────────────────────────────────────────────────────────────


def _path(place: str) -> str:
    return f"/{place}" if place in CHANNELS else f"/queue/{place}"


async def fetch(record: Record, connection: Connection, place: str, n: int) -> list[Delivered]:
    asked = record.tick()
    answer = await connection.ask("GET", f"{_path(place)}?n={n}&consumer=prover")
    if answer.status not in (200, 204) and not _is_away(record, answer):
        record.strange.append(f"fetch: {answer.status} {answer.body[:200]!r}")
    if answer.status != 200:
        return []
    delivered = [
        Delivered(
            form["id"],
            place,
            form["attempt"],
            number_of(record.run, form.get("body", "").encode()),
            record.life,
            asked,
            form["receipt"],
        )
        for form in answer.json()["messages"]
    ]
    record.delivered += delivered
    return delivered


async def confirm(
    record: Record, connection: Connection, place: str, delivered: list[Delivered], **outcome: Any
) -> None:
    form = {"receipts": [one.receipt for one in delivered], **outcome}
    answer = await connection.ask("POST", f"{_path(place)}/confirm", msgspec.json.encode(form))
    if answer.status != 200:
        if not _is_away(record, answer):
            record.strange.append(f"confirm: {answer.status} {answer.body[:200]!r}")
        return
    answered = record.tick()
    for one, result in zip(delivered, answer.json()["results"], strict=True):
        if result.get("stale"):
            record.stale += 1
        else:
            record.confirmed.append(
                Confirmed(one.id, place, one.attempt, result["state"], record.life, answered)
            )


def _is_away(record: Record, answer: Answer) -> bool:
    return answer.status == 503 and may_be_away(record.run)


async def _work(record: Record, connection: Connection, place: str, rng: random.Random) -> None:
    delivered = await fetch(record, connection, place, rng.randint(1, 8))
    chance = rng.random()
    if not delivered or chance < 0.04:
        return  # a worker that forgets: the lease decides
    if chance < 0.08:
        await confirm(record, connection, place, delivered, outcome="retry", delay=rng.random())
    elif chance < 0.09:
        await confirm(record, connection, place, delivered, outcome="invalid", reason="on purpose")
    else:
        await confirm(record, connection, place, delivered)


# ── afterwards ──────────────────────────────────────────────────────────────────────────────────


def drain(record: Record, child: Child) -> tuple[bytes, dict[str, dict[str, int]]]:
    """Fetch and confirm until nothing waits. The whole log, and the figures of each queue and channel."""
    port = child.port()

    async def run() -> tuple[bytes, dict[str, dict[str, int]]]:
        async with Connection.open_to(port) as connection:
            await _begin(record, connection)
            while record.to_repeat:
                await _repeat(record, connection)
            await _drain(record, connection)
            depths = await _depths(connection)
            return (await connection.ask("GET", "/log?from=1")).body, depths

    return asyncio.run(run())


async def _drain(record: Record, connection: Connection) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while any(states[letter] for states in (await _depths(connection)).values() for letter in OPEN):
        if time.monotonic() > deadline:
            raise NotDrained(str(await _depths(connection)))
        found = False
        for place in places_of(record.run):
            while delivered := await fetch(record, connection, place, 500):
                found = True
                await confirm(record, connection, place, delivered)
        if not found:
            await asyncio.sleep(0.05)  # a lease or a delay still runs


async def _depths(connection: Connection) -> dict[str, dict[str, int]]:
    queues = (await connection.ask("GET", "/v1/queues")).json()["queues"]
    answer = await connection.ask("GET", "/v1/channels")
    channels = answer.json()["channels"] if answer.status == 200 else []  # a store may have none
    depths = {queue["name"]: queue["figures"]["states"] for queue in queues}
    return depths | {f"channel/{channel['name']}": channel["figures"]["states"] for channel in channels}
