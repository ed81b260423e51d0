"""The example configuration, generated from the schema: every key, its default and its meaning."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin

import msgspec

from hermes.settings.schema import Settings, keys_of, table_type

_HEADER = """\
# Hermes configuration: hermes.toml, in the current folder or in ~/.config/hermes.
#
# Every key is listed. A line that starts with "#" and no space is a key that is not set: it shows
# the default, or an example if there is none. Remove the "#" to set it.
#
# Secrets are never written here, only where they are found: env:NAME or file:PATH.
"""
_WIDTH = 100
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def example_config() -> str:
    """Return a configuration file with every key commented out, so that it changes nothing."""
    return "\n".join([_HEADER, *_table(Settings, ()), ""])


def field_docs(cls: type) -> Mapping[str, str]:
    """Return the docstrings of the fields of one of our classes and of its bases.

    They are the string literals below the fields, read from the source.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("hermes."):
            [node] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(node, ast.ClassDef)
            docs |= _docs_in(node)
    return docs


def _docs_in(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, following in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    docs[field.target.id] = inspect.cleandoc(doc)
    return docs


def _table(table: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a table and then the tables inside of it."""
    docs = field_docs(table)
    fields = {field.name: field for field in msgspec.structs.fields(table)}
    inner: list[str] = []
    for name, kind in keys_of(table).items():
        value = _shown(fields[name], kind)
        below, named = table_type(kind), _value_type(kind)
        if below is None and named is None:
            yield from _comment(docs[name])
            yield f"#{_key(name)} = {_toml(value)}"
            continue
        inner += ["", *_comment(docs[name])]
        if named is not None:
            inner += _named_tables((*path, name), value, named)
        elif below is not None:
            # Headers of optional tables are comments too: some keys of theirs are required.
            optional = path or fields[name].default is None
            inner.append(f"{'#' if optional else ''}[{_dotted((*path, name))}]")
            inner += _table(below, (*path, name))
    yield from inner


def _named_tables(
    path: tuple[str, ...],
    examples: Mapping[str, Mapping[str, Any]],
    table: type[msgspec.Struct],
) -> Iterator[str]:
    """Yield example tables whose names the user chooses."""
    docs = field_docs(table)
    for name, keys in examples.items():
        yield f"#[{_dotted((*path, name))}]"
        for key, value in keys.items():
            yield from _comment(docs[key])
            yield f"#{_key(key)} = {_toml(value)}"


def _value_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the table that a type maps names to, if it does."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return table_type(get_args(inner)[1]) if get_origin(inner) is dict else None


def _shown(field: msgspec.structs.FieldInfo, kind: Any) -> Any:
    """Return the example of a key if it has one, else its default."""
    for meta in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        if isinstance(meta, msgspec.Meta) and meta.examples:
            return meta.examples[0]
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _comment(text: str) -> list[str]:
    paragraphs = text.split("\n\n")
    wrapped = [textwrap.wrap(each, _WIDTH - 2, break_on_hyphens=False) for each in paragraphs]
    return [f"# {line}" for lines in wrapped for line in lines]


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(map(_key, path))


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
