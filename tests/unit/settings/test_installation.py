"""The commands in messages fit the way in which this copy was installed and started."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from hermes.settings.installation import command, install_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Let the distribution come from elsewhere: `installed(direct_url)`."""

    def come_from(origin):
        folder = tmp_path / "site" / "hermes_runtime-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes-runtime\n")
        if origin is not None:
            text = origin if isinstance(origin, str) else json.dumps(origin)
            (folder / "direct_url.json").write_text(text)
        monkeypatch.syspath_prepend(str(folder.parent))

    return come_from


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, ["hermes-runtime[bot,http,mcp,otel]"]),
        ("damaged", ["hermes-runtime[bot,http,mcp,otel]"]),
        ("[]", ["hermes-runtime[bot,http,mcp,otel]"]),
        ({"url": "file:///srv/my%20code", "dir_info": {}}, ["/srv/my code[bot,http,mcp,otel]"]),
        (
            {"url": "file:///srv/code", "dir_info": {"editable": True}},
            ["--editable", "/srv/code[bot,http,mcp,otel]"],
        ),
        (
            {"url": "https://x.example/h.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            [f"hermes-runtime[bot,http,mcp,otel] @ git+https://x.example/h.git@{COMMIT}"],
        ),
        (
            {
                "url": "https://x.example/h.git",
                "vcs_info": {"vcs": "git", "requested_revision": "v2", "commit_id": COMMIT},
            },
            ["hermes-runtime[bot,http,mcp,otel] @ git+https://x.example/h.git@v2"],
        ),
        (
            {"url": "file:///tmp/hermes_runtime.whl", "archive_info": {}},
            ["hermes-runtime[bot,http,mcp,otel] @ file:///tmp/hermes_runtime.whl"],
        ),
    ],
)
def test_an_extra_is_installed_from_where_this_copy_came_from(installed, origin, requirement):
    installed(origin)
    words = shlex.split(install_command("bot"))
    assert words[1:4] == ["-m", "pip", "install"]
    assert words[4:] == requirement


def test_a_command_names_the_script_as_it_was_started(tmp_path, monkeypatch):
    folder = tmp_path / "my bin"
    folder.mkdir()
    script = folder / "hermes"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert command("store list") == f"'{script}' store list"
    monkeypatch.setenv("PATH", str(folder))
    assert command() == "hermes"
    (tmp_path / "hermes").write_text("#!/bin/sh\n")  # another one is first on the path
    (tmp_path / "hermes").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{folder}")
    assert command() == f"'{script}'"


def test_a_command_of_another_program_uses_its_python(tmp_path, monkeypatch):
    python = Path(sys.executable)
    monkeypatch.setattr(sys, "argv", ["my_program.py"])
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert command("setup") == f"{shlex.quote(str(python))} -m hermes setup"
    monkeypatch.setenv("PATH", str(python.parent))
    assert command("setup") == "python -m hermes setup"
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(python.parent.parent)
    assert command("setup") == "bin/python -m hermes setup"
