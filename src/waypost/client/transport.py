"""One request and its repeats.

    ask ──▶ send ──▶ answered ──────────────────────────▶ Answer, or the Refused it carries
              ▲          │ 503, 429, 507 with Retry-After: nothing was done
              │          │ no connection: nothing was sent
              │          │ connection lost, time over: perhaps it was done
              '── wait ◀─'   full jitter, at least Retry-After, until `patience` is used up

What was perhaps done is sent again only when the caller says that a repeat changes nothing (`repeatable`):
reads, confirms, and publishes, because those carry an Idempotency-Key. Everything else is safe to send again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from .. import errors
from ..errors import Refused, RequestInvalid, WaypostError
from .connections import BrokenOff, Connections, NotConnected, Response, plain

#: the first wait is drawn from up to this, every further one from twice as much
BACK_OFF_BASE_SECONDS = 0.1
BACK_OFF_CAP_SECONDS = 5.0
#: a followed log sends an empty line every 15 s; silence for so long means that it is gone
SILENCE_SECONDS = 40.0

Query = Mapping[str, str | int | float | None]


class Unreachable(WaypostError):
    """The broker did not answer: not there, gone in between, or too slow."""

    def __init__(self, url: str, detail: str, perhaps_done: bool) -> None:
        super().__init__(f"no answer from {url}: {detail}")
        self.url, self.detail = url, detail
        #: whether the request may have been carried out although its answer was lost
        self.perhaps_done = perhaps_done


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            raise not_ours(self.status) from None


def path(*segments: str) -> str:
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def wait_before_repeat(failure: WaypostError, repeatable: bool, tries: int) -> float | None:
    """How long to wait before sending it again; None: it must not, or need not, be sent again."""
    ceiling = min(BACK_OFF_CAP_SECONDS, BACK_OFF_BASE_SECONDS * 2.0 ** min(tries - 1, 20))
    jitter = random.uniform(0, ceiling)
    if isinstance(failure, Unreachable):
        return jitter if repeatable or not failure.perhaps_done else None
    if isinstance(failure, Refused) and failure.retry_after is not None:
        return failure.retry_after + jitter
    return None


def not_ours(status: int) -> Refused:
    refused = Refused(
        f"status {status}, and not as Waypost answers", "is that the address of a Waypost broker?"
    )
    refused.status, refused.code, refused.title = status, "ANSWER_INVALID", "Answer invalid"
    return refused


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """The error a problem JSON stands for, of its own class where there is one."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        refused = not_ours(status)
    else:
        # What is malformed has a word of its own for each thing; the class is one.
        kind = _BY_CODE.get(problem.code, RequestInvalid if status == 400 else Refused)
        refused = kind.__new__(kind)
        Refused.__init__(refused, problem.detail or problem.title, problem.hint)
        refused.status, refused.code, refused.title = status, problem.code, problem.title
    after = headers.get("Retry-After", "")
    refused.retry_after = int(after) if after.isascii() and after.isdigit() else None
    return refused


def check_url(url: str) -> str:
    """A broker's address, with its scheme and without a slash at its end."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number or too high
        usable = False
    if not usable or parts.query or parts.fragment:
        raise RequestInvalid(
            f"not a broker's address: {url!r}", "such as http://127.0.0.1:8080", "URL_INVALID"
        )
    return parts.geturl().rstrip("/")


class Transport:
    def __init__(self, url: str, *, timeout: float, patience: float, connections: int) -> None:
        self.url = check_url(url)
        self._timeout, self._patience = timeout, patience
        self._connections = Connections(self.url, connections)

    async def ask(
        self,
        method: str,
        at: str,
        query: Query | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        repeatable: bool,
        wait: float = 0.0,
    ) -> Answer:
        """`wait` is how long the broker itself may take on purpose (a long poll)."""
        give_up_at = time.monotonic() + self._patience
        tries = 0
        while True:
            tries += 1
            try:
                return await self._send(method, at, query, headers, body, self._timeout + wait)
            except WaypostError as failure:
                pause = wait_before_repeat(failure, repeatable, tries)
                if pause is None or time.monotonic() + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)

    async def _send(
        self,
        method: str,
        at: str,
        query: Query | None,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        seconds: float,
    ) -> Answer:
        try:
            async with (
                asyncio.timeout(seconds),
                self._request(method, at, query, headers, body, silence=None) as response,
            ):
                answer = Answer(response.status, response.headers, await response.read())
        except TimeoutError as error:
            raise _too_slow(self.url) from error
        if answer.status >= 400:
            raise refusal(answer.status, answer.headers, answer.body)
        return answer

    @asynccontextmanager
    async def stream(self, at: str, query: Query) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer as they come, for as long as it goes on."""
        async with self._request("GET", at, query, None, None, SILENCE_SECONDS) as response:
            if response.status >= 400:
                raise refusal(response.status, response.headers, await response.read())
            yield _lines(response)

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        at: str,
        query: Query | None,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        silence: float | None,
    ) -> AsyncIterator[Response]:
        """One request; whatever its connection does wrong becomes Unreachable."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{at}?{urlencode(given, quote_via=quote)}" if given else at
        try:
            exchange = self._connections.exchange(method, target, headers or {}, body, silence)
            async with exchange as response:
                yield response
        except NotConnected as error:
            raise Unreachable(self.url, str(error), perhaps_done=False) from error
        except TimeoutError as error:
            raise _too_slow(self.url) from error
        except (BrokenOff, OSError) as error:
            raise Unreachable(self.url, plain(error), perhaps_done=True) from error

    async def close(self) -> None:
        await self._connections.close()


class _Problem(msgspec.Struct):
    code: str
    title: str = ""
    detail: str = ""
    hint: str = ""


_BY_CODE: dict[str, type[Refused]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, Refused) and kind is not Refused
}


def _too_slow(url: str) -> Unreachable:
    return Unreachable(url, "it took too long", perhaps_done=True)


async def _lines(response: Response) -> AsyncIterator[bytes]:
    """Whole lines of any length; an unfinished one at the end is not a line."""
    rest = b""
    async for part in response.parts():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
