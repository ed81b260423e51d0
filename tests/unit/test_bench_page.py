"""The page of results: whole, self-contained, and nothing in the results becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench import written
from bench.board import Board, Goal, Ref
from bench.page import html
from bench.report import Axis, Column, Line, Measured, Plot, Sheet, Table, document, write

ROOT = Path(__file__).parents[2]
EVIL = "<script src=http://evil.example/x.js></script>&\"'"
VOID = {"meta", "br", "hr", "img", "input", "link", "base", "source", "embed"}


class Page(HTMLParser):
    """Reads a page strictly: every element that begins must end, in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.links, self.ids, self.words = [], [], [], [], []
        self.loads = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self._seen(tag, dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.open, f"<{tag}/> does not end in HTML"
        self._seen(tag, dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def _seen(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[key] for key in attributes if key.endswith("href")]
        loading = ("src", "srcset", "data", "action", "poster", "style", "background")
        self.loads += [key for key in attributes if key in loading or key.startswith("on")]

    @property
    def text(self):
        return " ".join(self.words)


def board():
    filled = Board()
    for repetition in (1.0, 1.5, 0.5):
        filled.add("appending", "ours, actor", {"rate": 9_000 * repetition, "ms": 2 * repetition})
        filled.add("appending", "a peer", {"rate": 100 * repetition})
        filled.add("long", "ours, actor", {"ms": 3 * repetition})
    return filled


def sheet():
    ours, theirs = (Ref("appending", who, "rate") for who in ("ours, actor", "a peer"))
    ratio = Goal("ours / theirs", ours, 50, theirs, at_least=True, explains="How many times.")
    most = Goal("latency", Ref("appending", "ours, actor", "ms"), 1, unit="ms", explains="A wait.")
    none = Goal("nobody", Ref("appending", "nobody", "ms"), 0, unit="ms", explains="No `wait`.")
    columns = (
        Column("rate", "appends/s", 0, "higher", "Messages per second."),
        Column("ms", "p50 ms", explains="Half are faster."),
    )
    table = Table("appending", "appending, at once", columns, "What it costs to append.")
    missing = Table("unknown", "nobody did this", columns, "Nobody.")
    line = Line("ours, actor", {10: "appending", 10_000: "long", 5: "unknown"})
    axes = Axis("messages", log=True), Axis("ms", log=True)
    plot = Plot("growth", "ms", *axes, (line, Line("nobody", {1: "appending"})), "How it grows.")
    return Sheet((ratio, most, none), (table, missing), (plot,))


def result(name="store", *, quick=False, measured=None):
    measured = measured or Measured(
        board(), sheet(),
        {"system": "Linux", "cores": 2, "when": "2026-11-16T10:00:00+00:00", "commit": "abc123"},
        {"ours": {"python": "3.11.7"}}, {"repetitions": 3},
    )  # fmt: skip
    about = {"benchmark": name, "about": "What is done.", "quick": quick, "seconds": 12}
    return json.loads(json.dumps({**about, **document(measured)}))


def test_the_page_is_whole_and_loads_nothing():
    source = html([result(), result("switch", quick=True)])
    page = Page(source)
    assert page.loads == []
    assert "script" not in page.tags
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(page.tags)
    assert {link.removeprefix("#") for link in page.links} == set(page.ids)
    assert "url(" not in source
    assert "@import" not in source
    assert "://" not in source


def test_every_figure_has_its_sentence_and_its_picture():
    page = Page(html([result()]))
    for said in (
        "How many times.", "A wait.", "What it costs to append.", "Messages per second.",
        "Half are faster.", "How it grows.", "abc123", "2026-11-16 10:00:00 UTC", "Linux",
        "repetitions 3", "python 3.11.7", "What is done.",
    ):  # fmt: skip
        assert said in page.text
    assert page.tags.count("svg") == 3 + 1 + 1  # a strip for each goal, bars, lines
    assert page.tags.count("desc") == 5


def test_goals_come_with_target_measure_and_outcome():
    text = re.sub(r"\s+", " ", Page(html([result()])).text)
    assert "≥ 50 × 90.00 pass" in text
    assert "≤ 1 ms 2.00 [1.00..3.00] FAIL" in text
    assert "≤ 0 ms - not measured" in text
    assert "1 of 3 are met." in text


def test_our_rows_and_bars_stand_out():
    source = html([result()])
    assert re.findall(r'<tr class="ours"><th scope="row">([^<]*)', source) == ["ours, actor"]
    assert source.count('class="bar ours"') == 2  # a name and a bar
    assert source.count('class="bar"') == 2


def strips(source):
    """The ticks of every strip, by the name of its goal."""
    drawn = re.findall(r"<svg.*?</svg>", source, re.DOTALL)
    return {
        re.search(r"<title>(.*?): ", strip)[1]: re.findall(r'class="tick"[^>]*>([^<]*)', strip)
        for strip in drawn
    }


def test_ratios_have_one_scale_and_other_goals_their_own():
    wider = result()
    wider["goals"].append({"goal": "another ratio", "target": "<= 0.02 x"})
    ticks = strips(html([wider]))
    assert ticks["ours / theirs"] == ticks["another ratio"] == ["0.01", "0.1", "1", "10", "100"]
    assert ticks["latency"] == ["0.5", "1", "2", "5"]


def test_code_is_marked_in_sentences():
    assert "No <code>wait</code>." in html([result()])


def test_ratios_come_before_absolute_figures():
    source = html([result()])
    assert source.index("ours / theirs") < source.index("appending, at once")


def test_a_cell_that_was_not_measured_is_left_out():
    page = Page(html([result()]))
    assert "nobody did this" not in page.text


def test_a_quick_run_is_told_at_the_top():
    source = html([result(), result("agents", quick=True)])
    assert source.index("Quick run: ") < source.index("<table")
    assert "agents had fewer repetitions" in source
    assert "Quick run" not in html([result()])


def test_the_order_of_the_documents_does_not_matter():
    documents = [result(name) for name in ("switch", "store", "other", "runtime", "agents")]
    source = html(documents)
    assert source == html(documents[::-1]) == html(documents)
    assert re.findall(r"<h2>(\w+)</h2>", source) == [
        "switch", "runtime", "agents", "store", "other",
    ]  # fmt: skip


def test_two_results_of_one_benchmark_have_their_own_places():
    page = Page(html([result(), result()]))
    assert len(page.ids) == len(set(page.ids)) == 2


def test_nothing_in_a_result_becomes_markup():
    hostile = Board()
    hostile.add(EVIL, EVIL, {EVIL: 1.0})
    goal = Goal(EVIL, Ref(EVIL, EVIL, EVIL), 1, unit=EVIL, explains=EVIL)
    table = Table(EVIL, EVIL, (Column(EVIL, EVIL, explains=EVIL),), EVIL)
    plot = Plot(EVIL, EVIL, Axis(EVIL), Axis(EVIL), (Line(EVIL, {1: EVIL}),), EVIL)
    facts = {EVIL: {EVIL: [EVIL]}, "when": EVIL, "commit": EVIL, "load_before": EVIL}
    measured = Measured(hostile, Sheet((goal,), (table,), (plot,)), facts, facts, facts)
    page = Page(html([{**result(EVIL, measured=measured), "about": EVIL}]))
    assert "script" not in page.tags
    assert page.loads == []
    assert page.text.count(EVIL) > 20


@pytest.mark.parametrize("name", ["store", "runtime", "agents"])
def test_files_written_before_there_was_a_page_show_goals_and_figures(name):
    """As they were in the first weeks: no tables, no plots, no explanations."""
    new = result(name)
    goal = {"goal": "ours / theirs", "target": ">= 1.8 x", "outcome": "pass",
            "measured": new["goals"][0]["measured"]}  # fmt: skip
    old = {
        key: new[key] for key in ("benchmark", "quick", "machine", "versions", "plan", "figures")
    }
    page = Page(html([{**old, "durability": "WAL", "goals": [goal]}]))
    text = re.sub(r"\s+", " ", page.text)
    assert "ours / theirs ≥ 1.8 × 90.00 pass" in text
    assert "appending rate ms ours, actor 9,000.00 [4,500.00..13,500.00] 2.00 [1.00..3.00]" in text


def test_a_file_with_nothing_to_show_is_no_harm():
    page = Page(html([{"benchmark": "switch", "runs": {"zipf": {"turns": 4}}}]))
    assert "This file has no goals." in page.text


def test_figures_that_are_no_numbers_are_left_out():
    broken = result()
    for figure in broken["figures"]:
        figure.update(median=1.0, low=float("nan"), high=float("inf"))
    broken["goals"][0]["measured"] = {"median": 1.0, "low": None, "high": 2.0}
    page = Page(html([broken]))
    assert "nan" not in page.text.split()
    assert page.tags.count("svg") == 3  # the strips, which have a target at least


def test_the_results_of_the_repository_make_a_page():
    documents = written.beside(ROOT / "bench" / "results")
    assert Page(html(documents)).tags.count("section") == len(documents) >= 3


def test_a_result_is_read_back(tmp_path):
    file = tmp_path / "store.json"
    write(file, result())
    assert written.read(file) == result()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory."),
        ("no JSON", "is not a file of results: it is not JSON."),
        ("[]", "is not a file of results: "),
        ("{}", "is not a file of results: "),
        ('{"benchmark": "store", "goals": 3}', "is not a file of results: "),
        (b"\xff\xfe", "is not a file of results: it is not JSON."),
    ],
)
def test_what_is_no_result_is_told_in_one_sentence(tmp_path, content, why):
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(written.NotAResult) as told:
        written.read(file)
    assert str(told.value).startswith(f"{file} {why}")
    assert "\n" not in str(told.value)
