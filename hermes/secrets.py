"""Keys and tokens: they are used, and never shown."""

from __future__ import annotations

import os
import re

import attrs

HIDDEN = "[hidden]"
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|xai|gsk|key|AIza)[-_][\w-]{8,}|\bBearer\s+\S+|\bAIza[\w-]{20,}"
    r"|(?<![0-9])[0-9]{5,}:[\w-]{30,}",  # the last: a Telegram bot's
    re.IGNORECASE,
)


@attrs.frozen
class Secret:
    """A key, by value or by the name of an environment variable; it never shows itself."""

    _value: str | None = attrs.field(default=None, repr=False)
    variable: str | None = None

    @classmethod
    def env(cls, name: str) -> Secret:
        """The key that an environment variable holds when it is used."""
        return cls(None, name)

    def reveal(self) -> str | None:
        """The key itself; None where there is none."""
        if self._value is not None:
            return self._value
        return os.environ.get(self.variable) if self.variable else None

    def hide(self, text: str) -> str:
        """The text without this key, and without anything that looks like one."""
        value = self.reveal()
        return hide_keys(text.replace(value, HIDDEN) if value else text)


def hide_keys(text: str) -> str:
    """The text without anything that looks like a key."""
    return _KEYS.sub(HIDDEN, text)
