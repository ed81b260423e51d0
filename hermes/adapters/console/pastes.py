"""Long pastes in the input line: a short form while editing, the text itself when it is sent."""

from __future__ import annotations

MAX_LINES = 10
MAX_CHARACTERS = 2000


class Pastes:
    """Remembers the long pastes of a chat, by their short form."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def collapse(self, text: str) -> str:
        """Return what the input line shows of a paste: the text, or a short form of a long one."""
        lines = text.count("\n") + 1
        if lines <= MAX_LINES and len(text) <= MAX_CHARACTERS:
            return text
        short = f"[paste {len(self._texts) + 1}: {lines} lines, {len(text)} characters]"
        self._texts[short] = text
        return short

    def expand(self, line: str) -> str:
        """Return a line with the pastes that it contains."""
        for short, text in list(self._texts.items()):  # called in another thread
            line = line.replace(short, text)
        return line

    def shown(self, text: str) -> str:
        """Return a message with its pastes in their short form."""
        for short, paste in self._texts.items():
            text = text.replace(paste, short)
        return text
