"""The README's steps, in a fresh checkout and a shell that knows nothing of our environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served_model import served

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
STEPS = [
    line.partition(" # ")[0].rstrip()
    for line in README.split("```sh\n")[1].split("```")[0].splitlines()
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the files that git knows."""
    folder = tmp_path_factory.mktemp("home") / "hermes"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def shell(checkout, wheels):
    """Run a command in the checkout; packages come from a folder instead of the network."""
    environment = {
        "HOME": str(checkout.parent),
        "LANG": "C.UTF-8",
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }

    def run(command, text="", **extra):
        return subprocess.run(
            ["sh", "-c", command], input=text, capture_output=True, text=True, timeout=300,
            check=False, cwd=checkout, env={**environment, **extra},
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def first_run(shell):
    """The first step: everything else comes after it."""
    assert README.index("make run ") < README.index(".venv/bin/hermes setup")
    return shell("make run", "hello\n/new\n")


def test_the_first_step_shows_progress_installs_the_bot_and_opens_a_chat(
    first_run, shell, checkout
):
    assert (first_run.returncode, first_run.stderr) == (0, "")
    installing, _, chat = first_run.stdout.partition("Successfully installed ")
    assert installing.startswith("Installing Hermes into .venv; this happens once.\n")
    assert installing.count("\n") > 20  # a line for each package
    assert "pytest" not in chat
    assert chat.endswith("\nNew session.\n")
    again = shell("make run ARGS='--db chat-2.db'", "hello\n")
    assert again.stdout.startswith("You said: hello\n")
    assert (checkout / "chat-2.db").exists()


def test_the_next_steps_connect_a_model_and_check_everything(first_run, shell, checkout):
    assert STEPS[:3] == ["make run", ".venv/bin/hermes setup", ".venv/bin/hermes doctor"]
    with served() as model:
        done = shell(STEPS[1], f"6\n{model.openai_url}\n\nlittle\n", OLLAMA_HOST="127.0.0.1:1")
        assert (done.returncode, done.stderr) == (0, "")
        command = done.stdout.splitlines()[-1].removeprefix("To chat: ")
        assert command == ".venv/bin/hermes"
        assert shell(command, "hello\n").stdout == "good evening\n"
        done = shell(STEPS[2])
        assert (done.returncode, done.stderr) == (0, "")
        assert "PROBLEM" not in done.stdout
    shutil.rmtree(checkout.parent / ".config")


def test_a_new_user_can_take_every_step_at_a_terminal(prove):
    """`--prove` installs the packages, too."""
    command = [sys.executable, "-W", "error", str(ROOT / "docs" / "walk.py"), "--check"]
    done = subprocess.run(
        [*command, *([] if prove else ["--installed"])], cwd=ROOT, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ok ") == len(STEPS) + 1  # and the example with tools


def test_a_message_names_a_command_that_works_as_written(first_run, shell, checkout):
    """Without `hermes` on the path, messages name the program as it was started."""
    shutil.copy(ROOT / "tests" / "fixtures" / "previous_release.db", checkout / "old.db")
    done = shell(".venv/bin/hermes store list --db old.db")
    assert done.returncode == 3
    command = done.stderr.rstrip().partition("run: ")[2]
    assert command.startswith(".venv/bin/hermes store migrate --db ")
    assert shell(command).returncode == 0
    assert shell(".venv/bin/hermes store list --db old.db").returncode == 0
