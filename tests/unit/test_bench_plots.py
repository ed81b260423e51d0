"""Charts are well-formed, say what they show, and keep all of it inside their frame."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given, strategies as st

from bench.axes import scale
from bench.plots import Aim, Bar, Mark, Point, Series, Side, bars, lines, strip

VALUES = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=80)
MARKS = st.lists(VALUES, min_size=3, max_size=3).map(
    lambda three: Mark(sorted(three)[1], min(three), max(three), f"{three[1]:.1f}")
)
BARS = st.builds(Bar, NAMES, NAMES, MARKS, st.booleans())
SERIES = st.builds(
    Series, NAMES, st.lists(st.builds(Point, VALUES, MARKS), min_size=1, max_size=5), st.booleans()
)
SIDES = st.builds(Side, NAMES, st.booleans())


def mark(median, low=None, high=None):
    low, high = (median if end is None else end for end in (low, high))
    return Mark(median, low, high, f"{median:g}")


def places(drawing):
    """Every point of a drawing, absolute: of lines, boxes, texts, markers and whiskers."""
    for element in drawing.iter():
        if element.tag in CORNERS:
            yield from CORNERS[element.tag](element)


def of_line(element):
    x1, y1, x2, y2 = (float(element.get(key)) for key in ("x1", "y1", "x2", "y2"))
    return [(x1, y1), (x2, y2)]


def of_rect(element):
    x, y, width, height = (float(element.get(key)) for key in ("x", "y", "width", "height"))
    assert width >= 0
    return [(x, y), (x + width, y + height)]


def of_text(element):
    return [(float(element.get("x")), float(element.get("y")))]


def of_polyline(element):
    return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]


def of_path(element):
    if "transform" not in element.attrib:
        return whisker(element.get("d"))
    return [tuple(map(float, re.findall(r"[-0-9.]+", element.get("transform"))))]


CORNERS = {
    "line": of_line,
    "rect": of_rect,
    "text": of_text,
    "polyline": of_polyline,
    "path": of_path,
}


def whisker(path):
    across = re.fullmatch(r"M(\S+) (\S+)v8m0-4H(\S+)m0-4v8", path)
    if across:
        low, top, high = map(float, across.groups())
        return [(low, top), (high, top + 8)]
    left, low, high = map(float, re.fullmatch(r"M(\S+) (\S+)h8m-4 0V(\S+)m-4 0h8", path).groups())
    return [(left, low), (left + 8, high)]


def checked(svg):
    """The drawing, read as XML; it has its name and its words, and nothing lies outside."""
    drawing = ET.fromstring(svg)
    left, top, width, height = map(float, drawing.get("viewBox").split())
    assert drawing.get("role") == "img"
    assert [child.tag for child in drawing][:2] == ["title", "desc"]
    for x, y in places(drawing):
        assert left - 0.1 <= x <= left + width + 0.1
        assert top - 0.1 <= y <= top + height + 0.1
    return drawing


@given(NAMES, NAMES, st.lists(BARS, min_size=1, max_size=6), NAMES)
def test_bars_of_anything_are_a_whole_drawing(title, about, rows, axis):
    drawing = checked(bars(title, about, rows, axis))
    assert len(drawing.findall(".//rect")) == len(rows)


@given(NAMES, NAMES, st.lists(SERIES, min_size=1, max_size=9), SIDES, SIDES)
def test_lines_of_anything_are_a_whole_drawing(title, about, series, x, y):
    drawing = checked(lines(title, about, series, x, y))
    assert len(drawing.findall(".//polyline")) == len(series)
    markers = drawing.findall(".//path[@class='marker']")
    assert len(markers) == len(series) + sum(len(each.points) for each in series)


@given(st.none() | MARKS, VALUES, st.booleans(), st.none() | st.booleans(), st.booleans())
def test_a_strip_of_anything_is_a_whole_drawing(measured, limit, at_least, met, log):
    along = scale([limit, 1.0, *([measured.median] if measured else [])], 14, 286, log=log)
    drawing = checked(strip("goal", "words", measured, Aim(limit, at_least, met), along))
    assert len(drawing.findall(".//path[@class='marker']")) == (measured is not None)


def boxes(svg):
    return [float(box.get("width")) for box in ET.fromstring(svg).findall(".//rect")]


def words(svg):
    return [element.text for element in ET.fromstring(svg).findall(".//text")]


def test_bars_are_as_long_as_their_figures():
    rows = [Bar("a", "100", mark(100), True), Bar("b", "50", mark(50), False)]
    long, short = boxes(bars("", "", rows, "ms"))
    assert long == 2 * short
    assert words(bars("", "", rows, "ms"))[-1] == "ms"


def test_bars_that_differ_much_are_logarithmic_and_say_so():
    rows = [Bar(str(n), str(n), mark(n), False) for n in (1, 100, 10_000)]
    svg = bars("", "", rows, "ms")
    first, second, third = boxes(svg)
    assert 0 < first < second < third < 4 * second
    assert words(svg)[-1] == "ms, logarithmic"


def test_a_figure_that_is_zero_has_a_bar_without_length():
    rows = [Bar(str(n), str(n), mark(n), False) for n in (0, 1, 100)]
    assert boxes(bars("", "", rows, "ms"))[0] == 0


def test_only_a_figure_that_was_repeated_has_a_whisker():
    rows = [Bar("a", "3", mark(3, 2, 4), False), Bar("b", "3", mark(3), False)]
    drawing = ET.fromstring(bars("", "", rows, "ms"))
    (path,) = drawing.findall(".//path[@class='whisker']")
    (low, _), (high, _) = whisker(path.get("d"))
    base, end = (float(drawing.find(".//rect").get(key)) for key in ("x", "width"))
    assert low < base + end < high


def test_the_strip_shades_where_a_goal_is_met():
    along = scale([0.1, 10], 0, 200, log=True)
    for at_least, shaded in ((True, (150, 50)), (False, (0, 150))):
        drawing = ET.fromstring(strip("", "", mark(5), Aim(10**0.5, at_least, True), along))
        zone = drawing.find(".//rect[@class='zone']")
        assert [round(float(zone.get(key))) for key in ("x", "width")] == list(shaded)
        one = drawing.find(".//line[@class='one']")
        assert float(one.get("x1")) == 100


def test_ours_alone_has_the_first_colour():
    series = [
        Series(who, [Point(1, mark(1))], ours)
        for who, ours in (("x", False), ("ours", True), ("y", False))
    ]
    drawing = ET.fromstring(lines("", "", series, Side("n"), Side("ms")))
    groups = [group.get("class") for group in drawing if group.get("class", "").startswith("line")]
    assert groups == ["line c1", "line c0", "line c2"] * 2


def test_a_long_name_is_cut_where_it_stands_and_whole_where_it_is_pointed_at():
    name = "a very long name of somebody " * 3
    drawing = ET.fromstring(bars("", "", [Bar(name, "1", mark(1), True)], "ms"))
    assert drawing.find("g/title").text == f"{name}: 1"
    assert drawing.find("g/text").text == name[:59] + "…"
    assert boxes(ET.tostring(drawing, "unicode"))[0] > 300


def test_names_stay_text():
    evil = "<script>alert(1)</script>&\"'\x00\ud800"
    svg = bars(evil, evil, [Bar(evil, evil, mark(1), True)], evil)
    assert "<script" not in svg
    assert ET.fromstring(svg).find("title").text.startswith("<script>alert(1)</script>&\"'")
    svg.encode()
