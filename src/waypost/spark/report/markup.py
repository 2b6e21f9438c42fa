"""HTML and SVG as values: what is not `Markup` is text of others and gets escaped, whoever forgets to think of it.

element("p", "a < b", class_="note")  ->  <p class="note">a &lt; b</p>
"""

from __future__ import annotations

from html import escape

_VOID = frozenset({"meta"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escaped; signs that nobody sees, or that turn the writing round, become one that is seen."""
    seen = "".join(
        sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in str(value)
    )
    return Markup(escape(seen, quote=True))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """`class_` is class and `aria_label` aria-label; an attribute or a child that is None is left out."""
    given = "".join(
        f' {key.strip("_").replace("_", "-")}="{_plain(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    return Markup("".join(_plain(child) for child in children if child is not None))


def _plain(value: object) -> str:
    return value if isinstance(value, Markup) else text(value)
