"""What is shown of results: tables, the README, and a page that is complete and harmless."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, strategies as st

from bench.__main__ import COMMANDS, main
from bench.command import README, REPORT, RESULTS
from bench.errors import CommandError
from bench.report import results, tables
from bench.report.charts import Series, bar_lengths, line_chart, scale
from bench.report.page import render_page
from bench.report.results import Axis, Result, Spread
from tests.support.bench import result

EVIL = "<script src=http://evil.example/x.js></script>&\"'"
VOID = {"meta"}
POSITIVE = st.floats(min_value=1e-6, max_value=1e9)


def test_goals_come_before_figures_and_missing_ones_are_dashes():
    shown = tables.render(result())
    assert re.search(r"theirs / ours +>= 4 x +5\.00 \[3\.33\.\.10\.00\] x +pass", shown)
    assert re.search(r"fast +<= 1 ms +2\.00 \[1\.00\.\.3\.00\] ms +FAIL", shown)
    assert re.search(r"nobody's +<= 1 ms +- +not measured", shown)
    assert re.search(r"a cell +p50 ms +s\n  ours +2\.00 \[1\.00\.\.3\.00\] +-\n", shown)
    assert shown.index("theirs / ours") < shown.index("a cell")
    assert "python -m bench store: 7 s" in shown
    assert "hermes 1" in shown
    assert "no cell" not in shown
    assert "QUICK" not in shown
    assert "QUICK" in tables.render(result(quick=True))


def test_files_are_shown(tmp_path, capsys):
    results.write(tmp_path / "a.json", result())
    assert main(["show", str(tmp_path / "a.json")]) == 0
    assert "theirs / ours" in capsys.readouterr().out
    page = tmp_path / "pages" / "y.html"
    assert main(["show", str(tmp_path / "a.json"), "--page", str(page)]) == 0
    assert "theirs / ours" in page.read_text()


def test_the_readme_and_the_page_are_made_from_the_committed_results():
    """`python -m bench show --write` updates both."""
    shown = results.read_folder(RESULTS)
    page = README.read_text()
    assert tables.fill(page, shown) == page
    assert sorted(found[1] for found in tables.BLOCK.findall(page)) == [
        "agents", "runtime", "store", "switch",
    ]  # fmt: skip
    assert (RESULTS / REPORT).read_text() == render_page(shown)
    with pytest.raises(CommandError, match="There is no result of store"):
        tables.fill(page, shown[:1])


def test_the_readme_lists_the_commands():
    commands = re.findall(r"^python -m bench (\w+)", README.read_text(), re.MULTILINE)
    assert set(commands) == set(COMMANDS)


class Page(HTMLParser):
    """Reads a page strictly: every element that begins must end, in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.open, f"<{tag}/> does not end in HTML"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_the_page_is_complete_and_loads_nothing():
    source = render_page([result(), result("switch", quick=True)])
    page = Page(source)
    names = [name for name, _ in page.attributes]
    assert not {"src", "srcset", "data", "action"} & set(names)
    assert not any(name.startswith("on") for name in names)
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & set(page.tags)
    links = [value for name, value in page.attributes if name == "href"]
    assert links == [f"#{value}" for name, value in page.attributes if name == "id"]
    assert len(set(links)) == 2
    assert not any(word in source for word in ("url(", "@import", "://"))


def test_the_page_shows_goals_figures_and_explanations():
    page = Page(render_page([result()]))
    for words in ("≥ 4 x 5.00 [3.33..10.00] pass", "≤ 1 ms 2.00 [1.00..3.00] FAIL", "A ratio.",
                  "≤ 1 ms - not measured", "What it costs.", "Median.", "How it grows.", "abc123",
                  "repetitions 3", "hermes 1", "What is done."):  # fmt: skip
        assert words in page.text
    assert "no cell" not in page.text
    assert "<code>time</code>" in render_page([result()])
    assert page.tags.count("svg") == 1


def test_the_page_does_not_depend_on_the_order_of_results():
    shown = [result(name) for name in ("switch", "store", "other", "runtime", "agents")]
    assert render_page(shown) == render_page(shown[::-1])
    headings = re.findall(r"<h2>(\w+)</h2>", render_page(shown))
    assert headings == ["switch", "runtime", "agents", "store", "other"]


def test_quick_results_are_announced_at_the_top():
    source = render_page([result(), result("agents", quick=True)])
    assert source.index("quick runs") < source.index("<table")
    assert "quick runs" not in render_page([result()])


def test_nothing_in_a_result_becomes_markup():
    def evil(value):
        match value:
            case dict():
                return {key: evil(each) for key, each in value.items()}
            case list():
                return [evil(each) for each in value]
            case str() if value not in {"ours", "lower", "higher", "pass", "FAIL", "not measured"}:
                return value + EVIL
        return value

    hostile = msgspec.convert(evil(json.loads(msgspec.json.encode(result()))), Result)
    page = Page(render_page([hostile]))
    assert "script" not in page.tags
    assert not {"src"} & {name for name, _ in page.attributes}
    assert page.text.count(EVIL) > 20


@given(st.lists(POSITIVE, min_size=1), st.booleans())
def test_a_scale_contains_all_values_in_order(values, log):
    along = scale(values, 10, 500, log=log)
    places = [along.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 10 - 1e-6 <= places[0] <= places[-1] <= 500 + 1e-6
    assert 2 <= len(along.ticks) <= 20


def test_scales_have_round_ticks():
    assert scale([0, 722], 0, 1, log=False).ticks == [0, 200, 400, 600, 800]
    assert scale([3, 4_000], 0, 1, log=True).ticks == [1, 10, 100, 1_000, 10_000]
    assert not scale([0, 5], 0, 1, log=True).log
    assert scale([0, 0], 0, 1, log=False).at(0) == 0


def test_bars_are_proportional_unless_the_values_differ_much():
    assert bar_lengths([100, 50, 0]) == [100, 50, 0]
    tiny, small, large, none = bar_lengths([1, 100, 10_000, 0])
    assert 0 == none < tiny < small < large < 4 * small
    assert bar_lengths([0, 0]) == [0, 0]
    assert bar_lengths([]) == []


def test_a_chart_has_a_point_and_a_whisker_for_each_figure():
    points = [(x, Spread.of([x, 2 * x, 3 * x])) for x in (1.0, 10.0, 100.0)]
    svg = line_chart("<b>", Axis("n", log=True), Axis("ms"), [Series("ours", points)] * 2)
    drawing = ET.fromstring(svg)
    assert drawing.find("title").text == "<b>"
    assert (
        len(drawing.findall(".//circle")) == len(drawing.findall(".//line[@class='whisker']")) == 6
    )
    assert [text.text for text in drawing.findall("text")][-2:] == ["n (logarithmic)", "ms"]
    assert "ours at 10: 20.00 [10.00..30.00]" in svg
