"""What is shown of results: tables, the README, and a page that is complete and harmless."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from bench.__main__ import BENCHMARKS, main
from bench.command import README, REPORT, RESULTS
from bench.report import results, tables
from bench.report.page import render_page
from bench.report.results import CommandError, Result
from tests.support.bench import result

EVIL = "<script src=http://evil.example/x.js></script>&\"'"
VOID = {"meta"}


def test_goals_come_before_figures_and_missing_ones_are_dashes():
    shown = tables.render(result())
    assert re.search(r"theirs / ours +>= 4 x +5\.00 \[3\.33\.\.10\.00\] x +pass", shown)
    assert re.search(r"fast +<= 1 ms +2\.00 \[1\.00\.\.3\.00\] ms +FAIL", shown)
    assert re.search(r"nobody's +<= 1 ms +- +not measured", shown)
    assert re.search(r"a cell +p50 ms +s\n  ours +2\.00 \[1\.00\.\.3\.00\] +-\n", shown)
    assert shown.index("theirs / ours") < shown.index("a cell")
    assert "python -m bench store: 7 s" in shown
    assert "hermes 1" in shown
    assert "none" not in shown
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
    made = {each.benchmark: tables.render(each) for each in shown}
    assert tables.fill(page, "results", made) == page
    assert sorted(made) == ["agents", "cluster", "hosts", "http", "runtime", "store", "switch"]
    assert (RESULTS / REPORT).read_text() == render_page(shown)
    with pytest.raises(CommandError, match="no place for the results of others"):
        tables.fill(page, "results", {"others": ""})


def test_the_readme_lists_the_commands():
    commands = re.findall(r"^python -m bench (\w+)", README.read_text(), re.MULTILINE)
    names = {benchmark.name for benchmark in BENCHMARKS}
    assert set(commands) == names | {"all", "show", "compare", "scale"}


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
        raise AssertionError(f"<{tag}/> does not end in HTML")

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
    for words in (">= 4 x 5.00 [3.33..10.00] pass", "<= 1 ms 2.00 [1.00..3.00] FAIL", "A ratio.",
                  "<= 1 ms - not measured", "What it costs.", "Median.", "abc123",
                  "repetitions 3", "hermes 1", "What is done."):  # fmt: skip
        assert words in page.text
    assert "none" not in page.text
    assert "<code>time</code>" in render_page([result()])


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
