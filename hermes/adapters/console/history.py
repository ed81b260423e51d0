"""The lines that were typed, kept for the next start: in a file for its owner alone, bounded."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

import attrs

log = logging.getLogger(__name__)

KEPT = 1000
MAX_ENTRY = 10_000


@attrs.define
class Remembered:
    """A file with a line of JSON for each; what begins with a blank is not remembered.

    A file that cannot be read or written costs the history, and nothing else.
    """

    path: Path | None
    kept: int = KEPT

    def load(self) -> list[str]:
        """What is remembered, oldest first; a file that has grown is cut back."""
        try:
            lines = [] if self.path is None else self.path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            log.warning("the history of the console cannot be read: %s", error)
            lines = []
        texts = [text for text in map(_decoded, lines) if text is not None][-self.kept :]
        if len(lines) > 2 * self.kept:
            self._replace(b"".join(map(_encoded, texts)))
        return texts

    def takes(self, text: str) -> bool:
        """Whether a text is one to remember."""
        return bool(text.strip()) and not text.startswith(" ") and len(text) <= MAX_ENTRY

    def add(self, text: str) -> None:
        """Remember a text."""
        if self.path is None or not self.takes(text):
            return
        try:
            with open(self.path, "ab", opener=_private) as file:
                file.write(_encoded(text))
        except OSError as error:
            log.warning("the history of the console cannot be written: %s", error)

    def _replace(self, content: bytes) -> None:
        assert self.path is not None
        new = self.path.with_name(f"{self.path.name}.new")
        with contextlib.suppress(OSError):
            with open(new, "wb", opener=_private) as file:
                file.write(content)
            new.replace(self.path)


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o600)  # it may be older than this rule
    return descriptor


def _encoded(text: str) -> bytes:
    return json.dumps(text).encode() + b"\n"


def _decoded(line: bytes) -> str | None:
    """A line of the file; None for one that a crash has cut, or somebody has edited."""
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
