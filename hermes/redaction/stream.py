"""The interfaces of redactors, and redaction of text that arrives in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

REDACTED = "[redacted]"
"""Replaces a secret in a text."""

RECHECK_LENGTH = 256
"""Withheld text longer than this is searched again only after it has grown by half."""

Redact: TypeAlias = Callable[[str], str]
"""A function that returns a text without secrets."""


class RedactingStream(Protocol):
    """Redacts one text that arrives in chunks.

    The returned parts, joined, are the redacted text. Only the end of a chunk that later chunks
    could complete to a secret is withheld.
    """

    def feed(self, chunk: str) -> str:
        """Add a chunk and return the text that is now known to be free of secrets."""
        ...

    def finish(self) -> str:
        """Return the withheld rest. The stream can then be used for another text."""
        ...


@runtime_checkable
class Redactor(Protocol):
    """Removes secrets from texts. Calling it redacts a complete text."""

    def __call__(self, text: str, /) -> str:
        """Return the text with every secret replaced by `REDACTED`."""
        ...

    def stream(self) -> RedactingStream:
        """Return a stream that redacts one text in chunks."""
        ...


def as_redactor(redact: Redact) -> Redactor:
    """Return `redact` itself if it is a `Redactor`; otherwise wrap the function.

    A plain function can only judge complete texts, so the streams of the wrapper withhold
    everything until `finish`.
    """
    return redact if isinstance(redact, Redactor) else _FunctionRedactor(redact)


class _FunctionRedactor:
    """A plain function as a `Redactor`."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def __call__(self, text: str, /) -> str:
        """Return the text without secrets."""
        return self._redact(text)

    def stream(self) -> RedactingStream:
        """Return a stream that withholds the text until it is complete."""
        return BufferedStream(self._redact)


class BufferedStream:
    """Withholds the whole text until it is complete."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._chunks: list[str] = []

    def feed(self, chunk: str) -> str:
        """Keep the chunk; nothing can be returned yet."""
        self._chunks.append(chunk)
        return ""

    def finish(self) -> str:
        """Return the whole redacted text."""
        text, self._chunks = "".join(self._chunks), []
        return self._redact(text) if text else ""


class IncrementalStream:
    """Returns text as soon as no later chunk can change how it is redacted.

    `safe_end(text, start)` is the position up to which the redaction of the text is final.
    `redact(text, start)` redacts a text. Both look at the text from `start` on; the at most one
    character before it has been returned already and serves as context.
    """

    def __init__(
        self, redact: Callable[[str, int], str], safe_end: Callable[[str, int], int]
    ) -> None:
        self._redact = redact
        self._safe_end = safe_end
        self._text, self._start = "", 0
        self._added: list[str] = []
        self._length = self._next_check = 0

    def feed(self, chunk: str) -> str:
        """Add a chunk and return the text whose redaction is final."""
        self._added.append(chunk)
        self._length += len(chunk)
        if self._length < self._next_check:
            return ""
        text = self._join()
        end = self._safe_end(text, self._start)
        redacted = self._redact(text[:end], self._start)
        context = max(end - 1, 0)
        self._text, self._start = text[context:], end - context
        self._length = len(self._text)
        withheld = self._length - self._start
        self._next_check = 0 if withheld < RECHECK_LENGTH else withheld * 3 // 2
        return redacted

    def finish(self) -> str:
        """Return the withheld rest."""
        redacted = self._redact(self._join(), self._start)
        self._text, self._start, self._length, self._next_check = "", 0, 0, 0
        return redacted

    def _join(self) -> str:
        """Return the whole text that is withheld or new."""
        text, self._added = "".join([self._text, *self._added]), []
        return text


class ChainedStream:
    """Feeds the output of one stream into another."""

    def __init__(self, first: RedactingStream, second: RedactingStream) -> None:
        self._first = first
        self._second = second

    def feed(self, chunk: str) -> str:
        """Add a chunk and return the text that both streams have released."""
        return self._second.feed(self._first.feed(chunk))

    def finish(self) -> str:
        """Return what either stream has withheld."""
        return self._second.feed(self._first.finish()) + self._second.finish()
