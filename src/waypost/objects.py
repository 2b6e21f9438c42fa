"""Objects: the business types, and what is agreed of each.

`unchanged` says when a message that repeats the last one of its object and key is not delivered again; `route` who decides
where messages go: the broker itself, or the routing job in Spark, which then decides for messages that stopped at L.

PUT replaces: what is left out takes its default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .canonical import PathInvalid, parse_path
from .errors import RequestInvalid
from .instants import SECOND, parse_span, span_text

MOST_PATHS = 100


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    """When a message counts as a repetition."""

    #: paths in a JSON body that may differ
    ignore: tuple[str, ...] = ()
    #: how far back the message it repeats may lie
    window_us: int = 30 * 86_400 * SECOND


class ObjectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    #: None: everything is delivered
    unchanged: Unchanged | None = None
    #: "inline" or "spark"
    route: str = "inline"


DEFAULT_OBJECT = ObjectPolicy()


def parse_object(given: object) -> ObjectPolicy:
    """From decoded JSON; refuses what it does not know, naming the field."""
    if not isinstance(given, dict) or set(given) - {"unchanged", "route"}:
        raise _wrong("an object has unchanged and route")
    route = given.get("route", "inline")
    if route not in ("inline", "spark"):
        raise _wrong("route is inline or spark")
    unchanged = given.get("unchanged")
    return ObjectPolicy(unchanged=None if unchanged is None else _unchanged(unchanged), route=str(route))


def _unchanged(given: object) -> Unchanged:
    if not isinstance(given, dict) or set(given) - {"ignore", "window"}:
        raise _wrong("unchanged has ignore and window, or is null")
    ignore = given.get("ignore", [])
    if not isinstance(ignore, list) or len(ignore) > MOST_PATHS:
        raise _wrong(f"ignore is a list of at most {MOST_PATHS} paths")
    for path in ignore:
        try:
            parse_path(path if isinstance(path, str) else repr(path))
        except PathInvalid as wrong:
            raise _wrong(str(wrong)) from None
    window = given.get("window")
    fields: dict[str, Any] = {} if window is None else {"window_us": parse_span(window, "unchanged.window")}
    return Unchanged(ignore=tuple(dict.fromkeys(ignore)), **fields)


def object_json(policy: ObjectPolicy) -> dict[str, Any]:
    """Every field, as PUT would take it."""
    unchanged = policy.unchanged
    return {
        "unchanged": None
        if unchanged is None
        else {"ignore": list(unchanged.ignore), "window": span_text(unchanged.window_us)},
        "route": policy.route,
    }


def _wrong(detail: str) -> RequestInvalid:
    return RequestInvalid(
        detail,
        '{"unchanged": {"ignore": ["$.exportedAt"], "window": "30d"}, "route": "inline"}',
        "OBJECT_INVALID",
    )
