"""Completions for the input line: commands, and sessions to resume."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hermes.actors.commands import COMMANDS
from hermes.adapters.console.chat import NamedSession
from hermes.sanitize import sanitize, shorten
from hermes.texts import ENGLISH, help_line

PLATFORM = "console"
RESUME = "/resume "
ATTACH = "/attach "
MAX_SUMMARY = 60


@attrs.frozen
class Choice:
    """A completion: `text` takes the place of the last `replaces` characters."""

    text: str
    replaces: int
    summary: str


def choices(line: str, sessions: Sequence[NamedSession]) -> list[Choice]:
    """Return the completions of the text before the cursor."""
    if "\n" in line or not line.startswith("/"):
        return []
    if line.lower().startswith(RESUME):
        return _session_choices(line[len(RESUME) :], sessions)
    prefix = line[1:].lower()
    return [
        Choice(f"/{name}", len(line), help_line(ENGLISH, name)[1])
        for name, command in COMMANDS.items()
        if name.startswith(prefix) and command.platform in {None, PLATFORM}
    ]


def _session_choices(prefix: str, sessions: Sequence[NamedSession]) -> list[Choice]:
    found = []
    for each in sessions:
        title, id_ = each.title or "", each.id
        if title.lower().startswith(prefix.lower()) or id_.startswith(prefix):
            by_title = title and title == sanitize(title) and not title.isdigit()
            text, summary = (title, id_) if by_title else (id_, shorten(title, MAX_SUMMARY))
            found.append(Choice(text, len(prefix), summary))
    return found
