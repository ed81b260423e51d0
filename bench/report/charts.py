"""Line charts as SVG, and the lengths of bars. Colours are CSS classes of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import attrs

from bench.report.results import Axis, Spread

LEFT, TOP, RIGHT, BOTTOM = 70.0, 30.0, 880.0, 280.0
WIDTH, HEIGHT = 900, 325
FEW_TICKS = 6
UNEVEN = 20
"""Bars are logarithmic if the longest would be more than this many times the shortest."""


@attrs.frozen
class Series:
    """The line of one contender, from left to right."""

    label: str
    points: Sequence[tuple[float, Spread]]


@attrs.frozen
class Scale:
    """Maps values between the first and the last tick to positions on the chart."""

    ticks: Sequence[float]
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, value = (
            math.log10(max(each, self.ticks[0])) if self.log else each
            for each in (self.ticks[0], self.ticks[-1], value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    """Choose round ticks around the values; a logarithmic scale needs positive values."""
    log = log and min(values) > 0
    ticks = _log_ticks(min(values), max(values)) if log else _linear_ticks(max(values))
    return Scale(ticks, start, end, log)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**exponent for exponent in range(first, max(last, first + 1) + 1)]


def _linear_ticks(high: float) -> list[float]:
    """From zero up; 1, 2 or 5 times a power of ten apart."""
    raw = (high or 1.0) / FEW_TICKS
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw)
    return [step * number for number in range(math.ceil((high or 1.0) / step) + 1)]


def bar_lengths(values: Sequence[float]) -> list[float]:
    """Return the lengths of bars in percent; very different values get a logarithmic scale."""
    greatest = max(values, default=0.0)
    positive = [value for value in values if value > 0]
    if not positive:
        return [0.0] * len(values)
    if greatest <= UNEVEN * min(positive):
        return [max(0.0, 100 * value / greatest) for value in values]
    along = scale([min(positive) / 2, greatest], 0, 100, log=True)
    return [along.at(value) if value > 0 else 0.0 for value in values]


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Draw one line per series, with a whisker from the lowest to the highest repetition."""
    points = [point for each in series for point in each.points]
    across = scale([at for at, _ in points], LEFT, RIGHT, log=x.log)
    heights = [end for _, spread in points for end in (spread.low, spread.high)]
    up = scale(heights, BOTTOM, TOP, log=y.log)
    parts = [f"<title>{escape(title)}</title>"]
    for tick in across.ticks:
        parts.append(_line(across.at(tick), TOP, across.at(tick), BOTTOM, "grid"))
        parts.append(_text(across.at(tick), BOTTOM + 18, f"{tick:,g}", "middle"))
    for tick in up.ticks:
        parts.append(_line(LEFT, up.at(tick), RIGHT, up.at(tick), "grid"))
        parts.append(_text(LEFT - 8, up.at(tick) + 4, f"{tick:,g}", "end"))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 38, _label(x, across), "middle"))
    parts.append(_text(0, TOP - 14, _label(y, up), "start"))
    parts += [_series(each, at, across, up) for at, each in enumerate(series)]
    return f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


def _label(axis: Axis, drawn: Scale) -> str:
    return f"{axis.label} (logarithmic)" if drawn.log else axis.label


def _series(series: Series, color: int, across: Scale, up: Scale) -> str:
    places = [(across.at(x), up.at(spread.median)) for x, spread in series.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{line}"/>']
    for (x, spread), (left, top) in zip(series.points, places, strict=True):
        tip = escape(f"{series.label} at {x:,g}: {spread.text(2)}")
        whisker = _line(left, up.at(spread.low), left, up.at(spread.high), "whisker")
        dot = f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4.5"/>'
        parts.append(f"<g><title>{tip}</title>{whisker}{dot}</g>")
    return f'<g class="line c{color}">{"".join(parts)}</g>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
