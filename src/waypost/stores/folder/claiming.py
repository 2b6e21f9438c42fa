"""Claiming: a fetch takes a message by renaming its file, and whose rename succeeds has it.

    queues/orders/0190…  ── open, rename, read ──▶  delay/orders:0190…        mtime: the end of its lease

MQ-Core's algorithm: of the first `peers + 1` that wait, one at random is opened and renamed while its handle is held, then read from
the handle. With no peers that is the oldest, so order is kept. With peers, and fewer waiting than they are, a random wait of up to
9 ms comes first. A race that was lost is counted, and another one is tried, where the original answered 204.

Brokers of this kind claim under the log's lock, which their group holds anyway, and so never meet; the rename decides against all
who know the folders and not the lock.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from ...commands import Staged
from ...message import payload_hash
from ...store import Races
from .picture import Message, Picture, Place, Queue
from .tree import Spot, Tree

#: the longest wait of the algorithm
_NAP_SECONDS = 0.009


class Claims:
    def __init__(self, picture: Picture, tree: Tree, peers: int, inline_bytes: int, races: Races) -> None:
        self._picture, self._tree, self._peers = picture, tree, peers
        self._inline_bytes, self._races = inline_bytes, races

    def turn_to(self, picture: Picture) -> None:
        self._picture = picture

    def nap(self, queue: Queue | None) -> None:
        """Before the lock is taken."""
        if self._peers and queue is not None and 0 < queue.ready <= self._peers:
            self._races.naps += 1
            time.sleep(random.uniform(0, _NAP_SECONDS))

    def choose(
        self, queue: Queue, fits: Callable[[Message], bool], passed: list[Message], scan: int | None
    ) -> Message | None:
        """One of the next `peers + 1` that fit; `passed` are those that do not, `scan`: how many may be looked at."""
        picture = self._picture
        chosen: list[Message] = []
        while len(chosen) <= self._peers and (scan is None or len(passed) + len(chosen) < scan):
            message = picture.next_waiting(queue)
            if message is None:
                break
            (chosen if fits(message) else passed).append(message)
        if not chosen:
            return None
        taken = random.choice(chosen) if self._peers else chosen[0]
        picture.put_back(queue, [message for message in chosen if message is not taken])
        return taken

    def claim(self, message: Message, whole: bool = False) -> bytes | Staged | None:
        """Its body, or where it lies if it is large and `whole` is not asked for; None: somebody else was quicker."""
        name = self._picture.numbered[message.number].name
        there = self._tree.spot(Place.DELAY, name, message.id)
        here = spot_of(self._tree, message, name)
        try:
            handle = self._tree.open(here)
        except OSError:
            self._races.lost_opens += 1
            return None
        try:
            if message.place is Place.QUEUE:  # else it came in, or came back, in this very group
                try:
                    self._tree.move(here, there)
                except FileNotFoundError:
                    self._races.lost_renames += 1
                    return None
                message.place = Place.DELAY
            if message.size > self._inline_bytes and not whole:
                return Staged(message.size, message.id, message.hash)
            return read_all(handle)
        finally:
            os.close(handle)


def spot_of(tree: Tree, message: Message, queue: str) -> Spot:
    """Where its file is now."""
    if message.place is Place.NEW:
        return tree.in_new(message.staged or "")
    return tree.spot(message.place, queue, message.id)


def read_all(handle: int) -> bytes:
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        return file.readall()


def is_whole(message: Message, body: bytes | Staged) -> bool:
    return isinstance(body, Staged) or (len(body) == message.size and payload_hash(body) == message.hash)
