"""Generate docs/reference.md from the docstrings of the public names.

    python docs/reference.py            writes docs/reference.md
    python docs/reference.py --check    fails if the page is out of date

It reads the source and imports nothing, so that signatures and defaults appear as they are written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import attrs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
PACKAGES = {
    "hermes": "The names that a program needs: the runtime, values, events, errors, protocols.",
    "hermes.embed": "Runtimes inside other kinds of programs. Their verbs are those of `Runtime`.",
    "hermes.agents": "Agents with a model, tools, budgets, and bridges to threads and asyncio.",
    "hermes.store": "The database, without a runtime. See [store.md](store.md).",
    "hermes.testing": "Fakes and loopback servers for tests.",
}
MODULES = {"embed", "errors", "events"}
"""Names of `hermes` that are modules."""
WIDTH = 100
STORE_VERBS = {"writes", "alone", "reads", "browses", "searches", "chunked"}
HOST_VERBS = {"verb", "plain", "stream_verb"}
"""What the lists of verbs are made of, in hermes/store/verbs.py and hermes/embed/verbs.py."""
INTERNAL = {
    (owner, name)
    for owner in ("Store", "SessionStore")
    for name in ("transact", "transact_alone", "snapshot", "browse", "run_search", "run_chunked")
}
"""How the verbs of a store are run; programs call the verbs."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Definition:
    """A top-level definition, the module it is in, and the docstring of an assignment."""

    module: str
    node: ast.stmt
    doc: str | None = None


# Finding definitions


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


@functools.cache
def imports_of(module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module imports from others of ours, as (module, name)."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hermes")
        for alias in node.names
    }


def documented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str | None]]:
    """Yield each statement with the string that follows it, if there is one."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        yield node, _string(following)


def _string(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else None
    return None


def _defined_name(node: ast.stmt) -> str | None:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return None


def find(module: str, name: str) -> Definition:
    """Return where a name is defined, following imports."""
    found = [
        Definition(module, node, doc)
        for node, doc in documented(tree_of(module).body)
        if _defined_name(node) == name
    ]
    if found:
        return found[-1]
    return find(*imports_of(module)[name])


def public_names(package: str) -> list[str]:
    """Return the names that a package exports: those that it imports from its modules."""
    names = {name for name in imports_of(package) if not name.startswith(("_", "lazy_"))}
    return sorted(names - MODULES, key=lambda name: (name.lower(), name))


# Signatures


def signature(node: Function, *, skip: int = 0, returns: ast.expr | None = None) -> str:
    """Return a function's signature; `skip` leaves out its first parameters, such as `self`."""
    parameters = _parameters(node.args)[skip:]
    result = returns or node.returns
    suffix = "" if result is None else f" -> {ast.unparse(result)}"
    line = f"{node.name}({', '.join(parameters)}){suffix}"
    if len(line) <= WIDTH - len("async with "):
        return line
    return f"{node.name}(\n    " + ",\n    ".join(parameters) + f",\n){suffix}"


