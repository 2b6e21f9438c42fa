"""For those who run a broker: health, metrics, stats, and the description of all routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.delivery import STATES
from waypost.http.consumers import Pushing, push_figures_json
from waypost.http.given import check_query
from waypost.http.lake import Lake
from waypost.http.metrics import CONTENT_TYPE, Metrics, offered
from waypost.http.reading import reading
from waypost.http.refusals import guarded
from waypost.http.routes import Content, Route, Routes
from waypost.http.schemas import JSON, SCHEMAS, TEXT, ref
from waypost.http.server import Server
from waypost.http.wire import Request
from waypost.store import QueueInfo
from waypost.version import __version__
from waypost.wire import RESTING, RESTING_IN_CHANNELS, depth_of

#: answered without a look at the store
AT_ONCE = ("/health/live", "/health/ready", "/v1/openapi.json")
_encode = msgspec.json.Encoder().encode


def _together(places: Sequence[QueueInfo], letters: Iterable[str]) -> dict[str, Any]:
    """The figures of several queues or channels, added up."""
    return {
        "count": len(places),
        "depth": sum(depth_of(place.states) for place in places),
        "states": {
            letter: sum(place.states.get(STATES[letter], 0) for place in places) for letter in letters
        },
        "ready": sum(place.ready for place in places),
        "bytes": sum(place.bytes for place in places),
    }


def lake_health_json(lake: Lake | None) -> dict[str, Any] | None:
    """A lake that fails does not make the broker unready: what is not sealed stays in the store."""
    if lake is None or lake.folder is None:
        return None
    return {"lag": lake.lag, "failures": lake.failures, "failure": lake.failure}


def lake_json(lake: Lake | None) -> dict[str, Any] | None:
    health = lake_health_json(lake)
    if lake is None or health is None:
        return None
    return {
        "path": str(lake.folder),
        "oldest": lake.oldest,
        "sealed": lake.sealed,
        "sealSeconds": round(lake.seal_seconds, 3),
        "reads": lake.reads,
        **health,
    }


def rows(
    broker: Broker,
    server: Callable[[], Server],
    routes: Callable[[], Routes],
    push: Pushing | None,
    lake: Lake | None,
) -> list[Route]:
    """`server` and `routes` are asked for when a request needs them: they are made from these rows."""
    loop = asyncio.get_running_loop()
    waiting = broker.waiting
    started = loop.time()
    metrics: list[Metrics] = []
    described: list[bytes] = []

    def live(request: Request) -> None:
        check_query(request.head)
        request.answer(200, b'{"status":"live"}', JSON)

    def ready(request: Request) -> None:
        check_query(request.head)
        if broker.stopping or request.draining:
            request.answer(503, b'{"status":"stopping"}', JSON)
            return
        refusal = broker.store.refusal()
        publishes = "taken" if refusal is None else f"refused: {refusal}"
        form = {
            "status": "ready",
            "publishes": publishes,
            "lake": lake_health_json(lake),
            "routing": {"oldestSeconds": round(waiting.age_seconds, 3), "warning": waiting.warning},
        }
        request.answer(200, _encode(form), JSON)

    def show_metrics(request: Request) -> None:
        check_query(request.head)
        if not metrics:
            metrics.append(Metrics(broker, server().stats, push, lake))
        request.answer(200, metrics[0].text(), CONTENT_TYPE)

    def openapi(request: Request) -> None:
        check_query(request.head)
        if not described:
            described.append(_encode(routes().openapi("Waypost", __version__, SCHEMAS)))
        request.answer(200, described[0], JSON)

    def stats(request: Request) -> None:
        check_query(request.head)
        committer, http, store = broker.committer, server().stats, broker.store.stats()
        form = {
            "version": __version__,
            "uptimeSeconds": round(loop.time() - started, 3),
            "log": {"oldest": store.oldest, "head": store.head},
            "diskBytes": store.disk_bytes,
            "undecided": store.undecided,
            "queues": _together(broker.store.queues(), RESTING),
            "channels": _together(offered(broker.store.channels), RESTING_IN_CHANNELS),
            "unchanged": {
                info.name: info.unchanged for info in offered(broker.store.objects) if info.unchanged
            },
            "spectators": {
                info.name: {"offset": info.offset, "lag": info.lag}
                for info in offered(broker.store.spectators)
            },
            "push": {}
            if push is None
            else {name: push_figures_json(figures) for name, figures in push.all_figures().items()},
            "lake": lake_json(lake),
            "commits": {
                "groups": committer.groups,
                "commands": committer.commands,
                "refused": committer.refused,
                "waiting": committer.depth,
                "gear": committer.gear,
                "syncSeconds": broker.store.sync_seconds,
            },
            "http": {
                "answers": {f"{digit}xx": http.answers[digit] for digit in range(1, 6)},
                "receivedBytes": http.bytes_in,
                "sentBytes": http.bytes_out,
                "connections": http.connections,
                "open": http.open,
                "refused": http.refused,
                "timeouts": http.timeouts,
            },
        }
        request.answer(200, _encode(form), JSON)

    def row(
        path: str, handler: Callable[[Request], None], summary: str, *answers: tuple[int, Content]
    ) -> Route:
        return Route(
            "GET",
            path,
            guarded(handler) if path in AT_ONCE else reading(broker, handler),
            verb="health" if path.startswith("/health") else "inspect",
            tag="operations",
            summary=summary,
            responses=dict(answers),
        )

    health = {JSON: ref("Health")}
    return [
        row("/health/live", live, "Is the process there?", (200, Content("yes", health))),
        row(
            "/health/ready",
            ready,
            "Does it serve?",
            (200, Content("yes", health)),
            (503, Content("it is stopping", health)),
        ),
        row("/metrics", show_metrics, "Figures for Prometheus", (200, Content("", {CONTENT_TYPE: TEXT}))),
        row("/v1/stats", stats, "Figures for people", (200, Content("", {JSON: ref("Stats")}))),
        row("/v1/openapi.json", openapi, "This description", (200, Content("", {JSON: {"type": "object"}}))),
    ]
