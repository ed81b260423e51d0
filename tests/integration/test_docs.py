"""What the README and the docs show works as shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.actors.commands import ALIASES, COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
ON_A_SERVER = {ROOT / "docs" / "cluster.md"}
"""Its snippets need a server: test_cluster_doc.py runs them."""
WIDTH = 100
OLD_NAMES = re.compile(
    r"\b(?:describe|admission|hide)=|\.events\(|runtime\.(?:new_session|rewind|facts|undo|history)\("
    r"|(?<!Platform)\bRules\(|\bAccess\(|\bRates\("
)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def prose(page):
    """Return the lines of a page outside of code blocks and tables, with their numbers."""
    fence, lines = None, []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        start = line.lstrip()[:3]
        if fence is None and start in {"```", "~~~"}:
            fence = start
        elif start == fence:
            fence = None
        elif fence is None and not line.startswith("|"):
            lines.append((number, line))
    return lines


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in ON_A_SERVER], ids=lambda page: page.name
)
def test_every_snippet_of_a_page_runs_in_order(page, tmp_path):
    for code in blocks(page, "python"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_the_generated_sessions_are_up_to_date():
    check = [sys.executable, "-W", "error", str(ROOT / "docs" / "sessions.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_wrapped_and_uses_the_current_names(page):
    wide = [number for number, line in prose(page) if len(line) > WIDTH]
    assert wide == [], f"{page.name} has lines longer than {WIDTH} characters"
    if page.name != "CHANGELOG.md":  # it lists the old names
        assert OLD_NAMES.findall(page.read_text()) == []


def test_the_speed_table_agrees_with_the_results():
    table = (ROOT / "README.md").read_text().split("## Speed")[1].split("\n\n")[2]
    shown = [int(number) for number in re.findall(r"(\d+) times", table)]
    goals = [
        ("switch", "a turn: hermes-agent / ours"),
        ("runtime", "10 messages, one session: overhead of hermes-agent gateway / ours"),
        ("runtime", "10,000 messages of history: overhead of hermes-agent gateway / ours"),
        ("runtime", "100 sessions at once: ours / hermes-agent gateway"),
        ("http", "with a model, processor time: hermes-agent API server / ours"),
        ("http", "with a model, processor time: agno AgentOS / ours"),
    ]
    assert shown == [round(measured(name, goal)) for name, goal in goals]
    builds = [row for row in results("switch")["figures"] if row["figure"] == "builds"]
    medians = {row["who"]: row["median"] for row in builds if row["cell"] == "all patterns"}
    ours = medians["ours; prompt kept"]
    theirs = medians["hermes-agent 0.19.0, its own gateway; prompt kept"]
    assert f"{ours} agent builds" in table
    assert f"against {theirs} " in table


def results(benchmark):
    return json.loads((ROOT / "bench" / "results" / f"{benchmark}.json").read_text())


def measured(benchmark, goal):
    [found] = [each for each in results(benchmark)["goals"] if each["goal"] == goal]
    return found["measured"]["median"]


def test_every_file_that_a_page_names_exists():
    named = re.compile(r"`((?:hermes|tests|bench|docs|examples|tools)/[\w/]+\.\w+)`")
    for page in PAGES:
        if page.name != "CHANGELOG.md":
            missing = [
                path for path in named.findall(page.read_text()) if not (ROOT / path).exists()
            ]
            assert missing == [], page.name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


def test_the_index_has_one_line_for_each_page():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = re.findall(r"^- \[[^]]+\]\((\w+\.md)\):", index, re.MULTILINE)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)


def test_the_runtime_guide_lists_every_command():
    text = (ROOT / "docs" / "runtime.md").read_text()
    table = text.split("## Commands")[1].split("\n## ")[0]
    assert set(re.findall(r"`/(\w+)`", table)) == {*COMMANDS, *ALIASES}


def commands():
    shown = re.compile(r"(?:^|`)make ([a-z]+)", re.MULTILINE)
    return sorted({target for page in PAGES for target in shown.findall(page.read_text())})


def test_the_commands_that_the_pages_name_are_these():
    assert commands() == ["bench", "lint", "prove", "run", "test"]


@pytest.mark.parametrize("target", commands())
def test_every_command_exists(target):
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_has_a_target():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}"
            if anchor:
                assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}"
