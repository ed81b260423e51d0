"""Every public class, function, method and configuration field is documented."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import types

import pytest

import hermes
import hermes.agents
import hermes.embed
import hermes.store
import hermes.testing

PACKAGES = {
    "hermes": hermes.__all__,
    "hermes.agents": hermes.agents.__all__,
    "hermes.embed": hermes.embed.__all__,
    "hermes.store": [n for n in vars(hermes.store) if n[0].isupper() or n == "open_store"],
    "hermes.testing": [
        name
        for name, value in vars(hermes.testing).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ],
}
NAMES = [(package, name) for package, names in PACKAGES.items() for name in names]
CONFIGURATION = [
    hermes.AccessPolicy,
    hermes.CompressionConfig,
    hermes.Config,
    hermes.ExpiryPolicy,
    hermes.PlatformRules,
    hermes.RateLimit,
    hermes.agents.Endpoint,
    hermes.agents.Price,
    hermes.agents.Retries,
    hermes.agents.Spending,
]


@functools.cache
def parsed(module):
    return ast.parse(inspect.getsource(sys.modules[module]))


def class_of(kind):
    """Return the definition of a class."""
    return next(
        node
        for node in ast.walk(parsed(kind.__module__))
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )


def is_callable(member):
    return isinstance(member, property | classmethod | staticmethod) or callable(member)


def undocumented_members(kind):
    """Return the public methods and properties of a class without a docstring."""
    found = []
    for base in kind.__mro__:
        if base.__module__.split(".")[0] != "hermes":
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or not is_callable(member):
                continue
            if not inspect.isclass(member) and not inspect.getdoc(getattr(kind, name)):
                found.append(f"{base.__qualname__}.{name}")
    return found


def undocumented_fields(kind):
    """Return the fields of a class that no string follows."""
    body = class_of(kind).body
    documented = {
        before.target.id
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
    fields = [
        each.target.id
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    return [name for name in fields if name not in documented and not name.startswith("_")]


def test_there_are_names_to_check():
    assert all(len(names) > 3 for names in PACKAGES.values())


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_is_documented(package, name):
    found = getattr(sys.modules[package], name)
    if isinstance(found, types.ModuleType):
        assert found.__doc__
    elif inspect.isclass(found):
        assert ast.get_docstring(class_of(found))
        assert undocumented_members(found) == []
    elif inspect.isroutine(found):
        assert inspect.getdoc(found)


@pytest.mark.parametrize("kind", CONFIGURATION, ids=lambda kind: kind.__name__)
def test_a_field_of_a_configuration_is_documented(kind):
    assert undocumented_fields(kind) == []
