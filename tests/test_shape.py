"""Limits on the size and shape of the code. They fail before the code drifts."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_MODULE = 400
MAX_TEST_FILE = 800
MAX_FUNCTION = 50
MAX_FOLDER = 15

GETATTR = {
    "hermes/_lazy.py": "names of a package that are imported on first use",
    "hermes/actors/session/agent_cache.py": "what a user's builder returned",
    "hermes/agents/tools/definitions.py": "the name of a user's function; a partial has none",
    "hermes/embed/agent.py": "what a user passed as agent= or build_agent=",
    "hermes/embed/transcriber.py": "what a user passed as transcriber=",
    "hermes/run/references.py": "an attribute that the configuration names",
    "hermes/store/async_store.py": "what the store has that another one is a view of",
    "hermes/store/hooks.py": "the name of a user's hook; a callable object has none",
}
"""The modules that may use `getattr` or `hasattr`, and on what."""

BROAD_EXCEPT = {
    "hermes/agents/bridges.py": "a task that stops its loop must not stop the others",
    "hermes/background.py": "raised again outside of the exception group",
    "hermes/store/actor.py": "answered to the request, or the message is found on disk",
}
"""The modules that may catch `Exception` or `BaseException` without raising it again."""

RESUMING = {"start_soon", "cancel", "set", "release", "reschedule", "spawn_system_task"}
"""Functions of Trio that cannot be repeated if memory runs out halfway: then a task waits forever.

