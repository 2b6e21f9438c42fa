"""Redrive, replay and cancel of deliveries that a request names one by one: read, and answered.

{"deliveries":[{"id":"01a1…","queue":"orders"}],"asOf":"2026-01-31T10:00:00Z"}
{"at":"…","matched":1,"states":{"E":1},"left":{},"changed":0,"unable":0,"unknown":[],"sequences":[17]}
"""

from __future__ import annotations

from typing import Any

import msgspec

from waypost.acts import AGAIN, MOST_CHOSEN, states_for
from waypost.commands import Act, Acted, Chosen, JobKind
from waypost.delivery import LETTERS, State
from waypost.errors import RequestInvalid
from waypost.filters import parse_states
from waypost.instants import instant_text
from waypost.names import check_name, check_own_id
from waypost.wire import check_moment, read_json


class TooManyDeliveries(RequestInvalid):
    status, code, title = 413, "TOO_MANY_DELIVERIES", "Too many deliveries"


class _Chosen(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    queue: str | None = None
    channel: str | None = None


class _Given(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    deliveries: list[_Chosen]
    dry_run: bool = False
    states: str | None = None
    as_of: str | None = None
    consumer: str | None = None


_given = msgspec.json.Decoder(_Given)
_HINT = '{"deliveries":[{"id":"…","queue":"orders"}],"dryRun":true}, with states, asOf and consumer; a rate is the sender\'s own'


def act_of(kind: JobKind, body: bytes) -> Act:
    given: _Given = read_json(_given, body, _HINT)
    if not given.deliveries:
        raise RequestInvalid("no delivery is named", _HINT)
    if len(given.deliveries) > MOST_CHOSEN:
        raise TooManyDeliveries(
            f"{len(given.deliveries)} deliveries in one request", f"send at most {MOST_CHOSEN} at once"
        )
    return Act(
        kind=kind,
        chosen=[_checked(number, one) for number, one in enumerate(given.deliveries, 1)],
        states=states_for(kind, None if given.states is None else parse_states(given.states)),
        as_of=None if given.as_of is None else check_moment(given.as_of, "asOf"),
        consumer=check_consumer(kind, given.consumer),
        dry_run=given.dry_run,
    )


def _checked(number: int, one: _Chosen) -> Chosen:
    try:
        if one.queue is not None and one.channel is not None:
            raise RequestInvalid("a queue and a channel", "name one of them, or neither for all of a message")
        return Chosen(
            check_own_id(one.id),
            None if one.queue is None else check_name(one.queue),
            None if one.channel is None else check_name(one.channel, "channel"),
        )
    except RequestInvalid as wrong:
        raise RequestInvalid(f"delivery {number}: {wrong.detail}", wrong.hint, wrong.code) from None


def check_consumer(kind: JobKind, name: str | None) -> str | None:
    """Whom they are for afterwards."""
    if name is None:
        return None
    if kind not in AGAIN:
        raise RequestInvalid(
            "nobody gets what is cancelled", 'consumer=… in the filter selects: {"filter":"consumer=billing"}'
        )
    return check_name(name, "consumer")


def acted_json(act: Act, acted: Acted) -> dict[str, Any]:
    return {
        "at": instant_text(acted.at),
        "matched": sum(acted.done.values()),
        "states": _letters(acted.done),
        "left": _letters(acted.left),
        "changed": acted.changed,
        "unable": acted.unable,
        "unknown": [
            _chosen_json(chosen)
            for chosen, sequence in zip(act.chosen, acted.sequences, strict=True)
            if sequence is None
        ],
        "sequences": acted.sequences,
    }


def _letters(states: dict[State, int]) -> dict[str, int]:
    return {LETTERS[state]: count for state, count in sorted(states.items())}


def _chosen_json(chosen: Chosen) -> dict[str, str]:
    named = {"id": chosen.id, "queue": chosen.queue, "channel": chosen.channel}
    return {name: value for name, value in named.items() if value is not None}
