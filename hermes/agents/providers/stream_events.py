"""Decoding of the events of a streamed answer, without losing text silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs
import msgspec

from hermes.agents.providers.base import Unavailable

E = TypeVar("E")

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `msgspec.json.decode` raises for text that is truncated, not UTF-8, or nested too deeply."""
MAX_LOST = 20
"""After more events than this that cannot be decoded, the answer counts as failed."""


@attrs.define
class EventDecoder(Generic[E]):
    """Decodes the events of one answer, and counts those that cannot be decoded."""

    name: str
    """The name of the provider, for errors."""
    _kind: type[E]
    _decode: Callable[[bytes], E]
    lost: int = 0

    def decode(self, data: bytes) -> E | None:
        """Return an event; None if it is empty or cannot be decoded.

        Raises `Unavailable` if too many cannot be decoded.
        """
        try:
            return self._decode(data)
        except JSON_ERRORS:
            return self._decode_halves(data)

    def _decode_halves(self, data: bytes) -> E | None:
        """Decode an event with half a UTF-16 pair, which msgspec refuses."""
        if not data.strip():
            return None
        try:
            value = json.loads(data.decode(errors="surrogatepass"))
            return msgspec.convert(value, self._kind, strict=False)
        except (ValueError, RecursionError):
            self.lost += 1
        if self.lost > MAX_LOST:
            raise Unavailable(f"{self.name} sent malformed data") from None
        return None


@attrs.define
class HalfJoiner:
    """Joins characters that a server has split into two halves of a UTF-16 pair."""

    broken: bool = False
    """Whether a half had no other half. It is replaced by U+FFFD."""
    _half: str = ""

    def feed(self, text: str) -> str:
        """Return a piece of the text; half a character at its end comes with the next piece."""
        if text.isascii() and not self._half:
            return text
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return self._joined(text)

    def finish(self) -> str:
        """Return what is left of the text."""
        half, self._half = self._half, ""
        return self._joined(half)

    def _joined(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            self.broken = self.broken or joined.count("\ufffd") > text.count("\ufffd")
            return joined
        return text
