"""The console sessions in docs/admin.md, upgrading.md and migrating.md show the real output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import shell
from tests.support.agent_homes import Home
from tests.support.store_cli import NOW

ROOT = Path(__file__).parents[3]


def sessions(page):
    """Yield the commands of a page, each with the output that the page shows."""
    text = (ROOT / "docs" / page).read_text()
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def normalized(text):
    """Return the output without checksums, and without what depends on the schema version."""
    return re.sub(r"\d+\.\d KiB|\(version \d+\)|\b[0-9a-f]{16}\b", "…", text)


def check_page(page, folder):
    for command, output in sessions(page):
        python = f"PYTHONPATH={ROOT} {sys.executable} "
        done = shell.run(command.replace("python ", python, 1), folder)
        printed = done.stdout.replace(str(folder), "/home/you")
        assert (done.stderr, normalized(printed)) == ("", normalized(output)), command


@pytest.mark.parametrize(("page", "commands"), [("admin.md", 14), ("upgrading.md", 3)])
def test_a_page_with_its_own_database_shows_the_real_output(tmp_path, page, commands):
    text = (ROOT / "docs" / page).read_text()
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    assert len(list(sessions(page))) == commands
    check_page(page, tmp_path)


def test_the_migration_page_shows_the_real_output(tmp_path):
    home = Home(tmp_path / ".hermes")
    talk, long = "20260102_030405_0a1b2c3d", "20260102_040000_abcdef"
    texts = ("What time is it?", "Noon.", "And now?", "Later.")
    home.session(talk, *texts, source="telegram", title="The time")
    home.say(talk, "a slip", active=0)
    home.session(long, "Think.", "Yes.", ended_at=NOW - 5, end_reason="compression")
    home.session("20260102_050000_123456", "It was thought.", "Go on.", parent_session_id=long)
    fork = home.session("20260102_050000_654321", "Lost.", parent_session_id=long)
    home.run(f"UPDATE sessions SET ended_at = 1, end_reason = 'ws_orphan_reap' WHERE id = '{fork}'")
    home.run("UPDATE messages SET timestamp = timestamp - 32600000")
    home.run("UPDATE sessions SET started_at = started_at - 32600000")
    key = "agent:main:telegram:dm:1"
    home.routing({key: home.entry(1, talk, suspended=True)})
    home.close()
    assert len(list(sessions("migrating.md"))) == 4
    check_page("migrating.md", tmp_path)
