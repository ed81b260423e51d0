"""Names of a package that are imported on first use (PEP 562), to keep imports cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `modules` maps each submodule to the names it provides, separated by spaces. A submodule that
    lists its own name provides itself.
    """
    where = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = _import(f"{package}.{where[name]}")
        found = module if name == where[name] else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        return sorted({*where, *(n for n in vars(sys.modules[package]) if n.startswith("__"))})

    return load, listed


def _import(name: str) -> ModuleType:
    """Import a module. Inside `trio.run`, Ctrl-C waits until that is done.

    Extension modules were seen to crash if Ctrl-C interrupted their import.
    """
    trio = sys.modules.get("trio")
    if trio is None:
        return importlib.import_module(name)
    protected: Callable[[], ModuleType] = trio.lowlevel.enable_ki_protection(
        lambda: importlib.import_module(name)
    )
    return protected()
