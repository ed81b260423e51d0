"""Decoding of the events of a streamed answer, without losing text silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs
import msgspec

from hermes.agents.providers.base import Unavailable
from hermes.messages import JsonObject

E = TypeVar("E")

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `msgspec.json.decode` raises for text that is truncated, not UTF-8, or nested too deeply."""
MAX_LOST = 20
"""After more events than this that cannot be decoded, the answer counts as failed."""

_DETAIL_TEXTS = frozenset({"text", "summary", "data"})


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


@attrs.define
class DetailJoiner:
    """Joins the reasoning details of an answer, each of which a server may send in pieces.

    A secret that begins in one piece and ends in the next is recognised only in the joined text.
    """

    _blocks: list[JsonObject] = attrs.Factory(list)
    _texts: list[dict[str, list[str]]] = attrs.Factory(list)
    """For each block the pieces of its texts, by name."""
    _by_index: dict[tuple[object, object], int] = attrs.Factory(dict)

    def feed(self, pieces: Sequence[JsonObject]) -> None:
        """Add the pieces of one event."""
        for number, piece in enumerate(pieces):
            at = self._block_of(piece, first=number == 0)
            block, texts = self._blocks[at], self._texts[at]
            for name, value in piece.items():
                if name in _DETAIL_TEXTS and isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                elif value is not None or name not in block:
                    block[name] = value

    def finish(self) -> tuple[JsonObject, ...]:
        """Return the joined details, in the order in which they began."""
        return tuple(
            {**block, **{name: "".join(pieces) for name, pieces in texts.items()}}
            for block, texts in zip(self._blocks, self._texts, strict=True)
        )

    def _block_of(self, piece: JsonObject, *, first: bool) -> int:
        """Return the number of the block that a piece continues, or of a new one.

        Most servers number the blocks. Without numbers, an event continues the last block, unless
        that is of another type or complete: a signature comes last.
        """
        index, kind = _hashable(piece.get("index")), _hashable(piece.get("type"))
        if index is not None:
            known = self._by_index.setdefault((index, kind), len(self._blocks))
        elif first and self._blocks and _continues(self._blocks[-1], kind):
            known = len(self._blocks) - 1
        else:
            known = len(self._blocks)
        if known == len(self._blocks):
            self._blocks.append({})
            self._texts.append({})
        return known


def _continues(block: JsonObject, kind: object) -> bool:
    complete = _hashable(block.get("index")) is not None or block.get("signature") is not None
    return _hashable(block.get("type")) == kind and not complete


def _hashable(value: object) -> object:
    return value if isinstance(value, str | int) else None
