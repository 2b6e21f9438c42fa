"""The lake over HTTP: how far it goes, sealing and maintenance when asked, and the store's rows as Arrow.

GET /v1/lake      POST /v1/lake/seal      POST /v1/lake/maintain      GET /v1/tables/{messages|deliveries}
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from waypost.broker import Broker
from waypost.errors import LakeUnavailable, NotOffered, TableNotFound
from waypost.http.answering import WRONG, answer_json
from waypost.http.arrow import columns_of, stream_arrow
from waypost.http.given import check_query, whole
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Failure, Parameter, Route
from waypost.http.schemas import ARROW, COUNT, JSON, TEXT, ref
from waypost.http.starting import check_start, check_until
from waypost.http.wire import Request
from waypost.instants import instant_text
from waypost.store import Feature, Store

TABLES = ("messages", "deliveries")
_FURTHEST = 10**18 - 1
_EXTRA = "it needs a store that lasts, and: pip install 'waypost[lake]'"


class Lake(Protocol):
    """What keeps the lake; a layer below, of which only this is needed."""

    #: None: there is none, and only the store is read
    folder: Path | None
    failure: str | None
    #: since this process began
    failures: int
    sealed_events: int
    reads: int
    #: how long the last seal took
    seal_seconds: float

    def start(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def sealed(self) -> int: ...

    @property
    def oldest(self) -> int:
        """As far as is known."""

    @property
    def lag(self) -> int: ...

    async def reach(self) -> int:
        """The first offset that can be read. Raises LakeUnavailable when only the lake could tell."""

    async def status(self) -> dict[str, Any]: ...

    async def seal(self) -> int: ...

    async def maintain(self) -> dict[str, Any]: ...

    async def offset_at(self, at: int) -> int | None:
        """The lake's first offset that is not before the instant; None: none is. Raises LogTrimmed."""

    async def find(self, id: str) -> int | None:
        """The sequence of a message that the lake has."""

    def events(
        self,
        lo: int,
        hi: int,
        *,
        form: Literal["arrow", "json"],
        columns: Sequence[str] | None = None,
        queue: str | None = None,
        channel: str | None = None,
        topic: str | None = None,
        payload: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[bytes, None]: ...

    def table(
        self, name: str, lo: int, hi: int, columns: Sequence[str] | None = None
    ) -> AsyncGenerator[bytes, None]: ...


def exporting(lake: Lake | None) -> Lake:
    """What can read for Arrow."""
    if lake is None:
        raise NotOffered("Arrow streams", _EXTRA)
    return lake


def kept(lake: Lake | None) -> Lake:
    """A lake that is on."""
    if lake is None:
        raise NotOffered("a lake", _EXTRA)
    if lake.folder is None:
        raise NotOffered("a lake", "start the broker with --lake DIR, or without --lake off")
    return lake


def no_lake_json(store: Store) -> dict[str, Any]:
    """The status of a broker that has none."""
    oldest, head = store.bounds()
    last = store.events(head, head) if oldest <= head else []
    return {
        "lake": None,
        "store": store.id(),
        "oldest": oldest,
        "sealed": None,
        "head": head,
        "at": instant_text(last[0].at) if last else None,
        "lag": 0,
        "sealing": None,
        "failure": None,
    }


def rows(broker: Broker, lake: Lake | None) -> list[Route]:
    store = broker.store

    async def show(request: Request) -> None:
        check_query(request.head)
        if lake is None:
            answer_json(request, 200, await broker.look(no_lake_json, store))
            return
        with suppress(LakeUnavailable):  # its status says so
            await lake.reach()
        answer_json(request, 200, await lake.status())

    async def seal(request: Request) -> None:
        check_query(request.head)
        answer_json(request, 200, {"sealed": await kept(lake).seal()})

    async def maintain(request: Request) -> None:
        check_query(request.head)
        answer_json(request, 200, await kept(lake).maintain())

    async def table(request: Request) -> None:
        head = request.head
        check_query(head)
        name = head.params["name"]
        if name not in TABLES:
            raise TableNotFound(name[:60])
        reader = exporting(lake)
        newest = (await broker.look(store.bounds))[1]
        lo = check_start(whole(head.query.get("from", "1"), "from", 0, _FURTHEST), newest)
        hi = check_until(whole(head.query.get("until", str(newest)), "until", 0, _FURTHEST), newest)
        headers = [("Waypost-Head", str(newest))]
        if head.method == "HEAD":
            request.answer(200, b"", ARROW, headers)
            return
        await stream_arrow(
            request, reader.table(name, lo, hi, columns_of(head.query.get("columns"))), headers
        )

    def post(path: str, handler: Any, summary: str, answer: Content) -> Route:
        return Route(
            "POST",
            path,
            guarded_task(handler),
            verb="operate",
            tag="lake",
            summary=summary,
            responses={200: answer},
            failures=(failure(NotOffered, "there is no lake"), failure(LakeUnavailable)),
        )

    return [
        Route(
            "GET",
            "/v1/lake",
            guarded_task(show),
            verb="inspect",
            tag="lake",
            summary="Where the lake is, and how far it goes",
            responses={200: Content("`lake` is null where there is none", {JSON: ref("Lake")})},
        ),
        post(
            "/v1/lake/seal",
            seal,
            "Put all that is committed now into the lake",
            Content("it is there, on stable media", {JSON: ref("LakeSealed")}),
        ),
        post(
            "/v1/lake/maintain",
            maintain,
            "Compact the lake's tables, clean their logs, remove what is not needed",
            Content("done", {JSON: {"type": "object"}}),
        ),
        Route(
            "GET",
            "/v1/tables/{name}",
            guarded_task(table),
            verb="inspect",
            needs=Feature.TABLES,
            tag="lake",
            summary="The store's own rows as an Arrow stream",
            parameters=(
                Parameter("name", "path", "the table", {"enum": list(TABLES)}),
                Parameter("from", "query", "the first message's sequence, inclusive", COUNT),
                Parameter("until", "query", "the last one's, inclusive; else the head", COUNT),
                Parameter("columns", "query", "only these, separated by commas", TEXT),
            ),
            responses={
                200: Content(
                    "rows in the order of sequence", {ARROW: {}}, {"Waypost-Head": "the log's last offset"}
                )
            },
            failures=(
                WRONG,
                Failure(400, "COLUMN_UNKNOWN", "the hint lists the known ones"),
                Failure(400, "OFFSET_BEYOND_HEAD"),
                failure(TableNotFound),
                failure(NotOffered, "without the lake extra"),
                failure(LakeUnavailable),
            ),
        ),
    ]
