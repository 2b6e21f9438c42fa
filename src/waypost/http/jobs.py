"""Work on many deliveries: redrive, replay, cancel. A dry run counts; the rest is a job, done in slices; or, of deliveries that were
chosen one by one (`acts.py`), done at once."""

from __future__ import annotations

from typing import Any

import msgspec

from waypost.broker import Broker
from waypost.commands import JobKind
from waypost.consumers import check_rate
from waypost.delivery import LETTERS
from waypost.destinations import Kind
from waypost.errors import Busy, ChannelNotFound, JobNotFound, QueueNotFound, RequestInvalid
from waypost.filters import Filter, parse_filter
from waypost.http.acts import TooManyDeliveries, act_of, acted_json, check_consumer
from waypost.http.answering import WRONG, answer_accepted, answer_json
from waypost.http.given import check_query
from waypost.http.reading import reading
from waypost.http.refusals import failure, guarded_task
from waypost.http.routes import Content, Parameter, Route
from waypost.http.schemas import JSON, ref
from waypost.http.wire import Request
from waypost.wire import job_json, read_json


class _Given(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    filter: str
    dry_run: bool = False
    rate: int | float | None = None
    consumer: str | None = None


class _Naming(msgspec.Struct):
    """Only whether it names deliveries."""

    deliveries: msgspec.Raw = msgspec.Raw()


class Selection(msgspec.Struct, frozen=True):
    """What a request asks for."""

    filter: Filter
    dry_run: bool
    #: deliveries a second
    rate: float | None
    #: whom they are for afterwards
    consumer: str | None


_given = msgspec.json.Decoder(_Given)
_naming = msgspec.json.Decoder(_Naming)
_HINT = '{"filter":"queue=orders state=E since=10:00","dryRun":true}'


def selection_of(kind: JobKind, body: bytes, now: int) -> Selection:
    if not body.strip():
        raise RequestInvalid("an empty body, where a filter is expected", _HINT, "JSON_INVALID")
    given: _Given = read_json(_given, body, _HINT)
    if not given.filter.strip():
        raise RequestInvalid("an empty filter", "state=E means every dead letter", "FILTER_INVALID")
    return Selection(
        parse_filter(given.filter, now),
        given.dry_run,
        None if given.rate is None else check_rate(given.rate),
        check_consumer(kind, given.consumer),
    )


def names_deliveries(body: bytes) -> bool:
    """Whether a request names deliveries one by one. One that says both is read as such, and refused there."""
    try:
        return bool(memoryview(_naming.decode(body).deliveries))
    except (ValueError, RecursionError):
        return False  # what is wrong with it is said when it is read as a filter


def rows(broker: Broker) -> list[Route]:
    store = broker.store

    def check_places(filter: Filter) -> None:
        """A slip in a name would otherwise look like success."""
        if filter.queue is not None and store.ready(filter.queue) is None:
            raise QueueNotFound(filter.queue)
        if filter.channel is not None and store.ready(filter.channel, Kind.CHANNEL) is None:
            raise ChannelNotFound(filter.channel)

    async def start(request: Request, kind: JobKind) -> None:
        check_query(request.head)
        if names_deliveries(request.body):
            act = act_of(kind, request.body)
            answer_json(request, 200, acted_json(act, await broker.ask(act)))
            return
        selection = selection_of(kind, request.body, broker.clock())
        await broker.look(check_places, selection.filter)
        if selection.dry_run:
            states = await broker.count(kind, selection.filter)
            counts = {LETTERS[state]: number for state, number in sorted(states.items())}
            answer_json(request, 200, {"matched": sum(counts.values()), "states": counts})
            return
        job = await broker.start_job(kind, selection.filter, consumer=selection.consumer, rate=selection.rate)
        answer_accepted(request, job)

    def show(request: Request) -> None:
        check_query(request.head)
        id = request.head.params["id"]
        job = store.job(id)
        if job is None:
            raise JobNotFound(id)
        answer_json(request, 200, job_json(job))

    def row(kind: JobKind, summary: str, selection: str) -> Route:
        async def handle(request: Request) -> None:
            await start(request, kind)

        more: dict[str, Any] = {
            "request": Content("which deliveries", {JSON: ref(selection)}),
            "responses": {
                200: Content(
                    "how many match, with dryRun; or what became of the deliveries named",
                    {JSON: {"anyOf": [ref("Matched"), ref("Acted")]}},
                ),
                202: Content("a job does it", {JSON: ref("Accepted")}),
            },
        }
        return Route(
            "POST",
            f"/v1/{kind.value}",
            guarded_task(handle),
            verb=kind.value,
            tag="operations",
            summary=summary,
            failures=(
                WRONG,
                failure(TooManyDeliveries),
                failure(QueueNotFound, "the filter names one that does not exist"),
                failure(ChannelNotFound, "likewise"),
                failure(Busy),
            ),
            **more,
        )

    return [
        row(
            JobKind.REDRIVE,
            "Queue ended deliveries again; dead letters if the filter names no state",
            "Redrive",
        ),
        row(JobKind.REPLAY, "Queue ended deliveries again, those that succeeded too", "Redrive"),
        row(JobKind.CANCEL, "Take waiting deliveries out", "Cancel"),
        Route(
            "GET",
            "/v1/jobs/{id}",
            reading(broker, show),
            verb="inspect",
            tag="operations",
            summary="How far a job has come",
            parameters=(Parameter("id", "path", "as the request that began it was answered"),),
            responses={200: Content("", {JSON: ref("Job")})},
            failures=(failure(JobNotFound),),
        ),
    ]
