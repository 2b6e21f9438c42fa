"""The broker's half over HTTP: what waits in L, who is registered, and the decisions that are handed back.

A broker that is away for a moment is waited for, as by the source. Everything here may be asked again: what was half read is read
anew, and what was decided already stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_waypost.broker import PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS, Answer, Broker

from ...arrow import UNDECIDED
from ...decision import Registered


class Desk(Broker):
    """Raises SourceError and Unreachable, as a Broker does."""

    def undecided(self, n: int) -> pa.Table:
        """The first of what waits for Spark, by sequence."""

        def ask() -> pa.Table:
            return pa.Table.from_batches(self._batches("/v1/undecided", {"n": str(n)}), UNDECIDED)

        return self.patiently(ask, PATIENCE_SECONDS)

    def decide(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """What became of each."""
        body = "\n".join(lines).encode()

        def ask() -> list[dict[str, Any]]:
            with Answer(self, "POST", "/v1/decisions", body=body) as answer:
                return list(json.loads(answer.read())["results"])

        return self.patiently(ask, PATIENCE_SECONDS)

    def waiting(self, patience: float = SHORT_PATIENCE_SECONDS) -> int:
        """How many wait for Spark."""
        objects = self._asked("/v1/objects", patience)["objects"]
        return sum(one["figures"]["waiting"] for one in objects if one["route"] == "spark")

    def registered(self) -> list[Registered]:
        """The consumers, as a decision needs them."""
        consumers = self._asked("/v1/consumers")["consumers"]
        listens = any(one["channel"] is not None and not one["topics"] for one in consumers)
        channels = self._asked("/v1/channels")["channels"] if listens else []
        topics = {one["name"]: tuple(one["topics"]) for one in channels}
        return [
            Registered(
                one["name"],
                one["queue"],
                one["channel"],
                tuple(one["topics"]),
                topics.get(one["channel"], ()),
            )
            for one in consumers
        ]

    def _asked(self, path: str, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            with Answer(self, "GET", path) as answer:
                return dict(json.loads(answer.read()))

        return self.patiently(ask, patience)
