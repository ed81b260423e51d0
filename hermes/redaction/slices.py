"""Redaction of long texts in slices, so that one text does not hold the event loop.

Redaction is called in places that cannot wait, such as `Turn.emit`. A task that has just received a
value prepares its long texts: they are redacted in slices, with a checkpoint after each, and the
redactor remembers the results. The calls that follow find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec
import trio
from msgspec.structs import asdict

from hermes.redaction.keys import key_stream
from hermes.redaction.stream import Redact, Redactor

SLICE = 16_384
"""Texts with more characters than this are long. It takes some milliseconds to redact a slice."""
MAX_KNOWN = 2**22
"""How many characters of long texts and results a redactor remembers, besides the last text."""


@runtime_checkable
class SlicingRedactor(Redactor, Protocol):
    """A redactor that can redact a long text in slices, and remembers the result."""

    def redact_slices(self, text: str) -> Iterator[None]:
        """Redact a text, one slice for each step of the iteration."""
        ...


class KnownTexts:
    """The long texts that were redacted last, with the results.

    A result is known too: nothing changes if it is redacted again.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def get(self, text: str) -> str | None:
        """Return the result for a text; None if it is short or not known."""
        return self._known.get(text) if len(text) > SLICE else None

    def add(self, text: str, redacted: str) -> None:
        """Remember the result for a long text."""
        if len(text) > SLICE:
            # A new dictionary, because a redactor may be called in several threads.
            known = {**self._known, text: redacted, redacted: redacted}
            while sum(map(len, known)) > MAX_KNOWN and len(known) > 1:
                del known[next(iter(known))]
            self._known = known


async def prepare(value: object, redact: Redact) -> None:
    """Redact the long texts of a struct or JSON value in slices.

    Afterwards `redact` returns the results at once. Without long texts this returns at once; it is
    no checkpoint then.
    """
    if isinstance(redact, SlicingRedactor):
        for text in _long_texts(value):
            for _ in redact.redact_slices(text):
                await trio.lowlevel.checkpoint()


async def redact_text(text: str, redact: Redact) -> str:
    """Return the text without secrets; a long one is redacted in slices."""
    await prepare(text, redact)
    return redact(text)


async def redact_text_keys(text: str) -> str:
    """Return what `redact_keys` returns; a long text is redacted in slices."""
    stream, parts = key_stream(), []
    for part in slices(text):
        parts.append(stream.feed(part))
        await trio.lowlevel.checkpoint()
    return "".join([*parts, stream.finish()])


def slices(text: str) -> Iterator[str]:
    """Yield the slices of a text."""
    return (text[start : start + SLICE] for start in range(0, len(text), SLICE))


def _long_texts(value: object) -> Iterator[str]:
    match value:
        case str():
            if len(value) > SLICE:
                yield value
        case dict():
            for name, each in value.items():
                yield from _long_texts(name)
                yield from _long_texts(each)
        case list() | tuple():
            for each in value:
                yield from _long_texts(each)
        case msgspec.Struct():
            yield from _long_texts(asdict(value))
