"""The commands and the program in docs/cluster.md work as shown, on a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from hermes.store import SessionStore
from hermes.store.postgres.address import OURS
from tests.support.folders import quick_folder
from tests.support.postgres_accounts import open_account
from tests.support.shell import installed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"
NEW = "CREATE DATABASE moved OWNER ann"


def blocks(language):
    """Return the code blocks of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def account():
    with open_account() as found:
        with psycopg.connect(found.admin, autocommit=True) as db:
            db.execute("DROP ROLE ann")
            for statement in "".join(blocks("sql")).split(";")[:-1]:
                db.execute(statement)
            db.execute(NEW)
        yield found


@pytest.fixture
def machine(account):
    """A folder as home, in which the command `hermes` works, and a function that runs a line."""
    with quick_folder() as folder:
        (folder / ".pgpass").write_text("*:*:*:ann:choose one\n")
        (folder / ".pgpass").chmod(0o600)
        for settings in blocks("toml"):
            (folder / "hermes.toml").write_text(here(settings, account))
        with SessionStore(folder / "state.db") as store:
            store.create_session("s", "cli")
        environment = installed(folder)
        environment["PATH"] = f"{account.programs}:{environment['PATH']}"

        def run(command):
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
                check=False,
            )  # fmt: skip

        yield run


def here(text, account):
    return text.replace("db.example.com", account.host)


def test_each_command_of_the_page_works(account, machine):
    lines = re.findall(r"^\$ (.+)$", "".join(blocks("console")), re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        done = machine(["sh", "-c", here(line, account)])
        stopped = line == "hermes status"  # no bot runs
        assert (done.returncode, done.stderr) == (int(stopped), ""), line


def test_the_program_of_the_page_runs(account, machine):
    [program] = blocks("python")
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = machine([sys.executable, "-W", "error", "-c", path + here(program, account)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("You said: hello\n")


def test_the_page_lists_the_parameters_of_a_url():
    table = PAGE.read_text().split("## The URL")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == OURS
