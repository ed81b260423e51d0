"""API keys: a value that never shows itself, and redaction of text that looks like a key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import attrs

from hermes.redaction.stream import REDACTED, IncrementalStream, RedactingStream

# At least 16 characters with a digit: "key-exchange", "sk-learn" and "Bearer tokens" are ordinary
# words. The digit is looked for in a bounded number of characters: in "sk-sk-sk-...", which has a
# possible beginning everywhere, looking further would take quadratic time.
_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)(?=[\w-]{0,64}?\d)[\w-]{16,}+"
    r"|\bkey[-_](?=[a-z]{0,64}\d)[a-z0-9]{16,}+"
    r"|\bBearer\s++(?=[\w.~+/=-]{0,256}?\d)[\w.~+/=-]{16,}+"
    r"|(?<![0-9])[0-9]{5,}+:[\w-]{30,}+",  # a Telegram bot token, also inside a URL
    re.IGNORECASE,
)
# The end of a text that later chunks could complete to a key, or to a longer one. The patterns are
# for the reversed text, where this end is the beginning, so that they are tried at one place only.
_PARTIAL_KEYS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"[\w-]*(?:[-_](?:ks|kp|kr|iax|ksg)|azIA)\b",
        r"[a-z0-9]*+[-_]yek\b",
        r"[\w.~+/=-]*+\s++reraeB\b",
        r"(?:k?s|k?p|k?r|(?:i?a)?x|(?:k?s)?g|(?:z?I)?A|(?:y?e)?k|(?:(?:(?:(?:r?e)?r)?a)?e)?B)\b",
        r"[\w-]*+:[0-9]{5,}+",
        r"[0-9]++",
    )
]


@attrs.frozen
class Secret:
    """An API key or token, by value or by environment variable. Its `repr` hides the value."""

    _value: str | None = attrs.field(default=None, repr=False)
    variable: str | None = None

    @classmethod
    def env(cls, name: str) -> Secret:
        """Return a secret that is read from an environment variable each time it is used."""
        return cls(None, name)

    def reveal(self) -> str | None:
        """Return the value without surrounding white space, or None if there is none."""
        value = self._value
        if value is None and self.variable:
            value = os.environ.get(self.variable)
        # Files and shells often leave a newline behind the value.
        return None if value is None else value.strip()

    def redact(self, text: str) -> str:
        """Return the text without this secret and without anything that looks like a key."""
        value = self.reveal()
        return redact_keys(text.replace(value, REDACTED) if value else text)


def redact_keys(text: str) -> str:
    """Return the text without anything that looks like an API key or a token."""
    return _KEY.sub(REDACTED, text)


def key_stream() -> RedactingStream:
    """Return a stream that does in chunks what `redact_keys` does to a whole text."""
    return IncrementalStream(_redact_from, _safe_end)


def _safe_end(text: str, start: int) -> int:
    backwards = text[::-1]
    partial = max((found.end() for found in _partial_keys(backwards)), default=0)
    if not partial:
        return len(text)
    end = max(start, len(text) - partial)
    # A bot token may begin inside another key: then the whole key is withheld.
    return next(
        (key.start() for key in _KEY.finditer(text, start) if key.start() < end < key.end()), end
    )


def _partial_keys(backwards: str) -> Iterator[re.Match[str]]:
    return filter(None, (pattern.match(backwards) for pattern in _PARTIAL_KEYS))


def _redact_from(text: str, start: int) -> str:
    parts, end = [], start
    for key in _KEY.finditer(text, start):
        parts += [text[end : key.start()], REDACTED]
        end = key.end()
    return "".join([*parts, text[end:]])
