"""One consumer that is pushed to: fetch, send, settle.

    _pump ── room? ──▶ fetch (waits at the broker) ──▶ a task for each message ──▶ judge ──▶ confirm or release ──┐
      ▲       concurrency, rate, breaker, hold          '─ held: its lease is extended every third of it            │
      '─────────────────────────────────────────────────────────────────────────────────────────────────────────────┘

Rules
* At most `concurrency` messages are held, and none of them twice: one that comes again while it is being sent (its lease
  was over, because this process stood still) is not sent again; its new receipt is the one that is confirmed.
* Nothing is fetched that cannot be sent at once, so nothing is counted while the breaker is open.
* A delivery that failed through no fault of its message goes back (released), and is not counted.
* After `stop` nothing is fetched; what is under way comes to its end, or is cancelled and goes back. What a fetch brings
  then goes back too, unless the queue itself kicks: that is K already, and is sent.
* At most once: a message is K before it is sent. Until the `Kick` is asked for it can go back; after that, never.

All of it runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..broker import HASH_IN_LOOP_BYTES, Broker, Waiter
from ..commands import Confirm, Extend, Fetch, Fetched, Kick, Release
from ..consumers import Consumer
from ..delivery import Outcome
from ..destinations import Kind
from ..errors import Busy, Refused
from ..instants import SECOND
from ..policy import Policy
from .answers import Answer, Health, Silence, Verdict, harmless, judge
from .breaker import Breaker, Position, Tripping
from .crew import Crew
from .figures import Figures
from .headers import headers_of
from .pace import Pace
from .signing import key_of, signature

if TYPE_CHECKING:
    from .sending import Sender

log = logging.getLogger("waypost.push")

#: how long one fetch waits at the broker
WAIT_US = 60 * SECOND
#: no lease of ours is shorter: the loop may be busy for a moment
SHORTEST_LEASE_US = 3 * SECOND
#: pause after a fetch that was refused: the queue is not there, or the broker is busy
PAUSE_SECONDS = 0.5
#: pause before a confirm that the broker was too busy for is tried again
BUSY_SECONDS = 0.1
#: a Retry-After of nothing is no invitation to try at once
SHORTEST_HOLD_SECONDS = 1.0
#: messages that a probe looks at, to find one that has not failed as a probe before
MOST_PROBES = 16


class Held:
    """A message under way."""

    __slots__ = ("consumer", "fetched", "kicked", "receipt")

    def __init__(self, fetched: Fetched, consumer: Consumer, kicked: bool) -> None:
        #: as it was declared when this was fetched
        self.fetched, self.consumer = fetched, consumer
        #: the newest
        self.receipt = fetched.receipt
        #: nothing is settled after the answer
        self.kicked = kicked


class Endpoint:
    def __init__(
        self,
        name: str,
        consumer: Consumer,
        broker: Broker,
        sender: Sender,
        tripping: Tripping,
        crew: Crew,
        on_gone: Callable[[Endpoint], None],
    ) -> None:
        """`on_gone`: the receiver answered 410."""
        self.name, self.crew = name, crew
        self._broker, self._sender, self._tripping, self._on_gone = broker, sender, tripping, on_gone
        self._loop = asyncio.get_running_loop()
        self._set(consumer)
        self._stopped = False
        #: the number of the last fetch; what an older one brings goes back
        self._asked = 0
        self._asking = False
        self._waiter: Waiter | None = None
        #: fetches that the broker will answer
        self._fetching = 0
        self._pumping = False
        #: what is another's turn goes back; until then nothing is fetched, lest it be the same
        self._leaving = False
        self._timer: asyncio.TimerHandle | None = None
        #: by message id
        self._held: dict[str, Held] = {}
        self._tasks: set[asyncio.Task[Answer | Silence | None]] = set()
        #: confirms and releases that are not committed yet
        self._settling = 0
        self._at_rest: asyncio.Future[None] | None = None
        self._lease_us = SHORTEST_LEASE_US
        self._extender: asyncio.TimerHandle | None = None
        #: messages that failed as a probe since the breaker opened
        self._probed: set[str] = set()
        self._sent = self._succeeded = self._failed = 0
        self._last_error: str | None = None
        self._last_error_at: int | None = None
        self._last_success_at: int | None = None

    def _set(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._keys = [key_of(secret) for secret in consumer.secrets]
        self._pace = None if consumer.rate is None else Pace(consumer.rate, self._loop.time())
        self._breaker = Breaker(self._tripping)
        self._probed = set()
        self._wondered = False
        #: nothing is sent before; a receiver asked for it
        self._quiet_until = 0.0

    # ── from outside ────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._pump()

    def change(self, consumer: Consumer, crew: Crew) -> None:
        """What is under way is finished as it began; what comes next goes by the new wishes."""
        self._give_up()
        self.crew = crew
        self._set(consumer)
        self._pump()

    def stop(self) -> None:
        self._stopped = True
        self._give_up()
        self._wake_in(None)

    async def ended(self) -> None:
        """After `stop`: until nothing is under way."""
        while not self._rests:
            if self._at_rest is None:
                self._at_rest = self._loop.create_future()
            await self._at_rest

    @property
    def _rests(self) -> bool:
        return not (self._tasks or self._settling or self._fetching)

    def cancel(self) -> None:
        """What is under way goes back."""
        for task in list(self._tasks):
            task.cancel()

    def figures(self) -> Figures:
        return Figures(
            sent=self._sent,
            succeeded=self._succeeded,
            failed=self._failed,
            in_flight=len(self._held),
            breaker=self._breaker.position(self._loop.time()),
            last_error=self._last_error,
            last_error_at=self._last_error_at,
            last_success_at=self._last_success_at,
        )

    def wants(self, message: Fetched) -> bool:
        """Whether it could take this message now."""
        now = self._loop.time()
        up = self._breaker.position(now) is Position.CLOSED
        return up and self._room(now) > 0 and self.consumer.wants(message.envelope.topics)

    # ── fetch ───────────────────────────────────────────────────────────────────────────────

    @property
    def _resting(self) -> bool:
        return self._stopped or self.consumer.paused or self._broker.stopping

    def _room(self, now: float) -> int:
        """How many messages could be sent now."""
        position = self._breaker.position(now)
        if self._resting or now < self._quiet_until or position is Position.OPEN:
            return 0
        if position is Position.HALF_OPEN:
            return 0 if self._held else 1
        room = self.consumer.concurrency - len(self._held)
        return room if self._pace is None else min(room, self._pace.ready(now))

    def _room_in(self, now: float) -> float | None:
        """In how many seconds there is room, by the clock alone; None: something else must happen first."""
        if self._resting:
            return None
        if now < self._quiet_until:
            return self._quiet_until - now
        if self._breaker.position(now) is Position.OPEN:
            return self._breaker.until - now
        if self._pace is not None and len(self._held) < self.consumer.concurrency:
            return self._pace.seconds()
        return None

    def _wake_in(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._pump)

    def _pump_soon(self) -> None:
        """After the others that ended in this round of the loop, and before the committer's turn: one fetch for all of
        them, in one group with their confirms."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Fetch, if there is room and no fetch under way."""
        self._pumping = False
        if self._asking or self._leaving:
            return
        now = self._loop.time()
        room = self._room(now)
        if room <= 0:
            self._wake_in(self._room_in(now))
            return
        self._wake_in(None)
        policy = self._policy()
        kicks = policy is not None and policy.kick
        self._lease_us = SHORTEST_LEASE_US if policy is None else max(SHORTEST_LEASE_US, policy.lease_us)
        if self._breaker.position(now) is Position.HALF_OPEN and not kicks:
            room = min(len(self._probed) + 1, MOST_PROBES)
        self._ask(room, kicks)

    def _ask(self, n: int, kicks: bool) -> None:
        self._asking = True
        self._asked += 1
        self._fetching += 1
        asked, consumer = self._asked, self.consumer

        def fetched(result: Any) -> None:
            self._fetching -= 1
            mine = asked == self._asked
            if mine:
                self._asking, self._waiter = False, None
            if isinstance(result, Refused):
                if mine:
                    self._refused(result)
            elif mine or kicks:
                # What was kicked cannot go back.
                self._take([Held(message, consumer, kicks) for message in result])
            else:
                self._release([message.receipt for message in result])
            self._tell_rest()

        command = Fetch(
            queue=consumer.destination,
            kind=consumer.kind,
            consumer=self.name,
            n=n,
            lease_us=self._lease_us,
            topic=",".join(consumer.topics) or None,
        )
        waiter = self._broker.fetch(command, fetched, WAIT_US)
        if self._asking and asked == self._asked:
            self._waiter = waiter

    def _give_up(self) -> None:
        """Forget the fetch under way."""
        if self._waiter is not None:
            if self._waiter.timer is not None:  # parked; one that is being served is answered all the same
                self._fetching -= 1
            self._broker.give_up(self._waiter)
        self._asked += 1
        self._asking, self._waiter = False, None

    def _refused(self, refused: Refused) -> None:
        if not isinstance(refused, Busy):
            self._note(refused.detail)
        self._wake_in(None if self._resting else PAUSE_SECONDS)

    def _policy(self) -> Policy | None:
        store, name = self._broker.store, self.consumer.destination
        info = store.queue(name) if self.consumer.kind is Kind.QUEUE else store.channel(name)
        return None if info is None else info.policy

    def _take(self, fetched: list[Held]) -> None:
        now = self._loop.time()
        fetched = [held for held in fetched if not self._is_known(held)]
        if self._breaker.position(now) is not Position.CLOSED:
            fetched = self._probe(fetched)
        elif len(self.crew.members) > 1:
            fetched = self._without_others(fetched)
        if self._pace is not None:
            self._pace.take(len(fetched), now)
        for held in fetched:
            self._held[held.fetched.id] = held
            task = self._loop.create_task(self._deliver(held))
            self._tasks.add(task)
            task.add_done_callback(partial(self._delivered, held))
        if fetched and self._extender is None:
            self._extender = self._loop.call_later(self._lease_us / 3 / SECOND, self._extend)
        self._pump()

    def _is_known(self, held: Held) -> bool:
        known = self._held.get(held.fetched.id)
        if known is not None:
            known.receipt = held.receipt
        return known is not None

    def _probe(self, fetched: list[Held]) -> list[Held]:
        """One of them, if it can be one that has not failed as a probe: a message that is the cause itself must not keep
        the others from showing that the endpoint is up."""
        if not fetched or fetched[0].kicked:
            return fetched
        fresh = [held for held in fetched if held.fetched.id not in self._probed]
        if not fresh:
            self._probed.clear()
        chosen = (fresh or fetched)[0]
        self._release([held.receipt for held in fetched if held is not chosen])
        return [chosen]

    def _without_others(self, fetched: list[Held]) -> list[Held]:
        """Without those whose turn is another endpoint's. That one waits at the broker, and is woken when they are back."""
        policy = self._policy()
        if policy is None or policy.counts_consumers or policy.kick:
            return fetched
        mine: list[Held] = []
        left: list[str] = []
        for held in fetched:
            if self.crew.turn(held.fetched, self) is self:
                mine.append(held)
            else:
                left.append(held.receipt)
        if left:
            self._leaving = True
            self._settle(Release(left), self._left)
        return mine

    def _left(self) -> None:
        self._leaving = False
        self._pump_soon()

    # ── send ────────────────────────────────────────────────────────────────────────────────

    async def _deliver(self, held: Held) -> Answer | Silence | None:
        """What came back; None: it was not sent."""
        message, consumer = held.fetched, held.consumer
        body, url = message.body, consumer.url
        assert isinstance(body, bytes)
        assert url is not None
        if consumer.kick and not held.kicked and not await self._kick(held):
            return None
        timestamp = int(time.time())
        headers = headers_of(message, self.name)
        headers["webhook-timestamp"] = str(timestamp)
        if self._keys:
            headers["webhook-signature"] = await self._signature(message.id, timestamp, body)
        self._sent += 1
        return await self._sender.post(url, headers, body, consumer.timeout_us / SECOND)

    async def _signature(self, id: str, timestamp: int, body: bytes) -> str:
        if len(body) <= HASH_IN_LOOP_BYTES:
            return signature(self._keys, id, timestamp, body)
        return await asyncio.to_thread(signature, self._keys, id, timestamp, body)

    async def _kick(self, held: Held) -> bool:
        """At most once: it is K before it is sent. Whether it is; else it goes back."""
        if not self._stopped:
            with contextlib.suppress(Refused):
                settled = await self._broker.ask(Kick([held.receipt]))
                held.kicked = settled[0].state is not None
        if not held.kicked:
            self._release([held.receipt])
        return held.kicked

    # ── settle ──────────────────────────────────────────────────────────────────────────────

    def _delivered(self, held: Held, task: asyncio.Task[Answer | Silence | None]) -> None:
        self._tasks.discard(task)
        del self._held[held.fetched.id]
        self._pump_soon()
        try:
            if task.cancelled():
                if not held.kicked:
                    self._release([held.receipt])
            elif (verdict := self._verdict(held, task)) is not None:
                self._settle_by(held, verdict)
        except Exception as error:
            # Counted, so that it does not come again for ever.
            self._confirm(held, self._fault(held, "settling", error))
        finally:
            self._tell_rest()

    def _verdict(self, held: Held, task: asyncio.Task[Answer | Silence | None]) -> Verdict | None:
        """None: it was not sent."""
        try:
            got = task.result()
            return None if got is None else judge(got, time.time())
        except Exception as error:
            return self._fault(held, "sending", error)

    def _fault(self, held: Held, doing: str, error: Exception) -> Verdict:
        log.error("consumer %s: a fault while %s %s", self.name, doing, held.fetched.id, exc_info=error)
        reason = f"a fault in Waypost: {type(error).__name__}"
        self._note(reason)
        return Verdict(health=Health.OUTAGE, reason=reason)

    def _settle_by(self, held: Held, verdict: Verdict) -> None:
        if self._learn(held, verdict):
            self._confirm(held, verdict)
        elif not held.kicked:
            self._release([held.receipt])

    def _confirm(self, held: Held, verdict: Verdict) -> None:
        if not held.kicked:
            self._settle(
                Confirm(
                    queue=held.consumer.destination,
                    kind=held.consumer.kind,
                    receipts=[held.receipt],
                    outcome=verdict.outcome,
                    reason=verdict.reason,
                    delay_us=verdict.delay_us,
                )
            )

    def _learn(self, held: Held, verdict: Verdict) -> bool:
        """What an answer says of the endpoint; whether it counts as an attempt of the message."""
        id, now = held.fetched.id, self._loop.time()
        if verdict.outcome is Outcome.SUCCESS:
            self._succeeded += 1
            self._last_success_at = self._broker.clock()
            self.crew.forget(id)
            if verdict.reason is not None:
                self._wonder(verdict.reason)
        else:
            self._failed += 1
            self._note(verdict.reason or verdict.outcome)
            self.crew.failed(id, self)
        if held.consumer.url != self.consumer.url:
            # It was another endpoint that answered.
            return verdict.health is Health.UP
        if verdict.health is Health.UP:
            self._probed.clear()
            self._breaker.answered(id, now)
            return True
        if verdict.health is Health.OUTAGE:
            return self._outage(id, verdict, now)
        self._give_up()
        if verdict.health is Health.GONE:
            # One that was declared again meanwhile, or is paused by now, is another object.
            if held.consumer is self.consumer:
                log.warning("consumer %s: its receiver answered 410, so it is paused", self.name)
                self._on_gone(self)
                self.consumer = msgspec.structs.replace(self.consumer, paused=True)
            return False
        seconds = max(SHORTEST_HOLD_SECONDS, (verdict.delay_us or 0) / SECOND)
        self._quiet_until = max(self._quiet_until, now + seconds)
        return self._breaker.throttled(id)

    def _outage(self, id: str, verdict: Verdict, now: float) -> bool:
        was = self._breaker.position(now)
        counted = self._breaker.outage(id, now, sent=verdict.sent)
        if was is Position.HALF_OPEN:
            self._probed.add(id)
        if self._breaker.position(now) is Position.OPEN:
            self._give_up()
            if was is Position.CLOSED:
                log.warning("consumer %s: %s; sending pauses", self.name, verdict.reason)
        return counted

    def _wonder(self, oddity: str) -> None:
        """A success with something odd about it is said in the log once."""
        if not self._wondered:
            self._wondered = True
            log.warning("consumer %s: %s; taken as the status says", self.name, oddity)
        self._note(oddity)

    def _note(self, error: str) -> None:
        # Whoever said it: figures can always be shown.
        self._last_error, self._last_error_at = harmless(error), self._broker.clock()

    def _release(self, receipts: list[str]) -> None:
        if receipts:
            self._settle(Release(receipts))

    def _settle(self, command: Confirm | Release, then: Callable[[], None] | None = None) -> None:
        self._settling += 1

        def done(result: Any) -> None:
            if isinstance(result, Busy):
                self._loop.call_later(BUSY_SECONDS, self._broker.submit, command, done)
                return
            self._settling -= 1
            if then is not None:
                then()
            self._tell_rest()

        self._broker.submit(command, done)

    def _tell_rest(self) -> None:
        if self._at_rest is not None and self._rests:
            self._at_rest.set_result(None)
            self._at_rest = None

    def _extend(self) -> None:
        """A new lease for all that is under way."""
        self._extender = None
        if not self._held:
            return
        places: dict[tuple[Kind, str], list[str]] = {}
        for held in self._held.values():
            if not held.kicked:
                place = held.consumer.kind, held.consumer.destination
                places.setdefault(place, []).append(held.receipt)
        for (kind, destination), receipts in places.items():
            extend = Extend(queue=destination, kind=kind, receipts=receipts, lease_us=self._lease_us)
            self._broker.submit(extend, _ignore)
        self._extender = self._loop.call_later(self._lease_us / 3 / SECOND, self._extend)


def _ignore(result: Any) -> None:
    """An extension that came too late, or found the broker busy: the next one follows, and the lease decides."""
