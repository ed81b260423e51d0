"""Names of a package that are loaded when they are asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def loader(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for the package; `names` says, by module, what it offers."""
    where = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
