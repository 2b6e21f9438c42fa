"""What a request says in its path, query and headers, read with one set of words for what is wrong.

A parameter that a route does not document is refused, with the documented ones as the hint: a misspelt
`dealy=5m` must not publish at once. What may stand in a header or in the query may stand in both only if
they agree.
"""

from __future__ import annotations

import re
from functools import lru_cache

from waypost.errors import RequestInvalid
from waypost.http.head import Head
from waypost.http.routes import Route
from waypost.names import check_name, check_topic

_WHOLE = re.compile(r"[0-9]{1,18}")
_FLAGS = {"1": True, "true": True, "": True, "0": False, "false": False}


def check_query(head: Head) -> None:
    """Refuse parameters that the route does not document."""
    if head.query:
        known = _known(head.route)
        for name in head.query:
            if name not in known:
                raise RequestInvalid(
                    f"unknown parameter {name[:60]!r}",
                    f"known here: {', '.join(known)}" if known else "none is taken here",
                    "UNKNOWN_PARAMETER",
                )


def named(head: Head, what: str = "queue") -> str:
    """The path's name, and beside it no parameter that the route does not document."""
    check_query(head)
    return check_name(head.params["name"], what)


@lru_cache(maxsize=256)
def _known(route: Route) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in route.parameters if parameter.where == "query")


def said(head: Head, header: str, parameter: str) -> str | None:
    """From the header, the query, or both if they agree."""
    in_header, in_query = head.headers.get(header), head.query.get(parameter)
    if in_header is None or in_query is None or in_header == in_query:
        return in_query if in_header is None else in_header
    raise RequestInvalid(
        f"{header} and {parameter}= differ: {in_header[:60]!r}, {in_query[:60]!r}",
        "say it once",
        "SAID_TWICE",
    )


def whole(text: str, what: str, least: int, most: int) -> int:
    """A whole number within its bounds."""
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise RequestInvalid(
            f"{what} is not a whole number from {least} to {most}: {text[:60]!r}",
            f"{what}={least}",
            "NUMBER_INVALID",
        )
    return int(text)


def flag(text: str | None, what: str) -> bool:
    """`follow`, `follow=1` and `follow=true` say yes."""
    if text is None:
        return False
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise RequestInvalid(
            f"{what} is neither yes nor no: {text[:60]!r}", f"{what}=1", "FLAG_INVALID"
        ) from None


def pattern(text: str) -> str:
    """A topic, or the beginning of topics with a `*` at its end."""
    if text != "*":
        check_topic(text.removesuffix("*"))
    return text
