"""Content: what a body says, however it is written, and a hash of it.

Two bodies have the same content if they are the same JSON apart from blanks, the order of an object's names, the way a
number or a character is written, and the paths that are ignored; or, where one is not JSON, if their bytes are the same. JSON in which a
name stands twice in one object, or that is nested deeper than 200, is compared by its bytes: readers do not agree on it.

    $.exportedAt      $.header.run      $.items[*].seen      $.items[0]      $['odd name']      $.*

Standard library only: executors of a Spark job import this file too, so that both have one answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

DEEPEST = 200
#: digits of numbers that are written as they are
SHORT = 20

#: a name, a number of an array, or None for all of either
Step = str | int | None
Path = tuple[Step, ...]

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]*'"\s]+) | \.(?P<all>\*) | \[(?P<every>\*)\] | \[(?P<index>\d{1,9})\]
      | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


class PathInvalid(ValueError):
    """Not a path; the text says why."""


@lru_cache(1_024)
def parse_path(text: str) -> Path:
    if not text.startswith("$"):
        raise PathInvalid(f"a path begins with $: {text[:80]!r}")
    steps: list[Step] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise PathInvalid(f"cannot read {text[position : position + 40]!r} in the path {text[:80]!r}")
        if match["index"] is not None:
            steps.append(int(match["index"]))
        elif match["all"] or match["every"]:
            steps.append(None)
        else:
            steps.append(
                next(match[kind] for kind in ("name", "single", "double") if match[kind] is not None)
            )
        position = match.end()
    if not steps:
        raise PathInvalid("$ alone would ignore the whole body")
    return tuple(steps)


def content_hash(body: bytes, ignore: tuple[str, ...] = ()) -> bytes:
    """SHA-256 of the content."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_float=_number,
            parse_int=_number,
            parse_constant=_no_json,
            object_pairs_hook=_object,
        )
        for path in ignore:
            value = _without(value, parse_path(path))
        if _depth(value) > DEEPEST:
            raise ValueError("nested too deep")
        text = _written(value)
    except (ValueError, ArithmeticError, RecursionError):
        return hashlib.sha256(b"bytes\0" + body).digest()
    return hashlib.sha256(b"json\0" + text.encode("utf-8", "surrogatepass")).digest()


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _without(value: Any, path: Path) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        chosen = list(value) if step is None else [step] if step in value else []
        for name in chosen:
            if rest:
                value[name] = _without(value[name], rest)
            else:
                del value[name]
    elif isinstance(value, list) and not isinstance(step, str):
        indexes = range(len(value)) if step is None else [step] if step < len(value) else []
        for index in indexes:
            value[index] = _without(value[index], rest) if rest else _GONE
        if not rest:
            return [item for item in value if item is not _GONE]
    return value


_GONE = object()


def _depth(value: Any) -> int:
    """How deep it is nested; a plain value is not."""
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
    return depth


class _Odd:
    """A number that is no short whole one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _number(text: str) -> int | _Odd:
    """The same for 1, 1.0 and 10e-1; no digit is ever rounded away."""
    if len(text) < SHORT and (text.isdigit() or text[1:].isdigit()):
        return int(text)
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits)).lstrip("0")
    stripped = written.rstrip("0")
    exponent += len(written) - len(stripped)
    if not stripped:
        return 0
    if exponent >= 0 and len(stripped) + exponent < SHORT - 1:
        return int(f"{'-' if sign else ''}{stripped}{'0' * exponent}")
    return _Odd(f"{'-' if sign else ''}{stripped}e{exponent}")


def _written(value: Any) -> str:
    """Everything but the odd numbers, and then these: each leaves the one float behind that is ever written."""
    odd: list[str] = []

    def set_aside(number: _Odd) -> float:
        odd.append(number.text)
        return 0.5

    text = json.dumps(
        value,
        ensure_ascii=False,
        sort_keys=True,
        separators=(",", ":"),
        check_circular=False,
        default=set_aside,
    )
    return f"{text}\0{','.join(odd)}"
