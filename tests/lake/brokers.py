"""A broker with a lake, in a thread of its own, whose keeper does things soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.http.brokers import BrokerInThread
from tests.lake.traffic import opened
from waypost.http.schemas import ARROW
from waypost.lake.keeper import Keeper, Pace

#: nothing by itself: a test asks for what it wants
WHEN_ASKED = Pace(seal_seconds=3_600, erase_seconds=0.0, look_seconds=0.05)
SOON = Pace(seal_seconds=0.2, erase_seconds=0.0, look_seconds=0.05)
#: a child takes a second to start, and more on a busy machine
PATIENCE = 60.0


class LakeBroker(BrokerInThread):
    def __init__(
        self,
        folder: Path,
        *,
        pace: Pace = WHEN_ASKED,
        lake: Path | None = None,
        keep_us: int | None = None,
        store: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.lake_folder = lake or folder / "lake"
        super().__init__(
            lambda: opened(folder / "waypost.db", **store or {}),
            lake=lambda broker: Keeper(broker, self.lake_folder, keep_us=keep_us, pace=pace),
            **options,
        )

    @property
    def keeper(self) -> Keeper:
        keeper = self.serving.lake
        assert isinstance(keeper, Keeper)
        return keeper

    def seal(self) -> int:
        answer = self.patient("POST", "/v1/lake/seal")
        assert answer.status == 200, answer
        return int(answer.json()["sealed"])

    def patient(self, method: str, target: str, **headers: str) -> Any:
        """One request that may take longer than a test's wire waits."""
        with self.wire() as wire:
            wire.socket.settimeout(PATIENCE)
            from tests.http.brokers import request

            return wire.ask(request(method, target, **headers))

    def arrow(self, target: str) -> pa.Table:
        answer = self.patient("GET", target, accept=ARROW)
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == ARROW
        return pa.ipc.open_stream(answer.body).read_all()


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)
    return found
