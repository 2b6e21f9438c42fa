"""The log: one file, to which brokers append a group at a time, each under the lock.

    ┌ header, 4 KiB ─────────────┐┌ frame ────────────────────────────────┐┌ frame ─ …
    │ mark, store's id, begins   ││ mark length crc first count at … │ … ││
    └────────────────────────────┘└───────────────────────────────────────┘└

A frame is a group: all of it counts or none. `first` is the offset of its first event, `count` how many there are, `at` their
moment; after them stands where the log begins and how far it is sealed, then: so the last frame says how the log stands. Its body is the group's records (`records.py`). Frames are found by their lengths, so a range is read without its past; every 64 KiB
a place is noted to begin from.

What a killed broker left half written is cut off by the next one who has the lock. Where whole frames follow the damage it was
no kill: then nothing is cut, and the log is refused.

Positions never change: what was kept for long enough is given back to the file system as a hole, and the header says where the
log begins. Readers in other processes (`export.py`) use this file, too.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ...errors import StoreUnusable
from .records import Record, decode
from .syncing import punch

HEADER_BYTES = 4096
_TITLE = b"waypost folder log 1\n"
_FRAME = struct.Struct("<4sIIQIqQq")
#: what of it stands behind the checksum
_STANDING = struct.Struct("<QIqQq")
_NOT_SEALED = -1
_MARK = b"\xf7WPg"
#: a place to begin from is noted every so often
_NOTED_BYTES = 64 << 10
#: what is read at once
_READ_BYTES = 1 << 20
#: holes are made of whole blocks
_BLOCK = 4096


class LogDamaged(StoreUnusable):
    """In the middle, with whole frames after it."""


class Standing(msgspec.Struct, frozen=True):
    """How the log stands: its first offset and its last, the moment of the last group, what is sealed."""

    oldest: int = 1
    head: int = 0
    at: int = 0
    sealed: int | None = None


class Begin(msgspec.Struct, frozen=True):
    """What the header says."""

    #: the store's own
    id: str
    #: where the first frame lies, and how the log stood before it
    position: int = HEADER_BYTES
    standing: Standing = Standing()


class Frame(NamedTuple):
    position: int
    #: where the next one begins
    end: int
    first: int
    #: how many events it has
    events: int
    at: int
    oldest: int
    sealed: int | None
    body: bytes

    @property
    def standing(self) -> Standing:
        return Standing(self.oldest, self.first + self.events - 1, self.at, self.sealed)

    def records(self) -> list[Record]:
        return decode(self.body)


class Places:
    """Where reading may begin, in order: a frame's position, its first offset, its moment."""

    def __init__(self) -> None:
        self.positions, self.firsts, self.ats = array("q"), array("q"), array("q")

    def note(self, frame: Frame) -> None:
        if not self.positions or frame.position - self.positions[-1] >= _NOTED_BYTES:
            self.positions.append(frame.position)
            self.firsts.append(frame.first)
            self.ats.append(frame.at)

    def before_offset(self, offset: int) -> int | None:
        """The last place whose first event is not after that one; None: there is none."""
        place = bisect_right(self.firsts, offset) - 1
        return self.positions[place] if place >= 0 else None

    def before_moment(self, at: int) -> int | None:
        """The last place that is earlier than that moment."""
        place = bisect_left(self.ats, at) - 1
        return self.positions[place] if place >= 0 else None

    def forget(self, position: int) -> None:
        keep = bisect_left(self.positions, position)
        for column in (self.positions, self.firsts, self.ats):
            del column[:keep]


