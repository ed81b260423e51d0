"""What an import has to say beside its numbers: each remark with a code, and what it is about."""

from __future__ import annotations

import attrs

SENTENCES = {
    "archived": "is archived there; it is listed here, and marked in its model_config",
    "bad-file": "cannot be read as JSON and was passed over",
    "bad-id": "has an id that cannot be one here and was not taken",
    "bad-json": "holds JSON that cannot be read; kept as text",
    "bad-number": "counts something impossible; taken as 0",
    "bad-route": "is no route and was not taken",
    "bad-time": "has a time that cannot be; the one before it was taken",
    "changed-here": "grew there and was changed here too; ours was left as it is",
    "cycle": "is its own ancestor; taken without its parent",
    "delegate": "is the work of a subagent; taken as kind import under its parent",
    "finalized": "was finalized there; it is over, and no hook hears of it again",
    "fork": "continues a session that another one continues too; kept as kind fork",
    "ghost": "is empty, ended and without a title; not taken",
    "id-in-use": "has the id of another session here; not taken",
    "key-kept": "has a session_key that could not be translated; kept as it is",
    "key-dropped": "has a session_key that cannot be one here; taken without it",
    "model-override": "has a model of its own choice there; not taken",
    "no-session": "belong to no session; not taken",
    "not-utf8": "holds text that is not UTF-8; what could not be read is marked with U+FFFD",
    "parent-missing": "has a parent that is not there; taken without it",
    "platform-id-twice": "shows a platform's message twice; the second was taken without its id",
    "resume-pending": "was interrupted by a restart there; it goes on at the next message",
    "route-ended": "leads to a session that has ended; the next message begins a new one",
    "route-in-use": "leads elsewhere here; ours was left as it is",
    "route-without-session": "leads to a session that was not taken",
    "route-twice": "has an older route of another folder; not taken",
    "suspended": "was suspended there; here it goes on at the next message",
    "title-cut": "has a title of more than 100 characters; it was cut",
    "title-renamed": "has a title that another session holds; it was numbered",
    "too-big": "has a message of more than 64 MiB; not taken",
}  # fmt: skip


@attrs.frozen
class Note:
    """A remark about one thing."""

    code: str
    subject: str
    detail: str = ""
    count: int = 1

    @property
    def sentence(self) -> str:
        return SENTENCES[self.code]


class ImportNotes:
    """Remarks, each once; `now` is the time of the import."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._found: dict[tuple[str, str, str], Note] = {}

    def add(self, code: str, subject: str, detail: str = "", count: int = 1) -> None:
        """Note it, or count it once more."""
        name = (code, subject, detail)
        before = self._found.get(name)
        total = count + (0 if before is None else before.count)
        self._found[name] = Note(code, subject, detail, total)

    def all(self) -> list[Note]:
        """In the order in which they were met."""
        return list(self._found.values())
