"""Pictures, drawn by hand: columns, lines, small multiples, bars and ranges.

    scale │ field: an SVG that stretches across, marks only │ names of the lines, beside their ends
          │ time axis                                       │

Text stands in HTML around and over the SVG, in its own size whatever the width; marks stretch, their strokes do not.
Each step of time has an invisible field that says what is there to a pointer. Colours are names of the style sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from . import units
from .markup import Markup, element, join
from .scales import WIDE, Across, Tick, Upright, spread

HEIGHT = 220.0
PANEL_HEIGHT = 120.0
#: pixels from one line's name to the next
LABEL_GAP = 17.0
#: as much of a line's name as there is room for
LABEL_SIGNS = 18

#: where there are few columns
WIDEST_COLUMN = 60.0
#: of lines and columns that stand for things of one kind, in this order
COLOURS = tuple(f"s{number}" for number in range(1, 8))


@dataclass(frozen=True)
class Series:
    name: str
    #: one a step; None where there is none
    values: Sequence[float | None]
    colour: str


def columns(
    label: str, across: Across, scale: Upright, series: Sequence[Series], foot: bool = True
) -> Markup:
    """One column a step, the series on top of each other, the first at the bottom."""
    room = 0.82 if len(across.starts) <= 60 else 0.92
    wide = min(across.width * room, WIDEST_COLUMN)
    marks = []
    for index in range(len(across.starts)):
        below = 0.0
        for one in series:
            value = one.values[index] or 0
            if value:
                top, bottom = scale.place(below + value), scale.place(below)
                marks.append(
                    element(
                        "rect",
                        class_=f"mark {one.colour}",
                        x=_number(across.middle(index) - wide / 2),
                        y=_number(min(top, bottom - 1)),  # what is not nothing is seen
                        width=_number(wide),
                        height=_number(max(1, bottom - top)),
                    )
                )
            below += value
    drawing = _svg(label, scale, marks, _hits(scale.height, across, series, units.count))
    return _plot(drawing, scale, across.ticks() if foot else [], [])


def lines(
    label: str,
    across: Across,
    scale: Upright,
    series: Sequence[Series],
    say: Callable[[float], str],
    most_ticks: int = 9,
) -> Markup:
    """A line a series, its name at its end; the first is drawn over the others."""
    marks = [mark for one in reversed(series) for mark in _line(across, scale, one)]
    drawing = _svg(label, scale, marks, _hits(scale.height, across, series, say))
    named = [one for one in series if any(value is not None for value in one.values)]
    ends = [scale.place(_last(one.values)) for one in named]
    places = spread(ends, LABEL_GAP, scale.height)
    labels = [
        element(
            "span",
            _middle_out(one.name),
            class_=f"end {one.colour}",
            style=f"top:{_number(place)}px",
            title=one.name,
        )
        for one, place in zip(named, places, strict=True)
    ]
    return _plot(drawing, scale, across.ticks(most_ticks), labels)


def _middle_out(name: str) -> str:
    """Names that begin alike often differ at their ends."""
    return name if len(name) <= LABEL_SIGNS else f"{name[: LABEL_SIGNS - 8]}…{name[-7:]}"


def _last(values: Iterable[float | None]) -> float:
    return [value for value in values if value is not None][-1]


def _line(across: Across, scale: Upright, series: Series) -> list[Markup]:
    """Its pieces: it is broken where there is no value, and a value alone is a dot."""
    known = [(index, value) for index, value in enumerate(series.values) if value is not None]
    pieces = []
    for _, run in groupby(enumerate(known), key=lambda at: at[1][0] - at[0]):
        points = [
            f"{_number(across.middle(index))},{_number(scale.place(value))}" for _, (index, value) in run
        ]
        # A dot is a line of no length with round ends: a circle would be stretched.
        path = "M" + " L".join(points if len(points) > 1 else points * 2)
        pieces.append(
            element(
                "path", class_=f"mark line {series.colour}" + (" dot" if len(points) == 1 else ""), d=path
            )
        )
    return pieces


@dataclass(frozen=True)
class Bar:
    name: str
    #: what is said below the name
    detail: str
    #: parts and their colours, from the left
    parts: Sequence[tuple[float, str]]
    #: the number
    text: str


def bars(label: str, rows: Sequence[Bar]) -> Markup:
    """One line a row: name, bar, number."""
    most = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1
    return element("ol", *(_bar(row, most) for row in rows), class_="bars", aria_label=label)


def _bar(row: Bar, most: float) -> Markup:
    marks, left = [], 0.0
    for value, colour in row.parts:
        if value:
            width = max(3.0, WIDE * value / most)
            marks.append(
                element(
                    "rect", class_=f"mark {colour}", x=_number(left), y=0, width=_number(width), height=14
                )
            )
            left += width
    return element(
        "li",
        element("span", element("b", row.name), _detail(row.detail), class_="name"),
        element(
            "svg", *marks, viewBox="0 0 1000 14", preserveAspectRatio="none", aria_hidden="true", class_="bar"
        ),
        element("span", row.text, class_="number"),
    )


def _detail(detail: str) -> Markup | None:
    return element("small", detail) if detail else None


@dataclass(frozen=True)
class Range:
    name: str
    detail: str
    #: from low to high
    values: Sequence[float]
    text: str


def ranges(label: str, rows: Sequence[Range], scale: Upright) -> Markup:
    """One line a row: name, its values as dots joined by a line, number; one axis for all below them."""
    axis = element(
        "span",
        *(
            _tick(Tick(scale.part(value) * WIDE, text, 2 * (index % 2)))
            for index, (value, text) in enumerate(scale.marks)
        ),
        class_="across",
        aria_hidden="true",
    )
    foot = element(
        "li", element("span", class_="name"), axis, element("span"), class_="foot", aria_hidden="true"
    )
    return element("ol", *(_range(row, scale) for row in rows), foot, class_="bars ranges", aria_label=label)


def _range(row: Range, scale: Upright) -> Markup:
    places = [WIDE * scale.part(value) for value in row.values]
    grid = [_upright(WIDE * scale.part(value), 18) for value, _ in scale.marks]
    joined = element("path", class_="mark range", d=f"M{_number(places[0])},9 L{_number(places[-1])},9")
    dots = [
        element("path", class_=f"mark dot p{number}", d=f"M{_number(place)},9 L{_number(place)},9")
        for number, place in reversed(list(enumerate(places, 1)))
    ]
    return element(
        "li",
        element("span", element("b", row.name), _detail(row.detail), class_="name"),
        element(
            "svg", *grid, joined, *dots,
            viewBox="0 0 1000 18", preserveAspectRatio="none", aria_hidden="true", class_="bar",
        ),
        element("span", row.text, class_="number"),
    )  # fmt: skip


def _upright(place: float, height: float) -> Markup:
    return element("path", class_="grid", d=f"M{_number(place)},0 V{_number(height)}")


# ── what the pictures over time share ───────────────────────────────────────────────────────────


def _svg(label: str, scale: Upright, marks: Iterable[Markup], hits: Iterable[Markup]) -> Markup:
    grid = [
        element("path", class_="grid", d=f"M0,{_number(tick.place)} H{_number(WIDE)}")
        for tick in scale.ticks()
    ]
    return element(
        "svg",
        *grid, *marks, *hits,
        viewBox=f"0 0 {_number(WIDE)} {_number(scale.height)}", preserveAspectRatio="none",
        role="img", aria_label=label, style=f"height:{_number(scale.height)}px",
    )  # fmt: skip


def _hits(
    height: float, across: Across, series: Sequence[Series], say: Callable[[float], str]
) -> list[Markup]:
    hits = []
    for index in range(len(across.starts)):
        said = [f"{one.name}: {say(value)}" for one in series if (value := one.values[index]) is not None]
        hits.append(
            element(
                "rect",
                element("title", "\n".join([f"{across.label(index)} UTC", *(said or ["nothing"])])),
                class_="hit",
                x=_number(across.left(index)),
                y=0,
                width=_number(across.width),
                height=_number(height),
            )
        )
    return hits


def _plot(drawing: Markup, scale: Upright, ticks: Sequence[Tick], ends: Sequence[Markup]) -> Markup:
    left = element(
        "div",
        *(element("span", tick.text, style=f"top:{_number(tick.place)}px") for tick in scale.ticks()),
        class_="upright",
        aria_hidden="true",
    )
    below = element("div", *map(_tick, ticks), class_="across", aria_hidden="true") if ticks else None
    right = element("div", *ends, class_="ends", aria_hidden="true") if ends else None
    return element(
        "div",
        left,
        element("div", drawing, below, class_="field"),
        right,
        class_="plot ended" if ends else "plot",
    )


def _tick(tick: Tick) -> Markup:
    edge = " first" if tick.place < 30 else " last" if tick.place > WIDE - 30 else ""
    return element("span", tick.text, class_=f"t{tick.rank}{edge}", style=f"left:{_number(tick.place / 10)}%")


def legend(*entries: tuple[str, str]) -> Markup:
    """Names and the colours they have."""
    return element(
        "p",
        *(join(element("span", name, class_=f"key {colour}"), " ") for name, colour in entries),
        class_="legend",
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
