"""A chunked body, read from a buffer that grows as bytes arrive.

    5;note=x\\r\\n hello\\r\\n   6\\r\\n world!\\r\\n   0\\r\\n   Trailer: ignored\\r\\n   \\r\\n

Strict: hexadecimal sizes without sign, blank or prefix, CRLF exactly where it belongs, extensions and
trailers well-formed, short, and ignored. The sum of the sizes is held against the limit before the bytes are
read.
"""

import re

from waypost.http.problem import Problem

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")
#: Longest size line with its extensions, and all trailers together.
_LINE_BYTES = 256
_TRAILER_BYTES = 8192

_SIZE_LINE, _DATA, _DATA_END, _TRAILERS = range(4)


class Chunks:
    """Takes from the front of a buffer until the body is whole; `keep=False` throws the content away."""

    __slots__ = ("_expects", "_keep", "_left", "_limit", "_total", "_trailers", "content")

    def __init__(self, limit: int, keep: bool = True) -> None:
        self.content = bytearray()
        self._limit = limit
        self._keep = keep
        self._expects = _SIZE_LINE
        self._left = 0
        self._total = 0
        self._trailers = 0

    def take(self, buffer: bytearray) -> bool:
        """Consume what can be consumed. True: the body is whole. Raises Problem (400, 413)."""
        # one deletion at the end: from the front of a bytearray it costs little, but not nothing per chunk
        at = 0
        try:
            while True:
                if self._expects == _DATA:
                    size = min(self._left, len(buffer) - at)
                    if self._keep:
                        self.content += memoryview(buffer)[at : at + size]
                    at += size
                    self._left -= size
                    if self._left:
                        return False
                    self._expects = _DATA_END
                elif self._expects == _DATA_END:
                    end = buffer[at : at + 2]
                    if not b"\r\n".startswith(end):
                        raise _bad_chunk("a chunk is longer than its size")
                    if len(end) < 2:
                        return False
                    at += 2
                    self._expects = _SIZE_LINE
                else:
                    line = self._line(buffer, at)
                    if line is None:
                        return False
                    at += len(line) + 2
                    if self._expects == _SIZE_LINE:
                        self._begin(line)
                    elif not line:
                        return True
                    else:
                        self._pass_trailer(line)
        finally:
            del buffer[:at]

    def _line(self, buffer: bytearray, at: int) -> bytes | None:
        """The next whole line, None while it has not all arrived."""
        end = buffer.find(b"\n", at, at + _LINE_BYTES)
        if end > at and buffer[end - 1] == 13:
            return bytes(buffer[at : end - 1])
        if end >= 0:
            raise _bad_chunk("a line that does not end in CRLF")
        if len(buffer) - at >= _LINE_BYTES:
            raise _bad_chunk(f"a line over {_LINE_BYTES} bytes")
        return None

    def _begin(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise _bad_chunk("a size that is not hexadecimal")
        self._left = int(size[1], 16)
        self._total += self._left
        if self._total > self._limit:
            raise too_large(self._limit)
        self._expects = _DATA if self._left else _TRAILERS

    def _pass_trailer(self, line: bytes) -> None:
        self._trailers += len(line)
        if self._trailers > _TRAILER_BYTES or _TRAILER.fullmatch(line) is None:
            raise _bad_chunk("a trailer that is no header, or too many")


def too_large(limit: int) -> Problem:
    return Problem(
        413, "BODY_TOO_LARGE", "Body too large", f"over {limit} bytes", "send a smaller body, or several"
    )


def _bad_chunk(what: str) -> Problem:
    return Problem(400, "BAD_CHUNK", "Bad chunked body", what, "see RFC 9112, section 7.1")
