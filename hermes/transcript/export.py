"""A conversation as Markdown, for people."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import StoredMessage
from hermes.texts import Texts
from hermes.transcript.attachments import as_text
from hermes.transcript.compaction import is_question
from hermes.transcript.decisions import decision_in


def as_markdown(
    title: str | None, messages: Sequence[StoredMessage], texts: Texts, limit: int | None = None
) -> str:
    """Return the questions, decisions and answers of a conversation; files are named.

    Results of tools, summaries and notices are left out. With a `limit`, the latest messages that
    fit into as many characters are returned; a line says how many are missing.
    """
    said = [
        _said(row, text, texts)
        for row in messages
        if (is_question(row) or row.role == "assistant") and (text := as_text(row))
    ]
    kept = _latest(said, limit)
    head = [] if title is None else [f"# {title}"]
    if missing := len(said) - len(kept):
        head.append(texts.export_cut.format(number=missing))
    return "\n\n".join([*head, *kept]) or texts.nothing_to_export


def _said(row: StoredMessage, text: str, texts: Texts) -> str:
    """Return a message below the name of who has written it."""
    if row.role == "assistant":
        return f"**{texts.export_assistant}**\n\n{text}"
    decision = decision_in(text)
    name = texts.export_user if decision is None else texts.export_note
    return f"**{name}**\n\n{decision or text}"


def _latest(said: Sequence[str], limit: int | None) -> Sequence[str]:
    if limit is None:
        return said
    left, first = limit, len(said)
    while first and len(said[first - 1]) <= left:
        first -= 1
        left -= len(said[first])
    return said[first:]
