"""Trace one warm turn, from `runtime.ask` to the sent reply, and count the code on its path.

    python tools/trace_turn.py [--functions | --json]

The traced turn is real, and the second one of its conversation, so that the agent is cached: a
SQLite file, store threads, an access policy, a compressor that is not triggered, an adapter that
sends the reply. The trace covers all threads and tasks until the reply is marked as sent. Every
function of `hermes/` of which a line ran counts with all of its lines, executed or not:

- `code`: lines from `def` to the end, without decorators, docstrings, blank lines and comments;
- `ran`: those of them that were executed.

Lambdas and nested functions belong to the function around them, and no line counts twice. A value
type counts if the path constructs it and the core handles it, unless `NOT_COUNTED` lists it.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeAlias

import apsw
import attrs
import msgspec
import trio

import hermes
from hermes import AccessPolicy, PlatformRules, Source, TurnResult, open_runtime
from hermes.events import TextDelta
from hermes.protocols import Turn
from hermes.testing import DeterministicCompressor, MemoryAdapter

CORE_LINES = 600
CORE_TYPES = 10
PATH_LINES = 1370

CORE = ("session loop", "turn", "accept", "commit_turn")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "entry": (
        "actors/runtime.py", "actors/intake.py", "actors/supervisor.py", "actors/commands.py",
        "actors/kernel/mailbox.py:Mailbox", "actors/context.py", "background.py", "config.py",
        "context.py", "embed/", "errors.py", "messages/", "retry.py", "sanitize.py",
        "session_keys.py", "store/cluster/", "user_code.py",
    ),
    "session loop": ("actors/session/actor.py", "actors/session/inbox.py"),
    "turn": (
        "actors/session/", "actors/cache_limits.py", "actors/compression/", "actors/rebuild.py",
        "actors/auto_title.py",
    ),
    "transcript": ("transcript/",),
    "accept": (
        "store/conversations/turns.py:accept", "store/conversations/turns.py:_validate",
        "store/conversations/turns.py:_expire", "store/conversations/turns.py:_insert",
    ),
    "commit_turn": ("store/conversations/turns.py", "store/conversations/inbox.py"),
    "other SQL": ("store/conversations/", "store/records/"),
    "recording": ("actors/recording/", "store/recordings/"),
    "group commit": (
        "actors/kernel/", "store/actor.py", "store/async_store.py", "store/sqlite/",
        "store/files/", "store/group_commit.py", "store/transaction.py", "store/verbs.py",
        "store/verb_kinds.py", "store/worker.py",
    ),
    "delivery": ("actors/delivery/", "outbound.py"),
    "admission": ("actors/admission/",),
    "event bus": ("actors/event_bus.py", "actors/kernel/mailbox.py:Request"),
    "redaction": ("redaction/",),
    "metrics": ("actors/metrics.py", "actors/budget.py"),
}  # fmt: skip
"""Prefixes of `file:qualified.name`, by group. The first group with a match wins."""
UNGROUPED = "ungrouped"
NOT_ON_PATH = (
    "testing/", "store/actor.py:StoreActor._index",
    "store/conversations/search.py", "store/sqlite/guard.py:FileGuard.check_files",
)  # fmt: skip
"""Prefixes of functions that do not count: the fakes, and what runs now and then."""

NOT_COUNTED: Mapping[str, tuple[str, ...]] = {
    "part of another value": (
        "Receipt", "Head", "Route", "Source", "TurnContext", "Message", "Outbound",
        "StoredMessage",
    ),
    "event bus": ("TurnStarted", "TurnEnded"),
    "group commit": ("SqliteTransaction",),
    "describes the agent": ("AgentSpec", "Snapshot", "Baseline"),
}  # fmt: skip
"""Value types that are no form of the message itself."""

ROOT = Path(hermes.__file__).parent
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


# The turn


class Agent:
    """User code: emits a part of the answer, then returns all of it."""

    async def run(self, turn: Turn, /) -> TurnResult:
        turn.emit(TextDelta("an answer"))
        return TurnResult(text=f"an answer to {turn.text}")


async def run_turns(tracer: Tracer, folder: Path) -> None:
    """Run two turns of one conversation. Trace the second one until its reply is sent."""
    path = folder / "state.db"
    source = Source("memory", chat_id="chat", user_id="ann")
    async with open_runtime(
        path,
        agent=Agent(),
        adapters=[MemoryAdapter()],
        compressor=DeterministicCompressor(),
        access=AccessPolicy(rules={"memory": PlatformRules(users=["ann"])}),
    ) as runtime:
        await runtime.ask("k", "first", source=source)
        await wait_rows(path, "outbox WHERE state = 'sent'", 1)
        await wait_rows(path, "arrivals", 0)  # rows are indexed a while after each turn
        tracer.active = True
        await runtime.ask("k", "hello", source=source)
        await wait_rows(path, "outbox WHERE state = 'sent'", 2)
        tracer.active = False


async def wait_rows(path: Path, table: str, number: int) -> None:
    """Wait until a table has so many rows, without running code of `hermes/`."""
    with trio.fail_after(30), closing(apsw.Connection(str(path))) as db:
        while len(db.execute(f"SELECT 1 FROM {table}").fetchall()) != number:  # noqa: ASYNC110
            await trio.sleep(0.01)


# The trace


class Tracer:
    """Records what runs in all threads while it is `active`."""

    def __init__(self) -> None:
        self.active = False
        self.functions: dict[CodeType, Mapping[str, Any]] = {}
        """The functions of `hermes/` that ran, with their global names."""
        self.lines: dict[CodeType, set[int]] = defaultdict(set)
        """The lines of each that ran."""
        self.handled: dict[CodeType, set[type]] = defaultdict(set)
        """The classes of the arguments, local variables and results of each."""

    def enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Called for each call, and each time a coroutine is resumed."""
        if not frame.f_code.co_filename.startswith(str(ROOT)):
            return None
        if self.active:
            self._record(frame, None)
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        """Called for each line, and for each return, of a function of `hermes/`."""
        if self.active:
            if event == "line":
                self.lines[frame.f_code].add(frame.f_lineno)
            self._record(frame, argument if event == "return" else None)
        return self._step

    def _record(self, frame: FrameType, result: object) -> None:
        code = frame.f_code
        self.functions[code] = frame.f_globals
        for value in (*frame.f_locals.values(), result):
            items = value if isinstance(value, list | tuple) else (value,)
            self.handled[code].update(map(type, items))


