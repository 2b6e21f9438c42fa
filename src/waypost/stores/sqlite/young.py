"""What is young stays in memory: messages not yet fetched, and fetches not yet settled.

Most messages are fetched and confirmed moments after they came, so most fetches need not read what was just written, and
most confirms find their fetch here. Both are caches of committed or pending rows, never the only place of anything:
forgetting an entry costs a read. An entry is dropped with the first change that its row sees elsewhere (`Ledger.take`).
"""

from __future__ import annotations

import msgspec

from ...commands import Staged
from ...message import Envelope

#: how many, and how large each may be
MOST_MESSAGES, LARGEST = 4_096, 1_024
MOST_LEASES = 10_000


class Message(msgspec.Struct, gc=False):
    """What a fetch hands out of a message."""

    id: str
    envelope: Envelope
    created_at: int
    body: bytes | Staged
    size: int
    #: routed to one slot and nowhere else since
    alone: bool


class Lease(msgspec.Struct, gc=False):
    """A fetch whose slot is fetched, by this very fetch, and whose message has no other slot."""

    offset: int
    receipt: str
    message_id: str
    sequence: int
    destination: int
    slot: int
    attempt: int
    consumer: int
    fetched_at: int
    size: int


class Young:
    def __init__(self) -> None:
        #: by sequence; a fetch takes its message out
        self.messages: dict[int, Message] = {}
        #: by receipt
        self.leases: dict[str, Lease] = {}
        #: and their receipts, by the fetch's offset
        self.receipts: dict[int, str] = {}

    def trim(self) -> None:
        """Once a group. A backlog longer than this is read from the file, so its young end is not worth keeping."""
        if len(self.messages) > MOST_MESSAGES:
            self.messages.clear()
        if len(self.leases) > MOST_LEASES:
            self.leases.clear()
            self.receipts.clear()

    def end_lease(self, offset: int) -> None:
        receipt = self.receipts.pop(offset, None)
        if receipt is not None:
            del self.leases[receipt]

    def clear(self) -> None:
        self.messages.clear()
        self.leases.clear()
        self.receipts.clear()
