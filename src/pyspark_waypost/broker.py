"""The broker over HTTP: how far its log goes, and ranges of it as Arrow.

Standard library and pyarrow only. A broker that is away for a moment (a restart) is waited for, up to `patience` seconds;
a range of unfiltered events goes on where it was interrupted, because its offsets are dense.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from .errors import SourceError, Unreachable

ARROW = "application/vnd.apache.arrow.stream"
#: nothing heard for so long is a connection that is gone
TIMEOUT_SECONDS = 120.0
#: how long a read goes on trying
PATIENCE_SECONDS = 30.0
#: a person who waits for load() hears sooner
SHORT_PATIENCE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0

#: what a broken connection raises, on either side of the answer
_BROKEN = (OSError, http.client.HTTPException)
T = TypeVar("T")


class Bounds(NamedTuple):
    """How far a log goes."""

    oldest: int
    head: int


class _Away(Exception):
    """Not now: the connection failed or broke."""


class _Busy(_Away):
    """Not now: the broker said so."""


class Broker:
    """Where a log is read. Holds no connection: one is opened for each request, on whichever machine."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def bounds(self, patience: float = PATIENCE_SECONDS) -> Bounds:
        def ask() -> Bounds:
            with Answer(self, "HEAD", "/log") as answer:
                oldest, head = answer.header("Waypost-Oldest"), answer.header("Waypost-Head")
            if oldest is None or head is None:
                raise SourceError(f"{self.url} is not a Waypost broker: it does not say how far its log goes")
            return Bounds(int(oldest), int(head))

        return self.patiently(ask, patience)

    def offset_at(self, moment: datetime) -> int:
        """The first offset that is not before the moment; the one after the head when none is."""
        text = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

        def ask() -> int:
            with Answer(self, "GET", "/log", {"ts": text, "n": "1"}) as answer:
                head, line = int(answer.header("Waypost-Head") or 0), answer.read()
            return int(json.loads(line)["offset"]) if line.strip() else head + 1

        return self.patiently(ask, PATIENCE_SECONDS)

    def last_offset_until(self, moment: datetime) -> int:
        """The last offset that is not after the moment; 0 when all are."""
        last = datetime.max.replace(tzinfo=UTC)
        return self.offset_at(moment if moment >= last else moment + timedelta(microseconds=1)) - 1

    def lake(self, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """What the broker says of its lake: where it is, how far it goes."""

        def ask() -> dict[str, Any]:
            with Answer(self, "GET", "/v1/lake") as answer:
                said = answer.read()
            try:
                return dict(json.loads(said))
            except (ValueError, TypeError):
                raise SourceError(f"{self.url} is not a Waypost broker: it says nothing of a lake") from None

        return self.patiently(ask, patience)

    def seal(self) -> None:
        """When it returns, all that was committed before is in the lake."""

        def ask() -> None:
            with Answer(self, "POST", "/v1/lake/seal") as answer:
                answer.read()

        self.patiently(ask, PATIENCE_SECONDS)

    def move_spectator(self, name: str, offset: int) -> None:
        def ask() -> None:
            path = f"/v1/spectators/{quote(name, safe='')}"
            with Answer(self, "PUT", path, body=json.dumps({"offset": offset}).encode()) as answer:
                answer.read()

        self.patiently(ask, PATIENCE_SECONDS)

    def events(
        self, lo: int, hi: int, columns: list[str], filter: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Events lo … hi: all of them when nothing is filtered, else those that fit."""
        query = {"columns": ",".join(columns), "until": str(hi), **filter}
        if filter:
            yield from self._at_once("/log", {**query, "from": str(lo)})
            return
        position, give_up_at = lo, None
        while position <= hi:
            try:
                for batch in self._batches("/log", {**query, "from": str(position)}):
                    position, give_up_at = position + batch.num_rows, None
                    if position > hi + 1:
                        break
                    yield batch
                if position != hi + 1:
                    raise SourceError(
                        f"{self.url} gave {position - lo} events instead of {hi - lo + 1} for {lo} to {hi}"
                    )
            except _Away as away:
                give_up_at = give_up_at or time.monotonic() + PATIENCE_SECONDS
                self._pause(away, give_up_at)

    def rows(self, table: str, lo: int, hi: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Rows of the messages with these sequences, as they are now."""
        query = {"from": str(lo), "until": str(hi), "columns": ",".join(columns)}
        yield from self._at_once(f"/v1/tables/{table}", query)

    def _at_once(self, path: str, query: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """An answer that cannot be taken up again: only its beginning is tried again."""

        def begin() -> tuple[Iterator[pa.RecordBatch], pa.RecordBatch | None]:
            batches = self._batches(path, query)
            return batches, next(batches, None)

        batches, first = self.patiently(begin, PATIENCE_SECONDS)
        if first is None:
            return
        yield first
        try:
            yield from batches
        except _Away as away:
            raise Unreachable(f"the answer of {self.url} broke off: {away}") from away

    def _batches(self, path: str, query: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        with Answer(self, "GET", path, query, {"Accept": ARROW}) as answer:
            yield from answer.batches()

    def patiently(self, ask: Callable[[], T], patience: float) -> T:
        give_up_at = time.monotonic() + patience
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return ask()
            except _Away as away:
                self._pause(away, give_up_at, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _pause(self, away: _Away, give_up_at: float, pause: float = 0.5) -> None:
        if time.monotonic() + pause > give_up_at:
            if isinstance(away, _Busy):
                raise Unreachable(f"{self.url} cannot answer: {away}") from away
            raise Unreachable(f"no broker answers at {self.url} ({away})") from away
        time.sleep(pause)


class Answer:
    """One request and its answer: what is refused is a SourceError, what breaks is _Away."""

    def __init__(
        self,
        broker: Broker,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        where = urlsplit(broker.url)
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(where.hostname or "", where.port, timeout=TIMEOUT_SECONDS)
        target = where.path + path + (f"?{urlencode(query)}" if query else "")
        sent = {**broker._headers, **(headers or {})}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            self._connection.request(method, target, body, sent)
            self._response = self._connection.getresponse()
            if self._response.status == 503:
                raise _Busy(_why(self._response))
            if self._response.status >= 400:
                raise SourceError(_why(self._response))
        except _BROKEN as broken:
            self._connection.close()
            raise _Away(_word(broken)) from broken
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *what: object) -> None:
        self._connection.close()

    def header(self, name: str) -> str | None:
        return self._response.getheader(name)

    def read(self) -> bytes:
        try:
            return self._response.read()
        except _BROKEN as broken:
            raise _Away(_word(broken)) from broken

    def batches(self) -> Iterator[pa.RecordBatch]:
        """To the last one: an answer that breaks off between two batches would look like its end."""
        try:
            with pa.ipc.open_stream(self._response) as reader:
                yield from reader
            self._response.read()
        except _BROKEN as broken:
            raise _Away(_word(broken)) from broken
        except pa.ArrowInvalid as broken:
            raise _Away(f"an Arrow stream that breaks off: {_word(broken)}") from broken


def _why(response: http.client.HTTPResponse) -> str:
    """A problem's detail and hint, or whatever else was answered."""
    body = response.read()
    try:
        problem: Any = json.loads(body)
        detail, hint = problem["detail"], problem.get("hint")
    except (ValueError, TypeError, KeyError):
        return f"the broker answered {response.status} {response.reason}"
    return f"{detail}; {hint}" if hint else str(detail)


def _word(broken: BaseException) -> str:
    return str(broken) or type(broken).__name__
