"""The input history at a terminal: prompt_toolkit's file format, readable by its owner only."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory

from hermes.sanitize import scrub

log: logging.Logger = logging.getLogger(__name__)

MAX_ENTRIES = 1000
MAX_ENTRY = 10_000


def is_recorded(text: str) -> bool:
    """Return whether a line goes into the history; a leading space keeps it out."""
    return bool(text.strip()) and not text.startswith(" ") and len(text) <= MAX_ENTRY


class ConsoleHistory(FileHistory):
    """A bounded history file with mode 0600.

    If the file cannot be read or written, that is logged and the chat continues without it.
    """

    def __init__(self, path: Path, max_entries: int = MAX_ENTRIES) -> None:
        super().__init__(str(path))
        self._path = path
        self._max_entries = max_entries

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first."""
        try:
            return self._load()
        except OSError as error:
            log.warning("cannot read the console history: %s", error)
            return []

    def _load(self) -> list[str]:
        """Read the entries, and rewrite a file of an old format or with too many entries."""
        if not self._path.exists():
            return []
        old = _old_entries(self._path.read_bytes())
        entries = [*super().load_history_strings(), *reversed(old)]
        recent = entries[: self._max_entries]
        if old or len(entries) > 2 * self._max_entries:
            self._rewrite(recent)
        return recent

    def _rewrite(self, entries: list[str]) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(OSError):
            with open(new, "wb", opener=_private):
                pass
            file = FileHistory(str(new))
            for entry in reversed(entries):
                file.store_string(entry)
            new.replace(self._path)

    def store_string(self, string: str) -> None:
        """Append an entry to the file."""
        try:
            with open(self._path, "ab", opener=_private):
                pass  # creates the file, or makes an existing one private
            super().store_string(string)
        except OSError as error:
            log.warning("cannot write the console history: %s", error)


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o600)
    return descriptor


def _old_entries(content: bytes) -> list[str]:
    """Return the entries in the format of earlier versions, one JSON string per line."""
    entries = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            if line.startswith(b'"') and isinstance(text := json.loads(line), str):
                entries.append(scrub(text))
    return entries
