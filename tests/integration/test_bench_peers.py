"""Peers have environments of their own; one that cannot be installed is skipped."""

from __future__ import annotations

import pytest

from bench import peers_env


@pytest.fixture
def no_registry(monkeypatch):
    """A machine without access to a package registry."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.mark.usefixtures("no_registry")
def test_a_peer_that_cannot_be_installed_is_skipped_once_and_leaves_nothing(tmp_path, capsys):
    """An environment that has lost its interpreter is created again, which fails here."""
    folder = tmp_path / "pykka"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/no/such/python")
    (folder / "installed").write_text(" ".join(peers_env.PACKAGES["pykka"]))
    assert peers_env.interpreter("pykka", tmp_path) is None
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("installing pykka==")
    assert last.startswith("pykka is skipped: it could not be installed (")
    assert list(tmp_path.iterdir()) == []
    assert peers_env.interpreter("pykka", tmp_path) is None
    assert capsys.readouterr().err == ""


def test_an_installed_peer_is_used(tmp_path, capsys):
    folder = tmp_path / "pykka"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.touch()
    (folder / "installed").write_text(" ".join(peers_env.PACKAGES["pykka"]))
    assert peers_env.interpreter("pykka", tmp_path) == python
    assert capsys.readouterr().err == ""
