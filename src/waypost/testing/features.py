"""What a test needs of a store: a store that lacks it skips the test, and no other.

@wants(Feature.CHANNELS)                   of one test, or of all tests of a class
def test_a_channel_gets_…
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ..store import Feature, Store

_WANTED = "wanted_features"

Marked = TypeVar("Marked", bound=Callable[..., Any])


def wants(*features: Feature) -> Callable[[Marked], Marked]:
    def mark(test: Marked) -> Marked:
        tests = [test]
        if isinstance(test, type):
            tests = [member for name, member in vars(test).items() if name.startswith("test_")]
        for one in tests:
            setattr(one, _WANTED, frozenset(features) | wanted(one))
        return test

    return mark


def wanted(test: Any) -> frozenset[Feature]:
    found: frozenset[Feature] = getattr(test, _WANTED, frozenset())
    return found


def skip_without(store: Store, test: Any) -> None:
    missing = wanted(test) & store.lacks
    if missing:
        store.close()
        pytest.skip(f"this store lacks: {', '.join(sorted(missing))}")
