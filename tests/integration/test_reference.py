"""docs/reference.md is current, complete, and has a docstring for every public name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATION = {
    "AccessPolicy", "Budgets", "CompressionConfig", "Config", "Endpoint", "ExpiryPolicy",
    "PlatformRules", "Price", "RateLimit", "Retries", "Spending",
}  # fmt: skip
"""Classes whose fields users set; each field needs a docstring."""


def load():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


reference = load()


def test_the_page_is_up_to_date():
    text = (ROOT / "docs" / "reference.md").read_text()
    assert text == reference.generate(), "run python docs/reference.py"


@pytest.mark.parametrize("package", ["hermes", "hermes.embed", "hermes.agents"])
def test_the_page_has_every_exported_name(package):
    exported = set(importlib.import_module(package).__all__) - reference.MODULES
    assert set(reference.public_names(package)) == exported


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_every_public_name_has_a_docstring(package):
    missing = []
    for name in reference.public_names(package):
        found = reference.find(package, name)
        if isinstance(found.node, ast.ClassDef):
            missing += [f"{name}{each}" for each in undocumented(found)]
        elif isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            missing += [] if ast.get_docstring(found.node) else [name]
        elif not found.doc:
            missing.append(name)
    assert missing == []


def undocumented(found):
    node = found.node
    if not ast.get_docstring(node):
        yield ""
    for member in reference.members_of(found.module, node).values():
        needed = member.kind != "field" or node.name in CONFIGURATION
        if needed and not member.doc:
            yield f".{member.name}"


def test_the_signature_of_a_verb_has_no_transaction():
    text = (ROOT / "docs" / "reference.md").read_text()
    assert "commit_turn(turn: TurnCommit) -> Committed | Discarded" in text
    assert "tx: Transaction" not in text
