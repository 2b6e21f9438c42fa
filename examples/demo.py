"""The broker at work, and what Spark makes of it, in about two minutes: `make demo`.

    shop     ── orders.created ────▶ orders      express orders first              ──▶ billing
    erp      ── customers.changed ─▶ customers   one customer's changes in order   ──▶ crm, which has a bug
    finance  ── invoices.due ──────▶ invoices    not before their delay is over    ──▶ letters, a signed webhook
                orders.*, customers.* ─▶ channel analytics, a copy of each

The erp sends every fourth change twice, as after a lost connection, and later all customers again although few have
changed: the rest is unchanged and goes nowhere. In the middle the broker is killed with SIGKILL and started again;
later the bug is fixed and the dead letters are redriven. In the end every message that was acknowledged is looked
up in the log: none may be missing, none may be there twice. Then a catalogue comes twice, which the broker only logs: Spark
decides what of it is unchanged and where the rest goes. At last the pipeline runs over all of it: Spark folds the log into
tables and draws a page that says what happened.

The broker is a real process on the embedded store, in a temporary folder; producers, workers and the webhook's
receiver live in this process and speak HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from waypost import BlockingClient, Client, Message, WaypostError
from waypost.cli.messages import journey_table
from waypost.cli.output import table
from waypost.cli.selections import deliveries_table
from waypost.push.signing import key_of, signature

QUEUES = ("orders", "customers", "invoices")
#: how long a fetched message is kept from others: after the kill some come again only then
LEASE_SECONDS = 4.0
SWISS = "CH"
CUSTOMERS = 60
PRODUCTS = 500
SECRET = "whsec_" + base64.b64encode(os.urandom(32)).decode()

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


# ── the broker, as a process ────────────────────────────────────────────────────────────────────


class Broker:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._store, self._log = f"sqlite:///{folder / 'waypost.db'}", folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> float:
        """Seconds until it answers."""
        began = time.monotonic()
        command = [sys.executable, "-m", "waypost", "serve", "--port", str(self.port), "--store", self._store]
        command += ["--push-allow", "127.0.0.0/8"]  # the receiver is on this machine
        settings = {name: value for name, value in os.environ.items() if not name.startswith("WAYPOST_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork is short
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=settings
            )
        async with Client(self.url, patience=0) as client:
            while True:
                try:
                    await client.stats()
                    return time.monotonic() - began
                except WaypostError:
                    if self._process.poll() is not None or time.monotonic() > began + 30:
                        raise SystemExit(f"the broker did not start:\n{self._log.read_text()}") from None
                    await asyncio.sleep(0.02)

    def end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(15)
            self._process = None


# ── what happens, written down ──────────────────────────────────────────────────────────────────


@dataclass
class Notes:
    """What producers and workers saw themselves, to be held against the broker's log."""

    began: float = field(default_factory=time.monotonic)
    #: by queue, the ids that a publish answered with
    acknowledged: dict[str, set[str]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    #: publishes that were sent a second time on purpose
    sent_twice: int = 0
    #: of those, answered with the id of the first
    same_id: int = 0
    #: how often each message was handled to its end
    handled: Counter[str] = field(default_factory=Counter)
    #: by customer, the versions in the order they were handled
    versions: dict[str, list[int]] = field(default_factory=dict)
    #: ids of messages that were answered with "unchanged"
    unchanged: set[str] = field(default_factory=set)
    #: how often each came through the channel
    analysed: Counter[str] = field(default_factory=Counter)
    #: webhook requests whose signature was right, and those where it was not
    signed: int = 0
    unsigned: int = 0
    #: what is worth telling, with its moment
    told: list[tuple[float, str]] = field(default_factory=list)
    live: bool = False

    def tell(self, what: str) -> None:
        moment = time.monotonic() - self.began
        self.told.append((moment, what))
        if not self.live:
            console.print(told_line(moment, what))


def told_line(moment: float, what: str) -> Text:
    return Text.assemble((f"{moment:5.1f} s  ", "bright_black"), Text.from_markup(what))


# ── producers ───────────────────────────────────────────────────────────────────────────────────


async def shop(client: Client, notes: Notes, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        express = number % 5 == 0
        order = {"number": number, "customer": f"c{random.randint(1, 60)}", "total": random.randint(5, 500)}
        published = await client.publish("orders.created", order, priority=0 if express else 5)
        notes.acknowledged["orders"].add(published.id)
        await asyncio.sleep(random.uniform(0.01, 0.07))


class Erp:
    """Sends changes as they happen, and every customer as it is by now when it is asked for all."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._customers: dict[str, dict[str, Any]] = {
            f"c{number}": {
                "customer": f"c{number}",
                "country": SWISS if number % 6 == 0 else "DE",
                "version": 0,
                "exportedAt": 0.0,
            }
            for number in range(1, CUSTOMERS + 1)
        }
        #: one change at a time, so that what was sent last is what there is
        self._sending = asyncio.Lock()

    def _change(self, customer: str) -> dict[str, Any]:
        changed = self._customers[customer]
        changed["version"] += 1
        return changed

    async def send_all(self, client: Client, changing: int) -> None:
        """The nightly export: all or none, in one request."""
        async with self._sending:
            for customer in random.sample(sorted(self._customers), changing):
                self._change(customer)
            for record in self._customers.values():
                record["exportedAt"] = time.time()
            results = await client.publish_many(
                {"topics": ["customers.changed"], "key": key, "body": json.dumps(record)}
                for key, record in self._customers.items()
            )
        self._notes.acknowledged["customers"].update(result.id for result in results)
        self._notes.unchanged.update(result.id for result in results if result.state == "U")
        unchanged = sum(result.state == "U" for result in results)
        self._notes.tell(
            f"erp sent {len(results)} customers in one request: all of them or none"
            + (f"; [cyan]{unchanged} unchanged[/], they go nowhere" if unchanged else "")
        )

    async def work(self, client: Client, stop: asyncio.Event) -> None:
        await self.send_all(client, CUSTOMERS)
        count = 0
        while not stop.is_set():
            count += 1
            async with self._sending:
                await self._send_one(client, twice=count % 4 == 0)
            await asyncio.sleep(random.uniform(0.02, 0.08))

    async def _send_one(self, client: Client, twice: bool) -> None:
        notes = self._notes
        customer, key = f"c{random.randint(1, CUSTOMERS)}", uuid.uuid4().hex
        changed = self._change(customer)
        published = await client.publish("customers.changed", changed, key=customer, idempotency_key=key)
        notes.acknowledged["customers"].add(published.id)
        if twice:
            again = await client.publish("customers.changed", changed, key=customer, idempotency_key=key)
            notes.sent_twice += 1
            notes.same_id += again.id == published.id


async def finance(client: Client, notes: Notes, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        invoice = {"invoice": number, "total": random.randint(5, 500)}
        published = await client.publish("invoices.due", invoice, delay=random.choice([0, 1, 2]))
        notes.acknowledged["invoices"].add(published.id)
        await asyncio.sleep(random.uniform(0.05, 0.15))


# ── workers ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Bug:
    fixed: bool = False


def employ(client: Client, notes: Notes, bug: Bug) -> None:
    @client.worker("orders", concurrency=4, lease=LEASE_SECONDS, consumer="billing")
    async def bill(message: Message) -> None:
        await asyncio.sleep(random.uniform(0.02, 0.08))
        notes.handled[message.id] += 1

    @client.worker("customers", concurrency=4, lease=LEASE_SECONDS, consumer="crm")
    async def update(message: Message) -> None:
        changed = message.json()
        if changed["country"] == SWISS and not bug.fixed:
            raise KeyError("canton")
        await asyncio.sleep(random.uniform(0.005, 0.03))
        notes.handled[message.id] += 1
        if changed["country"] != SWISS:
            notes.versions.setdefault(changed["customer"], []).append(changed["version"])

    @client.worker(channel="analytics", concurrency=4, lease=LEASE_SECONDS, consumer="analytics")
    async def analyse(message: Message) -> None:
        notes.analysed[message.id] += 1


@asynccontextmanager
async def letters(notes: Notes) -> AsyncIterator[str]:
    """A receiver of webhooks, and its URL. It believes what is signed with its secret."""
    keys = [key_of(SECRET)]

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        id, at = request.headers["webhook-id"], int(request.headers["webhook-timestamp"])
        if request.headers["webhook-signature"] != signature(keys, id, at, body):
            notes.unsigned += 1
            return web.Response(status=401)
        notes.signed += 1
        notes.handled[id] += 1
        return web.Response(status=204)

    application = web.Application()
    application.router.add_post("/letters", receive)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/letters"
    finally:
        await runner.cleanup()


# ── what is seen meanwhile ──────────────────────────────────────────────────────────────────────


class Screen:
    """At a terminal a picture that moves; elsewhere only what is told, line by line."""

    def __init__(self, url: str, notes: Notes, seconds: float) -> None:
        self._url, self._notes, self._seconds = url, notes, seconds
        self._places: list[dict[str, Any]] = []
        self._away = False

    async def show(self) -> None:
        if not console.is_terminal:
            return
        self._notes.live = True
        with Live(self._picture(), console=console, refresh_per_second=8, transient=True) as live:
            try:
                async with Client(self._url, patience=0, timeout=1) as client:
                    while True:
                        await self._look(client)
                        live.update(self._picture())
                        await asyncio.sleep(0.2)
            finally:
                self._notes.live = False

    async def _look(self, client: Client) -> None:
        try:
            self._places = [*await client.queues(), *await client.channels()]
            self._away = False
        except WaypostError:
            self._away = True

    def _picture(self) -> Panel:
        passed = time.monotonic() - self._notes.began
        lines = [told_line(*told) for told in self._notes.told[-8:]]
        broker = Text("the broker is away", "bold red") if self._away else Text("the broker is up", "green")
        return Panel(
            Group(
                ProgressBar(total=self._seconds, completed=min(passed, self._seconds)),
                Text("\n"),
                figures(self._places),
                Text(),
                *lines,
            ),
            title="Waypost at work",
            subtitle=broker,
            box=box.ROUNDED,
            padding=(1, 2),
        )


def figures(places: list[dict[str, Any]]) -> Table:
    columns = ("waiting", "fetched", "done", "dead")
    made = table("queue", *columns, right=columns)
    for place in places:
        states = place["figures"]["states"]
        dead = states["E"] + states["I"]
        made.add_row(
            f"channel {place['name']}" if "topics" in place else place["name"],
            f"{states['Q'] + states['R']:,}",
            f"{states['F']:,}",
            Text(f"{states['S']:,}", "green"),
            Text(f"{dead:,}", "red" if dead else ""),
        )
    return made


# ── the play ────────────────────────────────────────────────────────────────────────────────────


async def play(broker: Broker, notes: Notes, seconds: float) -> dict[str, Any]:
    """Traffic for so long, with what goes wrong in it; then until all is through. What the end shows."""
    screen = asyncio.create_task(Screen(broker.url, notes, seconds * 1.25).show())
    took = await broker.start()
    notes.tell(f"broker started as a process of its own, ready after {took:.2f} s")
    bug, stop = Bug(), asyncio.Event()
    async with (
        letters(notes) as webhook,
        Client(broker.url, patience=60, producer="demo") as producing,
        Client(broker.url, patience=60) as working,
        Client(broker.url, patience=60) as looking,
    ):
        await declare(looking, webhook)
        notes.tell(
            "channel analytics gets a copy of each order and customer; invoices are posted to a webhook"
        )
        employ(working, notes, bug)
        works = asyncio.create_task(working.work())
        erp = Erp(notes)
        producers = [
            asyncio.create_task(erp.work(producing, stop)),
            *(asyncio.create_task(producer(producing, notes, stop)) for producer in (shop, finance)),
        ]
        try:
            await asyncio.sleep(seconds * 0.4)
            await kill_and_restart(broker, notes)
            await asyncio.sleep(seconds * 0.2)
            await erp.send_all(producing, changing=3)
            await asyncio.sleep(seconds * 0.1)
            dead = await fix_and_redrive(looking, notes, bug)
            await asyncio.sleep(seconds * 0.2)
            stop.set()
            await asyncio.gather(*producers)
            notes.tell("producers stopped; waiting for what is under way")
            await until_through(looking)
            notes.tell("everything is through")
        finally:
            working.stop()
            screen.cancel()
            for task in producers:
                task.cancel()
            await asyncio.gather(works, screen, *producers, return_exceptions=True)
        return {
            "dead": dead,
            "queues": await looking.queues(),
            "events": [event async for event in looking.log()],
            "journey": (await looking.message(dead[0]["messageId"]))["journey"] if dead else [],
        }


async def declare(client: Client, webhook: str) -> None:
    await client.declare("orders")
    await client.declare("customers", {"order": "key", "retries": 2, "backoff": {"base": 0.2, "cap": 1}})
    await client.declare_object("customers", {"unchanged": {"ignore": ["$.exportedAt"]}})
    await client.declare("invoices", {"lease": LEASE_SECONDS})
    await client.declare_consumer(
        "letters", {"queue": "invoices", "url": webhook, "secret": SECRET, "concurrency": 4}
    )
    await client.declare_channel("analytics", ["orders.*", "customers.*"])


async def kill_and_restart(broker: Broker, notes: Notes) -> None:
    count = sum(map(len, notes.acknowledged.values()))
    broker.end(signal.SIGKILL)
    notes.tell(f"[bold red]broker killed with SIGKILL[/], after {count:,} acknowledged messages")
    await asyncio.sleep(0.5)
    took = await broker.start()
    notes.tell(
        f"[bold green]broker started again[/], ready after {took:.2f} s; producers and workers just go on"
    )


async def fix_and_redrive(client: Client, notes: Notes, bug: Bug) -> list[dict[str, Any]]:
    """The dead letters there were."""
    dead = [delivery async for delivery in client.search("queue=customers state=EI")]
    notes.tell(f"crm's bug has made [red]{len(dead)} dead letters[/] by now: Swiss customers have no canton")
    bug.fixed = True
    job = await client.job_done(await client.redrive("queue=customers state=E"))
    notes.tell(f"bug fixed, [green]{job['done']} dead letters redriven[/]")
    return dead


async def until_through(client: Client) -> None:
    async with asyncio.timeout(60):
        while True:
            places = [*await client.queues(), *await client.channels()]
            states = [place["figures"]["states"] for place in places]
            if not any(state[letter] for state in states for letter in "QRF"):
                return
            # Those that died between the redrive and the fix's first use, if any.
            if any(state["E"] for state in states):
                await client.redrive("queue=customers state=E")
            await asyncio.sleep(0.2)


# ── the pipeline ────────────────────────────────────────────────────────────────────────────────


def explain(url: str, page: Path, wait: bool) -> bool:
    """Folds the log into tables and draws the page, with the commands a person would type; whether both went well."""
    console.rule("[bold]The log as tables: Spark")
    if wait:
        _until_minute_is_over()
        with BlockingClient(url, producer="demo") as client:
            client.publish("closing.time", "the first thing after a minute is what closes it")
    for words in (("pipeline", "once"), ("pipeline", "report", "-o", str(page))):
        if not _command(*words, "--url", url):
            return False
    return True


def _command(*words: str) -> bool:
    """As a person would type it; whether it went well."""
    began = time.monotonic()
    console.print(f"[bold]waypost {' '.join(words[:-2])}[/]")
    done = subprocess.run(
        [sys.executable, "-m", "waypost", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if console.is_terminal else subprocess.PIPE,
        text=True,
    )
    for line in done.stdout.splitlines():
        console.print(f"  {line}", markup=False)
    if done.returncode:
        console.print(f"  {(done.stderr or '').strip() or 'it failed'}", markup=False, style="red")
        return False
    console.print(f"  [bright_black]{time.monotonic() - began:.1f} s[/]")
    return True


def _until_minute_is_over() -> None:
    """Tables of minutes hold whole minutes only; the last of the traffic is in one that runs."""
    left = 60 - time.time() % 60
    with console.status("") as status:
        while left > 0:
            status.update(f"the minute ends in {left:.0f} s; figures are kept of whole minutes")
            time.sleep(min(left, 1))
            left -= 1


# ── routing in Spark ────────────────────────────────────────────────────────────────────────────


def route_in_spark(url: str) -> bool:
    """A catalogue that comes twice: the broker only logs it, Spark decides, and what has changed is delivered."""
    console.rule("[bold]One object routed by Spark")
    with BlockingClient(url, producer="catalogue") as client:
        client.declare_object("products", {"route": "spark", "unchanged": {"ignore": ["$.exportedAt"]}})
        changed = set(random.sample(range(PRODUCTS), PRODUCTS // 10))
        for night in range(2):
            results = client.publish_many(
                {
                    "topics": ["products.exported"],
                    "key": f"p{number}",
                    "body": json.dumps({"price": number + night * (number in changed), "exportedAt": night}),
                }
                for number in range(PRODUCTS)
            )
            logged = sum(result.state == "L" for result in results)
            console.print(f"  the catalogue of {PRODUCTS} products: {logged} logged, and nothing else yet")
        if not _command("pipeline", "route", "--once", "--url", url):
            return False
        products = client.object("products")["figures"]
        delivered = 0
        while fetched := client.fetch("products", 500, consumer="shelf"):
            client.confirm("products", [message.receipt for message in fetched])
            delivered += len(fetched)
    unchanged, waiting = sum(products["unchanged"].values()), products["waiting"]
    held = (unchanged, delivered, waiting) == (PRODUCTS - len(changed), PRODUCTS + len(changed), 0)
    said = f"{2 * PRODUCTS} logged: {unchanged} unchanged and dropped, {delivered} delivered, {waiting} left"
    console.print(Text.assemble("  ", ("✓ ", "bold green") if held else ("✗ ", "bold red"), said))
    return held


# ── the end ─────────────────────────────────────────────────────────────────────────────────────


def summary(notes: Notes, seen: dict[str, Any]) -> bool:
    """Whether all that must hold held."""
    logged = {event["messageId"] for event in seen["events"] if event["toState"] == "L"}
    completed = {event["messageId"] for event in seen["events"] if event["toState"] == "X"}
    acknowledged = set().union(*notes.acknowledged.values())
    delivered = acknowledged - notes.unchanged
    for_channel = (notes.acknowledged["orders"] | notes.acknowledged["customers"]) - notes.unchanged
    console.rule("[bold]What happened")
    for told in notes.told if console.is_terminal else ():
        console.print(told_line(*told))
    console.print()
    console.print(per_queue(notes, seen["queues"], completed))
    console.print()
    if seen["dead"]:
        reasons = Counter(delivery["reason"] for delivery in seen["dead"])
        console.print(
            f"[bold]Dead letters before the fix[/]  {', '.join(f'{n} × {why}' for why, n in reasons.items())}"
        )
        console.print(deliveries_table(seen["dead"][:3]))
        console.print()
        console.print(f"[bold]The journey of one of them[/]  {seen['dead'][0]['messageId']}")
        console.print(journey_table(seen["journey"]))
        console.print()
    ordered = all(versions == sorted(versions) for versions in notes.versions.values())
    again = sum(count - 1 for count in notes.handled.values())
    doubled = notes.sent_twice - notes.same_id
    checks = [
        (
            acknowledged <= logged,
            f"{len(acknowledged):,} acknowledged, {len(acknowledged - logged)} of them lost",
        ),
        (
            logged == acknowledged,
            f"{len(logged):,} in the log, {len(logged - acknowledged)} that nobody sent",
        ),
        (
            notes.unchanged and not notes.unchanged & set(notes.handled),
            f"{len(notes.unchanged):,} unchanged, {len(notes.unchanged & set(notes.handled))} of them delivered",
        ),
        (
            completed == delivered,
            f"{len(completed):,} completed, {len(delivered - completed)} left behind",
        ),
        (
            delivered <= set(notes.handled),
            f"{len(notes.handled):,} handled, {again} of them again"
            + (": their confirm was lost" if again else ""),
        ),
        (
            notes.same_id == notes.sent_twice,
            f"{notes.sent_twice} sent twice with one Idempotency-Key, {doubled} became two",
        ),
        (
            for_channel == set(notes.analysed),
            f"{len(notes.analysed):,} also in channel analytics, {len(for_channel - set(notes.analysed))} missing there",
        ),
        (
            notes.signed and not notes.unsigned,
            f"{notes.signed:,} posted to the webhook, {notes.unsigned} with a wrong signature",
        ),
        (
            ordered,
            f"changes of {len(notes.versions)} customers handled in order: {'yes' if ordered else 'NO'}",
        ),
    ]
    console.print("[bold]Held against the broker's log[/]")
    for held, line in checks:
        console.print(Text.assemble("  ", ("✓ ", "bold green") if held else ("✗ ", "bold red"), line))
    return all(held for held, _ in checks)


def per_queue(notes: Notes, queues: list[dict[str, Any]], completed: set[str]) -> Table:
    columns = ("acknowledged", "unchanged", "completed", "handled", "dead now")
    made = table("queue", *columns, right=columns)
    for queue in queues:
        name, states = queue["name"], queue["figures"]["states"]
        ids = notes.acknowledged[name]
        made.add_row(
            name,
            f"{len(ids):,}",
            f"{len(ids & notes.unchanged):,}",
            f"{len(ids & completed):,}",
            f"{sum(notes.handled[id] for id in ids):,}",
            f"{states['E'] + states['I']:,}",
        )
    return made


FAREWELL = """\
[bold]Go on playing[/]
  make serve
  curl -d '{"number": 17}' localhost:8080/in/orders.created
  curl -i localhost:8080/queue/orders
  curl -d '{"receipts": ["THE-RECEIPT"], "outcome": "success"}' localhost:8080/queue/orders/confirm
  waypost tail, queues, channels, dead, message ID: .venv/bin/waypost --help lists them all
  waypost pipeline once, then python examples/questions.py: the same tables for you"""


def main() -> int:
    parser = argparse.ArgumentParser(description="The broker at work: ends by itself.")
    parser.add_argument("--seconds", type=float, default=24, help="how long producers produce (24)")
    parser.add_argument(
        "--page", type=Path, default=Path("demo-report.html"), help="the report (demo-report.html)"
    )
    parser.add_argument("--at-once", action="store_true", help="do not wait for the minute to end")
    asked = parser.parse_args()
    # What a worker says of a handler's exception is shown as dead letters here.
    logging.getLogger("waypost.worker").setLevel(logging.CRITICAL)
    notes = Notes()
    console.rule("[bold]Waypost: a durable message broker")
    with tempfile.TemporaryDirectory(prefix="waypost-demo-") as folder:
        broker = Broker(Path(folder))
        try:
            seen = asyncio.run(play(broker, notes, asked.seconds))
            held = summary(notes, seen)
            console.print()
            routed = route_in_spark(broker.url)
            console.print()
            explained = explain(broker.url, asked.page, wait=not asked.at_once)
        except KeyboardInterrupt:
            return 130
        finally:
            with suppress(subprocess.TimeoutExpired):
                broker.end(signal.SIGTERM)
    console.print()
    console.print(FAREWELL)
    return 0 if held and routed and explained else 1


if __name__ == "__main__":
    sys.exit(main())
