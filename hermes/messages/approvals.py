"""Tool calls that need the approval of a user."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

ApprovalState: TypeAlias = Literal["pending", "approved", "denied", "used", "expired"]
QuestionDelivery: TypeAlias = Literal["outbox", "client", "host"]
"""What delivers a question to the user: an adapter, from the outbox; the connection of a JSON-RPC
client, or the response to an API client; or the program that runs the conversation."""


class Approval(msgspec.Struct, frozen=True):
    """A tool call that a user is asked to approve, for these arguments and one run.

    `asked_of` is the conversation whose user decides: the one of the call, or the one that started
    it in the background.
    """

    approval_id: int
    asked_of: str
    session_key: str
    tool: str
    arguments: str
    state: ApprovalState
    asked_at: float
    expires_at: float


class QuestionRoute(msgspec.Struct, frozen=True):
    """How a question reaches the user of a conversation.

    `limit` is the maximum length of a message in UTF-16 code units; None for no limit.
    """

    delivery: QuestionDelivery
    limit: int | None = None
