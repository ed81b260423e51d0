"""`lazy_names`: names are imported on first use, and unknown ones fail like any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hermes._lazy import lazy_names

PACKAGE = {
    "__init__.py": (
        "from hermes._lazy import lazy_names\n"
        "__all__ = ['One', 'Two', 'part']\n"
        "__getattr__, __dir__ = lazy_names(__name__, {'module': 'One Two', 'part': 'part'})\n"
    ),
    "module.py": "class One: ...\nclass Two: ...\n",
    "part.py": "VALUE = 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import lazy_package

    yield lazy_package
    for name in [name for name in sys.modules if name.split(".")[0] == "lazy_package"]:
        del sys.modules[name]


def test_a_module_is_imported_with_its_first_name(package):
    assert "lazy_package.module" not in sys.modules
    one = package.One
    assert sys.modules["lazy_package.module"].One is one
    assert vars(package)["One"] is one  # not looked up again
    assert "Two" not in vars(package)


def test_a_submodule_can_be_a_name(package):
    assert package.part.VALUE == 1
    assert "lazy_package.module" not in sys.modules


def test_names_are_listed_before_they_are_imported(package):
    assert {"One", "Two", "part", "__name__"} <= set(dir(package))
    assert "lazy_names" not in dir(package)
    assert "lazy_package.module" not in sys.modules


def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'Three'"):
        _ = package.Three
    with pytest.raises(ImportError):
        from lazy_package import Three  # noqa: F401


def test_a_package_without_names_lists_only_its_own():
    load, listed = lazy_names("hermes", {})
    assert "__name__" in listed()
    with pytest.raises(AttributeError):
        load("anything")


def test_importing_hermes_imports_neither_apsw_nor_an_http_client():
    code = "import sys, hermes; print([m for m in ('apsw', 'httpx2', 'mcp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
