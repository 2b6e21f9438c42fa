"""What the broker and its child say to each other over one pipe.

    4 bytes: the head's length │ 4 bytes: the body's length │ head: JSON │ body: bytes, mostly none

    broker ── Ask(id, do, given) ──▶ child          seal, erase, maintain, read …
           ◀─ Tell(id, what, …) ───                 pieces and progress, then one end: done or failed

A read is paced by its reader: the child sends as many pieces as it was asked for, and `more` asks for further ones.
Both sides use this file; it needs nothing but msgspec.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any

import msgspec

#: bodies are cut into pieces of this size, so that no frame holds up the broker's loop for long
PIECE_BYTES = 256 << 10
_LENGTHS = struct.Struct(">II")
HEADER_BYTES = _LENGTHS.size


class Ask(msgspec.Struct, frozen=True, gc=False):
    id: int
    do: str
    given: dict[str, Any] = {}


class What(StrEnum):
    #: a part of the answer, in the frame's body
    PIECE = "piece"
    #: how far it has come, in `figures`
    PROGRESS = "progress"
    #: the end, with the result in `figures`
    DONE = "done"
    #: the end, with what went wrong
    FAILED = "failed"


class Tell(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    id: int
    what: What
    figures: dict[str, Any] = {}
    #: of a failure: the code word of a refusal, empty for anything else
    code: str = ""
    detail: str = ""
    hint: str = ""


_encode = msgspec.json.Encoder().encode
decode_ask = msgspec.json.Decoder(Ask).decode
decode_tell = msgspec.json.Decoder(Tell).decode


def frame(head: Ask | Tell, body_bytes: int = 0) -> bytes:
    """All of a frame but its body."""
    encoded = _encode(head)
    return _LENGTHS.pack(len(encoded), body_bytes) + encoded


def lengths(header: bytes) -> tuple[int, int]:
    """Of head and body."""
    head_bytes, body_bytes = _LENGTHS.unpack(header)
    return head_bytes, body_bytes
