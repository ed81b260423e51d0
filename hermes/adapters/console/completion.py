"""What a line may go on with: commands, and conversations to resume."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hermes.actors.session.commands import COMMANDS
from hermes.messages import SessionSummary
from hermes.sanitize import sanitize, shorten

RESUME = "/resume "
SHOWN = 60


@attrs.frozen
class Choice:
    """A way to go on: what it inserts in place of the last `replaces` characters."""

    text: str
    replaces: int
    summary: str


def choices(line: str, sessions: Sequence[SessionSummary]) -> list[Choice]:
    """The ways to complete the text before the cursor."""
    if "\n" in line or not line.startswith("/"):
        return []
    if line.lower().startswith(RESUME):
        return _sessions(line[len(RESUME) :], sessions)
    begun = line[1:].lower()
    return [
        Choice(f"/{name}", len(line), command.summary)
        for name, command in COMMANDS.items()
        if name.startswith(begun)
    ]


def _sessions(begun: str, sessions: Sequence[SessionSummary]) -> list[Choice]:
    found = []
    for each in sessions:
        title, id_ = each.session.title or "", each.session.id
        if title.lower().startswith(begun.lower()) or id_.startswith(begun):
            by_title = title and title == sanitize(title) and not title.isdigit()
            text, summary = (title, id_) if by_title else (id_, shorten(title, SHOWN))
            found.append(Choice(text, len(begun), summary))
    return found
