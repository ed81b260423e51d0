"""The reply to a message, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages.approvals import Approval
from hermes.messages.attachments import StoredFile
from hermes.messages.transcript import JsonObject, StoredMessage, ToolCall

BuildReason: TypeAlias = Literal["cold", "signature", "foreign-write", "evicted", "abandoned"]
"""Why an agent was built instead of reused."""
ReplyStatus: TypeAlias = Literal[
    "complete", "partial", "failed", "interrupted", "refused", "command", "withdrawn"
]
"""How a message was answered.

`partial` means that a part of the text is missing: it reached the token limit, or could not be
read. `withdrawn` means that the host took the message back before its turn.
"""


class Usage(msgspec.Struct, frozen=True):
    """Tokens and cost of one provider call."""

    purpose: str = "turn"
    model: str | None = None
    provider: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reply"):
    """The outcome of a message: the reply to its sender, and how the turn ended."""

    text: str
    session_id: str
    turn_id: int
    status: ReplyStatus = "complete"
    usage: tuple[Usage, ...] = ()
    error: str | None = None
    """What the agent reported as its error, or the class and reference of an exception."""
    build_reason: BuildReason | None = None
    """Why the agent was built for this turn; None if the cached one was reused."""
    error_kind: str | None = None
    """The class of the error, without its message: that of an exception, `TurnResult.error_kind`,
    or "agent" for other failed results."""
    reference: str | None = None
    """Finds the exception of a failed turn in the log. Its message is not in `text` or `error`."""
    data: object = None
    """The structured result of the agent, as a JSON value."""
    metadata: JsonObject = msgspec.field(default_factory=dict)
    """The metadata of the messages that it answers. If several have the same name, the value of the
    last one counts."""
    approvals: tuple[Approval, ...] = ()
    """The tool calls for which the turn has asked the user's approval. If no adapter sends these
    questions, `text` begins with them."""
    files: tuple[StoredFile, ...] = ()
    """The files of the answer. `Conversation.read_file` returns their content."""
    messages: tuple[int, int] | None = None
    """The ids of the first and the last row of the turn in the transcript, if it has any."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of a client's own tools, with which the turn has ended. The client answers them in
    its next request."""

    def stored_in(self, session_id: str, rows: Sequence[StoredMessage]) -> Reply:
        """Return the reply with the session that its turn was committed to, and its rows."""
        ids = (rows[0].id, rows[-1].id) if rows else None
        return replace(self, session_id=session_id, messages=ids)
