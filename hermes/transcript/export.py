"""A conversation as Markdown, for people."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import StoredMessage
from hermes.texts import Texts
from hermes.transcript.compaction import is_question


def as_markdown(
    title: str | None, messages: Sequence[StoredMessage], texts: Texts, limit: int | None = None
) -> str:
    """Return the questions and answers of a conversation.

    Results of tools, summaries and notices are left out. With a `limit`, the latest messages that
    fit into as many characters are returned; a line says how many are missing.
    """
    names = {"user": texts.export_user, "assistant": texts.export_assistant}
    said = [
        f"**{names[row.role]}**\n\n{row.content}"
        for row in messages
        if row.content and (is_question(row) or row.role == "assistant")
    ]
    kept = _latest(said, limit)
    head = [] if title is None else [f"# {title}"]
    if missing := len(said) - len(kept):
        head.append(texts.export_cut.format(number=missing))
    return "\n\n".join([*head, *kept]) or texts.nothing_to_export


def _latest(said: Sequence[str], limit: int | None) -> Sequence[str]:
    if limit is None:
        return said
    left, first = limit, len(said)
    while first and len(said[first - 1]) <= left:
        first -= 1
        left -= len(said[first])
    return said[first:]