def trace() -> Tracer:
    """Trace one turn, in this thread and in every thread that it starts."""
    tracer = Tracer()
    threading.settrace(tracer.enter)
    sys.settrace(tracer.enter)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(run_turns, tracer, Path(folder))
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return tracer


# The functions


@functools.cache
def parsed(file: str) -> Mapping[tuple[int, str], FunctionNode]:
    """The functions of a file, by their first line and name as their code objects have them."""
    found: dict[tuple[int, str], FunctionNode] = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[first, node.name] = node
        elif isinstance(node, ast.Lambda):
            found[node.lineno, "<lambda>"] = node
    return found


def span(node: ast.stmt | ast.expr) -> range:
    """The lines of a node."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_lines(file: str, node: FunctionNode) -> set[int]:
    """The lines of a function without docstrings, blank lines and comments."""
    text = Path(file).read_text(encoding="utf-8").splitlines()
    found = {n for n in span(node) if (line := text[n - 1].strip()) and not line.startswith("#")}
    for each in ast.walk(node):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            found.difference_update(span(each))
    return found


@attrs.frozen
class Function:
    """A function that ran."""

    compiled: CodeType
    node: FunctionNode
    executed: frozenset[int]
    """The lines that ran."""

    @property
    def file(self) -> str:
        """Its file, below `hermes/`."""
        return Path(self.compiled.co_filename).relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """The name of the outermost function around it."""
        return self.compiled.co_qualname.split(".<locals>")[0]

    @property
    def group(self) -> str | None:
        """Its group; None if it is not on the path."""
        name = f"{self.file}:{self.name}"
        if name.startswith(NOT_ON_PATH):
            return None
        return next((g for g, prefixes in GROUPS.items() if name.startswith(prefixes)), UNGROUPED)

    @functools.cached_property
    def code(self) -> set[tuple[str, int]]:
        """Its lines of code."""
        return {(self.file, n) for n in code_lines(self.compiled.co_filename, self.node)}

    @property
    def ran(self) -> set[tuple[str, int]]:
        """Its lines of code that were executed."""
        return {(file, line) for file, line in self.code if line in self.executed}


def functions(tracer: Tracer) -> list[Function]:
    """The functions that ran; comprehensions are lines of the function around them."""
    return [
        Function(code, node, frozenset(tracer.lines[code]))
        for code in tracer.functions
        if tracer.lines[code]  # others only wait, like the caller of a session actor's loop
        and (node := parsed(code.co_filename).get((code.co_firstlineno, code.co_name))) is not None
    ]


# The value types


def constructed(tracer: Tracer, function: Function) -> set[type]:
    """The value types that a function constructs in a line that ran."""
    names = dict(tracer.functions[function.compiled])
    names["cls"] = names.get(function.name.split(".")[0])
    ran = tracer.lines[function.compiled]
    calls = [
        _resolved(each.func, names)
        for each in ast.walk(function.node)
        if isinstance(each, ast.Call) and each.lineno in ran
    ]
    return {each for each in calls if isinstance(each, type) and is_value(each)}


def _resolved(node: ast.expr, names: Mapping[str, Any]) -> object:
    """What a name, or a name in a module, stands for."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = names.get(node.value.id)
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else None
    return None


