"""What the README and the docs show works as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


def test_the_sessions_of_the_readme_are_what_happens():
    check = [sys.executable, "-W", "error", str(ROOT / "docs" / "sessions.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def commands():
    shown = re.compile(r"(?:^|`)make ([a-z]+)", re.MULTILINE)
    return sorted({target for page in PAGES for target in shown.findall(page.read_text())})


def test_the_commands_that_the_pages_name_are_these():
    assert commands() == ["bench", "lint", "prove", "run", "test"]


@pytest.mark.parametrize("target", commands())
def test_every_command_exists(target):
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_make_run_starts_a_chat(tmp_path):
    done = subprocess.run(
        ["make", "--silent", "run"],
        cwd=ROOT,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        input="hello\n/new\n",
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("You said: hello\nI am the offline agent")
    assert done.stdout.endswith("\nNew session.\n")
    assert (tmp_path / "hermes" / "state.db").exists()


def test_every_page_that_is_linked_is_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