`hermes/background.py` has forms of them that end the run instead.
"""
MEMBERSHIP = "hermes/store/postgres/cluster/membership.py"
NOT_TRIO = {
    ("hermes/actors/cache_limits.py", "cache.release"): "the cache of a conversation",
    ("hermes/actors/session/agent_cache.py", "self.release"): "the same",
    ("hermes/adapters/console/terminal.py", "self._task.cancel"): "a task of asyncio",
    ("hermes/adapters/console/terminal_view.py", "self._refresh.cancel"): "a timer of asyncio",
    ("hermes/adapters/http/server.py", "self._context.terminated.set"): "nobody waits for it",
    ("hermes/agents/crossing.py", "call.cancel"): "calls `hermes.background.cancel`",
    ("hermes/agents/crossing.py", "current_async_library_cvar.set"): "a context variable",
    ("hermes/agents/crossing.py", "trio.lowlevel.spawn_system_task"): "with `or_crash`",
    ("hermes/agents/remote_files.py", "self._continue.set"): "an event of asyncio",
    ("hermes/agents/remote_files.py", "self._task.cancel"): "a task of asyncio",
    ("hermes/agents/remote_turns.py", "self._closed.set"): "an event between threads",
    ("hermes/agents/threads.py", "self._task.cancel"): "a task of asyncio",
    ("hermes/embed/asyncio_http.py", "holding.cancel"): "a task of asyncio",
    ("hermes/embed/asyncio_bridge.py", "ended.set"): "an event of asyncio",
    ("hermes/embed/proxies.py", "future.cancel"): "a future of a thread",
    ("hermes/embed/runtime_thread.py", "self._aborted.cancel"): "a future of a thread",
    ("hermes/embed/runtime_thread.py", "self._left.cancel"): "a future of a thread",
    ("hermes/embed/runtime_thread.py", "self.ended.cancel"): "a future of a thread",
    ("hermes/embed/runtime_thread.py", "wrapped.cancel"): "a future of asyncio",
    ("hermes/embed/verbs.py", "AdapterState.set"): "a verb",
    ("hermes/run/logs.py", "record.set"): "an event between threads",
    (MEMBERSHIP, "self._lock.release"): "a lock between threads",
    (MEMBERSHIP, "self._wakes.set"): "an event between threads",
}
"""What has the name of such a function, and what it is."""

OLD_WORDS = (
    "House", "Room", "Place", "Verbs", "Answering", "Askers", "Hearer", "Listeners", "Discretion",
    "Unbooked", "Standing", "Occasion", "Manner", "Manners", "Governor", "Showing", "Hearing",
    "Saying", "Hiding", "AwayTurn", "Untouched", "Spoken", "Titled", "WrongCode", "OnceCall",
    "Passage", "Mail", "Ran",
)  # fmt: skip
"""Private vocabulary that was replaced; none of it may come back as a whole identifier."""


@cache
def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def modules(*folders: str) -> list[Path]:
    return [path for path in tracked() if path.relative_to(ROOT).parts[0] in folders]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(path: Path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        total -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return total


def test_no_module_is_too_long():
    found = {name(path): lines(path) for path in modules("hermes", "bench", "tools")}
    assert {path: count for path, count in found.items() if count > MAX_MODULE} == {}


def test_no_test_file_is_too_long():
    found = {name(path): lines(path) for path in modules("tests")}
    assert {path: count for path, count in found.items() if count > MAX_TEST_FILE} == {}


def test_no_function_is_too_long():
    found = {
        f"{name(path)}:{node.name}": length(node)
        for path in modules("hermes", "bench", "tools")
        for node in functions(path)
    }
    assert {where: count for where, count in found.items() if count > MAX_FUNCTION} == {}


def test_no_folder_is_too_wide():
    fixed = {"__init__.py", "__main__.py"}  # Python looks for them by these names
    found = Counter(
        name(path.parent) for path in modules("hermes", "bench") if path.name not in fixed
    )
    assert {folder: count for folder, count in found.items() if count > MAX_FOLDER} == {}


def test_attributes_are_not_guessed():
    found = {
        name(path)
        for path in modules("hermes")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "hasattr"}
    }
    assert found == set(GETATTR)


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def test_broad_handlers_are_where_they_are_named():
    found = {
        name(path)
        for path in modules("hermes")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        and is_broad(node)
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    }
    assert found == set(BROAD_EXCEPT)


@cache
def identifiers() -> dict[str, set[str]]:
    """Every name, class and attribute in the code, without leading underscores, and its files."""
    found: dict[str, set[str]] = {}
    for path in modules("hermes", "bench", "tests", "examples", "tools"):
        for node in ast.walk(tree(path)):
            match node:
                case ast.Name(id=word) | ast.ClassDef(name=word) | ast.Attribute(attr=word):
                    found.setdefault(word.removeprefix("_"), set()).add(name(path))
    return found


def resuming(path: Path):
    """The functions of `RESUMING` that a module uses; with an argument, `set` is another one."""
    nodes = list(ast.walk(tree(path)))
    others = {n.func for n in nodes if isinstance(n, ast.Call) and n.args}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in RESUMING:
            named_alike = node.attr in {"set", "release"} and node in others
            yield from [] if named_alike else [ast.unparse(node)]


def test_tasks_are_resumed_with_the_functions_that_need_no_memory():
    found = {
        (name(path), each)
        for path in modules("hermes")
        if not name(path).startswith(("hermes/background.py", "hermes/testing/"))
        for each in resuming(path)
    }
    assert found == set(NOT_TRIO)


def test_every_identifier_is_found():
    here = name(Path(__file__))
    for word in ("OLD_WORDS", "ast", "removeprefix"):
        assert here in identifiers()[word]
    assert "hermes/actors/runtime.py" in identifiers()["Runtime"]


@pytest.mark.parametrize("word", OLD_WORDS)
def test_the_old_vocabulary_is_gone(word):
    assert identifiers().get(word, set()) == set()


def test_no_test_imports_another_test():
    found = {
        name(path): node.module
        for path in modules("tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and node.module.startswith("tests.")
        and node.module.rsplit(".", 1)[-1].startswith(("test_", "conftest"))
    }
    assert found == {}


LAZY = {
    "hermes/adapters/console/adapter.py": "prompt_toolkit is imported only for a terminal",
}
"""The modules that import others of ours for type checkers only, and why."""


def test_nothing_of_ours_is_imported_for_type_checkers_only():
    """Plain imports without cycles. Packages that load their names lazily are the exception."""
    found = {
        name(path)
        for path in modules("hermes")
        if path.name != "__init__.py"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("hermes")
    }
    assert found == set(LAZY)
