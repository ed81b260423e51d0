"""Import hermes-agent homes, and look at the result."""

from __future__ import annotations

import subprocess

from hermes.store.cli.opening import run_chunked
from hermes.store.import_hermes_agent.importer import import_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.source import open_home
from tests.support.agent_homes import NOW, Home


def run_import(store, home):
    """Import a home, which its writer may have open as a gateway would. Return the report."""
    folder = home.path if isinstance(home, Home) else home
    with open_home(folder, ImportNotes(NOW)) as opened:
        return run_chunked(store, import_home(opened), lambda _: None)


def codes(report):
    """Return the codes of the notes of a report."""
    return sorted({note.code for note in report.notes})


def dump(store):
    """Return the rows of all tables that an import may change."""
    tables = ("sessions", "session_texts", "all_messages", "usage", "routes", "meta")
    return store.snapshot(
        lambda tx: {name: tx.all(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables}
    )


def texts(store, session_id, **options):
    """Return the contents of the messages of a session."""
    return [message.content for message in store.get_messages(session_id, **options)]


def checksums(folder):
    """Return the checksums of all files; another process reads them, to keep our file locks."""
    command = "sha256sum $(find . -type f | sort)"
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True).stdout
