"""Outcomes: what rounds of kills came to, and how several of them are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

import msgspec


class Outcome(msgspec.Struct, kw_only=True, tag=True):
    seconds: float

    @property
    def faultless(self) -> bool:
        raise NotImplementedError

    @classmethod
    def figures(cls, rounds: Sequence[Self]) -> str:
        """In a few words, while it goes on."""
        raise NotImplementedError

    @classmethod
    def lines(cls, rounds: Sequence[Self]) -> list[str]:
        """As a table of Markdown."""
        raise NotImplementedError


def total(rounds: Sequence[Outcome], *names: str) -> int:
    return sum(getattr(one, name) for one in rounds for name in names)


def struck(rounds: Sequence[Outcome], *who: str) -> str:
    """How often each of them was."""
    victims: Counter[str] = Counter()
    for one in rounds:
        victims.update(getattr(one, "victims"))  # noqa: B009
    return ", ".join(str(victims[name]) for name in who)
