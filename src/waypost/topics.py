"""Topics and the patterns that choose them.

    fruit.apple      just that topic
    fruit.*          every topic that begins with "fruit.": fruit.apple, fruit.pear.green; not fruit
    *                every topic

The index finds the subscribers of a topic by looking up the topic itself and each of its prefixes that ends in a dot, so a
look-up costs by the topic's dots and never by the number of subscribers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from .errors import RequestInvalid
from .names import check_topic

#: patterns that one subscriber may have
MOST_PATTERNS = 100

T = TypeVar("T")


def topic_matches(pattern: str, topic: str) -> bool:
    """`fruit.*` is a prefix, anything else is exact. Several patterns, separated by commas, choose what any of them does."""
    return any(
        topic.startswith(one[:-1]) if one.endswith("*") else topic == one for one in pattern.split(",")
    )


def any_topic_matches(pattern: str, topics: Iterable[str]) -> bool:
    return any(topic_matches(pattern, topic) for topic in topics)


def check_pattern(pattern: str) -> str:
    """Of a subscription."""
    if pattern == "*":
        return pattern
    if pattern.endswith(".*"):
        check_topic(pattern[:-2])
    else:
        check_topic(pattern)
    return pattern


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order given."""
    checked = tuple(dict.fromkeys(map(check_pattern, patterns)))
    if len(checked) > MOST_PATTERNS:
        raise RequestInvalid(
            f"{len(checked)} topics", f"subscribe to at most {MOST_PATTERNS}", "TOPIC_INVALID"
        )
    return checked


class TopicIndex(Generic[T]):
    """From a topic to its subscribers."""

    def __init__(self) -> None:
        #: by topic, and by what stands before the star
        self._exact: dict[str, list[T]] = {}
        self._prefix: dict[str, list[T]] = {}

    def clear(self) -> None:
        self._exact.clear()
        self._prefix.clear()

    def add(self, patterns: Iterable[str], subscriber: T) -> None:
        for table, text in self._places(patterns):
            table.setdefault(text, []).append(subscriber)

    def remove(self, patterns: Iterable[str], subscriber: T) -> None:
        for table, text in self._places(patterns):
            table[text].remove(subscriber)
            if not table[text]:
                del table[text]

    def _places(self, patterns: Iterable[str]) -> Iterator[tuple[dict[str, list[T]], str]]:
        for pattern in patterns:
            if pattern.endswith("*"):
                yield self._prefix, pattern[:-1]
            else:
                yield self._exact, pattern

    def find(self, topics: Iterable[str]) -> list[T]:
        """Each subscriber once."""
        if not self._exact and not self._prefix:
            return []
        found: dict[T, None] = {}
        for topic in topics:
            found.update(dict.fromkeys(self._exact.get(topic, ())))
            end = -1
            while True:
                found.update(dict.fromkeys(self._prefix.get(topic[: end + 1], ())))
                end = topic.find(".", end + 1)
                if end < 0:
                    break
        return list(found)
