"""Messages of Hermes itself in a transcript: they tell an agent what its user has decided."""

from __future__ import annotations

import re

from hermes.messages import Approval

APPROVED = (
    "[The user has approved one call of {tool}, with exactly these arguments: {arguments}\n"
    "Make it now. Any other call needs an approval of its own.]"
)
DENIED = (
    "[The user has refused one call of {tool}, with exactly these arguments: {arguments}\n"
    "It was not made. Do not ask for it again unless the user does; say how you go on without it.]"
)
_ENDS = "|".join(re.escape(text.rpartition("{arguments}")[2]) for text in (APPROVED, DENIED))
_DECISION = re.compile(
    r"\[(The user has (?:approved|refused) one call of .*, with exactly these arguments: .*)"
    rf"(?:{_ENDS})",
    re.DOTALL,
)


def message_about(approval: Approval, *, approved: bool) -> str:
    """Return what the agent is told about a decision."""
    template = APPROVED if approved else DENIED
    return template.format(tool=approval.tool, arguments=approval.arguments)


def decision_in(text: str | None) -> str | None:
    """Return the sentence about a decision, for people; None for any other message."""
    found = _DECISION.fullmatch(text or "")
    return None if found is None else found[1]
