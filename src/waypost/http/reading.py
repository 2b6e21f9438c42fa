"""Handlers that only read: in the loop where the store answers at once, in a thread where it may take its time.

A handler is the same for both. In a thread it gets a request that keeps its answer until the loop can give it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from waypost.broker import Broker
from waypost.http.refusals import guarded
from waypost.http.wire import Request


class _Later:
    """A request, as far as those who only read know one."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.head, self.body, self.draining = request.head, request.body, request.draining
        self.give: Callable[[], None] = _nothing

    def answer(self, *given: Any, **named: Any) -> None:
        self.give = partial(self._request.answer, *given, **named)

    def refuse(self, *given: Any, **named: Any) -> None:
        self.give = partial(self._request.refuse, *given, **named)


def _nothing() -> None:
    raise AssertionError("a handler gave no answer")


def reading(broker: Broker, handler: Callable[[Request], None]) -> Callable[[Request], Any]:
    """For plain handlers that ask the store; what they refuse by raising is answered."""
    plain: Callable[[Any], None] = guarded(handler)
    if not broker.store.shared:
        return plain

    async def answer(request: Request) -> None:
        later = _Later(request)
        await broker.look(plain, later)
        later.give()

    return answer