class Log:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.places = Places()

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    # ── the header ──────────────────────────────────────────────────────────────────────────

    def begin(self, id: str) -> Begin:
        """What the header says; an empty file gets one. Under the lock."""
        if self.size() <= HEADER_BYTES and not os.pread(self.descriptor, HEADER_BYTES, 0).strip(b"\0"):
            # New, or whoever made it was killed in that moment.
            self.write_header(Begin(id))
        return read_header(self.descriptor)

    def write_header(self, begin: Begin) -> None:
        """Shorter than a sector, so it is written as a whole or not at all."""
        body = msgspec.msgpack.encode(begin)
        text = _TITLE + struct.pack("<II", len(body), zlib.crc32(body)) + body
        os.pwrite(self.descriptor, text.ljust(HEADER_BYTES, b"\0"), 0)

    def forget(self, begin: Begin) -> None:
        """What lies before is not read any more. `begin` is synced already."""
        self.places.forget(begin.position)
        end = begin.position // _BLOCK * _BLOCK
        if end > HEADER_BYTES:
            punch(self.descriptor, HEADER_BYTES, end)

    # ── frames ──────────────────────────────────────────────────────────────────────────────

    def append(self, position: int, body: bytes, count: int, standing: Standing) -> Frame:
        """Under the lock, at the end: records with `count` events, and how the log stands with them. Durable once the file is synced."""
        first, at, sealed = standing.head - count + 1, standing.at, standing.sealed
        head = _STANDING.pack(first, count, at, standing.oldest, _NOT_SEALED if sealed is None else sealed)
        end = position + _FRAME.size + len(body)
        frame = Frame(position, end, first, count, at, standing.oldest, sealed, body)
        text = _MARK + struct.pack("<II", len(body), zlib.crc32(body, zlib.crc32(head))) + head + body
        written = 0
        while written < len(text):
            written += os.pwrite(self.descriptor, text[written:], position + written)
        self.places.note(frame)
        return frame

    def follow(self, position: int) -> Iterator[Frame]:
        """Whole frames from there on, and places noted; ends where something else begins, or nothing."""
        for frame in self.frames(position):
            self.places.note(frame)
            yield frame

    def frames(self, position: int, end: int | None = None) -> Iterator[Frame]:
        held, start = b"", position
        while end is None or position < end:
            at = position - start
            need = _FRAME.size
            if len(held) - at >= need:
                need += _FRAME.unpack_from(held, at)[1]
            if len(held) - at < need:
                held = os.pread(self.descriptor, max(need, _READ_BYTES), position)
                start, at = position, 0
                if len(held) < _FRAME.size:
                    return
                need = _FRAME.size + _FRAME.unpack_from(held)[1]
                if len(held) < need:
                    held = os.pread(self.descriptor, need, position)
            frame = _frame(held, at, position)
            if frame is None:
                return
            yield frame
            position = frame.end

    def cut(self, end: int) -> bool:
        """What follows the last whole frame goes; whether there was anything. Under the lock."""
        size = self.size()
        if size <= end:
            return False
        rest = os.pread(self.descriptor, size - end, end)
        found = rest.find(_MARK, 1)
        while found >= 0:
            if _frame(rest, found, end + found) is not None:
                raise LogDamaged(
                    f"the file `log` is damaged at byte {end}, and whole groups follow: restore a copy of the store"
                )
            found = rest.find(_MARK, found + 1)
        os.ftruncate(self.descriptor, end)
        return True


def _frame(held: bytes, at: int, position: int) -> Frame | None:
    """The frame that begins there, if it is whole."""
    if len(held) - at < _FRAME.size:
        return None
    mark, length, sum, first, count, moment, oldest, sealed = _FRAME.unpack_from(held, at)
    start = at + _FRAME.size
    if mark != _MARK or len(held) < start + length:
        return None
    body = held[start : start + length]
    if zlib.crc32(body, zlib.crc32(held[at + 12 : start])) != sum:
        return None
    return Frame(
        position,
        position + _FRAME.size + length,
        first,
        count,
        moment,
        oldest,
        None if sealed == _NOT_SEALED else sealed,
        body,
    )


def is_log(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_TITLE)) == _TITLE


def read_header(descriptor: int) -> Begin:
    held = os.pread(descriptor, HEADER_BYTES, 0)
    title, rest = held[: len(_TITLE)], held[len(_TITLE) :]
    if title == _TITLE and len(rest) > 8:
        length, sum = struct.unpack_from("<II", rest)
        body = rest[8 : 8 + length]
        if zlib.crc32(body) == sum:
            return msgspec.msgpack.decode(body, type=Begin)
    raise StoreUnusable("the file `log` is not a folder store's log, or its header is damaged")