def is_value(kind: type) -> bool:
    """Whether a class of `hermes/` is a value type."""
    made_with = issubclass(kind, msgspec.Struct) or attrs.has(kind)
    return kind.__module__.startswith("hermes.") and made_with


# The report


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a part of the path."""

    functions: int
    files: int
    code: int
    ran: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole measurement."""

    core: Total
    path: Total
    groups: Mapping[str, Total]
    files: Mapping[str, Mapping[str, int]]
    """The lines of code of each function, by file."""
    core_types: tuple[str, ...]
    not_counted: tuple[str, ...]
    """Types that are constructed and handled in the core, and listed in `NOT_COUNTED`."""
    limits: Mapping[str, int]


def total(found: Iterable[Function]) -> Total:
    """Add functions up. A line that two of them share counts once."""
    found = list(found)
    return Total(
        functions=len({(each.file, each.name) for each in found}),
        files=len({each.file for each in found}),
        code=len({line for each in found for line in each.code}),
        ran=len({line for each in found for line in each.ran}),
    )


def report(tracer: Tracer) -> Report:
    """Count what was traced."""
    found = [each for each in functions(tracer) if each.group is not None]
    core = [each for each in found if each.group in CORE]
    made = {kind for each in found for kind in constructed(tracer, each)}
    handled = {kind for each in core for kind in tracer.handled[each.compiled]}
    types = sorted(kind.__name__ for kind in made & handled)
    excluded = [name for names in NOT_COUNTED.values() for name in names]
    groups = {name: total(e for e in found if e.group == name) for name in (*GROUPS, UNGROUPED)}
    return Report(
        core=total(core),
        path=total(found),
        groups={name: each for name, each in groups.items() if each.functions},
        files={file: sizes(file, found) for file in sorted({each.file for each in found})},
        core_types=tuple(name for name in types if name not in excluded),
        not_counted=tuple(name for name in types if name in excluded),
        limits={"core": CORE_LINES, "core_types": CORE_TYPES, "path": PATH_LINES},
    )


def sizes(file: str, found: Iterable[Function]) -> Mapping[str, int]:
    """The lines of code of each function in a file."""
    lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for each in found:
        if each.file == file:
            lines[f"{each.name} [{each.group}]"] |= each.code
    return {name: len(code) for name, code in sorted(lines.items())}


def text(measured: Report, *, every_function: bool) -> Iterator[str]:
    """The report, line by line."""
    yield "One warm turn, from `ask` to the sent reply. *: part of the core."
    yield "code: the lines of every function that ran; ran: those that were executed."
    yield f"\n {'':<15}{'functions':>10}{'files':>7}{'code':>7}{'ran':>6}"
    for name, each in {**measured.groups, "CORE": measured.core, "PATH": measured.path}.items():
        star = "*" if name in CORE else " "
        row = f"{each.functions:>10}{each.files:>7}{each.code:>7}{each.ran:>6}"
        yield f"{star}{name:<15}{row}"
    yield f"\nvalue types of the core: {len(measured.core_types)}: {', '.join(measured.core_types)}"
    yield f"not counted: {', '.join(measured.not_counted)}"
    yield f"limits: core {CORE_LINES} lines and {CORE_TYPES} types, path {PATH_LINES} lines of code"
    for file, of_file in measured.files.items() if every_function else ():
        yield f"\n{file}: {sum(of_file.values())} lines"
        yield from (f"{size:>6}  {name}" for name, size in of_file.items())


def main(arguments: list[str]) -> None:
    """Trace a turn and print the report."""
    parser = argparse.ArgumentParser(description="Trace one turn, and count functions and lines.")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument("--functions", action="store_true", help="list every function too")
    options, measured = parser.parse_args(arguments), report(trace())
    as_json = msgspec.json.format(msgspec.json.encode(measured)).decode()
    as_text = "\n".join(text(measured, every_function=options.functions))
    print(as_json if options.json else as_text)


if __name__ == "__main__":
    main(sys.argv[1:])
