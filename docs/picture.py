"""Draw a terminal's screen as an SVG: monospace text on a dark background."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from xml.sax.saxutils import escape

CHARACTER, LINE, MARGIN, SIZE = 8.4, 20, 16, 14  # pixels
BACKGROUND, FOREGROUND = "#1c1f26", "#d5d8de"
COLOURS = (
    "#3b4048", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d5d8de",
    "#6b7280", "#ef8a92", "#b5dd96", "#f2d59b", "#8cc5f7", "#d9a0e8", "#80d0da", "#ffffff",
)  # fmt: skip
ATTRIBUTES = {
    1: 'font-weight="bold"',
    2: 'fill-opacity="0.65"',
    3: 'font-style="italic"',
    4: 'text-decoration="underline"',
}

Style = tuple[int, ...]


BACKGROUNDS = frozenset({40, 49})
"""Black and the default: the picture has one dark background."""


def colour(number: int) -> str:
    """Return one of the 256 colours of a terminal."""
    if number < len(COLOURS):
        return COLOURS[number]
    if number >= 232:  # noqa: PLR2004 - the greys
        return f"#{(number - 232) * 10 + 8:02x}" + f"{(number - 232) * 10 + 8:02x}" * 2
    number -= 16
    levels = (number // 36, number // 6 % 6, number % 6)
    return "#" + "".join(f"{level and level * 40 + 55:02x}" for level in levels)


def attributes(style: Style) -> str:
    """Return the SVG attributes for SGR codes; raises `ValueError` for an unknown code."""
    found, codes = {}, iter(style)
    for code in codes:
        if code == 38:  # noqa: PLR2004 - 38;5;n
            if next(codes, None) != 5:  # noqa: PLR2004
                raise ValueError(f"unknown colour in {style}")
            found["fill"] = f'fill="{colour(next(codes))}"'
        elif code in range(30, 38):
            found["fill"] = f'fill="{colour(code - 30)}"'
        elif code in range(90, 98):
            found["fill"] = f'fill="{colour(code - 82)}"'
        elif code in BACKGROUNDS:
            continue
        elif code in ATTRIBUTES:
            found[str(code)] = ATTRIBUTES[code]
        else:
            raise ValueError(f"unknown code {code} in {style}")
    return "".join(f" {each}" for each in found.values())


def line_of(number: int, characters: Sequence[str], styles: Sequence[Style]) -> str:
    """Draw a line. Each run of one style has its own place, whatever the font's width is."""
    column, spans = 0, []
    for style, group in itertools.groupby(zip(characters, styles, strict=True), lambda e: e[1]):
        cells = [character for character, _ in group]
        text = "".join(cells)
        if text.strip():
            x = MARGIN + column * CHARACTER
            spans.append(f'<tspan x="{x:.1f}"{attributes(style)}>{escape(text.rstrip())}</tspan>')
        column += len(cells)  # a wide character has two cells
    y = MARGIN + number * LINE + SIZE
    return f'<text y="{y}">{"".join(spans)}</text>\n' if spans else ""


def draw(
    lines: Sequence[Sequence[str]], styles: Sequence[Sequence[Style]], columns: int, title: str
) -> str:
    """Return the SVG of these lines of a screen."""
    width, height = columns * CHARACTER + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    drawn = "".join(
        line_of(number, *line) for number, line in enumerate(zip(lines, styles, strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>\n'
        f'<g font-family="monospace" font-size="{SIZE}" fill="{FOREGROUND}" '
        f'xml:space="preserve">\n{drawn}</g>\n</svg>\n'
    )