def _parameters(args: ast.arguments) -> list[str]:
    """Return each parameter as text, by unparsing it alone."""
    texts = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + [*args.defaults]
    for arg, default in zip(positional, defaults, strict=True):
        texts.append(_parameter(arg, default))
        if args.posonlyargs and arg is args.posonlyargs[-1]:
            texts.append("/")
    if args.vararg is not None:
        texts.append(f"*{_parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        texts.append("*")
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        texts.append(_parameter(arg, default))
    if args.kwarg is not None:
        texts.append(f"**{_parameter(args.kwarg, None)}")
    return texts


def _parameter(arg: ast.arg, default: ast.expr | None) -> str:
    text = arg.arg if arg.annotation is None else f"{arg.arg}: {ast.unparse(arg.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _decorators(node: Function) -> set[str]:
    return {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}


def prefix(node: Function) -> str:
    """Return how a function is called, if not plainly: awaited, or in a `with` block."""
    decorators = _decorators(node)
    if "asynccontextmanager" in decorators:
        return "async with "
    if "contextmanager" in decorators:
        return "with "
    return "async " if isinstance(node, ast.AsyncFunctionDef) else ""


# Markdown


def markdown_of(docstring: str | None) -> str:
    """Return a docstring as Markdown; sections such as "Args:" become lists."""
    if not docstring:
        return ""
    lines, section = [], False
    for line in inspect.cleandoc(docstring).splitlines():
        if line in {"Args:", "Returns:", "Raises:", "Yields:"}:
            section = True
            lines += [line, ""]
        elif section and (item := re.match(r"    (\*{0,2}\w+): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line
            lines.append(line)
    return "\n".join(lines)


def entry(text: str, docstring: str | None, *, indent: str = "") -> str:
    """Return a list item: code, and the first paragraphs of its docstring."""
    paragraphs = (docstring or "").split("\n\n")
    lines = textwrap.wrap(
        f"`{text}`" + (f": {' '.join(paragraphs[0].split())}" if docstring else ""),
        WIDTH,
        initial_indent=f"{indent}- ",
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    rest = [textwrap.indent(each, f"{indent}  ") for each in paragraphs[1:]]
    return "\n\n".join(["\n".join(lines), *rest])


def block(code: str) -> str:
    """Return a code block; not marked as `python`, because snippets of the docs are run."""
    return f"```py\n{code}\n```"


def function_text(nodes: list[Function], *, skip: int = 0) -> tuple[str, str | None]:
    """Return the signatures and the docstring of a function and its overloads."""
    overloads = [node for node in nodes if "overload" in _decorators(node)]
    shown = overloads or nodes[-1:]
    code = "\n".join(prefix(node) + signature(node, skip=skip) for node in shown)
    docs = [ast.get_docstring(node) for node in nodes]
    return code, next((doc for doc in docs if doc), None)


# Classes


def bases_of(module: str, node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
    """Return a class and its base classes of ours, most basic first."""
    chain: list[tuple[str, ast.ClassDef]] = []
    for base in node.bases:
        name = ast.unparse(base).split("[")[0]
        if node.name == "Store":
            continue  # its verbs are documented with SessionStore
        local = any(_defined_name(each) == name for each in tree_of(module).body)
        if not local and name not in imports_of(module):
            continue
        found = find(module, name)
        if isinstance(found.node, ast.ClassDef):
            chain += bases_of(found.module, found.node)
    return [*chain, (module, node)]


@attrs.frozen
class Member:
    """A field, property or method of a class."""

    name: str
    text: str
    doc: str | None
    kind: str


def members_of(module: str, node: ast.ClassDef) -> dict[str, Member]:
    """Return the public members of a class and its bases; those of the class itself win."""
    members: dict[str, Member] = {}
    for where, each in bases_of(module, node):
        for member in _own_members(where, each):
            members[member.name] = member
    return members


def _own_members(module: str, node: ast.ClassDef) -> Iterator[Member]:
    functions: dict[str, list[Function]] = {}
    for each, doc in documented(node.body):
        name = _defined_name(each)
        if name == "__init__" and isinstance(each, ast.FunctionDef):
            yield from _attributes(each)
        elif name is None or name.startswith("_") or (node.name, name) in INTERNAL:
            continue
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.setdefault(name, []).append(each)
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            yield from _assigned(module, name, each, doc)
    for name, nodes in functions.items():
        yield _method(name, nodes)


def _assigned(
    module: str, name: str, node: ast.AnnAssign | ast.Assign, doc: str | None
) -> Iterator[Member]:
    call = node.value.func if isinstance(node.value, ast.Call) else None
    made_by = "" if call is None else ast.unparse(call)
    if made_by in STORE_VERBS:
        yield _store_verb(module, name, node.value)
    elif made_by in HOST_VERBS:
        yield Member(name, name, f"See `{ast.unparse(node.value.args[0])}`.", "verb")
    elif isinstance(node, ast.AnnAssign):
        yield Member(name, _field(name, node), doc, "field")
    elif doc:
        yield Member(name, name, doc, "field")


def _field(name: str, node: ast.AnnAssign) -> str:
    text = f"{name}: {ast.unparse(node.annotation)}"
    if node.value is None:
        return text
    default = ast.unparse(node.value)
    if default.startswith("attrs.Factory("):
        default = default.removeprefix("attrs.Factory(").removesuffix(")") + "()"
    elif isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("field"):
        given = {each.arg: ast.unparse(each.value) for each in node.value.keywords}
        factory = given.get("default_factory") or given.get("factory")
        default = f"{factory}()" if factory else given.get("default", "")
    return f"{text} = {default}" if default else text


def _attributes(init: Function) -> Iterator[Member]:
    """Yield the public attributes that a constructor documents."""
    for node, doc in documented(init.body):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if doc and isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            yield Member(target.attr, target.attr, doc, "field")


def _method(name: str, nodes: list[Function]) -> Member:
    node = nodes[-1]
    decorators = _decorators(node)
    if decorators & {"property", "cached_property"}:
        result = "" if node.returns is None else f": {ast.unparse(node.returns)}"
        return Member(name, f"{name}{result}", ast.get_docstring(node), "property")
    code, doc = function_text(nodes, skip=0 if "staticmethod" in decorators else 1)
    return Member(name, code, doc, "method")


def _store_verb(module: str, name: str, call: ast.expr | None) -> Member:
    """Return a store verb, whose function takes a transaction that callers do not see."""
    assert isinstance(call, ast.Call)
    owner, attribute = ast.unparse(call.args[0]).rsplit(".", 1)
    function = find(".".join(imports_of(module)[owner]), attribute).node
    assert isinstance(function, ast.FunctionDef)
    returns, skip = function.returns, 1
    if ast.unparse(call.func) == "chunked":  # a generator of work, without a transaction
        assert isinstance(returns, ast.Subscript)
        assert isinstance(returns.slice, ast.Tuple)
        returns, skip = returns.slice.elts[-1], 0
    code = signature(function, skip=skip, returns=returns)
    doc = ast.get_docstring(function)
    return Member(name, name + code.removeprefix(function.name), doc, "method")


def constructor_of(node: ast.ClassDef) -> Function | None:
    """Return the constructor that users call; None if it has only the fields of the class."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return each
    return None


def class_text(found: Definition, name: str) -> str:
    """Return a class: constructor, docstring, fields and methods."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    members = members_of(found.module, node).values()
    parts = [f"### {name}", markdown_of(ast.get_docstring(node))]
    init = constructor_of(node)
    if init is not None and not _is_internal(name):
        code = signature(init, skip=1).replace("__init__", name, 1).removesuffix(" -> None")
        parts.insert(1, block(code))
        parts.append(markdown_of(ast.get_docstring(init)))
    fields = [entry(each.text, each.doc) for each in members if each.kind in {"field", "property"}]
    parts.append("\n".join(fields))
    verbs = [each for each in members if each.kind == "verb"]
    if verbs:
        names = ", ".join(f"`{each.name}`" for each in verbs)
        original = verbs[0].doc.split("`")[1].split(".")[0]
        text = f"Verbs, as in [{original}](#{original.lower()}): {names}."
        parts.append(textwrap.fill(text, WIDTH, break_on_hyphens=False))
    for each in members:
        if each.kind == "method":
            parts += [f"#### {name}.{each.name}", block(each.text), markdown_of(each.doc)]
    return "\n\n".join(part for part in parts if part)


def _is_internal(name: str) -> bool:
    """Whether users get an object of this class from a function, not from its constructor."""
    made = ("Runtime", "Conversation", "Admin", "AdapterState", "Stream", "Subscription", "Store")
    return name in made or name.startswith(("Blocking", "Asyncio", "Loopback", "LoopTurn"))


def text_of(package: str, name: str) -> str:
    """Return the entry of a public name."""
    found = find(package, name)
    node = found.node
    if isinstance(node, ast.ClassDef):
        return class_text(found, name)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        nodes: list[Function] = [
            each
            for each in tree_of(found.module).body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == node.name
        ]
        code, doc = function_text(nodes)
        return "\n\n".join([f"### {name}", block(code), markdown_of(doc)])
    return "\n\n".join([f"### {name}", block(_alias(node)), markdown_of(found.doc)]).strip()


def _alias(node: ast.stmt) -> str:
    """Return an assignment, formatted as ruff does it: it also formats code blocks in Markdown."""
    code = ast.unparse(node).replace("'", '"')
    target, value = code.split(" = ", 1)
    if len(code) <= WIDTH:
        return code
    if len(value) > WIDTH - 4:
        value = value.replace(" | ", "\n    | ")
    return f"{target} = (\n    {value}\n)"


def generate() -> str:
    """Return the whole page."""
    parts = [
        "# Reference",
        "Generated from the docstrings by `python docs/reference.py`; do not edit it.",
        "\n".join(
            textwrap.fill(
                f"- [{package}](#{_anchor(package)}): {text}", WIDTH, subsequent_indent="  "
            )
            for package, text in PACKAGES.items()
        ),
    ]
    for package, text in PACKAGES.items():
        parts += [f"## {package}", text]
        parts += [text_of(package, name) for name in public_names(package)]
    return "\n\n".join(parts) + "\n"


def _anchor(heading: str) -> str:
    return heading.replace(".", "")


def main() -> int:
    text = generate()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            sys.stderr.write("docs/reference.md is out of date: run python docs/reference.py\n")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
