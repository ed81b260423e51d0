"""pip, pipx and uv install a working command, which names the extras that it misses."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import attrs
import pytest

import hermes
from tests.support.offline_answers import answer_to

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MISSING = re.compile(r"\[bot\] is not installed; to install it: (.+)\n")


@attrs.frozen
class Machine:
    """A user's machine: an empty home, no environment of ours, and wheels instead of a network."""

    home: Path
    wheels: Path

    @property
    def bin(self):
        return self.home / "bin"

    def run(self, command, text=""):
        """Run a command in a shell."""
        environment = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIPX_BIN_DIR": str(self.bin),
            "PIPX_DEFAULT_PYTHON": sys.executable,
            "PIP_NO_COMPILE": "1",
            "UV_CONFIG_FILE": str(self.home / "uv.toml"),
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_TOOL_BIN_DIR": str(self.bin),
        }
        return subprocess.run(
            ["sh", "-c", command], input=text, capture_output=True, text=True, timeout=300,
            check=False, cwd=self.home, env=environment,
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path, wheels):
    (tmp_path / "bin").mkdir()
    (tmp_path / "uv.toml").write_text(f"no-index = true\nfind-links = ['{wheels}']\n")
    return Machine(tmp_path, wheels)


def with_pip(machine):
    with_uv(machine)  # it is faster than `python -m venv`
    done = machine.run("uv venv venv && uv pip install --python venv/bin/python pip; rm bin/uv")
    assert done.returncode == 0, done.stderr
    for name in ("hermes", "hermes-runtime"):
        (machine.bin / name).symlink_to(machine.home / "venv" / "bin" / name)
    return f"{machine.home}/venv/bin/pip install"


def with_pipx(machine):
    (machine.bin / "pipx").symlink_to(BIN / "pipx")
    return "pipx install"


def with_uv(machine):
    (machine.bin / "uv").symlink_to(BIN / "uv")
    return "uv tool install"


@pytest.mark.parametrize("installer", [with_pip, with_pipx, with_uv])
def test_the_command_works_and_names_a_missing_extra(machine, installer):
    install = installer(machine)
    done = machine.run(f"{install} {ROOT}")
    assert done.returncode == 0, done.stderr
    for name in ("hermes", "hermes-runtime"):
        done = machine.run(f"{name} --version")
        assert (done.stdout, done.stderr) == (f"hermes {hermes.__version__}\n", "")
    done = machine.run("hermes", "hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    command = MISSING.fullmatch(done.stderr)[1]
    assert command.endswith(f" '{ROOT}[bot]'")
    done = machine.run("hermes doctor --offline")
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"^PROBLEM +extras +\[bot\] is not installed", done.stdout, re.MULTILINE)
    assert re.findall(r"\[(\w+)\] is not installed", done.stdout) == ["bot", "http", "mcp", "otel"]
    done = machine.run(command)  # as it is written
    assert done.returncode == 0, done.stderr
    done = machine.run("hermes", "hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, answer_to("hello", "hermes"), "")
    assert (machine.home / ".local/share/hermes/state.db").exists()
    done = machine.run("hermes doctor --offline")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    python = (machine.bin / "hermes").resolve().with_name("python")
    done = machine.run(f"{python} -m hermes --version")
    assert done.stdout == f"hermes {hermes.__version__}\n"


def metadata_of(machine, project):
    """Build the wheel of a project, and return its metadata."""
    with_uv(machine)
    done = machine.run(f"uv build --quiet --wheel --out-dir dist {project}")
    assert done.returncode == 0, done.stderr
    [wheel] = (machine.home / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_file_of_the_page(machine):
    metadata_of(machine, ROOT)
    [wheel] = (machine.home / "dist").glob("*.whl")
    folder = "hermes/adapters/http/web/page/"
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name.removeprefix(folder): archive.read(name)
            for name in archive.namelist()
            if name.startswith(folder)
        }
    files = {
        path.relative_to(ROOT / folder).as_posix(): path.read_bytes()
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert "index.html" in packed
    assert packed == files


def test_the_metadata_has_no_address_that_does_not_exist(machine):
    metadata = metadata_of(machine, ROOT)
    fields = ("Author", "Classifier", "Keywords", "License-Expression", "Summary")
    assert [field for field in fields if not metadata[field]] == []
    assert (metadata["Project-URL"], metadata["Dynamic"]) == (None, None)
    text = metadata.get_payload()
    assert re.findall(r"\]\((?!https://|#)", text) == []
    assert "runtime guide (`docs/runtime.md`)" in text
    assert "files that this page names are in the source distribution" in text


def test_with_a_public_repository_the_addresses_are_complete_and_the_links_absolute(machine):
    project = machine.home / "project"
    (project / "hermes").mkdir(parents=True)
    (project / "hermes" / "__init__.py").touch()
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, project)
    settings = (ROOT / "pyproject.toml").read_text()
    assert '\nrepository = ""' in settings
    public = settings.replace('\nrepository = ""', '\nrepository = "https://example.org/hermes"')
    (project / "pyproject.toml").write_text(public)
    metadata = metadata_of(machine, project)
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert addresses.keys() == {"Homepage", "Documentation", "Changelog", "Source"}
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    [picture] = [link for link in links if link.endswith(".svg")]
    assert picture.endswith("/raw/main/docs/chat.svg")  # the image, not a page that shows it


def test_nothing_but_the_standard_library_is_imported_for_the_version():
    code = (
        "import sys; from hermes.cli.main import main; main(['--version']); main(['--help']); "
        "print(sorted({'trio', 'msgspec', 'attrs', 'apsw', 'argparse'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
