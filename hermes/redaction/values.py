"""Redaction of known secret values, in plain and in encoded form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hermes.redaction.encodings import (
    MAX_INDENT,
    DecodedText,
    decoded_forms,
    encoded_forms,
    without_partial_escape,
)
from hermes.redaction.keys import key_stream, redact_keys
from hermes.redaction.search import MIN_LENGTH, CondensedValues, Prefixes, condensed, occurrences
from hermes.redaction.slices import KnownTexts, slices
from hermes.redaction.stream import REDACTED, ChainedStream, IncrementalStream, RedactingStream

MIN_LINE_LENGTH = 16
"""Lines at least this long are redacted on their own, such as those of a private key."""
_BREAK = " \t\r\n>\\"
MAX_ESCAPE = 26
"""The length of the longest escapes, without backslashes and other repeated parts."""
MAX_BREAK = 3 * MAX_INDENT
"""A longer gap is no line break inside of a value."""


class ValueRedactor:
    """Removes the given secrets from texts, also in encoded form.

    Recognized are JSON, `repr`, percent-encoding, HTML entities, Markdown, hexadecimal and base64,
    and each of them in wrapped lines or with invisible characters in it. Secrets with at least 12
    letters and digits are recognized by these alone, in capitals or not, whatever lies between.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {part for secret in secrets for part in _parts(secret)}
        self._encoded = list(dict.fromkeys(f for value in values for f in encoded_forms(value)))
        self._decoded = list(dict.fromkeys(f for value in values for f in decoded_forms(value)))
        self._condensed = CondensedValues(self._decoded)
        forms = [*self._decoded, *map(condensed, self._decoded)]
        self._beginnings = frozenset(start for form in forms for start in _starts(form))
        self._prefixes = Prefixes(self._encoded)
        self._decoded_prefixes = Prefixes(self._decoded)
        self._known = KnownTexts()
        self._shortest = min(map(len, (*self._encoded, *self._decoded)), default=0)

    def __call__(self, text: str, /) -> str:
        """Return the text without these secrets."""
        redacted = self._known.get(text)
        if redacted is None:
            redacted = self._redact(text)
            self._known.add(text, redacted)
        return redacted

    def redact_slices(self, text: str) -> Iterator[None]:
        """Redact a text in slices, and remember the result (see `hermes.redaction.slices`)."""
        if self._encoded and self._known.get(text) is None:
            stream, parts = self.stream(), []
            for part in slices(text):
                parts.append(stream.feed(part))
                yield
            self._known.add(text, "".join([*parts, stream.finish()]))
            yield

    def _redact(self, text: str) -> str:
        if len(text) < self._shortest or not self._encoded:
            return text
        parts, end = [], 0
        for start, stop in sorted(self._spans(text, self._readings(text))):
            if start >= end:
                parts += [text[end:start], REDACTED]
            end = max(end, stop)
        return "".join([*parts, text[end:]]) if parts else text

    def _readings(self, text: str) -> list[DecodedText]:
        """Return the decoded text, and another reading if a secret may begin inside an escape."""
        decoded = DecodedText.of(text)
        other = decoded.with_literal(self._beginnings)
        return [decoded] if other is None else [decoded, other]

    def _spans(self, text: str, readings: Sequence[DecodedText]) -> list[tuple[int, int]]:
        """Return start and end of every secret in a text."""
        spans = []
        for decoded in readings:
            forms = [form for form in self._decoded if form in decoded.text]
            spans += [span for form in forms for span in decoded.occurrences(form)]
            for start, end in self._condensed.occurrences(decoded.text):
                spans.append((decoded.source(start), decoded.source_of_end(end)))
        if readings[0].text != text:
            forms = [form for form in self._encoded if form in text]
            spans += [span for form in forms for span in occurrences(text, form)]
        return spans

    def stream(self) -> RedactingStream:
        """Return a stream that redacts one text in chunks."""
        return IncrementalStream(
            lambda text, start: self._redact(text[start:]),
            lambda text, start: start + self._safe_end(text[start:]),
        )

    def _safe_end(self, text: str) -> int:
        """Return the position up to which later text cannot change the redaction."""
        if not self._encoded:
            return len(text)
        readings = self._readings(without_partial_escape(text))
        end = min(self._prefixes.partial_at_end(text), *map(self._partial_at_end, readings))
        unfinished = text.rstrip(_BREAK)
        if len(unfinished) < len(text) <= len(unfinished) + MAX_BREAK:
            partial = min(map(self._partial_at_end, self._readings(unfinished)))
            if partial < len(unfinished):  # it may continue on the next line
                end = min(end, partial)
        if end == len(text):
            return end
        spans, last = self._spans(text, readings), -1
        while end != last:
            last, end = end, readings[0].outside(_outside(end, spans))
        return end

    def _partial_at_end(self, decoded: DecodedText) -> int:
        """Return where the beginning of a value at the end of a text starts in the original."""
        in_decoded = self._decoded_prefixes.partial_at_end(decoded.text)
        return decoded.source(min(in_decoded, self._condensed.partial_at_end(decoded.text)))


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


def _outside(position: int, spans: Iterable[tuple[int, int]]) -> int:
    """Return the last position up to the given one that lies inside none of the spans."""
    for start, end in sorted(spans, key=lambda span: -span[1]):
        if start < position < end:
            position = start
    return position


def _starts(form: str) -> Iterator[str]:
    """Yield the beginnings of a form that an escape could end with, in lower case."""
    return (form[:length].lower() for length in range(1, min(MAX_ESCAPE, len(form))))


def _parts(secret: str) -> Iterator[str]:
    """Yield the secret without surrounding white space, and its long lines if it has several."""
    secret = secret.strip()
    if len(secret) >= MIN_LENGTH:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= MIN_LINE_LENGTH)
