"""Keys and tokens: they are used, and never shown."""

from __future__ import annotations

import os
import re

import attrs

HIDDEN = "[hidden]"
# Long, and with a digit: key-exchange, sk-learn and Bearer tokens are things to talk about.
_KEYS = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)(?=[\w-]*\d)[\w-]{16,}"
    r"|\bkey[-_](?=[a-z]*\d)[a-z0-9]{16,}"
    r"|\bBearer\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
    r"|(?<![0-9])[0-9]{5,}:[\w-]{30,}",  # a Telegram bot's, also in its address
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
        value = self._value
        if value is None and self.variable:
            value = os.environ.get(self.variable)
        # Files and shells like to leave a line end behind it.
        return None if value is None else value.strip()

    def hide(self, text: str) -> str:
        """The text without this key, and without anything that looks like one."""
        value = self.reveal()
        return hide_keys(text.replace(value, HIDDEN) if value else text)


def hide_keys(text: str) -> str:
    """The text without anything that looks like a key."""
    return _KEYS.sub(HIDDEN, text)
