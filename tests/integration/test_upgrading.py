"""The commands of docs/upgrading.md, typed as they are written, on a database of an old version."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from pathlib import Path

import pytest

from hermes.store import SessionStore
from hermes.store.sqlite.schema import MIGRATIONS
from tests.support import shell

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "upgrading.md").read_text()
OLD = ROOT / "tests" / "fixtures" / "previous_release.db"


def commands(heading):
    """Return the shell commands of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [block] = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return block


class Machine:
    """A folder with a database, and a shell in it."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, command):
        done = shell.run(f"set -e\n{command}", self.folder)
        assert (done.returncode, done.stderr) == (0, ""), command
        return done.stdout

    def say(self, text):
        """Start a bot on the database, let it answer, and stop it."""
        done = shell.run("hermes --db state.db", self.folder, f"{text}\n")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def recall(self):
        return self.say("what did I say about bees")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_way_back_restores_the_database_from_before_the_migration(machine):
    shutil.copy(OLD, machine.folder / "state.db")
    refused = shell.run("hermes store list --db state.db", machine.folder)
    assert "run: hermes store migrate" in refused.stderr
    assert machine.run("hermes store migrate --dry-run --db state.db").startswith("Would migrate")
    machine.say("remember that bees dance")  # the start migrates it
    [backup] = machine.folder.glob("state.db.schema*.backup")
    assert machine.run("hermes store migrate --dry-run --db state.db").startswith("Nothing to do")
    before = backup.read_bytes()
    machine.run(commands("Going back").replace("state.db.schemaN.backup", backup.name))
    assert (machine.folder / "state.db").read_bytes() == before
    again = shell.run("hermes store list --db state.db", machine.folder)
    assert again.stderr == refused.stderr  # that of the old version, complete
    assert machine.run("hermes store migrate --db state.db").startswith("Migrated")
    assert "bees dance" not in machine.recall()


def test_a_migration_is_logged_and_a_new_database_is_not(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shutil.copy(OLD, tmp_path / "state.db")
    for name in ("state.db", "state.db", "new.db"):
        with SessionStore(tmp_path / name):
            pass
    [line] = caplog.messages
    assert re.fullmatch(rf"migrated the database from schema \d+ to {len(MIGRATIONS)}", line)


def test_the_line_for_cron_makes_a_backup_that_can_be_restored_and_moved(machine, tmp_path_factory):
    machine.say("remember that bees dance")
    [line] = re.findall(r"^0 3 \* \* \* (.+)$", PAGE, re.MULTILINE)
    command = line.replace("\\%", "%").replace("/opt/hermes/bin/hermes ", "hermes ")
    machine.run(command.replace("/var/lib/hermes", shlex.quote(str(machine.folder))))
    [backup] = machine.folder.glob("backup-????-??-??.db")
    backup.rename(machine.folder / "copy.db")
    machine.say("remember that bees sleep")
    machine.run("hermes store export --all -o all.jsonl --db state.db")
    left = {"state.db-wal", "state.db-shm"}  # by a kill; not for the restored database
    for name in left:
        (machine.folder / name).write_bytes(b"left behind")
    machine.run(commands("Restoring a backup"))
    assert left <= {each.name for each in (machine.folder / "replaced").iterdir()}
    assert re.findall(r"bees (\w+)$", machine.recall(), re.MULTILINE) == ["dance"]
    imported = machine.run("hermes store import all.jsonl --db state.db")
    assert imported.endswith("Already present: 1 session.\n")  # an export is not merged
    other = Machine(tmp_path_factory.mktemp("other"))
    shutil.copy(machine.folder / "copy.db", other.folder / "state.db")
    assert other.recall() == "You said about bees:\n- remember that bees dance\n"
