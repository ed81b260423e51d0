"""Every file and function that docs/architecture.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAMED_PATH = re.compile(r"`((?:hermes|tests|bench|docs|examples)/[\w/]+(?:\.\w+)?)`")
NAMED_FUNCTIONS = re.compile(r"`(hermes/[\w/]+\.py)`:\s+(`[\w.]+`(?:,\s+`[\w.]+`)*)")
FUNCTIONS = sorted(
    {
        (path, name)
        for path, names in NAMED_FUNCTIONS.findall(TEXT)
        for name in re.findall(r"`([\w.]+)`", names)
        if "/" not in name
    }
)


def defined_in(path):
    """Return the functions, classes and methods of a file, methods as `Class.method`."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if hasattr(each, "name")]
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


@pytest.mark.parametrize("path", sorted(set(NAMED_PATH.findall(TEXT))))
def test_a_named_path_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("path", "name"), FUNCTIONS)
def test_a_named_function_exists(path, name):
    assert name in defined_in(path)


def test_the_page_names_the_files_of_a_turn():
    assert len(FUNCTIONS) > 40
    assert ("hermes/actors/session/turn.py", "TurnRunner.run") in FUNCTIONS
    assert ("hermes/store/conversations/turns.py", "commit_turn") in FUNCTIONS


def test_the_diagram_names_files_that_exist():
    [diagram] = re.findall(r"```\n( platform .*?)```", TEXT, re.DOTALL)
    for path in re.findall(r"(?:actors|store)/[\w/]+\.py", diagram):
        assert (ROOT / "hermes" / path).exists()
