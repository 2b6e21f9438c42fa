"""The endpoints of one queue or channel, and whose turn a message is that failed at one of them.

A message goes to the next endpoint only when the last one failed to confirm it; and one that failed does not take it again
while another has not tried, or tried longer ago. Who fetches a message whose turn is another's gives it back, and fetches no
more until it is back: the other waits at the broker already, so it is served first.
"""

from __future__ import annotations

from typing import Protocol

from ..commands import Fetched

#: messages whose failures are remembered
MOST_MESSAGES = 10_000


class Member(Protocol):
    def wants(self, message: Fetched) -> bool:
        """Whether it could take this message now."""
        ...


class Crew:
    def __init__(self) -> None:
        self.members: list[Member] = []
        #: by message: who failed at it, the last one last
        self._failed: dict[str, list[Member]] = {}
        #: by message: whose turn it was said to be
        self._offered: dict[str, Member] = {}

    def failed(self, id: str, member: Member) -> None:
        tried = self._failed.setdefault(id, [])
        if member in tried:
            tried.remove(member)
        tried.append(member)
        self._offered.pop(id, None)
        if len(self._failed) > MOST_MESSAGES:
            self.forget(next(iter(self._failed)))

    def forget(self, id: str) -> None:
        self._failed.pop(id, None)
        self._offered.pop(id, None)

    def turn(self, message: Fetched, member: Member) -> Member:
        """Who should try it, now that `member` has fetched it. To whom it is offered, that one counts as having tried: it
        may not be allowed to have the message, and then it is this one's again."""
        tried = self._failed.get(message.id)
        if tried is None or member not in tried or self._offered.pop(message.id, None) is member:
            return member
        for other in [other for other in self.members if other not in tried] + tried:
            if other is member:
                break
            if other in self.members and other.wants(message):
                self.failed(message.id, other)
                self._offered[message.id] = other
                return other
        return member
