"""Peers live in environments of their own; who cannot be installed is skipped with a sentence."""

from __future__ import annotations

import pytest

from bench import peers_env


@pytest.fixture
def no_registry(monkeypatch):
    """As on a machine that reaches none."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.mark.usefixtures("no_registry")
def test_who_cannot_be_installed_is_skipped_once_and_leaves_nothing(tmp_path, capsys):
    assert peers_env.interpreter("pykka", tmp_path) is None
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("pykka is skipped: it could not be installed (")
    assert list(tmp_path.iterdir()) == []
    assert peers_env.interpreter("pykka", tmp_path) is None
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_registry")
def test_an_environment_without_its_python_is_made_again(tmp_path, capsys):
    folder = tmp_path / "xoscar"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/no/such/python")
    (folder / "installed").write_text(" ".join(peers_env.PACKAGES["xoscar"]))
    assert peers_env.interpreter("xoscar", tmp_path) is None
    assert "installing xoscar" in capsys.readouterr().err


def test_what_is_installed_is_used_as_it_is(tmp_path, capsys):
    folder = tmp_path / "pykka"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.touch()
    (folder / "installed").write_text(" ".join(peers_env.PACKAGES["pykka"]))
    assert peers_env.interpreter("pykka", tmp_path) == python
    assert capsys.readouterr().err == ""
