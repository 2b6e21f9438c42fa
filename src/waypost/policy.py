"""A policy: how a queue behaves. Always changeable, never part of its identity.

PUT replaces a policy: what is left out takes its default. In code spans are microseconds; in JSON they are seconds, or
text such as `7d`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import RequestInvalid
from .instants import SECOND, parse_span, span_text
from .names import check_name

#: `complete` values that are words; a number means that many distinct consumers
COMPLETE_WORDS = ("any", "all", "per_topic")
LONGEST_LEASE = 12 * 3_600 * SECOND
MOST_SLOTS = 100


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    #: how long a fetch keeps the message from others
    lease_us: int = 10 * SECOND
    #: fetches after the first before a message is given up
    retries: int = 3
    #: who must confirm: "any", "all", "per_topic", or how many
    complete: str | int = "any"
    #: "fifo", or "key": one unsettled message per key
    order: str = "fifo"
    #: a newer message of the same object and key makes the waiting one obsolete
    latest_only: bool = False
    #: hand out and forget: no confirm is awaited
    kick: bool = False
    #: for messages that bring none
    ttl_us: int | None = None
    backoff_base_us: int = 1 * SECOND
    backoff_cap_us: int = 600 * SECOND
    max_messages: int | None = None
    max_bytes: int | None = None
    #: how long completed messages stay
    keep_us: int = 7 * 86_400 * SECOND
    #: a queue that also gets what ends as E here
    dead: str | None = None
    #: nothing is handed out while true
    paused: bool = False

    @property
    def counts_consumers(self) -> bool:
        """Whether a consumer must say its name, because distinct ones are counted."""
        return self.complete not in ("any", 0, 1)


DEFAULT = Policy()


def parse_policy(given: object) -> Policy:
    """From decoded JSON; refuses what it does not know, naming the field."""
    if not isinstance(given, dict):
        raise _wrong("a policy is a JSON object", '{"lease": 10, "retries": 3}')
    fields: dict[str, Any] = {}
    for name, value in given.items():
        reader = _FIELDS.get(name)
        if reader is None:
            raise _wrong(f"unknown policy field {str(name)[:60]!r}", f"known: {', '.join(_FIELDS)}")
        fields.update(reader(name, value))
    policy = Policy(**fields)
    if policy.backoff_cap_us < policy.backoff_base_us:
        raise _wrong("backoff.cap is below backoff.base", "cap is the longest wait, base the first")
    return policy


def policy_json(policy: Policy) -> dict[str, Any]:
    """Every field, as PUT would take it."""
    return {
        "lease": span_text(policy.lease_us),
        "retries": policy.retries,
        "complete": policy.complete,
        "order": policy.order,
        "latestOnly": policy.latest_only,
        "kick": policy.kick,
        "ttl": None if policy.ttl_us is None else span_text(policy.ttl_us),
        "backoff": {"base": span_text(policy.backoff_base_us), "cap": span_text(policy.backoff_cap_us)},
        "maxMessages": policy.max_messages,
        "maxBytes": policy.max_bytes,
        "keep": span_text(policy.keep_us),
        "dead": policy.dead,
        "paused": policy.paused,
    }


def _wrong(detail: str, hint: str) -> RequestInvalid:
    return RequestInvalid(detail, hint, "POLICY_INVALID")


def _lease(name: str, value: object) -> dict[str, int]:
    return {"lease_us": check_lease(parse_span(value, name))}


def check_lease(lease_us: int) -> int:
    if not SECOND // 1_000 <= lease_us <= LONGEST_LEASE:
        raise RequestInvalid("a lease is between 1 ms and 12 h", "lease=30", "LEASE_INVALID")
    return lease_us


def _retries(name: str, value: object) -> dict[str, int]:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 9:
        raise _wrong(f"retries is a whole number from 1 to 9, not {value!r}", '{"retries": 3}')
    return {"retries": value}


def _complete(name: str, value: object) -> dict[str, str | int]:
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SLOTS
    if not number and value not in COMPLETE_WORDS:
        raise _wrong(f"complete is any, all, per_topic or a number up to {MOST_SLOTS}", '{"complete": "any"}')
    assert isinstance(value, str | int)
    return {"complete": value}


def _order(name: str, value: object) -> dict[str, str]:
    if value not in ("fifo", "key"):
        raise _wrong("order is fifo or key", '{"order": "fifo"}')
    return {"order": str(value)}


def _flag(field: str) -> Any:
    def read(name: str, value: object) -> dict[str, bool]:
        if not isinstance(value, bool):
            raise _wrong(f"{name} is true or false", f'{{"{name}": false}}')
        return {field: value}

    return read


def _limit(field: str) -> Any:
    def read(name: str, value: object) -> dict[str, int | None]:
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**62
        ):
            raise _wrong(f"{name} is a positive whole number or null", f'{{"{name}": 100000}}')
        return {field: value}

    return read


def _ttl(name: str, value: object) -> dict[str, int | None]:
    return {"ttl_us": None if value is None else parse_span(value, name)}


def _keep(name: str, value: object) -> dict[str, int]:
    return {"keep_us": parse_span(value, name)}


def _backoff(name: str, value: object) -> dict[str, int]:
    if not isinstance(value, dict) or set(value) - {"base", "cap"}:
        raise _wrong("backoff has base and cap", '{"backoff": {"base": 1, "cap": 600}}')
    return {f"backoff_{part}_us": parse_span(span, f"backoff.{part}") for part, span in value.items()}


def _dead(name: str, value: object) -> dict[str, str | None]:
    if value is not None and not isinstance(value, str):
        raise _wrong("dead is the name of a queue or null", '{"dead": "dead-letters"}')
    return {"dead": None if value is None else check_name(value, "dead queue")}


#: how each field of the JSON is read
_FIELDS: dict[str, Any] = {
    "lease": _lease,
    "retries": _retries,
    "complete": _complete,
    "order": _order,
    "latestOnly": _flag("latest_only"),
    "kick": _flag("kick"),
    "ttl": _ttl,
    "backoff": _backoff,
    "maxMessages": _limit("max_messages"),
    "maxBytes": _limit("max_bytes"),
    "keep": _keep,
    "dead": _dead,
    "paused": _flag("paused"),
}
