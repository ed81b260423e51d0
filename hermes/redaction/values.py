"""Redaction of known secret values, in plain and in encoded form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hermes.redaction.encodings import (
    MAX_INDENT,
    DecodedText,
    decoded_forms,
    encoded_forms,
    has_escapes,
    may_contain,
    occurrences,
    without_partial_escape,
)
from hermes.redaction.keys import key_stream, redact_keys
from hermes.redaction.stream import REDACTED, ChainedStream, IncrementalStream, RedactingStream

MIN_LENGTH = 6
"""Shorter values are not redacted: they occur in ordinary text too often."""
MIN_LINE_LENGTH = 16
"""Lines at least this long are redacted on their own, such as those of a private key."""
_FIRST = 16
_BREAK = " \t\r\n>\\"
MAX_BREAK = 3 * MAX_INDENT
"""A longer gap is no line break inside of a value."""


class ValueRedactor:
    """Removes the given secrets from texts, also in encoded form.

    Recognized are JSON, `repr`, percent-encoding, HTML entities, Markdown, hexadecimal and base64,
    and each of them in wrapped lines.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {part for secret in secrets for part in _parts(secret)}
        # Longest first: one value may contain another.
        ordered = sorted(values, key=len, reverse=True)
        self._encoded = [form for value in ordered for form in encoded_forms(value)]
        self._decoded = [form for value in ordered for form in decoded_forms(value)]
        self._prefixes = _Prefixes(self._encoded)
        self._decoded_prefixes = _Prefixes(self._decoded)
        self._shortest = min(map(len, self._encoded), default=0)

    def __call__(self, text: str, /) -> str:
        """Return the text without these secrets."""
        if len(text) < self._shortest:
            return text
        for form in self._encoded:
            if form in text:
                text = text.replace(form, REDACTED)
        if self._decoded and has_escapes(text) and may_contain(text, self._decoded):
            text = _without_escaped(text, self._decoded)
        return text

    def stream(self) -> RedactingStream:
        """Return a stream that redacts one text in chunks."""
        return IncrementalStream(
            lambda text, start: self(text[start:]),
            lambda text, start: start + self._safe_end(text[start:]),
        )

    def _safe_end(self, text: str) -> int:
        """Return the position up to which later text cannot change the redaction."""
        end = self._prefixes.partial_at_end(text)
        spans: list[tuple[int, int]] = []
        if self._decoded and has_escapes(text):
            decoded = DecodedText(without_partial_escape(text))
            end = min(end, decoded.source(self._decoded_prefixes.partial_at_end(decoded.text)))
            spans = [span for form in self._decoded for span in decoded.occurrences(form)]
        unfinished = text.rstrip(_BREAK)
        if len(unfinished) < len(text) <= len(unfinished) + MAX_BREAK:
            decoded = DecodedText(unfinished)
            partial = self._decoded_prefixes.partial_at_end(decoded.text)
            if partial < len(decoded.text):  # it may continue on the next line
                end = min(end, decoded.source(partial))
        if end < len(text) and len(text) >= self._shortest:
            spans += [span for form in self._encoded for span in occurrences(text, form)]
        return _outside(end, spans)


class StrictRedactor:
    """Removes the given secrets and anything that looks like a key; for logs and status files.

    `values` redacts the given secrets only. It is meant for conversations, in which people may
    write about keys.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self.values: ValueRedactor = ValueRedactor(secrets)

    def __call__(self, text: str, /) -> str:
        """Return the text without these secrets and without anything that looks like a key."""
        return redact_keys(self.values(text))

    def stream(self) -> RedactingStream:
        """Return a stream that redacts one text in chunks."""
        return ChainedStream(self.values.stream(), key_stream())


class _Prefixes:
    """Finds the beginning of a value at the end of a text."""

    def __init__(self, values: Sequence[str]) -> None:
        self._by_first: dict[str, list[str]] = {}
        for value in dict.fromkeys(values):
            self._by_first.setdefault(value[0], []).append(value)
        self._longest = max(map(len, values), default=0)

    def partial_at_end(self, text: str) -> int:
        """Return where the longest partial value at the end starts, or the length of the text."""
        length = len(text)
        for start in range(max(0, length - self._longest + 1), length):
            if values := self._by_first.get(text[start]):
                begin = text[start : start + _FIRST]  # long secrets are seldom compared whole
                for value in values:
                    longer = len(value) > length - start and value.startswith(begin)
                    if longer and value.startswith(text[start:]):
                        return start
        return length


def _outside(position: int, spans: Iterable[tuple[int, int]]) -> int:
    """Return the last position up to the given one that lies inside none of the spans."""
    for start, end in sorted(spans, key=lambda span: -span[1]):
        if start < position < end:
            position = start
    return position


def _parts(secret: str) -> Iterator[str]:
    """Yield the secret without surrounding white space, and its long lines if it has several."""
    secret = secret.strip()
    if len(secret) >= MIN_LENGTH:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= MIN_LINE_LENGTH)


def _without_escaped(text: str, values: Iterable[str]) -> str:
    """Return the text without the parts that are one of the values once they are decoded."""
    decoded = DecodedText(text)
    spans = sorted(span for value in values for span in decoded.occurrences(value))
    parts, end = [], 0
    for start, stop in spans:
        if start >= end:
            parts += [text[end:start], REDACTED]
        end = max(end, stop)
    return "".join([*parts, text[end:]])
