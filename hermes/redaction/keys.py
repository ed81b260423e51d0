"""API keys: a value that never shows itself, and redaction of text that looks like a key."""

from __future__ import annotations

import os
import re

import attrs

from hermes.redaction.stream import REDACTED, IncrementalStream, RedactingStream

# At least 16 characters with a digit: "key-exchange", "sk-learn" and "Bearer tokens" are ordinary
# words.
_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)(?=[\w-]*\d)[\w-]{16,}"
    r"|\bkey[-_](?=[a-z]*\d)[a-z0-9]{16,}"
    r"|\bBearer\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
    r"|(?<![0-9])[0-9]{5,}:[\w-]{30,}",  # a Telegram bot token, also inside a URL
    re.IGNORECASE,
)
# The end of a text that later chunks could complete to a key, or to a longer one.
_PARTIAL_KEY = re.compile(
    r"\b(?:(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)[\w-]*|key[-_][a-z0-9]*|Bearer\s+[\w.~+/=-]*"
    r"|sk?|pk?|rk?|x(?:ai?)?|g(?:sk?)?|A(?:Iz?)?|k(?:ey?)?|B(?:e(?:a(?:r(?:er?)?)?)?)?)\Z"
    r"|(?<![0-9])(?:[0-9]{5,}:[\w-]*|[0-9]+)\Z",
    re.IGNORECASE,
)


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
    partial = _PARTIAL_KEY.search(text, start)
    if partial is None:
        return len(text)
    end = partial.start()
    # A bot token may begin inside another key: then the whole key is withheld.
    return next(
        (key.start() for key in _KEY.finditer(text, start) if key.start() < end < key.end()), end
    )


def _redact_from(text: str, start: int) -> str:
    parts, end = [], start
    for key in _KEY.finditer(text, start):
        parts += [text[end : key.start()], REDACTED]
        end = key.end()
    return "".join([*parts, text[end:]])
