"""What an adapter of a network platform may do with a runtime."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ADAPTERS = Path(__file__).parents[3] / "hermes" / "adapters"
LOCAL = {"console", "jsonrpc", "http"}
"""Adapters of the operator's own terminal and programs, which may use every verb.

HTTP is an API of the runtime: each of its endpoints checks what its token may use.
"""
RUNTIME = re.compile(r"(?:self\.)?_?runtime\.([a-z_.]+)")
ALLOWED = {
    "submit",
    "subscribe",
    "is_answered",
    "receipt_of",
    "adapter_state.get",
    "adapter_state.receive",
    "adapter_state.set",
    "admin.statistics",
    "texts",
    "texts.overloaded",
    "texts.file_not_downloaded",
    "texts.file_refused.format",
}


def used_verbs(code):
    """The verbs of a runtime that a module mentions, such as "submit" or "admin.find"."""
    attributes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)]
    inner = {node.value for node in attributes}
    found = [RUNTIME.fullmatch(ast.unparse(node)) for node in attributes if node not in inner]
    return {match[1] for match in found if match is not None}


def test_a_network_adapter_submits_and_listens_and_does_nothing_else():
    for path in ADAPTERS.rglob("*.py"):
        name = path.relative_to(ADAPTERS).parts[0].removesuffix(".py")
        if name not in LOCAL:
            assert used_verbs(path.read_text()) <= ALLOWED, path


def test_used_verbs_finds_verbs():
    code = """
self.runtime.submit(x)
runtime.conversation(k).switch(t)
await self._runtime.admin.find(k)
other.close()
"""
    assert used_verbs(code) == {"submit", "conversation", "admin.find"}
