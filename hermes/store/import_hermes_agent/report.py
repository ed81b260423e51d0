"""Notes of an import: what was changed or skipped, each with a code and its subject."""

from __future__ import annotations

import attrs

SENTENCES = {
    "archived": "is archived in hermes-agent; imported as archived, so that lists leave it out",
    "bad-file": "is not valid JSON; ignored",
    "bad-id": "has an id that is not valid in Hermes; skipped",
    "bad-json": "contains invalid JSON; kept as text",
    "bad-number": "has an impossible number; imported as 0",
    "bad-route": "is not a valid route; skipped",
    "bad-time": "has an invalid timestamp; replaced by the previous one",
    "changed-here": "was changed in hermes-agent and in this database; left unchanged",
    "cycle": "is its own ancestor; imported without its parent",
    "delegate": "belongs to a subagent; imported with the kind subagent, which lists leave out",
    "finalized": "was finalized in hermes-agent; imported as ended, and no hook runs for it",
    "fork": "is a second continuation of its parent; imported as a fork",
    "ghost": "is empty, ended and untitled; skipped",
    "id-in-use": "has the id of another session in this database; skipped",
    "key-kept": "has a session_key that could not be translated; kept as it is",
    "key-dropped": "has a session_key that is not valid in Hermes; imported without it",
    "model-override": "has a model override in hermes-agent; the override was skipped",
    "no-session": "belong to no session; skipped",
    "not-utf8": "contains text that is not UTF-8; invalid bytes replaced by U+FFFD",
    "parent-missing": "has a parent that does not exist; imported without it",
    "resume-pending": "was interrupted by a restart; it continues with the next message",
    "route-ended": "has a route to an ended session; the next message starts a new session",
    "route-in-use": "has another route in this database; left unchanged",
    "route-without-session": "has a route to a session that was not imported; skipped",
    "route-twice": "has an older route of another directory; that one was skipped",
    "suspended": "was suspended; it continues with the next message",
    "title-cut": "has a title of more than 100 characters; shortened",
    "title-renamed": "has the title of another session; numbered",
    "too-big": "has a message of more than 64 MiB; the message was skipped",
}
"""What the note with each code says about its subject."""


@attrs.frozen
class Note:
    """What was done to one session, route or file; `count` says how often."""

    code: str
    subject: str
    detail: str = ""
    count: int = 1

    @property
    def sentence(self) -> str:
        return SENTENCES[self.code]


class ImportNotes:
    """Collects notes; the same note again is only counted. `now` is the time of the import."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._notes: dict[tuple[str, str, str], Note] = {}

    def add(self, code: str, subject: str, detail: str = "", count: int = 1) -> None:
        """Add a note, or count it once more."""
        name = (code, subject, detail)
        earlier = self._notes.get(name)
        total = count + (0 if earlier is None else earlier.count)
        self._notes[name] = Note(code, subject, detail, total)

    def all(self) -> list[Note]:
        """Return the notes in the order in which they were added."""
        return list(self._notes.values())
