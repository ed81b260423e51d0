"""What a compression is asked to do, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from hermes.messages import InboxReply, Message, Rotated, Skipped
from hermes.protocols import CompressionStore
from hermes.texts import Texts

Trigger: TypeAlias = Literal["size", "overflow", "asked"]
"""Why a session is compressed: its size, a refusal of the model, or a request."""


class Compressed(msgspec.Struct, frozen=True):
    """The conversation continues in a child session. Sizes are in estimated tokens."""

    rotated: Rotated
    before: int
    after: int


class CompressionFailed(msgspec.Struct, frozen=True):
    """There is no summary, for this reason, and nothing was changed."""

    reason: str


CompressionResult: TypeAlias = Compressed | Skipped | CompressionFailed


def result_text(result: CompressionResult, texts: Texts) -> str:
    """Return what the user is told about a compression."""
    match result:
        case Compressed(_, before, after):
            return texts.compressed.format(before=before, after=after)
        case Skipped(reason):
            return texts.not_compressed.format(reason=reason)
        case CompressionFailed(reason):
            return texts.compression_failed.format(error=reason)


class PastAttempt(msgspec.Struct, frozen=True):
    """A compression of a conversation for which a summary was written or requested."""

    by_turn: bool
    """Whether a turn caused it, and not a request."""
    number: int
    """How many attempts the runtime had made when it ended, with this one."""
    latest_command: int
    """The inbox id of the latest command that the conversation had got when it ended."""
    result: CompressionResult

    def skipped(self, texts: Texts) -> Skipped:
        """Return the answer to a request that was made before this attempt ended."""
        match self.result:
            case Compressed(rotated):
                reason = texts.compressed_by_turn if self.by_turn else texts.compressed_by_request
                return Skipped(reason, winner=rotated.session_id)
            case other:
                reason = texts.tried_by_turn if self.by_turn else texts.tried_by_request
                return Skipped(reason.format(outcome=other.reason))


class CompressionJob(msgspec.Struct, frozen=True, kw_only=True):
    """The session to compress, as its actor knows it, and the options."""

    session_key: str
    session_id: str
    epoch: int
    rotation_id: str
    trigger: Trigger = "size"
    focus: str | None = None
    keep_exchanges: int | None = None
    waiting: Sequence[Message] = ()
    """Input that is not stored yet: everything that is stored may be summarized."""
    answer: Callable[[str], InboxReply] | None = None
    """Makes the reply to the command that asked for it from its text."""
    store: CompressionStore | None = None
    """The verbs of the actor, for the rotation; None for those of the compressor."""


class CompressionState(msgspec.Struct, omit_defaults=True):
    """The outcome of a session's earlier compressions, stored so that it survives a restart."""

    useless: int = 0
    """Compressions in a row that did not help."""
    failures: int = 0
    """Failed attempts in a row."""
    not_before: float = 0.0
    """When an automatic attempt may be made again, in wall-clock time."""
    fresh: bool = False
    """Whether the session is the child of a compression that has not been evaluated yet."""
    error: str | None = None
