"""From what the core refuses to what the wire answers.

A `Refused` carries its status, code word, hint and Retry-After; here it only gets the shape. MQ-Core's
clients know one answer to "not now": 503 with Retry-After 10.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from waypost.errors import LogTrimmed, Refused
from waypost.http.problem import Problem
from waypost.http.routes import Failure
from waypost.http.wire import Request

MQ_CORE_RETRY_AFTER = 10
_ABBREVIATIONS = {"Json", "Id"}


def problem_of(refused: Refused) -> Problem:
    headers = [] if refused.retry_after is None else [("Retry-After", str(refused.retry_after))]
    if isinstance(refused, LogTrimmed):
        headers.append(("Waypost-Oldest", str(refused.oldest)))
    return Problem(refused.status, refused.code, title_of(refused), refused.detail, refused.hint, headers)


def title_of(refused: Refused | type[Refused]) -> str:
    """Most titles are made from code words, which do not tell a word from an abbreviation."""
    first, _, rest = refused.title.partition(" ")
    return f"{first.upper()} {rest}" if first in _ABBREVIATIONS else refused.title


def refuse(request: Request, refused: Refused) -> None:
    problem = problem_of(refused)
    if request.head.route.errors == "bare" and refused.retry_after is not None:
        problem = Problem(503, refused.code, headers=[("Retry-After", str(MQ_CORE_RETRY_AFTER))])
    request.refuse(problem)


def guarded(handler: Callable[[Request], None]) -> Callable[[Request], None]:
    """For plain handlers: what they refuse by raising is answered."""

    def answer(request: Request) -> None:
        try:
            handler(request)
        except Refused as refused:
            refuse(request, refused)

    return answer


def guarded_task(
    handler: Callable[[Request], Coroutine[Any, Any, None]],
) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """For handlers that run as a task; a refusal in the middle of a stream breaks it off."""

    async def answer(request: Request) -> None:
        try:
            await handler(request)
        except Refused as refused:
            if request.answered:
                raise
            refuse(request, refused)

    return answer


def failure(refused: type[Refused], description: str = "") -> Failure:
    """A refusal as the route's documentation shows it."""
    return Failure(refused.status, refused.code, description or title_of(refused))
