"""Charts as SVG text: bars, lines, the strip of a goal. Colours are classes that the page has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs

from bench.axes import Scale, number, scale
from bench.markup import tag, text

WIDTH = 900.0
LETTER = 8.0
"""What a letter is wide at most, in the size that labels have."""
LONGEST = 60
UNEVEN = 20
COLOURS = 8


@attrs.frozen
class Mark:
    """A figure over its repetitions, and how it is written."""

    median: float
    low: float
    high: float
    text: str


@attrs.frozen
class Bar:
    """One contender's figure; `value` is written beside it."""

    label: str
    value: str
    mark: Mark
    ours: bool


@attrs.frozen
class Point:
    """A figure at a place along the x axis."""

    x: float
    mark: Mark


@attrs.frozen
class Series:
    """One contender's line."""

    label: str
    points: Sequence[Point]
    ours: bool


@attrs.frozen
class Side:
    """What runs along a side, and whether by its logarithm."""

    label: str
    log: bool = False


@attrs.frozen
class Aim:
    """The target of a goal, and whether it was met: None where that was not judged."""

    limit: float
    at_least: bool
    met: bool | None


def uneven(values: Iterable[float]) -> bool:
    """Whether some are so much larger than others that a logarithm is needed to see both."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > UNEVEN * min(positive)


def bars(title: str, about: str, rows: Sequence[Bar], axis: str) -> str:
    """One bar each, with a whisker from the lowest to the highest repetition."""
    log = uneven(row.mark.median for row in rows)
    left = _width(max((_short(row.label) for row in rows), key=len)) + 14
    right = WIDTH - _width(max((_short(row.value) for row in rows), key=len)) - 14
    ends = [end for row in rows for end in _ends(row.mark)]
    # A bar of length zero would not be seen: so a logarithmic one begins below the least.
    least = [min(end for end in ends if end > 0) / 1.5] if log else []
    across = scale(ends + least, left, right, log=log)
    bottom = 8.0 + 26 * len(rows)
    parts = [_grid(across, 4, bottom)]
    for place, row in enumerate(rows):
        parts.append(_bar(row, across, 8.0 + 26 * place))
    label = f"{axis}, logarithmic" if across.log else axis
    parts.append(_words((left + right) / 2, bottom + 38, label, "axis", "middle"))
    return _svg(title, about, (WIDTH, bottom + 46), parts)


def _bar(row: Bar, across: Scale, top: float) -> str:
    middle = top + 13
    base, end = across.at(across.ticks[0] if across.log else 0.0), across.at(row.mark.median)
    kind = "bar ours" if row.ours else "bar"
    return tag(
        "g",
        tag("title", text(f"{row.label}: {row.mark.text}")),
        _words(across.start - 10, middle + 4.5, _short(row.label), kind, "end"),
        tag("rect", x=min(base, end), y=top + 4, width=abs(end - base), height=18.0, class_=kind),
        _whisker(across, row.mark, middle),
        _words(WIDTH - 2, middle + 4.5, _short(row.value), "value", "end"),
    )


def _whisker(across: Scale, mark: Mark, y: float) -> str:
    if mark.low == mark.high:
        return ""
    low, high = across.at(mark.low), across.at(mark.high)
    return tag("path", d=f"M{low:.1f} {y - 4:.1f}v8m0-4H{high:.1f}m0-4v8", class_="whisker")


def lines(title: str, about: str, series: Sequence[Series], x: Side, y: Side) -> str:
    """One line each through its points, with whiskers; a legend above."""
    points = [point for each in series for point in each.points]
    ends = [end for point in points for end in _ends(point.mark)]
    legend, top = _legend(series)
    top += 34
    bottom = top + 270
    up = scale(ends, bottom, top, log=y.log)
    left = max(_width(number(tick)) for tick in up.ticks) + 12
    across = scale([point.x for point in points], left + 8, WIDTH - 16, log=x.log)
    parts = [legend, _words(0, top - 14, _named(y, up), "axis", "start")]
    parts.append(_grid(across, top, bottom))
    for tick in up.ticks:
        place = up.at(tick)
        parts.append(tag("line", x1=left, x2=WIDTH - 8, y1=place, y2=place, class_="grid"))
        parts.append(_words(left - 8, place + 4, number(tick), "tick", "end"))
    parts.append(_words((left + WIDTH) / 2, bottom + 40, _named(x, across), "axis", "middle"))
    for colour, each in zip(_colours(series), series, strict=True):
        parts.append(_line(each, colour, across, up))
    return _svg(title, about, (WIDTH, bottom + 48), parts)


def _line(each: Series, colour: int, across: Scale, up: Scale) -> str:
    points = sorted(each.points, key=lambda point: point.x)
    places = [(across.at(point.x), up.at(point.mark.median)) for point in points]
    drawn = [tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))]
    for point, (x, y) in zip(points, places, strict=True):
        said = tag("title", text(f"{each.label} at {number(point.x)}: {point.mark.text}"))
        drawn.append(tag("g", said, _upright(up, point.mark, x), _marker(colour, x, y)))
    return tag("g", *drawn, class_=f"line c{colour}")


def _upright(up: Scale, mark: Mark, x: float) -> str:
    if mark.low == mark.high:
        return ""
    low, high = up.at(mark.low), up.at(mark.high)
    return tag("path", d=f"M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8", class_="whisker")


def _marker(colour: int, x: float, y: float) -> str:
    """Lines differ by shape, not by colour alone."""
    shapes = ("M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z", "M-5-5h10v10h-10z", "M0-6l6 11h-12z",
              "M0-6.5l6 6.5l-6 6.5l-6-6.5z")  # fmt: skip
    return tag(
        "path", d=shapes[colour % len(shapes)], transform=f"translate({x:.1f} {y:.1f})",
        class_="marker",
    )  # fmt: skip


def _legend(series: Sequence[Series]) -> tuple[str, float]:
    """The names, in as many rows as they need, and how high that is."""
    parts = []
    x, y = 8.0, 12.0
    for colour, each in zip(_colours(series), series, strict=True):
        long = _width(_short(each.label)) + 40
        if x + long > WIDTH and x > 8:
            x, y = 8.0, y + 22
        name = _words(x + 14, y + 4.5, _short(each.label), "label", "start")
        parts.append(tag("g", _marker(colour, x, y), name, class_=f"line c{colour}"))
        x += long
    return "".join(parts), y + 10


def _colours(series: Sequence[Series]) -> list[int]:
    """The first colour is ours alone."""
    others = itertools.count()
    return [0 if each.ours else next(others) % (COLOURS - 1) + 1 for each in series]


def strip(title: str, about: str, mark: Mark | None, aim: Aim, across: Scale) -> str:
    """Where a goal is met (shaded), and what was measured."""
    limit = across.at(aim.limit)
    near, far = (limit, across.end) if aim.at_least else (across.start, limit)
    parts = [
        tag("rect", x=across.start, y=8.0, width=across.end - across.start, height=20.0,
             class_="track"),
        tag("rect", x=near, y=8.0, width=far - near, height=20.0, class_="zone"),
        *_labels(across, 44),
        tag("line", x1=limit, x2=limit, y1=4.0, y2=32.0, class_="limit"),
    ]  # fmt: skip
    if across.log and across.ticks[0] <= 1 <= across.ticks[-1]:
        one = across.at(1)
        parts.append(tag("line", x1=one, x2=one, y1=8.0, y2=28.0, class_="one"))
    if mark is not None:
        kind = {True: "met", False: "missed", None: "open"}[aim.met]
        dot = tag("path", d="M-5.5 0l5.5-5.5l5.5 5.5l-5.5 5.5z", class_="marker",
                   transform=f"translate({across.at(mark.median):.1f} 18)")  # fmt: skip
        parts.append(tag("g", _whisker(across, mark, 18), dot, class_=kind))
    return _svg(title, about, (across.end + across.start, 48), parts)


def _named(side: Side, along: Scale) -> str:
    return f"{side.label} (logarithmic)" if along.log else side.label


def _ends(mark: Mark) -> tuple[float, float, float]:
    return mark.low, mark.median, mark.high


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def _width(words: str) -> float:
    return LETTER * len(words)


def _grid(across: Scale, top: float, bottom: float) -> str:
    """Upright lines with their values below."""
    parts = []
    for tick in across.ticks:
        place = across.at(tick)
        parts.append(tag("line", x1=place, x2=place, y1=top, y2=bottom, class_="grid"))
    return "".join([*parts, *_labels(across, bottom + 18)])


def _labels(across: Scale, y: float) -> Iterable[str]:
    """The values of the ticks, without those for which there is no room."""
    taken = float("-inf")
    for tick in across.ticks:
        words, place = number(tick), across.at(tick)
        half = _width(words) / 2
        if place - half > taken:
            taken = place + half + 8
            yield _words(place, y, words, "tick", "middle")


def _words(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    return tag("text", text(words), x=x, y=y, class_=kind, text_anchor=anchor)


def _svg(title: str, about: str, size: tuple[float, float], parts: Sequence[str]) -> str:
    across, down = size
    return tag(
        "svg", tag("title", text(title)), tag("desc", text(about)), *parts,
        role="img", viewBox=f"0 0 {across:g} {down:g}", width=across, height=down,
    )  # fmt: skip
